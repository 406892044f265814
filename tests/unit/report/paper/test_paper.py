"""`report --paper`: the same rows as terminal, page and JSON, and nothing that cannot be traced."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from cooperbench.cli import main
from cooperbench.report.loading import load_run
from cooperbench.report.page.overview import make_overview
from cooperbench.report.paper.latex import escape
from tests.support.report.factory import Kind, Style, layout, share, write_run
from tests.unit.report.test_workload import write_scaling

COOP: dict[Kind, float] = {
    "passed": 3, "union": 2, "conflict": 2, "capability": 2, "integration": 2, "error": 1, "missing": 1,
}  # fmt: skip
SOLO: dict[Kind, float] = {"passed": 6, "capability": 2}


def write_runs(logs: Path, style: Style | None = None) -> None:
    pairs = layout(2, 6, 30)
    write_run(logs, "both", pairs, share(COOP), style=style)
    write_run(logs, "both", pairs, share(SOLO, "solo"), setting="solo", style=style)
    write_run(logs, "other", pairs, share(COOP, "2"), style=style)


def report(logs: Path, *words: str) -> int:
    return main(["report", "both", "other", "--log-dir", str(logs), *words])


def numbers_of(folder: Path) -> dict[str, dict[str, Any]]:
    content = json.loads((folder / "numbers.json").read_text())
    keys = [number["key"] for number in content["numbers"]]
    assert len(keys) == len(set(keys))
    return {number["key"]: number for number in content["numbers"]}


def resolve(document: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write_runs(folder)
    return folder


@pytest.fixture(scope="module")
def paper(logs: Path) -> Path:
    folder = logs.parent / "paper"
    assert report(logs, "--paper", str(folder)) == 0
    return folder


def test_every_number_is_where_its_pointer_says(
    logs: Path, paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = json.loads((paper / "numbers.json").read_text())["command"].split()
    assert main(command[1:]) == 0
    document = json.loads(capsys.readouterr().out)
    for number in numbers_of(paper).values():
        found = resolve(document, number["pointer"])
        if isinstance(found, dict):
            assert {name: found[name] for name in ("value", "low", "high", "n")} == {
                name: number[name] for name in ("value", "low", "high", "n")
            }
        else:
            assert found == number["value"]


def test_page_terminal_and_paper_show_the_same_rows(
    logs: Path, paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(logs, "--coordination") == 0
    terminal = capsys.readouterr().out
    numbers = numbers_of(paper)
    overview = make_overview([load_run(logs, name) for name in ("both", "other")])
    for row in overview.rates:
        if row.repo is not None:
            continue
        for verdict, estimate in row.rates.items():
            number = numbers[f"rates/{row.name}/{verdict}"]
            assert asdict(estimate)["value"] == number["value"]
            (line,) = [
                line
                for line in terminal.split("Cost and time")[0].splitlines()
                if line.startswith(f"  {row.name} ")
            ]
            assert number["text"].replace("\xa0", " ") in line
    for deficit in overview.deficits:
        assert deficit.coordination_deficit is not None
        number = numbers[f"deficit/{deficit.second}/deficit"]
        assert number["value"] == deficit.coordination_deficit.value
        assert number["text"].replace("\xa0", " ") in terminal
    for key, number in numbers.items():
        if key.startswith(("communication/", "costs/")):
            assert number["text"].replace("\xa0", " ") in terminal


def test_tables_have_each_number_with_its_key(paper: Path) -> None:
    markdown = (paper / "tables.md").read_text()
    for key, number in numbers_of(paper).items():
        table = key.partition("/")[0]
        line = f"  & {escape(number['text'])} % {key}"
        assert line in (paper / f"tables/{table}.tex").read_text().splitlines()
        assert (
            number["text"].replace("[", "\\[").replace("]", "\\]").replace("<", "\\<") in markdown
        )
    names = {path.stem for path in (paper / "tables").iterdir()}
    assert names == {
        "rates",
        "deficit",
        "merge",
        "public_rule",
        "communication",
        "failures",
        "costs",
    }
    readme = (paper / "README.md").read_text()
    assert f"--paper {paper}" in readme
    for name in names:
        assert f"`tables/{name}.tex`" in readme


def test_public_rule_and_merges_are_counted(logs: Path, paper: Path) -> None:
    numbers = numbers_of(paper)
    pairs = [pair for pair in load_run(logs, "other").pairs if pair.verdicts]
    unions = [pair for pair in pairs if pair.merge_status == "conflict" and pair.verdicts["merged"]]
    assert unions
    assert numbers["merge/other:coop/union"]["value"] == len(unions)
    conflicts = [pair for pair in pairs if pair.verdicts["merge"] is False]
    assert numbers["merge/other:coop/conflict"]["value"] == len(conflicts)
    public = [pair for pair in pairs if pair.public_success]
    assert numbers["public_rule/other:coop/public"]["value"] == len(public)
    assert numbers["communication/other/plans"]["value"] == 2.0


def test_the_same_runs_give_the_same_bytes_again(logs: Path, paper: Path) -> None:
    before = {path: path.read_bytes() for path in paper.rglob("*") if path.is_file()}
    (paper / "tables/agents.tex").write_text("from an earlier call with other runs")
    assert report(logs, "--paper", str(paper)) == 0
    assert {path: path.read_bytes() for path in paper.rglob("*") if path.is_file()} == before


def test_figures_are_a_column_wide_and_name_the_runs(paper: Path) -> None:
    for name in ("success", "deficit", "outcomes"):
        svg = ET.fromstring((paper / f"figures/{name}.svg").read_bytes())
        width = float(svg.attrib["width"].removesuffix("pt"))
        assert width == pytest.approx(72 * 3.33, abs=1)
        texts = [
            "".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text")
        ]
        assert any("gpt-4o" in text for text in texts)
        pdf = (paper / f"figures/{name}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF-")
        assert b"CreationDate" not in pdf
        x, y, box_width, _ = map(
            float, re.findall(rb"/MediaBox \[ (\S+) (\S+) (\S+) (\S+) \]", pdf)[0]
        )
        assert (x, y) == (0, 0)
        assert box_width == pytest.approx(72 * 3.33, abs=1)


def test_numbers_that_a_mismatch_affects_are_marked(tmp_path: Path) -> None:
    write_runs(tmp_path, Style(bare=True))
    paths = load_run(tmp_path, "other").pairs[0].paths
    evaluation = json.loads(paths.evaluation.read_text())
    evaluation["overall_success"] = not evaluation["overall_success"]
    paths.evaluation.write_text(json.dumps(evaluation))
    assert report(tmp_path, "--paper", str(tmp_path / "out")) == 0
    numbers = numbers_of(tmp_path / "out")
    assert numbers["rates/other:coop/overall"]["has_mismatch"]
    assert not numbers["rates/both:coop/overall"]["has_mismatch"]
    marked = escape(numbers["rates/other:coop/overall"]["text"] + "†")
    assert f"{marked} % rates/other:coop/overall" in (tmp_path / "out/tables/rates.tex").read_text()
    assert "## Mismatches" in (tmp_path / "out/README.md").read_text()
    assert "†" in (tmp_path / "out/figures/success.svg").read_text()
    for text in ("tables/rates.tex", "tables.md"):
        assert "something on disk does not fit" in (tmp_path / "out" / text).read_text()


def test_results_over_the_number_of_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scaling(tmp_path)
    nested = {"b_task": {1: [(1, 2), (1, 3), (2, 3), (1, 2, 3)]}}
    write_run(tmp_path, "nested", nested, style=Style(("a",) * 3, ("m",) * 3, bare=True))
    out = tmp_path / "out"
    words = ["report", "n1", "n2", "n4", "nested", "--log-dir", str(tmp_path), "--anyway"]
    assert main([*words, "--paper", str(out)]) == 0
    capsys.readouterr()
    numbers = numbers_of(out)
    workload = [numbers[f"workload/n1:4:coop:even:{agents}/overall"] for agents in (1, 2, 4)]
    assert [number["value"] for number in workload] == [1.0, 0.5, 0.0]
    assert [numbers[f"agents/nested:coop:{size}/groups"]["value"] for size in (2, 3)] == [3, 1]
    command = json.loads((out / "numbers.json").read_text())["command"].split()
    assert main(command[1:]) == 0
    document = json.loads(capsys.readouterr().out)
    assert resolve(document, workload[1]["pointer"])["value"] == 0.5
    for name in ("agents", "workload-1"):
        assert (out / f"figures/{name}.pdf").read_bytes().startswith(b"%PDF-")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    model = r"\input{/etc/passwd} $x_1$ 100% | <b> ☃"
    write_run(tmp_path, "r", {"x_task": {1: [(1, 2)]}}, style=Style(models=(model, model)))
    out = tmp_path / "out"
    assert main(["report", "r", "--log-dir", str(tmp_path), "--paper", str(out)]) == 0
    tables = (out / "tables/rates.tex").read_text()
    assert r"\input{" not in tables
    assert r"\textbackslash{}input\{/etc/passwd\} \$x\_1\$ 100\%" in tables
    assert "<b>" not in (out / "tables.md").read_text().replace("\\<", "")
    ET.fromstring((out / "figures/success.svg").read_bytes())


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--paper", "full"], "--paper full: the folder is not empty, and not from an earlier"),
        (["--paper", "file"], "--paper file: not a folder"),
    ],
)
def test_a_folder_with_something_else_is_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    answer: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "logs", "r", {"x_task": {1: [(1, 2)]}}, style=Style(bare=True))
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("mine")
    Path("file").write_text("mine")
    assert main(["report", "r", *words]) == 2
    captured = capsys.readouterr()
    assert answer in captured.err
    assert captured.err.count("\n") == 1
    assert [path.name for path in Path("full").iterdir()] == ["thesis.tex"]


def test_runs_without_a_verdict_and_a_missing_extra_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "r", {"x_task": {1: [(1, 2)]}}, "unevaluated", style=Style(bare=True))
    out = tmp_path / "out"
    words = ["report", "r", "--log-dir", str(tmp_path), "--paper", str(out)]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "cooperbench: --paper: no pair of r has a verdict; run `cooperbench eval -n RUN` first\n"
    )
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(words) == 2
    assert "pip install 'cooperbench[paper]'" in capsys.readouterr().err
    assert not out.exists()
