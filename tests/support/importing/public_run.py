"""Runs in the layouts of the public release and of the quick start, written by hand from their description.

`write_pair` writes one pair of a `SourceLayout`; `write_config` the files of the run. Nothing here was copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cooperbench.models import Setting

SourceLayout = Literal["public", "public_without_setting", "quick_start"]
START = "2025-11-03T14:02:11.123456"
END = "2025-11-03T14:09:41.654321"
MODEL = "gemini/gemini-3-flash-preview"
FRAMEWORK = "mini_swe_agent_v2"


@dataclass(frozen=True)
class PublicPair:
    """One pair, and what its files say."""

    repo: str = "tiny_task"
    task_id: int = 7
    features: tuple[int, ...] = (1, 2)
    setting: Setting = "coop"
    patches: Mapping[int, bytes] = field(default_factory=dict)
    """By feature; in solo, 0 is the only patch."""
    passed: bool | None = True
    """The recorded verdict; None without eval.json."""
    merge: tuple[str, str] = ("clean", "naive")
    """Status and strategy."""
    messages: Sequence[tuple[int, int, str]] = ((1, 2, "I change line 5."),)
    """Sender and recipient by number of agent, and text."""
    conversation: bool = True
    lead: str | None = None


def write_config(root: Path, *, setting: str = "coop", pairs: int = 1) -> None:
    """config.json, summary.json and eval_summary.json of the public layout."""
    write_json(root / "config.json", {
        "run_name": "their-run", "agent_framework": FRAMEWORK, "model": MODEL, "setting": setting,
        "concurrency": 20, "total_tasks": pairs, "started_at": START,
    })  # fmt: skip
    summary = {
        "pass_rate": 0.5,
        "total_tasks": pairs,
        "completed": pairs,
        "skipped": 0,
        "failed": 0,
    }
    write_json(root / "summary.json", {**summary, "total_cost": 1.0, "results": []})
    write_json(root / "eval_summary.json", {"passed": 1})


def write_pair(root: Path, pair: PublicPair, layout: SourceLayout = "public") -> Path:
    """The folder of a pair."""
    if layout == "quick_start":
        return _write_quick_start(root, pair)
    names = "_".join(f"f{feature}" for feature in pair.features)
    base = root if layout == "public_without_setting" else root / pair.setting
    folder = base / pair.repo / str(pair.task_id) / names
    for number, name in enumerate(_agent_names(pair), 1):
        patch = pair.patches.get(0 if pair.setting == "solo" else pair.features[number - 1])
        if patch is not None:
            write(folder / f"{name}.patch", patch)
        write_json(folder / f"{name}_traj.json", trajectory(pair, number))
    write_json(folder / "result.json", _result(pair))
    if pair.setting != "solo" and pair.conversation:
        write_json(folder / "conversation.json", _conversation(pair))
    if pair.setting == "team":
        write_json(folder / "tasks.json", [{"id": 1, "title": "merge", "status": "done"}])
        write_json(folder / "task_log.json", [{"event": "create", "task": 1}])
    if pair.passed is not None:
        write_json(folder / "eval.json", _evaluation(pair))
    return folder


def _agent_names(pair: PublicPair) -> list[str]:
    """The number is that of the feature."""
    return ["solo"] if pair.setting == "solo" else [f"agent{feature}" for feature in pair.features]


def _agent_id(pair: PublicPair, number: int) -> str:
    return "solo" if pair.setting == "solo" else f"agent{number}"


def trajectory(pair: PublicPair, number: int) -> dict[str, Any]:
    """agentN_traj.json: the messages of mini-swe-agent, with tool calls."""
    content: dict[str, Any] = {"repo": pair.repo, "task_id": pair.task_id}
    if pair.setting == "solo":
        content["features"] = list(pair.features)
    else:
        content["feature_id"] = pair.features[number - 1]
    content |= {"agent_id": _agent_id(pair, number), "model": MODEL, "status": "Submitted"}
    content |= {"cost": 0.25, "steps": 2}
    if pair.setting == "team":
        content["team_role"] = "lead" if pair.lead == f"agent{number}" else "member"
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a programmer."},
        {"role": "user", "content": "Implement the feature.", "timestamp": 1762178531.5},
        tool_call("call-1", "ls -la", "I look around."),
        {"role": "tool", "tool_call_id": "call-1", "content": "total 8\napp.txt"},
    ]
    for sender, recipient, text in pair.messages:
        if recipient == number:
            messages.append({"role": "user", "content": f"[Message from agent{sender}]: {text}"})
    messages += [
        tool_call("call-2", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "Done."),
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}},
    ]
    return content | {"messages": messages}


def tool_call(call_id: str, command: str, text: str) -> dict[str, Any]:
    """A reply with one command."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    return {
        "role": "assistant", "content": text, "timestamp": "2025-11-03T14:02:15",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        "extra": {"cost": 0.125, "response": {"usage": usage}},
    }  # fmt: skip


