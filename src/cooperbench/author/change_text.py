"""Texts of a history about a change, from which drafts of descriptions start.

Merge commits name a pull request or a branch; what was done is in their bodies and in the messages
of the commits that they merge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cooperbench.git import git

_MERGE = re.compile(r"Merge (?:pull request|branch|remote-tracking branch|commit|tag|PR) ?", re.I)
_TRAILER = re.compile(
    r"(?:[A-Z][\w-]*-by|Change-Id|Fixes|Closes|Refs?|Resolves|Conflicts|Bug|See also): ?"
)
_NUMBER = re.compile(r"\s*\((?:#|!|gh-)\d+\)\s*$")
_MAX_COMMITS = 20
_NOTHING_NEW = re.compile(r"(?:fixup!|squash!|wip\b|\[pre-commit\.ci\]|merge )", re.IGNORECASE)


@dataclass(frozen=True)
class ChangeText:
    """The title of a change, its text, and the messages of the commits that it merges."""

    title: str
    body: str
    messages: tuple[str, ...] = ()

    @property
    def draft(self) -> str:
        """A first feature.md."""
        parts = [f"# {self.title}", self.body or "\n".join(f"- {text}" for text in self.messages)]
        return "\n\n".join(part for part in parts if part).rstrip() + "\n"


def read_change_text(git_dir: Path, commit: str) -> ChangeText:
    """Return what the messages of a commit, and of the commits that it merges, say."""
    output = git("show", "-s", "--format=%P%x00%s%x00%b", commit, git_dir=git_dir)
    parents, subject, body = output.decode("utf-8", "replace").split("\0", 2)
    text = _without_trailers(body)
    messages: tuple[str, ...] = ()
    title = subject.strip()
    merged = parents.split()[1:]
    if merged:
        messages = _merged_subjects(git_dir, parents.split()[0], merged)
    if _MERGE.match(title):
        first_line, _, remaining_text = text.partition("\n")
        if first_line:
            title, text = first_line, remaining_text.strip()
        elif messages:
            title = messages[0]
    return ChangeText(_NUMBER.sub("", title), text, messages)


def _without_trailers(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines() if not _TRAILER.match(line)]
    return "\n".join(lines).strip()


def _merged_subjects(git_dir: Path, first_parent: str, merged: list[str]) -> tuple[str, ...]:
    """Return the subjects of the merged commits, the oldest first."""
    argv = ("log", "--no-merges", "--format=%s", f"--max-count={_MAX_COMMITS}", "--reverse")
    output = git(*argv, *merged, f"^{first_parent}", git_dir=git_dir, check=False)
    subjects = output.decode("utf-8", "replace").splitlines()
    return tuple(subject for subject in subjects if not _NOTHING_NEW.match(subject))
