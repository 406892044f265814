from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench.dataset.discovery import (
    Selection,
    discover,
    load_tasks,
    resolve_dataset_dir,
    scan_tasks,
)
from cooperbench.errors import UserError
from tests.support.dataset.factory import write_dataset, write_public_shape

if TYPE_CHECKING:
    from collections.abc import Callable


def names(selection: Selection) -> list[str]:
    return [pair.label for pair in selection.pairs]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    layout = {
        "beta_task": {12: [1, 2, 3], 3: [2, 10, 1]},
        "alpha_task": {0: [1, 2], 100: [1, 3], 20: [7]},
    }
    subsets = {
        "small": {
            "tasks": [{"repo": "beta_task", "task_id": 12, "pairs": [[3, 1], [1, 2], [2, 1]]}]
        },
        "wide": {
            "tasks": [
                {"repo": "beta", "task_id": "3", "groups": [[10, 1, 2]], "pairs": [[10, 2]]},
                {"repo": "alpha_task", "task_id": 0},
            ]
        },
    }
    return write_dataset(tmp_path / "data", layout, subsets=subsets)


def test_everything_in_numeric_order(dataset: Path) -> None:
    assert names(discover(dataset)) == [
        "alpha_task/task0 f1_f2",
        "alpha_task/task100 f1_f3",
        "beta_task/task3 f1_f2",
        "beta_task/task3 f1_f10",
        "beta_task/task3 f2_f10",
        "beta_task/task12 f1_f2",
        "beta_task/task12 f1_f3",
        "beta_task/task12 f2_f3",
    ]
    assert [(task.repo, task.task_id) for task in load_tasks(dataset)] == [
        ("alpha_task", 0),
        ("alpha_task", 20),
        ("alpha_task", 100),
        ("beta_task", 3),
        ("beta_task", 12),
    ]
    assert load_tasks(dataset)[3].feature_ids == (1, 2, 10)


def test_groups_of_several_sizes(dataset: Path) -> None:
    assert names(discover(dataset, repo="beta", task_id=12, group_sizes=[3, 2])) == [
        "beta_task/task12 f1_f2",
        "beta_task/task12 f1_f3",
        "beta_task/task12 f2_f3",
        "beta_task/task12 f1_f2_f3",
    ]
    assert names(discover(dataset, task_id=3, features=[10, 2], group_sizes=[2])) == [
        "beta_task/task3 f2_f10"
    ]
    assert names(discover(dataset, subset="wide", group_sizes=[3])) == ["beta_task/task3 f1_f2_f10"]


def test_many_groups_are_drawn_with_a_seed_and_nested_over_sizes(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, {"a_task": {1: list(range(1, 13)), 2: [1, 2, 3, 4]}})

    def drawn(
        size: int, groups_per_task: int | None = None, seed: int = 0
    ) -> list[tuple[int, ...]]:
        pairs = discover(data, group_sizes=[size], groups_per_task=groups_per_task, seed=seed).pairs
        return [pair.feature_ids for pair in pairs if pair.task.task_id == 1]

    assert len(drawn(2)) == 66
    assert len(drawn(5)) == 66  # of 792: as many as there are pairs
    assert drawn(5) == drawn(5) != drawn(5, seed=1)
    assert len({*drawn(5)}) == 66
    assert len(drawn(12)) == 1
    few = {size: drawn(size, groups_per_task=8) for size in (3, 4, 5, 6)}
    for size in (4, 5, 6):
        assert len(few[size]) == 8
        assert all(any({*small} < {*large} for small in few[size - 1]) for large in few[size])


def test_the_public_shape(tmp_path: Path) -> None:
    write_public_shape(tmp_path)
    tasks = load_tasks(tmp_path)
    assert len({task.repo for task in tasks}) == 12
    assert (len(tasks), sum(len(task.features) for task in tasks)) == (30, 199)
    assert all(feature.tests.is_file() for task in tasks for feature in task.features)
    counts = {
        subset: len(discover(tmp_path, subset=subset).pairs)
        for subset in (None, "full", "lite", "flash")
    }
    assert counts == {None: 652, "full": 652, "lite": 100, "flash": 50}


@pytest.mark.parametrize("repo", ["alpha_task", "alpha"])
def test_repo_filter(dataset: Path, repo: str) -> None:
    assert names(discover(dataset, repo=repo)) == [
        "alpha_task/task0 f1_f2",
        "alpha_task/task100 f1_f3",
    ]


def test_task_zero_is_a_task(dataset: Path) -> None:
    assert names(discover(dataset, task_id=0)) == ["alpha_task/task0 f1_f2"]
    assert [task.task_id for task in load_tasks(dataset, "alpha", 0)] == [0]


