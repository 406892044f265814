"""What can be set about sandboxes at Modal: by keyword, by environment variable, or in the user's config file.

A keyword comes first, then the variable, then the key of the same name in the object `modal` of config.json. The token
and the environment are Modal's own business: MODAL_TOKEN_ID, MODAL_TOKEN_SECRET, MODAL_ENVIRONMENT, ~/.modal.toml.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from cooperbench.errors import UserError
from cooperbench.settings import config_file, load_settings

if TYPE_CHECKING:
    from cooperbench.sandbox.git_server import GitSharing

T = TypeVar("T", bound=str)
ImageSource = Literal["auto", "registry", "build"]
IMAGE_SOURCES: tuple[ImageSource, ...] = ("auto", "registry", "build")
GIT_SHARINGS: tuple[GitSharing, ...] = ("server", "carried")
LONGEST_LIFETIME_SECONDS = 24 * 3600
"""Modal's limit."""

_VARIABLES = {
    "app": "COOPERBENCH_MODAL_APP",
    "cpu": "COOPERBENCH_MODAL_CPU",
    "memory": "COOPERBENCH_MODAL_MEMORY",
    "gpu": "COOPERBENCH_MODAL_GPU",
    "region": "COOPERBENCH_MODAL_REGION",
    "images": "COOPERBENCH_MODAL_IMAGES",
    "allow_domains": "COOPERBENCH_MODAL_ALLOW_DOMAINS",
    "registry_secret": "COOPERBENCH_MODAL_REGISTRY_SECRET",
    "most_starting": "COOPERBENCH_MODAL_MOST_STARTING",
    "git": "COOPERBENCH_MODAL_GIT",
    "git_image": "COOPERBENCH_MODAL_GIT_IMAGE",
    "build_args": "COOPERBENCH_BUILD_ARGS",
}
_NAMES = (*_VARIABLES, "image_template")
_UNITS = {"m": 1, "g": 1024, "t": 1024**2}
_GPU = re.compile(r"[A-Za-z0-9-]+!?(:[1-8])?")
_DOMAIN = re.compile(r"\*|(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_IMAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._:/@-]*)?")
_APP = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Share:
    """What a sandbox has for sure and is billed for at least, and what it may use at most."""

    reserved: float
    most: float


@dataclass(frozen=True)
class ModalSettings:
    app: str = "cooperbench"
    """Under which sandboxes stand in Modal's dashboard."""
    cpu: Share = Share(1.0, 4.0)
    """Physical cores: `1`, or reserved and most as `1:4`."""
    memory_mib: Share = Share(2048, 8192)
    """`2g`, or reserved and most as `2g:8g`."""
    gpu: str = ""
    """e.g. `T4`, `A100-80GB:2`. Modal then uses its older kind of sandbox."""
    regions: tuple[str, ...] = ()
    images: ImageSource = "auto"
    """`registry`: only pulled; `build`: only built from Dockerfiles; `auto`: pulled, else built."""
    allow_domains: tuple[str, ...] = ()
    """With the network policy `public`: all that sandboxes reach; empty: everything."""
    registry_secret: str = ""
    """Name of a Modal secret with REGISTRY_USERNAME and REGISTRY_PASSWORD, for private images."""
    most_starting: int = 50
    """Sandboxes that are asked for at the same time; fewer when Modal says that it is too much."""
    git: GitSharing = "server"
    """What `--git` means: a git server in a sandbox of its own, or commits that the harness carries."""
    git_image: str = ""
    """Of the git server: has git and python3. Empty: `DEFAULT_IMAGE` of `cooperbench/sandbox/git_server.py`."""
    build_args: Mapping[str, str] = field(default_factory=dict)
    image_template: str | None = None


