"""Finding a backend by its name: ours, those that were registered, entry points, and `module:Class`.

Optional attributes of its class: `options`, the keywords that `run` and `eval` pass on (`mounts`, `pull`, `gpu`, …);
`clean`, a static method for `cooperbench clean` that returns a line for each thing removed; `about`, for `doctor`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import cast

from cooperbench.errors import UserError
from cooperbench.sandbox.contract import EvalBackend
from cooperbench.settings import import_user_module

ENTRY_POINT_GROUP = "cooperbench.backends"
_OURS = {
    "local": "cooperbench.backends.local:LocalBackend",
    "docker": "cooperbench.backends.docker:DockerBackend",
    "modal": "cooperbench.backends.modal:ModalBackend",
    "gcp": "cooperbench.backends.gcp:GCPBatchBackend",
}
OUR_BACKENDS = tuple(_OURS)
_registered: dict[str, Callable[..., EvalBackend]] = {}


def register(name: str, factory: Callable[..., EvalBackend]) -> None:
    """Make a backend available by name; `factory` is called for each `get_backend(name)`. The last one wins."""
    _registered[name] = factory


def backend_names() -> tuple[str, ...]:
    """All names that `get_backend` knows."""
    return tuple(sorted({*_OURS, *_registered, *_entry_points()}))


def get_backend(name: str, **options: object) -> EvalBackend:
    """UserError where there is none, it cannot work here, or its class does not name an option."""
    check_options(name, options)
    return find_factory(name)(**options)


def check_options(name: str, options: Iterable[str]) -> None:
    """UserError for an option that the backend does not have."""
    for option in options:
        if option not in _options_of(name):
            others = " or ".join(one for one in OUR_BACKENDS if option in _options_of(one))
            flag = option.removesuffix("s").replace("_", "-")
            raise UserError(f"--{flag} is for --backend {others}, not {name}")


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


def _options_of(name: str) -> Collection[str]:
    return cast("Collection[str]", getattr(find_factory(name), "options", ()))


def find_factory(name: str) -> Callable[..., EvalBackend]:
    """What makes a backend, in general its class; UserError where there is none or it cannot be imported."""
    if factory := _registered.get(name):
        return factory
    dotted = _OURS.get(name) or _entry_points().get(name, name)
    if ":" not in dotted:
        raise UserError(
            f"unknown backend {name!r}; there are: {', '.join(backend_names())}, or module:Class"
        )
    module, _, attribute = dotted.partition(":")
    try:
        return cast("Callable[..., EvalBackend]", getattr(import_user_module(module), attribute))
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"backend {name!r} cannot be loaded from {dotted}: {error}") from error
