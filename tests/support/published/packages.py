"""What the index serves: real build backends and installers, fetched once, and small packages that are made here."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import platform
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.docker.engines import NoEngine, cache_folder, locked

if TYPE_CHECKING:
    from collections.abc import Mapping

PIP = "25.2"
NPM = "9.9.4"
_FROM_PYPI = (
    f"pip=={PIP}",
    "setuptools==80.9.0",
    "wheel==0.45.1",
    "flit_core==3.12.0",
    "pytest==8.4.2",
    "iniconfig==2.1.0",
    "packaging==25.0",
    "pluggy==1.6.0",
    "pygments==2.19.2",
    "uv==0.8.22",
)
_FROM_NPM = (f"npm@{NPM}", "pnpm@8.15.9")
NOISE_BYTES = 2_000_000


def provide_packages() -> Path:
    """A folder with all of them, in the tests' cache; from the network of this machine the first time."""
    wanted = "\n".join((*_FROM_PYPI, *_FROM_NPM, "made here: 1"))
    folder = cache_folder() / f"packages-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    with locked(cache_folder() / "packages.lock"):
        if not folder.is_dir():
            half = Path(tempfile.mkdtemp(prefix="packages-", dir=cache_folder()))
            try:
                _fetch(half)
                _make(half)
                half.rename(folder)
            finally:
                shutil.rmtree(half, ignore_errors=True)
    return folder


def _fetch(folder: Path) -> None:
    if shutil.which("npm") is None:
        raise NoEngine("no packages can be fetched: npm is not installed")
    system = f"--platform=manylinux2014_{platform.machine()}"
    target = ["--only-binary=:all:", "--python-version=3.11", system]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        *target,
        "--dest",
        str(folder),
    ]
    npm = ["npm", "pack", "--silent", "--pack-destination", str(folder)]
    for command in ([*pip, *_FROM_PYPI], [*npm, *_FROM_NPM]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoEngine(f"no packages can be fetched: {done.stderr[-300:]}")


def _make(folder: Path) -> None:
    """`widget` is what the tasks need, `noise` what building them needs: large enough to be seen."""
    frame = 'def framed(text):\n    return f"[{text}]"\n'
    _write_wheel(folder, "widget", {"widget.py": frame.encode()})
    _write_wheel(folder, "noise", {"noise.bin": random.Random(1).randbytes(NOISE_BYTES)})
    package = b'{"name": "widget", "version": "1.0.0", "main": "index.js"}\n'
    script = b"exports.framed = (text) => `[${text}]`;\n"
    _write_tarball(folder / "widget-1.0.0.tgz", {"package.json": package, "index.js": script})


def _write_wheel(folder: Path, name: str, files: Mapping[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_record_hash(data)},{len(data)}\n" for path, data in contents.items()]
    contents[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, data in contents.items():
            archive.writestr(zipfile.ZipInfo(path), data)


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _write_tarball(path: Path, files: Mapping[str, bytes]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
