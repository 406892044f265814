"""Synthetic datasets for tests and benchmarks: a real layout, stand-ins for content unless it is given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

Layout = dict[str, dict[int, list[int]]]
"""Repository → task id → feature ids."""

BASE_COMMIT = "0123456789abcdef0123456789abcdef01234567"

PUBLIC_TASKS_PER_REPO = (1, 3, 2, 4, 1, 3, 2, 2, 5, 1, 3, 3)
PUBLIC_FEATURES_PER_TASK = (
    *(5, 10, 7, 11, 8, 8, 2, 3, 9, 6, 5, 8, 5, 8, 7),
    *(7, 8, 6, 7, 2, 5, 7, 8, 2, 5, 5, 10, 7, 6, 12),
)
"""Thirty numbers with the public dataset's sums: 199 features, 652 pairs."""


def feature_files(repo: str, task_id: int, feature_id: int) -> dict[str, str]:
    """A feature's three files; the patches are well formed and add one file each."""
    name = f"{repo}_{task_id}_{feature_id}"
    return {
        "feature.md": f"# Feature {feature_id}\n\nAdd `{name}`.\n",
        "feature.patch": _new_file_patch(f"src/{name}.py", f"VALUE = {feature_id}"),
        "tests.patch": _new_file_patch(f"tests/test_{name}.py", "def test_value(): pass"),
    }


def task_files(repo: str, task_id: int) -> dict[str, str]:
    """What stands beside the features of a task."""
    return {
        "Dockerfile": f"FROM scratch\nARG BASE_COMMIT={BASE_COMMIT}\n",
        "setup.sh": f"#!/usr/bin/env bash\n# {repo} {task_id}\nBASE_COMMIT={BASE_COMMIT}\n",
        "runner.sh": "#!/usr/bin/env bash\nexit 0\n",
        "run_tests.sh": "#!/usr/bin/env bash\nexit 0\n",
        "combined.patch": _new_file_patch("src/combined.py", "VALUE = 0"),
    }


def write_dataset(
    root: Path,
    layout: Mapping[str, Mapping[int, Sequence[int]]],
    *,
    subsets: Mapping[str, object] | None = None,
    feature_content: Callable[[str, int, int], Mapping[str, str]] = feature_files,
    task_content: Callable[[str, int], Mapping[str, str]] = task_files,
) -> Path:
    """E.g. `write_dataset(tmp_path, {"alpha_task": {0: [1, 2, 10]}})`; gives back the root."""
    root.mkdir(parents=True, exist_ok=True)
    for repo, tasks in layout.items():
        for task_id, feature_ids in tasks.items():
            folder = root / repo / f"task{task_id}"
            _write_files(folder, task_content(repo, task_id))
            for feature_id in feature_ids:
                _write_files(
                    folder / f"feature{feature_id}", feature_content(repo, task_id, feature_id)
                )
    for name, content in (subsets or {}).items():
        _write_files(root / "subsets", {f"{name}.json": json.dumps(content, indent=2)})
    return root


def public_layout() -> Layout:
    """The public dataset's shape: 12 repositories, 30 tasks, 199 features, 652 pairs; one task id is 0."""
    layout: Layout = {}
    counts = iter(PUBLIC_FEATURES_PER_TASK)
    for place, tasks in enumerate(PUBLIC_TASKS_PER_REPO):
        layout[f"synthetic_{place + 1}_task"] = {
            (37 * place + 911 * number): list(range(1, next(counts) + 1)) for number in range(tasks)
        }
    return layout


def write_public_shape(
    root: Path,
    *,
    feature_content: Callable[[str, int, int], Mapping[str, str]] = feature_files,
    task_content: Callable[[str, int], Mapping[str, str]] = task_files,
) -> Path:
    """A dataset of the public one's shape, with subsets `lite` (100 pairs) and `flash` (50)."""
    layout = public_layout()
    return write_dataset(
        root,
        layout,
        subsets={"lite": subset_of(layout, "lite", 100), "flash": subset_of(layout, "flash", 50)},
        feature_content=feature_content,
        task_content=task_content,
    )


def subset_of(layout: Layout, name: str, pairs_wanted: int) -> dict[str, object]:
    """A subset file's content: evenly spread pairs of a layout."""
    every = [
        (repo, task_id, first, second)
        for repo, tasks in layout.items()
        for task_id, ids in tasks.items()
        for first in ids
        for second in ids
        if first < second
    ]
    chosen = [every[place * len(every) // pairs_wanted] for place in range(pairs_wanted)]
    grouped: dict[tuple[str, int], list[list[int]]] = {}
    for repo, task_id, first, second in chosen:
        grouped.setdefault((repo, task_id), []).append([first, second])
    return {
        "name": name,
        "description": f"{pairs_wanted} pairs of all repositories",
        "stats": {"tasks": len(grouped), "pairs": pairs_wanted},
        "tasks": [
            {"repo": repo, "task_id": task_id, "pairs": pairs}
            for (repo, task_id), pairs in grouped.items()
        ],
    }


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def _new_file_patch(path: str, line: str) -> str:
    header = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1 @@\n+{line}\n"
