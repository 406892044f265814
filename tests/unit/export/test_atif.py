"""Whatever is in a trajectory, what comes out is what the interchange format wants."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from atif import Trajectory
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.cli import main
from cooperbench.errors import UserError
from cooperbench.export import export_run
from cooperbench.export.atif import pair_documents, steps_of
from cooperbench.records.trajectory import decode_step
from cooperbench.report.loading import load_run
from cooperbench.storage import ExperimentPaths, write_json
from tests.support.report.factory import Kind, layout, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.pairs import PairData

TIME = "2026-01-01T00:00:00.000Z"
ACTIONS = (
    "reply",
    "run",
    "tell",
    "think",
    "send_message",
    "receive_message",
    "write_file",
    "of_their_own",
)


def entry(action: str, args: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"action": action, "args": args, "observation": "", "timestamp": TIME, **more}


def converted(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    steps = [decode_step(json.dumps(one).encode()) for one in entries]
    content: list[dict[str, Any]] = msgspec.to_builtins(steps_of(steps))
    return content


def make_pair(root: Path, **trajectories: dict[str, Any]) -> PairData:
    paths = ExperimentPaths(root, "r").pair_named("coop", "x_task", 7, (1, 2))
    paths.folder.mkdir(parents=True, exist_ok=True)
    for agent_id, trajectory in trajectories.items():
        write_json(paths.agent(agent_id).trajectory, trajectory)
    (pair,) = load_run(root, "r").pairs
    return pair


def test_reply_and_result_are_one_step() -> None:
    calls = [
        {"id": "a1", "name": "bash", "arguments": "{}"},
        {"id": "a2", "name": "bash", "arguments": "{}"},
    ]
    reply = entry(
        "reply", {"content": "two"}, calls=1, tokens={"prompt_tokens": 5}, tool_calls=calls
    )
    commands = [
        entry("run", {"command": text}, step=number, returncode=0)
        for number, text in enumerate("xy", 1)
    ]
    message = entry("receive_message", {"from": "agent2", "content": "hi", "sequence": 1})
    steps = converted([reply, *commands, message, entry("run", {"command": "z"}, step=3)])
    assert [(step["source"], step.get("llm_call_count")) for step in steps] == [
        ("agent", 1),
        ("user", None),
        ("agent", 0),
    ]
    assert [call["tool_call_id"] for call in steps[0]["tool_calls"]] == ["a1", "a2"]
    assert [result["source_call_id"] for result in steps[0]["observation"]["results"]] == [
        "a1",
        "a2",
    ]
    assert steps[0]["observation"]["results"][1]["extra"] == {
        "returncode": 0,
        "timestamp": TIME,
    }
    assert steps[1]["extra"] == {"kind": "receive_message", "from": "agent2", "sequence": 1}
    assert steps[2]["tool_calls"][0]["tool_call_id"] == "call_3_1"


@given(
    st.lists(
        st.builds(
            entry,
            st.sampled_from(ACTIONS),
            st.dictionaries(
                st.sampled_from(["content", "command", "kind", "x"]),
                st.text(st.characters(codec="utf-8")),
            ),
            step=st.integers(1, 9),
            calls=st.integers(0, 2),
            cost=st.floats(0, 9),
            tokens=st.dictionaries(
                st.sampled_from(["prompt_tokens", "cached_tokens"]), st.integers(0, 9)
            ),
            tool_calls=st.one_of(
                st.none(), st.lists(st.dictionaries(st.just("id"), st.sampled_from("abc")))
            ),
        )
    )
)
def test_any_entries_become_a_valid_document(entries: list[dict[str, Any]]) -> None:
    document = {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "a", "version": "1"},
        "steps": converted(entries),
    }
    Trajectory.model_validate_json(json.dumps(document).encode())


def test_invalid_text_and_old_records_are_exported(
    tmp_path: Path,
) -> None:
    odd = {
        "agent_id": "agent1",
        "steps": [entry("run", {"command": "\udcff"}), "no entry"],
        "token_usage": None,
    }
    pair = make_pair(tmp_path, agent1=odd, agent2={"steps": None})
    documents = pair_documents("r", pair)
    for document in documents.values():
        Trajectory.model_validate(document)
        assert json.dumps(document, ensure_ascii=False).encode()
    assert documents["agent1"]["steps"][0]["tool_calls"][0]["arguments"] == {"command": "\ufffd"}
    assert [one["trajectory_id"] for one in documents["pair"]["subagent_trajectories"]] == [
        "r/coop/x_task/7/f1_f2/agent1",
        "r/coop/x_task/7/f1_f2/agent2",
    ]


def test_document_has_the_verdict(tmp_path: Path) -> None:
    kinds: dict[tuple[int, ...], Kind] = {(1, 2): "unsound", (1, 3): "no_reference"}
    write_run(tmp_path, "r", layout(1, 1, 2), lambda key: kinds[key.features])
    about = [pair_documents("r", pair)["pair"]["extra"] for pair in load_run(tmp_path, "r").pairs]
    assert [(one["state"], one["unsound"]) for one in about] == [
        ("passed", [2]),
        ("no_reference", []),
    ]
    assert about[1]["verdicts"] is None


def test_pairs_without_trajectories_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_pair(tmp_path)
    with pytest.raises(
        UserError, match="nothing of run 'r' can be exported: coop x_task/task7 f1_f2 has no"
    ):
        export_run(load_run(tmp_path, "r"), "atif", tmp_path / "out")
    with pytest.raises(
        UserError,
        match="no format 'cvs'; available: csv, parquet, junit, leaderboard, inspect, otlp, hf, wandb, atif",
    ):
        export_run(load_run(tmp_path, "r"), "cvs", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    other = ExperimentPaths(tmp_path, "r").pair_named("solo", "x_task", 7, (1, 2))
    write_json(other.agent("solo").trajectory, {"agent": "a", "steps": []})
    assert main(["export", "r", "--log-dir", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (
        f"wrote 2 files of 1 pair to {tmp_path}/r/export/atif\n",
        "left out: coop x_task/task7 f1_f2 has no trajectories\n2 of 2 pairs without a verdict (2 missing)\n",
    )
    assert (tmp_path / "r/export/atif/solo/x_task/7/f1_f2/pair.json").is_file()
