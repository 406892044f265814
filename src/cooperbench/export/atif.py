"""The Agent Trajectory Interchange Format (Harbor's ATIF 1.7): `pair.json` of each pair, and one file an agent.

A pair's document has the harness as its agent, which starts the agents and waits for them; their trajectories are its
`subagent_trajectories`. Each agent's file is the same trajectory by itself. Pairs that were killed are exported as far
as their journals go.

A model's reply and the actions that came of it are one step; what an agent did without asking a model is a step with
`llm_call_count` 0. Prompts, format errors and colleagues' messages are steps of the system or the user.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.agents.recorder import read_trajectory
from cooperbench.export import Exported
from cooperbench.models import summed_accounts
from cooperbench.storage import write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData

SCHEMA_VERSION = "ATIF-v1.7"
_SURROGATES = re.compile("[\ud800-\udfff]")
Document = dict[str, Any]
_FUNCTIONS = {"run": "bash"}
"""Our actions by the names that readers of the format know; others keep theirs."""
_OF_ENTRIES = ("action", "args", "observation", "timestamp", "step", "thought")
_OF_REPLIES = (*_OF_ENTRIES, "tokens", "cost", "calls", "unpriced_calls", "model_seconds", "reasoning")


def write(run: Run, target: Path) -> Exported:
    """`target/<setting>/<repo>/<task id>/f1_f2/pair.json`, `agent1.json`, …"""
    done = Exported([], [])
    for pair in run.pairs:
        documents = pair_documents(run.name, pair)
        if not documents:
            done.left_out.append(f"{pair.setting} {pair.label} has no trajectories")
        for name, document in documents.items():
            path = target / pair.paths.folder.relative_to(run.root) / f"{name}.json"
            write_json(path, document)
            done.files.append(path)
    return done


def pair_documents(run_name: str, pair: PairData) -> dict[str, Document]:
    """By file name without its ending; empty where no agent left anything."""
    session_id = f"{run_name}/{pair.setting}/{pair.key.repo}/{pair.key.task_id}/{pair.paths.folder.name}"
    agents = {
        agent_id: _agent_document(trajectory, session_id, agent_id)
        for agent_id in pair.agent_ids
        if (trajectory := read_trajectory(pair.paths.agent(agent_id))) is not None
    }
    if not agents:
        return {}
    documents = {"pair": _pair_document(pair, session_id, list(agents.values())), **agents}
    return {name: _readable(document) for name, document in documents.items()}


def _agent_document(trajectory: Mapping[str, Any], session_id: str, agent_id: str) -> Document:
    entries = trajectory.get("steps")
    found = entries if isinstance(entries, list) else []
    steps = steps_of(entry for entry in found if isinstance(entry, dict))
    accounts = dict(trajectory) | (trajectory.get("token_usage") or {})
    agent = {
        "name": str(trajectory.get("agent") or "unknown"),
        "version": str(trajectory.get("agent_version") or "unknown"),
    }
    if trajectory.get("model"):
        agent["model_name"] = str(trajectory["model"])
    about = ("feature_ids", "status", "error", "start_time", "end_time")
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": session_id,
        "trajectory_id": f"{session_id}/{agent_id}",
        "agent": agent,
        "steps": steps,
        "final_metrics": _metrics(accounts, len(steps)),
        "extra": {"agent_id": agent_id, **{key: trajectory.get(key) for key in about}},
    }


def _pair_document(pair: PairData, session_id: str, agents: Sequence[Document]) -> Document:
    features = ", ".join(map(str, pair.key.features))
    work = "one agent does all of them" if pair.setting == "solo" else "one agent for each, at the same time"
    steps = [
        {
            "step_id": 1,
            "source": "system",
            "message": f"CooperBench: {pair.key.repo}, task {pair.key.task_id}, features {features}; "
            f"setting {pair.setting}: {work}, in a sandbox of its own.",
        },
        {
            "step_id": 2,
            "source": "agent",
            "message": "Start the agents and wait for them.",
            "llm_call_count": 0,
            "tool_calls": [_start_call(agent) for agent in agents],
            "observation": {"results": [_start_result(agent, session_id) for agent in agents]},
        },
    ]
    verdicts = pair.verdicts
    result = pair.result or {}
    totals = summed_accounts(_accounts_of(agent) for agent in agents)
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": session_id,
        "trajectory_id": session_id,
        "agent": {"name": "cooperbench", "version": str(result.get("version") or __version__)},
        "steps": steps,
        "final_metrics": _metrics(totals, len(steps)),
        "extra": {
            "setting": pair.setting,
            "repo": pair.key.repo,
            "task_id": pair.key.task_id,
            "features": list(pair.key.features),
            "state": pair.state,
            "verdicts": verdicts._asdict() if verdicts else None,
            "unsound": list(pair.unsound),
            "conversation": [
                {"from": one.sender, "to": one.recipient, "message": one.text, "timestamp": one.timestamp}
                for one in pair.conversation().messages
            ],
        },
        "subagent_trajectories": list(agents),
    }


def _start_call(agent: Document) -> dict[str, Any]:
    extra = agent["extra"]
    arguments = {"agent_id": extra["agent_id"], "feature_ids": extra["feature_ids"], **agent["agent"]}
    return {"tool_call_id": extra["agent_id"], "function_name": "start_agent", "arguments": arguments}


def _start_result(agent: Document, session_id: str) -> dict[str, Any]:
    extra = agent["extra"]
    return {
        "source_call_id": extra["agent_id"],
        "content": str(extra["status"]) + (f": {extra['error']}" if extra["error"] else ""),
        "subagent_trajectory_ref": [{"trajectory_id": agent["trajectory_id"], "session_id": session_id}],
    }


def _metrics(accounts: Mapping[str, Any], steps: int) -> dict[str, Any]:
    extra = ("model_calls", "unpriced_calls", "model_seconds", "sandbox_seconds")
    return {
        "total_prompt_tokens": int(accounts.get("prompt_tokens") or 0),
        "total_completion_tokens": int(accounts.get("completion_tokens") or 0),
        "total_cached_tokens": int(accounts.get("cached_tokens") or 0),
        "total_cost_usd": float(accounts.get("cost") or 0.0),
        "total_steps": steps,
        "extra": {name: accounts[name] for name in extra if name in accounts},
    }


def _accounts_of(agent: Document) -> dict[str, Any]:
    metrics = agent["final_metrics"]
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    return {
        **{name: metrics[f"total_{name}"] for name in names},
        "cost": metrics["total_cost_usd"],
        **metrics["extra"],
    }


def _readable(value: Any) -> Any:
    """Unpaired surrogates, from bytes that were no UTF-8, are no text to strict readers: they become U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_readable(key): _readable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_readable(one) for one in value]
    return value


