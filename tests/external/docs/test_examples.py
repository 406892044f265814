"""Every example runs as its first lines say, and does what they promise."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.dataset.discovery import demo_dir
from tests.external.docs.conftest import DEMO_PAGE
from tests.support.agents.mini_swe import KEY, MODEL, patching
from tests.support.modelserver import Request, say
from tests.support.paths import ROOT
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.external.docs.conftest import PageRun
    from tests.support.modelserver import Answer, ModelServer

EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
ONE_PAIR = ("-r", "stencil_task", "-f", "1,4", "--dataset-dir", "demo")


def call(*argv: str | Path, cwd: Path = EXAMPLES) -> str:
    path = f"{BIN}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OPENAI_API_KEY": KEY}
    done = subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_one_pair(logs: Path, *options: str) -> dict[str, Any]:
    """Run features 1 and 4 with an example, and return the row of the pair."""
    backend = () if "--backend" in options else ("--backend", "local")
    call("cooperbench", "run", "-n", "x", *ONE_PAIR, *backend, *options, "--log-dir", str(logs))
    summary = json.loads((logs / "x" / "summary.json").read_text())
    (pair,) = summary["settings"]["coop"]["results"]
    assert isinstance(pair, dict)
    return pair


def messages_of(logs: Path) -> list[str]:
    folder = logs / "x/coop/stencil_task/0/f1_f4"
    conversation = json.loads((folder / "conversation.json").read_text())
    return [message["message"] for message in conversation["messages"]]


def test_the_scripted_agents_tell_each_other_their_files(tmp_path: Path) -> None:
    pair = run_one_pair(tmp_path, "-a", "scripted_agent:ScriptedAgent")
    assert pair["overall_success"] is True
    assert sorted(messages_of(tmp_path)) == [
        "I change README.md, stencil/filters.py. What do you change?",
        "I change README.md, stencil/nodes.py, stencil/parser.py. What do you change?",
    ]


def test_the_custom_backend_runs_agents_and_tests(tmp_path: Path) -> None:
    require_program("bwrap", package="bubblewrap")
    backend = "custom_backend:BubblewrapBackend"
    pair = run_one_pair(tmp_path, "-a", "scripted_agent:ScriptedAgent", "--backend", backend)
    assert pair["overall_success"] is True
    assert len(messages_of(tmp_path)) == 2


def test_the_model_agent_reads_messages_and_submits(tmp_path: Path, server: ModelServer) -> None:
    def script(feature: int, other_feature: int, other: str) -> Callable[[Request], Answer]:
        patch = (demo_dir() / f"stencil_task/task0/feature{feature}/feature.patch").read_text()

        def reply(request: Request) -> Answer:
            known = json.dumps(request.messages)
            if request.number == 1:
                return say(f"```bash\nsend_message {other} 'I have feature {feature}'\n```")
            if f"I have feature {other_feature}" not in known:
                return say("```bash\nread_messages --wait 20\n```")
            if "git apply" not in known:
                return say(f"```bash\n{patching(patch)}\n```")
            return say("DONE")

        return reply

    server.script("You are agent1", script(1, 4, "agent2"))
    server.script("You are agent2", script(4, 1, "agent1"))
    options = ("-a", "model_agent:ModelAgent", "-m", MODEL, "--base-url", server.openai_url)
    pair = run_one_pair(tmp_path, *options)
    assert pair["overall_success"] is True
    assert sorted(messages_of(tmp_path)) == ["I have feature 1", "I have feature 4"]


def test_the_model_agent_gives_up_on_a_model_without_commands(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("", lambda _: say("I would rather talk about the weather."))
    options = ("-a", "model_agent:ModelAgent", "-m", MODEL, "--base-url", server.openai_url)
    run_one_pair(tmp_path, *options, "--no-auto-eval")
    result = json.loads((tmp_path / "x/coop/stencil_task/0/f1_f4/result.json").read_text())
    assert {agent["status"] for agent in result["agents"].values()} == {"format_error"}


@pytest.mark.xdist_group("tutorials")
@pytest.mark.timeout(300)
def test_the_study_and_its_plot(tmp_path: Path, run_page: Callable[[str], PageRun]) -> None:
    """The study's runs have no solo; the demo's have, and are what the plot is made from."""
    require_program("node", package="nodejs")
    out = call(EXAMPLES / "messaging_study.sh", cwd=tmp_path)
    assert "Effects: messaging" in out
    rows = list(csv.DictReader((tmp_path / "messaging.csv").read_text().splitlines()))
    assert {row["run"] for row in rows} == {"messaging/all", "messaging/no-messages"}
    assert "<!doctype html>" in (tmp_path / "messaging.html").read_text()[:100].lower()

    logs = run_page(DEMO_PAGE).folder / "logs"
    script = EXAMPLES / "deficit_plot.py"
    runs = ("demo-coop", "demo-solo")
    out = call("python", script, *runs, "--log-dir", str(logs), "-o", "d.png", cwd=tmp_path)
    assert out.splitlines()[-1].split() == ["scripted", "0.875", "0.75", "0.125"]
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
