"""Jobs as tasks of Ray, each in a process of its own; what they tell comes through an actor.

Tasks end with their driver: there are none to be found again, the same command gives out what they left.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from cooperbench._version import __version__
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.retry import ATTEMPTS
from cooperbench.runner.config import RunConfig
from cooperbench.runner.executors.driver import parse_options
from cooperbench.runner.executors.job import Event, JobOrder, work_on
from cooperbench.runner.experiment import open_backend
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.secrets import redact

_START_SECONDS = 60.0
_CANCEL_SECONDS = 20.0
_NAMED = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Resources that are an option of a task by themselves."""
_NOT_PASSED_ON = ("RAY_", "SLURM_", "CUDA_", "PYTHON", "TMP", "XDG_", "SSH_")
"""Variables of this machine only, by how they begin."""
_VERSIONS = f"CooperBench {__version__} and Python {platform.python_version()}"


class RayEngine:
    name = "ray"
    attempts = ATTEMPTS
    poll_seconds = 0.1

    def __init__(self, config: RunConfig) -> None:
        self.max_jobs = config.max_jobs
        self._config = config
        self._address = config.ray_address or "auto"
        try:
            given = parse_options(config.ray_resources, "--ray-resources")
            self._resources = {"CPU": 1.0} | {name: float(value) for name, value in given.items()}
        except ValueError as error:
            example = "NAME=NUMBER, e.g. CPU=2,memory=8e9"
            raise UserError(f"--ray-resources {config.ray_resources!r}: {example}") from error
        self._ray: Any = None
        self._channel: Any = None
        self._tasks: dict[str, Any] = {}
        self._unseen: set[str] = set()

    def check(self, seen: Sequence[Path]) -> None:
        ray = self._ray = self._connected()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        wanted = self._resources.items()
        if not any(
            all(node["Resources"].get(name, 0) >= n for name, n in wanted) for node in nodes
        ):
            words = ",".join(f"{name}={number:g}" for name, number in wanted)
            raise UserError(
                f"no node of the Ray cluster has {words}; see `ray status`, or --ray-resources"
            )
        # With the driver: that node outlasts the others, or all is over anyway.
        here = self._on_node(ray.get_runtime_context().get_node_id())
        self._channel = ray.remote(num_cpus=0)(_Channel).options(scheduling_strategy=here).remote()
        self._look_at_nodes(nodes, [path.absolute() for path in seen])

    def sees(self, path: Path) -> bool:
        return not any(str(path.absolute()).startswith(unseen) for unseen in self._unseen)

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:  # noqa: ARG002  # Slurm's
        passed_on = {
            name: text for name, text in os.environ.items() if not name.startswith(_NOT_PASSED_ON)
        }
        named = {_NAMED[name]: number for name, number in self._resources.items() if name in _NAMED}
        own = {name: number for name, number in self._resources.items() if name not in _NAMED}
        task = self._ray.remote(max_retries=0, max_calls=1)(_ray_job).options(
            resources=own, **named
        )
        for order in orders:
            self._tasks[order.job] = task.remote(
                replace(order, environment=passed_on), self._channel
            )

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        for job in [job for job in jobs if job not in self._tasks]:
            yield job, {"kind": "lost", "error": "it ended with the driver that had started it"}
        by_task = {task: job for job, task in self._tasks.items()}
        ended = (
            self._ray.wait(list(by_task), num_returns=len(by_task), timeout=0)[0] if by_task else []
        )
        for job, event in self._ask("take") if self._tasks else ():
            yield job, event
            if event["kind"] == "done":
                self._tasks.pop(job, None)
        # Those that had ended before, and have told all.
        for task in ended:
            if self._tasks.pop(by_task[task], None):
                yield by_task[task], {"kind": "lost", "error": self._reason(task)}

    def hold(self, jobs: Collection[str]) -> None:  # noqa: ARG002  # all of them
        self._ask("hold")

    def _ask(self, method: str) -> Any:
        """What the actor answers."""
        try:
            return self._ray.get(getattr(self._channel, method).remote())
        except self._ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:200]
            raise InfraError(
                f"the Ray cluster has lost the node of this run: {reason}; the same command continues"
            ) from error

    def cancel(self, jobs: Collection[str]) -> None:
        tasks = [self._tasks.pop(job) for job in jobs if job in self._tasks]
        for task in tasks:
            self._ray.cancel(task)
        left = (
            self._ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_SECONDS)[1]
            if tasks
            else []
        )
        for task in left:
            self._ray.cancel(task, force=True)

    def close(self, *, keep_files: bool) -> None:  # noqa: ARG002  # it has none
        if self._ray is not None:
            self._ray.shutdown()

    def _connected(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = import_module("ray")
        except ModuleNotFoundError as error:
            raise UserError("--executor ray needs Ray: pip install 'cooperbench[ray]'") from error
        own = {"include_dashboard": False} if self._address == "local" else {}
        try:
            ray.init(address=self._address, log_to_driver=False, configure_logging=False, **own)
        except Exception as error:
            # It has many; all mean the same to the user: no cluster, or one of another version.
            words = " ".join(redact(str(error)).split())[:300]
            raise UserError(
                f"the Ray cluster at {self._address!r} cannot be used: {words}; start one with `ray start --head`,"
                " or say --ray-address local"
            ) from error
        return ray

    @staticmethod
    def _on_node(node_id: str) -> Any:
        strategies = import_module("ray.util.scheduling_strategies")
        return strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)

    def _look_at_nodes(self, nodes: Sequence[dict[str, Any]], seen: Sequence[Path]) -> None:
        """On every node: the versions, whether the backend works there, and which of our files are there."""
        known = self._ray.exceptions
        gone = (known.TaskUnschedulableError, known.NodeDiedError, known.WorkerCrashedError)
        probe = self._ray.remote(num_cpus=0, max_retries=0, max_calls=1)(_probe)
        # The same path may be another disk there: only a file of ours tells whether results can be written to it.
        logs = next(folder for folder in (seen[0], *seen[0].parents) if folder.is_dir())
        mark = logs / f".cooperbench-{os.urandom(8).hex()}"
        paths = {str(path): str(path) for path in seen} | {str(seen[0]): str(mark)}
        tasks = []
        try:
            mark.touch()
            for node in nodes:
                there = self._on_node(node["NodeID"])
                task = probe.options(scheduling_strategy=there).remote(
                    paths, _VERSIONS, self._config
                )
                tasks.append((node["NodeManagerHostname"], task))
            for host, task in tasks:
                try:
                    error, unseen = self._ray.get(task, timeout=_START_SECONDS)
                except gone:
                    continue  # it has died, or been taken away, just now
                except Exception as problem:
                    error, unseen = (
                        f"CooperBench does not run there: {str(problem).strip()[-300:]}",
                        [],
                    )
                if error:
                    raise UserError(f"node {host}: {' '.join(redact(error).split())}")
                self._unseen |= set(unseen)
        finally:
            mark.unlink(missing_ok=True)

    def _reason(self, task: Any) -> str:
        try:
            self._ray.get(task)
        except Exception as error:
            return redact(
                f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
            )
        return "it ended without working on it"