def steps_of(entries: Iterable[Mapping[str, Any]]) -> list[Document]:
    """Numbered from 1; at least one, since the format wants one."""
    steps: list[Document] = []
    open_reply: Document | None = None
    for entry in entries:
        action, args = str(entry.get("action")), _mapping(entry.get("args"))
        match action:
            case "reply":
                open_reply = _reply(entry, args)
                steps.append(open_reply)
            case "tell" | "receive_message":
                open_reply = None
                steps.append(_told(action, entry, args))
            case "think":
                open_reply = None
                steps.append(_unasked(entry, str(args.get("content", ""))))
            case _:
                step = open_reply
                if step is None:
                    step = _unasked(entry, str(entry.get("thought", "")))
                    steps.append(step)
                _add_call(step, action, entry, args)
    if not steps:
        steps.append({"source": "system", "message": "Nothing is on record."})
    for number, step in enumerate(steps, 1):
        _name_calls(step, number)
    return [{"step_id": number, **step} for number, step in enumerate(steps, 1)]


def _reply(entry: Mapping[str, Any], args: Mapping[str, Any]) -> Document:
    calls = int(entry.get("calls", 1))
    step = _step("agent", entry, str(args.get("content", ""))) | {"llm_call_count": calls}
    if calls:
        tokens = _mapping(entry.get("tokens"))
        names = ("prompt_tokens", "completion_tokens", "cached_tokens")
        metrics: dict[str, Any] = {name: tokens[name] for name in names if name in tokens}
        if "cost" in entry and not entry.get("unpriced_calls"):
            metrics["cost_usd"] = entry["cost"]
        if "model_seconds" in entry:
            metrics["extra"] = {"model_seconds": entry["model_seconds"]}
        step["metrics"] = metrics
        if entry.get("reasoning"):
            step["reasoning_content"] = str(entry["reasoning"])
    return _with_extra(step, entry, _OF_REPLIES)


def _told(action: str, entry: Mapping[str, Any], args: Mapping[str, Any]) -> Document:
    source = "system" if action == "tell" and args.get("kind") == "system" else "user"
    step = _step(source, entry, str(args.get("content", "")))
    step["extra"] = {"kind": action} | {key: value for key, value in args.items() if key != "content"}
    return step


def _unasked(entry: Mapping[str, Any], text: str) -> Document:
    return _step("agent", entry, text) | {"llm_call_count": 0}


def _step(source: str, entry: Mapping[str, Any], text: str) -> Document:
    time = {"timestamp": str(entry["timestamp"])} if entry.get("timestamp") else {}
    return {**time, "source": source, "message": text}


def _add_call(step: Document, action: str, entry: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    call = {"function_name": _FUNCTIONS.get(action, action), "arguments": dict(args)}
    step.setdefault("tool_calls", []).append(
        _with_extra(call, {"step": entry["step"]} if "step" in entry else {})
    )
    result = _with_extra({"content": str(entry.get("observation", ""))}, entry, _OF_ENTRIES)
    step.setdefault("observation", {"results": []})["results"].append(result)


def _name_calls(step: Document, number: int) -> None:
    """By the model's own names for its calls where it has given some, so that both can be laid side by side."""
    asked = _mapping(step.get("extra")).get("tool_calls")
    names = [str(_mapping(call).get("id")) for call in asked] if isinstance(asked, list) else []
    calls = step.get("tool_calls", [])
    if len(names) < len(calls) or len(set(names)) < len(names):
        names = [f"call_{number}_{place}" for place in range(1, len(calls) + 1)]
    for place, call in enumerate(calls):
        call["tool_call_id"] = names[place]
        step["observation"]["results"][place]["source_call_id"] = names[place]


def _with_extra(
    target: dict[str, Any], entry: Mapping[str, Any], known: Iterable[str] = ()
) -> dict[str, Any]:
    extra = {key: value for key, value in entry.items() if key not in known}
    return target | {"extra": extra} if extra else target


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
