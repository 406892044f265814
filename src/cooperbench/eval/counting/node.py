"""node --test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cooperbench.eval.counting.base import KIND, NUMBER, Failure, Framework, Outcome, Tally, line

if TYPE_CHECKING:
    from collections.abc import Iterator

# Under TAP whatever a test prints becomes a comment too, so that only the whole block counts as a summary.
_NODE_SUMMARY = line(
    rf"(?:# |ℹ )tests {NUMBER}"
    r"(?:\n(?:# |ℹ )suites [0-9]+)?"
    + "".join(rf"\n(?:# |ℹ ){word} {NUMBER}" for word in ("pass", "fail", "cancelled", "skipped", "todo"))
    + r"\n(?:# |ℹ )duration_ms [0-9.]+"
)


def count_node(text: str) -> Tally | None:
    """The last lines of the spec and the TAP reporter. Cancelled tests count as failed, `todo` as skipped."""
    blocks = [[int(number) for number in block.groups()] for block in _NODE_SUMMARY.finditer(text)]
    if not blocks:
        return None
    _, passed, failed, cancelled, skipped, todo = (sum(column) for column in zip(*blocks, strict=True))
    return Tally(passed, failed + cancelled, skipped + todo)


_TAP_FAILURE = line(r" *not ok [0-9]+ - ([^\n]+)")
_TAP_KIND = re.compile(r"\n *name: '(\w+)'\n")
_TAP_END = line(r" *\.\.\.")
_SPEC_FAILURE = line(r" *✖ ([^\n]+) \([0-9.]+ms\)")
_SPEC_KIND = re.compile(rf"\n[ \t]+{KIND}(?: \[[A-Za-z_]+\])?:", re.ASCII)


def first_node_failure(text: str) -> Failure | None:
    """Subtests are printed before the test that they are part of, so that the first is what really failed."""
    for found in _TAP_FAILURE.finditer(text):
        if not re.search(r" # (?:TODO|SKIP)\b", found[1]):
            end = _TAP_END.search(text, found.end())
            kind = _TAP_KIND.search(text, found.end(), end.end() if end else found.end())
            return Failure(found.start(), kind[1] if kind else None, found[1])
    failures = list(_SPEC_FAILURE.finditer(text))
    for found in failures:
        kind = _SPEC_KIND.match(text, found.end())
        if kind:
            return Failure(found.start(), kind[1], found[1])
    return Failure(failures[0].start(), None, failures[0][1]) if failures else None


_NODE_TEST = line(
    r"test at [^\n]+\n✖ [^\n]+"
    r"|(?P<indent> {0,32})(?:"
    r"(?:▶|(?P<subtest># Subtest:)) (?P<group>[^\n]{1,200})"
    r"|(?P<mark>[✔✖]) (?P<spec>[^\n]+) \([0-9.]+ms\)(?P<todo> # [^\n]*)?"
    r"|﹣ (?P<skipped>[^\n]+?)(?: \([0-9.]+ms\))?(?: # [^\n]*)?"
    r"|(?P<not>not )?ok [0-9]+ - (?P<tap>[^\n]+?)(?P<directive> # (?:SKIP|TODO)\b[^\n]*)?"
    r")"
)


def node_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`suite > name`; suites are named too. Other tools print such lines as well: only with a summary.

    The list at the end of the spec reporter repeats the failures without their suites, and is left out.
    """
    if not _NODE_SUMMARY.search(text):
        return
    above: list[str] = []
    for match in _NODE_TEST.finditer(text):
        if match["indent"] is None:
            continue
        above = above[: len(match["indent"]) // (4 if match["subtest"] or match["tap"] else 2)]
        if match["group"]:
            above.append(match["group"])
        elif match["tap"]:
            name = " > ".join((*above, match["tap"])).replace(r"\#", "#").replace("\\\\", "\\")
            yield name, "skipped" if match["directive"] else "failed" if match["not"] else "passed"
        elif match["skipped"]:
            yield " > ".join((*above, match["skipped"])), "skipped"
        else:
            name = " > ".join((*above, match["spec"]))
            yield name, "skipped" if match["todo"] else "passed" if match["mark"] == "✔" else "failed"


FRAMEWORKS = (Framework("node", count_node, first_node_failure, node_outcomes),)
