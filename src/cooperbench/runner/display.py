"""What a person sees while an experiment runs: plain lines, or a live display in a terminal.

rich is imported only where there is a terminal to draw on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TextIO

from cooperbench.text import dollars_text, duration_text, plural, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from cooperbench.models import Message, Pair, Seat
    from cooperbench.runner.experiment import Arm

_MESSAGE_CHARACTERS = 160
_MOST_RUNNING = 12
_MOST_MESSAGES = 8


def agent_title(agent_id: str) -> str:
    """`agent1` → `Agent 1`."""
    number = agent_id.removeprefix("agent")
    return f"Agent {number}" if number.isdigit() else agent_id.capitalize()


def message_line(message: Message) -> str:
    """As in the documentation: `Agent 1 → Agent 2: "…"`."""
    text = printable(message.text)
    if len(text) > _MESSAGE_CHARACTERS:
        text = text[: _MESSAGE_CHARACTERS - 1] + "…"
    return f'{agent_title(message.sender)} → {agent_title(message.recipient)}: "{text}"'


def verdict_text(evaluation: dict[str, Any]) -> str:
    """One line on what the tests said."""
    if evaluation.get("status") == "no_reference":
        return f"– no reference: {printable(str(evaluation.get('error')))}"
    if evaluation.get("status") != "completed":
        return f"! evaluation error: {printable(str(evaluation.get('error')))}"
    merged = evaluation["merged"]
    mark = "✓ passed" if evaluation["overall_success"] else "✗ failed"
    agents = [name for name in evaluation if name == "solo" or name.removeprefix("agent").isdigit()]
    alone = [name for name in agents if not evaluation[name]["success"]]
    details = [f"{agent_title(name)} failed alone" for name in alone]
    if merged["merge_status"] == "conflict":
        details.append("merge conflict" + (", union merge" if merged["strategy"] == "union" else ""))
    if not merged["success"] and not alone and merged["strategy"] != "none":
        details.append("fails together")
    return f"{mark}: {', '.join(details)}" if details else mark


def header_lines(arms: Sequence[Arm]) -> list[str]:
    config, pairs = arms[0].config, arms[0].pairs
    if config.evaluate_only:
        to_judge = sum(len(arm.to_evaluate) for arm in arms)
        lines = [f"Evaluating {plural(to_judge, 'pair')} of {config.run_name} on {config.backend}"]
        if judged := sum(len(arm.pairs) for arm in arms) - to_judge:
            lines.append(f"{judged} more are evaluated already (--force judges them again)")
        return lines
    sizes = sorted({len(pair.feature_ids) for pair in pairs} or {2})
    agents = "–".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))) + " agents"
    place = config.subset or config.repo or config.dataset_dir.name
    tasks = plural(len({pair.task for pair in pairs}), "task")
    lines = [
        f"Starting experiment: {config.run_name.partition('/')[0]}",
        f"Setting: {config.setting} ({'1 agent' if config.setting == 'solo' else agents} per task)",
        *([f"Model: {printable(config.model_name)}"] if config.model_name else ()),
        f"Agent: {printable(config.agent)}",
        f"Backend: {config.backend}",
        f"Found {plural(len(pairs), 'pair')} of {tasks} in {place}",
    ]
    if config.executor == "local":
        lines.append(f"Running with concurrency={config.concurrency}")
    else:
        lines.append(f"Running on {config.executor} with workers={config.most_jobs}")
    if len(arms) > 1:
        names = ", ".join(arm.config.run_name.partition("/")[2] for arm in arms)
        lines.append(f"{plural(len(arms), 'arm')}: {names}")
    if finished := sum(len(arm.pairs) - len(arm.to_run) for arm in arms):
        lines.append(f"{finished} of them are finished already (--force runs them again)")
    return lines


class Display:
    """Told what happens, from any thread. This one prints lines, for logs and pipes; each names its pair."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()
        self._numbers: dict[Pair, int] = {}
        self._total = 0
        self._started: dict[Pair, float] = {}
        self._outages: set[tuple[Pair, str]] = set()

    def begin(self, lines: Sequence[str], *, to_run: int, to_judge: int) -> None:
        """What this is about, and how many pairs are to be run and to be judged."""
        self._total = max(to_run, to_judge)
        for line in lines:
            self.note(line)
        self._print("")

    def note(self, text: str) -> None:
        self._print(f"[CooperBench] {printable(text)}")

    def progress(self, what: str, label: str, done: int, total: int) -> None:
        """A task is `Prepared`, a `Reference` run has ended; how many of how many have."""
        self.note(f"{what} {done}/{total}: {label}")

    def pair_started(self, pair: Pair, seats: Sequence[Seat]) -> None:
        self._started[pair] = time.monotonic()
        features = "features_" + "_".join(map(str, pair.feature_ids))
        self._tell(pair, pair.label.replace(pair.name, features))
        for seat in seats:
            what = "feature" if len(seat.features) == 1 else "features"
            numbers = ", ".join(map(str, seat.feature_ids))
            self._tell(pair, f"  {agent_title(seat.agent_id)}: Implementing {what} {numbers}...")

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        """An agent waits for a provider that fails; without a reason: no longer."""
        with self._lock:
            known = (pair, agent_id) in self._outages
            (self._outages.add if reason else self._outages.discard)((pair, agent_id))
        if known != bool(reason):
            what = f"waits for its model: {printable(reason)}" if reason else "has its model back"
            self._tell(pair, f"  {agent_title(agent_id)} {what}")

    def message(self, pair: Pair, message: Message) -> None:
        self._tell(pair, f"  {message_line(message)}")

    def pair_ended(self, pair: Pair, result: dict[str, Any]) -> None:
        took = duration_text(time.monotonic() - self._started.get(pair, time.monotonic()))
        if result.get("status") == "completed":
            self._tell(pair, f"✓ Complete in {took}")
        else:
            self._tell(pair, f"! Error after {took}: {printable(str(result.get('error')))}")

    def evaluated(self, pair: Pair, evaluation: dict[str, Any]) -> None:
        self._tell(pair, verdict_text(evaluation))

    def end(self) -> None: ...

    def _tell(self, pair: Pair, text: str) -> None:
        with self._lock:
            number = self._numbers.setdefault(pair, len(self._numbers) + 1)
        self._print(f"[Task {number}/{self._total}] {text}")

    def _print(self, line: str) -> None:
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


