"""Reference runs: no verdict without a golden patch that passes under the same conditions."""

from __future__ import annotations

import json
import socketserver
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace as replace_fields

from cooperbench import evaluate, run, run_patch_test
from cooperbench.cli import main
from cooperbench.dataset.discovery import load_tasks
from cooperbench.errors import UserError
from cooperbench.eval import backends
from cooperbench.eval.reference_store import ReferenceStore, export_references
from tests.integration.runner.test_plugged_in import TheirBackend
from tests.support.tiny import REPO, RUNNER, TASK_ID, golden, text_patch, write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PYTEST_RUNNER = """#!/usr/bin/env bash
set -euo pipefail
cd /workspace/repo
reset() { git reset -q --hard; git clean -qfdx; echo "Cleaned up."; }
trap reset EXIT
git reset -q --hard; git clean -qfdx
if [ -n "${2:-}" ]; then git apply "/patches/$2"; fi
git apply "/patches/$1"
passed=0 failed=0
for test in tests/*.sh; do
    if bash "$test"; then passed=$((passed + 1)); echo "$test::it PASSED"; else failed=$((failed + 1)); echo "$test::it FAILED"; fi
done
if [ "$failed" -gt 0 ]; then echo "=== $failed failed, $passed passed in 0.01s ==="; exit 1; fi
echo "=== $passed passed in 0.01s ==="
"""


CARGO = """grep -h "^test " src/a.rs
ok=$(grep -c "ok$" src/a.rs) || true
ignored=$(grep -c "ignored$" src/a.rs) || true
echo "test result: ok. $ok passed; 0 failed; $ignored ignored; 0 measured; 0 filtered out"
passed=0 failed=0"""


class Index:
    """A server on loopback that only sandboxes with a network reach; it counts who comes."""

    def __init__(self) -> None:
        self.visits = 0
        self.answers: list[str] = []
        index = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = index.answers[index.visits % len(index.answers)] if index.answers else "ok"
                index.visits += 1
                self.wfile.write(f"{answer}\n".encode())

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    def ask(self) -> str:
        """In a runner: fails where there is no network."""
        return f"{{ read -r answer </dev/tcp/127.0.0.1/{self.port}; }} 2>/dev/null"


@pytest.fixture
def index() -> Iterator[Index]:
    made = Index()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@contextmanager
def own_cache(path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOPERBENCH_CACHE_DIR", str(path))
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path) -> Iterator[None]:
    with own_cache(tmp_path / "cache"):
        yield


class Lab:
    """The tiny dataset with a runner of its own, and runs on it."""

    def __init__(
        self, folder: Path, runner: str = RUNNER, feature_ids: tuple[int, ...] = (1, 2)
    ) -> None:
        self.dataset = write_tiny(folder / "data", feature_ids=feature_ids)
        self.logs = folder / "logs"
        (self.task,) = load_tasks(self.dataset)
        self.task.runner_script.write_text(runner)

    def run(self, name: str = "r", **options: Any) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "agent": "oracle",
            "backend": "local",
            "concurrency": 2,
        } | options
        run(name, dataset_dir=self.dataset, logs_dir=self.logs, **settings)
        return self.summary(name)

    def summary(self, name: str = "r") -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.logs / name / "summary.json").read_text())
        part: dict[str, Any] = content["settings"]["coop"]
        return part

    def evaluation(self, pair: str = "f1_f2", name: str = "r") -> dict[str, Any]:
        path = self.logs / name / "coop" / REPO / str(TASK_ID) / pair / "eval.json"
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    def cli(self, *words: str) -> int:
        return main([*words, "--dataset-dir", str(self.dataset)])


def needs_index(index: Index) -> str:
    """A runner that installs from an index, as those of published images do, and ends with a note."""
    install = f'{index.ask()} || {{ echo "ERROR: No matching distribution found for widget" >&2; exit 1; }}\n'
    return RUNNER.replace("trap reset EXIT\n", 'trap "reset; echo Cleaned up." EXIT\n' + install)