def read_settings(**given: object) -> ModalSettings:
    """The settings in force; UserError for one that is unknown or makes no sense."""
    unknown = sorted(set(given) - set(_NAMES))
    if unknown:
        raise UserError(f"the modal backend has no setting {unknown[0]!r}; there are: {', '.join(_NAMES)}")
    filed = load_settings().get("modal", {})
    if not isinstance(filed, dict) or (wrong := sorted(set(filed) - set(_NAMES))):
        about = "`modal` must be an object" if not isinstance(filed, dict) else f"`modal` has no {wrong[0]!r}"
        raise UserError(f"{config_file()}: {about}; there are: {', '.join(_NAMES)}")

    def value(name: str) -> Any:
        if given.get(name) is not None:
            return given[name]
        return os.environ.get(_VARIABLES.get(name, "")) or filed.get(name)

    template = value("image_template")
    return ModalSettings(
        app=_matching("app", value("app") or "cooperbench", _APP, "letters, digits, ._- and at most 64"),
        cpu=_share("cpu", value("cpu"), ModalSettings.cpu, _cores, "1 or 1:4"),
        memory_mib=_share("memory", value("memory"), ModalSettings.memory_mib, _mebibytes, "2g or 2g:8g"),
        gpu=_matching("gpu", value("gpu"), _GPU, "e.g. T4 or A100-80GB:2") if value("gpu") else "",
        regions=tuple(_words(value("region"))),
        images=_one_of("images", value("images"), IMAGE_SOURCES),
        allow_domains=tuple(
            _matching("allow_domains", word, _DOMAIN, "e.g. pypi.org or *.debian.org")
            for word in _words(value("allow_domains"))
        ),
        registry_secret=str(value("registry_secret") or ""),
        most_starting=_count("most_starting", value("most_starting"), ModalSettings.most_starting),
        git=_one_of("git", value("git"), GIT_SHARINGS),
        git_image=_matching(
            "git_image", value("git_image") or "", _IMAGE, "e.g. python:3.12-bookworm or im-…"
        ),
        build_args=_build_args(value("build_args")),
        image_template=None if template is None else str(template),
    )


def _one_of(name: str, value: Any, choices: tuple[T, ...]) -> T:
    """The first where none is set."""
    text = str(value or choices[0])
    found = next((choice for choice in choices if choice == text), None)
    if found is None:
        raise UserError(f"modal setting {name}: {text!r} is unknown; there are: {', '.join(choices)}")
    return found


def _matching(name: str, value: Any, pattern: re.Pattern[str], shape: str) -> str:
    text = str(value).strip()
    if not pattern.fullmatch(text):
        raise UserError(f"modal setting {name}: {text!r} cannot be; it is {shape}")
    return text


def _share(name: str, value: Any, default: Share, read: Any, example: str) -> Share:
    if value is None:
        return default
    first, _, second = str(value).partition(":")
    try:
        reserved = read(first)
        most = read(second) if second else max(reserved, default.most)
    except ValueError:
        raise UserError(f"modal setting {name}: {str(value)!r} is not a share, e.g. {example}") from None
    if not 0 < reserved <= most:
        raise UserError(f"modal setting {name}: {str(value)!r} reserves more than it allows, e.g. {example}")
    return Share(reserved, most)


def _cores(text: str) -> float:
    number = float(text)
    if not 0.125 <= number <= 64:
        raise ValueError(text)
    return number


def _mebibytes(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([mgt])(?:i?b)?", text.strip().lower())
    if not match or float(match[1]) * _UNITS[match[2]] < 128:
        raise ValueError(text)
    return round(float(match[1]) * _UNITS[match[2]])


def _count(name: str, value: Any, default: int) -> int:
    if value is None:
        return default
    if not re.fullmatch(r"[0-9]{1,6}", str(value)) or int(value) == 0:
        raise UserError(f"modal setting {name}: {str(value)!r} is not a whole number above 0")
    return int(value)


def _words(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [word for word in re.split(r"[\s,]+", value) if word]
    return [str(word) for word in cast("Sequence[object]", value)]


def _build_args(value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items()}
    try:
        words = shlex.split(str(value or ""))
    except ValueError as error:
        raise UserError(f"build_args: {value!r}: {error}") from None
    wrong = next((word for word in words if "=" not in word), None)
    if wrong is not None:
        raise UserError(f"build_args: {wrong!r} is not NAME=VALUE")
    return {name: text for name, _, text in (word.partition("=") for word in words)}
