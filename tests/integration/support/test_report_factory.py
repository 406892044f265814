"""Synthetic logs have what real ones have: whoever changes the format has to change the factory."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from cooperbench.records.trajectory import step_object
from cooperbench.report.loading import load_run
from tests.support.report.factory import Kind, Style, Talk, layout, write_run
from tests.support.report.patches import BASE_LINES, BASE_PATH
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import golden, write_script

if TYPE_CHECKING:
    from pathlib import Path


def shape(value: Any, at: str = "") -> set[str]:
    """Paths of all keys; features and agents by any other number are the same."""
    if isinstance(value, dict):
        fixed = {key: "N" if key.isdigit() else key for key in value}
        return {f"{at}/{fixed[key]}" for key in value}.union(
            *(shape(one, f"{at}/{fixed[key]}") for key, one in value.items())
        )
    if isinstance(value, list):
        return set().union(*(shape(one, f"{at}[]") for one in value))
    return set()


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_synthetic_pair_has_the_files_and_keys_of_a_real_one(tmp_path: Path) -> None:
    work = {number: [{"run": f"git apply <<'END'\n{golden(number)}END"}] for number in (1, 2)}
    first = [{"send": {"to": "agent2", "text": "hello"}}, *work[1]]
    second = [{"wait": {"for": "hello", "seconds": 60}}, *work[2]]
    script = write_script(tmp_path / "script.yaml", {1: first, 2: second})
    left = run_tiny(tmp_path, "scripted", agent_config=str(script))
    style = Style(talk=(Talk(1, 1, "hello"),), models=(None, None), agents=("scripted", "scripted"))
    paths = write_run(tmp_path / "made", "r", {"tiny_task": {7: [(1, 2)]}}, style=style)
    made = paths.pair_named("coop", "tiny_task", 7, (1, 2))
    assert files_of(left.folder) == files_of(made.folder)
    real = load_run(tmp_path / "logs", "r")
    synthetic = load_run(tmp_path / "made", "r")
    assert real.problems == synthetic.problems == ()
    assert shape(_read(real.root / "config.json")) <= shape(_read(paths.config))
    for one, other in zip(real.pairs, synthetic.pairs, strict=True):
        assert one.state == other.state == "passed"
        assert shape(_read(one.paths.result)) <= shape(_read(other.paths.result))
        assert shape(_read(one.paths.evaluation)) <= shape(_read(other.paths.evaluation))
        assert shape(left.json("conversation.json")) == shape(_read(made.conversation))
        ours, theirs = (_read(pair.paths.agent("agent1").trajectory) for pair in (other, one))
        assert shape({**theirs, "steps": []}) - shape(ours) == set()
        for action in ("run", "receive_message"):
            entries = [entry for pair in (one, other) for entry in _entries(pair, action)]
            assert len({frozenset(shape(entry)) for entry in entries}) == 1, action


def _entries(pair: Any, action: str) -> list[Any]:
    return [
        step_object(step)
        for agent_id in pair.agent_ids
        for step in pair.trajectory(agent_id)
        if step.action == action
    ]


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_patches_apply_and_conflict_as_their_verdicts_say(tmp_path: Path) -> None:
    def git(*words: str, stdin: bytes | None = None, check: bool = True) -> int:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", *words]
        return subprocess.run(
            command, cwd=tmp_path / "repo", input=stdin, capture_output=True, check=check
        ).returncode

    (tmp_path / "repo" / "src").mkdir(parents=True)
    (tmp_path / "repo" / BASE_PATH).write_text("".join(BASE_LINES))
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "base")
    kinds: dict[Kind, bool] = {"passed": True, "conflict": False, "union": False}
    for kind, merges in kinds.items():
        write_run(tmp_path / kind, "r", layout(1, 1, 1), kind)
        (pair,) = load_run(tmp_path / kind, "r").pairs
        for agent_id in pair.agent_ids:
            git("checkout", "-qfB", f"{kind}-{agent_id}", "main")
            git("apply", "--index", stdin=pair.patch(agent_id))
            git("commit", "-qm", agent_id)
        assert (git("merge", "-q", f"{kind}-agent1", check=False) == 0) is merges
        git("reset", "-q", "--hard", "main")
        git("apply", "--check", stdin=pair.paths.merged_patch.read_bytes())
