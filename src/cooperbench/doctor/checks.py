"""The checks of `cooperbench doctor`: each function returns what it found, or raises.

Our own error messages say first what is wrong, and then what to do about it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from cooperbench._version import __version__
from cooperbench.agents.environments import FRAMEWORKS, find_environment, works
from cooperbench.agents.registry import agent_names, uses_model
from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval.backends import backend_names, get_backend
from cooperbench.eval.trees import OLDEST_GIT
from cooperbench.git import git_version
from cooperbench.sandbox.backend import adapted_backend
from cooperbench.settings import config_file, default_backend, default_eval_network
from cooperbench.team.mailbox import DEFAULT_REDIS_URL
from cooperbench.text import plural

if TYPE_CHECKING:
    from cooperbench.backends.docker import DockerBackend

_DEFAULT_AGENT = "mini_swe_agent"
_KEY = re.compile(
    r"[A-Z][A-Z0-9_]*_API_KEY|AWS_ACCESS_KEY_ID|GOOGLE_APPLICATION_CREDENTIALS"
    r"|HF_TOKEN|VERTEXAI_PROJECT"
)
"""Names of environment variables with the key of a model provider."""
_MODEL_AGENTS = (_DEFAULT_AGENT, "mini_swe_agent_v2")
"""Agents whose classes can be loaded without the packages that they need to run."""
_ENGINE_LIMITS = {"memory": "MemoryLimit", "processes": "PidsLimit", "cpu": "CpuCfsQuota"}
_PROGRAM_SECONDS = 30
_BEFORE_FIX = re.compile(r"[:;.] ")
"""Separates a problem from its fix in one of our error messages."""
_BEFORE_LAST_FIX = re.compile(r"[:;] (?=[^:;]*$)")
"""The last such separator, for messages that quote the output of another program."""


class Status(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    MISSING = "missing"
    """Not installed or not set up."""
    BROKEN = "broken"
    """Installed, but it does not work."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    status: Status
    detail: str
    fix: str = ""
    """What the user can do; empty if there is nothing to do."""
    needed: bool = False
    """Whether `cooperbench run` needs it with the user's defaults."""

    @property
    def is_missing_requirement(self) -> bool:
        """Whether a run with the user's defaults would fail because of it."""
        return self.needed and self.status is not Status.OK


class _CheckFailed(Exception):
    """The reason why a check did not succeed."""

    def __init__(self, status: Status, detail: str, fix: str = "") -> None:
        super().__init__(detail)
        self.finding = Finding("", status, detail, fix)

    @classmethod
    def from_error(
        cls, status: Status, error: Exception, separator: re.Pattern[str] = _BEFORE_LAST_FIX
    ) -> _CheckFailed:
        """Split an error message of ours into the problem and its fix."""
        detail, *fix = separator.split(str(error), maxsplit=1)
        return cls(status, detail, "".join(fix))


def run_checks(dataset_dir: str | None = None, redis_url: str | None = None) -> Iterator[Finding]:
    """Run all checks in reading order; yield each finding as soon as it is known."""
    needed = {"settings", "git", "dataset", f"agent {_DEFAULT_AGENT}"}
    backends = ["local", "docker", *backend_names()]
    try:
        default = default_backend()
    except UserError:
        pass  # The check of the settings reports it.
    else:
        needed.add(f"backend {default}")
        backends.insert(0, default)
    checks: dict[str, Callable[[], str]] = {
        "cooperbench": lambda: f"{__version__}, Python {platform.python_version()}",
        "settings": _check_settings,
        "git": _check_git,
        "node": _check_node,
    }
    for name in backends:
        checks[f"backend {name}"] = partial(_check_backend, name)
    for name in agent_names():
        checks[f"agent {name}"] = partial(_check_agent, name)
    checks |= {
        "model keys": _check_model_keys,
        "redis": partial(_check_redis, redis_url),
        "hub": partial(_check_extra, "hub", "huggingface_hub", note="for `cooperbench prepare`"),
        "executor ray": partial(_check_extra, "ray", "ray", note="a run looks for the cluster"),
        "executor slurm": _check_slurm,
        "dataset": partial(_check_dataset, dataset_dir),
    }
    for name, check in checks.items():
        yield replace(_run_check(name, check), needed=name in needed)


def _run_check(name: str, check: Callable[[], str]) -> Finding:
    """Run one check. Its failure does not stop the others."""
    try:
        return Finding(name, Status.OK, check())
    except _CheckFailed as error:
        failure = error
    except UserError as error:
        failure = _CheckFailed.from_error(Status.MISSING, error, _BEFORE_FIX)
    except CooperBenchError as error:
        failure = _CheckFailed.from_error(Status.BROKEN, error)
    except Exception as error:  # a plug-in may raise anything
        detail = f"it cannot be used: {type(error).__name__}: {error}"
        failure = _CheckFailed(Status.BROKEN, detail, "see where it comes from: pip list")
    return replace(failure.finding, name=name)


def _check_extra(extra: str, *packages: str, note: str) -> str:
    """Check that the packages of an extra of cooperbench are installed."""
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        detail = f"{' and '.join(absent)} {verb} not installed"
        raise _CheckFailed(Status.MISSING, detail, f"pip install 'cooperbench[{extra}]'")
    return f"{' and '.join(packages)} is installed; {note}"


