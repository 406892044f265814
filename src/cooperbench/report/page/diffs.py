"""The patches of a pair side by side: file by file, hunk by hunk, with the hunks marked that meet in the base.

Two hunks overlap where the base lines that they change touch. In a file that git could not merge such hunks are marked
as conflicting: git's own conflict is computed on the whole file, this says where to look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.changes import changes_of, read_work

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from cooperbench.report.coordination.changes import Change, ChangedFile, Hunk, Work

MOST_LINES_OF_A_FILE = 2_000


def side_by_side(
    patches: Sequence[tuple[str, bytes | None]], conflicting: Collection[str]
) -> list[dict[str, Any]]:
    """A record for each file that anyone changed; `sides` has an entry a patch, None where it leaves the file alone."""
    works = [read_work(agent_id, patch) for agent_id, patch in patches]
    paths = dict.fromkeys(file.path for work in works for file in work.files)
    records = [_file(path, works, path in conflicting) for path in paths]
    return sorted(records, key=lambda one: (not one["conflict"], not one["overlap"], not one["shared"]))


def unreadable(patches: Sequence[tuple[str, bytes | None]]) -> list[str]:
    """Who handed in something that is no patch, or nothing."""
    return [agent_id for agent_id, patch in patches if not read_work(agent_id, patch).usable]


def _file(path: str, works: Sequence[Work], conflict: bool) -> dict[str, Any]:
    touched = [next((file for file in work.files if file.path == path), None) for work in works]
    sides = [
        None
        if file is None
        else _side(file, [other for other in touched if other not in (None, file)], conflict)
        for file in touched
    ]
    present = [side for side in sides if side is not None]
    return {
        "path": path,
        "shared": len(present) > 1,
        "conflict": conflict,
        "overlap": any(hunk["mark"] for side in present for hunk in side["hunks"]),
        "sides": sides,
    }


def _side(file: ChangedFile, others: Iterable[ChangedFile | None], conflict: bool) -> dict[str, Any]:
    theirs = [change for other in others if other is not None for change in other.changes]
    left = MOST_LINES_OF_A_FILE
    hunks = []
    for hunk in file.hunks:
        lines = [line.kind + line.text for line in hunk.lines[: max(0, left)]]
        left -= len(hunk.lines)
        hunks.append(
            {
                "start": hunk.old_start,
                "heading": hunk.heading,
                "mark": _mark(hunk, theirs, conflict),
                "lines": lines,
                "cut": len(hunk.lines) - len(lines),
            }
        )
    return {"new": file.is_new, "binary": file.is_binary, "lines": file.changed_lines, "hunks": hunks}


def _mark(hunk: Hunk, theirs: Sequence[Change], conflict: bool) -> str:
    meets = any(_meet(mine, other) for mine in changes_of(hunk) for other in theirs)
    return "" if not meets else "conflict" if conflict else "overlap"


def _meet(one: Change, other: Change) -> bool:
    """Touching counts: git takes changes of neighbouring lines for a conflict too. The same change is none."""
    if one.old_start > other.old_end or other.old_start > one.old_end:
        return False
    same = (one.old_start, one.old_end, one.added) == (other.old_start, other.old_end, other.added)
    return not same
