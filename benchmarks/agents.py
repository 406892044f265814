"""What the harness adds to mini-swe-agent: `python benchmarks/agents.py [--docker IMAGE] [--agents 100]`.

A model server without latency runs in this process; whoever asks it runs in another one. A step's time is what passes
between two questions of one agent, seen by the server. Side by side: the framework's own loop with its own local
environment, and the same framework in our sandboxes with all that the harness does (targets: at most 20 ms more
locally, 40 ms more on Docker). Then many agents at once in one process (target: 100 below 1.5 GB): memory and steps a
second. Then 20 and 200 agents with a model that takes half a second (targets: the 99th percentile of what is added to
that at most 3 times as much, processor time a step the same), and with models that take two and five, as real ones do:
200 agents want 400 steps a second of the first model, which is more than two cores can do, 100 of the second and 40 of
the third. A busy machine makes all of it worse, so only the columns of one run can be compared.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from itertools import combinations, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.modelserver import ModelServer, call, say
from tests.support.tiny import REPO, write_tiny

if TYPE_CHECKING:
    from tests.support.modelserver import Answer, Request

STEPS = 40
ROUNDS = 3
MANY_STEPS = 10
LOAD_STEPS = {0.5: 20, 2.0: 12, 5.0: 8}
"""By the seconds that the model takes."""
TEXT, TOOLS = "mini_swe_agent", "mini_swe_agent_v2"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
PAIRS_OF_A_TASK = 6
DOCKERFILE = """FROM {image}
COPY . /opt/task
RUN cp /opt/task/runner.sh /usr/local/bin/runner.sh && bash /opt/task/setup.sh /workspace/repo
"""


class Watch:
    """Answers at once with the next command, and notes when each conversation asked."""

    def __init__(self, style: str, steps: int, together: int = 1, latency: float = 0.0) -> None:
        self.moments: dict[str, list[float]] = {}
        self._style, self._steps, self._together, self.latency = style, steps, together, latency
        self._all_here = threading.Barrier(together)
        self._lock = threading.Lock()

    def reply(self, request: Request) -> Answer:
        with self._lock:
            own = self.moments.setdefault(request.beginning, [])
            own.append(time.perf_counter())
            place = len(self.moments)
        command = SUBMIT if len(own) > self._steps else f"echo step {len(own)}"
        hold = self.latency or None
        if len(own) == 1:
            # The first answers wait until everybody is there, so that all work at once. They come one after the
            # other: agents that step at the same moment would only measure how many they are.
            self._all_here.wait(600)
            hold = self.latency * place / self._together or None
        if self._style == TOOLS:
            return call(command, "On I go.", hold=hold)
        return say(f"THOUGHT: On I go.\n\n```bash\n{command}\n```", hold=hold)

    def step_milliseconds(self, percentile: int = 50) -> float:
        """What passes between two questions, without the model's own time, the first step and the last.

        (With the last one, agents that are done already take their patches.)
        """
        gaps = [
            later - earlier
            for own in self.moments.values()
            for earlier, later in pairwise(own[1:-1])
        ]
        return (statistics.quantiles(gaps, n=100)[percentile - 1] - self.latency) * 1000

    def steps_a_second(self) -> float:
        times = sorted(moment for own in self.moments.values() for moment in own[1:])
        return (len(times) - 1) / (times[-1] - times[0])


def own_loop(url: str, style: str, number: int) -> None:
    """One agent as the framework itself runs it."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import get_config_from_spec
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel
    from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

    config = get_config_from_spec("mini.yaml" if style == TOOLS else "mini_textbased.yaml")
    config["agent"].pop("mode")
    config["model"]["model_kwargs"] |= {"api_base": url, "api_key": "none"}
    if style == TEXT:
        config["model"]["action_regex"] = r"```bash\s*\n(.*?)\n```"
    make = LitellmModel if style == TOOLS else LitellmTextbasedModel
    model = make(model_name="openai/scripted", cost_tracking="ignore_errors", **config["model"])
    with TemporaryDirectory() as folder:
        environment = LocalEnvironment(cwd=folder, **config["environment"])
        DefaultAgent(model, environment, **config["agent"]).run(f"Agent number {number}.")


def child(task: dict[str, Any]) -> None:
    """Ask the server in this process, and say how much memory that took."""
    from cooperbench.agents import llm

    url, style, agents = task["url"], task["style"], int(task["agents"])
    if task["who"] == "own":
        llm.load_litellm().client_session = None  # its own one
        with ThreadPoolExecutor(agents) as pool:
            list(pool.map(lambda number: own_loop(url, style, number), range(agents)))
    else:
        from cooperbench import run

        folder = Path(task["folder"])
        config = folder / "agent.yaml"
        config.write_text(f"model: {{model_kwargs: {{api_base: '{url}', api_key: none}}}}\n")
        with redirect_stdout(sys.stderr):
            run(
                "bench", agent=style, model_name="openai/scripted", setting="solo", backend=task["who"],
                auto_eval=False, concurrency=agents, dataset_dir=folder / "data", logs_dir=folder / "logs",
                agent_config=str(config), subset="bench",
            )  # fmt: skip
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Not `ru_maxrss`, which begins with the memory of the process that started this one.
    peak_kb = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    print(json.dumps({"peak_mb": peak_kb / 1024, "cpu_seconds": used.ru_utime + used.ru_stime}))


