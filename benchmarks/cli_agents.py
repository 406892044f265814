"""What the harness adds to command-line agents: `python benchmarks/cli_agents.py [--backend docker]`.

Each real program runs alone on this machine, at a scripted provider without latency, and as an agent in a sandbox,
where its requests go through the gateway to the same provider: as they are, to a model that speaks the program's
API format (there is none for OpenCode, which speaks chat completions), and translated by LiteLLM. First request: from the
start of the program (of the agent) until the provider is asked (target: at most 1.5 s later than alone). Step: what
passes between two questions, with a shell command between them (target: at most 30 ms more). Of each the best of some
rounds, since other work makes them longer. Programs come from the cache of the tests.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from contextlib import redirect_stdout
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.agents.frameworks import (
    CLIS,
    DATA,
    MODEL,
    TONGUES,
    provide,
    settings,
    write_config,
)
from tests.support.modelserver import ModelServer
from tests.support.runner.helpers import run_tiny

from cooperbench.agents.cli_agents import AGENTS_DIR, CliAgent, Surroundings
from cooperbench.agents.environments import DATA_VARIABLE
from cooperbench.agents.registry import get_agent
from cooperbench.sandbox.contract import PROGRAMS_DIR

if TYPE_CHECKING:
    from tests.support.modelserver import Request
    from tests.support.modelserver.replies import Reply

NATIVE = {
    "claude_code": "anthropic/claude-sonnet-4-5",
    "codex": MODEL,
    "gemini_cli": "gemini/gemini-2.5-flash",
}
STEPS = 20
ROUNDS = 5


class Watch:
    """A provider that asks for one command after the other, and notes when it was asked."""

    def __init__(self, name: str) -> None:
        self.moments: list[float] = []
        self._tongue = TONGUES[name]

    def reply(self, request: Request) -> Reply:
        words = self._tongue.last_words[0]
        if not request.body.get("tools"):
            return words  # a title for the conversation
        self.moments.append(time.time())
        return (
            words
            if len(self.moments) > STEPS
            else self._tongue.run(f"echo step {len(self.moments)}")
        )

    def step_seconds(self) -> float:
        return statistics.median(later - earlier for earlier, later in pairwise(self.moments[1:]))


def alone(name: str, server: ModelServer, folder: Path) -> float:
    """When it was started."""
    agent = get_agent(name)()
    assert isinstance(agent, CliAgent)
    node, program = (
        agent.path_in_sandbox(pattern)
        for pattern in ("node_modules/node-linux-*/bin/node", agent.executable)
    )
    launch = agent.launch(
        Surroundings(
            program, node, server.anthropic_url, "none", AGENTS_DIR, "scripted-1", messaging=False
        )
    )

    def here(text: str) -> str:
        return text.replace(PROGRAMS_DIR, str(agent.programs())).replace(
            AGENTS_DIR, str(folder / "agent")
        )

    for path, text in launch.files.items():
        target = folder / "agent" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(here(text))
    env = {name: here(value) for name, value in launch.env.items()}
    env["PATH"] = env.get("PATH", "") + os.environ["PATH"]
    subprocess.run(["git", "init", "-q", folder / "repo"], check=True)
    begun = time.time()
    subprocess.run(
        [here(word) for word in launch.argv],
        cwd=folder / "repo", env={**os.environ, **env}, input=b"Do it.", capture_output=True, check=True,
    )  # fmt: skip
    return begun


def as_agent(name: str, server: ModelServer, folder: Path, backend: str, *, native: bool) -> float:
    model, given = MODEL, settings(name, server.openai_url)
    if native and name == "codex":
        given["model"]["model_kwargs"]["use_chat_completions_api"] = False
    elif native:
        model = NATIVE[name]
        given["model"]["model_kwargs"]["api_base"] = server.anthropic_url
    config = write_config(folder / "agent.yaml", given)
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
        left = run_tiny(
            folder,
            name,
            setting="solo",
            auto_eval=False,
            agent_config=config,
            model_name=model,
            backend=backend,
        )
    return datetime.fromisoformat(left.result["agents"]["solo"]["started_at"]).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="local")
    backend = parser.parse_args().backend
    os.environ[DATA_VARIABLE] = str(DATA)
    print(
        f"| agent, on {backend} | how | first request alone | here | more | a step alone | here | more |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in CLIS:
        provide(name)
        ways = ("alone", "as it is", "translated") if name in NATIVE else ("alone", "translated")
        firsts: dict[str, list[float]] = {way: [] for way in ways}
        steps: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(ROUNDS + 1):
            for way in ways:
                watch = Watch(name)
                with ModelServer() as server, TemporaryDirectory() as folder:
                    server.script("", watch.reply)
                    if way == "alone":
                        begun = alone(name, server, Path(folder))
                    else:
                        begun = as_agent(
                            name, server, Path(folder), backend, native=way == "as it is"
                        )
                if number:  # the first round is for what is imported once
                    firsts[way].append(watch.moments[0] - begun)
                    steps[way].append(watch.step_seconds())
        for way in ways[1:]:
            cells = []
            for times, unit, factor in ((firsts, "s", 1), (steps, "ms", 1000)):
                own, ours = (min(times[one]) * factor for one in ("alone", way))
                cells += [
                    f"{value:.{2 if factor == 1 else 0}f} {unit}"
                    for value in (own, ours, ours - own)
                ]
            print(f"| {name} | {way} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
