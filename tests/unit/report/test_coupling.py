"""Rates and deficits by coupling, on the demo's pairs, of which two classes are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.cli import main
from cooperbench.report.coupling import coupling_rows
from cooperbench.report.loading import load_run
from tests.support.report.factory import Kind, Style, write_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from cooperbench.report.pairs import PairKey

PAIRS = {"stencil_task": {0: [(1, 2), (1, 3), (3, 4)]}}
DEMO = Style(bare=True, talk=(), dataset="demo", dataset_revision=None)


def kind_of(key: PairKey) -> Kind:
    return "passed" if key.features == (1, 3) else "conflict"


def test_deficits_by_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "r", PAIRS, kind_of, style=DEMO)
    (row, _) = coupling_rows([load_run(tmp_path, "r")])
    assert (row.solo, row.coordination_deficit) == (None, None)
    write_run(tmp_path, "r", PAIRS, "passed", setting="solo", style=DEMO)
    rows = coupling_rows([load_run(tmp_path, "r")])
    assert [(row.coupling, row.pairs) for row in rows] == [("file", 1), ("text", 2)]
    assert [(row.merge.value, row.overall.value) for row in rows] == [(1.0, 1.0), (0.0, 0.0)]
    deficits = [row.coordination_deficit for row in rows]
    assert [deficit.value for deficit in deficits if deficit] == [0.0, 1.0]
    assert main(["report", "r", "--log-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "By coupling" in shown
    assert "text: the golden patches change the same or neighboring lines" in shown


def test_there_are_no_classes_without_the_dataset(tmp_path: Path) -> None:
    style = Style(bare=True, talk=(), dataset="elsewhere")
    write_run(tmp_path, "r", PAIRS, kind_of, style=style)
    assert coupling_rows([load_run(tmp_path, "r")]) == []