def test_auto_policy_prefers_no_network(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.run()["rates"]["overall_success"]["passed"] == 1
    evaluation = lab.evaluation()
    assert (evaluation["eval_network"], evaluation["network"]) == ("auto", "none")
    assert (
        evaluation["references"]["2"] | {"tests_passed": 2, "success": True}
        == evaluation["references"]["2"]
    )
    assert json.loads((lab.logs / "r/config.json").read_text())["eval_network"] == "auto"


def test_auto_policy_notes_a_needed_network_once(
    tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, needs_index(index), feature_ids=(1, 2, 3))
    summary = lab.run()
    assert summary["rates"]["overall_success"]["passed"] == 3
    assert lab.evaluation()["network"] == "public"
    assert capsys.readouterr().out.count("its tests run with a network") == 1


def test_none_is_never_weakened(
    tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, needs_index(index))
    words = ("run", "-n", "r", "-a", "oracle", "--backend", "local", "--log-dir", str(lab.logs))
    assert lab.cli(*words, "--eval-network", "none") == 0, "nobody's error"
    assert index.visits == 0
    evaluation = lab.evaluation()
    reason = "ERROR: No matching distribution found for widget"
    assert evaluation["status"] == "no_reference"
    assert evaluation["error"] == f"feature 1: the golden patch does not pass: {reason}"
    assert evaluation["no_reference"] == {"1": reason, "2": reason}
    assert "overall_success" not in evaluation
    summary = lab.summary()
    assert summary["no_reference"] == 1
    assert (summary["errors"], summary["evaluated"]) == (0, 0)
    assert "no reference" in capsys.readouterr().out

    assert lab.cli("eval", "-n", "r", "--backend", "local", "--log-dir", str(lab.logs)) == 0
    assert lab.evaluation()["status"] == "no_reference", "the run's own policy stands"
    words = (
        "eval",
        "-n",
        "r",
        "--backend",
        "local",
        "--log-dir",
        str(lab.logs),
        "--eval-network",
        "public",
    )
    assert lab.cli(*words) == 0
    assert lab.evaluation()["overall_success"] is True
    assert lab.evaluation()["eval_network"] == "public"


def test_the_same_question_is_asked_once_also_across_pairs(tmp_path: Path, index: Index) -> None:
    lab = Lab(tmp_path, needs_index(index), feature_ids=(1, 2, 3))
    lab.run(eval_network="public")
    # Three features alone, which are the reference runs too, and two for each of three merges.
    assert index.visits == 3 + 3 * 2
    lab.run("again", eval_network="public")
    assert index.visits == 2 * 9, (
        "references are known, but verdicts are not taken from another experiment"
    )
    lab.run("untouched", agent="nop", eval_network="public")
    assert index.visits == 2 * 9


def test_failed_golden_patch_affects_its_pairs_only(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, feature_ids=(1, 2, 3))
    right = (lab.task.path / "feature2/feature.patch").read_text()
    (lab.task.path / "feature2/feature.patch").write_text(golden(3))
    summary = lab.run(agent="nop")
    assert [line["state"] for line in summary["results"]] == [
        "no_reference",
        "failed",
        "no_reference",
    ]
    assert summary["rates"]["overall_success"] == {"passed": 0, "of": 1, "rate": 0.0}
    (lab.task.path / "feature2/feature.patch").write_text(right)
    summary = lab.run(agent="nop")
    assert [line["state"] for line in summary["results"]] == ["failed", "failed", "failed"]


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("", "tests.patch is empty"),
        ("no patch at all\n", "tests.patch does not apply"),
        (text_patch("tests/base.sh", ["nothing like it\n"], ["new\n"]), "patch"),
    ],
)
def test_a_tests_patch_that_tests_nothing_gives_no_verdict(
    tmp_path: Path, tests: str, reason: str
) -> None:
    lab = Lab(tmp_path)
    (lab.task.path / "feature2/tests.patch").write_text(tests)
    summary = lab.run()
    assert summary["no_reference"] == 1
    assert reason in lab.evaluation()["no_reference"]["2"]


def test_validate_marks_unsound_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, feature_ids=(1, 2, 3))
    (lab.task.path / "feature2/tests.patch").write_text(text_patch("tests/f2.sh", None, ["true\n"]))
    lab.run()
    assert lab.evaluation()["unsound"] == []
    assert lab.cli("validate", "--backend", "local") == 1
    assert "feature 2: its tests pass without it" in capsys.readouterr().out
    evaluate("r", backend="local", dataset_dir=lab.dataset, logs_dir=lab.logs)
    assert lab.evaluation()["unsound"] == [2], "marked without being judged again"
    assert lab.evaluation("f1_f3")["unsound"] == []
    words = ("run", "-n", "sound", "-a", "oracle", "--backend", "local", "--log-dir", str(lab.logs))
    assert lab.cli(*words, "--sound-only") == 0
    assert [line["features"] for line in lab.summary("sound")["results"]] == [[1, 3]]


