"""One flat row a pair, for CSV, Parquet and whatever reads tables."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError
from cooperbench.report.records import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.report.loading import PairData, Run

_SEATS = 2
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_OF_AN_AGENT: dict[str, type] = {
    "agent": str, "model": str, "status": str, "success": bool, "cost": float, "steps": int,
}  # fmt: skip
COLUMNS: dict[str, type] = {
    "run": str, "dataset": str, "dataset_revision": str, "setting": str, "repo": str, "task_id": int, "features": str,
    "state": str, **dict.fromkeys(VERDICTS, bool), "merge_status": str, "messages": int, "cost": float, "steps": int,
    "prompt_tokens": int, "completion_tokens": int, "duration_seconds": float,
    **{
        f"agent{place}_{name}": kind
        for place in range(1, _SEATS + 1)
        for name, kind in _OF_AN_AGENT.items()
    },
    "error": str, "unsound": str, "network": str,
}  # fmt: skip
"""Names and types; any value may be missing. The one agent of solo stands as agent1."""


def pair_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every pair of every run, also those without a verdict: the column `state` tells."""
    return [_row(run, pair) for run in runs for pair in run.pairs]


def _row(run: Run, pair: PairData) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    agents = pair.agents
    row |= {
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
        row |= pair.verdicts._asdict()
    if agents:
        row |= {
            "messages": pair.messages,
            "cost": pair.cost,
            "steps": pair.steps,
            "prompt_tokens": sum(agent.prompt_tokens for agent in agents),
            "completion_tokens": sum(agent.completion_tokens for agent in agents),
            "duration_seconds": pair.duration_seconds,
        }
    for place, agent in enumerate(agents[:_SEATS], 1):
        for name in _OF_AN_AGENT:
            row[f"agent{place}_{name}"] = getattr(agent, name)
    return row


def csv_bytes(rows: Sequence[dict[str, Any]]) -> bytes:
    """With a heading; empty where a value is missing; text that a spreadsheet would compute gets a `'` in front."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
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
    schema = arrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    clean = [{name: _utf8(value) for name, value in row.items()} for row in rows]
    target = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(clean, schema=schema), target)
    return target.getvalue()


def _utf8(value: object) -> object:
    """Unpaired surrogates have no UTF-8."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