def _stdout_of(*command: str) -> str | None:
    """Return what a program prints; None if it is not installed or fails."""
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROGRAM_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def _check_settings() -> str:
    try:
        backend, network = default_backend(), default_eval_network()
    except UserError as error:
        raise _CheckFailed.from_error(Status.BROKEN, error) from error
    note = "" if config_file().is_file() else " (no such file, so the defaults apply)"
    return f"{config_file()}{note}; the default backend is {backend}, eval_network {network}"


def _check_git() -> str:
    version = _dotted(git_version())
    if git_version() < OLDEST_GIT:
        fix = f"install git {_dotted(OLDEST_GIT)} or newer"
        raise _CheckFailed(Status.BROKEN, f"git {version} is too old", fix)
    return f"git version {version}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _check_node() -> str:
    version = _stdout_of("node", "--version")
    if version is None:
        detail = "not installed: the local backend skips JavaScript tasks of the demo"
        raise _CheckFailed(Status.MISSING, detail, "sudo apt-get install nodejs")
    return version


def _check_backend(name: str) -> str:
    """Check a backend by its own `check`, which may call a service to see if a token is valid."""
    backend = adapted_backend(get_backend(name))
    try:
        if name == "gcp":
            return _check_google_services()
        backend.check()
        if name == "docker":
            return _check_engine(cast("DockerBackend", backend))
        return backend.about
    finally:
        backend.close()


def _check_engine(backend: DockerBackend) -> str:
    engine = backend.engine
    version = engine.api.version().get("Version")
    info = engine.info
    cgroup = info.get("CgroupVersion", "?")
    about = f"{version} at {engine.where}, cgroup v{cgroup}"
    unsupported = [limit for limit, key in _ENGINE_LIMITS.items() if not info.get(key, True)]
    if unsupported:
        fix = "enable these cgroup controllers, or set the limits to 0"
        detail = f"{about}; it cannot limit {', '.join(unsupported)}"
        raise _CheckFailed(Status.BROKEN, detail, fix)
    return f"{about}; limits: cpu, memory, processes"


def _check_google_services() -> str:
    """Call each Google Cloud service once."""
    from cooperbench.backends.gcp.settings import read_settings
    from cooperbench.backends.gcp.wizard import probes

    settings = read_settings()
    answers = []
    try:
        for service, probe in probes(settings, create_bucket=False).items():
            answers.append(f"{service}: {probe()}")
    except CooperBenchError as error:
        raise _CheckFailed.from_error(Status.BROKEN, error) from error
    return f"project {settings.project}; {'; '.join(answers)}"


def _check_agent(name: str) -> str:
    if name in _MODEL_AGENTS:
        _check_extra("agents", "litellm", "minisweagent", note="")
    framework = FRAMEWORKS.get(name)
    if framework is None:
        return "asks a model" if uses_model(name) else "needs no model"
    environment = find_environment(framework)
    if environment is None:
        detail = "its framework is not installed"
        raise _CheckFailed(Status.MISSING, detail, framework.install_command)
    if not works(environment):
        detail = f"{environment.folder} does not work"
        raise _CheckFailed(Status.BROKEN, detail, framework.install_command)
    return f"{framework.distribution or name} {environment.version}"


def _check_model_keys() -> str:
    """Name the API keys that are set, without their values. Only a provider can test one."""
    keys = sorted(name for name, value in os.environ.items() if value and _KEY.fullmatch(name))
    if not keys:
        fix = "export OPENAI_API_KEY=… (or ANTHROPIC_API_KEY, GEMINI_API_KEY, …), or set it in .env"
        raise _CheckFailed(Status.MISSING, "none in the environment or .env", fix)
    return ", ".join(keys)


def _check_redis(url: str | None) -> str:
    """Connect to the Redis server at the URL, or start one and stop it again."""
    _check_extra("redis", "redis", note="")
    from cooperbench.team.mailbox import ensure_redis

    try:
        with ensure_redis(url or DEFAULT_REDIS_URL) as client:
            return client.description.replace("for this run", "to try it, and stopped")
    except CooperBenchError as error:
        status = Status.BROKEN if url else Status.MISSING
        raise _CheckFailed.from_error(status, error) from error


def _check_slurm() -> str:
    """List the partitions. Only a run knows what its nodes have installed."""
    if shutil.which("sinfo") is None:
        fix = "use a login node of a cluster"
        raise _CheckFailed(Status.MISSING, "no Slurm on this machine", fix)
    _check_extra("slurm", "submitit", note="")
    partitions = _stdout_of("sinfo", "-h", "-o", "%P: %D nodes")
    if partitions is None:
        raise _CheckFailed(Status.MISSING, "Slurm does not answer", "see `scontrol ping`")
    return "; ".join(partitions.splitlines())


def _check_dataset(dataset_dir: str | None) -> str:
    try:
        folder = resolve_dataset_dir(dataset_dir)
        tasks = load_tasks(folder)
    except UserError as error:
        detail = str(error).partition(";")[0]
        fix = "cooperbench prepare, or use --dataset-dir demo"
        raise _CheckFailed(Status.MISSING, detail, fix) from error
    pairs = sum(len(task.pairs) for task in tasks)
    return f"{folder}: {plural(len(tasks), 'task')}, {plural(pairs, 'pair')}"
