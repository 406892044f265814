"""Classes of coupling: by hand-made patches, by git's merges, and by syntax trees of the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.dataset.content_hash import pair_content_sha256
from cooperbench.dataset.coupling import CouplingReader
from cooperbench.dataset.discovery import demo_dir, discover, load_tasks
from cooperbench.dataset.golden_groups import (
    GoldenGroup,
    read_golden_groups,
    write_golden_groups,
)
from cooperbench.diff import parse_diff
from cooperbench.errors import UserError
from cooperbench.eval.canaries.syntax import parse
from cooperbench.eval.conflicts import known_conflicts
from cooperbench.models import Feature, Pair, Task
from tests.support.dataset.factory import feature_files, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

PATCH = """\
diff --git a/{path} b/{path}
--- a/{path}
+++ b/{path}
@@ -{line},3 +{line},4 @@ {heading}
     first = 1
+    second = 2
     third = 3
     fourth = 4
"""
PATCHES = {
    1: PATCH.format(path="money.py", line=10, heading="class Money:"),
    2: PATCH.format(path="money.py", line=40, heading="class Money:"),
    3: PATCH.format(path="money.py", line=70, heading="def convert(amount):"),
    4: PATCH.format(path="money.py", line=10, heading="class Money:").replace("= 2", "= 22"),
    5: PATCH.format(path="wallet.py", line=10, heading="class Money:"),
    6: "not a diff\n",
}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    def features(repo: str, task_id: int, feature_id: int) -> dict[str, str]:
        return feature_files(repo, task_id, feature_id) | {"feature.patch": PATCHES[feature_id]}

    layout = {"coin_task": {1: [*PATCHES]}}
    dataset = write_dataset(tmp_path / "data", layout, feature_content=features)
    return load_tasks(dataset)[0]


def group(task: Task, *features: int, solved: bool = True, failed: tuple[int, ...] = ()) -> None:
    record = GoldenGroup(
        features=[*features],
        content_sha256=pair_content_sha256(Pair(task, features)),
        merge="clean",
        failed=[*failed],
        solved_by="merge" if solved else None,
        reason="" if solved else "feature 2: 1 test fails",
    )
    write_golden_groups(task, [record])


@pytest.mark.parametrize(
    ("features", "coupling"),
    [
        ((1, 5), "none"),
        ((1, 3), "file"),
        ((1, 2), "symbol"),
        ((1, 4), "text"),
        ((1, 6), None),
        ((1, 2, 3), "symbol"),
        ((1, 3, 4, 5), "text"),
    ],
)
def test_classes(task: Task, features: tuple[int, ...], coupling: str | None) -> None:
    assert CouplingReader().coupling_of(Pair(task, features)) == coupling


def test_measured_conflict_counts_until_files_change(task: Task) -> None:
    group(task, 1, 3, failed=(3,))
    assert CouplingReader().coupling_of(Pair(task, (1, 3))) == "meaning"
    assert CouplingReader().coupling_of(Pair(task, (1, 3, 5))) == "meaning"
    task.feature(3).tests.write_text("other tests\n")
    assert CouplingReader().coupling_of(Pair(task, (1, 3))) == "file"


def test_the_demo_agrees_with_gits_merges() -> None:
    conflicts = known_conflicts(demo_dir())
    reader = CouplingReader()
    for task in load_tasks(demo_dir()):
        for pair in task.pairs:
            is_text = reader.coupling_of(pair) == "text"
            assert is_text == conflicts[task.repo, task.task_id, pair.feature_ids], pair.label


def test_the_demo_agrees_with_syntax_trees() -> None:
    reader = CouplingReader()
    for task in load_tasks(demo_dir()):
        if "switchyard" in task.repo:
            continue  # JavaScript
        for pair in task.pairs:
            first, second = pair.features
            shared = _changed_definitions(first) & _changed_definitions(second)
            if reader.coupling_of(pair) != "text":
                assert (reader.coupling_of(pair) == "symbol") == bool(shared), pair.label


def _changed_definitions(feature: Feature) -> set[tuple[str, bytes]]:
    """Return the functions and classes of the base that a golden patch changes inside."""
    definitions = set()
    for file in parse_diff(feature.patch.read_bytes()):
        if file.old_path is None or not file.path.endswith(".py"):
            continue
        source = (feature.task.path / "base" / file.old_path).read_bytes()
        for node in parse(source, "python").children:
            definition = node.child_by_field_name("definition") or node
            name = definition.child_by_field_name("name")
            first_line, last_line = node.start_point[0] + 1, node.end_point[0] + 1
            for change in file.changes:
                is_insertion = change.old_start == change.old_end
                last_changed = change.old_start if is_insertion else change.old_end - 1
                is_inside = last_changed >= first_line + is_insertion
                if name and name.text and is_inside and change.old_start <= last_line:
                    definitions.add((file.path, name.text))
    return definitions


def test_pairs_are_selected_by_coupling(task: Task) -> None:
    dataset = task.path.parent.parent
    pairs = discover(dataset, coupling=["symbol"]).pairs
    assert [pair.feature_ids for pair in pairs] == [(1, 2), (2, 4)]
    drawn = discover(dataset, coupling=["file"], groups_per_task=1, seed=3).pairs
    assert len(drawn) == 1
    assert drawn[0].feature_ids in [(1, 3), (2, 3), (3, 4)]
    with pytest.raises(UserError, match=r"no pair .* with coupling meaning of the selected tasks"):
        discover(dataset, coupling=["meaning"])
    with pytest.raises(UserError, match="coupling close: choose from none, file,"):
        discover(dataset, coupling=["close"])


def test_pairs_that_cannot_be_won_are_left_out(task: Task) -> None:
    dataset = task.path.parent.parent
    group(task, 1, 3)
    group(task, 1, 2, solved=False, failed=(2,))
    assert [*read_golden_groups(task)] == [(1, 2), (1, 3)]
    selection = discover(dataset)
    assert (1, 2) not in [pair.feature_ids for pair in selection.pairs]
    note = "coin_task/task1 f1_f2 left out: it cannot be won: feature 2: 1 test fails"
    assert selection.notes == (note,)
    with pytest.raises(UserError, match="all selected pairs are left out; coin_task/task1 f1_f2"):
        discover(dataset, features=[1, 2])
    assert len(discover(dataset, with_unsolvable=True).pairs) == 15
    task.feature(2).patch.write_text(PATCHES[3])
    assert len(discover(dataset).pairs) == 15


def test_a_damaged_file_of_groups_says_nothing(task: Task) -> None:
    (task.path / "pairs.json").write_text('{"schema": "cooperbench.golden_groups/1"}')
    assert read_golden_groups(task) == {}
