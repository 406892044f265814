"""Ray: each job is a task in its own process; events come through an actor.

Tasks end with their driver. A later call finds none of them and gives their pairs to new jobs.
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
from cooperbench.records import JsonObject
from cooperbench.retry import ATTEMPTS
from cooperbench.runner.config import RunConfig
from cooperbench.runner.executors.cluster import parse_options
from cooperbench.runner.executors.job import Event, JobOrder, run_job
from cooperbench.runner.executors.local import open_backend
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.secrets import redact
from cooperbench.text import shorten

_START_SECONDS = 60.0
_CANCEL_SECONDS = 20.0
_MAX_REASON_CHARACTERS = 300
_TASK_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Resources that are options of a task; others are passed as `resources`."""
_LOCAL_VARIABLES = ("RAY_", "SLURM_", "CUDA_", "PYTHON", "TMP", "XDG_", "SSH_")
"""Prefixes of environment variables that mean something on this machine only."""
_VERSIONS = f"CooperBench {__version__} and Python {platform.python_version()}"


class RayCluster:
    """A Ray cluster, or one that is started on this machine (`--ray-address local`)."""

    name = "ray"
    attempts = ATTEMPTS
    poll_seconds = 0.1

    def __init__(self, config: RunConfig) -> None:
        self.max_jobs = config.max_jobs
        self._config = config
        self._address = config.ray_address or "auto"
        self._resources = _parse_resources(config.ray_resources)
        self._ray: Any = None
        self._channel: Any = None
        self._tasks: dict[str, Any] = {}
        """Ray's tasks, by job."""
        self._invisible_paths: set[str] = set()
        """Paths that at least one node does not see."""

    def check(self, paths: Sequence[Path]) -> None:
        """Connect to the cluster and check its nodes."""
        self._ray = _connect(self._address)
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        if not any(self._has_resources(node) for node in nodes):
            resources = ",".join(f"{name}={amount:g}" for name, amount in self._resources.items())
            raise UserError(
                f"no node of the Ray cluster has {resources}; see `ray status`, or --ray-resources"
            )
        # On the node of the driver: if that node is lost, the run is lost anyway.
        own_node = _pin_to_node(self._ray.get_runtime_context().get_node_id())
        channel_class = self._ray.remote(num_cpus=0)(_Channel)
        self._channel = channel_class.options(scheduling_strategy=own_node).remote()
        self._check_nodes(nodes, paths)

    def _has_resources(self, node: JsonObject) -> bool:
        return all(
            node["Resources"].get(name, 0) >= amount for name, amount in self._resources.items()
        )

    def sees(self, path: Path) -> bool:
        """Return whether all nodes had the path, or its folder, when they were checked."""
        return not any(str(path).startswith(prefix) for prefix in self._invisible_paths)

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:
        """Start a task per job."""
        del batch  # tasks have no names
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_LOCAL_VARIABLES)
        }
        options: JsonObject = {"resources": {}}
        for name, amount in self._resources.items():
            if name in _TASK_OPTIONS:
                options[_TASK_OPTIONS[name]] = amount
            else:
                options["resources"][name] = amount
        task = self._ray.remote(max_retries=0, max_calls=1)(_run_ray_job).options(**options)
        for order in orders:
            own_order = replace(order, environment=environment)
            self._tasks[order.job] = task.remote(own_order, self._channel)

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        """Yield the events in the actor, then the tasks that ended without `done`."""
        for job in jobs:
            if job not in self._tasks:
                yield job, {"kind": "lost", "error": "it ended with the driver that started it"}
        if not self._tasks:
            return
        jobs_by_task = {task: job for job, task in self._tasks.items()}
        tasks = list(jobs_by_task)
        # Before the events are read: a task that has ended by now has sent all of its events.
        ended, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        for job, event in self._call_channel(self._channel.take):
            yield job, event
            if event["kind"] == "done":
                self._tasks.pop(job, None)
        for task in ended:
            job = jobs_by_task[task]
            if self._tasks.pop(job, None) is not None:
                yield job, {"kind": "lost", "error": self._end_reason(task)}

    def hold(self, jobs: Collection[str]) -> None:
        """Tell all jobs to start no more pairs."""
        del jobs
        self._call_channel(self._channel.hold)

    def _call_channel(self, method: Any) -> Any:
        """Call a method of the actor and return its result."""
        try:
            return self._ray.get(method.remote())
        except self._ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:200]
            raise InfraError(
                f"the Ray cluster has lost the node of this run: {reason}; "
                "rerun the same command to continue"
            ) from error

    def cancel(self, jobs: Collection[str]) -> None:
        """Cancel tasks; kill those that do not end in time."""
        tasks = [self._tasks.pop(job) for job in jobs if job in self._tasks]
        if not tasks:
            return
        for task in tasks:
            self._ray.cancel(task)
        _, running = self._ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_SECONDS)
        for task in running:
            self._ray.cancel(task, force=True)

    def close(self, *, keep_files: bool) -> None:
        """Disconnect; there are no files."""
        del keep_files
        if self._ray is not None:
            self._ray.shutdown()

    def _check_nodes(self, nodes: Sequence[JsonObject], paths: Sequence[Path]) -> None:
        """Check versions and backend on every node, and find out which paths it sees."""
        logs_dir = paths[0]
        existing = next(folder for folder in (logs_dir, *logs_dir.parents) if folder.is_dir())
        # The same path may be another disk on a node, so look for a new file in the logs.
        marker = existing / f".cooperbench-{os.urandom(8).hex()}"
        files_to_find = {str(path): str(path) for path in paths}
        files_to_find[str(logs_dir)] = str(marker)
        check = self._ray.remote(num_cpus=0, max_retries=0, max_calls=1)(_check_node)
        tasks = []
        try:
            marker.touch()
            for node in nodes:
                pinned = check.options(scheduling_strategy=_pin_to_node(node["NodeID"]))
                task = pinned.remote(files_to_find, _VERSIONS, self._config)
                tasks.append((node["NodeManagerHostname"], task))
            for host, task in tasks:
                self._invisible_paths |= self._node_check_result(host, task)
        finally:
            marker.unlink(missing_ok=True)

    def _node_check_result(self, host: str, task: Any) -> set[str]:
        """Return the paths that a node does not see; UserError if the node cannot run jobs."""
        ray_errors = self._ray.exceptions
        node_is_gone = (
            ray_errors.TaskUnschedulableError,
            ray_errors.NodeDiedError,
            ray_errors.WorkerCrashedError,
        )
        try:
            problem, invisible = self._ray.get(task, timeout=_START_SECONDS)
        except node_is_gone:
            return set()
        except Exception as error:
            problem = f"CooperBench does not run there: {str(error).strip()[-300:]}"
            invisible = []
        if problem:
            raise UserError(f"node {host}: {' '.join(redact(problem).split())}")
        return set(invisible)

    def _end_reason(self, task: Any) -> str:
        try:
            self._ray.get(task)
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            return redact(f"{type(error).__name__}: {first_line[:300]}")
        return "it ended without running the pair"


