"""Runners that stop at the first failure, changed so that they run all tests.

Confirmation runs need the outcome of every test, although many of them must fail. All runs use the
changed runner, so that code under test cannot tell a confirmation from a real run by it.
"""

from __future__ import annotations

import re

_COMMAND = re.compile(r"(?: [^\n;&|\\] | \\\n | \\[^\n] )+", re.VERBOSE)
"""One command of a shell script, with its continuation lines."""
_TEST_PROGRAM = re.compile(
    r"""
    (?<! [a-z] )                        # also in PYTEST_ARGS
    (?: pytest | py\.test | unittest | jest | vitest | mocha | ava | npm | pnpm | yarn
      | go\s+test | cargo )
    (?! [a-z] )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_LONG_FLAG = re.compile(
    r"""
    (?<= [\s"'] ) --?
    (?: maxfail | bail | exitfirst | fail-?fast | test\.failfast )
    (?: = \S+ | \s+ [0-9]+ )?           # --bail=1, --maxfail 1
    (?= [\s"')] | $ )
    """,
    re.VERBOSE,
)
_PYTEST_SHORT_FLAGS = re.compile(r"(?<=[\s\"'])-(?P<flags>[a-zA-Z]*x[a-zA-Z]*)(?=[\s\"')]|$)")
"""`-x`, also among other flags without a value: `-xvs`."""
_SHORT_FLAG = {
    re.compile(r"\bunittest\b"): re.compile(r"(?<=\s)-f(?=\s|$)"),
    re.compile(r"\b(?:jest|mocha)\b"): re.compile(r"(?<=\s)-b(?=\s|$)"),
}
_FLAGS_WITHOUT_VALUE = frozenset("xvslqh")
_CARGO_TEST = re.compile(r"\bcargo(?:\s+\+\S+)?\s+(?:test|t|nextest\s+run)\b(?!.*--no-fail-fast)")
"""cargo does not start the other test programs after one that fails, unless it is told to."""


def change_runner(runner: bytes) -> bytes | None:
    """Return a runner that does not stop at the first failure; None if this one does not."""
    script = runner.decode("utf-8", "surrogateescape")
    changed = _COMMAND.sub(lambda command: _change_command(command[0]), script)
    if changed == script:
        return None
    return changed.encode("utf-8", "surrogateescape")


def _change_command(command: str) -> str:
    if command.lstrip().startswith("#") or not _TEST_PROGRAM.search(command):
        return command
    command = _LONG_FLAG.sub("", command)
    if re.search(r"pytest|py\.test", command, re.IGNORECASE):
        command = _PYTEST_SHORT_FLAGS.sub(_without_x, command)
    for program, flag in _SHORT_FLAG.items():
        if program.search(command):
            command = flag.sub("", command)
    return _CARGO_TEST.sub(lambda match: f"{match[0]} --no-fail-fast", command)


def _without_x(match: re.Match[str]) -> str:
    flags = match["flags"]
    if not _FLAGS_WITHOUT_VALUE.issuperset(flags):
        return match[0]
    others = flags.replace("x", "")
    return f"-{others}" if others else ""
