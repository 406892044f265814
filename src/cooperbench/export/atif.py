"""The Agent Trajectory Interchange Format (Harbor's ATIF 1.7): `pair.json` of each pair, and a file for each agent.

In a pair's document the harness is the agent that starts the others; their trajectories are `subagent_trajectories`. A
model's reply and the actions that came of it are one step. docs/export.md says what is where.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cooperbench._version import __version__
from cooperbench.agents.recorder import read_trajectory
from cooperbench.report.fields import listed, mapping
from cooperbench.report.loading import Run
from cooperbench.report.pairs import PairData
from cooperbench.storage import write_json

SCHEMA_VERSION = "ATIF-v1.7"
Document = dict[str, Any]
_SURROGATES = re.compile("[\ud800-\udfff]")
_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_ACCOUNTS = ("model_calls", "unpriced_calls", "model_seconds", "sandbox_seconds")
_OF_ENTRIES = ("action", "args", "observation", "timestamp", "step", "thought")
_OF_REPLIES = (
    *_OF_ENTRIES,
    "tokens",
    "cost",
    "calls",
    "unpriced_calls",
    "model_seconds",
    "reasoning",
)


def write_documents(run: Run, target: Path) -> tuple[list[Path], list[str]]:
    """`target/<setting>/<repo>/<task id>/f1_f2/pair.json`, `agent1.json`, …; and a line for each pair without any."""
    files: list[Path] = []
    left_out: list[str] = []
    for pair in run.pairs:
        documents = pair_documents(run.name, pair)
        if not documents:
            left_out.append(f"{pair.setting} {pair.label} has no trajectories")
        for name, document in documents.items():
            files.append(target / pair.paths.folder.relative_to(run.root) / f"{name}.json")
            write_json(files[-1], document)
    return files, left_out


def pair_documents(run_name: str, pair: PairData) -> dict[str, Document]:
    """By file name without its ending; empty where no agent left anything."""
    session_id = (
        f"{run_name}/{pair.setting}/{pair.key.repo}/{pair.key.task_id}/{pair.paths.folder.name}"
    )
    found = {one: read_trajectory(pair.paths.agent(one)) for one in pair.agent_ids}
    documents = {
        one: _document(content, session_id, one) for one, content in found.items() if content
    }
    if documents:
        documents["pair"] = _pair_document(pair, session_id, documents)
    # Unpaired surrogates, from bytes that were no UTF-8, are no text to strict readers.
    text = _SURROGATES.sub("\ufffd", json.dumps(documents, ensure_ascii=False))
    readable: dict[str, Document] = json.loads(text)
    return readable


def _pair_document(pair: PairData, session_id: str, agents: Mapping[str, Document]) -> Document:
    key = pair.key
    calls, results = [], []
    for name, agent in agents.items():
        extra = agent["extra"]
        arguments = {"agent_id": name, "feature_ids": extra["feature_ids"], **agent["agent"]}
        calls.append({"tool_call_id": name, "function_name": "start_agent", "arguments": arguments})
        reference = [{"trajectory_id": agent["trajectory_id"], "session_id": session_id}]
        content = f"{extra['status']}: {extra['error'] or 'no error'}"
        results.append(
            {"source_call_id": name, "content": content, "subagent_trajectory_ref": reference}
        )
    task = (
        f"CooperBench: {key.repo}, task {key.task_id}, features {', '.join(map(str, key.features))}"
    )
    start = {
        "message": "Start the agents and wait for them.",
        "llm_call_count": 0,
        "tool_calls": calls,
    }
    sums = [f"total_{name}" for name in (*_TOKENS, "cost_usd")]
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": session_id,
        "trajectory_id": session_id,
        "agent": {
            "name": "cooperbench",
            "version": str((pair.result or {}).get("version") or __version__),
        },
        "steps": [
            {"step_id": 1, "source": "system", "message": f"{task}; setting {pair.setting}."},
            {"step_id": 2, "source": "agent", **start, "observation": {"results": results}},
        ],
        "final_metrics": {
            **{
                name: sum(agent["final_metrics"][name] for agent in agents.values())
                for name in sums
            },
            "total_steps": 2,
            "extra": {
                name: sum(agent["final_metrics"]["extra"].get(name, 0) for agent in agents.values())
                for name in _ACCOUNTS
            },
        },
        "extra": {
            "setting": pair.setting,
            **asdict(key),
            "state": pair.state,
            "verdicts": pair.verdicts or None,
            "unsound": pair.unsound,
            "suspicious": pair.suspicious,
            "conversation": [
                {
                    "from": one.sender,
                    "to": one.recipient,
                    "message": one.text,
                    "timestamp": one.timestamp,
                }
                for one in pair.conversation().messages
            ],
        },
        "subagent_trajectories": list(agents.values()),
    }


def _document(trajectory: Mapping[str, Any], session_id: str, agent_id: str) -> Document:
    steps = steps_of(listed(trajectory, "steps", dict))
    names = {"name": "agent", "version": "agent_version", "model_name": "model"}
    agent = {name: str(trajectory.get(key) or "unknown") for name, key in names.items()}
    if not trajectory.get("model"):
        del agent["model_name"]
    accounts = {**trajectory, **mapping(trajectory, "token_usage")}
    own = ("feature_ids", "status", "error", "start_time", "end_time")
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": session_id,
        "trajectory_id": f"{session_id}/{agent_id}",
        "agent": agent,
        "steps": steps,
        "final_metrics": {
            **{f"total_{name}": int(accounts.get(name) or 0) for name in _TOKENS},
            "total_cost_usd": float(accounts.get("cost") or 0.0),
            "total_steps": len(steps),
            "extra": {name: accounts[name] for name in _ACCOUNTS if name in accounts},
        },
        "extra": {"agent_id": agent_id, **{key: trajectory.get(key) for key in own}},
    }


def steps_of(entries: Iterable[Mapping[str, Any]]) -> list[Document]:
    """Numbered from 1; at least one, since the format wants one."""
    steps: list[Document] = []
    reply: Document | None = None
    by_call: dict[str, Document] = {}

    def add(source: str, entry: Mapping[str, Any], text: object, **more: Any) -> Document:
        time = {"timestamp": str(entry["timestamp"])} if entry.get("timestamp") else {}
        steps.append(
            {"step_id": len(steps) + 1, **time, "source": source, "message": str(text), **more}
        )
        return steps[-1]

    for entry in entries:
        action, args = str(entry.get("action")), mapping(entry, "args")
        content = args.get("content", "")
        if action == "reply":
            reply = add("agent", entry, content, **_of_reply(entry))
            by_call |= {str(call.get("id")): reply for call in listed(entry, "tool_calls", dict)}
        elif action in ("tell", "receive_message"):
            reply = None
            source = "system" if args.get("kind") == "system" and action == "tell" else "user"
            extra = {"kind": action} | {
                key: value for key, value in args.items() if key != "content"
            }
            add(source, entry, content, extra=extra)
        elif action == "think":
            reply = None
            add("agent", entry, content, llm_call_count=0)
        else:
            # A program may keep several conversations at once: then the call tells whose step it is.
            asked_by = by_call.get(str(entry["call_id"])) if "call_id" in entry else reply
            step = asked_by or add("agent", entry, entry.get("thought", ""), llm_call_count=0)
            _add_call(step, action, entry)
    return steps or [{"step_id": 1, "source": "system", "message": "Nothing is on record."}]


def _of_reply(entry: Mapping[str, Any]) -> Document:
    calls = int(entry.get("calls", 1))
    about: Document = {"llm_call_count": calls, **_extra(entry, _OF_REPLIES)}
    if calls:
        tokens = mapping(entry, "tokens")
        metrics: Document = {name: tokens[name] for name in _TOKENS if name in tokens}
        if "cost" in entry and not entry.get("unpriced_calls"):
            metrics["cost_usd"] = entry["cost"]
        if "model_seconds" in entry:
            metrics["extra"] = {"model_seconds": entry["model_seconds"]}
        about["metrics"] = metrics
        if entry.get("reasoning"):
            about["reasoning_content"] = str(entry["reasoning"])
    return about


def _add_call(step: Document, action: str, entry: Mapping[str, Any]) -> None:
    calls = step.setdefault("tool_calls", [])
    # By the model's own names for its calls where it has given some, so that both can be laid side by side.
    names = [str(call.get("id")) for call in listed(mapping(step, "extra"), "tool_calls", dict)]
    name = entry.get("call_id") or (names[len(calls)] if len(calls) < len(names) else None)
    if (
        name is None
        or len(set(names)) < len(names)
        or name in [call["tool_call_id"] for call in calls]
    ):
        name = f"call_{step['step_id']}_{len(calls) + 1}"
    # Readers of the format know a command under this name.
    function = "bash" if action == "run" else action
    call = {
        "tool_call_id": name,
        "function_name": function,
        "arguments": dict(mapping(entry, "args")),
    }
    calls.append(call | ({"extra": {"step": entry["step"]}} if "step" in entry else {}))
    result = {"source_call_id": name, "content": str(entry.get("observation", ""))}
    step.setdefault("observation", {"results": []})["results"].append(
        result | _extra(entry, _OF_ENTRIES)
    )


def _extra(entry: Mapping[str, Any], known: Sequence[str]) -> Document:
    extra = {key: value for key, value in entry.items() if key not in known}
    return {"extra": extra} if extra else {}
