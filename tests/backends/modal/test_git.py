"""The git server of a run at Modal: who gets to it, who may push, and what becomes of it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import yaml
from grpclib import Status
from modal_proto import api_pb2

from cooperbench import run
from cooperbench.backends.modal import ModalBackend
from cooperbench.dataset.discovery import demo_dir
from cooperbench.errors import InfraError, SandboxError, UserError
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.team.git_remote import make_remote
from tests.backends.docker.tasks import write_buildable
from tests.backends.modal.plane import HOST_IMAGE
from tests.runner.helpers import Left
from tests.sandbox.sharing import (
    AT_WORK,
    GO,
    address,
    attach,
    check_that_it_was_run_again,
    check_that_it_was_shared_alike,
    check_that_nobody_else_gets_in,
    check_that_they_talked_and_shared,
    git,
    talk_and_share,
    write_waiting_script,
)

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.backends.local.sandbox import LocalSandbox
    from cooperbench.backends.modal.sandbox import ModalSandbox
    from cooperbench.team.git_remote import GitRemote
    from tests.backends.modal.guest import Guest
    from tests.backends.modal.plane import Plane

pytestmark = pytest.mark.timeout(300)
_NETWORK = api_pb2.NetworkAccess


def golden(feature_id: int) -> str:
    return str(demo_dir() / f"coinage_task/task3/feature{feature_id}/feature.patch")


def with_purpose(guests: list[Guest], purpose: str) -> list[Guest]:
    return [guest for guest in guests if guest.tags["cooperbench-purpose"] == purpose]


def join(backend: ModalBackend, remote: GitRemote, agent_id: str) -> ModalSandbox:
    """An agent's sandbox with a repository and the remote `team`."""
    options = SandboxOptions("agent", "none", {"agent": agent_id}, remote.open())
    sandbox = backend.create_sandbox(HOST_IMAGE, timeout=300, workdir="/workspace", options=options)
    attach(remote, agent_id, sandbox)
    return sandbox


