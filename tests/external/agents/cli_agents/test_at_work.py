"""The real command-line agents from npm in real sandboxes, against a provider on loopback behind the real LiteLLM."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import run
from cooperbench.agents.cli_agents import ClaudeCodeAgent, CodexAgent
from cooperbench.agents.environments import find_environment, get_framework
from cooperbench.errors import UserError
from tests.support.agents.builders import builders, told_by
from tests.support.agents.frameworks import (
    CLIS,
    DATA,
    KEY,
    MODEL,
    TONGUES,
    provide,
    settings,
    write_config,
)
from tests.support.modelserver import Answer, ModelServer, error
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver import Request
    from tests.support.modelserver.replies import Reply
    from tests.support.runner.helpers import Left

pytestmark = [
    pytest.mark.usefixtures("installed_frameworks"),
]


def play(tmp_path: Path, server: ModelServer, agent: str, **options: Any) -> Left:
    for name in agent.split(","):
        provide(name)
    config = write_config(tmp_path / "agent.yaml", settings("codex", server.openai_url))
    return run_tiny(tmp_path, agent, agent_config=config, **({"model_name": MODEL} | options))


@pytest.mark.parametrize("names", ["claude_code,codex", "gemini_cli,opencode"])
def test_two_of_them_build_and_talk(names: str, tmp_path: Path, server: ModelServer) -> None:
    first, second = names.split(",")
    server.script("", builders(first, second))
    left = play(tmp_path, server, names)
    assert left.evaluation["overall_success"], left.evaluation
    for name, agent in zip((first, second), left.result["agents"].values(), strict=True):
        assert (agent["agent"], agent["status"]) == (name, "submitted")
        assert agent["agent_version"] == get_framework(name).version
        assert agent["steps"] >= 4
        assert agent["model_calls"] >= 5
        assert (agent["prompt_tokens"], agent["completion_tokens"]) >= (500, 50)
        assert agent["files_changed"] == ["app.txt"], "nothing of the program is part of the work"
    messages = sorted(message["message"] for message in left.json("conversation.json")["messages"])
    assert messages == ["I am at line 16", "I am at line 6"]
    for number in (1, 2):
        every = [json.dumps(request.messages) for request in server.requests]
        seen = "".join(text for text in every if f"You are agent{number}" in text)
        assert told_by(3 - number) in seen, "what its teammate wrote"
        assert "OPENAI_API_KEY" not in seen
        assert "eth0" not in seen, "it has no network"
        assert str(DATA) not in seen, "nothing of the host"
    for path in left.folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    for number in (1, 2):
        steps = [step for step in left.trajectory(f"agent{number}")["steps"] if step.get("tool")]
        assert 4 <= len(steps) == own_tool_calls(left.folder / f"agent{number}" / "output.log"), (
            steps
        )


def own_tool_calls(log: Path) -> int:
    """As the program itself tells of them in its stream of events."""
    kinds = []
    for line in log.read_text().splitlines():
        match json.loads(line) if line.startswith("{") else None:
            case {"type": "assistant", "message": {"content": content}}:
                kinds += [one["type"] for one in content]
            case {"type": "item.completed", "item": {"type": kind}} | {"type": kind}:
                kinds.append(kind)
    return sum(
        kind in ("tool_use", "command_execution", "mcp_tool_call", "file_change") for kind in kinds
    )


def solo(tmp_path: Path, server: ModelServer, name: str, script: Any, **options: Any) -> Left:
    server.script("", script)
    return play(tmp_path, server, name, setting="solo", auto_eval=False, **options)


def outcome(left: Left) -> tuple[str, str]:
    agent = left.result["agents"]["solo"]
    return agent["status"], agent["error"] or ""


def test_a_provider_that_fails_for_a_while(tmp_path: Path, server: ModelServer) -> None:
    run, words = TONGUES["claude_code"].run, TONGUES["claude_code"].last_words
    cut = Answer(run("echo cut >>app.txt").text, run("echo cut >>app.txt").calls, break_after=3)
    faults = [error(429, retry_after="0"), error(500), cut]
    left = solo(tmp_path, server, "claude_code", [*faults, run("echo work >>app.txt"), *words])
    assert outcome(left) == ("submitted", "")
    assert "+work" in left.patch("solo")
    assert "+cut" not in left.patch("solo")


def test_a_key_that_is_refused_stops_the_run(tmp_path: Path, server: ModelServer) -> None:
    with pytest.raises(UserError, match="rejects the API key"):
        solo(tmp_path, server, "codex", [error(401)] * 9)


def test_one_that_crashes_is_judged_by_its_work(tmp_path: Path, server: ModelServer) -> None:
    kill = "echo work >>app.txt; kill -9 $PPID; sleep 60"
    left = solo(tmp_path, server, "claude_code", [TONGUES["claude_code"].run(kill)] * 3)
    status, words = outcome(left)
    assert status == "crashed"
    assert "claude_code ended with exit code 137" in words
    assert "+work" in left.patch("solo")


@pytest.mark.parametrize("name", ["claude_code", "codex"])
def test_a_call_that_hangs_ends_with_the_time_limit(
    name: str, tmp_path: Path, server: ModelServer
) -> None:
    """What it started ignores the end, and is in sessions of its own."""
    stubborn = "trap '' TERM INT HUP; while :; do sleep 1; done"
    hang = f'echo work >>app.txt; setsid sh -c "{stubborn}" & sh -c "{stubborn}"'
    begun = time.monotonic()
    left = solo(tmp_path, server, name, [TONGUES[name].run(hang)] * 3, time_limit=10)
    assert outcome(left)[0] == "time_limit"
    assert "+work" in left.patch("solo")
    assert time.monotonic() - begun < 60


def test_background_processes_are_ended(tmp_path: Path, server: ModelServer) -> None:
    tongue = TONGUES["claude_code"]
    busy = "(setsid sh -c 'while :; do echo more >>late.txt; sleep 0.01; done' >/dev/null 2>&1 &) ; sleep 0.2"
    left = solo(tmp_path, server, "claude_code", [tongue.run(busy), *tongue.last_words])
    assert outcome(left) == ("submitted", "")
    assert "+more" in left.patch("solo")


def test_limits_of_steps_end_it(tmp_path: Path, server: ModelServer) -> None:
    run = TONGUES["codex"].run

    def script(request: Request) -> Reply:
        return run(f"echo {request.number} >>app.txt")

    left = solo(tmp_path, server, "codex", script, step_limit=3)
    assert outcome(left)[0] == "step_limit"
    assert left.result["agents"]["solo"]["steps"] == 3


def test_only_the_gateway_is_reachable(tmp_path: Path, server: ModelServer) -> None:
    tongue = TONGUES["claude_code"]
    node = "$(echo /cooperbench/programs/node_modules/node-linux-*/bin/node)"
    asked = (
        "method: 'POST', body: '{}', headers: {'x-api-key': 'another', 'anthropic-version': '1'}"
    )
    ask = f"fetch(process.env.ANTHROPIC_BASE_URL + '/v1/messages', {{{asked}}}).then((r) => console.log('got', r.status))"
    away = "fetch('http://1.1.1.1/').catch((e) => console.log('away', e.cause.code))"
    host = f"fetch('{server.anthropic_url}/v1').catch((e) => console.log('host', e.cause.code))"
    steps = [tongue.run(f'{node} -e "{code}"') for code in (ask, away, host)]
    read = tongue.run("read answer; echo no answer: $?")
    solo(tmp_path, server, "claude_code", [*steps, read, *tongue.last_words])
    seen = json.dumps(server.requests[-1].messages)
    assert "got 401" in seen
    assert "away ENETUNREACH" in seen
    assert "host ECONNREFUSED" in seen
    assert "no answer: 1" in seen, "a question that nobody answers does not wait"


def test_what_cannot_work_is_said_beforehand(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    provide("codex")
    with pytest.raises(UserError, match="needs OPENAI_API_KEY"):
        CodexAgent().check_model("openai/gpt-5", None)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    CodexAgent().check_model("openai/gpt-5", None)
    with pytest.raises(
        UserError, match="cannot call tools according to LiteLLM; codex needs a model that can"
    ):
        CodexAgent().check_model("openai/text-embedding-3-small", None)
    for text in ("agent: {}", "model: {name: x}", "model: {model_kwargs: 3}", "3"):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(
            UserError, match=r"bad\.yaml: the config may only have model\.model_kwargs"
        ):
            CodexAgent().check(tmp_path / "bad.yaml", [], "coop")
    monkeypatch.setenv("COOPERBENCH_DATA_DIR", str(tmp_path / "empty"))
    with pytest.raises(
        UserError,
        match="'claude_code' is not installed; run `cooperbench agents install claude_code`",
    ):
        ClaudeCodeAgent().check(None, [], "coop")


def test_all_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    from cooperbench.cli import main

    assert main(["agents", "list", "--json"]) == 0
    rows = {row["agent"]: row for row in json.loads(capsys.readouterr().out)}
    for name in CLIS:
        found = find_environment(get_framework(name))
        assert rows[name]["version"] == (found.version if found else None)


def test_twenty_at_once(tmp_path: Path, server: ModelServer) -> None:
    """None is answered before all have asked: they do work at the same time."""
    provide("codex")
    tongue, all_here = TONGUES["codex"], threading.Barrier(20)

    def reply(request: Request) -> Reply:
        if "havebuilt" in json.dumps(request.messages):
            return tongue.last_words[0]
        all_here.wait(120)
        return tongue.run("echo work >>app.txt; echo have''built")

    server.script("", reply)
    config = write_config(tmp_path / "agent.yaml", settings("codex", server.openai_url))
    data = write_tiny(tmp_path / "data", range(1, 6))
    run(
        "r", agent="codex", model_name=MODEL, agent_config=str(config), backend="local", dataset_dir=data,
        logs_dir=tmp_path / "logs", concurrency=10, auto_eval=False,
    )  # fmt: skip
    for path in (tmp_path / "logs").rglob("result.json"):
        assert [one["status"] for one in json.loads(path.read_text())["agents"].values()] == [
            "submitted"
        ] * 2
    patches = [path.read_text() for path in (tmp_path / "logs").rglob("agent?.patch")]
    assert ["+work" in patch for patch in patches] == [True] * 20
