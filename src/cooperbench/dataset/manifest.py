"""dataset.json: the files of a shared dataset with their checksums, and one checksum of them all.

`cooperbench author pack` writes it, `cooperbench prepare --from` verifies it. README.md is not in
it, because that names the checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cooperbench.errors import UserError
from cooperbench.storage import read_bytes, write_bytes
from cooperbench.text import names_for_error, printable

FILE_NAME = "dataset.json"
README = "README.md"
SCHEMA = "cooperbench.dataset/1"


class DatasetManifest(msgspec.Struct, frozen=True):
    """The content of dataset.json."""

    schema: str
    name: str
    sha256: str
    """Checksum of all names and checksums in `files`."""
    version: str
    """Version of CooperBench that wrote it."""
    files: dict[str, str]
    """SHA-256 of each file by its path in the dataset."""


def dataset_sha256(files: Mapping[str, str]) -> str:
    """Return the checksum of a dataset from those of its files."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path} {files[path]}\n".encode())
    return digest.hexdigest()


def write_manifest(folder: Path, name: str, version: str) -> DatasetManifest:
    """Write dataset.json for the files in a folder."""
    files = {path: _file_sha256(folder / path) for path in _list_files(folder)}
    manifest = DatasetManifest(SCHEMA, name, dataset_sha256(files), version, files)
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_bytes(folder / FILE_NAME, data + b"\n")
    return manifest


def read_manifest(folder: Path) -> DatasetManifest:
    """Return the content of dataset.json.

    Raises:
        UserError: There is none, or it is damaged.
    """
    path = folder / FILE_NAME
    data = read_bytes(path)
    if data is None:
        raise UserError(
            f"{folder} has no {FILE_NAME}: make a dataset to share with `cooperbench author pack`"
        )
    try:
        manifest = msgspec.json.decode(data, type=DatasetManifest)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if manifest.schema != SCHEMA:
        raise UserError(f"{path} has schema {printable(manifest.schema)!r}, not {SCHEMA!r}")
    if dataset_sha256(manifest.files) != manifest.sha256:
        raise UserError(f"{path} is damaged: its checksum is not that of the files it lists")
    return manifest


def verify_dataset(folder: Path) -> DatasetManifest:
    """Return the manifest of a folder whose files are exactly those that it lists.

    Raises:
        UserError: A file is missing, differs or is not listed.
    """
    manifest = read_manifest(folder)
    present = set(_list_files(folder))
    listed = set(manifest.files)
    problems = {
        "is missing": sorted(listed - present),
        "is not in dataset.json": sorted(present - listed),
        "differs from dataset.json": [
            path
            for path in sorted(listed & present)
            if _file_sha256(folder / path) != manifest.files[path]
        ],
    }
    for problem, paths in problems.items():
        if paths:
            raise UserError(f"{folder}: {names_for_error(paths, limit=3)} {problem}")
    return manifest


def _list_files(folder: Path) -> list[str]:
    """Return the paths of all files but dataset.json and README.md.

    Raises:
        UserError: There is a symbolic link or a special file.
    """
    paths = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise UserError(f"{folder}: {printable(name)} is not a regular file")
        if path.is_file() and name not in (FILE_NAME, README):
            paths.append(name)
    return paths


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
