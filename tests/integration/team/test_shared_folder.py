"""The shared folder in real sandboxes: conflicts, limits, and what agents do to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.backends import get_backend
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import open_sandbox
from cooperbench.team import shared_folder
from cooperbench.team.shared_folder import SHARED_DIR, SharedFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.sandbox.contract import Sandbox

AGENTS = ("agent1", "agent2")
MAX_FILES = 20


class Shared:
    def __init__(self, sandboxes: dict[str, Sandbox]) -> None:
        self.sandboxes = sandboxes
        self.announced: list[str] = []
        self.told: list[str] = []
        self.folder = SharedFolder(
            lambda _agent, _subject, text: self.announced.append(text),
            lambda _agent, _subject, text: self.told.append(text),
        )
        for agent_id, sandbox in sandboxes.items():
            self.folder.attach(agent_id, sandbox)

    def run(self, agent_id: str, command: str) -> str:
        """A command in the folder; then the folder is brought up to date."""
        done = self.sandboxes[agent_id].run(
            ["bash", "-c", command], cwd=SHARED_DIR, timeout_seconds=60
        )
        self.folder.sync(agent_id)
        return done.stdout_read()

    def files(self, agent_id: str) -> str:
        self.folder.sync(agent_id)
        return (
            self.run(agent_id, "find . -type f | LC_ALL=C sort | tr '\\n' ' '")
            .replace("./", "")
            .strip()
        )


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    monkeypatch.setattr(shared_folder, "MAX_FILES", MAX_FILES)
    backend, options = get_backend("local"), SandboxOptions("agent")
    sandboxes = {
        one: open_sandbox(backend, "host", timeout_seconds=600, options=options) for one in AGENTS
    }
    yield Shared(sandboxes)
    for sandbox in sandboxes.values():
        sandbox.terminate()


def test_the_last_writer_wins_and_a_change_wins_over_a_removal(shared: Shared) -> None:
    shared.run("agent1", "echo one >f; echo keep >g")
    shared.run("agent2", "true")
    sandbox = shared.sandboxes["agent2"]
    sandbox.run(["bash", "-c", "echo two >f; rm g"], cwd=SHARED_DIR)
    shared.run("agent1", "echo three >f; echo changed >g")
    shared.folder.sync("agent2")
    assert shared.run("agent2", "cat f g") == "two\nchanged\n"
    shared.folder.sync("agent1")
    assert shared.run("agent1", "cat f g") == "two\nchanged\n"
    before = len(shared.announced)
    for agent_id in AGENTS * 2:
        shared.folder.sync(agent_id)
    assert len(shared.announced) == before


def test_a_file_comes_and_goes_for_all(shared: Shared) -> None:
    shared.run("agent1", "mkdir a; echo x >'a/b c'; echo y >h; ln -s /etc/passwd link; mkdir empty")
    assert shared.files("agent2") == "a/b c h"
    shared.run("agent2", "rm -r a")
    assert shared.files("agent1") == "h"
    shared.run("agent1", "rm -rf /workspace/shared")
    assert shared.files("agent2") == ""


def test_room_that_was_made_is_used(shared: Shared) -> None:
    shared.run("agent1", f"for n in $(seq {MAX_FILES}); do echo >f$n; done; true")
    shared.run("agent1", "echo x >more; echo x >too")
    (line,) = shared.told
    assert line.startswith(
        "Not shared from /workspace/shared: more, too: the folder is full: at most 16777216 bytes"
    )
    shared.folder.sync("agent1")
    assert len(shared.told) == 1
    shared.run("agent1", "rm f1")
    assert "more" in shared.files("agent2")


def test_names_that_leave_the_folder_reach_nobody(shared: Shared) -> None:
    lines = "\\n".join(
        f"{number:064d}  ./{name}"
        for number, name in enumerate(("../evil", "a/../../repo/evil", "ok"))
    )
    shared.run(
        "agent1",
        f"mkdir -p ../repo a; echo evil | tee ../evil >../repo/evil; echo ok >ok; mkdir -p /cooperbench/bin; "
        f"printf '#!/bin/sh\\nprintf \"{lines}\\\\n\"' >/cooperbench/bin/find; chmod +x /cooperbench/bin/find",
    )
    shared.folder.sync("agent1")
    assert "Not shared from /workspace/shared: ../evil, a/../../repo/evil: a name has" in "".join(
        shared.told
    )
    assert shared.files("agent2") == "ok"
    outside = shared.sandboxes["agent2"].run(["ls", "/workspace/evil", "/workspace/repo/evil"])
    assert outside.stdout == b""


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /workspace/shared; echo file >/workspace/shared",
        "rm -f /usr/bin/find /usr/bin/sha256sum /bin/find",
        "for n in $(seq 3000); do : >$n; done",
        "mkfifo pipe; touch $'new\\nline' $'\\xff' 'back\\\\slash'",
        "mkdir f",
    ],
)
def test_what_an_agent_does_to_its_folder_hurts_only_itself(shared: Shared, command: str) -> None:
    shared.run("agent1", command)
    shared.run("agent2", "echo words >f; echo more >g")
    shared.folder.sync("agent1")
    assert shared.run("agent2", "cat f g") == "words\nmore\n"
    shared.folder.detach("agent1")
    assert {"f", "g"} <= set(shared.files("agent2").split())