def _result(pair: PublicPair) -> dict[str, Any]:
    agents = {}
    for number, _ in enumerate(_agent_names(pair), 1):
        agents[_agent_id(pair, number)] = {
            "feature_id": pair.features[number - 1], "status": "Submitted", "cost": 0.25, "steps": 2,
            "input_tokens": 200, "output_tokens": 40, "cache_read_tokens": 50, "cache_write_tokens": 7,
            "patch_lines": 12, "error": None,
        }  # fmt: skip
    content: dict[str, Any] = {
        "repo": pair.repo, "task_id": pair.task_id, "features": list(pair.features), "setting": pair.setting,
        "run_id": "ab12cd34", "run_name": "their-run", "agent_framework": FRAMEWORK, "model": MODEL,
        "started_at": START, "ended_at": END, "duration_seconds": 450.5,
    }  # fmt: skip
    if pair.setting == "solo":
        del agents["solo"]["feature_id"]
        content["agent"] = agents["solo"]
    else:
        content["agents"] = agents
        content["messages_sent"] = len(pair.messages)
    if pair.setting == "team":
        content["lead_agent"] = pair.lead
        content["metrics"] = {"claims": 2}
        content["team_features"] = {"task_list": True, "scratchpad": False, "mcp": False}
    cost = 0.25 * len(_agent_names(pair))
    return content | {"total_cost": cost, "total_steps": 4, "log_dir": "/somewhere/else"}


def _conversation(pair: PublicPair) -> list[dict[str, Any]]:
    return [
        {
            "from": f"agent{sender}", "to": f"agent{recipient}", "message": text,
            "timestamp": f"2025-11-03T14:03:{index:02d}", "feature_id": pair.features[sender - 1],
        }
        for index, (sender, recipient, text) in enumerate(pair.messages)
    ]  # fmt: skip


def _evaluation(pair: PublicPair) -> dict[str, Any]:
    status, strategy = pair.merge
    content: dict[str, Any] = {
        "repo": pair.repo, "task_id": pair.task_id, "features": list(pair.features), "setting": pair.setting,
        "apply_status": {"agent1": "applied", "agent2": "applied"},
        "merge": {"status": status, "strategy": strategy, "diff": "diff --git a/app.txt b/app.txt\n"},
    }  # fmt: skip
    for number, feature in enumerate(pair.features, 1):
        content[f"feature{number}"] = {
            "feature_id": feature, "passed": bool(pair.passed), "exit_code": 0 if pair.passed else 1,
            "tests_passed": 3, "tests_failed": 0 if pair.passed else 1, "test_output": "OK",
        }  # fmt: skip
    return content | {"both_passed": pair.passed, "error": None, "evaluated_at": END}


def _write_quick_start(root: Path, pair: PublicPair) -> Path:
    names = "_".join(str(feature) for feature in pair.features)
    folder = root / pair.repo / f"task{pair.task_id}" / f"features_{names}"
    evaluation: dict[str, Any] = {}
    for number, feature in enumerate(pair.features, 1):
        agent = folder / f"agent{number}"
        if feature in pair.patches:
            write(agent / "patch.diff", pair.patches[feature])
        sent = [text for sender, _, text in pair.messages if sender == number]
        write_json(agent / "trajectory.json", _steps(feature, number, sent))
        evaluation[f"agent{number}"] = {
            "tests_passed": 3, "tests_failed": 0, "success": True, "error": None,
        }  # fmt: skip
    if pair.passed is not None:
        merged: dict[str, Any] = {"tests_passed": 6, "tests_failed": 0, "success": pair.passed}
        merged |= {"merge_conflict": not pair.passed, "error": None}
        write_json(
            folder / "eval.json",
            evaluation | {"merged": merged, "overall_success": pair.passed},
        )
    return folder


def _steps(feature: int, number: int, sent: Sequence[str]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {
            "action": "read_file", "args": {"path": "app.txt"}, "observation": "line 1",
            "timestamp": "2026-03-04T10:30:05Z",
        }
    ]  # fmt: skip
    steps += [
        {
            "action": "send_message", "args": {"content": text}, "observation": "Message sent",
            "timestamp": "2026-03-04T10:31:12Z",
        }
        for text in sent
    ]  # fmt: skip
    return {
        "agent_id": f"agent{number}", "feature_id": feature, "model": MODEL,
        "start_time": "2026-03-04T10:30:00Z", "end_time": "2026-03-04T10:33:42Z", "steps": steps,
        "token_usage": {"prompt_tokens": 45230, "completion_tokens": 3821, "total_tokens": 49051},
    }  # fmt: skip


def write_json(path: Path, content: object) -> None:
    """A file as the public release writes it: indented by 2."""
    write(path, json.dumps(content, indent=2).encode())


def write(path: Path, content: bytes) -> None:
    """A file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
