"""The output of a run: plain lines, and in a terminal a live display below them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from cooperbench.models import SHARED, agent_slots
from cooperbench.records.evaluation import Evaluation, EvaluationError
from cooperbench.records.result import AgentResult, PairResult, ResultError
from cooperbench.text import dollars_text, duration_text, plural, printable, shorten, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from cooperbench.agents.session import AgentProgress
    from cooperbench.models import AgentSlot, Message, Pair
    from cooperbench.runner.plan import Plan

_MAX_MESSAGE_CHARACTERS = 160
_MAX_ERROR_CHARACTERS = 120
_MAX_PAIRS_SHOWN = 12
_REFRESHES_PER_SECOND = 8
SUBMITTED = "submitted"
"""The status of an agent that ended on its own."""


def agent_title(agent_id: str) -> str:
    """Return `Agent 1` for `agent1`."""
    number = agent_id.removeprefix("agent")
    return f"Agent {number}" if number.isdigit() else agent_id.capitalize()


def message_line(message: Message) -> str:
    """Return a message between agents as documented: `Agent 1 → Agent 2: "…"`."""
    text = shorten(printable(message.text), _MAX_MESSAGE_CHARACTERS)
    return f'{agent_title(message.sender)} → {agent_title(message.recipient)}: "{text}"'


def ending_text(result: PairResult | ResultError, took: str) -> str:
    """Return one line about the end of a pair: how its agents ended, or the error."""
    if isinstance(result, ResultError) or not result.is_completed:
        return f"! Error after {took}: {printable(str(result.error))}"
    agents = result.agents
    if all(agent.status == SUBMITTED for agent in agents.values()):
        return f"✓ Complete in {took}"
    endings = [f"{agent_title(name)} {_agent_ending(agent)}" for name, agent in agents.items()]
    return f"– Ended in {took}: {'; '.join(endings)}"


def _agent_ending(agent: AgentResult) -> str:
    status = printable(agent.status or "unknown")
    if status == SUBMITTED or not agent.error:
        return status
    return f"{status} ({shorten(printable(agent.error), _MAX_ERROR_CHARACTERS)})"


def verdict_text(evaluation: Evaluation | EvaluationError) -> str:
    """Return one line about the verdict of a pair."""
    if evaluation.status == "no_reference":
        return f"– no reference: {printable(str(evaluation.error))}"
    if isinstance(evaluation, EvaluationError) or evaluation.status != "completed":
        return f"! evaluation error: {printable(str(evaluation.error))}"
    mark = "✓ passed" if evaluation.overall_success else "✗ failed"
    details = _failure_details(evaluation)
    return f"{mark}: {', '.join(details)}" if details else mark


def _failure_details(evaluation: Evaluation) -> list[str]:
    """Return what went wrong, by agent and for the merge."""
    failed_alone = [name for name, agent in evaluation.agents.items() if not agent.success]
    if any(name in failed_alone for name in ("solo", SHARED)):
        return ["the tests fail"]
    details = [f"{agent_title(name)} failed alone" for name in failed_alone]
    merged = evaluation.merged
    if merged is None:
        return details
    if merged.merge_status == "conflict":
        union = ", union merge" if merged.strategy == "union" else ""
        details.append(f"merge conflict{union}")
    if not merged.success and not failed_alone and merged.strategy != "none":
        details.append("fails together")
    return details


def header_lines(plans: Sequence[Plan]) -> list[str]:
    """Return the lines that open the output of a run or an evaluation."""
    if plans[0].config.evaluate_only:
        return _evaluation_header(plans)
    config, pairs = plans[0].config, plans[0].pairs
    tasks = plural(len({pair.task for pair in pairs}), "task")
    source = config.subset or config.repo or config.dataset_dir.name
    lines = [
        f"Starting experiment: {config.run_name.partition('/')[0]}",
        f"Setting: {config.setting} ({_agents_per_task(plans[0])} per task)",
    ]
    if config.model_name:
        lines.append(f"Model: {printable(config.model_name)}")
    lines += [
        f"Agent: {printable(config.agent)}",
        f"Backend: {config.backend}",
        f"Found {plural(len(pairs), 'pair')} of {tasks} in {source}",
    ]
    if config.executor == "local":
        lines.append(f"Running with concurrency={config.concurrency}")
    else:
        lines.append(f"Running on {config.executor} with workers={config.max_jobs}")
    if len(plans) > 1:
        names = ", ".join(plan.config.run_name.partition("/")[2] for plan in plans)
        lines.append(f"{plural(len(plans), 'arm')}: {names}")
    if finished := sum(len(plan.pairs) - len(plan.to_run) for plan in plans):
        lines.append(
            f"{plural(finished, 'pair')} already finished; --force runs finished pairs again"
        )
    return lines


def _evaluation_header(plans: Sequence[Plan]) -> list[str]:
    config = plans[0].config
    to_evaluate = sum(len(plan.to_evaluate) for plan in plans)
    evaluated = sum(len(plan.pairs) for plan in plans) - to_evaluate
    advice = "--force evaluates again"
    if not to_evaluate and evaluated:
        pairs = "the only pair is" if evaluated == 1 else f"all {evaluated:,} pairs are"
        return [f"Evaluating {config.run_name}: {pairs} already evaluated; {advice}"]
    pairs = plural(to_evaluate, "pair")
    lines = [f"Evaluating {pairs} of {config.run_name} on {config.backend}"]
    if evaluated:
        lines.append(f"{plural(evaluated, 'pair')} already evaluated; {advice}")
    return lines


def _agents_per_task(plan: Plan) -> str:
    sizes = {len(agent_slots(pair, plan.config.setting)) for pair in plan.pairs} or {2}
    text = plural(min(sizes), "agent")
    if len(sizes) > 1:
        text = f"{min(sizes)}–{max(sizes)} agents"
    return f"{text} on one tree" if plan.config.workspace == "shared" else text


@dataclass
class _Outage:
    since: float
    reason: str


@dataclass
class _PairAtWork:
    """A pair whose agents are at work."""

    since: float
    agents: dict[str, AgentProgress | None] = field(default_factory=dict)
    """The latest progress of each agent; None until its sandbox is ready."""
    outages: dict[str, _Outage] = field(default_factory=dict)
    """Agents whose model provider is failing."""

    @property
    def cost(self) -> float:
        """Dollars spent by this attempt so far."""
        return sum(progress.cost for progress in self.agents.values() if progress)


class Display:
    """Prints a line for each event of a run. Its methods may be called from any thread.

    Each line names its pair by number, because pairs run side by side.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.RLock()
        self._numbers: dict[Pair, int] = {}
        self._at_work: dict[Pair, _PairAtWork] = {}
        self._in_evaluation: dict[Pair, float] = {}
        """Pairs that wait for their verdict, and since when."""
        self._counts = {"passed": 0, "failed": 0, "error": 0, "no reference": 0}
        self._pairs_ran = 0
        self._pairs_evaluated = 0
        self._to_run = 0
        self._to_evaluate = 0
        self._cost = 0.0
        """Dollars that finished pairs have cost."""
        self._started = time.monotonic()

    def begin(self, lines: Sequence[str], *, to_run: int, to_evaluate: int) -> None:
        """Print the header; `to_run` and `to_evaluate` are numbers of pairs."""
        self._to_run = to_run
        self._to_evaluate = to_evaluate
        self._started = time.monotonic()
        for line in lines:
            self.note(line)
        self._print("")

    def note(self, text: str) -> None:
        """Print a line that is not about a single pair."""
        self._print(f"[CooperBench] {printable(text)}")

    def progress(self, action: str, label: str, done: int, total: int) -> None:
        """Print what has happened to a task, e.g. `Prepared`, and how many are done."""
        self.note(f"{action} {done}/{total}: {label}")

    def pair_started(self, pair: Pair, slots: Sequence[AgentSlot]) -> None:
        """Announce a pair and the features of its agents."""
        with self._lock:
            agents = {slot.agent_id: None for slot in slots}
            self._at_work[pair] = _PairAtWork(time.monotonic(), dict(agents))
        features = "features_" + "_".join(map(str, pair.feature_ids))
        self._print_for(pair, pair.label.replace(pair.name, features))
        for slot in slots:
            noun = "feature" if len(slot.features) == 1 else "features"
            numbers = ", ".join(map(str, slot.feature_ids))
            title = agent_title(slot.agent_id)
            self._print_for(pair, f"  {title}: Implementing {noun} {numbers}...")

    def agent_progress(self, pair: Pair, agent_id: str, progress: AgentProgress) -> None:
        """Keep the steps, cost and phase of an agent for the live display."""
        with self._lock:
            if pair in self._at_work:
                self._at_work[pair].agents[agent_id] = progress

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        """Print that an agent waits for a failing provider; an empty reason ends the outage."""
        with self._lock:
            at_work = self._at_work.get(pair) or _PairAtWork(time.monotonic())
            outage = at_work.outages.pop(agent_id, None)
            if reason:
                since = outage.since if outage else time.monotonic()
                at_work.outages[agent_id] = _Outage(since, reason)
                self._at_work[pair] = at_work
        title = agent_title(agent_id)
        if reason and outage is None:
            self._print_for(pair, f"  {title} waits for its model: {printable(reason)}")
        elif outage and not reason:
            self._print_for(pair, f"  {title} has its model back")

    def message(self, pair: Pair, message: Message) -> None:
        """Print a message between agents."""
        self._print_for(pair, f"  {message_line(message)}")

    def pair_ended(self, pair: Pair, result: PairResult | ResultError) -> None:
        """Print how a pair ended; `result` is the content of result.json."""
        now = time.monotonic()
        with self._lock:
            at_work = self._at_work.pop(pair, None)
            took = duration_text(now - at_work.since if at_work else 0.0)
            self._pairs_ran += 1
            if isinstance(result, PairResult):
                self._cost += result.cost or 0.0
            if not result.is_completed:
                self._counts["error"] += 1
                self._to_evaluate -= 1
            elif self._to_evaluate > 0:
                self._in_evaluation[pair] = now
        self._print_for(pair, ending_text(result, took))

    def evaluated(self, pair: Pair, evaluation: Evaluation | EvaluationError) -> None:
        """Print the verdict of a pair; `evaluation` is the content of eval.json."""
        with self._lock:
            self._in_evaluation.pop(pair, None)
            self._pairs_evaluated += 1
            self._counts[_counted_as(evaluation)] += 1
        self._print_for(pair, f"{pair.label}: {verdict_text(evaluation)}")

    def end(self) -> None:
        """Stop drawing; called once, at the end of the run."""

    def _print_for(self, pair: Pair, text: str) -> None:
        with self._lock:
            number = self._numbers.setdefault(pair, len(self._numbers) + 1)
        self._print(f"[Task {number}/{max(self._to_run, self._to_evaluate)}] {text}")

    def _print(self, line: str) -> None:
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


