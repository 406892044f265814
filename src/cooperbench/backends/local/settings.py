"""Settings of the `local` backend: keywords, else environment variables, else config.json."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cooperbench.backends.docker.settings import read_mount
from cooperbench.backends.local.rootfs import Mount
from cooperbench.backends.setting_fields import one_of, parsers_of, read_section, setting
from cooperbench.errors import UserError


def _mounts(value: Any) -> tuple[Mount, ...]:
    texts = shlex.split(value) if isinstance(value, str) else value
    mounts = []
    for text in texts:
        mount = read_mount(text)
        source = Path(mount.source)
        if not source.exists():
            raise UserError(f"mount {text!r}: {source} does not exist; check the mount's source")
        mounts.append(Mount(source, mount.target, mount.writable))
    return tuple(mounts)


VARIABLES = {"image_template": ""}
"""Environment variables that are not called COOPERBENCH_LOCAL_<SETTING>; empty: read elsewhere."""


@dataclass(frozen=True)
class LocalSettings:
    """All settings of the `local` backend."""

    image_template: str | None = setting(None, str)
    """Names of task images: a text with {repo}, {short} and {task_id}, or `seeds`, or `published`;
    empty for both known names. Also `--image-template`."""
    mounts: tuple[Mount, ...] = setting((), _mounts)
    """Folders of this machine in sandboxes: SOURCE:TARGET, read-only, or SOURCE:TARGET:rw;
    separated by spaces. Also `--mount`."""
    pull: Literal["auto", "missing", "always", "never"] = setting(
        "auto", one_of("auto", "missing", "always", "never")
    )
    """Which images are pulled: with `auto`, those of the public dataset and of tasks without a
    setup.sh; with `missing` and `always`, those of all tasks with a Dockerfile; with `never`, none.
    Also `--pull`."""


def read_settings(**keywords: object) -> LocalSettings:
    """Return the settings in force; UserError if one is unknown or invalid."""
    values = read_section("local", parsers_of(LocalSettings), keywords, VARIABLES)
    return LocalSettings(**values)
