"""A run that was embellished says so, in one line and beside its numbers; an honest run does not."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import ablate, evaluate, run
from cooperbench._version import __version__
from cooperbench.agents.base import OracleAgent
from cooperbench.cli import main
from cooperbench.errors import InfraError
from cooperbench.report.loading import load_run
from cooperbench.report.mismatch import MARK, mismatch_texts, unchecked_texts
from cooperbench.report.page.overview import make_overview
from tests.support.runner.harness import Harness
from tests.support.tiny import REPO, TASK_ID, golden, write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cooperbench.agents.session import AgentSession

pytestmark = pytest.mark.xdist_group("consistency")
AGENT = f"{__name__}:LearningAgent"
TASK = f"{REPO}/task{TASK_ID}"
UNCONFIRMED = "successes without a confirmation run"
"""What cannot be checked: the tests of the tiny dataset have no version that must fail."""


class LearningAgent:
    """Crashes on feature 3 until it has learned how to implement it."""

    has_learned = False
    outages = 0
    """Number of infrastructure errors to come."""

    def run(self, session: AgentSession) -> None:
        if LearningAgent.outages:
            LearningAgent.outages -= 1
            raise session.remember(InfraError("the provider is away"))
        if session.slot.feature_ids == (3,) and not self.has_learned:
            raise RuntimeError("I do not know how")
        OracleAgent().run(session)


class Logs:
    """A copy of a run's logs, to tamper with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run_folder = root / "logs" / "r"

    def pair(self, features: str, run_name: str = "r") -> Path:
        return self.root / "logs" / run_name / "coop" / REPO / str(TASK_ID) / features

    def run(self, agent: str = AGENT, name: str = "r", **options: Any) -> None:
        values: dict[str, Any] = {
            "run_name": name, "agent": agent, "backend": "local", "concurrency": 4, "eval_concurrency": 4,
            "dataset_dir": self.root / "data", "logs_dir": self.root / "logs",
        }  # fmt: skip
        run(**(values | options))

    def evaluate(self, **options: Any) -> None:
        evaluate(
            "r",
            backend="local",
            dataset_dir=self.root / "data",
            logs_dir=self.root / "logs",
            **options,
        )

    def edit(self, path: Path, **values: Any) -> None:
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | values, indent=2))

    def history(self) -> list[str]:
        return (self.run_folder / "history.jsonl").read_text().splitlines()

    def write_history(self, lines: list[str]) -> None:
        (self.run_folder / "history.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def mismatches(self, name: str = "r") -> list[str]:
        return mismatch_texts(load_run(self.root / "logs", name).mismatches)

    def unchecked(self, name: str = "r") -> list[str]:
        return unchecked_texts(load_run(self.root / "logs", name).mismatches)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pairs, of which one passes, and the same three by another agent."""
    root = tmp_path_factory.mktemp("made")
    write_tiny(root / "data", (1, 2, 3))
    logs = Logs(root)
    logs.run()
    logs.run("oracle", "other")
    return root


@pytest.fixture
def logs(made: Path, tmp_path: Path) -> Logs:
    shutil.copytree(made, tmp_path / "copy", symlinks=True)
    return Logs(tmp_path / "copy")


def learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LearningAgent, "has_learned", True)


def switch_canaries_off(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.evaluate(canary=False)


def repeat_failed_pair(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(monkeypatch)
    logs.run(features=[1, 3], force=True)


def remove_failed_pairs(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(logs.pair("f1_f3"))
    shutil.rmtree(logs.pair("f2_f3"))
    (logs.run_folder / "summary.json").unlink()


def retry_crashed_agent(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(logs.pair("f1_f3"))
    learn(monkeypatch)
    logs.run()


def copy_verdict(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(logs.pair("f1_f2") / "eval.json", logs.pair("f1_f3"))


def copy_and_relabel_verdict(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_verdict(logs, monkeypatch)
    evaluation = logs.pair("f1_f3") / "eval.json"
    patches = json.loads((logs.pair("f1_f3") / "result.json").read_text())["agents"]
    checksums = {agent_id: agent["patch_sha256"] for agent_id, agent in patches.items()}
    logs.edit(evaluation, features=[1, 3], patches=checksums)


def edit_verdict(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.edit(logs.pair("f1_f3") / "eval.json", overall_success=True)


def edit_costs(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.edit(logs.pair("f1_f3") / "result.json", cost=-1.0)


def edit_verdict_and_evaluate_again(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call finds the edited file, and takes it into the history."""
    path = logs.pair("f1_f3") / "eval.json"
    content = json.loads(path.read_text().replace('"success": false', '"success": true'))
    path.write_text(json.dumps(content | {"individual_success": True, "overall_success": True}))
    logs.evaluate()


def copy_pair_of_other_agent(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(logs.pair("f1_f3"))
    shutil.copytree(logs.pair("f1_f3", "other"), logs.pair("f1_f3"), symlinks=True)


def copy_pair_of_other_run(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_pair_of_other_agent(logs, monkeypatch)
    result = logs.pair("f1_f3") / "result.json"
    result.write_text(result.read_text().replace('"oracle"', json.dumps(AGENT)))


def add_pair(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Logs(logs.root / "elsewhere")
    write_tiny(elsewhere.root / "data", (1, 2, 3, 4))
    elsewhere.run(features=[1, 4])
    shutil.copytree(elsewhere.pair("f1_f4"), logs.pair("f1_f4"), symlinks=True)


def swap_patch_before_evaluation(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    (logs.pair("f1_f3") / "agent2.patch").write_text(golden(3))
    logs.evaluate()


def swap_patch_after_evaluation(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    (logs.pair("f1_f3") / "agent2.patch").write_text(golden(3))


def weaken_tests_before_evaluation(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = logs.root / "data" / REPO / f"task{TASK_ID}" / "feature1" / "tests.patch"
    tests.write_text(tests.read_text().replace("^feature", "feature"))
    logs.evaluate(features=[1, 3])


def evaluate_one_pair_with_less_time(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.evaluate(features=[1, 3], test_timeout=60, force=True)


def evaluate_one_pair_with_network(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.evaluate(features=[1, 3], eval_network="public")


def remove_history(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    (logs.run_folder / "history.jsonl").unlink()


def cut_history(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.write_history(logs.history()[:3])


def cut_last_call(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    first_call = logs.history()
    repeat_failed_pair(logs, monkeypatch)
    shutil.rmtree(logs.run_folder / "attempts")
    logs.write_history(first_call)
    logs.edit(logs.pair("f1_f3") / "result.json", attempt=1, earlier_attempts=[])


def edit_history(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = logs.history()
    index = next(number for number, line in enumerate(lines) if '"overall_success":false' in line)
    lines[index] = lines[index].replace('"overall_success":false', '"overall_success":true')
    logs.write_history(lines)


def drop_history_line(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = logs.history()
    logs.write_history([lines[0], *lines[2:]])


def edit_options_of_call(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = logs.run_folder / "config.json"
    path.write_text(path.read_text().replace('"canary": true', '"canary": false'))


def edit_time_limit(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.edit(logs.run_folder / "config.json", time_limit_seconds=1)


def forget_requests(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = logs.run_folder / "config.json"
    content = json.loads(path.read_text())
    del content["requested"]
    path.write_text(json.dumps(content))


def mix_versions(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cooperbench.runner.pair_run.__version__", "99.0")
    write_tiny(logs.root / "data", (1, 2, 3, 4))
    logs.run(features=[1, 4], auto_eval=False)


RATES = ("  r:coop  1", "  r:coop  3", "  r:coop  4")
F13 = f"{TASK} f1_f3"
BOTH = f"{F13}, {TASK} f2_f3"
CONFIG = "config.json is not the one of call 1: its options were changed"
CASES: list[tuple[Callable[[Logs, pytest.MonkeyPatch], None], list[str]]] = [
    (
        switch_canaries_off,
        [f"coop: successes are not confirmed (--no-canary): {TASK} f1_f2, {BOTH}"],
    ),
    (
        repeat_failed_pair,
        [f"coop: run again although there was a result (before: failed): {F13}"],
    ),
    (remove_failed_pairs, [f"coop: the result in history.jsonl is gone: {BOTH}"]),
    (
        retry_crashed_agent,
        [f"coop: run again although there was a result (before: failed): {F13}"],
    ),
    (copy_verdict, [f"coop: eval.json is of another pair (coop {TASK} f1_f2): {F13}"]),
    (copy_and_relabel_verdict, [f"coop: eval.json has the key of {TASK} f1_f2: {F13}"]),
    (
        edit_verdict,
        [
            f"coop: eval.json contradicts itself: overall_success is true, a part of it is not: {F13}"
        ],
    ),
    (edit_costs, [f"coop: result.json is not the one in history.jsonl: {F13}"]),
    (
        edit_verdict_and_evaluate_again,
        [f"coop: another verdict on the same patches, tests and options: {F13}"],
    ),
    (
        copy_pair_of_other_agent,
        [
            f"coop: agent1 is oracle, in config.json {AGENT}; agent2 is oracle, in config.json {AGENT}: {F13}"
        ],
    ),
    (copy_pair_of_other_run, [f"coop: result.json is of the run other: {F13}"]),
    (add_pair, [f"coop: no call in config.json asked for this: {TASK} f1_f4"]),
    (
        swap_patch_before_evaluation,
        [f"coop: the tests ran on another patch than agent2 handed in: {F13}"],
    ),
    (swap_patch_after_evaluation, [f"coop: agent2.patch is not the one in result.json: {F13}"]),
    (
        weaken_tests_before_evaluation,
        [f"coop: the dataset's files changed between the run and the evaluation: {F13}"],
    ),
    (
        evaluate_one_pair_with_less_time,
        [f"coop: evaluated with --test-timeout 60, most of the run with 600: {F13}"],
    ),
    (
        evaluate_one_pair_with_network,
        [f"coop: evaluated with --eval-network public, most of the run with auto: {F13}"],
    ),
    (remove_history, ["history.jsonl is missing: results may have been replaced or removed"]),
    (cut_history, ["history.jsonl was cut off: summary.json is of the end of call 1"]),
    (cut_last_call, ["history.jsonl does not have call 2 of 2", CONFIG]),
    (edit_history, ["history.jsonl was changed: line {} does not follow line {}"]),
    (drop_history_line, ["history.jsonl was changed: line 2 does not follow line 1"]),
    (edit_options_of_call, [CONFIG]),
    (
        edit_time_limit,
        [
            f"coop: the agents worked with other options than in config.json: --time-limit: {TASK} f1_f2, {BOTH}",
            CONFIG,
        ],
    ),
    (
        mix_versions,
        [f"coop: run by version 99.0, most of the run with {__version__}: {TASK} f1_f4"],
    ),
    (forget_requests, [CONFIG, "config.json was changed: it lacks the requested pairs"]),
]


@pytest.mark.parametrize(
    ("tamper", "expected"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_one_line_says_what_does_not_fit(
    logs: Logs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tamper: Callable[[Logs, pytest.MonkeyPatch], None],
    expected: list[str],
) -> None:
    before = submission(logs)
    tamper(logs, monkeypatch)
    capsys.readouterr()
    texts = logs.mismatches()
    if tamper is edit_history:
        numbers = [int(word) for word in texts[0].split() if word.isdigit()]
        expected = [expected[0].format(*numbers)]
    assert texts == expected
    lines = [f"r: {text}" for text in expected]
    check_reports(logs, lines, capsys)
    check_exports(logs, lines, capsys)
    # A submission that was made before does not fit the logs any more.
    assert main(["export", "r", "--verify", str(before), "--log-dir", str(logs.root / "logs")]) == 1
    out = capsys.readouterr().out.splitlines()
    assert {f"the logs do not fit together: {text}" for text in expected} <= set(out)


def submission(logs: Logs) -> Path:
    target = logs.root / "submission.json"
    argv = ["export", "r", "--format", "leaderboard", "-o", str(target)]
    assert main([*argv, "--log-dir", str(logs.root / "logs")]) == 0
    return target


def check_reports(logs: Logs, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--log-dir", str(logs.root / "logs")]
    assert main(["report", "r", *folder]) == 0
    out = capsys.readouterr().out
    listed = out.partition("\nMismatches (")[2].partition("\n\n")[0].splitlines()[1:]
    assert [line.strip() for line in listed] == lines
    (rates,) = [line for line in out.splitlines() if line.startswith(RATES)]
    assert MARK in rates
    assert main(["report", "r", "--json", *folder]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [
        f"r: {entry['text']}" for entry in content["mismatches"] if entry["kind"] != "unchecked"
    ] == lines
    assert "overall" in content["rates"][0]["affected"]
    assert main(["compare", "r", "other", *folder]) == 0
    out = capsys.readouterr().out
    for line in lines:
        assert line in out
    rows = [line for line in out.splitlines() if line.startswith("  r:coop  ")]
    assert rows
    assert all(MARK in row for row in rows)
    overview = make_overview([load_run(logs.root / "logs", "r")])
    assert overview.mismatches == lines
    assert "overall" in overview.rates[0].affected
    assert any(cell and cell.mismatches for pair in overview.pairs for cell in pair.cells)


def check_exports(logs: Logs, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = submission(logs)
    err = capsys.readouterr().err
    for line in lines:
        assert f"mismatch: {line}" in err
    content = json.loads(path.read_text())
    assert [f"r: {text}" for text in content["options"]["mismatches"]] == lines
    assert any(pair["options"]["mismatches"] for pair in content["pairs"])
    # Nobody needs the logs to see it.
    assert main(["export", "--verify", str(path), "--log-dir", str(logs.root / "nowhere")]) == 1
    for format_name in ("csv", "junit"):
        target = logs.root / format_name
        argv = ["export", "r", "--format", format_name, "-o", str(target)]
        assert main([*argv, "--log-dir", str(logs.root / "logs")]) == 0
    kinds = content["pairs"][0]["options"]["mismatches"]
    rows = (logs.root / "csv").read_text()
    assert all(kind in rows for kind in kinds)
    assert 'name="mismatch"' in (logs.root / "junit").read_text()
    capsys.readouterr()


def check_is_honest(logs: Logs, name: str = "r") -> None:
    assert logs.mismatches(name) == []
    assert [text for text in logs.unchecked(name) if not text.endswith(UNCONFIRMED)] == []


def test_an_honest_run_that_goes_on_has_no_mismatch(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_is_honest(logs)
    check_is_honest(logs, "other")
    before = submission(logs)
    logs.run()  # there is nothing left to do
    assert submission(logs).read_bytes() == before.read_bytes()
    folder = ["--log-dir", str(logs.root / "logs")]
    assert main(["report", "r", *folder]) == 0
    out = capsys.readouterr().out
    assert "Mismatches" not in out
    assert MARK not in out
    assert main(["export", "--verify", str(before), *folder]) == 0
    # More pairs after two outages, groups, other settings, and another policy for all tests.
    write_tiny(logs.root / "data", (1, 2, 3, 4))
    monkeypatch.setattr("cooperbench.retry.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(LearningAgent, "outages", 2)
    logs.run(features=[1, 4])
    assert LearningAgent.outages == 0
    logs.run(features=[1, 2, 4])
    logs.run(features=[1, 2], setting="solo")
    check_is_honest(logs)
    logs.evaluate(eval_network="public", test_timeout=300, force=True)
    check_is_honest(logs)


def test_arms_of_an_ablation_have_no_mismatch(logs: Logs) -> None:
    ablate(
        "study", ["messages"], agent="oracle", setting="team", backend="local", features=[1, 2],
        dataset_dir=logs.root / "data", logs_dir=logs.root / "logs",
    )  # fmt: skip
    for arm in ("all", "no-messages"):
        run = load_run(logs.root / "logs", f"study/{arm}")
        assert len(run.pairs) == 1
        assert mismatch_texts(run.mismatches) == []


def test_killed_run_has_no_mismatch(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    logs = Logs(tmp_path)
    process = harness.start()
    while not harness.results():
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=60)
    harness.wait_for_no_survivors()
    assert logs.mismatches() == []
    assert logs.unchecked() == ["cannot be checked: call 1 still runs or was killed, run it again"]
    status, output = harness.finish()
    assert status == 0, output
    check_is_honest(logs)


def test_weaker_tests_under_the_same_name_show_in_comparisons(
    logs: Logs, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = logs.root / "data" / REPO / f"task{TASK_ID}" / "feature1" / "tests.patch"
    tests.write_text(tests.read_text().replace("^feature", "feature"))
    logs.run("nop", "weak", features=[1, 2])
    line = f"r, weak: the dataset's files differ between these runs: {TASK} f1_f2"
    for command in ("report", "compare"):
        assert main([command, "r", "weak", "--log-dir", str(logs.root / "logs")]) == 0
        out = capsys.readouterr().out
        assert line in out
        rates = [
            line for line in out.splitlines() if line.startswith(("  r:coop ", "  weak:coop "))
        ]
        assert all(MARK in rate for rate in rates[:2])
    assert logs.mismatches("weak") == []
