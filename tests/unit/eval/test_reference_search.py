"""Under which conditions golden patches are run, and what of it is kept for the next process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from cooperbench.errors import InfraError
from cooperbench.eval import reference_search
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.records.reference import SuiteRecord
from tests.support.eval.scripted_backend import Call, ReferenceLab, pytest_output
from tests.support.tiny import text_patch

if TYPE_CHECKING:
    from pathlib import Path

UNREACHABLE = """\
npm error code ECONNREFUSED
npm error network request to https://registry.example.org/widget failed, reason: connect ECONNREFUSED 192.0.2.1:443
Cleaned up.
"""
SLOW = b"an agent's, which is slow"
OUTAGE = "the package index registry.example.org is unreachable (npm: ECONNREFUSED)"


class PackageIndex:
    """A runner that installs on each call, from an index that may be down."""

    def __init__(self) -> None:
        self.is_up = True

    def __call__(self, call: Call) -> tuple[int, str]:
        if call.step == "bare" or (call.network == "public" and not self.is_up):
            return 1, UNREACHABLE
        return pytest_output(test_base=True, test_feature=call.has_feature)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))


def test_an_outage_is_named_and_gone_with_the_next_process(tmp_path: Path) -> None:
    index = PackageIndex()
    index.is_up = False
    lab = ReferenceLab(tmp_path, index)
    with lab.process() as references:
        for feature in lab.task.features:
            golden = references.get(feature).golden
            assert golden.error == f"{OUTAGE}; evaluate again when the network is back"
            assert golden.exit_code is None
    assert lab.steps.count("install") == 1, "the other features do not wait for it, too"
    assert not lab.backend.snapshots
    assert {reference.network for reference in ReferenceStore().known([lab.task])} == {"none"}

    index.is_up = True
    with lab.process() as references:
        reference = references.get(lab.task.feature(1))
    assert (reference.golden.success, reference.network, reference.installed) == (
        True,
        "none",
        True,
    )
    assert lab.steps == ["install", "layer"], "the bare image was ruled out before the outage"


def test_an_outage_ends_within_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_search, "OUTAGE_SECONDS", 0.0)
    index = PackageIndex()
    index.is_up = False
    lab = ReferenceLab(tmp_path, index)
    with lab.process() as references:
        assert not references.get(lab.task.feature(1)).golden.success
        index.is_up = True
        assert references.get(lab.task.feature(1)).installed


def test_outage_does_not_weaken_the_policy(tmp_path: Path) -> None:
    """The layer exists, and its tests fail for another reason; then the index is down."""
    index = PackageIndex()

    def runner(call: Call) -> tuple[int, str]:
        return pytest_output(test_feature=False) if call.step == "layer" else index(call)

    lab = ReferenceLab(tmp_path, runner)
    with lab.process() as references:
        references.tester.run(lab.task.feature(1), b"", reference_search._LAYER)  # makes the layer
        index.is_up = False
        assert OUTAGE in str(references.get(lab.task.feature(1)).golden.error)
    index.is_up = True
    with lab.process() as references:
        assert references.get(lab.task.feature(1)).network == "public"
    assert lab.steps == ["public"]


def test_an_outage_does_not_make_confirmation_impossible(tmp_path: Path) -> None:
    """The index goes down after the reference was recorded, and the golden patch runs with suites."""
    index = PackageIndex()
    lab = ReferenceLab(tmp_path, index)
    with lab.process("public") as references:
        feature = lab.task.feature(1)
        references.get(feature)
        index.is_up = False
        with pytest.raises(InfraError, match=re.escape(OUTAGE)):
            references.confirm(feature, b"an agent's", "f" * 40)
    (reference,) = ReferenceStore().known([lab.task])
    assert reference.suites is None, "the next process makes them"


def test_an_outage_makes_no_agent_suspicious(tmp_path: Path) -> None:
    index = PackageIndex()
    lab = ReferenceLab(tmp_path, index)
    suite = SuiteRecord(
        kind="copies", tests=text_patch("tests/test_f1.py", None, ["x\n"]), tests_total=1,
        tests_with_decoys=1, failed=["tests/test_x.py::test_decoy"],
        passed=["tests/test_x.py::test_base"], failed_count=1, passed_count=1,
    )  # fmt: skip
    feature = lab.task.feature(1)
    with lab.process("public") as references:
        reference = references.get(feature)
    ReferenceStore().save(replace(reference, suites=[suite]))
    with lab.process("public") as references:
        index.is_up = False
        with pytest.raises(InfraError, match=re.escape(OUTAGE)):
            references.confirm(feature, b"an agent's", "f" * 40)
        index.is_up = True
        lab.backend.runner = _PrintsAnOutage(index)
        assert references.confirm(feature, b"an agent's", "f" * 40).outcome == "suspicious"


class _PrintsAnOutage:
    """Code under test may print what it likes: the golden patch shows that the index is up."""

    def __init__(self, index: PackageIndex) -> None:
        self.index = index

    def __call__(self, call: Call) -> tuple[int, str]:
        return self.index(call) if call.patch != b"an agent's" else (1, UNREACHABLE)


def test_a_layer_is_kept_only_if_its_runner_installs_everything(tmp_path: Path) -> None:
    def runner(call: Call) -> tuple[int, str]:
        if call.step == "install":
            return 1, "error: the installer of this image is broken\n"
        return PackageIndex()(call)

    lab = ReferenceLab(tmp_path, runner)
    with lab.process() as references:
        assert references.get(lab.task.feature(1)).network == "public"
    assert not lab.backend.snapshots
    assert lab.steps == ["bare", "install", "public", "install"], "once more, now that it works"
    with lab.process() as references:
        assert references.get(lab.task.feature(1)).network == "public"
    assert lab.steps == []


def test_a_layer_whose_tests_fail_on_the_base_is_kept(tmp_path: Path) -> None:
    lab = ReferenceLab(tmp_path, PackageIndex())
    with lab.process() as references:
        assert references.get(lab.task.feature(1)).installed
    assert len(lab.backend.snapshots) == 1


def test_decisions_are_kept_for_skipped_steps(tmp_path: Path) -> None:
    lab = ReferenceLab(tmp_path, PackageIndex())
    with lab.process() as references:
        for number in (1, 2):
            references.get(lab.task.feature(number))
    assert lab.steps == ["bare", "install", "layer", "layer"]
    (note,) = lab.notes
    assert "does not pass in the bare image without a network" in note
    with lab.process() as references:
        for feature in lab.task.features:
            references.get(feature)
    assert lab.steps == ["layer"], "only feature 3 is new"
    assert lab.notes == [], "said when it was decided"


def test_a_flaky_golden_patch_does_not_need_a_network(tmp_path: Path) -> None:
    passes = iter([False, True])
    lab = ReferenceLab(tmp_path, lambda _: pytest_output(test_steady=True, test_timer=next(passes)))
    with lab.process() as references:
        reference = references.get(lab.task.feature(1))
    assert (reference.network, reference.installed, reference.ruled_out) == ("none", False, [])
    assert reference.flaky_tests == ["tests/test_x.py::test_timer"]
    assert (reference.runs, reference.failed_runs) == (2, 1)
    assert lab.steps == ["bare", "bare"]
    with lab.process() as references:
        assert references.get(lab.task.feature(1)).flaky_tests == reference.flaky_tests
        failed = pytest_output(test_steady=True, test_timer=False)
        lab.backend.runner = lambda _: failed
        run = references.test(lab.task.feature(1), b"anything", "f" * 40)
    assert (run.success, run.flaky_failures) == (True, ("tests/test_x.py::test_timer",))


def test_different_tests_fail_each_time(tmp_path: Path) -> None:
    runs = iter([(False, True), (True, False)])

    def runner(_: Call) -> tuple[int, str]:
        one, two = next(runs)
        return pytest_output(test_one=one, test_two=two, test_three=True)

    lab = ReferenceLab(tmp_path, runner)
    with lab.process() as references:
        reference = references.get(lab.task.feature(1))
    assert reference.golden.success
    assert reference.flaky_tests == ["tests/test_x.py::test_one", "tests/test_x.py::test_two"]


def test_a_flaky_test_stays_flaky_when_it_is_measured_again(tmp_path: Path) -> None:
    passes = iter([False, True])
    lab = ReferenceLab(
        tmp_path, lambda _: pytest_output(test_steady=True, test_timer=next(passes, True))
    )
    with lab.process() as references:
        references.get(lab.task.feature(1))
    with lab.process() as references:
        measured = references.measure(lab.task.feature(1))
    assert (measured.runs, measured.failed_runs) == (1, 0)
    assert measured.flaky_tests == ["tests/test_x.py::test_timer"]
    with lab.process() as references:
        assert references.get(lab.task.feature(1)).flaky_tests == measured.flaky_tests


def test_failures_that_are_no_tests_are_not_repeated(tmp_path: Path) -> None:
    def runner(call: Call) -> tuple[int, str]:
        if call.step == "bare":
            return 1, "# m/f\nf/a.go:1:2: undefined: X\nFAIL\tm/f [build failed]\n"
        return PackageIndex()(call)

    lab = ReferenceLab(tmp_path, runner)
    with lab.process() as references:
        references.get(lab.task.feature(1))
    assert lab.steps == ["bare", "install", "layer"]


def test_failed_tests_are_not_repeated(tmp_path: Path) -> None:
    def runner(call: Call) -> tuple[int, str]:
        return pytest_output(test_steady=True, test_broken=call.network == "public")

    lab = ReferenceLab(tmp_path, runner)
    with lab.process() as references:
        assert references.get(lab.task.feature(1)).network == "public"
    assert lab.steps == ["bare"] * 4 + ["install", "layer", "public"]


def test_go_starts_with_the_dependency_layer(tmp_path: Path) -> None:
    lab = ReferenceLab(tmp_path, lambda _: pytest_output(test_steady=True))
    lab.task.runner_script.write_text("cd /workspace/repo\ngo test ./...\n")
    with lab.process() as references:
        assert references.get(lab.task.feature(1)).installed
    assert lab.steps == ["install", "layer"]
    assert lab.notes == [], "the bare image would do"


def test_package_managers_do_not_wait_offline(tmp_path: Path) -> None:
    lab = ReferenceLab(tmp_path, PackageIndex())
    with lab.process() as references:
        references.get(lab.task.feature(1))
    offline = [call for call in lab.backend.calls if call.network == "none"]
    assert [call.step for call in offline] == ["bare", "layer"]
    expected = {
        "PIP_RETRIES": "0",
        "UV_OFFLINE": "1",
        "POETRY_REQUESTS_MAX_RETRIES": "0",
        "npm_config_offline": "true",
        "npm_config_fetch_retries": "0",
        "pnpm_config_offline": "true",
        "YARN_ENABLE_NETWORK": "false",
        "GOPROXY": "off",
        "CARGO_NET_OFFLINE": "true",
    }
    for call in offline:
        assert {name: call.env.get(name) for name in expected} == expected


def test_a_slow_patch_has_as_much_more_time_for_a_suite_as_it_has_tests(tmp_path: Path) -> None:
    """A suite has more tests, so an honest patch that is slower than the golden one may need long."""
    decoys = [f"test_decoy{number}" for number in range(9)]

    def print_results(call: Call) -> tuple[int, str]:
        if b"suite" in call.tests:
            return pytest_output(test_base=True, **dict.fromkeys(decoys, False))
        return pytest_output(test_base=True, test_feature=True)

    def take_time(call: Call) -> float:
        if call.patch != SLOW:
            return 1.0
        return 100.0 if b"suite" in call.tests else 20.0

    lab = ReferenceLab(tmp_path, print_results)
    lab.backend.seconds_of = take_time
    suite = SuiteRecord(
        kind="copies", tests=text_patch("tests/test_f1.py", None, ["suite\n"]), tests_total=1,
        tests_with_decoys=1, failed=[f"tests/test_x.py::{decoy}" for decoy in decoys],
        passed=["tests/test_x.py::test_base"], failed_count=9, passed_count=1,
    )  # fmt: skip
    feature = lab.task.feature(1)
    with lab.process() as references:
        reference = references.get(feature)
    ReferenceStore().save(replace(reference, suites=[suite]))
    with lab.process() as references:
        assert references.test(feature, SLOW, "e" * 40).success
        assert references.confirm(feature, SLOW, "e" * 40).outcome == "confirmed"
