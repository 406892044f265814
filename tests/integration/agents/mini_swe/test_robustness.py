"""What providers and models do wrong, and whose fault each is."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import cooperbench.retry
from cooperbench.agents.llm import ask
from cooperbench.cli import main
from cooperbench.errors import InfraError, Interrupted, UserError
from cooperbench.gateway.conversations import Calls
from cooperbench.gateway.server import Gateway
from tests.support.agents.mini_swe import (
    KEY,
    MODEL,
    SUBMIT,
    TEXT,
    TOOLS,
    act,
    patching,
    run_solo,
    solved,
    write_config,
)
from tests.support.gateway.sessions import agent_at_work
from tests.support.modelserver import Answer, Broken, Tokens, ToolCall, error, say
from tests.support.modelserver.replies import CONTEXT_OVERFLOW, Failure, Reply
from tests.support.tiny import golden, write_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver import ModelServer

HALF = act(TOOLS, patching(golden(1)))


def test_what_passes_is_tried_again_and_nobody_else_tries_too(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooperbench.retry, "FIRST_PAUSE_SECONDS", 0.01)
    failures: list[Reply] = [
        error(429, retry_after="0"),
        Broken(),
        error(500, retry_after="0.01"),
        error(503, retry_after="0"),
        Broken(b"<html>no JSON</html>"),
        Broken(
            b'{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'
        ),
    ]
    left = run_solo(tmp_path, server, [*failures, *solved()])
    record = left.result["agents"]["solo"]
    assert record["status"] == "submitted"
    assert (record["model_calls"], record["steps"], left.result["attempt"]) == (2, 2, 1)
    assert len(server.requests) == len(failures) + 2
    assert (left.folder / "solo.log").read_text().count(
        "model call failed, next attempt in"
    ) == len(failures)


def test_retry_after_is_honoured(tmp_path: Path, server: ModelServer) -> None:
    moments: list[float] = []

    def script(request: Any) -> Any:
        moments.append(time.monotonic())
        return error(429, retry_after="2") if len(moments) == 1 else act(TOOLS, SUBMIT)

    run_solo(tmp_path, server, script)
    assert moments[1] - moments[0] >= 2


@pytest.mark.parametrize("reply", [error(500), error(429, retry_after="3600"), Broken()])
def test_an_outage_is_nobodys_score(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, reply: Any
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0")
    monkeypatch.setattr(cooperbench.retry, "FIRST_PAUSE_SECONDS", 0.01)
    left = run_solo(tmp_path, server, lambda _: reply)
    assert left.result["status"] == "error"
    assert "did not reply in 1 attempts" in json.dumps(left.result)
    # A pair is tried three times; the call itself was not to be tried again.
    assert len(server.requests) == 3


FAILS = error(500, retry_after="0.5")
HANGS = Answer("", hold=threading.Event())


@pytest.mark.parametrize("reply", [FAILS, HANGS], ids=["fails", "hangs"])
def test_an_outage_does_not_end_as_the_agents_time_limit(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, reply: Reply
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "2.2")
    monkeypatch.setattr(cooperbench.retry, "FIRST_PAUSE_SECONDS", 0.01)
    server.script("", lambda _: reply)
    path = write_config(tmp_path / "agent.yaml", server.openai_url)
    words = [
        "run",
        "-n",
        "r",
        "-a",
        f"{TEXT},{TOOLS}",
        "-m",
        MODEL,
        "--agent-config",
        str(path),
        "-f",
        "1,2",
    ]
    words += ["--backend", "local", "--dataset-dir", str(write_tiny(tmp_path / "data"))]
    words += ["--log-dir", str(tmp_path / "logs"), "--time-limit", "2"]
    assert main(words) == 1
    (folder,) = tmp_path.glob("logs/r/coop/*/*/f1_f2")
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["infrastructure"]) == ("error", True)
    assert "repl" in result["error"]
    assert not (folder / "eval.json").exists()
    server.script("You are agent1", [act(TEXT, patching(golden(1))), act(TEXT, SUBMIT)])
    server.script("You are agent2", [act(TOOLS, patching(golden(2))), act(TOOLS, SUBMIT)])
    assert main(words) == 0


@pytest.mark.parametrize(
    "options",
    [{"time_limit": 3}, {"config": {"agent": {"wall_time_limit_seconds": 3}}}],
    ids=["run", "config"],
)
def test_provider_failures_do_not_count_as_agent_time(
    tmp_path: Path, server: ModelServer, options: dict[str, Any]
) -> None:
    outage = [error(503, retry_after="2"), Failure(500, hold=1.5)]
    left = run_solo(tmp_path, server, [*outage, *solved()], **options)
    record = left.result["agents"]["solo"]
    assert (record["status"], left.result["attempt"]) == ("submitted", 1)
    assert record["duration_seconds"] > 3


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            error(401, f"Incorrect API key provided: {KEY}"),
            r"rejects the API key: Incorrect API key provided: \[redacted",
        ),
        (error(403), "denies access"),
        (
            error(404, "The model `scripted` does not exist", code="model_not_found"),
            "does not have this model",
        ),
        (
            error(429, "You exceeded your current quota.", code="insufficient_quota"),
            "account's quota is exhausted",
        ),
        (error(400, "Unknown parameter: 'temprature'"), "rejects the request: .*temprature"),
    ],
)
def test_fatal_model_errors_stop_the_run(
    tmp_path: Path, server: ModelServer, reply: Any, said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        run_solo(tmp_path, server, lambda _: reply)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)
    assert "mini-extra" not in str(caught.value)
    assert len(server.requests) == 1
    assert not list(tmp_path.rglob("result.json"))
    assert all(
        KEY not in path.read_text()
        for path in tmp_path.joinpath("logs").rglob("*")
        if path.is_file()
    )


@pytest.mark.parametrize(
    ("script", "options", "status"),
    [
        ([HALF, CONTEXT_OVERFLOW], {}, "context_overflow"),
        ([HALF, error(400, "prompt is too long: 210000 tokens > 200000 maximum")], {}, "context_overflow"),
        ([HALF, error(400, "Your request was rejected by our safety system.", code="content_policy_violation")], {}, "content_policy"),
        ([HALF, error(400, "messages.7: odd")], {}, "request_rejected"),
        ([HALF, say("a"), say("b"), say("c")], {}, "format_error"),
        ([HALF, act(TOOLS, "ls"), act(TOOLS, "ls")], {"step_limit": 2}, "step_limit"),
        ([HALF, act(TOOLS, "ls")], {"config": {"agent": {"step_limit": 1}}}, "step_limit"),
        ([HALF, act(TOOLS, "ls", tokens=Tokens(1_000_000)), act(TOOLS, "ls")], {"cost_limit": 1, "model_name": "openai/gpt-4o"}, "cost_limit"),
        ([HALF, act(TOOLS, "ls", tokens=Tokens(1_600_000)), act(TOOLS, "ls")], {"model_name": "openai/gpt-4o"}, "cost_limit"),
        ([HALF, act(TOOLS, "true", hold=4.0)], {"time_limit": 3}, "time_limit"),
        ([HALF, act(TOOLS, "true", hold=4.0)], {"config": {"agent": {"wall_time_limit_seconds": 3}}}, "time_limit"),
    ],
)  # fmt: skip
def test_how_an_agent_may_end_with_its_work_handed_in(
    tmp_path: Path, server: ModelServer, script: list[Any], options: dict[str, Any], status: str
) -> None:
    left = run_solo(tmp_path, server, script, **options)
    record = left.result["agents"]["solo"]
    assert record["status"] == status
    assert record["error"]
    assert "+feature 1" in left.patch("solo")
    if status == "cost_limit":
        assert record["cost"] > 1
    # The limit was known before the next call would have been paid for.
    assert len(server.requests) == (
        len(script) - 1 if status.endswith(("step_limit", "cost_limit")) else len(script)
    )


@pytest.mark.parametrize(
    ("agent", "wrong", "told"),
    [
        (TEXT, say("No block at all."), "EXACTLY ONE action"),
        (TEXT, say("```bash\nls\n```\n```bash\nls\n```"), "found 2 actions"),
        (TOOLS, say("No call at all."), "No tool calls found"),
        (TOOLS, say("", calls=(ToolCall("fly", {"command": "x"}),)), "Unknown tool 'fly'"),
        (
            TOOLS,
            say("", calls=(ToolCall("bash", "{not JSON"),)),
            "Error parsing tool call arguments",
        ),
    ],
)
def test_format_errors_count_only_in_a_row(
    tmp_path: Path, server: ModelServer, agent: str, wrong: Answer, told: str
) -> None:
    right = act(agent, "true")
    left = run_solo(
        tmp_path, server, [wrong, wrong, right, wrong, wrong, right, act(agent, SUBMIT)], agent
    )
    record = left.result["agents"]["solo"]
    assert (record["status"], record["model_calls"], record["steps"]) == ("submitted", 7, 3)
    assert told in server.requests[1].last


@pytest.mark.parametrize("cost_limit", [None, 100.0])
def test_framework_limit_does_not_lower_ours(
    tmp_path: Path, server: ModelServer, cost_limit: float | None
) -> None:
    dear = act(TOOLS, "true", tokens=Tokens(2_000_000))
    left = run_solo(
        tmp_path,
        server,
        [dear, act(TOOLS, SUBMIT)],
        model_name="openai/gpt-4o",
        cost_limit=cost_limit,
    )
    expected = "cost_limit" if cost_limit is None else "submitted"
    assert left.result["agents"]["solo"]["status"] == expected


def test_a_call_in_flight_does_not_hold_up_the_end(tmp_path: Path, server: ModelServer) -> None:
    """Ctrl-C: the agent's thread is free while the provider has not answered yet."""
    stop = threading.Event()

    def script(_: Any) -> Reply:
        stop.set()
        return HANGS

    with agent_at_work(tmp_path) as at_work:
        at_work.session.stop, at_work.session.model = stop, MODEL
        settings = {"api_base": server.openai_url, "api_key": KEY}
        with Gateway.shared().open(at_work.session, settings, Calls(at_work.session)) as access:
            server.script("", script)
            with pytest.raises(Interrupted):
                access.ask({"messages": [{"role": "user", "content": "Hello."}]})


@pytest.mark.parametrize(
    "seen", [ConnectionError("gone"), json.JSONDecodeError("no", "", 0), RuntimeError("odd")]
)
def test_an_error_of_no_known_kind_is_an_outage(
    seen: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0")

    def call() -> None:
        raise seen

    with pytest.raises(InfraError, match="did not reply in 1 attempts"):
        ask("m", call, first_call=True)
