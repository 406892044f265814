"""Claims against diffs: was a word kept, broken, or can it not be told?

A file is in the patch or it is not. A symbol is harder: the patch shows only the surroundings of changes, so a symbol
that is not seen in it is, as a rule, *not verifiable*. What is called broken is broken: when in doubt, it is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from cooperbench.report.coordination.phrases import words
from cooperbench.report.coordination.symbols import touched_symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cooperbench.report.coordination.changes import ChangedFile, Work
    from cooperbench.report.coordination.claims import Claim
    from cooperbench.report.coordination.symbols import TouchedSymbol

Verdict = Literal["kept", "broken", "not_verifiable", "withdrawn"]
_COMMON_NAMES = words(
    "__init__.py __main__.py conftest.py mod.rs lib.rs main.rs main.go main.py utils.py setup.py index.ts index.tsx "
    "index.js types.ts package.json README.md doc.go"
)
"""Names that many folders of a repository have: without a folder they name no file."""


@dataclass(frozen=True)
class CheckedClaim:
    """A claim and what the sender's patch says about it."""

    claim: Claim
    verdict: Verdict
    reason: str
    """One line for people."""
    patch_agent: str | None = None
    """In whose patch the evidence stands."""
    patch_path: str | None = None
    patch_line: int | None = None
    """Of the patch file, from 1."""


@dataclass(frozen=True)
class _Seen:
    """What is asked of a patch more than once."""

    work: Work
    symbols: tuple[TouchedSymbol, ...]
    known_paths: frozenset[str]
    """Every path that anybody's patch names: tells which short names are ambiguous."""


def check_claims(claims: Sequence[Claim], work: Work, known_paths: Iterable[str] = ()) -> list[CheckedClaim]:
    """The claims of one agent, in order, against its own patch."""
    seen = _Seen(work, touched_symbols(work.files), frozenset(known_paths) | work.paths)
    return [
        _withdrawn(claim, claims[place + 1 :]) or _check(claim, seen) for place, claim in enumerate(claims)
    ]


def _withdrawn(claim: Claim, later: Sequence[Claim]) -> CheckedClaim | None:
    """A word that was taken back before it was acted on is not a broken one."""
    for other in later:
        same = (other.kind, other.name) == (claim.kind, claim.name)
        if (
            same
            and other.will_touch != claim.will_touch
            and other.message > claim.message
            and claim.tense != "past"
        ):
            return CheckedClaim(claim, "withdrawn", f"taken back in message {other.message}")
    return None


def _check(claim: Claim, seen: _Seen) -> CheckedClaim:
    if not seen.work.usable:
        return CheckedClaim(claim, "not_verifiable", "there is no readable patch")
    if claim.will_touch and not seen.work.files:
        return CheckedClaim(claim, "broken", "the patch is empty", seen.work.agent_id)
    checked = _check_file(claim, seen) if claim.kind == "file" else _check_symbol(claim, seen)
    if checked.verdict == "broken" and claim.tense == "past" and not claim.will_touch:
        # "I have not touched it" speaks of a moment; afterwards it may have been touched without a word broken.
        return replace(checked, verdict="not_verifiable", reason="it may have been touched afterwards")
    return checked


def _check_file(claim: Claim, seen: _Seen) -> CheckedClaim:
    if _is_ambiguous(claim.name, seen):
        return CheckedClaim(claim, "not_verifiable", f"several files may be called {claim.name}")
    found = _file(claim.name, seen.work)
    agent_id = seen.work.agent_id
    if found is None:
        return CheckedClaim(
            claim, "broken" if claim.will_touch else "kept", "the patch does not touch it", agent_id
        )
    verdict: Verdict = "kept" if claim.will_touch else "broken"
    return CheckedClaim(claim, verdict, "the patch touches it", agent_id, found.path, found.patch_line)


def _check_symbol(claim: Claim, seen: _Seen) -> CheckedClaim:
    agent_id = seen.work.agent_id
    touched = _symbol(claim, seen)
    if touched is not None:
        if not claim.will_touch and claim.role == "add" and not touched.is_added:
            return CheckedClaim(
                claim, "not_verifiable", "the patch changes it, but does not add it", agent_id
            )
        verdict: Verdict = "kept" if claim.will_touch else "broken"
        return CheckedClaim(
            claim, verdict, "the patch changes it", agent_id, touched.path, touched.patch_line
        )
    mentioned = _mention(claim.name, seen.work)
    if mentioned is not None and claim.will_touch:
        path, line = mentioned
        return CheckedClaim(claim, "kept", "a changed line names it", agent_id, path, line)
    in_file = claim.location is not None and not _is_ambiguous(claim.location, seen)
    if in_file and claim.location is not None and _file(claim.location, seen.work) is None:
        verdict = "broken" if claim.will_touch else "kept"
        return CheckedClaim(claim, verdict, f"the patch does not touch {claim.location}", agent_id)
    if mentioned is None and claim.will_touch and claim.role == "add":
        return CheckedClaim(claim, "broken", "no changed line names it", agent_id)
    return CheckedClaim(claim, "not_verifiable", "the patch does not show whether it is changed", agent_id)


def _is_ambiguous(name: str, seen: _Seen) -> bool:
    if name in seen.known_paths and "/" in name:
        return False
    if "/" not in name and name in _COMMON_NAMES:
        return True
    return sum(_is_called(path, name) for path in seen.known_paths) > 1


def _is_called(path: str, name: str) -> bool:
    """Is a name, with some folders in front or none, this path?"""
    name = name.removeprefix("/workspace/repo/").removeprefix("./").lstrip("/")
    return path == name or path.endswith("/" + name)


def _file(name: str, work: Work) -> ChangedFile | None:
    return next((file for file in work.files if any(_is_called(path, name) for path in file.paths)), None)


def _symbol(claim: Claim, seen: _Seen) -> TouchedSymbol | None:
    """The touched symbol of that name; with a class in front only that class's, where the patch shows it."""
    wanted = claim.name.split(".")
    for symbol in seen.symbols:
        parts = symbol.name.split(".")
        if claim.location is not None and not _is_called(symbol.path, claim.location):
            continue
        if claim.will_touch or claim.role != "change":
            fits = wanted[-1] in parts
        else:
            # For a broken word the innermost name counts: a class is not touched by what is done to one method.
            fits = parts[-1] == wanted[-1]
        if fits and (len(wanted) == 1 or len(parts) == 1 or wanted[-2] in parts):
            return symbol
    return None


def _mention(name: str, work: Work) -> tuple[str, int] | None:
    """The first changed line that has the name as a word."""
    word = re.compile(rf"(?<![\w$]){re.escape(name.rpartition('.')[2])}(?![\w$])")
    for file in work.files:
        for hunk in file.hunks:
            for line in hunk.lines:
                if line.kind != " " and word.search(line.text):
                    return file.path, line.patch_line
    return None
