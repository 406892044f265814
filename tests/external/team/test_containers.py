"""Agents in containers talk and share as on this machine, without a network, and through what fails on the way."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import run
from cooperbench.backends.docker.engine import connect
from cooperbench.dataset.discovery import demo_dir
from tests.support.docker.engines import docker_host, provide_base, skipped_without_engine
from tests.support.runner.helpers import Left
from tests.support.team.redis_fixtures import socket_server, wait_for_message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.agents.session import AgentSession
    from cooperbench.backends.docker.engine import Engine

# With the other tests of Docker: one process for all of them.
pytestmark = [pytest.mark.xdist_group("docker"), pytest.mark.timeout(900)]

RUN, AGENT = "cooperbench.run", "cooperbench.agent"
COMMIT = "git add -A && git commit -qm done"
WORDS = "it's pushed: „ä✓“ $HOME `x`"
TEXT = f"<<'MSG'\n{WORDS}\nMSG"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with skipped_without_engine(), docker_host() as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        with closing(connect("docker")) as engine:
            monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={provide_base(engine)}")
            monkeypatch.setenv("COOPERBENCH_DOCKER_PULL", "never")
            monkeypatch.setenv(
                "COOPERBENCH_IMAGE_TEMPLATE", "cooperbench-test-team/{repo}:task{task_id}"
            )
            yield engine


def run_demo(tmp_path: Path, agent: str = "scripted", **options: Any) -> Left:
    """Two features of a task of the demo, in containers."""
    run(
        "r", agent=agent, backend="docker", dataset_dir=demo_dir(), repo="coinage_task", task_id=3, features=[1, 3],
        logs_dir=tmp_path / "logs", **options,
    )  # fmt: skip
    return Left(tmp_path / "logs/r/coop/coinage_task/3/f1_f3")


def write_script(path: Path, chapters: dict[int, list[Any]]) -> str:
    import yaml

    path.write_text(yaml.safe_dump({"repos": {"coinage_task": {3: {"coop": chapters}}}}))
    return str(path)


def golden(feature_id: int) -> str:
    return str(demo_dir() / f"coinage_task/task3/feature{feature_id}/feature.patch")


def test_a_pair_talks_and_shares_though_its_redis_is_killed(tmp_path: Path, engine: Engine) -> None:
    with socket_server() as server:

        def break_it() -> None:
            wait_for_message(server)
            server.restart()

        breaker = threading.Thread(target=break_it)
        breaker.start()
        script = write_script(
            tmp_path / "script.yaml",
            {
                1: [
                    {"apply": golden(1)},
                    {"run": f"{COMMIT}; git push -q team HEAD:agent1 2>&1; echo code $?"},
                    {"run": "git push team HEAD:agent2 2>&1; git push team HEAD:main 2>&1; ls /sys/class/net"},
                    {"run": f"send_message --wait 120 agent2 {TEXT}"},
                    {"run": "git pull -q --no-edit team agent2 2>&1; git log --format=%an -1"},
                ],
                3: [
                    {"apply": golden(3)},
                    {"wait": {"for": "pushed", "seconds": 120}},
                    {"run": f"{COMMIT}; git pull -q --no-edit team agent1 && git push -q team HEAD:agent2; echo code $?"},
                    {"run": "head -c 750001 /dev/urandom | base64 | send_message agent1; send_message agent1 merged"},
                ],
            },
        )  # fmt: skip
        left = run_demo(tmp_path, agent_config=script, git_enabled=True, redis_url=server.url)
        breaker.join(60)
    pushed, refused, answered, pulled = left.observations("agent1")[1:]
    assert "code 0" in pushed
    assert "agent2 is your teammate's branch" in refused
    assert "main stays" in refused
    assert refused.rstrip().endswith("\nlo")
    assert answered.startswith("Message sent.\nFrom agent2:\n")
    assert pulled.strip() == "agent2"
    first, second, third = left.json("conversation.json")["messages"]
    assert (first["message"], first["sender_step"], first["delivered_by"]) == (WORDS, 4, "context")
    assert len(second["message"]) > 1_000_000
    assert (third["message"], third["from"], third["sender_step"]) == ("merged", "agent2", 3)
    assert second["delivered_by"] == "command"
    assert left.patch("agent1") == left.patch("agent2")
    assert left.evaluation["merged"]["merge_status"] == "identical"
    assert left.evaluation["overall_success"] is True
    assert left.result["git"]["pushes"] == {"agent1": 1, "agent2": 1}
    assert (left.folder / "team.bundle").exists()
    assert engine.api.containers(all=True, filters={"label": [f"{RUN}=r"]}) == []


class BereavedAgent:
    """Both wait for minutes, unless they are of an attempt after the one in which the first's container was killed."""

    uses_model = False
    killed = threading.Event()

    def run(self, session: AgentSession) -> None:
        if session.slot.agent_id == "agent1":
            session.send("hello")
        else:
            session.wait_for_message(60)
            session.incoming()
        if not self.killed.is_set():
            session.wait_for_message(300)


def test_an_agent_whose_container_is_killed_is_not_waited_for(
    tmp_path: Path, engine: Engine
) -> None:
    with socket_server() as server:

        def kill_it() -> None:
            wait_for_message(server)
            (container,) = engine.api.containers(filters={"label": [f"{RUN}=r", f"{AGENT}=agent1"]})
            engine.api.kill(container["Id"])
            BereavedAgent.killed.set()

        killer = threading.Thread(target=kill_it)
        killer.start()
        left = run_demo(
            tmp_path, f"{__name__}:{BereavedAgent.__name__}", redis_url=server.url, auto_eval=False
        )
        killer.join(60)
    assert left.result["status"] == "completed"
    assert left.result["attempt"] == 2
    assert [message["message"] for message in left.json("conversation.json")["messages"]] == [
        "hello"
    ]


def test_agents_share_a_container(tmp_path: Path, engine: Engine) -> None:
    """One tree and one patch, messages from the right sender, and changes by the right agent."""
    wait_for_end = "until [ -e $COOPERBENCH_TEAM/finished/agent1 ]; do sleep 0.05; done"
    script = write_script(
        tmp_path / "script.yaml",
        {
            1: [
                {"apply": golden(1)},
                {"run": "echo mine >notes.txt"},
                {"run": "send_message agent2 'I have it'; ls /sys/class/net"},
            ],
            3: [
                {"wait": {"for": "I have it", "seconds": 120}},
                {"run": wait_for_end},
                {"run": "cat notes.txt; echo ours >notes.txt; pkill -9 -f rpc; true"},
                {"run": "send_message agent1 'still here'; echo code $?"},
                {"apply": golden(3)},
            ],
        },
    )
    left = run_demo(tmp_path, agent_config=script, workspace="shared")
    assert left.observations("agent1")[2].rstrip().endswith("\nlo")
    assert "mine" in left.observations("agent2")[1]
    assert "code 3" in left.observations("agent2")[2]  # agent1 has finished
    messages = left.json("conversation.json")["messages"]
    assert [message["from"] for message in messages] == ["agent1", "agent2"]
    changes = left.json("workspace.json")["changes"]
    notes = [
        change["agents"]
        for change in changes
        if "notes.txt" in {file["path"] for file in change["files"]}
    ]
    assert notes == [["agent1"], ["agent2"]]
    assert not (left.folder / "agent1.patch").exists()
    assert left.evaluation["shared"].keys() >= {"features", "success"}
    assert engine.api.containers(all=True, filters={"label": [f"{RUN}=r"]}) == []
