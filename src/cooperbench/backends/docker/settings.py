"""What can be set about containers: by keyword, else by variable, else in the object `docker` of config.json."""

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
"""What is here decides about results, or carries the channel; nothing may be laid over it."""
_VARIABLES = {
    "executable": "MSWEA_DOCKER_EXECUTABLE",
    "build_args": "COOPERBENCH_BUILD_ARGS",
    "image_template": "",
    "cache_dir": "",
}
"""The image template and the cache have variables of their own, which are read elsewhere."""
_cpus = matching(r"[0-9]{1,5}(\.[0-9]*)?", "a limit, e.g. 2.5")
_pids = matching("[0-9]{1,9}", "a limit, e.g. 4096")


@dataclass(frozen=True)
class Mount:
    """A folder of the host that sandboxes see, for debugging; read-only unless asked otherwise."""

    source: str
    target: str
    writable: bool = False


def _memory(value: object) -> int:
    size = byte_size(value)
    if 0 < size < _SMALLEST_MEMORY_BYTES:
        raise ValueError(f"{str(value)!r} is too little for a sandbox; at least 32m")
    return size


def _mounts(value: Any) -> tuple[Mount, ...]:
    return tuple(
        read_mount(word) for word in (shlex.split(value) if isinstance(value, str) else value)
    )


def read_mount(text: str) -> Mount:
    """`SOURCE:TARGET`, `SOURCE:TARGET:ro` or `SOURCE:TARGET:rw`."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(parts) or parts[2:] not in ([], ["ro"], ["rw"]):
        raise UserError(
            f"mount {text!r} is not SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw"
        )
    source, target = str(Path(parts[0]).expanduser().absolute()), posixpath.normpath(parts[1])
    if not target.startswith("/") or target == "/":
        raise UserError(
            f"mount {text!r}: {parts[1]} is not an absolute path below / in the sandbox"
        )
    for reserved in _RESERVED:
        if (
            target == reserved
            or target.startswith(reserved + "/")
            or reserved.startswith(target + "/")
        ):
            raise UserError(
                f"mount {text!r}: {reserved} belongs to the task; mount somewhere else, e.g. /mnt/debug"
            )
    return Mount(source, target, parts[2:] == ["rw"])


@dataclass(frozen=True)
class DockerSettings:
    executable: str = setting("docker", str)
    """Name or path of the client whose engine is meant; one that ends in `podman` means Podman."""
    image_template: str | None = setting(None, str)
    """How task images are named; None: $COOPERBENCH_IMAGE_TEMPLATE, else both known names."""
    cpus: float = setting(4.0, lambda value: float(_cpus(value)))
    """Per sandbox; 0: no limit. Never more than the engine has."""
    memory: int = setting(8 * 1024**3, _memory)
    """Bytes per sandbox, without swap; 0: no limit."""
    pids_limit: int = setting(4096, lambda value: int(_pids(value)))
    """Processes and threads per sandbox; 0: no limit."""
    mounts: tuple[Mount, ...] = setting((), _mounts)
    pull: Literal["missing", "always", "never"] = setting(
        "missing", one_of("missing", "always", "never")
    )
    build_args: Mapping[str, str] = setting({}, name_value_pairs)
    """For building task images, e.g. BASE_IMAGE."""
    cache_dir: Path | None = setting(None, lambda value: Path(str(value)))


def read_settings(**given: object) -> DockerSettings:
    """The settings in force; UserError for one that is unknown or has no valid value."""
    return DockerSettings(**read_section("docker", parsers_of(DockerSettings), given, _VARIABLES))
