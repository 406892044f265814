"""Patches made by a real git repository, to be applied and merged by ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.eval.base_commit import base_of_clone
from tests.support.eval.realgit import BaseFile, Files, RealRepo, text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cooperbench.eval.base_commit import Base


LINES = "".join(f"line {number}\n" for number in range(1, 21))


class Lab:
    """Patches from trees, by a real repository."""

    def __init__(self, path: Path, base: Mapping[str, BaseFile | str | bytes]) -> None:
        self.base = self._files(base)
        self.real = RealRepo(path / "lab")
        self.commit = self.real.commit(self.base)

    @staticmethod
    def _files(files: Mapping[str, BaseFile | str | bytes]) -> Files:
        return {
            path: file if isinstance(file, BaseFile) else text(file) for path, file in files.items()
        }

    def side(self, changes: Mapping[str, BaseFile | str | bytes | None]) -> Files:
        kept = {path: file for path, file in self.base.items() if path not in changes}
        return kept | self._files(
            {path: file for path, file in changes.items() if file is not None}
        )

    def patch(self, changes: Mapping[str, BaseFile | str | bytes | None], *options: str) -> bytes:
        return self.real.diff(
            self.commit, self.real.commit(self.side(changes), self.commit), *options
        )

    @property
    def tree(self) -> Base:
        return base_of_clone(self.real.path / ".git", self.commit)

    def files_after(self, patch: bytes) -> dict[str, bytes]:
        tree = self.real.tree_with(self.commit, patch)
        names = self.real.git("ls-tree", "-r", "-z", "--name-only", tree).split(b"\0")
        return {
            name.decode("utf-8", "surrogateescape"): self.real.git(
                "cat-file", "blob", f"{tree}:{name.decode()}"
            )
            for name in names
            if name
        }


def creation(path: str) -> bytes:
    header = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1 @@\n+x\n".encode()


def new_file(path: str, content: str) -> bytes:
    """Return a patch that creates a file."""
    lines = "".join(f"+{line}\n" for line in content.splitlines())
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{content.count(chr(10))} @@\n{lines}".encode()
