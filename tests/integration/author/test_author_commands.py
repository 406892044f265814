"""`cooperbench author`: from a repository to a task that runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from tests.support.author.repositories import PYTHON_BASE, python_repository

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.author.repositories import Repository

TASK = "shapes_task/task1"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.chdir(tmp_path)
    return python_repository(tmp_path / "shapes")


def author(*argv: str) -> int:
    return main(["author", *argv])


def add_features(*branches: str) -> None:
    assert author("init", "shapes", "--no-run") == 0
    for branch in branches:
        assert author("add", TASK, "--branch", branch) == 0


def check(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """The exit status of a check, and the states of its rows by name."""
    capsys.readouterr()
    code = author("check", TASK, "--json", "--repeat", "1", "--no-attacks", *options)
    return code, json.loads(capsys.readouterr().out)


def states(report: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["state"] for row in report["checks"]}


def test_init_runs_the_tests(shapes: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    assert author("init", str(shapes.path), "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["framework"] == "unittest"
    assert content["tests"]["passed"] == 1
    assert content["tests"]["flaky_tests"] == []


def test_accepted_features_make_a_sound_task(
    shapes: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    add_features("cube", "line")
    code, report = check(capsys)
    assert code == 1
    assert states(report).pop("descriptions") == "failed"
    assert {state for name, state in states(report).items() if name != "descriptions"} == {"ok"}
    assert author("accept", TASK, "1,2") == 0
    code, report = check(capsys)
    assert (code, report["ok"]) == (0, True)
    (group,) = report["groups"]
    assert group["solved_by"] == "merge"


def test_check_names_what_is_wrong(shapes: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    shapes.branch("square", "Squares are right", {"tests/test_more.py": _passing_test()})
    add_features("cube", "line")
    folder = shapes.path.parent / "dataset" / TASK
    (folder / "feature1/tests.patch").write_bytes(_tests_that_pass_without(shapes))
    (folder / "feature2/feature.md").write_text("key: AKIA" + "ABCDEFGHIJKLMNOP\n")
    (folder / "setup.sh").chmod(0o644)
    code, report = check(capsys)
    assert code == 1
    failed = {name for name, state in states(report).items() if state == "failed"}
    assert {"base", "secrets", "files", "descriptions"} <= failed
    details = " ".join(detail for row in report["checks"] for detail in row["details"])
    assert "feature 1: its tests pass without it" in details
    assert "feature2/feature.md: line 1 has a key of AWS" in details


def _passing_test() -> str:
    return PYTHON_BASE["tests/test_area.py"].replace("class Area", "class More")


def _tests_that_pass_without(shapes: Repository) -> bytes:
    return shapes.git("diff", "main", "square").encode() + b"\n"


def test_fix_repairs_what_needs_no_decision(
    shapes: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    add_features("cube", "line")
    folder = shapes.path.parent / "dataset" / TASK
    (folder / "combined.patch").unlink()
    (folder / "runner.sh").chmod(0o644)
    # Tests that were left in the golden patch.
    more_tests = shapes.git("diff", "main", "double", "--", "tests").encode() + b"\n"
    golden = folder / "feature1/feature.patch"
    golden.write_bytes(golden.read_bytes() + more_tests)
    report = check(capsys)[1]
    assert states(report)["patches"] == "failed"
    report = check(capsys, "--fix")[1]
    fixed = " ".join(report["fixed"])
    assert "moved tests/test_double.py from feature.patch to tests.patch" in fixed
    assert "made runner.sh executable" in fixed
    assert "wrote combined.patch" in fixed
    assert states(report)["files"] == states(report)["patches"] == "ok"


def test_pairs_that_cannot_be_won_are_left_out_of_runs(
    shapes: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each changes what a square is, in its own way."""
    for name, code in (("double", "2 * side * side"), ("triple", "3 * side * side")):
        module = {"shapes/area.py": f"def square(side):\n    return {code}\n"}
        expected = PYTHON_BASE["tests/test_area.py"].replace("9)", f"{int(code[0]) * 9})")
        shapes.branch(f"{name}_area", f"Squares {name}", {**module, "tests/test_area.py": expected})
    add_features("double_area", "triple_area", "cube")
    report = check(capsys)[1]
    assert states(report)["pairs"] == "warning"
    unsolved = [group["features"] for group in report["groups"] if not group["solved_by"]]
    assert unsolved == [[1, 2], [1, 2, 3]]
    assert main(["tasks", "-f", "1,2", "--dataset-dir", "dataset"]) == 2
    assert "cannot be won: the golden patches conflict" in capsys.readouterr().err
    assert main(["tasks", "-f", "1,3", "--dataset-dir", "dataset"]) == 0


def test_check_reports_a_setup_that_fails(
    shapes: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    add_features("cube", "line")
    script = shapes.path.parent / "dataset" / TASK / "setup.sh"
    script.write_text("#!/bin/bash\necho no compiler >&2\nexit 1\n")
    code, report = check(capsys)
    assert code == 1
    assert states(report)["image"] == "failed"
    assert states(report)["golden"] == "not run"
    details = [detail for row in report["checks"] for detail in row["details"]]
    assert any("no compiler" in detail for detail in details)


def test_bad_input_is_one_line(shapes: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    del shapes
    assert author("check", "nothing") == 2
    assert "there is no task 'nothing'" in capsys.readouterr().err
    assert author("mine", "nowhere") == 2
    assert "nowhere is not a folder" in capsys.readouterr().err
    assert author("mine", "shapes", "--features", "1") == 2
    assert "use 2 to 12" in capsys.readouterr().err


def test_descriptions_are_drafted_again_until_accepted(
    shapes: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    add_features("cube", "line")
    folder = shapes.path.parent / "dataset" / TASK
    (folder / "feature1/feature.md").write_text("")
    assert author("describe", TASK) == 0
    assert "Interface" in (folder / "feature1/feature.md").read_text()
    assert author("accept", TASK, "1") == 0
    (folder / "feature1/feature.md").write_text("By hand: cube\n")
    assert author("describe", TASK) == 0
    assert (folder / "feature1/feature.md").read_text() == "By hand: cube\n"
    capsys.readouterr()


def test_a_task_is_packed_and_installed(
    shapes: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    add_features("cube", "line")
    assert author("pack", TASK, "--to", "shared") == 2
    assert "has drafts" in capsys.readouterr().err
    assert author("accept", TASK, "1,2") == 0
    capsys.readouterr()
    assert author("pack", TASK, "--to", "shared.tar.gz", "--name", "shapes", "--json") == 0
    sha256 = json.loads(capsys.readouterr().out)["sha256"]
    source = f"shared.tar.gz#sha256={sha256}"
    assert main(["prepare", "--from", source, "--dataset-dir", "installed"]) == 0
    installed = shapes.path.parent / "installed"
    readme = (installed / "README.md").read_text()
    assert "1 repository, 1 task, 2 features, 1 pair" in readme
    assert sha256 in readme
    info = json.loads((installed / TASK / "author.json").read_text())
    assert info["clone"] == ""
    assert main(["tasks", "--dataset-dir", "installed"]) == 0