@pytest.mark.parametrize("features", [[1, 2], [2, 1], (1, 2)])
def test_features_in_every_task_that_has_them(dataset: Path, features: list[int]) -> None:
    assert names(discover(dataset, features=features)) == [
        "alpha_task/task0 f1_f2",
        "beta_task/task3 f1_f2",
        "beta_task/task12 f1_f2",
    ]


def test_more_than_two_features_are_one_group(dataset: Path) -> None:
    assert names(discover(dataset, features=[10, 1, 2])) == ["beta_task/task3 f1_f2_f10"]


def test_subsets(dataset: Path) -> None:
    assert names(discover(dataset, subset="small")) == [
        "beta_task/task12 f1_f2",
        "beta_task/task12 f1_f3",
    ]
    wide = ["alpha_task/task0 f1_f2", "beta_task/task3 f1_f2_f10", "beta_task/task3 f2_f10"]
    assert names(discover(dataset, subset="wide")) == wide
    assert names(discover(dataset, subset="wide", repo="alpha")) == wide[:1]
    assert names(discover(dataset, subset="wide", task_id=3)) == wide[1:]
    assert names(discover(dataset, subset="wide", features=[2, 10])) == wide[2:]
    assert names(discover(dataset, subset="wide", features=[10, 2, 1])) == wide[1:2]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"repo": "alpa_task"}, r"^no repository 'alpa_task'; available: alpha_task, beta_task$"),
        ({"repo": "alp\x1bha"}, r"^no repository 'alp\\\\x1bha'; available"),
        (
            {"task_id": 4},
            r"^no task 4; available: alpha_task 0, alpha_task 20, alpha_task 100, beta_task 3, beta",
        ),
        ({"repo": "beta", "task_id": 0}, r"^no task 0 in beta_task; available: 3, 12$"),
        (
            {"features": [1, 99]},
            r"^no pair with features 1,99 .*; available: alpha_task/task0: 1,2, .*",
        ),
        (
            {"repo": "beta", "task_id": 12, "features": [1, 10]},
            r"1,10 .*; available: beta_task/task12: 1,2,3$",
        ),
        ({"features": [1]}, r"^features 1: choose 2 to 16 different features, e\.g\. 1,2$"),
        ({"features": []}, r"^features \(none\): choose 2 to 16"),
        ({"features": [1, 2, 1]}, r"^features 1,2,1: choose 2 to 16 different"),
        ({"features": range(1, 18)}, r"^features 1,.*,17: choose 2 to 16"),
        ({"group_sizes": [1, 3]}, r"^invalid group size 1: a group has 2 to 16 agents$"),
        ({"group_sizes": [4]}, r"^no pair of 4 features .*; available: alpha_task/task0: 1,2, .*"),
        (
            {"group_sizes": [3], "features": [1, 2]},
            r"^no pair with features 1,2 of 3 features of the selected tasks",
        ),
        (
            {"group_sizes": [3], "subset": "small"},
            r"^no pair of 3 features .* in subset 'small'; available: beta",
        ),
        ({"groups_per_task": 1, "subset": "small"}, r"^subset 'small' defines its own groups"),
        ({"subset": "smal"}, r"^no subset 'smal' in .*subsets; available: small, wide$"),
        (
            {"subset": "wide", "repo": "beta", "features": [1, 2]},
            r"^no pair with features 1,2 .* in subset 'wide'; available: alpha",
        ),
        (
            {"subset": "small", "repo": "alpha"},
            r"^no pair .* in subset 'small'; available: beta_task/task12 f1_f2, beta_task/task12 f1_f3$",
        ),
        (
            {"repo": "alpha", "task_id": 20},
            r"^no pair of 2 features of the selected tasks in .*; available: alpha_task/task20: 7$",
        ),
    ],
)
def test_what_is_not_there_is_said_with_what_is(
    dataset: Path, filters: dict[str, object], message: str
) -> None:
    ask: Callable[..., Selection] = discover
    with pytest.raises(UserError, match=message):
        ask(dataset, **filters)


@pytest.mark.parametrize(
    ("entry", "missing"),
    [
        ({"repo": "gamma_task", "task_id": 1}, "gamma_task/task1"),
        ({"repo": "beta", "task_id": 13, "pairs": [[1, 2]]}, "beta/task13"),
        (
            {"repo": "beta", "task_id": 12, "pairs": [[1, 8], [9, 2]]},
            "beta_task/task12/feature8, beta_task/task12/feature9",
        ),
    ],
)
def test_a_subset_of_another_dataset_is_refused(
    dataset: Path, entry: dict[str, object], missing: str
) -> None:
    write_dataset(dataset, {}, subsets={"other": {"tasks": [entry]}})
    with pytest.raises(
        UserError, match=f"^subset 'other' names what is not in the dataset: {missing}$"
    ):
        discover(dataset, subset="other", repo="alpha")


