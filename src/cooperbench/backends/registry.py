"""Finding a backend by its name: ours, those that were registered, entry points, and `module:Class`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from cooperbench.errors import UserError
from cooperbench.importing import import_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.sandbox.contract import EvalBackend

ENTRY_POINT_GROUP = "cooperbench.backends"

_OURS = {
    "local": "cooperbench.backends.local:LocalBackend",
    "docker": "cooperbench.backends.docker:DockerBackend",
    "modal": "cooperbench.backends.modal:ModalBackend",
    "gcp": "cooperbench.backends.gcp:GCPBatchBackend",
}
_SDKS = {
    "modal": "pip install 'cooperbench[modal]' and modal token new",
    "gcp": "pip install 'cooperbench[gcp]'",
}
"""What makes the modules that a backend imports appear."""

_registered: dict[str, Callable[[], EvalBackend]] = {}
_lock = threading.Lock()


def register(name: str, factory: Callable[[], EvalBackend]) -> None:
    """Make a backend available by name; `factory` is called for each `get_backend(name)`. The last one wins."""
    with _lock:
        _registered[name] = factory


def backend_names() -> tuple[str, ...]:
    """All names that `get_backend` knows."""
    from importlib.metadata import entry_points

    return tuple(
        sorted({*_OURS, *_registered, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})
    )


def get_backend(name: str) -> EvalBackend:
    """A backend by its name, or by `module:Class`; UserError where there is none or it cannot work here."""
    from importlib.metadata import entry_points

    if factory := _registered.get(name):
        return factory()
    if dotted := _OURS.get(name):
        return _ours(name, dotted)
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return _made(name, point.value, point.load)
    if ":" in name:
        return _made(name, name, lambda: _resolve(name))
    raise UserError(f"unknown backend {name!r}; there are: {', '.join(backend_names())}, or module:Class")


def _ours(name: str, dotted: str) -> EvalBackend:
    try:
        factory = _resolve(dotted)
    except ModuleNotFoundError as error:
        if error.name == dotted.partition(":")[0]:
            raise UserError(f"the {name} backend is not part of this version; use --backend local") from error
        hint = _SDKS.get(name, f"install {error.name}")
        raise UserError(f"the {name} backend needs {error.name}: {hint}; or use --backend local") from error
    return factory()


def _made(name: str, dotted: str, load: Callable[[], Callable[[], EvalBackend]]) -> EvalBackend:
    try:
        factory = load()
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"backend {name!r} cannot be loaded from {dotted}: {error}") from error
    return factory()


def _resolve(dotted: str) -> Callable[[], EvalBackend]:
    module, _, attribute = dotted.partition(":")
    return cast("Callable[[], EvalBackend]", getattr(import_named(module), attribute))
