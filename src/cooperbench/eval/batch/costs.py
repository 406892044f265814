"""What a Batch job has cost, estimated from what Batch tells of its tasks: when each began and ended, on which machine.

A machine is reckoned from the moment when a task is first given to it until its last one has ended. That it boots
before and is deleted afterwards is not told, and not in it. Where Batch does not name machines, as many are reckoned as
the tasks of each moment need. Nothing here talks to the cloud.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.backends.gcp import prices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.cloud.batch_v1 import AllocationPolicy, Job, StatusEvent, Task

    from cooperbench.sandbox.contract import Estimate

_AT_WORK = ("ASSIGNED", "RUNNING")
_STATE_IN_WORDS = re.compile(r"\bto ([A-Z]+)\b")
_MACHINE_IN_WORDS = re.compile(r"\b(zones/[^/\s]+/instances/[A-Za-z0-9-]+)")


class Attempt(NamedTuple):
    """One at a task, on one machine."""

    machine: str
    """Its zone and id; empty where Batch did not tell."""
    began: float
    ended: float


def cost_of(job: Job, tasks: Iterable[Task], now: float) -> Estimate:
    """`now`: in seconds since 1970; until then whatever has not ended has run."""
    found = [attempt for task in tasks for attempt in attempts_of(task.status.status_events, now)]
    count, seconds = machine_time(found, tasks_on_a_machine(job))
    return prices.estimate(kind_of(job), count, seconds)


def attempts_of(events: Sequence[StatusEvent], now: float) -> list[Attempt]:
    """Of one task. It may be given to several machines, one after the other."""
    found: list[Attempt] = []
    began, machine = 0.0, ""
    for event in sorted(events, key=_time_of):
        state = _state_of(event)
        named = _MACHINE_IN_WORDS.search(event.description)
        if state in _AT_WORK and not began:
            began, machine = _time_of(event), ""
        if named:
            machine = named[1]
        if began and state and state not in _AT_WORK:
            found.append(Attempt(machine, began, _time_of(event)))
            began = 0.0
    if began:
        found.append(Attempt(machine, began, max(began, now)))
    return found


def machine_time(attempts: Sequence[Attempt], on_a_machine: int) -> tuple[int, float]:
    """How many machines there were, about, and for how many seconds in all."""
    spans: dict[str, tuple[float, float]] = {}
    unnamed = []
    for attempt in attempts:
        if attempt.machine:
            first, last = spans.get(attempt.machine, (attempt.began, attempt.ended))
            spans[attempt.machine] = (min(first, attempt.began), max(last, attempt.ended))
        else:
            unnamed.append(attempt)
    most, seconds = _as_many_as_needed(unnamed, on_a_machine)
    return len(spans) + most, sum(last - first for first, last in spans.values()) + seconds


def _as_many_as_needed(attempts: Sequence[Attempt], on_a_machine: int) -> tuple[int, float]:
    changes = sorted([(each.began, 1) for each in attempts] + [(each.ended, -1) for each in attempts])
    most, seconds, running, before = 0, 0.0, 0, 0.0
    for moment, change in changes:
        seconds += math.ceil(running / on_a_machine) * (moment - before)
        running, before = running + change, moment
        most = max(most, math.ceil(running / on_a_machine))
    return most, seconds


def kind_of(job: Job) -> prices.Kind:
    """Of the machines that the job got, else of those that it asked for."""
    from google.cloud.batch_v1 import AllocationPolicy

    asked = _asked(job)
    told = [one for group in job.status.task_groups.values() for one in group.instances]
    machine_type = (told[0].machine_type if told else "") or asked.machine_type
    model = (told[0].provisioning_model if told else 0) or asked.provisioning_model
    disk = told[0].boot_disk if told and told[0].boot_disk.size_gb else asked.boot_disk
    return prices.Kind(
        machine_type, model == AllocationPolicy.ProvisioningModel.SPOT, disk.type_, int(disk.size_gb)
    )


def tasks_on_a_machine(job: Job) -> int:
    """As Batch tells, else as many as there is room for."""
    told = [int(one.task_pack) for group in job.status.task_groups.values() for one in group.instances]
    if told and told[0] > 0:
        return told[0]
    size, need = prices.size_of(_asked(job).machine_type), job.task_groups[0].task_spec.compute_resource
    if size is None or not need.cpu_milli or not need.memory_mib:
        return 1
    cpus, memory_gb = size
    return max(1, min(int(cpus * 1000 // need.cpu_milli), int(memory_gb * 1024 // need.memory_mib)))


def _asked(job: Job) -> AllocationPolicy.InstancePolicy:
    return job.allocation_policy.instances[0].policy


def _time_of(event: StatusEvent) -> float:
    """Google's type for times is a datetime with nanoseconds."""
    return float(event.event_time.timestamp()) if event.event_time else 0.0


def _state_of(event: StatusEvent) -> str:
    """Older events only say it in words."""
    if event.task_state:
        return str(event.task_state.name)
    words = _STATE_IN_WORDS.search(event.description)
    return words[1] if words else ""
