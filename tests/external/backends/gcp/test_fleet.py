"""Machines come when they are needed, are shared, and go, whatever way a harness ends; what goes wrong is said in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.docker.containers import remove_leftovers as remove_containers
from cooperbench.backends.gcp import GCPBatchBackend
from cooperbench.backends.gcp.google_clients import PURPOSE, resource_labels
from cooperbench.backends.ownership import this_owner
from cooperbench.cli import main
from cooperbench.errors import InfraError, Interrupted, SandboxDead, SandboxDestroyed, UserError
from cooperbench.sandbox.contract import SandboxOptions
from tests.support.gcp.compute_server import ComputeServer, Refused
from tests.support.gcp.namespaces import ALLOWED_PLACES, PLACES, attempt
from tests.support.paths import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.backends.docker.engine import Engine


IDLE = "cooperbench-idle-seconds"


def wait_until(what: object, condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_sandboxes_share_a_machine_until_it_is_full(compute: ComputeServer, gcp_base: str) -> None:
    backend = GCPBatchBackend(
        machine_type="e2-standard-4",
        spot=True,
        network="vpc",
        subnetwork="sub",
    )
    options = SandboxOptions(purpose="agent", labels={"run": "My Run"})
    # Google takes so many questions a minute; machines that boot side by side ask them.
    compute.too_many_questions = 3
    with ThreadPoolExecutor(3) as threads:
        waiting = [
            threads.submit(backend.create_sandbox, gcp_base, 60, options=options) for _ in range(3)
        ]
        sandboxes = [future.result() for future in waiting]
    assert len(compute.vms) == 2
    assert compute.too_many_questions == 0
    assert [sandbox.run(["echo", "here"]).stdout for sandbox in sandboxes] == [b"here\n"] * 3
    asked = compute.made[0]
    assert asked["machineType"].endswith("/machineTypes/e2-standard-4")
    assert asked["labels"]["cooperbench"] == "1"
    assert asked["labels"]["cooperbench-run"] == "my-run"
    assert asked["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert int(asked["scheduling"]["maxRunDuration"]["seconds"]) == 12 * 3600
    assert asked["scheduling"]["provisioningModel"] == "SPOT"
    assert asked["disks"][0]["autoDelete"] is True
    assert asked["networkInterfaces"][0]["subnetwork"] == "regions/us-central1/subnetworks/sub"
    assert "serviceAccounts" not in asked
    sandboxes[0].terminate()
    again = backend.create_sandbox(gcp_base, 60)
    assert len(compute.vms) == 2
    backend.close()
    used = backend.resource_use()
    assert (used.count, used.what) == (2, "machine")
    assert used.vcpu_seconds > 0
    assert not compute.vms
    with pytest.raises(SandboxDead):
        again.run(["true"])


def test_a_refused_machine_is_done_without(compute: ComputeServer, gcp_base: str) -> None:
    """Where there is none at all, the line says what to do; a machine that is there is shared."""
    compute.most_machines = 0
    backend = GCPBatchBackend(machine_type="e2-standard-2")
    with pytest.raises(UserError, match=r"Insufficient quota.*CPUS.*request more at https.*-c"):
        backend.create_sandbox(gcp_base, 60)
    backend.close()
    compute.most_machines = 1
    backend = GCPBatchBackend(machine_type="e2-standard-2", idle_minutes=0.001)
    first, second = (backend.create_sandbox(gcp_base, 60) for _ in range(2))
    assert len(compute.vms) == 1
    assert second.run(["echo", "shared"]).stdout == b"shared\n"
    # The last one out turns off the lights.
    first.terminate()
    assert compute.vms
    second.terminate()
    wait_until("the idle machine is deleted", lambda: not compute.vms)
    backend.close()


def test_a_machine_that_was_taken_away_is_replaced(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_base: str
) -> None:
    sandbox = gcp.create_sandbox(gcp_base, 60)
    (name,) = compute.vms
    compute.vms.pop(name).end()
    with pytest.raises(SandboxDead):
        sandbox.run(["true"])
    again = gcp.create_sandbox(gcp_base, 60)
    assert again.run(["echo", "elsewhere"]).stdout == b"elsewhere\n"
    assert list(compute.vms) != [name]


def test_a_machine_that_is_not_ours_is_not_talked_to(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_base: str
) -> None:
    compute.spoil_host_key = True
    with pytest.raises(InfraError, match=r"no SSH connection to .*: Host key verification failed"):
        gcp.create_sandbox(gcp_base, 60)
    assert not compute.vms


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (
            Refused(
                403,
                "Compute Engine API has not been used in project some-project before or it is disabled. Enable it by"
                " visiting https://console.developers.google.com/apis/api/compute.googleapis.com/overview",
                "accessNotConfigured",
            ),
            "API not enabled (compute): gcloud services enable compute.googleapis.com --project some-project",
        ),
        (
            Refused(401, "Request had invalid authentication credentials."),
            "gcloud auth application-default login",
        ),
        (Refused(403, "Required 'compute.zones.get' permission"), "the account lacks permission"),
        (
            Refused(403, "Billing is not enabled for project some-project."),
            "gcloud billing projects link",
        ),
    ],
)
def test_refusals_name_the_command_that_fixes_them(
    compute: ComputeServer, gcp: GCPBatchBackend, refusal: Refused, line: str
) -> None:
    compute.refusal = refusal
    with pytest.raises(UserError) as caught:
        gcp.check()
    compute.refusal = None
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_machine_that_shuts_down_is_not_the_agents_doing(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_engine: Engine, gcp_base: str
) -> None:
    """Its containers end as if they were killed from inside; only Google knows why."""
    for status, destroyed in (("RUNNING", True), ("STOPPING", False)):
        sandbox = gcp.create_sandbox(gcp_base, 60)
        (machine,) = compute.vms.values()
        machine.status = status
        # Not by the engine, which would remember that.
        os.kill(gcp_engine.api.inspect_container(sandbox.container)["State"]["Pid"], signal.SIGKILL)
        with pytest.raises(SandboxDead) as caught:
            sandbox.run(["true"])
        assert isinstance(caught.value, SandboxDestroyed) is destroyed


def test_a_judged_command_is_seen_from_outside_the_sandbox(
    gcp: GCPBatchBackend, gcp_base: str
) -> None:
    sandbox = gcp.create_sandbox(gcp_base, 60, "/tmp", options=SandboxOptions(for_test_run=True))
    result = sandbox.run_last(
        ["sh", "-c", "ps -e 2>/dev/null | grep -c channel; exit 3"], timeout_seconds=30
    )
    assert (result.returncode, result.stdout) == (3, b"0\n")
    with pytest.raises(SandboxDead, match="its last command was run"):
        sandbox.run(["true"])


def test_containers_cannot_read_the_identity(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_base: str
) -> None:
    """By the rules that the start-up script gives to the kernel of the machine that the sandboxes are on."""
    sealed = gcp.create_sandbox(gcp_base, 60)
    sandbox = gcp.create_sandbox(gcp_base, 60, options=SandboxOptions(network="public"))
    (machine,) = compute.vms.values()
    machine.connect(sandbox.container)
    # At the place that is left out is the machine's metadata server.
    with machine.site.serving(
        "outside", *(f"{address}:{port}" for address, port in ALLOWED_PLACES)
    ):
        assert machine.site.reached("machine", PLACES) == PLACES
        assert [
            place for place in PLACES if not sandbox.run(attempt(place)).returncode
        ] == ALLOWED_PLACES
        assert all(sealed.run(attempt(place)).returncode for place in PLACES)


def test_no_sandboxes_if_the_identity_is_exposed(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_base: str
) -> None:
    compute.filters = False
    with pytest.raises(InfraError, match="metadata server cannot be closed to containers"):
        gcp.create_sandbox(gcp_base, 60)
    assert not compute.vms


def test_a_boot_that_is_interrupted_is_not_waited_for(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_base: str
) -> None:
    compute.metadata["startup-script"] = "sleep 600"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(gcp.create_sandbox, gcp_base, 60)
        wait_until("the machine is made", lambda: compute.made)
        gcp.interrupt()
        assert isinstance(waiting.exception(60), Interrupted)
    gcp.close()
    assert not compute.vms


@contextmanager
def harness(image: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One that has a sandbox, in a process of its own; and the sandbox's container."""
    script = str(SUPPORT / "gcp" / "killed_harness.py")
    command = [sys.executable, script, image]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        container = process.stdout.readline().strip()
        assert container
        yield process, container


