"""The pictures of the documentation: small, and of what the demo prints today."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from docs.pictures.make import DOCS, MAX_BYTES, appearance_seconds, shorten_output, terminal_picture

from tests.external.docs.conftest import DEMO_PAGE
from tests.external.docs.test_blocks import VARYING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.external.docs.conftest import PageRun

PICTURES = sorted([*DOCS.glob("*.svg"), *DOCS.glob("*.webp")])
LINK = re.compile(r"(?:href|src)=|url\((?!#)|@import")
"""What makes a picture load something."""


def lines_of(picture: str) -> list[str]:
    """Return the lines of a picture of a terminal, without numbers that vary."""
    lines: dict[float, str] = {}
    for text in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"):
        y = float(text.get("y") or 0)
        lines[y] = lines.get(y, "") + (text.text or "")
    return [VARYING.sub("N", lines[y].rstrip()) for y in sorted(lines)]


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_small_and_load_nothing(path: Path) -> None:
    assert path.stat().st_size <= MAX_BYTES
    if path.suffix == ".svg":
        assert LINK.findall(path.read_text()) == []


def test_lines_appear_one_after_the_other() -> None:
    lines = ["$ make demo", "first", "second", "", "table", "row", "", "deficit"]
    seconds = appearance_seconds(lines)
    assert seconds[0] == 0
    assert seconds == sorted(seconds)
    assert seconds[4] == seconds[5] < seconds[7]
    picture = terminal_picture(lines)
    names = set(re.findall(r"@keyframes (line-\d+)", picture))
    assert names == {f"line-{number}" for number in range(1, 8)}
    assert set(re.findall(r'class="demo-r\d+ (line-\d+)"', picture)) >= names - {"line-3", "line-6"}


@pytest.mark.xdist_group("tutorials")
@pytest.mark.timeout(300)
def test_the_picture_of_the_demo_is_up_to_date(run_page: Callable[[str], PageRun]) -> None:
    output = run_page(DEMO_PAGE).output
    expected = lines_of(terminal_picture(shorten_output(output)))
    # Messages of two agents arrive in any order.
    assert sorted(lines_of((DOCS / "demo.svg").read_text())) == sorted(expected)
