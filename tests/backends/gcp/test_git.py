"""The git server of a run at Google: a machine of its own in the VPC, who gets to it, and what becomes of it."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cooperbench import run
from cooperbench.backends.gcp import GCPBatchBackend
from cooperbench.backends.gcp.api import PURPOSE, RUN
from cooperbench.backends.gcp.compute import Compute
from cooperbench.backends.gcp.settings import read_settings
from cooperbench.errors import InfraError, Interrupted, UserError
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.team.git_remote import make_remote
from tests.backends.docker.tasks import write_buildable
from tests.backends.gcp.compute_server import ComputeServer, Refused, own_addresses
from tests.backends.gcp.namespaces import CONTAINER, IN_THE_VPC, IN_THE_WORLD, MACHINE, NEIGHBOUR, site
from tests.runner.helpers import Left
from tests.sandbox.sharing import (
    AT_WORK,
    GO,
    address,
    attach,
    check_that_it_was_run_again,
    check_that_nobody_else_gets_in,
    check_that_they_talked_and_shared,
    git,
    talk_and_share,
    write_waiting_script,
)

if TYPE_CHECKING:
    from cooperbench.backends.docker.engine import Engine
    from cooperbench.backends.docker.sandbox import DockerSandbox
    from cooperbench.team.git_remote import GitRemote
    from tests.backends.gcp.compute_server import Vm

pytestmark = pytest.mark.usefixtures("vpc")


def with_purpose(compute: ComputeServer, purpose: str) -> list[Vm]:
    return [vm for vm in compute.vms.values() if vm.resource["labels"][PURPOSE] == purpose]


def join(backend: GCPBatchBackend, remote: GitRemote, agent_id: str, image: str) -> DockerSandbox:
    """A sandbox with a repository that shares a remote; nothing else is reached from it."""
    options = SandboxOptions("agent", reaches=remote.open())
    sandbox = backend.create_sandbox(image, 300, "/tmp", options=options)
    attach(remote, agent_id, sandbox)
    return sandbox


def test_a_pair_shares_through_a_server_on_a_machine_of_its_own(
    compute: ComputeServer, tmp_path: Path
) -> None:
    write_buildable(tmp_path / "dataset")
    steps = talk_and_share({"run": "echo one >one.txt"}, {"run": "echo two >two.txt"})
    chapters = dict(enumerate(steps, 1))
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump({"repos": {"tiny_task": {7: {"coop": chapters}}}}))
    before = len(compute.made)
    run(
        "shared", agent="scripted", agent_config=str(script), backend="gcp", dataset_dir=tmp_path / "dataset",
        logs_dir=tmp_path / "logs", features=[1, 2], git_enabled=True, auto_eval=False,
    )  # fmt: skip
    left = Left(tmp_path / "logs/shared/coop/tiny_task/7/f1_f2")
    assert (compute.vms, compute.rules) == ({}, {})
    check_that_they_talked_and_shared(left)
    server, agents = compute.made[before:]
    assert [machine["labels"][PURPOSE] for machine in (server, agents)] == ["git", "agents"]
    assert server["machineType"].endswith("/machineTypes/e2-medium")
    assert agents["labels"][RUN] == server["labels"][RUN] == "shared"
    assert server["name"].rpartition("-")[0] == agents["name"].rpartition("-")[0]
    assert left.json("../../../../summary.json")["sandboxes"]["count"] == 2
    # Nobody but machines of the run gets to the port, whatever else the network allows.
    keep_out, admit = compute.rules_ever
    assert keep_out["targetTags"] == admit["targetTags"] == server["tags"]["items"]
    assert admit["sourceTags"] == agents["tags"]["items"] != server["tags"]["items"]
    assert admit["allowed"] == keep_out["denied"] == [{"IPProtocol": "tcp", "ports": ["8418"]}]
    assert (keep_out["sourceRanges"], keep_out["network"]) == (["0.0.0.0/0"], "global/networks/default")
    assert admit["priority"] < keep_out["priority"] < 10
    assert not list(Path(tempfile.gettempdir()).glob(f"cooperbench-gcp-{os.getpid()}-*"))


def test_nobody_else_gets_in_and_nobody_gets_out(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_engine: Engine, gcp_base: str, tmp_path: Path
) -> None:
    mine, others = (make_remote(gcp, tmp_path / name, ["agent1", "agent2"]) for name in ("mine", "others"))
    one, two, stranger = (
        join(gcp, mine, "agent1", gcp_base),
        join(gcp, mine, "agent2", gcp_base),
        join(gcp, others, "agent1", gcp_base),
    )
    (server,), (machine,) = with_purpose(compute, "git"), with_purpose(compute, "agents")
    assert "code 0" in git(one, "echo 1 >file; git commit -qam one; git push -q team HEAD:agent1")
    assert "code 0" in git(two, "git fetch -q team; git merge -q team/agent1; grep 1 file")
    check_that_nobody_else_gets_in(one, stranger)
    scheme, token, place = address(one)
    assert (scheme, place.partition("/")[0]) == ("http", f"{server.internal_address}:8418")
    # With everything that one knows, but without a way there.
    apart = gcp.create_sandbox(gcp_base, 60, "/tmp")
    assert apart.run(["git", "ls-remote", f"http://agent1:{token}@{place}"], timeout_seconds=60).returncode

    # The tests' engine filters nothing; what a machine would is tried with the rules that it was told.
    shown = gcp_engine.api.inspect_container(one.container)
    (network,) = shown["NetworkSettings"]["Networks"]
    options = gcp_engine.api.inspect_network(network)["Options"]
    bridge = options["com.docker.network.bridge.name"]
    assert options["com.docker.network.bridge.enable_icc"] == "false"
    assert gcp_engine.api.inspect_container(two.container)["HostConfig"]["NetworkMode"] == network
    assert shown["HostConfig"]["Dns"] == ["192.0.2.1"]
    rules = [line for line in machine.read("/var/log/iptables").splitlines() if bridge in line]
    assert "-I INPUT -p tcp --dport 8418 -j ACCEPT" in server.read("/var/log/iptables")
    assert "8418 -j ACCEPT" not in machine.read("/var/log/iptables")
    with site(bridge, rules, 8418) as there:
        assert there.reaches("container", IN_THE_VPC, 8418)
        reached = [
            (start, address, port)
            for start, address in (
                ("container", IN_THE_VPC),
                ("container", IN_THE_WORLD),
                ("container", MACHINE),
                ("container", NEIGHBOUR),
                ("outside", CONTAINER),
            )
            for port in (8418, 22)
            if there.reaches(start, address, port)
        ]
    assert reached == [("container", IN_THE_VPC, 8418)]

    assert mine.record()["pushes"] == {"agent1": 1, "agent2": 0}
    mine.close()
    assert "code 128" in git(one, "git ls-remote team")
    assert "refs/heads/main" in git(stranger, "git ls-remote team")
    others.close()
    gcp.close()
    assert (compute.vms, compute.rules) == ({}, {})
    assert not {server.internal_address, machine.internal_address} & set(own_addresses())
    assert gcp.resource_use().count == 2


def test_a_pair_that_lost_the_machine_is_run_again(
    compute: ComputeServer, gcp_engine: Engine, tmp_path: Path
) -> None:
    write_buildable(tmp_path / "dataset")
    script = write_waiting_script(tmp_path / "script.yaml")
    over = threading.Event()
    wanted = {"label": ["cooperbench.purpose=agent", "cooperbench.run=lost"]}

    def in_agents(command: str) -> list[int]:
        """Their exit codes."""
        codes = []
        for found in gcp_engine.api.containers(filters=wanted):
            with suppress(Exception):  # one that has just ended
                made = gcp_engine.api.exec_create(found["Id"], ["sh", "-c", command])["Id"]
                gcp_engine.api.exec_start(made)
                codes.append(gcp_engine.api.exec_inspect(made)["ExitCode"])
        return codes

    def take_it_away() -> None:
        """When both agents are at work, who may then go on, as those of the next attempt may at once."""
        while in_agents(f"test -e {AT_WORK}") != [0, 0]:
            time.sleep(0.1)
        (server,) = with_purpose(compute, "git")
        compute.vms.pop(server.name).end()
        while not over.wait(0.2):
            in_agents(f"touch {GO}")

    thief = threading.Thread(target=take_it_away, daemon=True)
    thief.start()
    run(
        "lost", agent="scripted", agent_config=script, backend="gcp", dataset_dir=tmp_path / "dataset",
        logs_dir=tmp_path / "logs", features=[1, 2], auto_eval=False, git_enabled=True,
    )  # fmt: skip
    over.set()
    thief.join(60)
    check_that_it_was_run_again(Left(tmp_path / "logs/lost/coop/tiny_task/7/f1_f2"))
    assert sorted(machine["labels"][PURPOSE] for machine in compute.made) == ["agents", "git", "git"]
    assert len(compute.rules_ever) == 2
    assert (compute.vms, compute.rules) == ({}, {})


def test_without_the_right_to_set_rules_there_is_one_line_and_no_machine(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_base: str, tmp_path: Path
) -> None:
    compute.rule_refusal = Refused(403, "Required 'compute.firewalls.create' permission")
    with pytest.raises(UserError, match=r"--git needs roles/compute\.securityAdmin") as caught:
        make_remote(gcp, tmp_path / "hub", ["agent1", "agent2"]).open()
    assert "\n" not in str(caught.value)
    assert not compute.made
    # It is no reason not to run without it.
    assert gcp.create_sandbox(gcp_base, 60).run(["true"]).returncode == 0


def test_a_machine_that_cannot_keep_sandboxes_from_the_network_has_none(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_base: str
) -> None:
    compute.metadata["test-broken-rule"] = "-I INPUT -i cbteam-"
    with pytest.raises(InfraError, match="sandboxes cannot be kept from the network"):
        gcp.create_sandbox(gcp_base, 60)
    assert not compute.vms


def test_a_boot_that_is_interrupted_is_not_waited_for(
    compute: ComputeServer, gcp: GCPBatchBackend, gcp_base: str, tmp_path: Path
) -> None:
    """Neither that of the git server nor that of agents' machines; both are deleted."""
    compute.metadata["startup-script"] = "sleep 600"
    with ThreadPoolExecutor(2) as threads:
        waiting: list[Future[Any]] = [
            threads.submit(make_remote(gcp, tmp_path / "hub", ["agent1", "agent2"]).open),
            threads.submit(gcp.create_sandbox, gcp_base, 60),
        ]
        while len(compute.made) < 2:
            time.sleep(0.05)
        gcp.interrupt()
        for future in waiting:
            assert isinstance(future.exception(60), Interrupted)
    gcp.close()
    assert (compute.vms, compute.rules) == ({}, {})


def test_a_server_that_does_not_start_leaves_no_machine(
    compute: ComputeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCP_GIT_IMAGE", "cooperbench-test-vm:no-such-tag")
    backend = GCPBatchBackend()
    remote = make_remote(backend, tmp_path / "hub", ["agent1", "agent2"])
    with pytest.raises(UserError, match=r"git server.*no-such-tag") as caught:
        remote.open()
    assert "\n" not in str(caught.value)
    assert len(compute.made) == 1
    compute.most_machines = 0
    with pytest.raises(UserError, match=r"git server.*Insufficient quota"):
        remote.open()
    assert not compute.vms
    backend.close()
    assert not compute.rules


def test_rules_are_those_of_the_network_that_machines_are_in(compute: ComputeServer) -> None:
    client = Compute(read_settings(network="vpc"))
    client.admit_to_git_server("one")
    client.admit_to_git_server("one")  # what is there is not made again
    client.admit_to_git_server("other")
    assert {rule["network"] for rule in compute.rules.values()} == {"global/networks/vpc"}
    client.remove_rules("one")
    assert list(compute.rules) == ["cooperbench-other-keep-out", "cooperbench-other-admit"]
