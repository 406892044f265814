"""The folder of `cooperbench report --paper`: tables, figures, numbers and a README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from cooperbench._version import __version__
from cooperbench.errors import UserError
from cooperbench.records import JsonObject
from cooperbench.report.loading import Run
from cooperbench.report.paper import latex, markdown
from cooperbench.report.paper.content import PaperTable, numbers_of
from cooperbench.report.paper.figures import draw_figures, require_matplotlib
from cooperbench.report.paper.markdown import PaperCommands, RunSource
from cooperbench.report.paper.tables import PaperData, paper_tables
from cooperbench.storage import read_bytes, read_json, write_bytes, write_json

SCHEMA = "cooperbench.paper/1"
_NUMBERS_FILE = "numbers.json"


def check_paper_folder(folder: Path) -> None:
    """Raise UserError if a paper cannot be written: something else is there, or no matplotlib."""
    require_matplotlib()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--paper {folder}: not a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    numbers = read_json(folder / _NUMBERS_FILE) or {}
    if numbers.get("schema") != SCHEMA:
        raise UserError(
            f"--paper {folder}: the folder is not empty, and not from an earlier --paper; "
            "name another one"
        )


def write_paper(data: PaperData, folder: Path, commands: PaperCommands) -> list[Path]:
    """Write everything into a folder; return the files.

    Raises:
        UserError: No pair has a verdict, or the folder cannot be written.
    """
    check_paper_folder(folder)
    if not any(row.rates["overall"].n for _, row in data.rate_rows):
        runs = ", ".join(run.name for run in data.analysis.runs)
        raise UserError(
            f"--paper: no pair of {runs} has a verdict; run `cooperbench eval -n RUN` first"
        )
    tables = paper_tables(data)
    files = _paper_files(data, tables, commands)
    try:
        _remove_earlier(folder)
        for name, content in files.items():
            write_bytes(folder / name, content)
        write_json(folder / _NUMBERS_FILE, _numbers_content(tables, commands))
    except OSError as error:
        raise UserError(
            f"{error.filename or folder} cannot be written: {error.strerror}"
        ) from error
    return [folder / name for name in (*files, _NUMBERS_FILE)]


def _remove_earlier(folder: Path) -> None:
    """Remove tables and figures of an earlier call, which this one may not have."""
    for pattern in ("tables/*.tex", "figures/*.pdf", "figures/*.svg"):
        for path in folder.glob(pattern):
            path.unlink()


def _paper_files(
    data: PaperData, tables: Sequence[PaperTable], commands: PaperCommands
) -> dict[str, bytes]:
    figures = draw_figures(data)
    sources = [_source_of(run) for run in data.analysis.runs]
    captions = {figure.name: figure.caption for figure in figures}
    readme = markdown.readme_text(data, tables, captions, sources, commands)
    texts = {
        "README.md": readme,
        "tables.md": markdown.tables_text(tables),
        "paper.tex": latex.document_text(tables, captions),
    }
    for table in tables:
        texts[f"tables/{table.name}.tex"] = latex.table_text(table)
    files = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    for figure in figures:
        files[f"figures/{figure.name}.pdf"] = figure.pdf
        files[f"figures/{figure.name}.svg"] = figure.svg
    return files


def _source_of(run: Run) -> RunSource:
    config = read_bytes(run.root / "config.json") or b""
    dataset = " ".join(part for part in run.dataset if part)
    return RunSource(
        run.name,
        run.configuration,
        dataset or "unknown",
        sha256(config).hexdigest(),
        len(run.pairs),
    )


def _numbers_content(tables: Sequence[PaperTable], commands: PaperCommands) -> JsonObject:
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": commands.query,
        "numbers": [asdict(number) for number in numbers_of(tables)],
    }
