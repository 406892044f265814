"""A checksum of the dataset's files behind a pair, which results and verdicts record.

Two runs are comparable only if the same pair had the same descriptions, tests and runner in both.
The name and the revision of a dataset do not show whether its files were changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from cooperbench.models import Pair
from cooperbench.storage import read_bytes

_BYTECODE_FOLDER = "__pycache__"


def pair_content_sha256(pair: Pair) -> str:
    """Return the SHA-256 of the files that define a pair: those of its task and its features.

    Files of other features and files without a meaning for CooperBench do not matter.
    """
    digest = hashlib.sha256()
    for path in _defining_files(pair):
        content = read_bytes(path, follow_link=True)
        if content is not None:
            name = path.relative_to(pair.task.path).as_posix()
            digest.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def _defining_files(pair: Pair) -> Iterator[Path]:
    task = pair.task
    yield from (task.dockerfile, task.setup_script, task.runner_script, task.run_tests_script)
    # The source code of tasks that are not built from a published image, as in the demo.
    for path in sorted((task.path / "base").rglob("*")):
        if _BYTECODE_FOLDER not in path.parts and path.is_file():
            yield path
    for feature in pair.features:
        yield from (feature.description, feature.patch, feature.tests)
