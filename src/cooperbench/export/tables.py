"""CSV and Parquet: the rows of `report.rows`, the same that `cooperbench report --csv` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.export import Exported
from cooperbench.report.rows import csv_bytes, pair_rows, parquet_bytes
from cooperbench.storage import write_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.loading import Run


def write_csv(run: Run, target: Path) -> Exported:
    write_bytes(target, csv_bytes(pair_rows([run])))
    return Exported([target], [])


def write_parquet(run: Run, target: Path) -> Exported:
    write_bytes(target, parquet_bytes(pair_rows([run])))
    return Exported([target], [])
