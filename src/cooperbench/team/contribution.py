"""What each agent contributed: which lines of its patch its colleagues have too, and what it took over from them.

Computed on the host from the patches that the harness took, and from what was pushed and when. A line or file that two
agents have is taken over by the one whose branch had it later, or never: where nobody pushed it, nobody took it over.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from cooperbench.diff import PatchError, parse_diff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.team.gitremote import GitRemote

_INDEX = re.compile(rb"^index [0-9a-f]+\.\.([0-9a-f]{40})", re.MULTILINE)
_HUNK = re.compile(rb"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
_MOST_PLACES = 20_000


@dataclass(frozen=True)
class _Work:
    """One agent's patch, as far as it matters here."""

    lines: Mapping[str, Counter[bytes]] = field(default_factory=dict)
    """Added lines by path."""
    blobs: Mapping[str, str] = field(default_factory=dict)
    """Ids of changed files by path; empty for those that are removed."""


def contributions(patches: Mapping[str, bytes], remote: GitRemote | None = None) -> dict[str, dict[str, Any]]:
    """By agent: `added_lines`, `shared_lines` (by path), `taken_over_lines`, `taken_over_files`."""
    works = {agent_id: _read(patch) for agent_id, patch in patches.items()}
    history = _History(works, remote)
    return {agent_id: _contribution(agent_id, works, history) for agent_id in works}


def _contribution(agent_id: str, works: Mapping[str, _Work], history: _History) -> dict[str, Any]:
    mine = works[agent_id]
    others = [other for other in works if other != agent_id]
    shared: dict[str, int] = {}
    taken_over_lines = 0
    for path, lines in mine.lines.items():
        for line, count in lines.items():
            also = max((works[other].lines.get(path, Counter())[line] for other in others), default=0)
            # Empty lines are in every patch.
            if also and line.strip():
                shared[path] = shared.get(path, 0) + min(count, also)
            if line.strip() and history.had_line_first(agent_id, others, path, line):
                taken_over_lines += count
    return {
        "added_lines": sum(lines.total() for lines in mine.lines.values()),
        "shared_lines": shared,
        "taken_over_lines": taken_over_lines,
        "taken_over_files": [
            path for path, blob in mine.blobs.items() if history.had_file_first(agent_id, others, path, blob)
        ],
    }


class _History:
    """At which push each agent's branch had what, for the first time."""

    def __init__(self, works: Mapping[str, _Work], remote: GitRemote | None) -> None:
        self._lines: dict[tuple[str, str, bytes], int] = {}
        self._files: dict[tuple[str, str, str], int] = {}
        pushes = remote.pushes() if remote else []
        paths = list(dict.fromkeys(path for work in works.values() for path in work.blobs))
        if remote is None or not pushes or not paths or len(pushes) * len(paths) > _MOST_PLACES:
            return
        commits = (remote.base_commit, *(push.commit for push in pushes))
        there = remote.files_at([(commit, path) for commit in commits for path in paths])
        for path in paths:
            base = there.get((remote.base_commit, path))
            old_lines = set(base.content.split(b"\n")) if base else set()
            for number, push in enumerate(pushes):
                file = there.get((push.commit, path))
                if file and (push.agent_id, path, file.blob) not in self._files:
                    self._files[push.agent_id, path, file.blob] = number
                    for line in set(file.content.split(b"\n")) - old_lines:
                        self._lines.setdefault((push.agent_id, path, line), number)

    def had_line_first(self, agent_id: str, others: Sequence[str], path: str, line: bytes) -> bool:
        first = min((self._lines.get((other, path, line), inf) for other in others), default=inf)
        return first < self._lines.get((agent_id, path, line), inf)

    def had_file_first(self, agent_id: str, others: Sequence[str], path: str, blob: str) -> bool:
        first = min((self._files.get((other, path, blob), inf) for other in others), default=inf)
        return first < self._files.get((agent_id, path, blob), inf)


def _read(patch: bytes) -> _Work:
    try:
        sections = parse_diff(patch).files
    except PatchError:
        return _Work()
    lines: dict[str, Counter[bytes]] = {}
    blobs: dict[str, str] = {}
    for section in sections:
        path = section.new_path or section.old_path
        assert path is not None
        index = _INDEX.search(section.data[: section.data.find(b"\n@@ ")])
        if index:
            blobs[path] = index[1].decode() if section.new_path else ""
        added = _added_lines(section.data)
        if added:
            lines[path] = added
    return _Work(lines, blobs)


def _added_lines(section: bytes) -> Counter[bytes]:
    """Of the hunks of one file, without their line ends."""
    added: Counter[bytes] = Counter()
    in_hunk = False
    for line in section.split(b"\n"):
        if _HUNK.match(line):
            in_hunk = True
        elif in_hunk and line.startswith(b"+"):
            added[line[1:]] += 1
    return added
