"""What a job has used is reckoned from what Batch tells of its tasks, however much or little that is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from google.cloud import batch_v1
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.backends.gcp.batch import Attempt, attempts_of, machine_time, tasks_on_a_machine, use_of

if TYPE_CHECKING:
    from collections.abc import Sequence

ON = "on zones/us-central1-b/instances/{}"


def event(second: int, words: str, state: int = 0) -> dict[str, Any]:
    time = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.500Z"
    return {"description": f"Task state is updated from {words}", "eventTime": time, "taskState": state}


def task(*events: dict[str, Any]) -> batch_v1.Task:
    made: batch_v1.Task = batch_v1.Task.from_json(json.dumps({"status": {"statusEvents": list(events)}}))
    return made


def job(**more: Any) -> batch_v1.Job:
    policy = {
        "machineType": "n2-standard-4",
        "provisioningModel": "SPOT",
        "bootDisk": {"type": "pd-ssd", "sizeGb": "70"},
    }
    need = {"cpuMilli": "1500", "memoryMib": "4096"}
    made: batch_v1.Job = batch_v1.Job.from_json(
        json.dumps(
            {
                "taskGroups": [{"taskSpec": {"computeResource": need}}],
                "allocationPolicy": {"instances": [{"policy": policy}]},
                **more,
            }
        )
    )
    return made


def test_machines_count_from_their_first_task_to_their_last() -> None:
    taken_away = task(
        event(0, f"PENDING to ASSIGNED {ON.format(1)}.", 2),
        event(2, "ASSIGNED to RUNNING.", 3),
        event(60, f"RUNNING to FAILED {ON.format(1)} due to Spot VM preemption with exit code 50001.", 4),
        event(61, "FAILED to PENDING.", 1),
        event(100, f"PENDING to RUNNING {ON.format(2)}."),
        event(160, f"RUNNING to SUCCEEDED {ON.format(2)}."),
    )
    afterwards = task(event(400, f"PENDING to RUNNING {ON.format(2)}.", 3))
    waiting = task(event(1, "PENDING to PENDING.", 1))
    start = attempts_of(afterwards.status.status_events, 0)[0].began - 400
    used = use_of(job(), [taken_away, afterwards, waiting], now=start + 500)
    assert (used.count, used.what, used.seconds) == (2, "machine", 60 + 400)
    assert (used.vcpu_seconds, used.gib_seconds) == (460 * 4, 460 * 16)
    assert use_of(job(), [waiting], now=start).count == 0


def test_what_the_job_got_counts_and_not_what_it_asked_for() -> None:
    got = {"machineType": "c3-standard-4", "provisioningModel": "STANDARD", "taskPack": "7"}
    found = job(status={"taskGroups": {"group0": {"instances": [got]}}})
    assert (tasks_on_a_machine(job()), tasks_on_a_machine(found)) == (2, 7)
    ran = task(event(0, f"PENDING to RUNNING {ON.format(1)}.", 3), event(30, "RUNNING to SUCCEEDED.", 5))
    used = use_of(found, [ran], now=0)
    # How much memory a machine of that family has its name does not tell.
    assert (used.count, used.seconds, used.vcpu_seconds, used.gib_seconds) == (1, 30, 120, 0)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), max_size=20),
    st.integers(1, 5),
)
def test_unnamed_machines_are_as_many_as_the_tasks_need(spans: Sequence[tuple[int, int]], room: int) -> None:
    attempts = [Attempt("", began, began + length) for began, length in spans]
    count, seconds = machine_time(attempts, room)
    at_work = sum(length for _, length in spans)
    assert at_work / room <= seconds + 1e-6
    assert seconds <= at_work + 1e-6
    by_second = [sum(began <= moment < began + length for began, length in spans) for moment in range(150)]
    assert seconds == pytest.approx(sum(-(-running // room) for running in by_second))
    assert count >= -(-max(by_second) // room)
