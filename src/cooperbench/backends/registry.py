"""Finding a backend by its name: ours, those that were registered, entry points, and `module:Class`.

What the command line offers of a backend it finds in attributes of its class, all optional: `options`, the keywords of
its constructor that `cooperbench run` and `eval` pass on (`mounts`, `pull`, `gpu`, `image_template`); `clean`, a static
method that removes what killed processes left and returns a line for each; `about`, a few words for
`cooperbench doctor` after a successful `check`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from cooperbench.errors import UserError
from cooperbench.settings import import_named

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from cooperbench.sandbox.contract import EvalBackend

ENTRY_POINT_GROUP = "cooperbench.backends"

_OURS = {
    "local": "cooperbench.backends.local:LocalBackend",
    "docker": "cooperbench.backends.docker:DockerBackend",
    "modal": "cooperbench.backends.modal:ModalBackend",
    "gcp": "cooperbench.backends.gcp:GCPBatchBackend",
}
OUR_BACKENDS = tuple(_OURS)

_registered: dict[str, Callable[..., EvalBackend]] = {}
_lock = threading.Lock()


def register(name: str, factory: Callable[..., EvalBackend]) -> None:
    """Make a backend available by name; `factory` is called for each `get_backend(name)`. The last one wins."""
    with _lock:
        _registered[name] = factory


def backend_names() -> tuple[str, ...]:
    """All names that `get_backend` knows."""
    from importlib.metadata import entry_points

    return tuple(
        sorted({*_OURS, *_registered, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})
    )


def get_backend(name: str, **options: object) -> EvalBackend:
    """A backend by its name, or by `module:Class`; UserError where there is none or it cannot work here.

    Of `options` it takes those that its class names; another one is refused.
    """
    check_options(name, options)
    return find_factory(name)(**options)


def check_options(name: str, options: Iterable[str]) -> None:
    """UserError for an option that the backend does not have."""
    for option in options:
        if option not in _options_of(find_factory(name)):
            others = [one for one in OUR_BACKENDS if option in _options_of(find_factory(one))]
            raise UserError(
                f"--{option.removesuffix('s').replace('_', '-')} is for --backend {' or '.join(others)}, not {name}"
            )


def find_factory(name: str) -> Callable[..., EvalBackend]:
    """What makes a backend, in general its class; UserError where there is none or it cannot be imported."""
    from importlib.metadata import entry_points

    if factory := _registered.get(name):
        return factory
    if dotted := _OURS.get(name):
        return _load_ours(name, dotted)
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return _load(name, point.value, point.load)
    if ":" in name:
        return _load(name, name, lambda: _resolve(name))
    raise UserError(f"unknown backend {name!r}; there are: {', '.join(backend_names())}, or module:Class")


def _options_of(factory: Callable[..., EvalBackend]) -> Collection[str]:
    return cast("Collection[str]", getattr(factory, "options", ()))


def _load_ours(name: str, dotted: str) -> Callable[..., EvalBackend]:
    try:
        return _resolve(dotted)
    except ModuleNotFoundError as error:
        hint = f"pip install 'cooperbench[{name}]'; or use --backend local"
        raise UserError(f"the {name} backend needs {error.name}: {hint}") from error


def _load(
    name: str, dotted: str, load: Callable[[], Callable[..., EvalBackend]]
) -> Callable[..., EvalBackend]:
    try:
        return load()
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"backend {name!r} cannot be loaded from {dotted}: {error}") from error


def _resolve(dotted: str) -> Callable[..., EvalBackend]:
    module, _, attribute = dotted.partition(":")
    return cast("Callable[..., EvalBackend]", getattr(import_named(module), attribute))
