"""The dataset in numbers, as git counts them."""

from __future__ import annotations

import subprocess
from statistics import median
from typing import TYPE_CHECKING

import pytest

from cooperbench.dataset.discovery import demo_dir, load_tasks
from cooperbench.report.dataset_stats import dataset_stats
from tests.dataset.factory import task_files, write_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cooperbench.report.dataset_stats import Chosen, Conflicts


def rows_of(folder: Path) -> list[Chosen]:
    return [
        (task, task.feature_ids, tuple(pair.feature_ids for pair in task.pairs))
        for task in load_tasks(folder)
    ]


def numstat(patch: Path) -> tuple[int, int]:
    done = subprocess.run(
        ["git", "apply", "--numstat", str(patch)], capture_output=True, text=True, check=True
    )
    counts = [line.split("\t")[:2] for line in done.stdout.splitlines()]
    return sum(int(added) for added, _ in counts), sum(int(removed) for _, removed in counts)


def test_the_sizes_are_those_that_git_counts() -> None:
    by_repo, total, notes = dataset_stats(rows_of(demo_dir()), {})
    assert notes == []
    for task in load_tasks(demo_dir()):
        stats = by_repo[task.repo]
        golden = [numstat(feature.patch) for feature in task.features]
        assert stats.lines_added == median(added for added, _ in golden)
        assert stats.lines_removed == median(removed for _, removed in golden)
        assert stats.test_lines == median(sum(numstat(feature.tests)) for feature in task.features)
    assert (by_repo["switchyard_task"].language, by_repo["switchyard_task"].framework) == (
        "JavaScript",
        "node --test",
    )
    assert (by_repo["stencil_task"].language, by_repo["stencil_task"].framework) == ("Python", "unittest")
    assert (total.tasks, total.features, total.pairs, total.conflicts) == (4, 16, 24, None)


def test_lines_that_look_like_headers_are_counted(tmp_path: Path) -> None:
    lines = "@@ -1,3 +1,3 @@\n--- a/x\n+++ b/x\n-old\n+new\n context\n\\ No newline at end of file\n"
    write_dataset(
        tmp_path,
        {"a_task": {1: [1]}},
        feature_content=lambda *_: {
            "feature.md": "x",
            "feature.patch": f"diff --git a/m.rs b/m.rs\n--- a/m.rs\n+++ b/m.rs\n{lines}"
            "diff --git a/p.md b/q.md\nsimilarity index 100%\nrename from p.md\nrename to q.md\n",
            "tests.patch": f"diff --git a/t.rs b/t.rs\n--- a/t.rs\n+++ b/t.rs\n{lines}",
        },
    )
    stats = dataset_stats(rows_of(tmp_path), {})[1]
    assert (stats.lines_added, stats.lines_removed, stats.test_lines, stats.language) == (2, 2, 4, "Rust")


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        ("timeout 300 python -m pytest tests -v --maxfail=1 | tee log", "pytest"),
        ("go test -run X ./...", "go test"),
        ("npx pnpm@8 test src/x.test.ts", "pnpm test"),
        ("npm run test", "npm test"),
        ("npx vitest run", "vitest"),
        ("cargo test -p typst-tests -- name", "cargo test"),
        ("# pytest\nmake check", None),
    ],
)
def test_test_frameworks(tmp_path: Path, line: str, framework: str | None) -> None:
    def files(repo: str, task_id: int) -> Mapping[str, str]:
        return {**task_files(repo, task_id), "runner.sh": f"#!/usr/bin/env bash\nset -e\n{line}\n"}

    write_dataset(tmp_path, {"a_task": {1: [1, 2]}}, task_content=files)
    assert dataset_stats(rows_of(tmp_path), {})[1].framework == framework


def test_conflicts_are_counted_of_pairs_that_were_judged_and_a_broken_patch_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"a_task": {1: [1, 2, 3]}, "b_task": {1: [1, 2]}})
    (tmp_path / "a_task/task1/feature2/feature.patch").write_text("no diff\n")
    known: Conflicts = {
        ("a_task", 1, (1, 2)): True,
        ("a_task", 1, (1, 3)): False,
        ("z_task", 1, (1, 2)): True,
    }
    by_repo, total, notes = dataset_stats(rows_of(tmp_path), known)
    assert (by_repo["a_task"].conflicts, by_repo["a_task"].judged_pairs, by_repo["a_task"].pairs) == (1, 2, 3)
    assert (by_repo["b_task"].conflicts, by_repo["b_task"].judged_pairs) == (None, 0)
    assert (total.conflicts, total.judged_pairs, total.lines_added) == (1, 2, 1)
    assert [note.partition(":")[0] for note in notes] == ["a_task/task1/feature2 is not measured"]
