"""What can be set about containers: by keyword, by environment variable, or in the user's config file.

A keyword comes first, then the variable, then the key of the same name in the object `docker` of config.json.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from cooperbench.errors import UserError
from cooperbench.settings import config_file, load_settings

T = TypeVar("T", int, float)

PullPolicy = Literal["missing", "always", "never"]
PULL_POLICIES: tuple[PullPolicy, ...] = ("missing", "always", "never")

DEFAULT_CPUS = 4.0
DEFAULT_MEMORY_BYTES = 8 * 1024**3
DEFAULT_PIDS_LIMIT = 4096
_SMALLEST_MEMORY_BYTES = 32 * 1024**2

_VARIABLES = {
    "executable": "MSWEA_DOCKER_EXECUTABLE",
    "cpus": "COOPERBENCH_DOCKER_CPUS",
    "memory": "COOPERBENCH_DOCKER_MEMORY",
    "pids_limit": "COOPERBENCH_DOCKER_PIDS_LIMIT",
    "mounts": "COOPERBENCH_DOCKER_MOUNTS",
    "pull": "COOPERBENCH_DOCKER_PULL",
    "build_args": "COOPERBENCH_BUILD_ARGS",
}
"""The image template and the cache have variables of their own elsewhere."""
_NAMES = (*_VARIABLES, "image_template", "dataset_dir", "cache_dir")
_EXAMPLES = {"cpus": "2.5", "memory": "8g", "pids_limit": "4096"}
_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_RESERVED = ("/workspace", "/patches", "/cooperbench")
"""What is here decides about results, or carries the channel; nothing may be laid over it."""


@dataclass(frozen=True)
class Mount:
    """A folder of the host that sandboxes see, for debugging; read-only unless asked otherwise."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True)
class DockerSettings:
    executable: str = "docker"
    """Name or path of the client whose engine is meant; one that ends in `podman` means Podman."""
    image_template: str | None = None
    """How task images are named; None: $COOPERBENCH_IMAGE_TEMPLATE, else both known names."""
    cpus: float | None = DEFAULT_CPUS
    """Per sandbox; None or 0: no limit. Never more than the engine has."""
    memory_bytes: int | None = DEFAULT_MEMORY_BYTES
    """Per sandbox, without swap; None or 0: no limit."""
    pids_limit: int | None = DEFAULT_PIDS_LIMIT
    """Processes and threads per sandbox; None or 0: no limit."""
    mounts: tuple[Mount, ...] = ()
    pull: PullPolicy = "missing"
    build_args: Mapping[str, str] = field(default_factory=dict)
    """For building task images, e.g. BASE_IMAGE."""
    dataset_dir: Path | None = None
    cache_dir: Path | None = None


def read_settings(**given: object) -> DockerSettings:
    """The settings in force; UserError for one that is unknown or makes no sense."""
    unknown = sorted(set(given) - set(_NAMES))
    if unknown:
        raise UserError(f"the docker backend has no setting {unknown[0]!r}; there are: {', '.join(_NAMES)}")
    filed = load_settings().get("docker", {})
    if not isinstance(filed, dict) or (wrong := sorted(set(filed) - set(_NAMES))):
        about = (
            "`docker` must be an object" if not isinstance(filed, dict) else f"`docker` has no {wrong[0]!r}"
        )
        raise UserError(f"{config_file()}: {about}; there are: {', '.join(_NAMES)}")

    def value(name: str) -> Any:
        if given.get(name) is not None:
            return given[name]
        return os.environ.get(_VARIABLES.get(name, "")) or filed.get(name)

    pull = value("pull") or "missing"
    if pull not in PULL_POLICIES:
        raise UserError(f"pull policy {pull!r} is unknown; there are: {', '.join(PULL_POLICIES)}")
    template = value("image_template")
    return DockerSettings(
        executable=str(value("executable") or "docker"),
        image_template=None if template is None else str(template),
        cpus=_limit("cpus", value("cpus"), DEFAULT_CPUS, _number),
        memory_bytes=_limit("memory", value("memory"), DEFAULT_MEMORY_BYTES, _memory),
        pids_limit=_limit("pids_limit", value("pids_limit"), DEFAULT_PIDS_LIMIT, _whole),
        mounts=tuple(_mounts(value("mounts"))),
        pull=cast("PullPolicy", pull),
        build_args=_build_args(value("build_args")),
        dataset_dir=_path(value("dataset_dir")),
        cache_dir=_path(value("cache_dir")),
    )


def _path(value: Any) -> Path | None:
    return None if value is None else Path(str(value))


def _limit(name: str, value: Any, default: T, read: Callable[[str], T]) -> T | None:
    if value is None:
        return default
    try:
        number = read(str(value))
    except UserError:
        raise
    except ValueError:
        example = _EXAMPLES[name]
        raise UserError(f"docker setting {name}: {str(value)!r} is not a limit, e.g. {example}") from None
    return number or None


def _number(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e6:
        raise ValueError(text)
    return number


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(text)
    return int(text)


def _memory(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise ValueError(text)
    size = int(float(match[1]) * _UNITS[match[2]])
    if 0 < size < _SMALLEST_MEMORY_BYTES:
        raise UserError(f"docker setting memory: {text!r} is too little for a sandbox; at least 32m")
    return size


def _build_args(value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(name): str(content) for name, content in value.items()}
    words = _words(value, "build_args")
    wrong = next((word for word in words if not re.match(r"\w+=", word)), None)
    if wrong is not None:
        raise UserError(f"build argument {wrong!r} is not NAME=VALUE ({_VARIABLES['build_args']})")
    return {name: content for name, _, content in (word.partition("=") for word in words)}


def _words(value: Any, name: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(item) for item in value]
    try:
        return shlex.split(str(value))
    except ValueError as error:
        raise UserError(f"{_VARIABLES[name]}: {error}") from None


def _mounts(value: Any) -> list[Mount]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [item if isinstance(item, Mount) else read_mount(str(item)) for item in value]
    return [read_mount(word) for word in _words(value, "mounts")]


def read_mount(text: str) -> Mount:
    """`SOURCE:TARGET`, `SOURCE:TARGET:ro` or `SOURCE:TARGET:rw`."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(parts) or parts[2:] not in ([], ["ro"], ["rw"]):
        raise UserError(f"mount {text!r} is not SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw")
    source, target = str(Path(parts[0]).expanduser().absolute()), posixpath.normpath(parts[1])
    if not target.startswith("/") or target == "/":
        raise UserError(f"mount {text!r}: {parts[1]} is not an absolute path below / in the sandbox")
    for reserved in _RESERVED:
        if target == reserved or target.startswith(reserved + "/") or reserved.startswith(target + "/"):
            raise UserError(
                f"mount {text!r}: {reserved} belongs to the task; mount somewhere else, e.g. /mnt/debug"
            )
    return Mount(source, target, parts[2:] == ["rw"])
