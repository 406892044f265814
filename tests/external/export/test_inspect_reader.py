"""inspect-ai reads our logs: both agents' transcripts, what they said to each other, verdicts and cost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cooperbench.export import export_run
from cooperbench.importing.import_run import import_run
from cooperbench.report.analysis import rate_rows
from cooperbench.report.loading import load_run
from tests.support.importing.public_run import MODEL, PublicPair, write_config, write_pair
from tests.support.report.factory import TALK, Kind, make_hostile, write_run
from tests.support.venvs import python_with

READER = Path(__file__).parent / "read_inspect_log.py"
KINDS: dict[tuple[int, ...], Kind] = {(1, 2): "passed", (1, 3): "conflict", (2, 3): "eval_error"}
PAIRS = {"x_task": {7: list(KINDS)}}


def read(path: Path) -> dict[str, Any]:
    python = python_with("inspect-ai>=0.3.285,<0.4")
    done = subprocess.run(
        [python, READER, path], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


@pytest.mark.timeout(900)  # The first time, inspect-ai is installed.
def test_inspect_reads_transcripts_messages_scores_and_costs(tmp_path: Path) -> None:
    write_run(tmp_path, "r", PAIRS, lambda key: KINDS[key.features])
    write_run(tmp_path, "r", {"x_task": {7: [(1, 2)]}}, "capability", setting="solo")
    run = load_run(tmp_path, "r")
    target = tmp_path / "r.eval"
    export_run(run, "inspect", target)
    content = read(target)

    assert content["status"] == "success"
    rows = {row.setting: row for row in rate_rows([run])}
    for setting in ("coop", "solo"):
        rate = rows[setting].rates["overall"]
        assert content["rates"]["overall"][f"{setting} rate"] == rate.value
    assert content["cost"] == {"gpt-4o": pytest.approx(7 * 0.25)}
    assert content["summaries"] == list(content["samples"])

    passed = content["samples"]["coop.x_task.task7.f1_f2"]
    assert passed["scores"] == dict.fromkeys(
        ("overall", "individual", "merge", "merged", "strict"), "C"
    )
    assert passed["usage"] == {"gpt-4o": 0.5}
    assert passed["messages"][0] == f"agent1 → agent2\n\n{TALK[0].text}"
    for agent, other in (("agent1", "agent2"), ("agent2", "agent1")):
        span = f"{agent}: mini_swe_agent, gpt-4o"
        events = [event for event in passed["events"] if event["span"] == span]
        assert [event["function"] for event in events if event["event"] == "tool"] == ["bash"] * 4
        calls = [event for event in events if event["event"] == "model"]
        assert sum(call["cost"] for call in calls) == 0.25
        assert calls[0]["input"] == [f"Add feature [{agent[-1]}]."]
        # The reply, its command's output and the message that came in.
        assert len(calls[1]["input"]) == 4
        received = [event["text"] for event in events if event["source"] == f"message from {other}"]
        assert received == [talk.text for talk in TALK if talk.sender == int(other[-1])]

    conflict = content["samples"]["coop.x_task.task7.f1_f3"]
    assert conflict["scores"]["merge"] == "I"
    assert "plain git merge: conflict in src/app.py" in conflict["explanations"]["overall"]
    not_judged = content["samples"]["coop.x_task.task7.f2_f3"]
    assert (not_judged["scores"], not_judged["error"]) == ({}, "error: the sandbox was lost")
    assert content["samples"]["solo.x_task.task7.f1_f2"]["scores"]["overall"] == "I"


@pytest.mark.timeout(900)
def test_inspect_reads_a_run_that_was_killed_and_hostile_texts(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "r", {"x_task": {7: [(1, 2)]}}, "passed")
    write_run(tmp_path, "r", {"x_task": {8: [(1, 2)]}}, "killed")
    make_hostile(paths.pair_named("coop", "x_task", 7, (1, 2)).agent("agent1").trajectory)
    target = tmp_path / "r.eval"
    export_run(load_run(tmp_path, "r"), "inspect", target)
    samples = read(target)["samples"]
    killed = samples["coop.x_task.task8.f1_f2"]
    assert killed["error"] == "missing: not run yet"
    assert [event["event"] for event in killed["events"]].count("model") == 8
    replies = samples["coop.x_task.task7.f1_f2"]["events"]
    assert [event["event"] for event in replies].count("model") == 8


@pytest.mark.timeout(900)
def test_inspect_reads_an_imported_run(tmp_path: Path) -> None:
    """What its source does not say is left out, not 0."""
    root = tmp_path / "their-run"
    write_config(root)
    write_pair(root, PublicPair(patches={1: b"x", 2: b"y"}))
    bare = write_pair(root, PublicPair(features=(1, 3), patches={1: b"x", 3: b"y"}))
    for path in bare.glob("*.json"):
        path.unlink()
    import_run(root, tmp_path / "logs")
    target = tmp_path / "r.eval"
    export_run(load_run(tmp_path / "logs", "their-run"), "inspect", target)
    samples = read(target)["samples"]
    sample = samples["coop.tiny_task.task7.f1_f2"]
    assert sample["messages"] == ["agent1 → agent2\n\nI change line 5."]
    assert [event["function"] for event in sample["events"] if event["event"] == "tool"] == [
        "bash"
    ] * 4
    assert sample["usage"] == {MODEL: 0.5}
    assert samples["coop.tiny_task.task7.f1_f3"]["usage"] == {MODEL: None}
