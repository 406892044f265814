"""Options of `run`, studies, `eval` and `prompts` that are refused or not offered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench import evaluate
from cooperbench.cli import main
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

ORACLE = ("-a", "oracle", "--backend", "local", "--dataset-dir", "demo")


def test_dry_run_in_the_background_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    call = ["run", *ORACLE, "--log-dir", str(tmp_path), "--detach", "--dry-run"]
    assert main(call) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "cooperbench: --dry-run prints at once; leave out --detach\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("ablate", {"--detach"}),
        ("sweep", {"--detach"}),
        ("prompts", {"--detach", "--dry-run", "--json"}),
    ],
)
def test_options_without_effect_are_not_offered(
    command: str, options: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    offered = set(capsys.readouterr().out.split())
    assert offered & options == set()
    assert main(["run", "--help"]) == 0
    assert options <= set(capsys.readouterr().out.split())


def test_eval_checks_the_run_before_the_dataset(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    call = ["eval", "-n", "nope", "--dataset-dir", "no-dataset", "--log-dir", str(tmp_path)]
    assert main(call) == 2
    assert capsys.readouterr().err.startswith("cooperbench: no experiment 'nope' in ")
    with pytest.raises(UserError, match="no experiment 'nope'"):
        evaluate("nope", dataset_dir="no-dataset", logs_dir=tmp_path)
    (tmp_path / "nope").mkdir()
    assert main(call) == 2
    assert "no-dataset" in capsys.readouterr().err