def test_what_a_killed_harness_left_ends_and_is_deleted(
    compute: ComputeServer,
    gcp_engine: Engine,
    gcp_base: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its sandboxes end, its machines shut down, and go by the next start or by the command. Others' stay."""
    mine = resource_labels("run", "agents")
    gone = this_owner()._replace(pid=4194999, start="1")
    labels = {
        "alive": mine,
        "dead": {**mine, **gone.labels},
        "elsewhere": {**mine, **gone._replace(machine="another").labels},
        "foreign": {"somebody": "else"},
    }
    for name, found in labels.items():
        compute.foreign[name] = {"name": name, "status": "RUNNING", "labels": found}
    compute.metadata["cooperbench-look-seconds"] = "1"
    with harness(gcp_base) as (process, container):
        assert compute.deleted == ["dead"]
        machines = list(compute.vms.values())
        looks = {machine: machine.asked[IDLE] for machine in machines}
        for machine in machines:
            machine.metadata[IDLE] = "2"
        wait_until(
            "the machines have looked several times",
            lambda: all(machine.asked[IDLE] >= looks[machine] + 5 for machine in machines),
        )
        assert not any("shutdown" in machine.attributes for machine in machines)
        process.send_signal(signal.SIGKILL)
    wait_until(
        "the sandbox has ended",
        lambda: not gcp_engine.api.inspect_container(container)["State"]["Running"],
    )
    wait_until(
        "the machines shut down",
        lambda: all(machine.attributes.get("shutdown") == "-h now" for machine in machines),
    )
    assert [machine.resource["labels"][PURPOSE] for machine in machines] == ["agents"]
    for name in ("COOPERBENCH_GCP_BATCH_ENDPOINT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.setenv(name, compute.url)
    assert main(["clean", "--backend", "gcp"]) == 0
    removed = capsys.readouterr().out.splitlines()
    assert {f"removed machine {machine.name}" for machine in machines} <= set(removed)
    assert not compute.vms
    assert set(compute.foreign) == {"alive", "elsewhere", "foreign"}
    remove_containers(gcp_engine)


def test_an_interrupted_harness_leaves_nothing(compute: ComputeServer, gcp_base: str) -> None:
    with harness(gcp_base) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    assert len(compute.made) == 1
    assert not compute.vms
