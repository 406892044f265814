"""Settings of containers: keywords, else environment variables, else `docker` in config.json."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cooperbench.backends.setting_fields import (
    byte_size,
    matching,
    name_value_pairs,
    one_of,
    parsers_of,
    read_section,
    setting,
)
from cooperbench.errors import UserError

_SMALLEST_MEMORY_BYTES = 32 * 1024**2
_RESERVED = ("/workspace", "/patches", "/cooperbench")
"""Folders that hold results, tests or the channel, and must not be hidden by a mount."""
VARIABLES = {
    "executable": "MSWEA_DOCKER_EXECUTABLE",
    "build_args": "COOPERBENCH_BUILD_ARGS",
    "image_template": "",
    "cache_dir": "",
}
"""Environment variables that are not called COOPERBENCH_DOCKER_<SETTING>; empty: read elsewhere."""
_cpus = matching(r"[0-9]{1,5}(\.[0-9]*)?", "a limit, e.g. 2.5")
_pids = matching("[0-9]{1,9}", "a limit, e.g. 4096")


@dataclass(frozen=True)
class Mount:
    """A folder of the host that is mounted in sandboxes, for debugging; read-only by default."""

    source: str
    target: str
    writable: bool = False


def _memory(value: object) -> int:
    size = byte_size(value)
    if 0 < size < _SMALLEST_MEMORY_BYTES:
        raise ValueError(f"{str(value)!r} is too little for a sandbox; at least 32m")
    return size


def _mounts(value: Any) -> tuple[Mount, ...]:
    texts = shlex.split(value) if isinstance(value, str) else value
    return tuple(read_mount(text) for text in texts)


def read_mount(text: str) -> Mount:
    """Parse `SOURCE:TARGET`, `SOURCE:TARGET:ro` or `SOURCE:TARGET:rw`."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(parts) or parts[2:] not in ([], ["ro"], ["rw"]):
        raise UserError(
            f"mount {text!r} is not SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw"
        )
    source = str(Path(parts[0]).expanduser().absolute())
    target = posixpath.normpath(parts[1])
    if not target.startswith("/") or target == "/":
        raise UserError(
            f"mount {text!r}: {parts[1]} is not an absolute path below / in the sandbox"
        )
    for reserved in _RESERVED:
        is_inside = f"{target}/".startswith(f"{reserved}/")
        is_above = f"{reserved}/".startswith(f"{target}/")
        if is_inside or is_above:
            raise UserError(
                f"mount {text!r}: {reserved} belongs to the task;"
                " mount somewhere else, e.g. /mnt/debug"
            )
    return Mount(source, target, parts[2:] == ["rw"])


@dataclass(frozen=True)
class DockerSettings:
    """All settings of the `docker` backend."""

    executable: str = setting("docker", str)
    """Name or path of the engine's client; one that ends in `podman` selects Podman."""
    image_template: str | None = setting(None, str)
    """Names of task images: a text with {repo}, {short} and {task_id}, or `seeds`, or `published`;
    empty for both known names. Also `--image-template`."""
    cpus: float = setting(4.0, lambda value: float(_cpus(value)))
    """Processors per sandbox, at most those of the engine; 0 for no limit."""
    memory: int = setting(8 * 1024**3, _memory)
    """Memory per sandbox, without swap; 0 for no limit."""
    pids_limit: int = setting(4096, lambda value: int(_pids(value)))
    """Processes and threads per sandbox; 0 for no limit."""
    mounts: tuple[Mount, ...] = setting((), _mounts)
    """Folders of this machine in sandboxes: SOURCE:TARGET, read-only, or SOURCE:TARGET:rw;
    separated by spaces. Also `--mount`."""
    pull: Literal["missing", "always", "never"] = setting(
        "missing", one_of("missing", "always", "never")
    )
    """Which images are pulled: those that are missing here, all, or none. Also `--pull`."""
    build_args: Mapping[str, str] = setting({}, name_value_pairs)
    """Build arguments of task images: NAME=VALUE, separated by spaces."""
    cache_dir: Path | None = setting(None, lambda value: Path(str(value)))
    """Folder of locks and records of builds; empty for the cache folder."""


def read_settings(**keywords: object) -> DockerSettings:
    """Return the settings in force; UserError if one is unknown or invalid."""
    values = read_section("docker", parsers_of(DockerSettings), keywords, VARIABLES)
    return DockerSettings(**values)
