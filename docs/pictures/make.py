"""Make the pictures of the documentation from a run of the demo.

`make pictures` calls `python -m docs.pictures.make`. It needs chromium and chromium-driver, and
writes demo.svg, report-overview.webp and report-pair.webp to docs/. architecture.svg is drawn by
hand.
"""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text
from tests.support.report.browser import Browser

DOCS = Path(__file__).resolve().parent.parent
COLUMNS = 118
MAX_BYTES = 150_000
TALKING_PAIR = "switchyard_task/task42 features_1_2"
"""The pair whose agents are shown at work."""
FAILED_PAIR = "#/pair/coinage_task/3/f1_f2?run=demo-coop:coop"
"""The address of a failed pair on the page of the report."""
LINE_OF_TEXT = re.compile(
    r'class="(?P<style>demo-r\d+)"(?P<rest>[^>]* clip-path="url\(#demo-line-(?P<number>\d+)\)")'
)
"""A piece of text in rich's picture of a terminal, and the number of its line."""
LAST_LINES_SECONDS = 10.0
"""Seconds for which the whole picture stays before it begins again."""
FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    """Run the demo in a temporary folder and write the pictures."""
    with tempfile.TemporaryDirectory(prefix="cooperbench-pictures-") as name:
        folder = Path(name)
        output = call_cooperbench(folder, "demo")
        write(DOCS / "demo.svg", terminal_picture(shorten_output(output)).encode())
        call_cooperbench(folder, "report", "demo-coop", "demo-solo", "--html", "report.html")
        browser = Browser()
        try:
            take_screenshots(browser, folder / "report.html")
        finally:
            browser.close()


def call_cooperbench(folder: Path, *arguments: str) -> str:
    """Return what a command prints; stop if it fails."""
    done = subprocess.run(
        (sys.executable, "-m", "cooperbench", *arguments),
        cwd=folder,
        env={**os.environ, "COLUMNS": str(COLUMNS)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def shorten_output(output: str) -> list[str]:
    """Return one pair's progress, the rates of the coop run, and the deficit."""
    start = re.search(rf"^(\[Task \d+/\d+\]) {TALKING_PAIR}$", output, re.MULTILINE)
    table = re.search(r"^coop: .*?^  strict .*?$", output, re.MULTILINE | re.DOTALL)
    deficit = re.search(r"^Coordination deficit: .*$", output, re.MULTILINE)
    assert start, "the demo has other pairs now: choose another TALKING_PAIR"
    assert table, "the demo has another table now: change the pattern"
    assert deficit, "the demo prints no deficit now: change the pattern"
    coop_output = output[: table.start()]
    progress = [
        line
        for line in coop_output.splitlines()
        if line.startswith(start[1]) and " f1_f2: " not in line
    ]
    return ["$ make demo", *progress, "", *table[0].splitlines(), "", deficit[0]]


def terminal_picture(lines: list[str]) -> str:
    """Return the lines as an animated SVG of a terminal, which loads no fonts from elsewhere."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), highlight=False)
    for line in lines:
        text = Text(line)
        text.highlight_regex("✓", "green")
        text.highlight_regex("✗", "red")
        text.highlight_regex(r"^(\$ make demo|Coordination deficit: .*)", "bold")
        console.print(text, no_wrap=True, overflow="ellipsis")
    picture = console.export_svg(title="CooperBench", unique_id="demo")
    picture = FONT_FACE.sub("", picture).replace("Fira Code", "DejaVu Sans Mono")
    return animate(picture, appearance_seconds(lines))


def appearance_seconds(lines: list[str]) -> list[float]:
    """Return when each line appears: progress line by line, the results at once."""
    seconds = []
    now = 0.0
    is_progress = True
    for line in lines:
        seconds.append(now)
        if not line and is_progress:
            is_progress = False
            now += 1.0
        elif is_progress:
            now += 0.8
    seconds[-1] += 1.5
    return seconds


def animate(picture: str, seconds: list[float]) -> str:
    """Let the lines of a terminal's picture appear one after the other, again and again.

    Where animations are off or unknown, all lines are there.
    """
    duration = seconds[-1] + LAST_LINES_SECONDS
    keyframes, animations = [], []
    for number, start in enumerate(seconds):
        if start:
            percent = 100 * start / duration
            name = f"line-{number}"
            steps = f"0% {{ visibility: hidden }} {percent:.1f}% {{ visibility: visible }}"
            keyframes.append(f"@keyframes {name} {{ {steps} }}")
            animations.append(f".{name} {{ animation: {name} {duration:.1f}s step-end infinite }}")
    motion = "@media (prefers-reduced-motion: no-preference) {"
    style = "\n".join([*keyframes, motion, *animations, "}"])
    picture = LINE_OF_TEXT.sub(r'class="\g<style> line-\g<number>"\g<rest>', picture)
    return picture.replace("</style>", f"{style}\n    </style>", 1)


def take_screenshots(browser: Browser, report: Path) -> None:
    """Take pictures of the first page of a report and of a failed pair."""
    browser.look(width=1280, height=1100)
    browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    browser.open(report)
    write(DOCS / "report-overview.webp", screenshot(browser))
    browser.open(report, FAILED_PAIR)
    browser.until(lambda: browser.count("svg") > 0)
    write(DOCS / "report-pair.webp", screenshot(browser))


def screenshot(browser: Browser) -> bytes:
    """Return what the browser shows, as WebP."""
    options = {"format": "webp", "quality": 80}
    answer = browser.driver.execute_cdp_cmd("Page.captureScreenshot", options)
    return base64.b64decode(answer["data"])


def write(path: Path, content: bytes) -> None:
    """Write a picture, unless it is too large for a repository."""
    if len(content) > MAX_BYTES:
        raise SystemExit(f"{path.name} has {len(content):,} bytes; at most {MAX_BYTES:,}")
    path.write_bytes(content)
    print(f"{path.name}: {len(content):,} bytes")  # noqa: T201  # what the command is for


if __name__ == "__main__":
    main()
