"""Our own package as one file, with what it needs on a machine that has nothing but Python and git.

The container engine's client is packed with it, from where it is installed here: it is pure Python, and so nothing
has to be downloaded over there. The demo's tasks stay here: the task that is judged travels by itself.
"""

from __future__ import annotations

import io
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import cooperbench
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLIENT = ("docker", "requests", "urllib3", "charset-normalizer", "idna", "certifi")
_LEFT_OUT = ("__pycache__", "demo")
_COMPILED = (".pyc", ".so", ".pyd")
_WHEN = (2026, 1, 1, 0, 0, 0)


def make_bundle(*, with_engine_client: bool = True) -> bytes:
    """A zip, the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_files(with_engine_client)):
            archive.writestr(zipfile.ZipInfo(name, _WHEN), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _files(with_engine_client: bool) -> Iterator[tuple[str, Path]]:
    package = Path(cooperbench.__file__).parent
    for path in package.rglob("*"):
        parts = path.relative_to(package).parts
        if path.is_file() and path.suffix not in _COMPILED and not any(part in _LEFT_OUT for part in parts):
            yield "/".join(("cooperbench", *parts)), path
    for name in _CLIENT if with_engine_client else ():
        try:
            files = metadata.distribution(name).files or []
        except metadata.PackageNotFoundError:
            raise UserError(
                f"evaluation on Batch needs {name}, to send it along: pip install 'cooperbench[gcp]'"
            ) from None
        for file in files:
            path = Path(str(file.locate()))
            if path.suffix not in _COMPILED and ".." not in file.parts and path.is_file():
                yield str(file), path