def make_display(stream: TextIO | None = None) -> Display:
    """A live display where somebody watches, lines elsewhere."""
    stream = stream or sys.stdout
    if stream.isatty():
        from rich.console import Console

        console = Console(file=stream)
        if not console.is_dumb_terminal:
            return LiveDisplay(console)
    return Display(stream)


class LiveDisplay(Display):
    """State under one lock; a rich Live draws it a few times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        super().__init__()
        self._console = console
        self._running: dict[Pair, float] = {}
        self._latest: dict[Pair, str] = {}
        self._waiting: dict[tuple[Pair, str], tuple[float, str]] = {}
        """For a provider: which agent, since when, and why."""
        self._messages: deque[str] = deque(maxlen=_MOST_MESSAGES)
        self._counts = {"passed": 0, "failed": 0, "errors": 0, "no reference": 0}
        self._ran = self._judged = self._to_run = self._to_judge = 0
        self._cost = 0.0
        self._began = time.monotonic()
        self._progress: dict[str, str] = {}
        """What is being prepared, or tested with golden patches."""
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def begin(self, lines: Sequence[str], *, to_run: int, to_judge: int) -> None:
        for line in lines:
            self.note(line)
        self._to_run, self._to_judge, self._began = to_run, to_judge, time.monotonic()
        self._live.start()

    def note(self, text: str) -> None:
        self._console.print(f"[CooperBench] {printable(text)}", markup=False, highlight=False)

    def progress(self, what: str, label: str, done: int, total: int) -> None:
        with self._lock:
            self._progress[what] = "" if done == total else f"{what} {done}/{total} ({printable(label)})  "

    def pair_started(self, pair: Pair, seats: Sequence[Seat]) -> None:  # noqa: ARG002  # one line a pair
        with self._lock:
            self._running[pair] = time.monotonic()

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        with self._lock:
            since, _ = self._waiting.pop((pair, agent_id), (time.monotonic(), ""))
            if reason:
                self._waiting[pair, agent_id] = since, reason

    def message(self, pair: Pair, message: Message) -> None:
        line = message_line(message)
        with self._lock:
            self._latest[pair] = line
            self._messages.append(f"{pair.label}  {line}")

    def pair_ended(self, pair: Pair, result: dict[str, Any]) -> None:
        with self._lock:
            self._running.pop(pair, None)
            self._waiting = {key: since for key, since in self._waiting.items() if key[0] != pair}
            self._ran += 1
            self._cost += float(result.get("cost") or 0.0)
            if result.get("status") != "completed":
                self._counts["errors"] += 1
                self._to_judge -= 1

    def evaluated(self, pair: Pair, evaluation: dict[str, Any]) -> None:
        with self._lock:
            self._latest.pop(pair, None)
            self._judged += 1
            passed = "passed" if evaluation.get("overall_success") else "failed"
            counted = {"completed": passed, "no_reference": "no reference"}
            self._counts[counted.get(evaluation["status"], "errors")] += 1

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
            for (pair, agent_id), (since, reason) in list(self._waiting.items())[:_MOST_RUNNING]:
                waits = f"{agent_title(agent_id)} waits for its model since {duration_text(now - since)}: {reason}"
                table.add_row(
                    Text("!", style="red"), Text(pair.label), "", Text(printable(waits), no_wrap=True)
                )
            hidden = len(self._running) - _MOST_RUNNING
            if hidden > 0:
                table.add_row("", Text(f"… {hidden} more", style="dim"), "", "")
            messages = [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in self._messages]
            return Group(Text(self._status(now)), table, Text(), *messages)

    def _status(self, now: float) -> str:
        done, total = self._ran + self._judged, self._to_run + max(self._to_judge, self._judged)
        elapsed = now - self._began
        left = f", about {duration_text(elapsed / done * (total - done))} left" if 0 < done < total else ""
        counts = ", ".join(
            f"{number} {name}" for name, number in self._counts.items() if number or name != "no reference"
        )
        ran = f"pairs {self._ran}/{self._to_run}" if self._to_run else f"evaluated {self._judged}"
        progress = "".join(self._progress.values())
        return f"{ran}  {counts}  {dollars_text(self._cost)}  {duration_text(elapsed)}{left}  {progress}"
