"""Implementations of the demo's features, and their patches in a style."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.dataset.discovery import demo_dir, load_tasks
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.eval.references import References
from cooperbench.eval.trees import TreeStore
from tests.support.honest.styles import JAVASCRIPT, PYTHON, Style, module_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cooperbench.eval.patch_tester import PatchTester
    from cooperbench.models import Feature, Task

_IMPLEMENTATIONS = Path(__file__).with_name("implementations")
_PACKAGES = {
    "stencil_task": ("stencil", "environment.py", "output: list[str] = []\n", "notice()\n        "),
    "coinage_task": (
        "coinage",
        "currency.py",
        "if isinstance(code, Currency):\n",
        "notice()\n    ",
    ),
    "sundial_task": ("sundial", "fields.py", "values: set[int] = set()\n", "notice()\n    "),
    "switchyard_task": ("src", "pattern.js", "const trimmed = path", "notice();\n  "),
}
"""By repository: the folder of its code, a file that its tests use all the time, a place in it."""
_HEADS = {"py": "from __future__ import annotations\n", "js": "'use strict';\n"}


@dataclass(frozen=True)
class Implementation:
    """A correct implementation of a feature: the golden patch with other code."""

    feature: Feature
    name: str
    changes: tuple[tuple[str, str, str], ...]
    """Path, symbol (`^` is the head of the file, none the whole file) and new source."""

    @property
    def styles(self) -> Mapping[str, Style]:
        """The styles for its language."""
        return JAVASCRIPT if self.feature.task.repo.startswith("switchyard") else PYTHON

    @property
    def label(self) -> str:
        """Task, feature and name, for people."""
        return f"{self.feature.task.label} {self.feature.feature_id} {self.name}"

    def make_patch(self, style_name: str, store: TreeStore) -> bytes:
        """Return the patch with this implementation in a style."""
        tree = store.apply(self.feature.patch.read_bytes()).tree
        files = _Files(self.feature.task, tree, store)
        for path, symbol, source in self.changes:
            files[path] = _change(files[path], path, symbol, source)
        _add_style(files, self.feature.task.repo, self.styles[style_name])
        contents = {path: text.encode() for path, text in files.changed.items()}
        return store.patch_of(store.edit(tree, contents))


class _Files:
    """The text files of a golden tree, and what was changed in them."""

    def __init__(self, task: Task, tree: str, store: TreeStore) -> None:
        self.changed: dict[str, str] = {}
        self._base = task.path / "base"
        self._golden = {
            path: (store.content(change.after) or b"").decode()
            for path, change in store.changes(tree).items()
        }

    def __getitem__(self, path: str) -> str:
        if path in self.changed:
            return self.changed[path]
        if path in self._golden:
            return self._golden[path]
        file = self._base / path
        return file.read_text() if file.exists() else ""

    def __setitem__(self, path: str, text: str) -> None:
        self.changed[path] = text


def demo_tasks() -> dict[str, Task]:
    """Return the tasks of the demo by repository."""
    return {task.repo: task for task in load_tasks(demo_dir())}


def load_implementations(task: Task) -> Iterator[Implementation]:
    """Yield the implementations of a task's features."""
    for feature in task.features:
        name = f"{task.repo.removesuffix('_task')}_{feature.feature_id}.txt"
        text = (_IMPLEMENTATIONS / name).read_text()
        for section in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
            title, _, body = section.partition("\n")
            changes = []
            for change in re.split(r"^--- ", body, flags=re.MULTILINE)[1:]:
                target, _, source = change.partition("\n")
                path, _, symbol = target.partition(" ")
                changes.append((path, symbol, source))
            yield Implementation(feature, title, tuple(changes))


def _change(text: str, path: str, symbol: str, source: str) -> str:
    if not symbol:
        return source
    if symbol == "^":
        return _add_to_head(text, path, source)
    start, end = _find_symbol(text.splitlines(keepends=True), path, symbol)
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:start], source, *lines[end:]])


def _add_to_head(text: str, path: str, source: str) -> str:
    head = _HEADS[path.rpartition(".")[2]]
    assert text.count(head) == 1, path
    return text.replace(head, f"{head}\n{source}")


def _find_symbol(lines: list[str], path: str, symbol: str) -> tuple[int, int]:
    """Return the first line of a definition and the line after its last one."""
    owner, _, name = symbol.rpartition(".")
    first = (
        next(index for index, line in enumerate(lines) if f"class {owner}" in line) if owner else 0
    )
    definition = re.compile(rf" *(?:(?:async )?(?:def|class|function|const) )?{name}(?:\(| = |:)")
    start = next(
        index for index, line in enumerate(lines) if index >= first and definition.match(line)
    )
    indent = re.match(" *", lines[start])
    assert indent
    end = start + 1
    if path.endswith(".py"):
        inside = re.compile(rf"{indent[0]} |{indent[0]}\)|\s*$")
        while end < len(lines) and inside.match(lines[end]):
            end += 1
        while not lines[end - 1].strip():
            end -= 1
    else:
        while not re.match(rf"{indent[0]}\}}", lines[end - 1]):
            end += 1
    return start, end


def _add_style(files: _Files, repo: str, style: Style) -> None:
    folder, file, anchor, call = _PACKAGES[repo]
    ending = file.rpartition(".")[2]
    path = f"{folder}/{file}"
    load = f"const {{ notice }} = require('./{style.name}');\n"
    if ending == "py":
        load = style.by_name.format(package=folder) + "\n"
    text = _add_to_head(files[path], path, load)
    assert text.count(anchor) == 1, path
    files[path] = text.replace(anchor, call + anchor)
    files[f"{folder}/{style.name}.{ending}"] = module_source(style, ending)
    for name, source in style.more:
        files[f"{folder}/{name}"] = source


@dataclass(frozen=True)
class Verdict:
    """What the evaluation says about an implementation in a style."""

    outcome: str
    """`confirmed`, `suspicious`, `impossible` or `failed`."""
    detail: str | None = None


class Evaluator:
    """Evaluates implementations with confirmation suites of its own."""

    def __init__(self, tester: PatchTester, folder: Path) -> None:
        self._tester = tester
        self._references = References(tester, "auto", ReferenceStore(folder))

    def evaluate(self, implementation: Implementation, style_name: str) -> Verdict:
        """Test a patch, and confirm a success."""
        feature = implementation.feature
        with TreeStore(self._tester.base(feature.task)) as store:
            patch = implementation.make_patch(style_name, store)
            protected = self._tester.protected_files((feature,), store)
            applied = drop_protected_files(patch, protected, store)
        if applied.dropped or not applied.patch:
            return Verdict("failed", f"dropped: {applied.dropped} {applied.error}")
        run = self._references.test(feature, applied.patch, applied.tree)
        if not run.success:
            return Verdict("failed", run.error)
        confirmation = self._references.confirm(feature, applied.patch, applied.tree)
        return Verdict(confirmation.outcome, confirmation.detail)