def test_a_pair_of_the_demo_talks_and_shares(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the server, and carried: what is left of a pair is the same."""
    plane.add_dataset(demo_dir())
    first, second = talk_and_share({"apply": golden(1)}, {"apply": golden(3)})
    second.insert(
        -1, {"run": "git fetch -q team; git log --format=%an -1 team/agent1; git remote get-url team"}
    )
    chapters = {1: first, 3: second}
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump({"repos": {"coinage_task": {3: {"coop": chapters}}}}))
    left: dict[str, Left] = {}
    guests: dict[str, list[Guest]] = {}
    for way in ("server", "carried"):
        known = set(plane.guests)
        monkeypatch.setenv("COOPERBENCH_MODAL_GIT", way)
        run(
            way, agent="scripted", agent_config=str(script), backend="modal", dataset_dir=demo_dir(), repo="coinage_task",
            task_id=3, features=[1, 3], logs_dir=tmp_path / "logs", git_enabled=True, auto_eval=way == "server",
        )  # fmt: skip
        left[way] = Left(tmp_path / f"logs/{way}/coop/coinage_task/3/f1_f3")
        guests[way] = [guest for name, guest in plane.guests.items() if name not in known]
        assert plane.running() == []
        check_that_they_talked_and_shared(left[way])
        assert left[way].observations("agent2")[2].startswith("agent1\n")
        assert left[way].result["image_digest"].startswith("im-")
    served, carried = (left[way].result for way in ("server", "carried"))
    assert left["server"].evaluation["overall_success"] is True
    check_that_it_was_shared_alike(served, carried)

    (server,) = with_purpose(guests["server"], "git")
    assert server.tags["cooperbench-run"] == "server"
    assert server.definition.timeout_secs == 24 * 3600
    assert [port.port for port in server.definition.open_ports.ports] == [8418]
    # It reaches nothing; agents reach it and nothing else; tests reach nothing.
    access = server.definition.network_access
    assert (access.network_access_type, list(access.allowed_cidrs), list(access.allowed_domains)) == (
        _NETWORK.ALLOWLIST, [], [],
    )  # fmt: skip
    agents = with_purpose(guests["server"], "agent")
    assert len(agents) == 2
    for guest in agents:
        assert guest.definition.network_access.network_access_type == _NETWORK.ALLOWLIST
        assert list(guest.definition.network_access.allowed_domains) == [server.tunnels[0].host]
    for guest in with_purpose(guests["server"], "evaluation") + guests["carried"]:
        assert guest.definition.network_access.network_access_type == _NETWORK.BLOCKED
    assert not with_purpose(guests["carried"], "git")
    assert server.tags["cooperbench-session"] == agents[0].tags["cooperbench-session"]
    assert server.tunnels[0].host in left["server"].observations("agent2")[2]


def test_nobody_else_gets_in(plane: Plane, modal: ModalBackend, tmp_path: Path) -> None:
    mine = make_remote(modal, tmp_path / "mine", ["agent1", "agent2"])
    others = make_remote(modal, tmp_path / "others", ["agent1", "agent2"])
    one, two, stranger = (
        join(modal, mine, "agent1"),
        join(modal, mine, "agent2"),
        join(modal, others, "agent1"),
    )
    assert len(with_purpose(plane.running(), "git")) == 1
    assert "code 0" in git(one, "echo 1 >file; git commit -qam one; git push -q team HEAD:agent1")
    assert "code 0" in git(two, "git fetch -q team; git merge -q team/agent1; cat file; git log --oneline")
    check_that_nobody_else_gets_in(one, stranger)
    scheme, token, place = address(one)
    assert scheme == "https"
    # With everything that one knows, but without a way there.
    blocked = modal.create_sandbox(HOST_IMAGE, timeout=60)
    done = blocked.run(["git", "ls-remote", f"https://agent1:{token}@{place}"], timeout_seconds=60)
    assert done.returncode != 0
    assert mine.record()["pushes"] == {"agent1": 1, "agent2": 0}
    assert others.record()["pushes"] == {"agent1": 0, "agent2": 0}
    mine.close()
    assert "code 128" in git(one, "git ls-remote team")
    assert "refs/heads/main" in git(stranger, "git ls-remote team")
    others.close()
    modal.close()
    assert plane.running() == []


def test_a_pair_that_lost_the_server_is_run_again(plane: Plane, tmp_path: Path) -> None:
    write_buildable(tmp_path / "dataset")
    plane.add_dataset(tmp_path / "dataset")
    script = write_waiting_script(tmp_path / "script.yaml")
    over = threading.Event()

    def agents() -> list[LocalSandbox]:
        return [guest.local for guest in with_purpose(plane.running(), "agent") if guest.local is not None]

    def kill_server() -> None:
        """When both agents are at work, who may then go on, as those of the next attempt may at once."""
        at_work = ["test", "-e", AT_WORK]
        while [agent.run(at_work).returncode for agent in agents()] != [0, 0]:
            time.sleep(0.02)
        (server,) = with_purpose(plane.running(), "git")
        server.terminate()
        while not over.wait(0.05):
            for agent in agents():
                with suppress(InfraError):
                    agent.write_file(GO, b"")

    killer = threading.Thread(target=kill_server, daemon=True)
    killer.start()
    run(
        "lost", agent="scripted", agent_config=script, backend="modal", dataset_dir=tmp_path / "dataset",
        logs_dir=tmp_path / "logs", features=[1, 2], auto_eval=False, git_enabled=True,
    )  # fmt: skip
    over.set()
    killer.join(60)
    check_that_it_was_run_again(Left(tmp_path / "logs/lost/coop/tiny_task/7/f1_f2"))
    assert plane.running() == []


def test_one_server_until_it_is_lost(plane: Plane, modal: ModalBackend, tmp_path: Path) -> None:
    first = make_remote(modal, tmp_path / "1", ["a", "b"]).open()
    assert make_remote(modal, tmp_path / "2", ["a", "b"]).open() == first
    (server,) = plane.running()
    server.terminate()
    second = make_remote(modal, tmp_path / "3", ["a", "b"]).open()
    assert second != first
    assert len(plane.running()) == 1
    # It counts with what it reserves.
    used = modal.resource_use()
    assert used.count == 2
    assert used.vcpu_seconds == pytest.approx(used.seconds * 0.5)
    assert used.gib_seconds == pytest.approx(used.seconds * 0.5)
    modal.close()
    assert plane.running() == []
    # A backend that was closed can be used again.
    assert make_remote(modal, tmp_path / "4", ["a", "b"]).open() != second
    assert len(plane.running()) == 1


def test_a_server_without_a_tunnel_is_an_infrastructure_error(
    plane: Plane, modal: ModalBackend, tmp_path: Path
) -> None:
    plane.faults.no_tunnels = True
    with pytest.raises(InfraError, match=r"tunnel to the git server \(.*=carried.*in time") as error:
        make_remote(modal, tmp_path / "hub", ["a", "b"]).open()
    assert "\n" not in str(error.value)
    assert plane.running() == []


def test_a_server_whose_image_is_not_to_be_had_says_what_to_set(plane: Plane, tmp_path: Path) -> None:
    backend = ModalBackend(git_image="127.0.0.1:1/missing/git:1")
    with pytest.raises(UserError, match=r"git server.*no such image.*_GIT_IMAGE.*_GIT=carried") as error:
        make_remote(backend, tmp_path / "hub", ["a", "b"]).open()
    assert "\n" not in str(error.value)
    backend.close()


def test_the_tunnel_is_asked_for_again_when_an_answer_was_lost(
    plane: Plane, modal: ModalBackend, tmp_path: Path
) -> None:
    plane.faults.add("SandboxCreateV2", Status.UNAVAILABLE, times=1, after=True)
    plane.faults.add("SandboxGetTunnelsV2", Status.UNAVAILABLE, times=2)
    (reached,) = make_remote(modal, tmp_path / "hub", ["a", "b"]).open()
    (server,) = plane.running()
    assert reached == f"{server.tunnels[0].host}:{server.tunnels[0].port}"


def test_a_sandbox_that_does_not_reach_the_server_says_what_to_do(
    plane: Plane, modal: ModalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cooperbench.team.git_remote._PROBE_SECONDS", 2.0)
    remote = make_remote(modal, tmp_path / "hub", ["agent1", "agent2"])
    remote.open()
    sandbox = modal.create_sandbox(HOST_IMAGE, timeout=300)
    with pytest.raises(SandboxError, match="GIT=carried") as error:
        attach(remote, "agent1", sandbox)
    assert "\n" not in str(error.value)
