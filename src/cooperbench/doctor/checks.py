"""One check for each thing: it returns what it has found, or raises.

Our errors say first what is wrong, and then what to do about it.
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
from typing import Any

from cooperbench._version import __version__
from cooperbench.agents.environments import FRAMEWORKS, find_environment, works
from cooperbench.agents.registry import agent_names, uses_model
from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval.backends import backend_names, get_backend
from cooperbench.eval.trees import OLDEST_GIT
from cooperbench.git import git_version
from cooperbench.settings import config_file, default_backend, default_eval_network
from cooperbench.team.mailbox import DEFAULT_REDIS_URL
from cooperbench.text import plural

_DEFAULT_AGENT = "mini_swe_agent"
_KEY = re.compile(
    r"[A-Z][A-Z0-9_]*_API_KEY|AWS_ACCESS_KEY_ID|GOOGLE_APPLICATION_CREDENTIALS|HF_TOKEN|VERTEXAI_PROJECT"
)
_MODEL_AGENTS = (_DEFAULT_AGENT, "mini_swe_agent_v2")
"""Their classes can be loaded without the packages that they run on."""
_ENGINE_LIMITS = {"memory": "MemoryLimit", "processes": "PidsLimit", "cpu": "CpuCfsQuota"}


class Status(StrEnum):
    OK = "ok"
    MISSING = "missing"
    """Not installed or not set up."""
    BROKEN = "broken"
    """There, but it does not work."""


@dataclass(frozen=True)
class Finding:
    name: str
    status: Status
    detail: str
    fix: str = ""
    """What to do about it; empty where there is nothing to do."""
    needed: bool = False
    """By `cooperbench run` with the user's defaults; the others may be missing."""


class _Problem(Exception):
    """What a check has found, where that is not as it should be."""

    def __init__(self, status: Status, detail: str, fix: str = "") -> None:
        self.finding = Finding("", status, detail, fix)

    @classmethod
    def of(cls, status: Status, error: Exception, *, fix_is_last: bool = True) -> _Problem:
        """What to do follows a colon, a semicolon or a full stop; the last one, if words of others stand between."""
        what, *fix = re.split(
            "[:;] (?=[^:;]*$)" if fix_is_last else "[:;.] ", str(error), maxsplit=1
        )
        return cls(status, what, "".join(fix))


def run_checks(dataset_dir: str | None = None, redis_url: str | None = None) -> Iterator[Finding]:
    """Everything, each as soon as it is known, in the order in which people read it."""
    try:
        default: str | None = default_backend()
    except UserError:
        default = None
    needed = {"settings", "git", "dataset", f"agent {_DEFAULT_AGENT}", f"backend {default}"}
    backends = dict.fromkeys(filter(None, (default, "local", "docker", *backend_names())))
    checks: dict[str, Callable[[], str]] = {
        "cooperbench": lambda: f"{__version__}, Python {platform.python_version()}",
        "settings": _settings,
        "git": _git,
        "node": _node,
        **{f"backend {name}": partial(_backend, name) for name in backends},
        **{f"agent {name}": partial(_agent, name) for name in agent_names()},
        "model keys": _model_keys,
        "redis": partial(_redis, redis_url),
        "hub": partial(_extra, "hub", "huggingface_hub", about="for `cooperbench prepare`"),
        "executor ray": partial(_extra, "ray", "ray", about="a run looks for the cluster"),
        "executor slurm": _slurm,
        "dataset": partial(_dataset, dataset_dir),
    }
    for name, check in checks.items():
        yield replace(_examine(name, check), needed=name in needed)


def _examine(name: str, check: Callable[[], str]) -> Finding:
    """One check that fails does not keep the others from telling."""
    try:
        return Finding(name, Status.OK, check())
    except _Problem as error:
        problem = error
    except UserError as error:
        problem = _Problem.of(Status.MISSING, error, fix_is_last=False)
    except CooperBenchError as error:
        problem = _Problem.of(Status.BROKEN, error)
    except Exception as error:  # perhaps a plug-in
        detail = f"it cannot be used: {type(error).__name__}: {error}"
        problem = _Problem(Status.BROKEN, detail, "see where it comes from: pip list")
    return replace(problem.finding, name=name)


def _extra(extra: str, *packages: str, about: str) -> str:
    if absent := [package for package in packages if find_spec(package) is None]:
        detail = f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
        raise _Problem(Status.MISSING, detail, f"pip install 'cooperbench[{extra}]'")
    return f"{' and '.join(packages)} is installed; {about}"


