"""Dependency layers: what changed in a sandbox, kept as a layer for others of the same image.

`<cache>/local/snapshots/<key>/` has the layer (`fs`) and the ref of what it belongs on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from cooperbench.backends.local.rootfs import Content
from cooperbench.backends.local.sandbox import LocalSandbox
from cooperbench.backends.ownership import locked
from cooperbench.errors import CooperBenchError, SandboxError
from cooperbench.models import Task
from cooperbench.storage import read_json
from cooperbench.temporary import is_abandoned, owned_prefix, remove_tree

PREFIX = "snapshot/"
"""Start of the refs of dependency layers."""


class SnapshotStore:
    """The dependency layers in one cache."""

    def __init__(self, cache_dir: Path) -> None:
        self.folder = cache_dir / "local/snapshots"

    @contextmanager
    def locked(self, task: Task, key: str) -> Iterator[str | None]:
        """Lock a dependency layer for other processes; yield its ref, or None if it is missing."""
        folder = self.folder / key
        with locked(folder.with_suffix(".lock")):
            yield _ref(task, key) if folder.is_dir() else None

    def keep(self, sandbox: LocalSandbox, base_ref: str, task: Task, key: str) -> str:
        """Keep what changed in a sandbox, which ends; return the ref of the layer."""
        self._remove_leftovers()
        staging = Path(mkdtemp(prefix=owned_prefix("snapshot"), dir=self.folder))
        try:
            sandbox.keep_files(staging / "fs", sandbox.options.snapshot_excludes)
            (staging / "base.json").write_text(json.dumps({"ref": base_ref}))
            staging.rename(self.folder / key)
        except OSError as error:
            raise SandboxError(
                f"{task.label}: cannot keep its dependency layer: {error}"
            ) from error
        finally:
            remove_tree(staging)
        return _ref(task, key)

    def content(self, ref: str, find_base: Callable[[str], Content]) -> Content:
        """Return the content of a sandbox with a dependency layer; SandboxError if it is gone."""
        folder = self.folder / ref.rpartition("@")[2]
        base = read_json(folder / "base.json")
        if base is None:
            raise SandboxError(f"{ref} is no longer in {self.folder}: run again to make it")
        content = find_base(str(base["ref"]))
        return replace(content, layers=(folder / "fs", *content.layers))

    def remove_lost(self, find_base: Callable[[str], Content]) -> None:
        """Remove the dependency layers of what is gone."""
        for folder in self.folder.glob("*/"):
            base = read_json(folder / "base.json") or {}
            try:
                find_base(str(base.get("ref")))
            except CooperBenchError:
                remove_tree(folder)

    def _remove_leftovers(self) -> None:
        for folder in self.folder.glob("cooperbench-*"):
            if is_abandoned(folder):
                remove_tree(folder)


def _ref(task: Task, key: str) -> str:
    return f"{PREFIX}{task.repo}:task{task.task_id}@{key}"
