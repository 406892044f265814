"""Export to Weights & Biases with its client (the extra `wandb`): tables, rates and configuration.

The run is written offline, for `wandb sync`, unless WANDB_MODE says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cooperbench._version import __version__
from cooperbench.errors import UserError
from cooperbench.export.json_text import without_surrogates
from cooperbench.records import JsonObject
from cooperbench.report.analysis import RateRow, rate_rows
from cooperbench.report.loading import Run
from cooperbench.report.mismatch import mismatch_lines
from cooperbench.report.pair_table import Value, pair_rows
from cooperbench.storage import read_bytes
from cooperbench.text import describe_error

DEFAULT_PROJECT = "cooperbench"
_ID_DIGITS = 12


class WandbTable(NamedTuple):
    """A table, as Weights & Biases shows it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


def write_wandb_run(run: Run, target: Path) -> tuple[list[Path], list[str]]:
    """Write a run of Weights & Biases into a folder.

    Returns:
        The files, and an empty list: every pair has a row.

    Raises:
        UserError: wandb is not installed, or reports an error.
    """
    if find_spec("wandb") is None:
        raise UserError(
            "this format needs wandb, which is not installed. Run pip install 'cooperbench[wandb]'."
        )
    wandb = import_module("wandb")
    target.mkdir(parents=True, exist_ok=True)
    try:
        folder = _log_run(wandb, run, target)
    except wandb.Error as error:
        raise UserError(f"wandb: {describe_error(error)}") from error
    return sorted(path for path in folder.rglob("*") if path.is_file()), []


def _log_run(wandb: Any, run: Run, target: Path) -> Path:
    """Log everything; return the folder of the run."""
    config_bytes = read_bytes(run.root / "config.json") or b""
    settings = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        silent=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    wandb_run = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
        mode=os.environ.get("WANDB_MODE") or "offline",
        id=sha256(run.name.encode() + config_bytes).hexdigest()[:_ID_DIGITS],
        name=run.name,
        dir=str(target),
        config=run_config(run, config_bytes),
        tags=["cooperbench", *run.settings],
        settings=settings,
    )
    folder = Path(wandb_run.dir).parent
    rates = rate_rows([run])
    tables = {"pairs": pair_table(run), "rates": rate_table(rates), "messages": message_table(run)}
    content = {
        name: wandb.Table(columns=list(table.columns), data=list(table.rows))
        for name, table in tables.items()
    }
    wandb_run.log(content)
    wandb_run.summary.update(run_summary(rates))
    wandb_run.finish()
    return folder


def run_config(run: Run, config_bytes: bytes) -> JsonObject:
    """Return the configuration of a run, with what its numbers rest on."""
    dataset, dataset_revision = run.dataset
    identity: JsonObject = dict(run.config.identity) if run.config else {}
    return identity | {
        "dataset": dataset,
        "dataset_revision": dataset_revision,
        "config_sha256": sha256(config_bytes).hexdigest(),
        "exported_by": f"cooperbench {__version__}",
        "mismatches": [without_surrogates(line) for line in mismatch_lines(run.mismatches)],
    }


def pair_table(run: Run) -> WandbTable:
    """Return a row for each pair, as in CSV files."""
    rows = pair_rows([run])
    values = [_clean_row(list(row.values())) for row in rows]
    return WandbTable(tuple(rows[0]), values)


def rate_table(rows: Sequence[RateRow]) -> WandbTable:
    """Return a row for each verdict of each setting, as in reports."""
    columns = ("setting", "verdict", "rate", "low", "high", "n", "tasks", "mismatch")
    values: list[list[Value]] = []
    for row in rows:
        for verdict, estimate in row.rates.items():
            interval = [estimate.value, estimate.low, estimate.high]
            sizes = [estimate.n, estimate.clusters]
            line: list[Value] = [row.setting, verdict, *interval, *sizes, verdict in row.affected]
            values.append(line)
    return WandbTable(columns, values)


def message_table(run: Run) -> WandbTable:
    """Return a row for each message between agents."""
    columns = ("setting", "pair", "sequence", "from", "to", "message", "timestamp")
    values: list[list[Value]] = []
    for pair in run.pairs:
        for message in pair.conversation().messages:
            text = without_surrogates(message.text)
            line: list[Value] = [pair.setting, pair.label, message.sequence]
            line += [message.sender, message.recipient, text, message.timestamp]
            values.append(line)
    return WandbTable(columns, values)


def run_summary(rows: Sequence[RateRow]) -> dict[str, Value]:
    """Return the numbers that lists of runs show: rates with their intervals, and cost."""
    summary: dict[str, Value] = {}
    for row in rows:
        for verdict, estimate in row.rates.items():
            summary[f"{row.setting}/{verdict}"] = estimate.value
            summary[f"{row.setting}/{verdict} low"] = estimate.low
            summary[f"{row.setting}/{verdict} high"] = estimate.high
            summary[f"{row.setting}/{verdict} n"] = estimate.n
        summary[f"{row.setting}/cost"] = row.cost
        summary[f"{row.setting}/tokens"] = row.tokens
        summary[f"{row.setting}/messages"] = row.messages
    return summary


def _clean_row(values: Sequence[Value]) -> list[Value]:
    return [_clean(value) for value in values]


def _clean(value: Value) -> Value:
    return without_surrogates(value) if isinstance(value, str) else value