def _output(*command: str) -> str | None:
    """What a program prints; None where it is not installed or does not work."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _settings() -> str:
    try:
        backend, network = default_backend(), default_eval_network()
    except UserError as error:
        raise _Problem.of(Status.BROKEN, error) from error
    there = "" if config_file().is_file() else " (no such file: defaults are in force)"
    return f"{config_file()}{there}; the default backend is {backend}, eval_network {network}"


def _git() -> str:
    version, needed = (".".join(map(str, one)) for one in (git_version(), OLDEST_GIT))
    if git_version() < OLDEST_GIT:
        raise _Problem(Status.BROKEN, f"git {version} is too old", f"install git {needed} or newer")
    return f"git version {version}"


def _node() -> str:
    if version := _output("node", "--version"):
        return version
    detail = "not installed: JavaScript tasks of the demo are left out on the local backend"
    raise _Problem(Status.MISSING, detail, "sudo apt-get install nodejs")


def _backend(name: str) -> str:
    """By its own `check` where it has one, which may ask a service: only that knows whether a token is valid."""
    backend: Any = get_backend(name)
    try:
        if name == "gcp":
            return _google_services()
        if hasattr(backend, "check"):
            backend.check()
        return (
            _engine(backend.engine)
            if name == "docker"
            else str(getattr(backend, "about", "usable"))
        )
    finally:
        if hasattr(backend, "close"):
            backend.close()


def _engine(engine: Any) -> str:
    version, info = engine.api.version(), engine.info
    about = f"{version.get('Version')} at {engine.where}, cgroup v{info.get('CgroupVersion', '?')}"
    if cannot := [limit for limit, key in _ENGINE_LIMITS.items() if not info.get(key, True)]:
        fix = "enable these cgroup controllers, or set the limits to 0"
        raise _Problem(Status.BROKEN, f"{about}; it cannot limit {', '.join(cannot)}", fix)
    return f"{about}; limits cpu, memory and processes"


def _google_services() -> str:
    """By asking each service once."""
    from cooperbench.backends.gcp.settings import read_settings
    from cooperbench.backends.gcp.wizard import probes

    settings = read_settings()
    try:
        answers = [
            f"{service}: {probe()}"
            for service, probe in probes(settings, make_bucket=False).items()
        ]
    except CooperBenchError as error:
        raise _Problem.of(Status.BROKEN, error) from error
    return f"project {settings.project}; {'; '.join(answers)}"


def _agent(name: str) -> str:
    if name in _MODEL_AGENTS:
        _extra("agents", "litellm", "minisweagent", about="")
    if framework := FRAMEWORKS.get(name):
        environment = find_environment(framework)
        if environment is None:
            raise _Problem(
                Status.MISSING, "its framework is not installed", framework.install_command
            )
        if not works(environment):
            raise _Problem(
                Status.BROKEN, f"{environment.folder} does not work", framework.install_command
            )
        return f"{framework.distribution or name} {environment.version}"
    return "asks a model" if uses_model(name) else "needs no model"


def _model_keys() -> str:
    """Named, never shown. Whether a provider takes them is known when it is asked."""
    if found := sorted(
        name for name, value in os.environ.items() if value and _KEY.fullmatch(name)
    ):
        return ", ".join(found)
    fix = "export OPENAI_API_KEY=… (or ANTHROPIC_API_KEY, GEMINI_API_KEY, …), or put it into .env"
    raise _Problem(Status.MISSING, "none in the environment or .env", fix)


def _redis(url: str | None) -> str:
    """By sending messages over it: the one at the URL, else one that is started and ended."""
    _extra("redis", "redis", about="")
    from cooperbench.team.mailbox import ensure_redis

    try:
        with ensure_redis(url or DEFAULT_REDIS_URL) as client:
            return client.description.replace("for this run", "to try it, and ended")
    except CooperBenchError as error:
        raise _Problem.of(Status.BROKEN if url else Status.MISSING, error) from error


def _slurm() -> str:
    """What nodes have is known when a run asks them."""
    if shutil.which("sinfo") is None:
        raise _Problem(Status.MISSING, "no Slurm on this machine", "use a login node of a cluster")
    _extra("slurm", "submitit", about="")
    partitions = _output("sinfo", "-h", "-o", "%P: %D nodes")
    if partitions is None:
        raise _Problem(Status.MISSING, "Slurm does not answer", "see `scontrol ping`")
    return "; ".join(partitions.splitlines())


def _dataset(dataset_dir: str | None) -> str:
    try:
        folder = resolve_dataset_dir(dataset_dir)
        tasks = load_tasks(folder)
    except UserError as error:
        fix = "cooperbench prepare, or use --dataset-dir demo"
        raise _Problem(Status.MISSING, str(error).partition(";")[0], fix) from error
    pairs = sum(len(task.pairs) for task in tasks)
    return f"{folder}: {plural(len(tasks), 'task')}, {plural(pairs, 'pair')}"
