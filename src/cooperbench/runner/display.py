"""What a person sees while an experiment runs: plain lines, or a live display in a terminal.

rich is imported only where there is a terminal to draw on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

from cooperbench.models import Pair
from cooperbench.text import dollars_text, duration_text, plural, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from cooperbench.models import Message, Seat
    from cooperbench.runner.config import RunConfig
    from cooperbench.runner.plan import Plan

_MESSAGE_CHARACTERS = 160


class Display(Protocol):
    """Told what happens, from any thread."""

    def begin(self, lines: Sequence[str], *, to_run: int, to_judge: int) -> None:
        """What this is about, and how many pairs are to be run and to be judged."""
        ...

    def note(self, text: str) -> None: ...

    def prepared(self, label: str, done: int, total: int) -> None: ...

    def referenced(self, label: str, done: int, total: int) -> None:
        """A reference run has ended; how many of how many have."""
        ...

    def pair_started(self, pair: Pair, seats: Sequence[Seat]) -> None: ...

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        """An agent waits for a provider that fails; without a reason: no longer."""
        ...

    def message(self, pair: Pair, message: Message) -> None: ...

    def pair_ended(self, pair: Pair, result: dict[str, Any]) -> None: ...

    def evaluated(self, pair: Pair, evaluation: dict[str, Any]) -> None: ...

    def end(self) -> None: ...


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
    alone = [name for name, part in evaluation.items() if _is_agent(name) and not part["success"]]
    details = [f"{agent_title(name)} failed alone" for name in alone]
    if merged["merge_status"] == "conflict":
        details.append("merge conflict" + (", union merge" if merged["strategy"] == "union" else ""))
    if not merged["success"] and not alone and merged["strategy"] != "none":
        details.append("fails together")
    return f"{mark}: {', '.join(details)}" if details else mark


def _is_agent(name: str) -> bool:
    return name == "solo" or (name.startswith("agent") and name[5:].isdigit())


def header_lines(config: RunConfig, plan: Plan) -> list[str]:
    agents = "1 agent per task" if config.setting == "solo" else f"{_team_size(plan)} agents per task"
    tasks = len({pair.task for pair in plan.pairs})
    place = config.subset or config.repo or config.dataset_dir.name
    lines = [
        f"Starting experiment: {config.run_name}",
        f"Setting: {config.setting} ({agents})",
        f"Agent: {printable(config.agent)}",
        f"Backend: {config.backend}",
        f"Found {plural(len(plan.pairs), 'pair')} of {plural(tasks, 'task')} in {place}",
        f"Running with concurrency={config.concurrency}",
    ]
    if not config.placement.is_local:
        lines[-1] = f"Running on {config.executor} with workers={config.workers or config.concurrency}"
    if model := config.assignment.model_name:
        lines.insert(2, f"Model: {printable(model)}")
    if plan.finished:
        lines.append(f"{plan.finished} of them are finished already (--force runs them again)")
    return lines


def _team_size(plan: Plan) -> str:
    sizes = sorted({len(pair.feature_ids) for pair in plan.pairs})
    return "–".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1]))) if sizes else "2"


@dataclass(frozen=True)
class ArmPair(Pair):
    """A pair in one arm of an ablation, as displays know it."""

    arm: str = ""

    @property
    def label(self) -> str:
        return f"{super().label} ({self.arm})"


class _ArmDisplay:
    def __init__(self, display: Display, arm: str) -> None:
        self._display = display
        self._arm = arm

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._display, name)
        return lambda *args, **more: method(*map(self._of_arm, args), **more)

    def _of_arm(self, value: Any) -> Any:
        return ArmPair(value.task, value.feature_ids, self._arm) if isinstance(value, Pair) else value


def for_arm(display: Display, arm: str) -> Display:
    """The same display, told of pairs by the arm that they are in: a pair may be at work in several at once."""
    return cast("Display", _ArmDisplay(display, arm))


class PlainDisplay:
    """Lines, for logs and pipes. Each names its pair, since pairs run side by side."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()
        self._numbers: dict[Pair, int] = {}
        self._total = 0
        self._started: dict[Pair, float] = {}
        self._outages: set[tuple[Pair, str]] = set()

    def begin(self, lines: Sequence[str], *, to_run: int, to_judge: int) -> None:
        self._total = max(to_run, to_judge)
        for line in lines:
            self._print(f"[CooperBench] {printable(line)}")
        self._print("")

    def note(self, text: str) -> None:
        self._print(f"[CooperBench] {printable(text)}")

    def prepared(self, label: str, done: int, total: int) -> None:
        self._print(f"[CooperBench] Prepared {done}/{total}: {printable(label)}")

    def referenced(self, label: str, done: int, total: int) -> None:
        self._print(f"[CooperBench] Reference {done}/{total}: {printable(label)}")

    def pair_started(self, pair: Pair, seats: Sequence[Seat]) -> None:
        self._started[pair] = time.monotonic()
        features = "_".join(str(number) for number in pair.feature_ids)
        arm = f" ({pair.arm})" if isinstance(pair, ArmPair) else ""
        self._print(f"{self._tag(pair)} {pair.task.label} features_{features}{arm}")
        for seat in seats:
            what = plural(len(seat.feature_ids), "feature").partition(" ")[2]
            numbers = ", ".join(map(str, seat.feature_ids))
            self._print(f"{self._tag(pair)}   {agent_title(seat.agent_id)}: Implementing {what} {numbers}...")

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        with self._lock:
            known = (pair, agent_id) in self._outages
            (self._outages.add if reason else self._outages.discard)((pair, agent_id))
        if known != bool(reason):
            what = f"waits for its model: {printable(reason)}" if reason else "has its model back"
            self._print(f"{self._tag(pair)}   {agent_title(agent_id)} {what}")

    def message(self, pair: Pair, message: Message) -> None:
        self._print(f"{self._tag(pair)}   {message_line(message)}")

    def pair_ended(self, pair: Pair, result: dict[str, Any]) -> None:
        took = duration_text(time.monotonic() - self._started.get(pair, time.monotonic()))
        if result.get("status") == "completed":
            self._print(f"{self._tag(pair)} ✓ Complete in {took}")
        else:
            self._print(f"{self._tag(pair)} ! Error after {took}: {printable(str(result.get('error')))}")

    def evaluated(self, pair: Pair, evaluation: dict[str, Any]) -> None:
        self._print(f"{self._tag(pair)} {verdict_text(evaluation)}")

    def end(self) -> None:
        self._stream.flush()

    def _tag(self, pair: Pair) -> str:
        with self._lock:
            number = self._numbers.setdefault(pair, len(self._numbers) + 1)
        return f"[Task {number}/{self._total}]"

    def _print(self, line: str) -> None:
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


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
        self._outages: dict[tuple[Pair, str], tuple[float, str]] = {}
        """Since when, and why."""
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

    def pair_started(self, pair: Pair, seats: Sequence[Seat]) -> None:  # noqa: ARG002  # one line a pair
        with self._lock:
            self._running[pair] = time.monotonic()

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        with self._lock:
            if not reason:
                self._outages.pop((pair, agent_id), None)
            else:
                since, _ = self._outages.get((pair, agent_id), (time.monotonic(), ""))
                self._outages[pair, agent_id] = since, reason

    def message(self, pair: Pair, message: Message) -> None:
        line = message_line(message)
        with self._lock:
            self._latest[pair] = line
            self._messages.append(f"{pair.label}  {line}")

    def pair_ended(self, pair: Pair, result: dict[str, Any]) -> None:
        with self._lock:
            self._running.pop(pair, None)
            self._outages = {key: outage for key, outage in self._outages.items() if key[0] != pair}
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
            for (pair, agent_id), (since, reason) in list(self._outages.items())[:_MOST_RUNNING]:
                waits = f"{agent_title(agent_id)} waits for its model since {duration_text(now - since)}: {reason}"
                table.add_row(
                    Text("!", style="red"), Text(pair.label), "", Text(printable(waits), no_wrap=True)
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
        return (
            f"{ran}  {counts}  {dollars_text(self._cost)}  {duration_text(elapsed)}{left}{self._referencing}"
        )
