"""The Agent Trajectory Interchange Format (Harbor's ATIF 1.7): `pair.json` of each pair, and one file an agent.

A pair's document has the harness as its agent, which starts the agents and waits for them; their trajectories are its
`subagent_trajectories`. Each agent's file is the same trajectory by itself. Pairs that were killed are exported as far
as their journals go.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.agents.recorder import read_trajectory
from cooperbench.export import Exported
from cooperbench.export.atif_steps import steps_of
from cooperbench.models import summed_accounts
from cooperbench.storage import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData

SCHEMA_VERSION = "ATIF-v1.7"
_SURROGATES = re.compile("[\ud800-\udfff]")
Document = dict[str, Any]


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
    steps = (
        steps_of(entry for entry in entries if isinstance(entry, dict))
        if isinstance(entries, list)
        else steps_of(())
    )
    tokens = trajectory.get("token_usage") or {}
    accounts = dict(trajectory) | tokens
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