class _Channel:
    """The actor: what jobs tell, until the driver takes it."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Event]] = []
        self._held = False

    def put(self, job: str, event: Event) -> None:
        self._events.append((job, event))

    def take(self) -> list[tuple[str, Event]]:
        taken, self._events = self._events, []
        return taken

    def hold(self) -> None:
        self._held = True

    def held(self) -> bool:
        return self._held


class _ChannelLink:
    def __init__(self, channel: Any, job: str) -> None:
        self._ray: Any = import_module("ray")
        self.owner = (
            f"Ray task {self._ray.get_runtime_context().get_task_id()[:16]} on {platform.node()}"
        )
        self._channel = channel
        self._job = job

    def tell(self, event: Event) -> None:
        # Waited for: what a job has told is there, also when its node is gone the next moment.
        self._ray.get(self._channel.put.remote(self._job, event))

    def may_start(self) -> bool:
        return not self._ray.get(self._channel.held.remote())


def _ray_job(order: JobOrder, channel: Any) -> None:
    work_on(order, _ChannelLink(channel, order.job))


def _probe(paths: dict[str, str], versions: str, config: RunConfig) -> tuple[str, list[str]]:
    """What is wrong on this node, and which paths it does not see."""
    if versions != _VERSIONS:
        return f"it has {_VERSIONS}, and the driver {versions}; install the same", []
    try:
        with SandboxManager(open_backend(config)) as sandboxes:
            sandboxes.check()
    except CooperBenchError as error:
        return str(error), []
    return "", [path for path, mark in paths.items() if not os.path.exists(mark)]  # noqa: PTH110
