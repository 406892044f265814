"""The remote of a pair: which one a backend gets, and the same rules and records behind a real git server as carried."""

from __future__ import annotations

import base64
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.local import LocalBackend
from cooperbench.errors import SandboxError
from cooperbench.eval import backends
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.git_server import GitServer, SharedServer
from cooperbench.sandbox.session import open_sandbox
from cooperbench.team.git_remote import ServedRemote
from tests.runner.helpers import run_tiny
from tests.sandbox.sharing import (
    AGENTS,
    COMMIT,
    address,
    attach,
    check_that_it_was_shared_alike,
    check_that_nobody_else_gets_in,
    git,
)
from tests.tiny import write_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cooperbench.sandbox.contract import RichSandbox


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(backend: LocalBackend, port: int | None = None) -> GitServer:
    port = port or free_port()
    sandbox = open_sandbox(backend, "host", timeout_seconds=600, options=SandboxOptions("git", "public"))
    return GitServer(sandbox, f"http://127.0.0.1:{port}", host="127.0.0.1", port=port)


class ServingBackend(LocalBackend):
    """A backend with a git server of its own; its sandboxes reach it as they share the machine's network."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._shared_server = SharedServer(lambda _: start_server(self))

    @property
    def git_server(self) -> Callable[[str], GitServer]:
        return self._shared_server.get

    def close(self) -> None:
        self._shared_server.close()
        super().close()


class Pair:
    """Two sandboxes with a repository each, and the remote between them."""

    def __init__(self, stack: ExitStack, backend: LocalBackend, server: GitServer) -> None:
        self.remote = ServedRemote(AGENTS, lambda _: server)
        stack.callback(self.remote.close)
        self.remote.open()
        self.sandboxes: dict[str, RichSandbox] = {}
        for agent_id in AGENTS:
            sandbox = open_sandbox(
                backend, "host", timeout_seconds=600, options=SandboxOptions("agent", "public")
            )
            stack.callback(sandbox.terminate)
            self.sandboxes[agent_id] = sandbox
            attach(self.remote, agent_id, sandbox)

    def says(self, agent_id: str, command: str) -> str:
        return git(self.sandboxes[agent_id], command)


class Pairs:
    def __init__(self, stack: ExitStack, backend: LocalBackend, server: GitServer) -> None:
        self._given = (stack, backend, server)
        self.server = server

    def __call__(self) -> Pair:
        return Pair(*self._given)


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    backend = LocalBackend()
    with ExitStack() as stack:
        server = start_server(backend)
        stack.callback(server.close)
        yield Pairs(stack, backend, server)


def test_a_run_leaves_the_same_with_a_server_as_with_carried_commits(tmp_path: Path) -> None:
    backends.register("serving", ServingBackend)
    take = "until git fetch -q team && git merge -q --no-edit team/agent1 && test -e new; do sleep 0.1; done; git push -q team HEAD:agent2"
    script = write_script(
        tmp_path / "script.yaml",
        {
            1: [{"run": f"seq 40 >new; {COMMIT}; git push -q team HEAD:agent2 2>&1; git push -q team HEAD:agent1 2>&1; echo code $?"}],
            2: [{"run": f"{take}; echo code $?"}],
        },
    )  # fmt: skip
    left = {
        backend: run_tiny(
            tmp_path, "scripted", agent_config=str(script), backend=backend, run_name=backend,
            git_enabled=True, auto_eval=False, network="public",
        )
        for backend in ("local", "serving")
    }  # fmt: skip
    for backend, one in left.items():
        assert [("code 0" in one.observations(agent_id)[-1]) for agent_id in AGENTS] == [True, True], backend
    carried, served = (one.result for one in left.values())
    check_that_it_was_shared_alike(served, carried)
    assert served["git"]["bytes"]["agent1"] > 0


def test_an_agent_moves_its_own_branch_and_nothing_else(pairs: Pairs) -> None:
    pair = pairs()
    change = f"seq 1000 >more; {COMMIT}"
    assert "code 0" in pair.says("agent1", f"{change}; git push -q team HEAD:agent1")
    assert "agent2 is your colleague's branch" in pair.says("agent1", "git push team HEAD:agent2")
    assert "main stays at the commit" in pair.says("agent1", "git push team HEAD:main")
    assert "none named other" in pair.says("agent1", "git push team HEAD:other")
    assert "only branches can be shared" in pair.says("agent1", "git push team HEAD:refs/tags/v1")
    assert "cannot be deleted" in pair.says("agent1", "git push team :agent1")
    assert "code 0" in pair.says(
        "agent1", "git commit -q --amend -m again; git push -q --force team HEAD:agent1"
    )
    assert "again" in pair.says("agent2", "git fetch -q team; git log -1 --format=%s team/agent1")
    assert "code 0" in pair.says(
        "agent2", "git clone -q -b agent1 $(git remote get-url team) /tmp/clone && test -e /tmp/clone/more"
    )
    assert pair.remote.record()["refused"] == {"agent1": 0, "agent2": 0}
    assert pair.remote.record()["pushes"] == {"agent1": 2, "agent2": 0}


def test_a_large_push_comes_whole_and_the_quota_holds(
    pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cooperbench.team.git_remote.QUOTA_BYTES", 3_000_000)
    pair = pairs()
    # Above a megabyte git sends in chunks.
    big = f"head -c 2000000 /dev/urandom >big; {COMMIT}; git push -q team HEAD:agent1"
    assert "code 0" in pair.says("agent1", big)
    said = pair.says("agent1", big)
    assert "too large: only 9" in said
    assert "code 1" in said
    far_too_big = f"head -c 9000000 /dev/urandom >big; {COMMIT}; git push -q team HEAD:agent1"
    assert "code 1" in pair.says("agent1", far_too_big)
    assert "code 0" in pair.says("agent2", f"echo small >small; {COMMIT}; git push -q team HEAD:agent2")
    assert "code 0" in pair.says(
        "agent2", "git fetch -q team && git show team/agent1:big | wc -c | grep -x 2000000"
    )
    assert pair.remote.record()["refused"] == {"agent1": 1, "agent2": 0}
    assert pair.remote.record()["pushes"] == {"agent1": 1, "agent2": 1}
    assert pair.remote.write_bundle(tmp_path / "team.bundle")
    clone = ["git", "clone", "-q", "--bare", str(tmp_path / "team.bundle"), str(tmp_path / "clone")]
    subprocess.run(clone, check=True)
    show = ["git", "-C", str(tmp_path / "clone"), "show"]
    assert subprocess.run([*show, "agent2:small"], check=True, capture_output=True).stdout == b"small\n"
    assert len(subprocess.run([*show, "agent1:big"], check=True, capture_output=True).stdout) == 2_000_000


def test_nobody_gets_in_without_a_credential_of_the_pair(pairs: Pairs) -> None:
    pair, other = pairs(), pairs()
    check_that_nobody_else_gets_in(pair.sandboxes["agent1"], other.sandboxes["agent1"])
    _, token, place = address(pair.sandboxes["agent1"])
    name = place.rpartition("/")[2]
    credential = base64.b64encode(f"agent1:{token}".encode()).decode()
    answers = []
    for path in (
        "",
        f"{name}/HEAD",
        f"{name}/objects/info/packs",
        f"{name}/../log",
        "0" * 32 + ".git/info/refs",
        f"{name}/info/refs",
    ):
        request = urllib.request.Request(
            f"{pairs.server.url}/{path}", headers={"Authorization": f"Basic {credential}"}
        )
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=20)
        answers.append(refusal.value.code)
        refusal.value.close()
    assert answers == [404, 404, 404, 404, 404, 403]


def test_what_is_over_is_gone_and_a_dead_server_is_replaced(pairs: Pairs) -> None:
    pair = pairs()
    assert "code 0" in pair.says("agent1", "git ls-remote team")
    pair.remote.close()
    assert "code 128" in pair.says("agent1", "git ls-remote team")
    shared = SharedServer(lambda _: start_server(LocalBackend()))
    first = shared.get()
    assert shared.get() is first
    first.close()
    second = shared.get()
    assert second is not first
    assert second.alive
    shared.close()
    assert not second.alive


def test_a_sandbox_without_a_way_to_the_server_is_told_what_to_set(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cooperbench.team.git_remote._PROBE_SECONDS", 1.5)
    with ExitStack() as stack:
        server = pairs.server
        blocked = open_sandbox(LocalBackend(), "host", timeout_seconds=60, options=SandboxOptions("agent"))
        stack.callback(blocked.terminate)
        remote = ServedRemote(AGENTS, lambda _: server)
        stack.callback(remote.close)
        remote.open()
        with pytest.raises(SandboxError, match="GIT=carried"):
            attach(remote, "agent1", blocked)
