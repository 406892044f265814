"""The command line as a user meets it: help, mistakes in one line, exit codes, output for machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cooperbench.cli import COMMANDS, main
from tests.support.requirements import require
from tests.support.tiny import write_tiny


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "data")


def test_help_lists_every_command_without_importing_them() -> None:
    code = (
        "import sys\nfrom cooperbench.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'rich', 'yaml', 'jinja2', 'huggingface_hub', 'cooperbench.runner', 'cooperbench.eval'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert command in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    assert f"cooperbench {command}" in out


def test_both_names_are_installed() -> None:
    from importlib.metadata import entry_points

    names = {
        point.name
        for point in entry_points(group="console_scripts")
        if point.value == "cooperbench.cli:main"
    }
    assert names == {"cooperbench", "coop"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "required"),
        (["fly"], "invalid choice: 'fly'"),
        (
            ["run", "--wat"],
            "cooperbench run: unrecognized arguments: --wat (see cooperbench run --help)",
        ),
        (["config", "show", "--wat"], "--wat (see cooperbench config show --help)"),
        (["config", "set", "backend", "lokal"], "unknown backend 'lokal'; available: "),
        (["config", "set", "eval_network", "some"], "eval_network is 'some'"),
        (["schema", "resul"], "no schema 'resul'; available: result, "),
        (["run", "-f", "1,x"], "'1,x' is not a list of numbers"),
        (["run", "-t", "-1"], "'-1' is not a task's number"),
        (["run", "-t", "x"], "'x' is not a task's number"),
        (["run", "-c", "0"], "'0' is not a whole number above 0"),
        (["run", "-c", "many"], "'many' is not a whole number"),
        (["run", "--time-limit", "nan"], "'nan' is not a number above 0"),
        (["run", "--cost-limit", "-3"], "'-3' is not a number above 0"),
        (["run", "--setting", "duo"], "invalid choice: 'duo'"),
        (["eval"], "the following arguments are required: -n/--name"),
        (["run", "-n", "../x", "-a", "nop"], "is not a valid experiment name"),
        (["run", "-n", "", "-a", "nop"], "'' is not a valid experiment name"),
        (["run", "-a", "nope", "-n", "x"], "no agent 'nope'"),
        (
            ["run", "-n", "x", "-a", "nop,nop", "--setting", "solo"],
            "2 agents (nop,nop) for 1 agent slot in setting solo",
        ),
        (["run", "-n", "x", "-a", "nop,"], "'nop,' is not a list of agents"),
        (["run", "--max-cost", "0"], "'0' is not a number above 0"),
        (["export", "nope"], "no run 'nope' in logs"),
        (["export", "x", "--format", "nope"], "invalid choice: 'nope'"),
        (["run", "-n", "x", "-a", "nop", "-r", "nope"], "nope"),
        (["run", "-n", "x", "-a", "nop", "-t", "99"], "99"),
        (["run", "-n", "x", "-a", "nop", "-f", "1,99"], "99"),
        (["run", "-n", "x", "-a", "nop", "-f", "1"], "different features"),
        (["run", "-n", "x", "-a", "nop", "-s", "nope"], "nope"),
        (["run", "-n", "x", "-a", "nop", "--backend", "nope"], "unknown backend 'nope'"),
        (["run", "-n", "x", "-a", "nop", "--backend", "gcp"], "use --backend local"),
        (["run", "-n", "x", "-a", "scripted"], "--agent-config"),
        (
            ["run", "-n", "x", "-a", "nop", "--agent-config", "missing.yaml"],
            "missing.yaml: no such agent config",
        ),
        (["eval", "-n", "nope"], "no experiment 'nope'"),
    ],
)
def test_mistakes_get_one_line_exit_2_and_write_nothing(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    data: Path,
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COOPERBENCH_DATASET_DIR", str(data))
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc", "/proc/below"])
@pytest.mark.parametrize("command", ["run", "demo", "eval", "report"])
def test_a_log_dir_that_cannot_be_gets_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    data: Path,
    place: str,
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COOPERBENCH_DATASET_DIR", str(data))
    (tmp_path / "file").write_text("in the way")
    words = {
        "run": ["-n", "x", "-a", "nop", "--backend", "local"],
        "demo": [],
        "eval": ["-n", "x", "--backend", "local"],
        "report": ["x"],
    }
    code, _, err = call(capsys, command, *words[command], "--log-dir", place)
    assert code == 2
    assert err.count("\n") == 1
    assert place in err


def test_run_without_local_sandboxes_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: Path
) -> None:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "cooperbench.backends.local.bubblewrap.executables", lambda: [Path("/bin/false")]
    )
    places = ["--dataset-dir", str(data), "--log-dir", str(tmp_path / "logs")]
    code, out, err = call(capsys, "run", "-n", "x", "-a", "nop", "--backend", "local", *places)
    assert (code, out) == (2, "")
    assert not (tmp_path / "logs").exists()
    assert err.count("\n") == 1
    assert "no local sandbox can be made on this machine (bubblewrap does not start). " in err
    assert err.endswith("use --backend docker\n") or "--backend docker outside" in err


def test_a_missing_dataset_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "run", "-n", "x", "-a", "nop")
    assert code == 2
    assert "cooperbench prepare" in err
    assert "--dataset-dir demo" in err


def test_the_default_backend_says_what_to_do_where_it_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path
) -> None:
    code, _, err = call(
        capsys,
        "run",
        "-n",
        "x",
        "-a",
        "nop",
        "--dataset-dir",
        str(data),
        "--log-dir",
        str(tmp_path),
    )
    assert code == 2
    assert "modal" in err
    assert "--backend local" in err


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path
) -> None:
    words = [
        "run",
        "-a",
        "nop",
        "--dry-run",
        "--dataset-dir",
        str(data),
        "--log-dir",
        str(tmp_path / "logs"),
    ]
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "would run tiny_task/task7 f1_f2" in out
    assert "coop-nop: 6 pairs, 6 to run, 0 to evaluate" in out
    code, out, _ = call(capsys, *words, "--json", "-f", "1,2", "-r", "tiny_task")
    plan = json.loads(out)
    assert plan["run_name"] == "coop-nop-tiny_task-f1_f2"
    assert plan["to_run"] == ["tiny_task/task7 f1_f2"]
    assert not (tmp_path / "logs").exists()


def test_json_is_alone_on_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path
) -> None:
    common = [
        "--dataset-dir",
        str(data),
        "--log-dir",
        str(tmp_path / "logs"),
        "--backend",
        "local",
        "--json",
    ]
    code, out, err = call(capsys, "run", "-n", "r", "-a", "oracle", "-f", "1,2", *common)
    assert code == 0
    summary = json.loads(out)
    assert summary["settings"]["coop"]["rates"]["overall_success"] == {
        "passed": 1,
        "of": 1,
        "rate": 1.0,
    }
    assert "[CooperBench] Starting experiment: r" in err
    code, out, _ = call(capsys, "eval", "-n", "r", "--force", *common)
    assert code == 0
    assert json.loads(out)["settings"]["coop"]["evaluated"] == 1
    (data / "tiny_task/task7/setup.sh").write_text("echo out of luck; exit 7\n")
    code, out, _ = call(capsys, "run", "-n", "r2", "-a", "oracle", "-f", "1,2", *common)
    assert code == 1
    (line,) = json.loads(out)["settings"]["coop"]["results"]
    assert line["state"] == "error"
    assert "out of luck" in line["error"]


def test_settings_are_kept_and_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config = tmp_path / "config/cooperbench/config.json"
    assert call(capsys, "config", "set", "backend", "nowhere")[0] == 2
    assert not config.parent.exists()
    code, _, _ = call(capsys, "config", "set", "backend", "local")
    assert code == 0
    assert json.loads(config.read_text()) == {"backend": "local"}
    config.write_text('{"backend": "nowhere"}')
    words = [
        "run",
        "-n",
        "x",
        "-a",
        "nop",
        "--dataset-dir",
        str(data),
        "--log-dir",
        str(tmp_path / "logs"),
    ]
    assert "unknown backend 'nowhere'" in call(capsys, *words)[2]
    monkeypatch.setenv("COOPERBENCH_BACKEND", "elsewhere")
    assert "unknown backend 'elsewhere'" in call(capsys, *words)[2]
    (tmp_path / "config/cooperbench/config.json").write_text("{")
    monkeypatch.delenv("COOPERBENCH_BACKEND")
    code, _, err = call(capsys, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert "config.json cannot be read" in err


def test_validate_names_what_is_broken(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    words = ["validate", "--dataset-dir", str(data), "--backend", "local"]
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "1 of 1 task sound" in out
    assert "6 golden pairs: 1 conflict, 5 merge cleanly" in out
    (data / "tiny_task/task7/feature4/tests.patch").unlink()
    code, out, _ = call(capsys, *words, "--conflicts-only")
    assert (code, out.splitlines()[0]) == (1, "tiny_task/task7/feature4 skipped: no tests.patch")
    feature = data / "tiny_task/task7/feature2"
    (feature / "feature.patch").write_text(
        (feature / "feature.patch").read_text().replace("+feature 2", "+feature two")
    )
    test = data / "tiny_task/task7/feature3/tests.patch"
    test.write_text(test.read_text().replace("feature 3", "line 3"))
    (data / "tiny_task/task7/Dockerfile").unlink()
    code, out, _ = call(capsys, *words, "--json")
    report = json.loads(out)
    assert code == 1
    assert report["ok"] is False
    assert report["skipped"] == ["tiny_task/task7/feature4 skipped: no tests.patch"]
    assert [problem.partition(" (")[0] for problem in report["tasks"][0]["problems"]] == [
        "Dockerfile is missing",
        "feature 2: the golden patch fails: FAILED",
        "feature 3: its tests pass without it",
    ]


def test_tasks_lists_required_tests(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path))
    which = ["--dataset-dir", "demo", "-r", "stencil_task", "-f", "1,2"]
    code, out, _ = call(capsys, "tasks", "--tests", *which)
    assert code == 0
    assert "stencil_task/task0/feature1: not known yet; run cooperbench validate" in out
    assert call(capsys, "validate", "--backend", "local", *which)[0] == 0
    out = call(capsys, "tasks", "--tests", *which)[1]
    assert "  tests.test_filters.Filters.test_case\n" in out
    found = json.loads(call(capsys, "tasks", "--tests", "--json", *which)[1])["features"][0]
    assert f"stencil_task/task0/feature1: {len(found['expected'])} tests" in out
    assert (found["repo"], found["task_id"], found["feature"]) == ("stencil_task", 0, 1)
    assert found["tests_passed"] == len(found["expected"])


def test_a_full_disk_is_one_line() -> None:
    require(Path("/dev/full").exists(), "/dev/full", "a /dev with the usual devices")
    words = [sys.executable, "-m", "cooperbench", "tasks", "--dataset-dir", "demo"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert len(errors) == 1
    assert errors[0].startswith("cooperbench: the disk is full")
