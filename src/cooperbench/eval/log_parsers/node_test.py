"""node:test, in both of its formats: `spec` with check marks, and TAP."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cooperbench.eval.log_parsers.base import (
    MAX_NAME_LENGTH,
    LogParser,
    Outcome,
    compile_lines,
    summary_parser,
)

SAMPLE = """\
▶ area
  ✔ of a square (0.5ms)
  ✖ of a circle (0.7ms)
✖ area (2.1ms)
﹣ of a triangle (0.1ms) # SKIP
ℹ tests 3
ℹ suites 1
ℹ pass 1
ℹ fail 1
ℹ cancelled 0
ℹ skipped 1
ℹ todo 0
ℹ duration_ms 45.2

✖ failing tests:

test at area.test.js:7:3
✖ of a circle (0.7ms)
"""
SAMPLE_TAP = """\
TAP version 13
# Subtest: area
    # Subtest: of a square
    ok 1 - of a square
    # Subtest: of a circle
    not ok 2 - of a circle
not ok 1 - area
# Subtest: of a triangle
ok 2 - of a triangle # SKIP
1..2
# tests 3
# suites 1
# pass 1
# fail 1
# cancelled 0
# skipped 1
# todo 0
# duration_ms 45.2
"""

_NOTE = r"\n (?: \#[ ] | ℹ[ ] )"
# In TAP everything that a test prints becomes a comment. So only the whole block is a summary.
_SUMMARY = compile_lines(
    rf"""
    (?: \#[ ] | ℹ[ ] ) tests[ ] [0-9]+
    (?: {_NOTE} suites[ ] [0-9]+ )?
    (?P<tests>
      {_NOTE} pass[ ] [0-9]{{1,9}}
      {_NOTE} fail[ ] [0-9]{{1,9}}
      {_NOTE} cancelled[ ] [0-9]{{1,9}}
      {_NOTE} skipped[ ] [0-9]{{1,9}}
      {_NOTE} todo[ ] [0-9]{{1,9}}
    )
    {_NOTE} duration_ms[ ] [0-9.]+
    """
)
_LINE = compile_lines(
    rf"""
    # The list at the end repeats failures without their suites. Matched here to leave it out.
    test[ ]at[ ] [^\n]+ \n ✖[ ] [^\n]+

    # In `spec`, something that code printed without a newline may stand before it. It is atomic,
    # because trying every mark of a line takes quadratic time.
    | (?> [^\n]*? [^ \n] (?= [ ]{{0,32}} [▶✔✖﹣] [ ] ) )? (?P<indent> [ ]{{0,32}} )
      (?:
        # A suite, or a test with subtests, before what it contains.
        (?: ▶ | (?P<subtest> \#[ ]Subtest: ) ) [ ] (?P<group> [^\n]{{1,{MAX_NAME_LENGTH}}} )

        # spec: `✔ name (0.5ms)`, with `# TODO` behind it if it may fail; `﹣ name # SKIP`
        | (?P<mark> [✔✖] ) [ ] (?P<spec> [^\n]+ ) [ ]\( [0-9.]+ ms\) (?P<todo> [ ]\#[ ] [^\n]* )?
        | ﹣[ ] (?P<skipped> [^\n]+? ) (?: [ ]\( [0-9.]+ ms\) )? (?: [ ]\#[ ] [^\n]* )?

        # TAP: `not ok 2 - name # TODO`
        | (?P<not> not[ ] )? ok[ ] [0-9]+ [ ]-[ ] (?P<tap> [^\n]+? )
          (?P<directive> [ ]\#[ ] (?: SKIP | TODO ) \b [^\n]* )?
      )
    """
)


def parse_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Yield `suite > test` and outcome; suites have outcomes too.

    Other tools print such lines as well, so nothing is read from a log without a summary.
    """
    if not _SUMMARY.search(text):
        return
    groups: list[str] = []
    for match in _LINE.finditer(text):
        if match["indent"] is None:
            continue
        is_tap = bool(match["subtest"] or match["tap"])
        depth = len(match["indent"]) // (4 if is_tap else 2)
        groups = groups[:depth]
        if match["group"]:
            groups.append(match["group"])
            continue
        name = " > ".join([*groups, match["spec"] or match["skipped"] or match["tap"]])
        if is_tap:
            name = name.replace(r"\#", "#").replace("\\\\", "\\")
        yield name, _outcome_of(match)


def _outcome_of(match: re.Match[str]) -> Outcome:
    if match["skipped"] or match["todo"] or match["directive"]:
        return "skipped"
    if match["not"] or match["mark"] == "✖":
        return "failed"
    return "passed"


PARSER = LogParser(
    name="node",
    parse_counts=summary_parser(_SUMMARY),
    parse_outcomes=parse_outcomes,
    id_prefix=".* > ",
)
