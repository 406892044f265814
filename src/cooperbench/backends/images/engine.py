"""Images of a container engine on this machine, as archives: `docker save` or `podman save`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from cooperbench.backends.images.unpack import DiskFull
from cooperbench.errors import InfraError
from cooperbench.text import printable

_ENGINES = ("docker", "podman")
_INSPECT_SECONDS = 20
_SAVE_SECONDS = 3600


def save_from_engine(name: str, path: Path) -> bool:
    """Save an image of an engine to a file; return False if no engine here has it.

    Raises:
        InfraError: The engine has the image and cannot save it.
    """
    for program in _programs():
        if not _has_image(program, name):
            continue
        done = subprocess.run(
            [program, "save", "--output", str(path), name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_SAVE_SECONDS,
        )
        if done.returncode == 0:
            return True
        reason = printable(done.stderr.decode("utf-8", "replace").strip())[-300:]
        path.unlink(missing_ok=True)
        if "no space left" in reason:
            raise DiskFull(f"the disk of {path.parent} is full: {program} cannot save {name} there")
        raise InfraError(f"{program} cannot save {name}: {reason}")
    return False


def _programs() -> list[str]:
    own = os.environ.get("MSWEA_DOCKER_EXECUTABLE")
    candidates = dict.fromkeys([*([own] if own else []), *_ENGINES])
    return [program for name in candidates if (program := shutil.which(name))]


def _has_image(program: str, name: str) -> bool:
    try:
        done = subprocess.run(
            [program, "image", "inspect", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_INSPECT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
