"""How large a dataset is and what it is made of, read from the files of its tasks and its report of conflicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from statistics import median
from typing import NamedTuple

from cooperbench.errors import UserError
from cooperbench.models import Feature, Task
from cooperbench.report.patches import parse_diff

Chosen = tuple[Task, tuple[int, ...], Sequence[tuple[int, ...]]]
"""A task, and the features and pairs of it that count."""
Conflicts = Mapping[tuple[str, int, tuple[int, ...]], bool]

_LANGUAGES = {
    "Python": "py pyi pyx", "JavaScript": "js jsx mjs cjs", "TypeScript": "ts tsx mts cts", "Go": "go", "Rust": "rs",
    "Java": "java", "Kotlin": "kt", "C": "c h", "C++": "cc cpp cxx hpp hh", "C#": "cs", "Ruby": "rb", "PHP": "php",
}  # fmt: skip
_LANGUAGE_OF = {f".{ending}": name for name, endings in _LANGUAGES.items() for ending in endings.split()}
_FRAMEWORKS = (
    *("vitest", "jest", "node --test", "pnpm test", "npm test", "yarn test"),
    *("cargo test", "go test", "pytest", "unittest"),
)
"""As a runner calls them; the first that is found counts."""


@dataclass(frozen=True)
class Stats:
    """Of one repository or of all; None where nothing is known."""

    tasks: int
    features: int
    pairs: int
    language: str | None
    """Of most files that golden patches touch."""
    framework: str | None
    lines_added: float | None
    """Median of the golden patches; so are the next two."""
    lines_removed: float | None
    test_lines: float | None
    """Added and removed by a test patch."""
    conflicts: int | None
    """Pairs whose golden patches conflict, of those that the report judged."""
    judged_pairs: int


class _Size(NamedTuple):
    added: int
    removed: int
    test_lines: int
    languages: list[str]


def dataset_stats(rows: Sequence[Chosen], known: Conflicts) -> tuple[dict[str, Stats], Stats, list[str]]:
    """By repository, of all together, and what could not be read."""
    notes: list[str] = []
    sizes: dict[Task, list[_Size]] = {task: [] for task, _, _ in rows}
    for task, feature_ids, _ in rows:
        for feature_id in feature_ids:
            try:
                sizes[task].append(_size(task.feature(feature_id)))
            except (OSError, UserError) as error:
                notes.append(f"{task.label}/feature{feature_id} is not measured: {error}")
    repos = dict.fromkeys(task.repo for task in sizes)
    by_repo = {repo: _stats([row for row in rows if row[0].repo == repo], sizes, known) for repo in repos}
    return by_repo, _stats(rows, sizes, known), notes


def _stats(rows: Sequence[Chosen], sizes: Mapping[Task, Sequence[_Size]], known: Conflicts) -> Stats:
    of_features = [size for task, _, _ in rows for size in sizes[task]]
    languages = Counter(language for size in of_features for language in size.languages)
    frameworks = dict.fromkeys(filter(None, (_framework(task.runner_script) for task, _, _ in rows)))
    keys = [(task.repo, task.task_id, group) for task, _, groups in rows for group in groups]
    judged = [known[key] for key in keys if key in known]
    medians = [median(values) for values in list(zip(*of_features, strict=True))[:3]] or [None] * 3
    return Stats(
        tasks=len(rows),
        features=sum(len(feature_ids) for _, feature_ids, _ in rows),
        pairs=len(keys),
        language=max(languages, key=languages.__getitem__, default=None),
        framework=", ".join(frameworks) or None,
        lines_added=medians[0],
        lines_removed=medians[1],
        test_lines=medians[2],
        conflicts=sum(judged) if judged else None,
        judged_pairs=len(judged),
    )


def _size(feature: Feature) -> _Size:
    golden = feature.patch.read_bytes()
    endings = (PurePosixPath(file.path).suffix for file in parse_diff(golden))
    languages = [_LANGUAGE_OF[ending] for ending in endings if ending in _LANGUAGE_OF]
    return _Size(*_changed_lines(golden), sum(_changed_lines(feature.tests.read_bytes())), languages)


def _changed_lines(patch: bytes) -> tuple[int, int]:
    lines = (line for file in parse_diff(patch) for hunk in file.hunks for line in hunk.lines)
    starts = Counter(line[:1] for line in lines)
    return starts["+"], starts["-"]


def _framework(runner: Path) -> str | None:
    script = re.sub(r"(?m)^\s*#.*", "", runner.read_text("utf-8", "replace")) if runner.is_file() else ""
    patterns = {name: name.replace(" ", r"(?:@\S+)? +(?:run +)?") for name in _FRAMEWORKS}
    return next((name for name, called in patterns.items() if re.search(rf"\b{called}\b", script)), None)
