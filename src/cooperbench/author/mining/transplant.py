"""Moves a change of one commit onto another: a three-way merge of each file, without a checkout.

A plain patch fits only where the lines around it are the same. The merge also fits where other
parts of a file differ, as in `git cherry-pick`. Lines that were added beside others that are
missing here, such as a test after another new test, fit too.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from cooperbench.eval.trees import CODE_FILE, FILE, Change, TreeEntry
from cooperbench.git import decode_path, git, run_git
from cooperbench.temporary import owned_prefix

_MAX_FILE_BYTES = 4 * 1024**2
_CONFLICT = re.compile(
    rb"""
    ^<<<<<<<\ [^\n]*\n (?P<ours>.*?)
    ^\|\|\|\|\|\|\|\ [^\n]*\n (?P<base>.*?)
    ^=======\n (?P<theirs>.*?)
    ^>>>>>>>\ [^\n]*\n
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
Content = TreeEntry | bytes
"""A file: as it is in the repository, or with new content."""


class Conflict(NamedTuple):
    """A change that does not fit."""

    path: str


class _Blobs(NamedTuple):
    """The three versions of a file that are merged."""

    ours: bytes
    base: bytes
    theirs: bytes


class Transplanter:
    """Moves changes between the commits of one repository. Its methods are thread-safe."""

    def __init__(self, git_dir: Path) -> None:
        self._git_dir = git_dir
        self._merged: dict[_Blobs, bytes | None] = {}
        self._contents: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def files_of(self, commit: str) -> dict[str, TreeEntry]:
        """Return the files of a commit by path."""
        output = git("ls-tree", "-r", "-z", "--full-tree", commit, git_dir=self._git_dir)
        files: dict[str, TreeEntry] = {}
        for line in output.split(b"\0"):
            if line:
                fields, _, path = line.partition(b"\t")
                mode, _, object_id = fields.decode().split(" ")
                files[decode_path(path)] = TreeEntry(mode, object_id)
        return files

    def move(
        self,
        changes: Mapping[str, Change],
        paths: Iterable[str],
        files: Mapping[str, Content],
    ) -> Conflict | dict[str, Content | None]:
        """Return what a change makes of other versions of its files.

        Documents and configuration in which it does not fit stay as they are. Test runs show
        whether they are needed.

        Args:
            changes: The change.
            paths: The files that matter.
            files: The files to change. They stay as they are.
        """
        result: dict[str, Content | None] = {}
        for path in paths:
            merged = self._merge_file(changes[path], files.get(path))
            if isinstance(merged, Conflict):
                if not CODE_FILE.search(path):
                    continue
                return Conflict(path)
            result[path] = merged
        return result

    def _merge_file(self, change: Change, current: Content | None) -> Content | Conflict | None:
        before, after = change
        if current in (before, after):
            return after
        if current is None or before is None or after is None:
            return Conflict("")
        if {_mode_of(current), before.mode, after.mode} != {FILE}:
            return Conflict("")
        contents = [self._content(item) for item in (current, before, after)]
        if any(b"\0" in content or len(content) > _MAX_FILE_BYTES for content in contents):
            return Conflict("")
        blobs = _Blobs(*contents)
        if blobs not in self._merged:
            self._merged[blobs] = _merge_blobs(blobs)
        merged = self._merged[blobs]
        return Conflict("") if merged is None else merged

    def _content(self, item: Content) -> bytes:
        if isinstance(item, bytes):
            return item
        with self._lock:
            content = self._contents.get(item.object_id)
        if content is None:
            content = git("cat-file", "blob", item.object_id, git_dir=self._git_dir)
            with self._lock:
                self._contents[item.object_id] = content
        return content


def _mode_of(item: Content) -> str:
    return FILE if isinstance(item, bytes) else item.mode


def _merge_blobs(blobs: _Blobs) -> bytes | None:
    """Merge a file; return None after a conflict."""
    with TemporaryDirectory(prefix=owned_prefix("merge")) as scratch:
        paths = []
        for name, content in zip(("ours", "base", "theirs"), blobs, strict=True):
            path = Path(scratch) / name
            path.write_bytes(content)
            paths.append(str(path))
        result = run_git("merge-file", "-p", "-q", "--diff3", *paths, bounded=True)
    if result.returncode == 0:
        return result.stdout
    if not 0 < result.returncode < 128:
        return None
    return _move_additions(result.stdout)


def _move_additions(text: bytes) -> bytes | None:
    """Resolve conflicts in which one side only adds lines before or after lines that are missing.

    Returns:
        None if there is another conflict.
    """
    is_resolved = True

    def resolve(conflict: re.Match[bytes]) -> bytes:
        nonlocal is_resolved
        ours, base, theirs = conflict["ours"], conflict["base"], conflict["theirs"]
        if theirs.startswith(base):
            return ours + theirs[len(base) :]
        if theirs.endswith(base):
            return theirs[: len(theirs) - len(base)] + ours
        is_resolved = False
        return b""

    resolved = _CONFLICT.sub(resolve, text)
    return resolved if is_resolved and b"\n<<<<<<< " not in resolved else None
