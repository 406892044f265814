"""Finding a backend by its name: built-in, registered, from an entry point, or `module:Class`.

A backend's class may have these attributes:

- `options`: names of keywords that `run` and `eval` pass to it (`mounts`, `pull`, `gpu`, …)
- `clean`: a static method for `cooperbench clean` that returns a line for each thing it removed
- `about`: a line for `cooperbench doctor`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol, cast, runtime_checkable

from cooperbench.errors import UserError
from cooperbench.sandbox.contract import EvalBackend
from cooperbench.settings import import_user_module

ENTRY_POINT_GROUP = "cooperbench.backends"
_BUILT_IN = {
    "local": "cooperbench.backends.local:LocalBackend",
    "docker": "cooperbench.backends.docker:DockerBackend",
    "modal": "cooperbench.backends.modal:ModalBackend",
    "gcp": "cooperbench.backends.gcp:GCPBatchBackend",
}
OUR_BACKENDS = tuple(_BUILT_IN)

BackendFactory = Callable[..., EvalBackend]
"""A backend's class, or a function that creates a backend."""

_registered: dict[str, BackendFactory] = {}


@runtime_checkable
class _HasOptions(Protocol):
    options: Collection[str]


def register(name: str, factory: BackendFactory) -> None:
    """Make a backend available by name; `factory` is called for each `get_backend(name)`.

    Registering a name again replaces it.
    """
    _registered[name] = factory


def backend_names() -> tuple[str, ...]:
    """Return all names that `get_backend` knows."""
    return tuple(sorted({*_BUILT_IN, *_registered, *_entry_points()}))


def get_backend(name: str, **options: object) -> EvalBackend:
    """Create a backend.

    Raises:
        UserError: It does not exist, cannot work here, or does not have an option.
    """
    check_options(name, options)
    return find_factory(name)(**options)


def check_options(name: str, options: Iterable[str]) -> None:
    """Raise UserError if the backend does not have an option."""
    for option in options:
        if option in _options_of(name):
            continue
        owners = [backend for backend in OUR_BACKENDS if option in _options_of(backend)]
        flag = option.removesuffix("s").replace("_", "-")
        raise UserError(f"--{flag} is for --backend {' or '.join(owners)}, not {name}")


def find_factory(name: str) -> BackendFactory:
    """Return what creates a backend, usually its class.

    Raises:
        UserError: There is no such backend, or it cannot be imported.
    """
    if name in _registered:
        return _registered[name]
    import_path = _BUILT_IN.get(name) or _entry_points().get(name, name)
    if ":" not in import_path:
        available = ", ".join(backend_names())
        raise UserError(f"unknown backend {name!r}; available: {available}, or module:Class")
    module, _, attribute = import_path.partition(":")
    try:
        return cast("BackendFactory", getattr(import_user_module(module), attribute))
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"backend {name!r} cannot be loaded from {import_path}: {error}") from error


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


def _options_of(name: str) -> Collection[str]:
    factory: object = find_factory(name)
    if isinstance(factory, _HasOptions):
        return factory.options
    return ()
