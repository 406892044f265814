"""Faults that a test injects into the control plane: which request, what goes wrong, how often."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass

from grpclib import GRPCError, Status


@dataclass
class Fault:
    status: Status
    message: str
    times: int
    after: bool = False
    """The request is carried out, and only its answer is lost."""


class Faults:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[str, Fault] = {}
        self.delays: dict[str, float] = {}
        self.requests: Counter[str] = Counter()
        self.most_creating = 10**9
        """More requests for sandboxes at once than this are too many."""
        self.creating = 0
        self.refused = 0
        self.cut_after_bytes: int | None = None
        """Of each answer to a request for output."""
        self.cuts = 0

    def add(
        self,
        name: str,
        status: Status,
        times: int,
        message: str = "injected",
        *,
        after: bool = False,
    ) -> None:
        with self._lock:
            self._faults[name] = Fault(status, message, times, after)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()
            self.delays.clear()
            self.requests.clear()
            self.most_creating, self.creating, self.refused = 10**9, 0, 0
            self.cut_after_bytes, self.cuts = None, 0

    async def before(self, name: str) -> None:
        self.requests[name] += 1
        if name in self.delays:
            await asyncio.sleep(self.delays[name])
        self._strike(name, after=False)

    def afterwards(self, name: str) -> None:
        self._strike(name, after=True)

    def _strike(self, name: str, *, after: bool) -> None:
        with self._lock:
            fault = self._faults.get(name)
            if fault is None or fault.after != after or fault.times <= 0:
                return
            fault.times -= 1
        raise GRPCError(fault.status, fault.message)