def test_flaky_tests_are_named_by_validate_and_not_required(
    tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, PYTEST_RUNNER)
    flaky = text_patch("tests/flaky.sh", None, [f'{index.ask()} && [ "$answer" = ok ]\n'])
    tests = lab.task.path / "feature1/tests.patch"
    tests.write_text(tests.read_text() + flaky)
    index.answers = ["ok", "fail", "ok"]
    words = (
        "validate",
        "--backend",
        "local",
        "--eval-network",
        "public",
        "-f",
        "1,2",
        "--repeat",
        "3",
    )
    assert lab.cli(*words) == 1
    said = capsys.readouterr().out
    assert "feature 1: the golden patch fails in 1 of 3 runs" in said
    assert "feature 1: flaky, not required: tests/flaky.sh::it" in said
    index.answers = ["fail"]
    lab.run(eval_network="public")
    evaluation = lab.evaluation()
    assert evaluation["overall_success"] is True
    assert evaluation["agent1"]["features"]["1"]["flaky_failures"] == ["tests/flaky.sh::it"]
    lab.run("idle", agent="nop", eval_network="public")
    assert lab.evaluation(name="idle")["overall_success"] is False
    wrong = run_patch_test(
        REPO, TASK_ID, 1, golden(2), backend="local", dataset_dir=lab.dataset, eval_network="public"
    )
    assert wrong["success"] is False, "another test fails, too"


def test_tests_in_code_of_the_golden_patch_are_not_required(tmp_path: Path) -> None:
    """Other code that is right has other unit tests and other examples, of which some may be skipped."""
    lab = Lab(tmp_path, PYTEST_RUNNER.replace("passed=0 failed=0", CARGO))
    unit_test = (
        "#[test]\nfn theirs() {}\ntest tests::theirs ... ok\ntest src/a.rs - f (line 9) ... ok\n"
    )
    feature = lab.task.feature(1)
    feature.patch.write_text(
        golden(1) + text_patch("src/a.rs", None, unit_test.splitlines(keepends=True))
    )
    other = "test tests::ours ... ok\ntest src/a.rs - f (line 7) ... ignored\n".splitlines(
        keepends=True
    )
    done = run_patch_test(
        *(REPO, TASK_ID, 1, golden(1) + text_patch("src/a.rs", None, other)),
        backend="local",
        dataset_dir=lab.dataset,
    )
    assert (done["success"], done["error"]) == (True, None)
    (reference,) = ReferenceStore().about(feature)
    assert reference.passed_tests == ["tests/base.sh::it", "tests/f1.sh::it"]


def test_reference_updates_are_all_kept(tmp_path: Path) -> None:
    names_differ = PYTEST_RUNNER.replace(
        'echo "$test::it PASSED"', 'echo "$test::it_$RANDOM$RANDOM PASSED"'
    )
    lab = Lab(tmp_path, names_differ)
    assert lab.run()["rates"]["overall_success"]["passed"] == 1
    for reference in ReferenceStore().known([lab.task]):
        assert (reference.runs, reference.flaky_tests) == (2, reference.passed_tests)
        assert reference.suites is not None, "they were made after that"


def test_references_travel_to_another_machine(
    tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, needs_index(index))
    file = tmp_path / "references.json"
    words = ("validate", "--backend", "local", "--eval-network", "public")
    assert lab.cli(*words, "--export", str(file)) == 0
    visits = index.visits
    with own_cache(tmp_path / "elsewhere"):
        dry = (
            "run",
            "-n",
            "r",
            "-a",
            "nop",
            "--backend",
            "local",
            "--log-dir",
            str(lab.logs),
            "--dry-run",
        )
        capsys.readouterr()
        assert lab.cli(*dry) == 0
        assert "about 2" in capsys.readouterr().out
        assert ReferenceStore().add(json.loads(file.read_text())) == 2
        assert lab.cli(*dry) == 0
        assert "reference runs" not in capsys.readouterr().out
        lab.run(agent="nop", eval_network="public")
        assert index.visits == visits, (
            "neither golden patch was run again, and nothing was handed in"
        )
        assert lab.evaluation()["references"]["1"]["success"] is True
        for reference in ReferenceStore().known([lab.task]):
            ReferenceStore().save(replace_fields(reference, installed=True))
        lab.run("there", eval_network="public")
        assert lab.evaluation(name="there")["overall_success"] is True, (
            "though this backend keeps no installs"
        )
    file.write_text("{}")
    assert lab.cli("validate", "--backend", "local", "--import", str(file)) == 2


def test_validate_tests_only_the_features_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, feature_ids=(1, 2, 3))
    assert lab.cli("validate", "--backend", "local", "-f", "1,3", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tasks"][0]["checks"] == 2 * 2 + 2, (
        "base, golden and combined patch of two features"
    )
    known = export_references(ReferenceStore().known([lab.task]))["references"]
    assert {reference["feature_id"] for reference in known} == {1, 3}
    assert all(reference["base_passes"] is False for reference in known)


def test_a_backend_that_cannot_be_asked_is_not(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    backends.register("theirs-without-options", TheirBackend)
    with pytest.raises(UserError, match="does not support --eval-network"):
        lab.run(backend="theirs-without-options", eval_network="none")
    with pytest.raises(UserError, match="one of auto, none, public"):
        lab.run(eval_network="some")
