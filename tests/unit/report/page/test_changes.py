"""Which hunks are marked: those that really stand in each other's way."""

from __future__ import annotations

import pytest

from cooperbench.report.page.changes import side_by_side
from cooperbench.report.patches import read_agent_patch
from tests.support.report.patches import BASE_LINES, BASE_PATH, git_patch


def changed(**lines: str) -> bytes:
    """A patch that gives the lines of these numbers another text: `l5="new"`."""
    new = list(BASE_LINES)
    for name, text in lines.items():
        new[int(name[1:])] = text
    return git_patch(BASE_PATH, BASE_LINES, new)


def marks(
    one: bytes | None, other: bytes | None, conflicting: tuple[str, ...] = ()
) -> list[list[str] | None]:
    (file,) = side_by_side(
        [read_agent_patch("agent1", one), read_agent_patch("agent2", other)], conflicting
    )
    return [None if side is None else [hunk.mark for hunk in side.hunks] for side in file.sides]


@pytest.mark.parametrize(
    ("other", "conflicting", "wanted"),
    [
        (changed(l5="b\n"), (BASE_PATH,), "conflict"),
        (changed(l5="b\n"), (), "overlap"),
        (changed(l6="b\n"), (), "overlap"),
        (changed(l8="b\n"), (), ""),
        (changed(l5="a\n"), (), ""),
    ],
    ids=[
        "same line in a conflict",
        "same line merged",
        "neighbouring line",
        "near line",
        "same change",
    ],
)
def test_hunks_are_marked_where_their_changes_touch(
    other: bytes, conflicting: tuple[str, ...], wanted: str
) -> None:
    assert marks(changed(l5="a\n"), other, conflicting) == [[wanted], [wanted]]


def test_only_the_hunk_that_meets_another_is_marked() -> None:
    assert marks(changed(l5="a\n", l60="a\n"), changed(l60="b\n"), (BASE_PATH,)) == [
        ["", "conflict"],
        ["conflict"],
    ]


def test_two_files_created_with_the_same_name_conflict() -> None:
    one, other = (git_patch("new.py", [], [f"value = {number}\n"]) for number in (1, 2))
    assert marks(one, other, ("new.py",)) == [["conflict"], ["conflict"]]


def test_files_that_conflict_come_first_then_those_of_both() -> None:
    def patch(*paths: str, text: str) -> bytes:
        return b"".join(git_patch(path, ["old\n"], [text]) for path in paths)

    ours, theirs = patch("a.py", "b.py", "c.py", text="1\n"), patch("b.py", "c.py", text="2\n")
    files = side_by_side(
        [read_agent_patch("agent1", ours), read_agent_patch("agent2", theirs)], ("c.py",)
    )
    assert [file.path for file in files] == ["c.py", "b.py", "a.py"]
    assert files[-1].sides[1] is None


def test_one_agent_alone_and_a_missing_patch_have_nothing_marked() -> None:
    assert marks(changed(l5="a\n"), None) == [[""], None]
    assert side_by_side([read_agent_patch("solo", None)], ()) == []
