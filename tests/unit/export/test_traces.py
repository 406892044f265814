"""Traces: what a backend for OpenTelemetry sees of a pair."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cooperbench.export.trace_spans import TraceSpan
from cooperbench.export.traces import pair_spans, provider_name
from cooperbench.report.loading import load_run
from tests.support.report.factory import TALK, Kind, write_run

if TYPE_CHECKING:
    from pathlib import Path


def spans_of_run(logs: Path, name: str = "r") -> list[TraceSpan]:
    run = load_run(logs, name)
    (pair,) = run.pairs
    return pair_spans(run, pair)


def spans_of_kind(logs: Path, kind: Kind) -> list[TraceSpan]:
    write_run(logs, "r", {"x_task": {7: [(1, 2)]}}, kind)
    return spans_of_run(logs)


def named(spans: list[TraceSpan], start: str) -> list[TraceSpan]:
    return [span for span in spans if span.name.startswith(start)]


def test_the_tree_is_pair_agent_step_and_what_happens_in_it(tmp_path: Path) -> None:
    spans = spans_of_kind(tmp_path, "passed")
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    assert len({span.trace_id for span in spans}) == 1

    def parents(start: str) -> set[str]:
        return {by_id[span.parent_id or 0].name for span in named(spans, start)}

    (root,) = [span for span in spans if span.parent_id is None]
    assert root.name == "invoke_workflow cooperbench"
    assert parents("invoke_agent") == parents("evaluate") == {root.name}
    assert parents("step") == {"invoke_agent mini_swe_agent"}
    assert parents("chat") == parents("execute_tool") == parents("message") == {"step"}
    assert all(root.start_ns <= span.end_ns <= root.end_ns for span in spans)
    assert all(span.is_complete for span in spans)


def test_usage_and_cost_of_calls_add_up_to_those_of_agents_and_pair(tmp_path: Path) -> None:
    spans = spans_of_kind(tmp_path, "passed")
    agents = named(spans, "invoke_agent")
    for name in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "cooperbench.cost_usd"):
        calls = sum(float(str(span.attributes[name])) for span in named(spans, "chat"))
        assert calls == sum(float(str(span.attributes[name])) for span in agents)
    (root,) = named(spans, "invoke_workflow")
    assert root.attributes["cooperbench.cost_usd"] == 0.5
    assert root.attributes["cooperbench.verdict.overall"] is True
    assert root.attributes["cooperbench.merge_status"] == "clean"
    (evaluation,) = named(spans, "evaluate")
    labels = {
        event.attributes["gen_ai.evaluation.name"]: event.attributes[
            "gen_ai.evaluation.score.label"
        ]
        for event in evaluation.events
    }
    assert labels == dict.fromkeys(("individual", "merge", "merged", "overall", "strict"), "passed")


def test_messages_are_spans_of_the_sender_and_links_of_the_recipient(tmp_path: Path) -> None:
    spans = spans_of_kind(tmp_path, "passed")
    messages = named(spans, "message")
    texts = [span.attributes["cooperbench.message.text"] for span in messages]
    assert texts == [talk.text for talk in TALK]
    linked = [link.span_id for span in named(spans, "step") for link in span.links]
    assert set(linked) <= {span.span_id for span in messages}
    received = [event for span in named(spans, "invoke_agent") for event in span.events]
    assert {event.name for event in received} == {"message received"}
    assert len(received) == len(TALK)
    assert messages[0].kind == "producer"


def test_model_calls_have_input_since_the_last_call_and_output(tmp_path: Path) -> None:
    calls = named(spans_of_kind(tmp_path, "passed"), "chat gpt-4o")
    first, second = calls[:2]
    (prompt,) = json.loads(str(first.attributes["gen_ai.input.messages"]))
    assert prompt == {"role": "user", "parts": [{"type": "text", "content": "Add feature [1]."}]}
    (output,) = json.loads(str(first.attributes["gen_ai.output.messages"]))
    (call,) = [part for part in output["parts"] if part["type"] == "tool_call"]
    result = json.loads(str(second.attributes["gen_ai.input.messages"]))[0]
    assert result["parts"][0]["type"] == "tool_call_response"
    assert result["parts"][0]["id"] == call["id"]
    assert output["finish_reason"] == "tool_call"


def test_spans_of_an_interrupted_agent_are_complete_except_for_the_last_step(
    tmp_path: Path,
) -> None:
    spans = spans_of_kind(tmp_path, "killed")
    steps = named(spans, "step")
    assert [span.is_complete for span in steps] == [True, True, True, False] * 2
    last = {span.span_id for span in steps if not span.is_complete}
    # The journal of this run does not say which model it was.
    assert {span.name for span in spans if span.parent_id in last} == {"chat", "execute_tool bash"}
    assert not any(span.is_complete for span in spans if span.parent_id in last)
    assert not any(span.is_complete for span in named(spans, "invoke_"))
    assert {span.is_complete for span in spans_of_kind(tmp_path / "other", "unevaluated")} == {
        True,
        False,
    }


def test_a_pair_of_which_nothing_is_known_has_no_trace(tmp_path: Path) -> None:
    assert spans_of_kind(tmp_path, "missing") == []
    (root,) = spans_of_kind(tmp_path / "other", "error")
    assert root.error == "the sandbox did not start"
    assert root.is_complete


def test_runs_of_the_same_name_are_different_traces(tmp_path: Path) -> None:
    first = spans_of_kind(tmp_path / "a", "passed")
    assert [span.span_id for span in spans_of_kind(tmp_path / "b", "passed")] == [
        span.span_id for span in first
    ]
    write_run(tmp_path / "c", "r", {"x_task": {7: [(1, 2)]}}, "passed")
    config = tmp_path / "c/r/config.json"
    content = json.loads(config.read_text())
    content["invocations"][0]["time"] = "2026-05-05T00:00:00.000Z"
    config.write_text(json.dumps(content))
    assert spans_of_run(tmp_path / "c")[0].trace_id != first[0].trace_id


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("gpt-4o", "openai"),
        ("claude-sonnet-4-5", "anthropic"),
        ("vertex_ai/gemini-3-flash-preview", "gcp.vertex_ai"),
        ("bedrock/anthropic.claude", "aws.bedrock"),
        ("my-model", "unknown"),
    ],
)
def test_providers_have_the_names_of_the_conventions(model: str, provider: str) -> None:
    assert provider_name(model) == provider
