"""Finding a Python of the right version among those that are on the machine. Nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

Version = tuple[int, int]
_ASK = "import sys, venv, ensurepip, ssl; print(sys.version_info[0], sys.version_info[1], sys.executable)"
_ANSWER_SECONDS = 30


def find_interpreter(oldest: Version, newest: Version, purpose: str) -> Path:
    """A Python that works, has venv and is of a version between these; the one that runs us if that is one."""
    seen: set[Path] = set()
    for candidate in _candidates(oldest, newest):
        resolved = candidate.resolve()
        if resolved in seen or not resolved.is_file():
            continue
        seen.add(resolved)
        version = _version(candidate)
        if version is not None and oldest <= version <= newest:
            return candidate
    wanted = ".".join(map(str, newest))
    raise UserError(
        f"{purpose} needs Python {'.'.join(map(str, oldest))} to {wanted} with venv, and none was found; "
        f"install one, e.g. `uv python install {wanted}` or `pyenv install {wanted}`, or name it with --python PATH"
    )


def checked_interpreter(path: Path, oldest: Version, newest: Version) -> Path:
    """One that the user named."""
    version = _version(path)
    if version is None:
        raise UserError(f"{path} is no Python that works and has venv")
    if not oldest <= version <= newest:
        found, low, high = (".".join(map(str, each)) for each in (version, oldest, newest))
        raise UserError(f"{path} is Python {found}; {low} to {high} is needed")
    return path


def _candidates(oldest: Version, newest: Version) -> Iterator[Path]:
    # Inside a virtual environment the base is asked: an environment that is removed must not take ours along.
    yield Path(getattr(sys, "_base_executable", sys.executable))
    versions = [(newest[0], minor) for minor in range(newest[1], oldest[1] - 1, -1)]
    for major, minor in versions:
        if found := shutil.which(f"python{major}.{minor}"):
            yield Path(found)
    yield from _pyenv(versions)
    yield from _uv(versions)
    if found := shutil.which("python3"):
        yield Path(found)


def _pyenv(versions: list[Version]) -> Iterator[Path]:
    root = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    for major, minor in versions:
        # The newest patch release last in the alphabet of numbers.
        folders = sorted(
            (root / "versions").glob(f"{major}.{minor}.*"),
            key=lambda folder: [int(part) for part in folder.name.split(".") if part.isdigit()],
        )
        yield from (folder / "bin" / f"python{major}.{minor}" for folder in reversed(folders))


def _uv(versions: list[Version]) -> Iterator[Path]:
    uv = shutil.which("uv")
    for major, minor in versions if uv else []:
        found = _output([str(uv), "python", "find", "--no-python-downloads", f"{major}.{minor}"])
        if found:
            yield Path(found)


def _version(python: Path) -> Version | None:
    words = (_output([str(python), "-I", "-c", _ASK]) or "").split(" ", 2)
    return (int(words[0]), int(words[1])) if len(words) == 3 else None


def _output(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
