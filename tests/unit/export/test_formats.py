"""Tables and JUnit: nothing lost, nothing counted as what it is not, and readable whatever agents and tests wrote."""

from __future__ import annotations

import csv
import io
import json
from importlib import import_module
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from cooperbench.cli import main
from cooperbench.export.junit import xml_text
from cooperbench.report.loading import load_run
from tests.support.report.factory import Kind, Style, layout, share, write_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SHARES: dict[Kind, float] = {
    "passed": 3, "conflict": 2, "capability": 2, "integration": 2, "error": 1, "missing": 1, "broken": 1, "unevaluated": 1,
}  # fmt: skip
PAIRS = layout(2, 6, 30)
# What the schema of Jenkins' xUnit plug-in (junit-10.xsd) allows: attributes, and children in this order.
JUNIT = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, ["testsuite"]),
    "testsuite": (
        {"name", "tests", "failures", "errors", "time", "skipped", "timestamp", "hostname", "id", "package"},
        ["properties", "testcase", "system-out", "system-err"],
    ),
    "properties": (set(), ["property"]),
    "property": ({"name", "value"}, []),
    "testcase": (
        {"name", "classname", "time", "group"},
        ["skipped", "error", "failure", "system-out", "system-err"],
    ),
    "skipped": ({"type", "message"}, []),
    "error": ({"type", "message"}, []),
    "failure": ({"type", "message"}, []),
    "system-out": (set(), []),
}  # fmt: skip


def check_junit(element: ET.Element) -> None:
    attributes, children = JUNIT[element.tag]
    assert set(element.keys()) <= attributes
    places = [children.index(child.tag) for child in element]
    assert places == sorted(places)
    for child in element:
        check_junit(child)


def export(logs: Path, name: str, format_name: str) -> Path:
    target = logs / "out" / format_name
    assert (
        main(["export", name, "--format", format_name, "-o", str(target), "--log-dir", str(logs)])
        == 0
    )
    return target


def test_junit_has_a_test_for_each_pair_and_errors_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "r", PAIRS, share(SHARES))
    write_run(tmp_path, "r", PAIRS, share({"passed": 3, "capability": 1}), setting="solo")
    root = ET.parse(export(tmp_path, "r", "junit")).getroot()
    check_junit(root)
    run = load_run(tmp_path, "r")
    states = {
        setting: [pair.state for pair in run.pairs if pair.setting == setting]
        for setting in run.settings
    }
    for setting, suite in zip(run.settings, root, strict=True):
        counted = {
            "tests": 30,
            "failures": states[setting].count("failed"),
            "errors": states[setting].count("error") + states[setting].count("broken"),
            "skipped": states[setting].count("missing") + states[setting].count("unevaluated"),
        }
        assert {name: int(suite.attrib[name]) for name in counted} == counted
        for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert len(suite.findall(f"testcase/{tag}")) == counted[name]
    cases = {
        (case.attrib["classname"], case.attrib["name"]): case for case in root.iter("testcase")
    }
    assert len(cases) == 60
    for pair in run.of("coop"):
        case = cases[f"r.coop.{pair.key.repo}.task{pair.key.task_id}", pair.paths.folder.name]
        failure = case.find("failure")
        assert (failure is not None) == (pair.state == "failed")
        if failure is not None and failure.attrib["type"] == "conflict":
            assert "plain git merge: conflict in src/app.py" in str(failure.text)
        if failure is not None and failure.attrib["type"] == "capability":
            assert "agent1's patch alone fails the tests of feature" in str(failure.text)
            assert "FAILED tests/test_f" in str(failure.text)
    assert "without a verdict (" in capsys.readouterr().err