def test_stray_things_are_passed_over(dataset: Path) -> None:
    before = names(discover(dataset))
    task = dataset / "beta_task" / "task12"
    for folder in (
        ".git",
        ".cache/task1/feature1",
        "notes",
        "task_x",
        "gamma_task",
        "delta_task/task_1/feature1",
    ):
        (dataset / folder).mkdir(parents=True)
    for folder in (
        "feature_old",
        "feature1.bak",
        "feature",
        "feature01",
        "feature-1",
        "feature٣",
        "Feature4",
    ):
        (task / folder).mkdir()
        for name in ("feature.md", "feature.patch", "tests.patch"):
            (task / folder / name).touch()
    (dataset / "beta_task" / "task007").mkdir()
    (dataset / "file_task").write_text("a file")
    (dataset / "beta_task" / "task5").write_text("a file")
    (task / "feature5").write_text("a file")
    (dataset / "loop_task").symlink_to("loop_task")
    (dataset / "self_task").symlink_to(".")
    (task / "feature6").symlink_to("feature6")
    (task / "feature8").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(dataset) + b"/\xff\xfe_task/task1/feature1")).mkdir(parents=True)
    (dataset / "bad\nname_task" / "task1" / "feature1").mkdir(parents=True)
    assert names(discover(dataset)) == before
    assert discover(dataset).notes == ()


def test_what_is_nearly_a_task_is_noted(dataset: Path) -> None:
    (dataset / "beta_task" / "task12" / "feature3" / "tests.patch").unlink()
    (dataset / "beta_task" / "task12" / "feature4").mkdir()
    (dataset / "beta_task" / "task12" / "feature2" / "feature.md").unlink()
    (dataset / "beta_task" / "task12" / "feature2" / "feature.md").mkdir()
    (dataset / "alpha_task" / "task9").mkdir()
    found = discover(dataset)
    assert "beta_task/task12 f1_f3" not in names(found)
    beta_notes = (
        "beta_task/task12/feature2 skipped: no feature.md",
        "beta_task/task12/feature3 skipped: no tests.patch",
        "beta_task/task12/feature4 skipped: no feature.md, feature.patch, tests.patch",
    )
    assert found.notes == ("alpha_task/task9 skipped: it has no complete feature", *beta_notes)
    assert scan_tasks(dataset, "beta")[1] == beta_notes
    assert scan_tasks(dataset, task_id=3)[1] == ()
    assert scan_tasks(dataset, task_id=0)[1] == ()


def test_links_to_tasks_are_followed(dataset: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "beta_task").symlink_to(dataset / "beta_task")
    assert len(discover(linked).pairs) == 6


def test_a_folder_without_tasks(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no tasks in .*`cooperbench prepare`.*`--dataset-dir demo`$"
    ):
        discover(tmp_path)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20)
        | st.sampled_from(
            ["task", "task1", "task01", "task-1", "feature1", "feature", "feature1 ", "TASK1"]
        ),
        max_size=3,
    )
)
def test_no_name_of_a_folder_crashes_it(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    root = write_dataset(tmp_path_factory.mktemp("wild"), {"alpha_task": {1: [1, 2]}})
    folder = root.joinpath(*(part for part in parts if part not in (".", "..")))
    folder.mkdir(parents=True, exist_ok=True)
    assert "alpha_task/task1 f1_f2" in names(discover(root))


def test_which_folder_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COOPERBENCH_DATASET_DIR", raising=False)
    with pytest.raises(
        UserError, match=r"no dataset at \./dataset; .*`cooperbench prepare`.*demo`"
    ):
        resolve_dataset_dir(None)
    (tmp_path / "dataset").mkdir()
    assert resolve_dataset_dir(None) == Path("dataset")
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("COOPERBENCH_DATASET_DIR", "other")
    assert resolve_dataset_dir(None) == Path("other")
    assert resolve_dataset_dir("dataset") == Path("dataset")
    assert resolve_dataset_dir(tmp_path / "other") == tmp_path / "other"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"\./file is not a folder"):
        resolve_dataset_dir("file")


def test_demo_is_the_packaged_one_and_a_path_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    packaged = resolve_dataset_dir("demo")
    assert packaged.is_absolute()
    assert packaged.parts[-3:] == ("cooperbench", "dataset", "demo")
    assert resolve_dataset_dir("./demo") == Path("demo")
