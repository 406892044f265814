"""What a report of the public dataset's size costs: 652 pairs, 100 steps an agent. Prints a table; run it by hand.

.venv/bin/python benchmarks/report.py

The browser's part is left out where there is no chromium.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.report.factory import Style, layout, share, write_run

STEPS = 100
OBSERVATION_CHARACTERS = 2_000
_BUILD = """
import sys
from pathlib import Path
from cooperbench.report.loading import load_run
from cooperbench.report.page.build import build_page
build_page([load_run(Path(sys.argv[1]), "big")], Path(sys.argv[2]), split=sys.argv[3] == "split")
"""
_MEASURE = """
import resource, subprocess, sys, time
from pathlib import Path

def memory(process):
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        own = int(fields.get("VmRSS", "0 kB").split()[0])
        tasks = Path(f"/proc/{process}/task").glob("*/children")
        return own + sum(memory(int(child)) for task in tasks for child in task.read_text().split())
    except OSError:
        return 0

started = time.perf_counter()
process = subprocess.Popen(sys.argv[1:])
peak = 0
while process.poll() is None:
    peak = max(peak, memory(process.pid))
    time.sleep(0.1)
assert process.returncode == 0
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - started, used.ru_utime + used.ru_stime, peak / 1024)
"""


def write_logs(logs: Path) -> float:
    """A run whose commands print different things, as real ones do: what compresses too well says nothing."""
    kinds = share({"passed": 0.3, "conflict": 0.3, "capability": 0.25, "integration": 0.15})
    write_run(logs, "big", layout(12, 30, 652), kinds, style=Style(steps=STEPS))
    library = Path(sysconfig.get_path("stdlib"))
    text = "".join(path.read_text(errors="replace") for path in sorted(library.glob("*.py")))
    source = random.Random(1)
    for path in logs.rglob("trajectory.json"):
        trajectory = json.loads(path.read_bytes())
        for step in trajectory["steps"]:
            if step["action"] == "run":
                place = source.randrange(len(text) - OBSERVATION_CHARACTERS)
                step["observation"] = text[place : place + OBSERVATION_CHARACTERS]
        path.write_text(json.dumps(trajectory))
    return sum(path.stat().st_size for path in logs.rglob("*") if path.is_file()) / 1e6


def build(logs: Path, target: Path, how: str) -> tuple[float, float, float]:
    """Seconds, seconds of processors, and megabytes at the peak, of a process of its own and those that it starts."""
    words = [
        sys.executable,
        "-c",
        _MEASURE,
        sys.executable,
        "-c",
        _BUILD,
        str(logs),
        str(target),
        how,
    ]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    seconds, processor_seconds, megabytes = map(float, done.stdout.split())
    return seconds, processor_seconds, megabytes


def opened(target: Path) -> list[tuple[str, float]]:
    """Milliseconds in a browser: until something is seen, until the table is there, until a pair is."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return []
    from tests.support.report.browser import Browser

    browser = Browser()
    try:
        started = time.perf_counter()
        browser.open(target)
        table = time.perf_counter() - started
        browser.until(lambda: browser.ask("return performance.getEntriesByType('paint').length"))
        paint = browser.ask(
            "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        browser.until(lambda: browser.ask("return document.readyState === 'complete'"))
        started = time.perf_counter()
        browser.ask("document.querySelector('.pairs tbody a').click()")
        browser.until(lambda: browser.count(".lanes"))
        pair = time.perf_counter() - started
        return [
            ("first paint", paint),
            ("table is there", 1000 * table),
            ("a pair opens", 1000 * pair),
        ]
    finally:
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        print(f"652 pairs, {STEPS} steps an agent: {write_logs(root / 'logs'):.0f} MB of logs\n")
        print(
            f"{'report':<10}{'build s':>9}{'CPU s':>9}{'peak MB':>9}{'page MB':>9}  target: 20 s, 500 MB"
        )
        for how in ("one file", "split"):
            target = root / how.replace(" ", "_") / "report.html"
            seconds, processor_seconds, megabytes = build(root / "logs", target, how)
            page = target.stat().st_size / 1e6
            print(f"{how:<10}{seconds:>9.1f}{processor_seconds:>9.1f}{megabytes:>9.0f}{page:>9.1f}")
            for what, milliseconds in opened(target):
                print(f"  {what:<26}{milliseconds:>8.0f} ms")


if __name__ == "__main__":
    main()