def write_selection(data: Path, agents: int) -> None:
    """As many pairs as there are to be agents, named by a subset."""
    tasks = range(1, 2 + (agents - 1) // PAIRS_OF_A_TASK)
    write_tiny(data, task_ids=tasks)
    pairs = [(task, pair) for task in tasks for pair in combinations((1, 2, 3, 4), 2)][:agents]
    chosen = [
        {"repo": REPO, "task_id": task, "pairs": [pair for other, pair in pairs if other == task]}
        for task in tasks
    ]
    (data / "subsets").mkdir(exist_ok=True)
    subset = {"name": "bench", "description": "", "stats": {}, "tasks": chosen}
    (data / "subsets" / "bench.json").write_text(json.dumps(subset))


def measure(
    who: str, style: str, agents: int, steps: int, image: str | None = None, latency: float = 0.0
) -> tuple[Watch, dict[str, float]]:
    """What the server saw, and what the other process has used."""
    gc.collect()
    # LiteLLM by itself has 100 connections.
    watch = Watch(style, steps, min(agents, 100) if who == "own" else agents, latency)
    with ModelServer() as server, TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_selection(data, agents)
        for description in data.rglob("feature.md"):
            # The server tells agents apart by their tasks.
            description.write_text(
                f"{description.read_text()}\nThis is {description.parents[1].name}.\n"
            )
        if image is not None:
            for dockerfile in data.rglob("Dockerfile"):
                dockerfile.write_text(DOCKERFILE.format(image=image))
        server.script("", watch.reply)
        task = {
            "url": server.openai_url,
            "style": style,
            "agents": agents,
            "who": who,
            "folder": folder,
        }
        command = [sys.executable, __file__, "--child", json.dumps(task)]
        environment = os.environ | {
            "COOPERBENCH_CACHE_DIR": folder,
            "MSWEA_GLOBAL_CONFIG_DIR": folder,
        }
        environment["MSWEA_SILENT_STARTUP"] = "1"
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
    return watch, dict(json.loads(done.stdout.splitlines()[-1]))


def steps_table(image: str | None) -> None:
    places = ["own", "local", *(["docker"] if image else [])]
    aims = {"local": "at most 20 ms more", "docker": "at most 40 ms more"}
    print(f"\nMilliseconds a step (median of {STEPS}, best of {ROUNDS} rounds)")
    print(f"{'':28}{'tool calls':>12}{'text':>12}")
    best: dict[tuple[str, str], float] = {}
    for _ in range(ROUNDS):
        for style in (TOOLS, TEXT):
            for who in places:
                watch, _ = measure(who, style, 1, STEPS, image if who == "docker" else None)
                found = watch.step_milliseconds()
                best[who, style] = min(found, best.get((who, style), found))
    for who in places:
        name = "mini-swe-agent by itself" if who == "own" else f"cooperbench, {who}"
        print(f"{name:28}{best[who, TOOLS]:>12.1f}{best[who, TEXT]:>12.1f}")
        if who in aims:
            more = [best[who, style] - best["own", style] for style in (TOOLS, TEXT)]
            print(f"{'  more':28}{more[0]:>12.1f}{more[1]:>12.1f}  {aims[who]}")


def many_table(agents: int) -> None:
    print(f"\n{agents} agents at once in one process, {MANY_STEPS} steps each (tool calls)")
    print(f"{'':28}{'peak memory':>14}{'steps/s':>10}{'ms a step':>12}")
    for who in ("own", "local"):
        watch, used = measure(who, TOOLS, agents, MANY_STEPS)
        name = "mini-swe-agent by itself" if who == "own" else f"cooperbench, {who}"
        figures = f"{used['peak_mb']:>11.0f} MB{watch.steps_a_second():>10.0f}{watch.step_milliseconds():>12.0f}"
        print(f"{name:28}{figures}" + ("  below 1500 MB" if who == "local" else ""))


def load_table(latency: float) -> None:
    steps = LOAD_STEPS[latency]
    print(
        f"\nAgents whose model takes {latency:g} s, in one process, {steps} steps each (tool calls)"
    )
    print(
        f"{'':32}{'memory':>10}{'CPU ms a step':>15}{'steps/s':>10}{'added, 50th':>13}{'99th':>10}"
    )
    for who in ("local", "own"):
        worst: list[float] = []
        for agents in (20, 200):
            # What a start and an end take is the same with fewer steps.
            fewer = measure(who, TOOLS, agents, 2)[1]
            watch, used = measure(who, TOOLS, agents, steps, latency=latency)
            cpu = (used["cpu_seconds"] - fewer["cpu_seconds"]) / (agents * (steps - 2)) * 1000
            worst.append(watch.step_milliseconds(99))
            name = f"{'mini-swe-agent' if who == 'own' else 'cooperbench'}, {agents} agents"
            times = f"{watch.step_milliseconds():>10.0f} ms{worst[-1]:>7.0f} ms"
            figures = f"{used['peak_mb']:>7.0f} MB{cpu:>15.1f}{watch.steps_a_second():>10.0f}"
            print(f"{name:32}{figures}{times}", flush=True)
        ratio = f"{'  99th percentile, ratio':32}{worst[1] / worst[0]:>58.1f}"
        print(ratio + ("  at most 3" * (who == "local")), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--docker",
        metavar="IMAGE",
        help="an image with bash, coreutils and git: measure containers too",
    )
    parser.add_argument(
        "--agents", type=int, default=100, help="how many at once (default: %(default)s)"
    )
    parser.add_argument("--load", action="store_true", help="only the tables of 20 and 200 agents")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return
    gc.disable()  # of the model's server: its pauses would count as the harness's
    if not args.load:
        steps_table(args.docker)
        many_table(args.agents)
    for latency in LOAD_STEPS:
        load_table(latency)


if __name__ == "__main__":
    main()
