"""Implementations of the demo's features, and their patches in a style. README.md has the format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.dataset.discovery import demo_dir, load_tasks
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.eval.references import References
from cooperbench.eval.trees import TreeStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cooperbench.eval.patch_tester import PatchTester
    from cooperbench.models import Feature, Task

_FOLDER = Path(__file__).parent
_LOAD = "load"
_HEADS = {"py": "from __future__ import annotations\n", "js": "'use strict';\n"}


@dataclass(frozen=True)
class Library:
    """The code of a task, and where it calls `notice`."""

    language: str
    folder: str
    file: str
    """A file that tests use all the time."""
    anchor: str
    """The code in it before which the call stands."""
    call: str


_LIBRARIES = {
    "stencil_task": Library(
        "python", "stencil", "environment.py", "output: list[str] = []\n", "notice()\n        "
    ),
    "coinage_task": Library(
        "python", "coinage", "currency.py", "if isinstance(code, Currency):\n", "notice()\n    "
    ),
    "sundial_task": Library(
        "python", "sundial", "fields.py", "values: set[int] = set()\n", "notice()\n    "
    ),
    "switchyard_task": Library(
        "javascript", "src", "pattern.js", "const trimmed = path", "notice();\n  "
    ),
}
_DEFAULT_LOADS = {
    "python": "from .notice import notice\n",
    "javascript": "const { notice } = require('./notice');\n",
}


@dataclass(frozen=True)
class Implementation:
    """A correct implementation of a feature: the golden patch with other code."""

    feature: Feature
    name: str
    changes: tuple[tuple[str, str], ...]
    """What to replace (a path, perhaps with a symbol), and the new source."""

    @property
    def label(self) -> str:
        """Task, feature and name, for people."""
        return f"{self.feature.task.label} {self.feature.feature_id} {self.name}"

    @property
    def library(self) -> Library:
        """The library that it belongs to."""
        return _LIBRARIES[self.feature.task.repo]

    @property
    def styles(self) -> list[str]:
        """Names of the styles that it can have."""
        return sorted(_read_styles(self.library.language))

    def make_patch(self, style_name: str, store: TreeStore) -> bytes:
        """Return the patch with this implementation in a style."""
        tree = store.apply(self.feature.patch.read_bytes()).tree
        files = _Files(self.feature.task, tree, store)
        for target, source in self.changes:
            path, _, symbol = target.partition(" ")
            files[path] = _change(files[path], path, symbol, source)
        _add_style(files, self.library, _read_styles(self.library.language)[style_name])
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
        for title, changes in _read_sections(_FOLDER / "implementations" / name).items():
            yield Implementation(feature, title, changes)


@cache
def _read_styles(language: str) -> Mapping[str, tuple[tuple[str, str], ...]]:
    return _read_sections(_FOLDER / f"styles_{language}.txt")


def _read_sections(file: Path) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return what stands below each `=== TITLE` of a file: pairs of a `--- TARGET` and a source."""
    sections = {}
    for section in re.split(r"^=== ", file.read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        changes = []
        for change in re.split(r"^--- ", body, flags=re.MULTILINE)[1:]:
            target, _, source = change.partition("\n")
            changes.append((target, source))
        sections[title] = tuple(changes)
    return sections


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
    start = 0
    while f"class {owner}" not in lines[start] and owner:
        start += 1
    definition = re.compile(rf" *(?:(?:async )?(?:def|class|function|const) )?{name}(?:\(| = |:)")
    while not definition.match(lines[start]):
        start += 1
    indent = " " * (len(lines[start]) - len(lines[start].lstrip()))
    last = start
    if path.endswith(".py"):
        inside = re.compile(rf"{indent} |{indent}\)|\s*$")
        for index in range(start + 1, len(lines)):
            if not inside.match(lines[index]):
                break
            last = index if lines[index].strip() else last
    else:
        while not lines[last].startswith(f"{indent}}}"):
            last += 1
    return start, last + 1


def _add_style(files: _Files, library: Library, style: tuple[tuple[str, str], ...]) -> None:
    path = f"{library.folder}/{library.file}"
    load = _DEFAULT_LOADS[library.language]
    for target, source in style:
        if target == _LOAD:
            load = source.replace("PACKAGE", library.folder)
        else:
            files[f"{library.folder}/{target}"] = source
    text = _add_to_head(files[path], path, load)
    assert text.count(library.anchor) == 1, path
    files[path] = text.replace(library.anchor, library.call + library.anchor)


@dataclass(frozen=True)
class Verdict:
    """A verdict about an implementation in a style."""

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
