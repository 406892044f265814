"""Environments of large packages that only external tests use, made once and kept in the tests' cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.docker.engines import cache_folder, locked
from tests.support.requirements import skip_without


def python_with(*requirements: str) -> Path:
    """Return the Python of an environment with these packages, or skip the running test."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    content = hashlib.sha256(" ".join((version, *requirements)).encode()).hexdigest()[:12]
    folder = cache_folder() / "venvs" / content
    folder.parent.mkdir(exist_ok=True)
    with locked(folder.parent / "lock"):
        if not folder.is_dir():
            _make(folder, requirements)
    return folder / "bin" / "python"


def _make(folder: Path, requirements: tuple[str, ...]) -> None:
    """Make an environment where it stays: scripts in it name their folder."""
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements]
        with tempfile.TemporaryFile() as log:
            done = subprocess.run(pip, stdout=log, stderr=log, check=False, timeout=600)
            log.seek(0)
            output = log.read().decode("utf-8", "replace")
        if done.returncode:
            skip_without(", ".join(requirements), "a package index", detail=output[-300:])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
