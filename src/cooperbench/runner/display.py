"""What a person sees while an experiment runs: the plain lines. (`live` has the moving picture for terminals.)"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from cooperbench.text import duration_text, plural, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.models import Message, Pair
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

    def pair_started(self, pair: Pair) -> None: ...

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
    if model := config.lineup.model_name:
        lines.insert(2, f"Model: {printable(model)}")
    if plan.finished:
        lines.append(f"{plan.finished} of them are finished already (--force runs them again)")
    return lines


def _team_size(plan: Plan) -> str:
    sizes = sorted({len(pair.feature_ids) for pair in plan.pairs})
    return "–".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1]))) if sizes else "2"


class PlainDisplay:
    """Lines, for logs and pipes. Each names its pair, since pairs run side by side."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()
        self._numbers: dict[Pair, int] = {}
        self._total = 0
        self._started: dict[Pair, float] = {}

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

    def pair_started(self, pair: Pair) -> None:
        self._started[pair] = time.monotonic()
        features = "_".join(str(number) for number in pair.feature_ids)
        self._print(f"{self._tag(pair)} {pair.task.label} features_{features}")

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
