"""What the harness adds to OpenHands and SWE-agent: `python benchmarks/frameworks.py [openhands] [swe_agent]`.

A model server without latency runs in this process. A step's time is what passes between two questions of one agent,
seen by the server. Side by side: the framework by itself with its own local environment (OpenHands' subprocess
terminal; for SWE-agent SWE-ReX's local deployment), and the same framework in our local sandboxes with all that the
harness does (target: at most 60 ms more a step). The start is from `cooperbench run` opening the worker to the first
question, beside the time of the framework's import alone (target: at most 2 s more); both are taken in turns, and the
medians are shown. Needs the frameworks installed (`cooperbench agents install …`).
"""

from __future__ import annotations

import argparse
import json
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
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.modelserver import Answer, ModelServer, ToolCall, call
from tests.support.tiny import write_tiny

from cooperbench import run
from cooperbench.agents.environments import Environment, get_environment, get_framework

if TYPE_CHECKING:
    from tests.support.modelserver import Request

STEPS = 20
ROUNDS = 3
IMPORTS = {
    "openhands": "openhands.sdk, openhands.tools.preset.default",
    "swe_agent": "sweagent.agent.agents",
}
TOOLS = {"openhands": "terminal", "swe_agent": "bash"}
ENDS = {"openhands": ToolCall("finish", {"message": "Done."}), "swe_agent": ToolCall("submit", {})}

OWN_OPENHANDS = """
import sys, tempfile
from openhands.sdk import LLM, Agent, Conversation
from openhands.sdk.tool import Tool
from openhands.tools.terminal import TerminalTool
llm = LLM(model="openai/scripted", base_url=sys.argv[1], api_key="none", usage_id="agent", num_retries=0)
tools = [Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"})]
with tempfile.TemporaryDirectory() as folder:
    conversation = Conversation(agent=Agent(llm=llm, tools=tools), workspace=folder, visualizer=None)
    conversation.send_message("Work.")
    conversation.run()
    conversation.close()
"""
OWN_SWE_AGENT = """
import os, subprocess, sys, tempfile, yaml
from pathlib import Path
from swerex.deployment.local import LocalDeployment
from sweagent.agent.agents import DefaultAgentConfig, get_agent_from_config
from sweagent.agent.problem_statement import TextProblemStatement
from sweagent.environment.swe_env import SWEEnv
source = Path(os.environ["SWE_AGENT_CONFIG_DIR"])
settings = yaml.safe_load((source / "default.yaml").read_text())["agent"]
settings["model"] = {"name": "openai/scripted", "api_base": sys.argv[1], "api_key": "none", "max_input_tokens": 0,
                     "per_instance_cost_limit": 0, "total_cost_limit": 0, "max_output_tokens": 0}
settings["tools"]["bundles"] = []
settings["tools"]["env_variables"] = {}
agent = get_agent_from_config(DefaultAgentConfig(**settings))
env = SWEEnv(deployment=LocalDeployment(), repo=None, post_startup_commands=[])
with tempfile.TemporaryDirectory() as folder:
    env.start()
    agent.run(env=env, problem_statement=TextProblemStatement(text="Work.", id="t"), output_dir=Path(folder))
    env.close()
"""
OWN = {"openhands": OWN_OPENHANDS, "swe_agent": OWN_SWE_AGENT}


class Watch:
    """Answers at once with the next command, and notes when it was asked."""

    def __init__(self, framework: str) -> None:
        self.moments: list[float] = []
        self._framework = framework

    def reply(self, request: Request) -> Answer:  # noqa: ARG002  # one agent asks
        self.moments.append(time.perf_counter())
        if len(self.moments) > STEPS:
            return Answer("", (ENDS[self._framework],))
        return call(f"echo step {len(self.moments)}", "On I go.", tool=TOOLS[self._framework])

    def step_milliseconds(self) -> float:
        """The median, without the first and the last."""
        moments = self.moments[1 : STEPS + 1]
        return statistics.median(later - earlier for earlier, later in pairwise(moments)) * 1000


def environment_of(environment: Environment) -> dict[str, str]:
    source = environment.source
    return os.environ | {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "SWE_AGENT_CONFIG_DIR": str(source / "config"),
        "SWE_AGENT_TOOLS_DIR": str(source / "tools"),
        "SWE_AGENT_TRAJECTORY_DIR": str(source),
    }


def by_itself(framework: str, environment: Environment) -> Watch:
    watch = Watch(framework)
    with ModelServer() as server:
        server.script("", watch.reply)
        done = subprocess.run(
            [environment.python, "-c", OWN[framework], server.openai_url],
            env=environment_of(environment), capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    if len(watch.moments) <= STEPS:
        raise SystemExit(f"{framework} by itself broke off:\n{done.stderr[-2000:]}")
    return watch


def in_sandbox(framework: str) -> tuple[Watch, float]:
    """What the server saw, and the seconds from the agent's start to its first question."""
    watch = Watch(framework)
    with ModelServer() as server, TemporaryDirectory() as folder:
        server.script("", watch.reply)
        write_tiny(Path(folder) / "data")
        config: dict[str, Any] = {"llm": {"base_url": server.openai_url, "api_key": "none"}}
        if framework == "swe_agent":
            config = {"agent": {"model": {"api_base": server.openai_url, "api_key": "none"}}}
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        started = time.time() - time.perf_counter()
        with redirect_stdout(sys.stderr):
            run(
                "bench", agent=framework, model_name="openai/scripted", setting="solo", backend="local",
                auto_eval=False, dataset_dir=Path(folder) / "data", logs_dir=Path(folder) / "logs",
                agent_config=str(path), features=[1, 2],
            )  # fmt: skip
        (log,) = (Path(folder) / "logs").rglob("solo.log")
        born = datetime.fromisoformat(log.read_text().split(" ", 1)[0]).timestamp()
    return watch, watch.moments[0] + started - born


def import_seconds(framework: str, environment: Environment) -> float:
    """Until it is imported; what the process needs to end is not in it."""
    started = time.time()
    done = subprocess.run(
        [environment.python, "-c", f"import {IMPORTS[framework]}, time; print(time.time())"],
        env=environment_of(environment), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1]) - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("frameworks", nargs="*", default=list(OWN))
    args = parser.parse_args()
    print(
        f"{'':12}{'own, ms a step':>16}{'ours, ms a step':>17}{'more':>8}{'import, s':>12}{'start, s':>11}{'more':>8}"
    )
    for framework in args.frameworks:
        environment = get_environment(get_framework(framework))
        import_seconds(framework, environment)
        own = by_itself(framework, environment).step_milliseconds()
        imports, starts, steps = [], [], []
        for _ in range(ROUNDS):
            imports.append(import_seconds(framework, environment))
            watch, start = in_sandbox(framework)
            starts.append(start)
            steps.append(watch.step_milliseconds())
        bare, start, ours = map(statistics.median, (imports, starts, steps))
        print(
            f"{framework:12}{own:>16.0f}{ours:>17.0f}{ours - own:>8.0f}{bare:>12.1f}{start:>11.1f}{start - bare:>8.1f}"
        )
    print("\ntargets: at most 60 ms more a step, at most 2 s more at the start")


if __name__ == "__main__":
    main()
