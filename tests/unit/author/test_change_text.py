from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.author.change_text import ChangeText, read_change_text
from tests.support.author.repositories import Repository

if TYPE_CHECKING:
    from pathlib import Path


def test_a_squashed_commit_loses_its_number_and_trailers(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repo")
    message = "Add cubes (#12)\n\nThey have sides.\n\nCloses: #3\nSigned-off-by: A <a@b.invalid>"
    commit = made.commit(message, {"a.py": "a = 1\n"})
    text = read_change_text(made.path / ".git", commit)
    assert text == ChangeText("Add cubes", "They have sides.")
    assert text.draft == "# Add cubes\n\nThey have sides.\n"


def test_a_merge_commit_is_named_by_its_body(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repo")
    made.commit("Start", {"a.py": "a = 1\n"})
    made.branch("work", "Add b", {"b.py": "b = 1\n"})
    message = "Merge pull request #1 from x/work\n\nAdd the letter b"
    made.git("merge", "-q", "--no-ff", "-m", message, "work")
    text = read_change_text(made.path / ".git", "HEAD")
    assert text == ChangeText("Add the letter b", "", ("Add b",))


def test_a_merge_commit_without_body_is_named_by_what_it_merges(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repo")
    made.commit("Start", {"a.py": "a = 1\n"})
    made.branch("work", "Add b", {"b.py": "b = 1\n"})
    made.git("merge", "-q", "--no-ff", "-m", "Merge branch 'work'", "work")
    text = read_change_text(made.path / ".git", "HEAD")
    assert text.title == "Add b"
    assert text.draft == "# Add b\n\n- Add b\n"
