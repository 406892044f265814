"""What a person sees while an experiment runs: plain lines, or a live display in a terminal."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

from cooperbench.text import dollars_text, duration_text, plural, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from cooperbench.models import AgentSlot, Message, Pair
    from cooperbench.runner.experiment import Arm

_MESSAGE_CHARACTERS = 160
_MAX_RUNNING = 12


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
        details.append(
            "merge conflict" + (", union merge" if merged["strategy"] == "union" else "")
        )
    if not merged["success"] and not alone and merged["strategy"] != "none":
        details.append("fails together")
    return f"{mark}: {', '.join(details)}" if details else mark


def header_lines(arms: Sequence[Arm]) -> list[str]:
    config, pairs = arms[0].config, arms[0].pairs
    if config.evaluate_only:
        to_evaluate = sum(len(arm.to_evaluate) for arm in arms)
        lines = [
            f"Evaluating {plural(to_evaluate, 'pair')} of {config.run_name} on {config.backend}"
        ]
        if evaluated := sum(len(arm.pairs) for arm in arms) - to_evaluate:
            lines.append(f"{evaluated} more are evaluated already (--force judges them again)")
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
        lines.append(f"Running on {config.executor} with workers={config.max_jobs}")
    if len(arms) > 1:
        names = ", ".join(arm.config.run_name.partition("/")[2] for arm in arms)
        lines.append(f"{plural(len(arms), 'arm')}: {names}")
    if finished := sum(len(arm.pairs) - len(arm.to_run) for arm in arms):
        lines.append(f"{finished} of them are finished already (--force runs them again)")
    return lines


class Display:
    """Told what happens, from any thread; prints lines. Each names its pair, since pairs run side by side."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.RLock()
        self._numbers: dict[Pair, int] = {}
        self._running: dict[Pair, float] = {}
        """Since when."""
        self._waiting: dict[tuple[Pair, str], tuple[float, str]] = {}
        """For a provider that fails: which agent, since when, and why."""
        self._counts = {"passed": 0, "failed": 0, "errors": 0, "no reference": 0}
        self._ran = self._evaluated = self._to_run = self._to_evaluate = 0
        self._cost = 0.0
        self._began = time.monotonic()

    def begin(self, lines: Sequence[str], *, to_run: int, to_evaluate: int) -> None:
        """What this is about, and how many pairs are to be run and to be judged."""
        self._to_run, self._to_evaluate, self._began = to_run, to_evaluate, time.monotonic()
        for line in lines:
            self.note(line)
        self._print("")

    def note(self, text: str) -> None:
        self._print(f"[CooperBench] {printable(text)}")

    def progress(self, what: str, label: str, done: int, total: int) -> None:
        """A task is `Prepared`, a `Reference` run has ended; how many of how many have."""
        self.note(f"{what} {done}/{total}: {label}")

    def pair_started(self, pair: Pair, slots: Sequence[AgentSlot]) -> None:
        with self._lock:
            self._running[pair] = time.monotonic()
        features = "features_" + "_".join(map(str, pair.feature_ids))
        self._tell(pair, pair.label.replace(pair.name, features))
        for slot in slots:
            what = "feature" if len(slot.features) == 1 else "features"
            numbers = ", ".join(map(str, slot.feature_ids))
            self._tell(pair, f"  {agent_title(slot.agent_id)}: Implementing {what} {numbers}...")

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        """An agent waits for a provider that fails; without a reason: no longer."""
        with self._lock:
            since, known = self._waiting.pop((pair, agent_id), (time.monotonic(), ""))
            if reason:
                self._waiting[pair, agent_id] = since, reason
        if bool(known) != bool(reason):
            what = f"waits for its model: {printable(reason)}" if reason else "has its model back"
            self._tell(pair, f"  {agent_title(agent_id)} {what}")

    def message(self, pair: Pair, message: Message) -> None:
        self._tell(pair, f"  {message_line(message)}")

    def pair_ended(self, pair: Pair, result: dict[str, Any]) -> None:
        completed = result.get("status") == "completed"
        with self._lock:
            took = duration_text(time.monotonic() - self._running.pop(pair, time.monotonic()))
            self._waiting = {key: since for key, since in self._waiting.items() if key[0] != pair}
            self._ran += 1
            self._cost += float(result.get("cost") or 0.0)
            self._counts["errors"] += not completed
            self._to_evaluate -= not completed
        error = printable(str(result.get("error")))
        self._tell(pair, f"✓ Complete in {took}" if completed else f"! Error after {took}: {error}")

    def evaluated(self, pair: Pair, evaluation: dict[str, Any]) -> None:
        passed = "passed" if evaluation.get("overall_success") else "failed"
        counted = {"completed": passed, "no_reference": "no reference"}
        with self._lock:
            self._evaluated += 1
            self._counts[counted.get(evaluation["status"], "errors")] += 1
        self._tell(pair, verdict_text(evaluation))

    def end(self) -> None: ...

    def _tell(self, pair: Pair, text: str) -> None:
        with self._lock:
            number = self._numbers.setdefault(pair, len(self._numbers) + 1)
        self._print(f"[Task {number}/{max(self._to_run, self._to_evaluate)}] {text}")

    def _print(self, line: str) -> None:
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


def make_display() -> Display:
    """A live display where somebody watches, lines elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        if not console.is_dumb_terminal:
            return LiveDisplay(console)
    return Display()


class LiveDisplay(Display):
    """The same lines, and below them how all stands, drawn a few times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        super().__init__()
        self._console = console
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=8, transient=True
        )

    def begin(self, lines: Sequence[str], *, to_run: int, to_evaluate: int) -> None:
        super().begin(lines, to_run=to_run, to_evaluate=to_evaluate)
        self._live.start()

    def end(self) -> None:
        if self._live.is_started:
            self._live.stop()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            now = time.monotonic()
            table = Table.grid(padding=(0, 2))
            for pair, started in list(self._running.items())[:_MAX_RUNNING]:
                table.add_row(
                    Text("●", style="cyan"), Text(pair.label), duration_text(now - started)
                )
            for (pair, agent_id), (since, reason) in list(self._waiting.items())[:_MAX_RUNNING]:
                waits = f"{agent_title(agent_id)} waits for its model since {duration_text(now - since)}: {reason}"
                table.add_row(
                    Text("!", style="red"), Text(pair.label), Text(printable(waits), no_wrap=True)
                )
            if (hidden := len(self._running) - _MAX_RUNNING) > 0:
                table.add_row("", Text(f"… {hidden} more", style="dim"), "")
            return Group(Text(self._status(now)), table)

    def _status(self, now: float) -> str:
        done, total = (
            self._ran + self._evaluated,
            self._to_run + max(self._to_evaluate, self._evaluated),
        )
        elapsed = now - self._began
        left = (
            f", about {duration_text(elapsed / done * (total - done))} left"
            if 0 < done < total
            else ""
        )
        counts = ", ".join(
            f"{number} {name}"
            for name, number in self._counts.items()
            if number or name != "no reference"
        )
        ran = (
            f"pairs {self._ran}/{self._to_run}" if self._to_run else f"evaluated {self._evaluated}"
        )
        return f"{ran}  {counts}  {dollars_text(self._cost)}  {duration_text(elapsed)}{left}"
