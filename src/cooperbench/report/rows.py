"""Results as rows: `RateRow`, the pairs of a run, repository or task together; and one flat row a pair.

Terminal, JSON and page show the same `RateRow`s: verdicts with intervals, and everything else counted beside them. The
rows of pairs are for CSV, Parquet and whatever reads tables.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError
from cooperbench.models import MOST_AGENTS
from cooperbench.report.records import number
from cooperbench.report.states import JUDGED, STATES, VERDICTS, applicable_verdicts
from cooperbench.report.statistics import Estimate, Observation, rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.report import Level, Method
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData
    from cooperbench.report.states import State

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_OF_AN_AGENT: dict[str, type] = {
    "agent": str, "model": str, "status": str, "success": bool, "cost": float, "steps": int,
}  # fmt: skip
_BEFORE: dict[str, type] = {
    "run": str, "dataset": str, "dataset_revision": str, "setting": str, "repo": str, "task_id": int, "features": str,
    "state": str, **dict.fromkeys(VERDICTS, bool), "merge_status": str, "messages": int, "cost": float, "steps": int,
    "prompt_tokens": int, "completion_tokens": int, "duration_seconds": float,
}  # fmt: skip
_AFTER: dict[str, type] = {"error": str, "unsound": str, "network": str, "suspicious": int}


def columns(agents: int = 2) -> dict[str, type]:
    """Names and types, for so many agents, at least two; any value may be missing. Solo's one agent is agent1."""
    places = range(1, max(2, agents) + 1)
    return {
        **_BEFORE,
        **{f"agent{place}_{name}": kind for place in places for name, kind in _OF_AN_AGENT.items()},
        **_AFTER,
    }


@dataclass(frozen=True)
class RateRow:
    """The pairs of one setting of one run, or those of one repository or task among them."""

    run: str
    setting: Setting
    repo: str | None
    """None: all repositories; likewise for the task."""
    task_id: int | None
    pairs: int
    judged: int
    states: Mapping[State, int]
    """How many pairs are in which state; rates are over the judged ones."""
    rates: Mapping[str, Estimate]
    """By verdict; those that do not apply (one agent's patch merges with nothing) are not in it."""
    unsound: int
    """Judged pairs with tests that pass without the feature."""
    sound_rates: Mapping[str, Estimate]
    """The rates without those; empty where there are none."""
    order_conflicts: int
    """Judged pairs of three and more that conflict and would merge in another order."""
    suspicious: int
    """Judged pairs with evidence that the tests may not have decided."""
    cost: float
    unpriced_calls: int
    """Of models whose price nobody knows: the cost is without them."""
    steps: int
    tokens: int
    messages: int
    agent_seconds: float

    @property
    def name(self) -> str:
        return f"{self.run}:{self.setting}"


def rate_rows(runs: Sequence[Run], level: Level = "setting", method: Method = "clustered") -> list[RateRow]:
    """A row for each setting of each run, followed by those of its repositories, or tasks, if asked for."""
    rows = []
    for run in runs:
        for setting in run.settings:
            pairs = run.of(setting)
            groups: dict[tuple[str | None, int | None], list[PairData]] = {(None, None): list(pairs)}
            for pair in pairs if level != "setting" else ():
                place = (pair.key.repo, pair.key.task_id if level == "task" else None)
                groups.setdefault(place, []).append(pair)
            rows += [
                _rate_row(run.name, setting, repo, task_id, group, method)
                for (repo, task_id), group in groups.items()
            ]
    return rows


def _rate_row(
    run: str,
    setting: Setting,
    repo: str | None,
    task_id: int | None,
    pairs: Sequence[PairData],
    method: Method,
) -> RateRow:
    states = [pair.state for pair in pairs]
    sound = [pair for pair in pairs if not pair.unsound]

    def rates(chosen: Sequence[PairData]) -> dict[str, Estimate]:
        found = {
            name: [(pair.key, pair.verdict(name)) for pair in chosen] for name in applicable_verdicts(setting)
        }
        return {
            name: rate([Observation(key, float(value)) for key, value in values if value is not None], method)
            for name, values in found.items()
        }

    return RateRow(
        run=run,
        setting=setting,
        repo=repo,
        task_id=task_id,
        pairs=len(pairs),
        judged=sum(state in JUDGED for state in states),
        states={state: states.count(state) for state in STATES},
        rates=rates(pairs),
        unsound=len(pairs) - len(sound),
        sound_rates=rates(sound) if len(sound) < len(pairs) else {},
        order_conflicts=sum(bool(pair.clean_order) for pair in pairs),
        suspicious=sum(bool(pair.suspicious) for pair in pairs),
        cost=sum(pair.cost for pair in pairs),
        unpriced_calls=int(
            sum(number(agent.record, "unpriced_calls") for pair in pairs for agent in pair.agents)
        ),
        steps=sum(pair.steps for pair in pairs),
        tokens=sum(pair.tokens for pair in pairs),
        messages=sum(pair.messages for pair in pairs),
        agent_seconds=sum(pair.duration_seconds for pair in pairs),
    )


def pair_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every pair of every run, also those without a verdict: the column `state` tells."""
    empty = dict.fromkeys(columns(max((len(pair.agents) for run in runs for pair in run.pairs), default=2)))
    return [empty | _pair_row(run, pair) for run in runs for pair in run.pairs]


def _pair_row(run: Run, pair: PairData) -> dict[str, Any]:
    agents = pair.agents
    row: dict[str, Any] = {
        "run": run.name,
        "dataset": run.dataset[0],
        "dataset_revision": run.dataset[1],
        "setting": pair.setting,
        "repo": pair.key.repo,
        "task_id": pair.key.task_id,
        "features": ",".join(map(str, pair.key.features)),
        "state": pair.state,
        "merge_status": pair.merge_status,
        "error": pair.error,
        "unsound": ",".join(map(str, pair.unsound)) or None,
        "network": pair.network,
    }
    if pair.verdicts is not None:
        row |= pair.verdicts._asdict() | {"suspicious": len(pair.suspicious)}
    if agents:
        row |= {
            "messages": pair.messages,
            "cost": pair.cost,
            "steps": pair.steps,
            "prompt_tokens": sum(agent.prompt_tokens for agent in agents),
            "completion_tokens": sum(agent.completion_tokens for agent in agents),
            "duration_seconds": pair.duration_seconds,
        }
    for place, agent in enumerate(agents, 1):
        row |= {f"agent{place}_{name}": getattr(agent, name) for name in _OF_AN_AGENT}
    return row


def csv_bytes(rows: Sequence[dict[str, Any]]) -> bytes:
    """With a heading; empty where a value is missing; text that a spreadsheet would compute gets a `'` in front."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0] if rows else columns()), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _csv_cell(value) for name, value in row.items()})
    return text.getvalue().encode("utf-8", "backslashreplace")


def _csv_cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def parquet_bytes(rows: Sequence[dict[str, Any]]) -> bytes:
    """Typed columns, also where all values are missing."""
    from importlib import import_module

    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            "Parquet needs pyarrow, which is not installed; pip install 'cooperbench[report]', or write --csv"
        ) from None
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    known = columns(MOST_AGENTS)
    schema = arrow.schema([(name, types[known[name]]) for name in (rows[0] if rows else columns())])
    clean = [{name: _utf8(value) for name, value in row.items()} for row in rows]
    target = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(clean, schema=schema), target)
    return target.getvalue()


def _utf8(value: object) -> object:
    """Unpaired surrogates have no UTF-8."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
