"""One flat row for each pair, for CSV, Parquet and other tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from cooperbench.errors import UserError
from cooperbench.models import MAX_AGENTS
from cooperbench.records.usage import count_if_known
from cooperbench.report.consistency import all_mismatches
from cooperbench.report.loading import Run
from cooperbench.report.mismatch import mismatch_kinds
from cooperbench.report.pairs import VERDICTS, AgentData, PairData

Value = str | int | float | bool | None
"""The content of a cell; None where a value is missing."""
Row = dict[str, Value]

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets take a text that starts with one of these for a formula."""
_PAIR_COLUMNS: dict[str, type] = {
    "run": str,
    "imported": bool,
    "dataset": str,
    "dataset_revision": str,
    "setting": str,
    "repo": str,
    "task_id": int,
    "features": str,
    "state": str,
    **dict.fromkeys(VERDICTS, bool),
    "merge_status": str,
    "messages": int,
    "cost": float,
    "steps": int,
    "prompt_tokens": int,
    "completion_tokens": int,
    "duration_seconds": float,
}
_AGENT_COLUMNS: dict[str, type] = {
    "agent": str,
    "model": str,
    "status": str,
    "success": bool,
    "cost": float,
    "steps": int,
}
_LAST_COLUMNS: dict[str, type] = {
    "error": str,
    "unsound": str,
    "network": str,
    "suspicious": int,
    "unconfirmed": int,
    "attempts": int,
    "mismatches": str,
    "public_success": bool,
    "recorded_success": bool,
}


def columns(agents: int = 2) -> dict[str, type]:
    """Return names and types of the columns for a number of agents, at least two.

    Any value may be missing. The only agent of solo is `agent1`.
    """
    agent_columns = {}
    for number in range(1, max(2, agents) + 1):
        for name, kind in _AGENT_COLUMNS.items():
            agent_columns[f"agent{number}_{name}"] = kind
    return _PAIR_COLUMNS | agent_columns | _LAST_COLUMNS


def pair_rows(runs: Sequence[Run]) -> list[Row]:
    """Return every pair of every run, also those without a verdict (see the column `state`)."""
    largest_group = 2
    for run in runs:
        for pair in run.pairs:
            largest_group = max(largest_group, len(pair.agents))
    empty: Row = dict.fromkeys(columns(largest_group))
    rows: list[Row] = []
    mismatches = all_mismatches(runs)
    for run in runs:
        for pair in run.pairs:
            kinds = mismatch_kinds(mismatches, run.name, pair)
            rows.append(empty | _pair_row(run, pair) | {"mismatches": ",".join(kinds) or None})
    return rows


def _pair_row(run: Run, pair: PairData) -> Row:
    dataset, dataset_revision = run.dataset
    row: Row = {
        "run": run.name,
        "imported": run.imported is not None,
        "dataset": dataset,
        "dataset_revision": dataset_revision,
        "setting": pair.setting,
        "repo": pair.key.repo,
        "task_id": pair.key.task_id,
        "features": _join(pair.key.features),
        "state": pair.state,
        "merge_status": pair.merge_status,
        "error": pair.error,
        "unsound": _join(pair.unsound) or None,
        "network": pair.network,
        "attempts": pair.attempts if pair.result else None,
    }
    if pair.verdicts:
        row.update(pair.verdicts)
        row["suspicious"] = len(pair.suspicious)
        row["unconfirmed"] = pair.unconfirmed
        row["public_success"] = pair.public_success
    if run.imported is not None and pair.recorded is not None:
        row["recorded_success"] = pair.recorded.passed
    if pair.agents:
        row["messages"] = pair.messages
        row["cost"] = pair.cost
        row["steps"] = pair.steps
        row["prompt_tokens"] = count_if_known(agent.prompt_tokens for agent in pair.agents)
        row["completion_tokens"] = count_if_known(agent.completion_tokens for agent in pair.agents)
        row["duration_seconds"] = pair.duration_seconds
    for number, agent in enumerate(pair.agents, 1):
        row.update(_agent_values(agent, number))
    return row


def _agent_values(agent: AgentData, number: int) -> Row:
    prefix = f"agent{number}"
    return {
        f"{prefix}_agent": agent.agent,
        f"{prefix}_model": agent.model,
        f"{prefix}_status": agent.status,
        f"{prefix}_success": agent.success,
        f"{prefix}_cost": agent.cost,
        f"{prefix}_steps": agent.steps,
    }


def _join(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers)


def csv_bytes(rows: Sequence[Row]) -> bytes:
    """Return a CSV file with a heading; missing values are empty.

    A text that a spreadsheet would take for a formula gets a `'` in front.
    """
    names = list(rows[0]) if rows else list(columns())
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _csv_cell(value) for name, value in row.items()})
    return text.getvalue().encode("utf-8", "backslashreplace")


def _csv_cell(value: Value) -> Value:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value


def parquet_bytes(rows: Sequence[Row]) -> bytes:
    """Return a Parquet file; columns have their types even if all values are missing."""
    from importlib import import_module

    try:
        arrow = import_module("pyarrow")
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            "Parquet needs pyarrow, which is not installed. Run pip install 'cooperbench[report]', "
            "or write --csv."
        ) from None
    arrow_types = {
        str: arrow.string(),
        int: arrow.int64(),
        float: arrow.float64(),
        bool: arrow.bool_(),
    }
    kinds = columns(MAX_AGENTS)
    names = list(rows[0]) if rows else list(columns())
    schema = arrow.schema([(name, arrow_types[kinds[name]]) for name in names])
    table = arrow.Table.from_pylist([_without_surrogates(row) for row in rows], schema=schema)
    target = io.BytesIO()
    parquet.write_table(table, target)
    return target.getvalue()


def _without_surrogates(row: Row) -> Row:
    """Return a row that UTF-8 can encode."""
    clean: Row = {}
    for name, value in row.items():
        if isinstance(value, str):
            clean[name] = value.encode("utf-8", "backslashreplace").decode()
        else:
            clean[name] = value
    return clean
