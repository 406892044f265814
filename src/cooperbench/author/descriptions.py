"""Checks of descriptions.

A description tells an agent what to build: it names everything that the hidden tests need, and it
shows neither the golden patch nor the tests. `drafts` writes descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cooperbench.author.names import MissingName, missing_names
from cooperbench.diff import new_lines
from cooperbench.eval.trees import CODE_FILE
from cooperbench.models import Feature, Task
from cooperbench.storage import read_bytes
from cooperbench.text import shorten

_MIN_CODE_CHARACTERS = 16
_MAX_SHOWN_CHARACTERS = 60
_MAX_REPEATED_LINES = 3
"""Repeated lines that are reported for each patch."""
_CODE = re.compile(r"[=(\[{;]|^(?:return|raise|yield|await|break)\b")
_NOT_TELLING = re.compile(
    r"""
    (?: [#@"'*] | // | /\* | -- | >>>       # comments, decorators, documentation
      | (?: (?:async|export|public|static|abstract|pub(?:\(\w+\))?) \s )*
        (?: def | class | func | fn | function | interface | type | struct | enum | trait ) \s
      | (?: from | import | use | package ) \s
    )
    """,
    re.VERBOSE,
)
"""Beginnings of lines that a description may repeat: the interface, and prose."""
_PHRASES = {
    "call": "tests call `{name}`",
    "import": "tests import `{name}`",
    "argument": "tests pass or read `{name}` by its name",
    "use": "tests use `{name}`",
    "text": "tests expect the text {name!r}, which only the golden patch has",
}


def check_description(task: Task, feature: Feature) -> list[str]:
    """Return what is wrong with a feature's description, a line for each finding.

    Whether a person has accepted it is in author.json.
    """
    assert feature.task == task
    text = _read(feature.description).decode("utf-8", "replace")
    return find_problems(text, _read(feature.patch), _read(feature.tests))


def find_problems(text: str, golden: bytes, tests: bytes) -> list[str]:
    """Return what is wrong with a description of these patches."""
    if not text.strip():
        return ["feature.md is empty"]
    problems = [
        f"{describe_use(missing)}; the description never names it"
        for missing in missing_names(golden, tests, text)
    ]
    problems += _repeated_lines(text, golden, "the golden patch")
    problems += _repeated_lines(text, tests, "the hidden tests")
    return problems


def describe_use(missing: MissingName) -> str:
    """Return how tests use a name: "tests call `Context.tell`"."""
    return _PHRASES[missing.kind].format(name=missing.name.label)


def _repeated_lines(text: str, patch: bytes, source: str) -> Iterator[str]:
    """Yield a finding for each line of a patch's code that a description shows."""
    described = [" ".join(line.split()) for line in text.splitlines()]
    reported = 0
    for code in _telling_lines(patch):
        number = next((index for index, line in enumerate(described, 1) if code in line), None)
        if number is None:
            continue
        excerpt = shorten(code, _MAX_SHOWN_CHARACTERS)
        yield f"line {number} of feature.md is code of {source}: {excerpt}"
        reported += 1
        if reported == _MAX_REPEATED_LINES:
            return


def without_code_of(text: str, *patches: bytes) -> str:
    """Return a text without the lines that show code of these patches."""
    codes: list[str] = []
    for patch in patches:
        codes += _telling_lines(patch)
    kept = []
    for line in text.splitlines():
        plain = " ".join(line.split())
        if not any(code in plain for code in codes):
            kept.append(line)
    return "\n".join(kept)


def _telling_lines(patch: bytes) -> list[str]:
    """Return the added lines of a patch that say how something is done, each once."""
    lines = []
    for line in new_lines(patch):
        if not line.added or not CODE_FILE.search(line.path):
            continue
        text = " ".join(line.content.decode("utf-8", "replace").split())
        is_code = len(text) >= _MIN_CODE_CHARACTERS and _CODE.search(text)
        if is_code and not _NOT_TELLING.match(text):
            lines.append(text)
    return list(dict.fromkeys(lines))


def _read(path: Path) -> bytes:
    """Return the content of a file of a feature; empty if it cannot be read."""
    return read_bytes(path, follow_link=True) or b""
