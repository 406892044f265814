"""The moving picture for terminals: what runs, what is said, how it stands, how long it will take.

rich is imported only here, and only when there is a terminal to draw on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TextIO

from cooperbench.runner.display import PlainDisplay, message_line
from cooperbench.text import duration_text, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from cooperbench.models import Message, Pair
    from cooperbench.runner.display import Display

_MOST_RUNNING = 12
_MOST_MESSAGES = 8


def make_display(stream: TextIO | None = None) -> Display:
    """A live display where somebody watches, lines elsewhere."""
    stream = stream or sys.stdout
    if stream.isatty():
        from rich.console import Console

        console = Console(file=stream)
        if not console.is_dumb_terminal:
            return LiveDisplay(console)
    return PlainDisplay(stream)


class LiveDisplay:
    """State under one lock; a rich Live draws it a few times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._lock = threading.Lock()
        self._running: dict[Pair, float] = {}
        self._latest: dict[Pair, str] = {}
        self._messages: deque[str] = deque(maxlen=_MOST_MESSAGES)
        self._counts = {"passed": 0, "failed": 0, "errors": 0, "no reference": 0}
        self._ran = 0
        self._to_run = 0
        self._to_judge = 0
        self._judged = 0
        self._cost = 0.0
        self._started = time.monotonic()
        self._preparing = ""
        self._referencing = ""
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def begin(self, lines: Sequence[str], *, to_run: int, to_judge: int) -> None:
        for line in lines:
            self.note(line)
        with self._lock:
            self._to_run = to_run
            self._to_judge = to_judge
            self._started = time.monotonic()
        self._live.start()

    def note(self, text: str) -> None:
        self._console.print(f"[CooperBench] {printable(text)}", markup=False, highlight=False)

    def prepared(self, label: str, done: int, total: int) -> None:
        with self._lock:
            self._preparing = "" if done == total else f"preparing tasks: {done}/{total} ({printable(label)})"

    def referenced(self, label: str, done: int, total: int) -> None:
        with self._lock:
            self._referencing = "" if done == total else f"  Reference {done}/{total} ({printable(label)})"

    def pair_started(self, pair: Pair) -> None:
        with self._lock:
            self._running[pair] = time.monotonic()

    def message(self, pair: Pair, message: Message) -> None:
        line = message_line(message)
        with self._lock:
            self._latest[pair] = line
            self._messages.append(f"{pair.label}  {line}")

    def pair_ended(self, pair: Pair, result: dict[str, Any]) -> None:
        with self._lock:
            self._running.pop(pair, None)
            self._ran += 1
            self._cost += float(result.get("cost") or 0.0)
            if result.get("status") != "completed":
                self._counts["errors"] += 1
                self._to_judge -= 1

    def evaluated(self, pair: Pair, evaluation: dict[str, Any]) -> None:
        with self._lock:
            self._latest.pop(pair, None)
            self._judged += 1
            if evaluation.get("status") == "no_reference":
                self._counts["no reference"] += 1
            elif evaluation.get("status") != "completed":
                self._counts["errors"] += 1
            else:
                self._counts["passed" if evaluation["overall_success"] else "failed"] += 1

    def end(self) -> None:
        if self._live.is_started:
            self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            now = time.monotonic()
            table = Table.grid(padding=(0, 2))
            for pair, started in list(self._running.items())[:_MOST_RUNNING]:
                table.add_row(
                    Text("●", style="cyan"),
                    Text(pair.label),
                    Text(duration_text(now - started), style="dim"),
                    Text(self._latest.get(pair, ""), style="italic", overflow="ellipsis", no_wrap=True),
                )
            hidden = len(self._running) - _MOST_RUNNING
            if hidden > 0:
                table.add_row("", Text(f"… {hidden} more", style="dim"), "", "")
            messages = [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in self._messages]
            return Group(Text(self._preparing or self._status(now)), table, Text(), *messages)

    def _status(self, now: float) -> str:
        done, total = self._ran + self._judged, self._to_run + max(self._to_judge, self._judged)
        elapsed = now - self._started
        left = f", about {duration_text(elapsed / done * (total - done))} left" if 0 < done < total else ""
        counts = ", ".join(
            f"{number} {name}" for name, number in self._counts.items() if number or name != "no reference"
        )
        ran = f"pairs {self._ran}/{self._to_run}" if self._to_run else f"evaluated {self._judged}"
        return f"{ran}  {counts}  ${self._cost:.2f}  {duration_text(elapsed)}{left}{self._referencing}"
