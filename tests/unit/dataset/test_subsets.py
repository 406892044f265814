from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cooperbench.dataset.subsets import SubsetTask, load_subset, subset_names
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def write(dataset_dir: Path, content: object, name: str = "mine") -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (dataset_dir / "subsets").mkdir(exist_ok=True)
    path = dataset_dir / "subsets" / f"{name}.json"
    path.write_text(text)
    return path


def test_the_documented_form(tmp_path: Path) -> None:
    content = {
        "name": "lite",
        "description": "A few",
        "stats": {"pairs": 2},
        "tasks": [{"repo": "alpha_task", "task_id": 8394, "pairs": [[1, 2], [10, 3]]}],
    }
    write(tmp_path, content, "lite")
    tasks = (SubsetTask("alpha_task", 8394, ((1, 2), (3, 10))),)
    assert load_subset(tmp_path, "lite") == tasks


@pytest.mark.parametrize(
    ("entry", "groups"),
    [
        ({"task_id": 0}, None),
        ({"task_id": "0"}, None),
        ({"task_id": "task0", "pairs": None, "colour": "blue"}, None),
        ({"task_id": 0, "pairs": []}, ()),
        ({"task_id": 0, "pairs": [["2", 1], [1, 2]]}, ((1, 2),)),
        ({"task_id": 0, "groups": [[3, 1, 2]]}, ((1, 2, 3),)),
        (
            {"task_id": 0, "groups": [[3, 1, 2], [2, 1]], "pairs": [[4, 1]]},
            ((1, 2), (1, 2, 3), (1, 4)),
        ),
    ],
)
def test_what_is_tolerated(
    tmp_path: Path, entry: dict[str, object], groups: tuple[tuple[int, ...], ...] | None
) -> None:
    write(tmp_path, {"tasks": [{"repo": "alpha_task", **entry}], "unknown": 1})
    assert load_subset(tmp_path, "mine") == (SubsetTask("alpha_task", 0, groups),)


def entry(**content: object) -> dict[str, object]:
    return {"tasks": [{"repo": "alpha_task", "task_id": 1} | content]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read: Expecting property name"),
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"tasks": [{"repo": "a", "task_id": ' + "9" * 5000 + "}]}", "cannot be read"),
        ([], r"a subset is \{.*, not \[\]$"),
        ({}, r", not \{\}$"),
        ({"tasks": {}}, r", not \{\}$"),
        ({"tasks": ["alpha"]}, r', not "alpha"$'),
        (entry(repo=""), r', not \{"repo": "", "task_id": 1\}$'),
        (entry(repo=None), r', not \{"repo": null, "task_id": 1\}$'),
        (entry(task_id=None), r', "task_id": null\}$'),
        (entry(task_id=True), r', "task_id": true\}$'),
        (entry(task_id=-1), r', "task_id": -1\}$'),
        (entry(task_id=1.5), r', "task_id": 1\.5\}$'),
        (entry(task_id="x\x1b"), r"x\\+u001b"),
        (entry(pairs=3), r'"pairs": 3\}$'),
        (entry(pairs=[[1]]), r'"pairs": \[\[1\]\]\}$'),
        (entry(pairs=[[1, 2], [1, 2, 3]]), r'"pairs": \[\[1, 2\],.*'),
        (entry(pairs=[[1, 1]]), r'"pairs": \[\[1, 1\]\]\}$'),
        (entry(pairs=[[1, "b"]]), r'"pairs": \[\[1, "b"'),
        (entry(groups=[[1]]), r'"groups": \[\[1\]\]\}$'),
        (entry(groups={"1": 2}), r'"groups": \{'),
    ],
)
def test_broken_files_are_named_with_the_reason(
    tmp_path: Path, content: object, reason: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(UserError, match=reason) as caught:
        load_subset(tmp_path, "mine")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    write(tmp_path, {}).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        load_subset(tmp_path, "mine")


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "subsets" / "mine.json").mkdir(parents=True)
    with pytest.raises(UserError, match=r"mine\.json cannot be read: .*Is a directory"):
        load_subset(tmp_path, "mine")


@pytest.mark.parametrize(
    "name", ["../secret", "a/b", "..", ".hidden", "", "a\0b", "a\nb", "/etc/passwd"]
)
def test_names_that_are_paths_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.json").write_text('{"tasks": []}')
    write(tmp_path, {"tasks": []}, "lite")
    with pytest.raises(UserError, match=r"is not a valid name; available: lite$"):
        load_subset(tmp_path, name)


def test_listing(tmp_path: Path) -> None:
    assert subset_names(tmp_path) == ()
    for name in ("lite", "flash", ".hidden"):
        write(tmp_path, {"tasks": [], "description": f"about {name}"}, name)
    (tmp_path / "subsets" / "README.md").touch()
    assert subset_names(tmp_path) == ("flash", "lite")
    assert load_subset(tmp_path, "flash") == ()
    with pytest.raises(UserError, match=r"no subset 'lit' in .*; available: lite, flash"):
        load_subset(tmp_path, "lit")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["tasks", "repo", "task_id", "pairs", "groups", "x"]), inner
        )
    ),
    max_leaves=20,
)


@settings(max_examples=60)
@given(json_values)
def test_any_json_is_a_subset_or_a_users_error(
    tmp_path_factory: pytest.TempPathFactory, content: object
) -> None:
    folder = tmp_path_factory.mktemp("wild")
    write(folder, json.dumps({"tasks": [content]}))
    try:
        outcome = [task.repo for task in load_subset(folder, "mine")]
    except UserError as error:
        outcome = str(error).splitlines()
    assert len(outcome) == 1
