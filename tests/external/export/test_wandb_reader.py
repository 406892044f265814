"""The client of Weights & Biases writes a run offline, and everything is read back."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cooperbench.report.analysis import rate_rows
from cooperbench.report.loading import load_run
from cooperbench.report.pair_table import pair_rows
from tests.support.report.factory import TALK, layout, share, write_run
from tests.support.venvs import python_with

READER = Path(__file__).parent / "read_wandb_run.py"
PROGRAM = "import sys; from cooperbench.cli import main; sys.exit(main())"


def run_with_wandb(python: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Run our Python with wandb's environment in front of it."""
    (packages,) = (python.parent.parent / "lib").glob("python*/site-packages")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("WANDB_")},
        "PYTHONPATH": str(packages),
    }
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, check=False, timeout=120, env=environment
    )  # fmt: skip


@pytest.mark.timeout(900)  # The first time, wandb is installed.
def test_an_offline_run_has_tables_rates_and_configuration(tmp_path: Path) -> None:
    python = python_with("wandb>=0.20,<1")
    write_run(tmp_path, "r", layout(2, 4, 8), share({"passed": 3, "conflict": 2, "missing": 1}))
    done = run_with_wandb(
        python, "-c", PROGRAM, "export", "r", "--format", "wandb", "--log-dir", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    folder = tmp_path / "r/export/wandb"
    read = run_with_wandb(python, READER, folder)
    assert read.returncode == 0, read.stderr
    content: dict[str, Any] = json.loads(read.stdout)
    run = load_run(tmp_path, "r")
    assert content["name"] == "r"
    pairs = content["tables"]["pairs"]
    assert [dict(zip(pairs["columns"], row, strict=True)) for row in pairs["data"]] == pair_rows(
        [run]
    )
    (row,) = rate_rows([run])
    overall = row.rates["overall"]
    assert content["summary"]["coop/overall"] == overall.value
    assert content["summary"]["coop/overall n"] == overall.n
    rates = content["tables"]["rates"]["data"]
    assert [
        "coop",
        "overall",
        overall.value,
        overall.low,
        overall.high,
        overall.n,
        overall.clusters,
        False,
    ] in rates
    messages = content["tables"]["messages"]["data"]
    assert messages[0][5] == TALK[0].text
    config_bytes = (tmp_path / "r/config.json").read_bytes()
    assert content["config"]["config_sha256"] == hashlib.sha256(config_bytes).hexdigest()
    assert content["config"]["model_name"] == "gpt-4o"


def test_without_wandb_one_line_names_the_extra(tmp_path: Path) -> None:
    write_run(tmp_path, "r", layout(1, 1, 1))
    block = "import sys; sys.modules['wandb'] = None; " + PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", block, "export", "r", "--format", "wandb", "--log-dir", tmp_path],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "cooperbench: this format needs wandb, which is not installed. "
        "Run pip install 'cooperbench[wandb]'.\n"
    )