def _counted_as(evaluation: Evaluation | EvaluationError) -> str:
    """Return the key in `Display._counts` of an evaluated pair."""
    if evaluation.status == "no_reference":
        return "no reference"
    if isinstance(evaluation, EvaluationError) or evaluation.status != "completed":
        return "error"
    return "passed" if evaluation.overall_success else "failed"


def make_display() -> Display:
    """Return a live display if stdout is a terminal, else one that only prints lines."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        if not console.is_dumb_terminal:
            return LiveDisplay(console)
    return Display()


class LiveDisplay(Display):
    """Prints the same lines, and draws below them what is at work now, a few times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        super().__init__()
        self._console = console
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
        )

    def begin(self, lines: Sequence[str], *, to_run: int, to_evaluate: int) -> None:
        """Print the header and start drawing."""
        super().begin(lines, to_run=to_run, to_evaluate=to_evaluate)
        self._live.start()

    def end(self) -> None:
        """Stop drawing and remove the live part from the terminal."""
        if self._live.is_started:
            self._live.stop()

    def _print(self, line: str) -> None:
        wrapped = wrap(line, self._console.width)
        self._console.print(wrapped, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            now = time.monotonic()
            table = Table.grid(padding=(0, 2))
            for mark, style, *cells in self._rows(now):
                table.add_row(Text(mark, style=style), *(Text(cell) for cell in cells))
            return Group(Text(self._status_line(now)), table)

    def _rows(self, now: float) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield mark, style, pair or agent, duration and details of each line that is drawn."""
        pairs = list(self._at_work.items())
        for pair, at_work in pairs[: self._pairs_that_fit()]:
            yield "●", "cyan", pair.label, duration_text(now - at_work.since), ""
            for agent_id, progress in at_work.agents.items():
                if agent_id not in at_work.outages:
                    yield "", "", f"  {agent_title(agent_id)}", "", _progress_text(progress)
            for agent_id, outage in at_work.outages.items():
                waits = f"waits for its model since {duration_text(now - outage.since)}"
                details = f"{waits}: {printable(outage.reason)}"
                yield "!", "red", f"  {agent_title(agent_id)}", "", details
        if (hidden := len(pairs) - self._pairs_that_fit()) > 0:
            yield "", "dim", f"… {hidden:,} more", "", ""
        for pair, since in list(self._in_evaluation.items())[:_MAX_PAIRS_SHOWN]:
            yield "◌", "yellow", pair.label, duration_text(now - since), "evaluation"

    def _pairs_that_fit(self) -> int:
        """Return how many pairs can be drawn, with their agents, above half of the terminal."""
        agents = max((len(at_work.agents) for at_work in self._at_work.values()), default=0)
        return max(1, min(_MAX_PAIRS_SHOWN, self._console.height // 2 // (1 + agents)))

    def _status_line(self, now: float) -> str:
        done = self._pairs_ran + self._pairs_evaluated
        total = self._to_run + max(self._to_evaluate, self._pairs_evaluated)
        elapsed = now - self._started
        parts = [f"evaluated {self._pairs_evaluated:,}"]
        if self._to_run:
            parts = [f"pairs {self._pairs_ran:,}/{self._to_run:,}"]
        parts.append(self._counts_text())
        cost = self._cost + sum(at_work.cost for at_work in self._at_work.values())
        parts.append(dollars_text(cost))
        time_left = ""
        if 0 < done < total:
            time_left = f", about {duration_text(elapsed / done * (total - done))} left"
        parts.append(duration_text(elapsed) + time_left)
        return "  ".join(parts)

    def _counts_text(self) -> str:
        counts = self._counts
        texts = [
            f"{counts['passed']:,} passed",
            f"{counts['failed']:,} failed",
            plural(counts["error"], "error"),
        ]
        if counts["no reference"]:
            texts.append(f"{counts['no reference']:,} no reference")
        return ", ".join(texts)


def _progress_text(progress: AgentProgress | None) -> str:
    if progress is None:
        return "starting its sandbox"
    steps = plural(progress.steps, "step")
    return f"{steps}, {dollars_text(progress.cost)}, {progress.phase}"
