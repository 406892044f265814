"""LaTeX compiles what `report --paper` writes."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from cooperbench.cli import main
from tests.support.report.factory import Style, layout, share, write_run
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from pathlib import Path


def test_latex_compiles_tables_and_figures_of_any_names(tmp_path: Path) -> None:
    require_program("pdflatex", package="texlive-latex-recommended")
    model = r"\input{x} $ # % & ~ ^ _ { } | < > \" ☃ é"
    style = Style(models=(model, model))
    pairs = layout(2, 4, 12)
    write_run(tmp_path, "a_b", pairs, share({"passed": 2, "conflict": 1}), style=style)
    write_run(tmp_path, "a_b", pairs, "passed", setting="solo", style=style)
    out = tmp_path / "out"
    assert main(["report", "a_b", "--log-dir", str(tmp_path), "--paper", str(out)]) == 0
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=out, capture_output=True, text=True, check=False, timeout=120, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Overfull \\hbox" not in done.stdout
    if shutil.which("pdftotext"):
        text = subprocess.run(
            ["pdftotext", "-layout", "paper.pdf", "-"], cwd=out, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert "How merges ended" in text
        assert r"\input{x} $ # % & ~ ^ _ { } | < >" in text
