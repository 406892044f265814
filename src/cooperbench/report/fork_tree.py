"""The tree of forks of each pair: the recorded run, the fork point, and where each fork diverges.

A fork diverges at the first step after the fork point at which an agent does something else than in
the recorded run. What it sees may differ before: that is the intervention.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cooperbench import records
from cooperbench.bounded import UnreadableInput, call_bounded, limit_seconds
from cooperbench.gateway.recording import comparable
from cooperbench.records import JsonObject
from cooperbench.records.forks import ForkedPair
from cooperbench.records.trajectory import Trajectory
from cooperbench.report.forks import ForkRuns, find_forks
from cooperbench.report.history_check import parse_pair_folder
from cooperbench.report.loading import Run
from cooperbench.report.pairs import PairData
from cooperbench.storage import PairPaths, checked_run_name
from cooperbench.text import plural, printable

_MAX_ACTION_CHARACTERS = 80
_MAX_READ_TREES = 4_096


@dataclass(frozen=True)
class ForkBranch:
    """One fork of a pair."""

    arm: str
    run: str
    pair: PairData
    divergence: str
    """Where each agent first does something else; empty if nowhere or if it is not known."""


@dataclass(frozen=True)
class ForkTree:
    """All forks of one pair from one point."""

    run: str
    """The recorded run."""
    fork_point: str
    pair: str
    replayed: str
    """What is replayed, for people."""
    branches: tuple[ForkBranch, ...]


def fork_trees(runs: Sequence[Run]) -> list[ForkTree]:
    """Return the trees of all forks among the runs."""
    trees = []
    for forks in find_forks(runs):
        for forked in forks.record.pairs:
            tree = _tree(forks, forked)
            if tree.branches:
                trees.append(tree)
    return trees


def _tree(forks: ForkRuns, forked: ForkedPair) -> ForkTree:
    name = parse_pair_folder(forked.pair)
    branches = []
    for arm, run in forks.runs:
        for pair in run.pairs:
            if name is not None and pair.key == name.key:
                divergence = _divergence(forks, forked, pair)
                branches.append(ForkBranch(arm.name, run.name, pair, divergence))
    parts = []
    for agent_id, count in forked.exchanges.items():
        steps = plural(forked.steps.get(agent_id, 0), "step")
        parts.append(f"{agent_id}: {plural(count, 'model call')}, {steps}")
    record = forks.record
    label = name.key.label if name is not None else forked.pair
    return ForkTree(record.run, record.fork_point, label, "; ".join(parts), tuple(branches))


def _divergence(forks: ForkRuns, forked: ForkedPair, pair: PairData) -> str:
    """Return where a complete fork diverges from the recorded pair."""
    if pair.result is None or not pair.result.is_completed:
        return ""
    try:
        folders = [checked_run_name(part) for part in forks.record.run.split("/", 1)]
    except ValueError:  # the file names a folder outside of the logs
        return ""
    recorded = forks.folder.parent.joinpath(*folders, forked.pair)
    steps = tuple(sorted(forked.steps.items()))
    return _cached_divergence(recorded, pair.paths.folder, steps, pair.result.ended_at)


@lru_cache(_MAX_READ_TREES)
def _cached_divergence(
    recorded: Path,
    fork: Path,
    steps: tuple[tuple[str, int], ...],
    ended_at: str,  # noqa: ARG001  # another attempt at the pair is read again
) -> str:
    try:
        return call_bounded(read_divergence, str(recorded), str(fork), json.dumps(steps))
    except UnreadableInput as problem:
        return f"cannot be read: {problem}"


@limit_seconds(20)
def read_divergence(recorded: str, fork: str, steps: str) -> str:
    """Return where a fork diverges. Callers use `call_bounded`: agents wrote the trajectories."""
    texts = []
    for agent_id, replayed in json.loads(steps):
        then = _actions(PairPaths(Path(recorded)), agent_id, replayed)
        now = _actions(PairPaths(Path(fork)), agent_id, replayed)
        if then is None or now is None:
            continue
        difference = _first_difference(then, now)
        if difference:
            texts.append(f"{agent_id} {difference}")
    return "; ".join(texts)


def _actions(paths: PairPaths, agent_id: str, replayed: int) -> dict[int, JsonObject] | None:
    """Return what an agent did in each step after the fork point; None without a trajectory."""
    trajectory = records.read(paths.agent(agent_id).trajectory, Trajectory)
    if trajectory is None:
        return None
    return {
        step.number: {"action": step.action, "args": step.args}
        for step in trajectory.steps
        if step.number is not None and step.number > replayed
    }


def _first_difference(then: dict[int, JsonObject], now: dict[int, JsonObject]) -> str:
    for number in sorted({*then, *now}):
        if comparable(then.get(number)) != comparable(now.get(number)):
            return f"at step {number}: {_text(then.get(number))} → {_text(now.get(number))}"
    return ""


def _text(action: JsonObject | None) -> str:
    if action is None:
        return "(ended)"
    args = action["args"]
    content = args.get("command") or args.get("content") or args.get("name") or json.dumps(args)
    line = printable(f"{action['action']} {content}".partition("\n")[0])
    return line if len(line) <= _MAX_ACTION_CHARACTERS else f"{line[:_MAX_ACTION_CHARACTERS]}…"
