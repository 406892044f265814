"""Values that are made once, by whoever asks first, while others who ask wait for them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class Once(Generic[K, V]):
    """By key. A failure is told to everybody who waits for it and not kept: who asks later tries again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[K, Future[V]] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            found = self._made.get(key)
            future = found or self._made.setdefault(key, Future())
        if found is None:
            self._fill(key, future, make)
        return future.result()

    def forget(self, key: K) -> None:
        with self._lock:
            self._made.pop(key, None)

    def _fill(self, key: K, future: Future[V], make: Callable[[], V]) -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            self.forget(key)
            future.set_exception(error)
