"""Machines come when they are needed, are shared, and go, whatever way a harness ends; what goes wrong is said in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cooperbench import run
from cooperbench.cli import main
from cooperbench.errors import InfraError, SandboxDead, UserError
from cooperbench.eval.backends.base import SandboxOptions
from cooperbench.eval.backends.docker.leftovers import remove_leftovers as remove_containers
from cooperbench.eval.backends.gcp import GCPBatchBackend
from cooperbench.eval.backends.gcp.labels import PROCESS, resource_labels
from cooperbench.eval.backends.owner import this_owner
from tests.eval.backends.docker.tasks import write_buildable
from tests.eval.backends.gcp.compute_server import ComputeServer, Refused
from tests.runner.helpers import Left

if TYPE_CHECKING:
    from cooperbench.eval.backends.docker.engine import Engine


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
        service_account="me@example.org",
    )
    options = SandboxOptions(purpose="agent", labels={"run": "My Run"})
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(backend.create_sandbox, gcp_base, 60, options=options) for _ in range(3)]
        sandboxes = [future.result() for future in waiting]
    assert len(compute.vms) == 2
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
    assert asked["serviceAccounts"][0]["email"] == "me@example.org"
    # Containers are kept from the machine's identity.
    assert "-d 169.254.169.254 -p tcp" in next(iter(compute.vms.values())).read("/var/log/iptables")
    sandboxes[0].terminate()
    again = backend.create_sandbox(gcp_base, 60)
    assert len(compute.vms) == 2
    backend.close()
    estimate = backend.estimate()
    assert (estimate.count, estimate.what) == (2, "machine")
    assert estimate.dollars > 0
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
    with pytest.raises(InfraError, match="is not the machine that we made"):
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
            "API not enabled (Compute Engine): gcloud services enable compute.googleapis.com --project some-project",
        ),
        (
            Refused(401, "Request had invalid authentication credentials."),
            "gcloud auth application-default login",
        ),
        (Refused(403, "Required 'compute.zones.get' permission"), "the account may not do that"),
        (Refused(403, "Billing is not enabled for project some-project."), "gcloud billing projects link"),
    ],
)
def test_what_google_refuses_is_said_with_the_mending_command(
    compute: ComputeServer, gcp: GCPBatchBackend, refusal: Refused, line: str
) -> None:
    compute.refusal = refusal
    with pytest.raises(UserError) as caught:
        gcp.check()
    compute.refusal = None
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_killed_harness_left_is_deleted(
    compute: ComputeServer,
    gcp_engine: Engine,
    gcp_base: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its sandboxes end by themselves; its machine goes at the next start or by the command. Others' machines stay."""
    mine = resource_labels("run", "agents")
    gone = {**mine, PROCESS: f"{this_owner().namespace}-4194999-1"}
    labels = {
        "alive": mine,
        "dead": gone,
        "elsewhere": {**gone, "cooperbench-host": "another-0"},
        "foreign": {"somebody": "else"},
    }
    for name, found in labels.items():
        compute.foreign[name] = {"name": name, "status": "RUNNING", "labels": found}
    script = str(Path(__file__).with_name("killed_harness.py"))
    process = subprocess.Popen([sys.executable, script, gcp_base], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        container = process.stdout.readline().strip()
        assert container
        assert compute.deleted == ["dead"]
        process.send_signal(signal.SIGKILL)
    (machine,) = compute.vms
    wait_until(
        "the sandbox has ended", lambda: not gcp_engine.api.inspect_container(container)["State"]["Running"]
    )
    for name in ("COOPERBENCH_GCP_BATCH_ENDPOINT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.setenv(name, compute.url)
    assert main(["clean", "--backend", "gcp"]) == 0
    assert f"removed machine {machine}" in capsys.readouterr().out
    assert not compute.vms
    assert set(compute.foreign) == {"alive", "elsewhere", "foreign"}
    remove_containers(gcp_engine)


def test_an_interrupted_harness_leaves_nothing(compute: ComputeServer, gcp_base: str) -> None:
    script = str(Path(__file__).with_name("killed_harness.py"))
    process = subprocess.Popen([sys.executable, script, gcp_base], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    assert not compute.vms


def test_two_agents_with_a_shared_remote_on_machines(compute: ComputeServer, tmp_path: Path) -> None:
    """Messages and the git remote are carried over the same connection; nothing else of the cloud is needed for them."""
    write_buildable(tmp_path / "dataset")
    commit = "echo {0} >{0}.txt && git add -A && git commit -qm {0}"
    chapters = {
        1: [
            {"run": f"{commit.format('one')}; git push -q team HEAD:agent1 2>&1; echo code $?"},
            {"run": "send_message agent2 it is pushed"},
        ],
        2: [
            {"wait": {"for": "pushed", "seconds": 120}},
            {"run": f"{commit.format('two')}; git pull -q --no-edit team agent1 2>&1; cat one.txt"},
        ],
    }
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump({"repos": {"tiny_task": {7: {"coop": chapters}}}}))
    run(
        "on-gcp",
        agent="scripted",
        agent_config=str(script),
        backend="gcp",
        dataset_dir=tmp_path / "dataset",
        logs_dir=tmp_path / "logs",
        features=[1, 2],
        git_enabled=True,
        auto_eval=False,
    )
    left = Left(tmp_path / "logs/on-gcp/coop/tiny_task/7/f1_f2")
    assert "code 0" in left.observations("agent1")[0]
    assert left.observations("agent2")[-1].strip() == "one"
    assert left.result["git"]["pushes"] == {"agent1": 1, "agent2": 0}
    assert "one.txt" in left.patch("agent2")
    assert [message["message"] for message in left.json("conversation.json")["messages"]] == ["it is pushed"]
    assert len(compute.made) == 1
    assert compute.made[0]["labels"]["cooperbench-run"] == "on-gcp"
    assert not compute.vms
    assert not list(Path(tempfile.gettempdir()).glob(f"cooperbench-gcp-{os.getpid()}-*"))
