"""Packages from npm that several external tests need."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker.engines import NoEngine, cache_folder, locked, skipped_without_engine

PACKAGES = ("jest@29.7.0", "vitest@1.6.0", "mocha@10.8.2", "chai@4.5.0")


@pytest.fixture(scope="session")
def node_modules() -> Iterator[Path]:
    """Return a folder with `PACKAGES` in the tests' cache; they come from npm the first time."""
    with skipped_without_engine():
        folder = cache_folder() / "-".join(("npm", *PACKAGES))
        with locked(cache_folder() / "npm.lock"):
            if not folder.is_dir():
                half = Path(tempfile.mkdtemp(prefix="npm-", dir=cache_folder()))
                try:
                    _install(half)
                    half.rename(folder)
                finally:
                    shutil.rmtree(half, ignore_errors=True)
        yield folder / "node_modules"


def _install(folder: Path) -> None:
    if shutil.which("npm") is None:
        raise NoEngine("jest, vitest and mocha cannot be fetched: npm is not installed")
    words = [
        "npm",
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(folder),
        *PACKAGES,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoEngine(f"jest, vitest and mocha cannot be fetched: {done.stderr[-300:]}")