def _parse_resources(text: str | None) -> dict[str, float]:
    options = parse_options(text, "--ray-resources")
    try:
        return {"CPU": 1.0} | {name: float(amount) for name, amount in options.items()}
    except ValueError as error:
        raise UserError(
            f"--ray-resources {text!r}: write NAME=NUMBER, e.g. CPU=2,memory=8e9"
        ) from error


def _connect(address: str) -> Any:
    """Return the module `ray`, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError as error:
        raise UserError("--executor ray needs Ray: pip install 'cooperbench[ray]'") from error
    options: JsonObject = {"log_to_driver": False, "configure_logging": False}
    if address == "local":
        options["include_dashboard"] = False
    try:
        ray.init(address=address, **options)
    except Exception as error:
        # Ray raises many types; to the user all mean that there is no cluster of this version.
        reason = connection_failure(error)
        advice = "start one with `ray start --head`, or use --ray-address local"
        if "authentication" in reason.lower():
            advice = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's token"
        raise UserError(
            f"the Ray cluster at {address!r} cannot be used: {reason}; {advice}"
        ) from error
    return ray


def connection_failure(error: BaseException) -> str:
    """Return in one line why Ray could not connect.

    Ray's own message only says that it failed. The reason, such as a wrong token, is the last line
    of the traceback in the error that caused it.
    """
    message = " ".join(str(error).split())
    cause = error.__cause__ or error.__context__
    cause_lines = str(cause or "").strip().splitlines()
    if cause_lines and cause_lines[-1].strip() not in message:
        message = f"{shorten(message, _MAX_REASON_CHARACTERS)}: {cause_lines[-1].strip()}"
    return redact(shorten(message, 2 * _MAX_REASON_CHARACTERS))


def _pin_to_node(node_id: str) -> Any:
    """Return a scheduling strategy that runs a task on one node only."""
    strategies = import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)


class _Channel:
    """The actor that keeps events of jobs until the driver takes them."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Event]] = []
        self._is_held = False

    def put(self, job: str, event: Event) -> None:
        """Append an event of a job."""
        self._events.append((job, event))

    def take(self) -> list[tuple[str, Event]]:
        """Return all events and forget them."""
        events = self._events
        self._events = []
        return events

    def hold(self) -> None:
        """Hold new pairs."""
        self._is_held = True

    def is_held(self) -> bool:
        """Return whether the driver holds new pairs."""
        return self._is_held


class _ChannelLink:
    """A link to the driver through the actor."""

    def __init__(self, channel: Any, job: str) -> None:
        self._ray: Any = import_module("ray")
        task_id = self._ray.get_runtime_context().get_task_id()
        self.owner = f"Ray task {task_id[:16]} on {platform.node()}"
        self._channel = channel
        self._job = job

    def send(self, event: Event) -> None:
        """Send an event and wait until the actor has it: it then survives the loss of this node."""
        self._ray.get(self._channel.put.remote(self._job, event))

    def may_start(self) -> bool:
        """Return whether the driver does not hold new pairs."""
        return not self._ray.get(self._channel.is_held.remote())


def _run_ray_job(order: JobOrder, channel: Any) -> None:
    run_job(order, _ChannelLink(channel, order.job))


def _check_node(
    files_to_find: dict[str, str], versions: str, config: RunConfig
) -> tuple[str, list[str]]:
    """Return what is wrong on this node, and the paths whose file it does not see."""
    if versions != _VERSIONS:
        return f"it has {_VERSIONS}, and the driver {versions}; install the same versions", []
    try:
        with SandboxManager(open_backend(config)) as sandboxes:
            sandboxes.check()
    except CooperBenchError as error:
        return str(error), []
    invisible = [
        path
        for path, file in files_to_find.items()
        if not os.path.exists(file)  # noqa: PTH110  # Path.exists raises if access is denied
    ]
    return "", invisible
