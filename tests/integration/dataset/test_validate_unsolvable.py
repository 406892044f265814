"""`cooperbench validate` names the pairs that golden patches cannot win."""

from __future__ import annotations

from pathlib import Path

import pytest

from cooperbench.cli import main
from cooperbench.dataset.content_hash import pair_content_sha256
from cooperbench.dataset.discovery import load_tasks
from cooperbench.dataset.golden_groups import GoldenGroup, write_golden_groups
from cooperbench.models import Pair
from tests.support.tiny import write_tiny


def test_unsolvable_pairs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path)
    (task,) = load_tasks(tmp_path)
    checksum = pair_content_sha256(Pair(task, (1, 2)))
    group = GoldenGroup([1, 2], checksum, "clean", failed=[2], reason="feature 2: 1 test fails")
    write_golden_groups(task, [group])
    argv = ["validate", "--conflicts-only", "--backend", "local", "--dataset-dir", str(tmp_path)]
    assert main(argv) == 0
    expected = "tiny_task/task7 f1_f2: cannot be won, so runs leave it out: feature 2: 1 test fails"
    assert expected in capsys.readouterr().out.splitlines()
