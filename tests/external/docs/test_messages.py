"""Help pages and mistakes in calls, as `make messages` collects them for a reader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.external.docs.messages import (
    MISTAKES,
    SOURCE,
    call,
    empty_user,
    help_commands,
    texts_of,
)
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_ends_with_one_line_and_leaves_nothing(command: str, tmp_path: Path) -> None:
    with empty_user(tmp_path):
        finished = call(command)
    assert finished.status == 2, finished.stdout + finished.stderr
    assert finished.stdout == ""
    assert finished.stderr.startswith("cooperbench")
    assert finished.stderr.count("\n") == 1
    assert [path for path in tmp_path.iterdir() if path.name != "home"] == []


@pytest.mark.parametrize("command", help_commands())
def test_help_is_on_stdout_and_fits_the_terminal(command: str, tmp_path: Path) -> None:
    with empty_user(tmp_path):
        finished = call(command)
    assert finished.status == 0
    assert finished.stderr == ""
    assert max(map(len, finished.stdout.splitlines())) <= 100


def test_troubleshooting_quotes_messages_of_the_source() -> None:
    """Where a message changes, its row on the page has to change, too."""
    texts = [text for path in SOURCE.rglob("*.py") for text in texts_of(path)]
    page = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `+(.+?)`+ \| ", page, re.MULTILINE)
    assert len(quoted) > 60
    unknown = []
    for message in quoted:
        parts = [part.strip(" ;:,'") for part in message.replace("…", "{…}").split("{…}")]
        if not all(any(part in text for text in texts) for part in parts):
            unknown.append(message)
    assert unknown == []
