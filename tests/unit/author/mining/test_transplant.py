from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.author.mining.transplant import Conflict, Transplanter
from cooperbench.eval.base_commit import base_of_clone
from cooperbench.eval.trees import TreeStore
from tests.support.author.repositories import Repository

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cooperbench.eval.trees import Change

LINES = [f"line {number}\n" for number in range(1, 31)]


def text(changes: Mapping[int, str]) -> str:
    """The lines, some of them replaced."""
    return "".join(changes.get(number, line) for number, line in enumerate(LINES, 1))


def changes_of(made: Repository, before: str, after: str) -> Mapping[str, Change]:
    with TreeStore(base_of_clone(made.path / ".git", before)) as store:
        return store.changes(made.git("rev-parse", f"{after}^{{tree}}"))


def move(made: Repository, before: str, after: str, base: str) -> object:
    """The result of moving a change to another commit."""
    transplanter = Transplanter(made.path / ".git")
    changes = changes_of(made, before, after)
    return transplanter.move(changes, changes, transplanter.files_of(base))


def test_a_change_fits_where_other_lines_differ(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repo")
    base = made.commit("base", {"a.py": text({})})
    other = made.commit("other", {"a.py": text({3: "other\n"})})
    feature = made.commit("feature", {"a.py": text({3: "other\n", 20: "feature\n"})})
    moved = move(made, other, feature, base)
    assert moved == {"a.py": text({20: "feature\n"}).encode()}


def test_a_change_of_the_same_lines_does_not_fit(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repo")
    base = made.commit("base", {"a.py": text({})})
    other = made.commit("other", {"a.py": text({3: "other\n"})})
    feature = made.commit("feature", {"a.py": text({3: "feature\n"})})
    assert move(made, other, feature, base) == Conflict("a.py")


def test_a_test_that_follows_another_new_test_fits(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repo")
    start = "def test_a():\n    assert True\n"
    first = "\n\ndef test_b():\n    assert True\n"
    second = "\n\ndef test_c():\n    assert True\n"
    base = made.commit("base", {"test_a.py": start})
    other = made.commit("other", {"test_a.py": start + first})
    feature = made.commit("feature", {"test_a.py": start + first + second})
    assert move(made, other, feature, base) == {"test_a.py": (start + second).encode()}


def test_documents_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repo")
    base = made.commit("base", {"docs.md": text({}), "a.py": "a = 1\n"})
    other = made.commit("other", {"docs.md": text({3: "other\n"})})
    feature = made.commit("feature", {"docs.md": text({3: "feature\n"}), "a.py": "a = 2\n"})
    moved = move(made, other, feature, base)
    assert isinstance(moved, dict)
    assert list(moved) == ["a.py"]


def test_a_change_of_a_missing_file_does_not_fit(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repo")
    base = made.commit("base", {"b.py": "b = 1\n"})
    other = made.commit("other", {"a.py": "a = 1\n"})
    feature = made.commit("feature", {"a.py": "a = 2\n"})
    assert move(made, other, feature, base) == Conflict("a.py")
