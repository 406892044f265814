"""Print how much code the lifecycle of a pair runs through: python benchmarks/lifecycle.py

One pair of the demo is run and evaluated with the agent `oracle` and traced. Counted are the files
in which a function ran, without the command line, the display, the report and the backend. The
depth is the number of our own functions on the stack: of the main thread, which schedules the work,
and of the thread that evaluates a pair.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cooperbench
from cooperbench.cli import main as cooperbench_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SOURCE = Path(cooperbench.__file__).parent
CORE = ("runner/", "team/", "eval/", "sandbox/")
NOT_COUNTED = ("cli/", "report/", "backends/", "runner/display.py")
TEST_COMMANDS = ("sandbox/base_sandbox.py:run", "sandbox/base_sandbox.py:run_last")
"""Functions that return the exit status of a test run."""
TESTS_A_PATCH = "eval/references.py:test"
SCHEDULES_PAIRS = "runner/schedule.py:run"
ARGUMENTS = ["--repo", "stencil_task", "--features", "1,2", "--dataset-dir", "demo"]
COMMAND = ["run", "--name", "size", "--agent", "oracle", "--backend", "local", *ARGUMENTS]
_CO_OPTIMIZED = 1
"""The flag of code that is a function, and not a module or a class."""


class Trace:
    """Files whose functions were called, and the deepest stack of our own functions."""

    def __init__(self) -> None:
        self.files: set[Path] = set()
        self.deepest: list[str] = []
        self.to_exit_status: list[str] = []
        """The deepest stack on which a sandbox ran hidden tests with an agent's patch."""
        self.to_scheduler: list[str] = []
        """The stack of the main thread when it starts to schedule pairs."""

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call; a callback of `sys.setprofile`."""
        if event != "call" or not frame.f_code.co_flags & _CO_OPTIMIZED:
            return
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(SOURCE):
            return
        self.files.add(path)
        stack = list(_own_functions(frame))
        if len(stack) > len(self.deepest):
            self.deepest = stack
        if stack[0] == SCHEDULES_PAIRS:
            self.to_scheduler = stack
        tests_a_patch = stack[0] in TEST_COMMANDS and TESTS_A_PATCH in stack
        if tests_a_patch and len(stack) > len(self.to_exit_status):
            self.to_exit_status = stack


def _own_functions(frame: FrameType | None) -> Iterator[str]:
    """Yield the names of our own functions on a stack, the innermost first."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            yield f"{path.relative_to(SOURCE)}:{frame.f_code.co_name}"
        frame = frame.f_back


def trace_pair() -> Trace:
    """Run one pair of the demo and trace it."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        os.environ["COOPERBENCH_CACHE_DIR"] = f"{scratch}/cache"
        threading.setprofile(trace.record)
        sys.setprofile(trace.record)
        try:
            cooperbench_command([*COMMAND, "--log-dir", f"{scratch}/logs"])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return trace


def print_size(name: str, files: set[Path]) -> None:
    """Print the lines and the number of some files."""
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
    print(f"{name:<20} {lines:>7,} lines in {len(files):>3} files")


def print_stack(name: str, stack: list[str]) -> None:
    """Print a stack, the outermost function first."""
    print(f"{name}: {len(stack)} functions of our own in one thread")
    for function in reversed(stack):
        print(f"  {function}")


def main() -> None:
    """Print the sizes and the stacks."""
    trace = trace_pair()
    files = {
        path for path in trace.files if not str(path.relative_to(SOURCE)).startswith(NOT_COUNTED)
    }
    print_size("lifecycle of a pair", files)
    core = {path for path in files if str(path.relative_to(SOURCE)).startswith(CORE)}
    print_size("its core", core)
    print_stack("main thread, down to the scheduler", trace.to_scheduler)
    print_stack("evaluation, down to the exit status of hidden tests", trace.to_exit_status)
    print_stack("deepest stack", trace.deepest)


if __name__ == "__main__":
    main()
