"""How large the code is: lines and files by package, and of a pair's way: python benchmarks/size.py

A pair's way are the files in which a function runs while one pair goes from `run` to eval.json, traced here with the
agent `oracle`: without the command line, the display, the report and the backend. Its core are those in the packages
that are about pairs.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cooperbench
from cooperbench import run

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(cooperbench.__file__).parent
AIMS = {"in all": (30_000, 170), "its core": (6_500, 40)}
"""In all it was 25,000 before command-line agents, teams, clusters and the defences of verdicts."""
CORE = ("runner/", "team/", "eval/", "sandbox/")
NOT_ON_THE_WAY = ("cli/", "report/", "backends/", "runner/display.py")
_FUNCTION = 1
"""CO_OPTIMIZED: set for functions, not for modules and classes."""


def count(files: set[Path]) -> tuple[int, int]:
    return sum(len(path.read_text("utf-8").splitlines()) for path in files), len(files)


def show(name: str, files: set[Path]) -> None:
    lines, number = count(files)
    aim = f"   at most {AIMS[name][0]:,} in {AIMS[name][1]}" if name in AIMS else ""
    print(f"{name:<16} {lines:>7,} lines in {number:>3} files{aim}")


def pairs_way() -> set[Path]:
    """Run one pair of the demo and see whose functions are called."""
    seen: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & _FUNCTION:
            seen[frame.f_code.co_filename] += 1

    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        os.environ["COOPERBENCH_CACHE_DIR"] = f"{scratch}/cache"
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            run(
                "size", repo="stencil_task", features=[1, 2], agent="oracle", backend="local",
                dataset_dir="demo", logs_dir=f"{scratch}/logs",
            )  # fmt: skip
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    paths = {Path(name) for name in seen if Path(name).is_relative_to(ROOT)}
    return {path for path in paths if not str(path.relative_to(ROOT)).startswith(NOT_ON_THE_WAY)}


def main() -> None:
    files = {path for path in ROOT.rglob("*.py") if "demo" not in path.relative_to(ROOT).parts[:-1]}
    packages: dict[str, set[Path]] = {}
    for path in files:
        parts = path.relative_to(ROOT).parts
        packages.setdefault(parts[0] if len(parts) > 1 else "(top)", set()).add(path)
    for name in sorted(packages):
        show(name, packages[name])
    show("in all", files)
    way = pairs_way()
    show("a pair's way", way)
    show("its core", {path for path in way if str(path.relative_to(ROOT)).startswith(CORE)})
    longest = max(files, key=lambda path: count({path})[0])
    print(
        f"the longest file: {longest.relative_to(ROOT)}, {count({longest})[0]} lines   at most 450"
    )


if __name__ == "__main__":
    main()
