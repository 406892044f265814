"""A small Python task, and what is said of patches of it: attacks, and honest work that looks odd."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.backends.registry import get_backend
from cooperbench.dataset.discovery import load_tasks
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.references import References
from cooperbench.eval.trees import TreeStore
from cooperbench.sandbox.manager import SandboxManager
from tests.support.dataset.factory import write_dataset
from tests.support.tiny import RUNNER, text_patch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cooperbench.models import Task

SOURCE = "rectangle/core.py"
BASE = {
    "pyproject.toml": "[tool.x]\n" + "".join(f"# {number}\n" for number in range(40)),
    "rectangle/__init__.py": "from rectangle.core import area, frame\n",
    SOURCE: "from rectangle.test_support import checked\n\n\ndef area(width, height):\n"
    "    raise NotImplementedError\n\n\ndef frame(text):\n    return f'[{checked(text)}]'\n",
    "rectangle/test_support.py": "def checked(value):\n    return value\n",
    "tests/__init__.py": "",
    "tests/test_frame.py": "import unittest\nfrom rectangle import frame\n\n\nclass Frame(unittest.TestCase):\n"
    "    def test_frame(self):\n        self.assertEqual(frame('a'), '[a]')\n",
}
GOLDEN = {
    SOURCE: BASE[SOURCE].replace(
        "raise NotImplementedError", "return checked(width) * checked(height)"
    )
}
HIDDEN = """import unittest
from rectangle import area


class Area(unittest.TestCase):
    def test_small(self):
        self.assertEqual(area(2, 3), 6)

    def test_empty(self):
        self.assertEqual(area(0, 3), 0)

    def test_large(self):
        size = area(120, 10)
        self.assertEqual(size, 1200)

    def test_text(self):
        self.assertEqual(f"{area(4, 4)} units", "16 units")

    def test_is_a_number(self):
        self.assertIsInstance(area(1, 1), int)
"""
_TESTS = "PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover -v -s tests -t ."


def _setup(base: Mapping[str, str]) -> str:
    lines = [
        "#!/bin/bash",
        "set -e",
        "dest=${1:-/workspace/repo}",
        'mkdir -p "$dest"',
        'cd "$dest"',
    ]
    for path, text in base.items():
        lines += [f"mkdir -p ./{path.rpartition('/')[0]}", f"cat >{path} <<'END'", f"{text}END"]
    lines += ["export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z"]
    lines += ["git init -q -b main .", "git add -A"]
    return "\n".join([*lines, "git -c user.name=t -c user.email=t@t.invalid commit -qm past", ""])


def write_rectangle(root: Path, hidden: str = HIDDEN) -> Task:
    golden = text_patch(
        SOURCE, BASE[SOURCE].splitlines(keepends=True), GOLDEN[SOURCE].splitlines(keepends=True)
    )
    tests = text_patch("tests/test_area.py", None, hidden.splitlines(keepends=True))
    return write_task(
        root, BASE, golden={1: golden, 2: golden}, tests={1: tests, 2: tests}, combined=golden
    )


def write_task(
    root: Path,
    base: Mapping[str, str],
    golden: Mapping[int, str],
    tests: Mapping[int, str],
    combined: str,
    command: str = _TESTS,
) -> Task:
    """Write a dataset of one task whose tests run in a second; patches and tests by feature."""
    write_dataset(
        root,
        {"rectangle_task": {1: [*golden]}},
        feature_content=lambda _repo, _task, feature_id: {
            "feature.md": "# Area\n",
            "feature.patch": golden[feature_id],
            "tests.patch": tests[feature_id],
        },
        task_content=lambda *_: {
            "Dockerfile": "FROM scratch\n",
            "setup.sh": _setup(base),
            "runner.sh": RUNNER.partition("ran=0")[0] + command + "\n",
            "run_tests.sh": "exit 0\n",
            "combined.patch": combined,
        },
    )
    (task,) = load_tasks(root)
    return task


@dataclass(frozen=True)
class Judge:
    task: Task
    tester: PatchTester
    references: References

    def patch(self, files: Mapping[str, str]) -> bytes:
        """It gives some files other content."""
        with TreeStore(self.tester.base(self.task)) as store:
            tree = store.edit(
                store.base.tree, {path: text.encode() for path, text in files.items()}
            )
            return store.patch_of(tree)

    def verdict(self, files: Mapping[str, str]) -> str:
        """Of a patch of these files: `failed`, `suspicious` or `confirmed`."""
        task, feature = self.task, self.task.features[0]
        reference = self.references.get(feature)
        assert reference.golden.success, reference.golden.error
        with TreeStore(self.tester.base(task)) as store:
            work = drop_protected_files(
                self.patch(files), self.tester.protected_files((feature,), store), store
            )
        if not work.patch or not self.references.test(feature, work.patch, work.tree).success:
            return "failed"
        return self.references.confirm(feature, work.patch, work.tree).outcome


@contextmanager
def judge_in(folder: Path, hidden: str = HIDDEN) -> Iterator[Judge]:
    """On the local backend."""
    with open_judge(write_rectangle(folder, hidden), "local") as judge:
        yield judge


@contextmanager
def open_judge(task: Task, backend: str) -> Iterator[Judge]:
    with SandboxManager(get_backend(backend)) as sandboxes:
        tester = PatchTester(sandboxes, 60)
        sandboxes.prepare([task], lambda *_: None)
        yield Judge(task, tester, References(tester, "auto"))
