"""Pairs on real clusters: the same results as here, whatever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.text import plural
from tests.support.cluster.agents import COST, FAILING, GATED, SPENDER

if TYPE_CHECKING:
    from tests.support.cluster.harness import Harness

pytestmark = [pytest.mark.timeout(600)]

ALL = {"f1_f2", "f1_f3", "f2_f3"}


def test_results_are_those_of_a_run_here(harness: Harness) -> None:
    code, output = harness.call("run", *harness.script(), here=True, name="here")
    assert code == 0, output
    code, output = harness.call("run", *harness.script(), "--workers", "2", "--pairs-per-job", "2")
    assert code == 0, output
    assert output.count("✓ Complete") == output.count("✓ passed") == 3
    assert 'Agent 1 → Agent 2: "I add 1"' in output
    expected = harness.results("here")
    assert harness.results() == expected
    assert set(expected) == ALL
    assert not (harness.logs / "r/jobs").exists()
    assert not (harness.logs / "r/jobs.json").exists()
    # Judged again, and nothing else.
    code, output = harness.call("eval", "--force", "--pairs-per-job", "3")
    assert code == 0, output
    assert output.count("✓ passed") == 3
    assert harness.results() == expected


def test_relative_paths_mean_the_working_directory_of_the_call(harness: Harness) -> None:
    harness.dataset, harness.logs = Path("data"), Path("logs")
    code, output = harness.call("run", "-a", "oracle", "-f", "1,2", "--workers", "1")
    assert code == 0, output
    harness.logs = harness.root / "logs"
    assert harness.results()["f1_f2"]["eval.json"]["overall_success"]


def test_ablation_jobs_mix_pairs_of_arms(harness: Harness) -> None:
    words = (
        "ablate",
        "--off",
        "messages",
        "-a",
        "oracle",
        "-f",
        "1,2",
        "--workers",
        "1",
        "--pairs-per-job",
        "2",
    )
    code, output = harness.call(*words)
    assert code == 0, output
    for arm in ("r/all", "r/no-messages"):
        assert harness.results(arm)["f1_f2"]["eval.json"]["overall_success"], arm
    assert not list(harness.logs.rglob("jobs*"))


def test_a_job_that_is_killed_is_given_out_again(harness: Harness) -> None:
    process = harness.start("run", "-a", GATED, "--workers", "1", "-f", "1,2")
    harness.wait(harness.begun, process)
    os.kill(harness.pid(), signal.SIGKILL)
    harness.wait(lambda: harness.begun().total() == 2, process)
    harness.open()
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "it goes to another job" in output
    assert harness.results()["f1_f2"]["eval.json"]["overall_success"]


def test_a_pair_that_fails_on_one_node_is_tried_by_another_job(harness: Harness) -> None:
    code, output = harness.call("run", "-a", FAILING, "--workers", "1", "-f", "1,2")
    assert code == 0, output
    assert "the disk of this node is full; it goes to another job" in output
    assert harness.results()["f1_f2"]["eval.json"]["overall_success"]


def test_a_node_that_dies_loses_nothing(harness: Harness) -> None:
    process = harness.start("run", "-a", GATED, "--workers", "1", "-f", "1,2")
    harness.wait(harness.begun, process)
    harness.cluster.kill_a_node(harness.pid())
    harness.wait(lambda: harness.begun().total() == 2, process)
    harness.open()
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert harness.results()["f1_f2"]["eval.json"]["overall_success"]


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)],
    ids=lambda signals: signals[0].name,
)
def test_ctrl_c_ends_the_jobs(harness: Harness, signals: tuple[signal.Signals, ...]) -> None:
    """So do SIGTERM and its kin, one after the other."""
    words = ("-a", GATED, "--workers", "2")
    process = harness.start("run", *words)
    harness.wait(lambda: harness.begun().total() == 2, process)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 130, output
    assert harness.cluster.jobs() == 0
    assert harness.results() == {}
    assert not (harness.logs / "r/jobs.json").exists()


def test_a_killed_driver_is_continued_and_nothing_is_done_twice(harness: Harness) -> None:
    words = ("run", "-a", GATED, "--workers", "2")
    process = harness.start(*words)
    harness.wait(lambda: harness.begun().total() == 2, process)
    process.kill()
    process.communicate()
    at_work = harness.cluster.jobs()
    process = harness.start(*words)
    # Jobs of Slurm go on without the driver; those of Ray end with it, and others take their place.
    begun = 2 if at_work else 4
    time.sleep(2)
    harness.wait(lambda: harness.begun().total() == begun, process)
    harness.open()
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "Found 2 jobs" in output or "Found 3 jobs" in output
    assert harness.begun().total() == begun + 1
    assert set(harness.results()) == ALL
    if at_work:
        assert not (harness.logs / "r/attempts").exists()


def test_the_budget_is_for_all_jobs_together(harness: Harness) -> None:
    words = (
        "run",
        "-a",
        SPENDER,
        "--workers",
        "1",
        "--pairs-per-job",
        "2",
        "--no-auto-eval",
        "--max-cost",
    )
    code, output = harness.call(*words, str(COST))
    assert code == 3, output
    # A job may begin its second pair before it hears that the first one was enough.
    done = len(harness.results())
    assert done in (1, 2)
    assert f"{plural(3 - done, 'pair')} {'were' if done == 1 else 'was'} not started" in output
    code, output = harness.call(*words, str(COST))
    assert code == 3, output
    assert len(harness.results()) == done


def test_a_node_without_the_backend_is_said_in_one_line(harness: Harness) -> None:
    words = ("-a", GATED, "-f", "1,2", "--backend", "docker", "--workers", "1")
    harness.cluster.environment["DOCKER_HOST"] = "unix:///nonexistent/docker.sock"
    try:
        code, output = harness.call("run", *words)
    finally:
        del harness.cluster.environment["DOCKER_HOST"]
    assert code == 2, output
    assert "on " in output.splitlines()[-1] or "node " in output.splitlines()[-1]
    assert "docker.sock" in output.splitlines()[-1]
    assert harness.cluster.jobs() == 0