def test_junit_marks_no_reference_and_unsound(tmp_path: Path) -> None:
    kinds: dict[tuple[int, ...], Kind] = {
        (1, 2): "no_reference",
        (1, 3): "unsound",
        (2, 3): "passed",
    }
    write_run(
        tmp_path, "r", layout(1, 1, 3), lambda key: kinds[key.features], style=Style(bare=True)
    )
    root = ET.parse(export(tmp_path, "r", "junit")).getroot()
    check_junit(root)
    assert (root.attrib["errors"], root.attrib["failures"], root[0].attrib["skipped"]) == (
        "0",
        "0",
        "1",
    )
    skipped, unsound, passed = root.iter("testcase")
    reason = "feature 2: the golden patch does not pass: ImportError in test_x"
    assert [(one.tag, one.attrib) for one in skipped] == [("skipped", {"message": reason})]
    assert [(one.tag, one.text) for one in unsound] == [
        ("system-out", "unsound: the tests of feature 3 pass without the feature")
    ]
    assert len(passed) == 0


@given(st.text(st.characters()))
def test_any_text_is_readable_xml(text: str) -> None:
    element = ET.Element("failure", message=xml_text(text))
    element.text = xml_text(text)
    read = ET.fromstring(ET.tostring(element))
    assert read.attrib["message"] == xml_text(text)
    assert (read.text or "") == xml_text(text).replace("\r\n", "\n").replace("\r", "\n")


def test_hostile_outputs_stay_text(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "r", {"x_task": {1: [(1, 2)]}}, "integration")
    files = paths.pair_named("coop", "x_task", 1, (1, 2))
    hostile = b"]]></failure><x/>&bad; \x1b[31mred\x1b[0m \x00\x07\xff \xef\xbf\xbf end"
    files.test_output("merged", 1).write_bytes(hostile)
    evaluation = json.loads(files.evaluation.read_text())
    evaluation["merged"]["features"]["1"]["error"] = "\ud800\x0b<b>"
    files.evaluation.write_text(json.dumps(evaluation))
    root = ET.parse(export(tmp_path, "r", "junit")).getroot()
    check_junit(root)
    (failure,) = root.iter("failure")
    assert "]]></failure><x/>&bad; red \ufffd  end" in str(failure.text)
    assert "(<b>)" in str(failure.text)


def test_csv_and_parquet_are_the_same_rows_as_of_a_report(tmp_path: Path) -> None:
    write_run(tmp_path, "r", PAIRS, share(SHARES), style=Style(bare=True))
    text = export(tmp_path, "r", "csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["state"] for row in rows] == [pair.state for pair in load_run(tmp_path, "r").pairs]
    assert main(["report", "r", "--csv", f"{tmp_path}/x.csv", "--log-dir", str(tmp_path)]) == 0
    assert (tmp_path / "x.csv").read_text() == text
    table = (
        import_module("pyarrow.parquet").read_table(export(tmp_path, "r", "parquet")).to_pylist()
    )
    assert [row["overall"] for row in table] == [
        {"true": True, "false": False, "": None}[row["overall"]] for row in rows
    ]


def test_files_go_where_one_says_and_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "r", layout(1, 1, 1), style=Style(bare=True))
    (tmp_path / "empty" / "coop").mkdir(parents=True)
    for words, code, answer in (
        (("r", "--format", "junit"), 0, f"wrote 1 pair to {tmp_path}/r/export/junit.xml\n"),
        (
            ("r", "--format", "csv", "-o", str(tmp_path)),
            0,
            f"wrote 1 pair to {tmp_path}/pairs.csv\n",
        ),
        ((), 2, "no run given; available in "),
        (("empty", "--format", "junit"), 2, "there are no pairs in it"),
        (("r", "--format", "csv", "-o", f"{tmp_path}/pairs.csv/x"), 2, "cannot be written"),
        (("--verify", f"{tmp_path}/no.json"), 2, "no.json cannot be read: No such file"),
    ):
        assert main(["export", *words, "--log-dir", str(tmp_path)]) == code, words
        captured = capsys.readouterr()
        assert answer in captured.out + captured.err
        assert (captured.out + captured.err).count("\n") == 1
