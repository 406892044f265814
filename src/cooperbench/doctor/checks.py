"""What is installed, reachable and configured: one check for each thing.

Our errors say first what is wrong, and then what to do about it: a finding is made of one (`_from_error`).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.settings import config_file, default_backend
from cooperbench.team.mailbox import DEFAULT_REDIS_URL
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEFAULT_AGENT = "mini_swe_agent"
_OLDEST_GIT = (2, 39)
"""The first whose merge-tree merges without a checkout."""
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


def examine_all(dataset_dir: str | None = None, redis_url: str | None = None) -> Iterator[Finding]:
    """Everything, each as soon as it is known, in the order in which people read it."""
    from cooperbench.agents.registry import agent_names
    from cooperbench.eval.backends import backend_names

    default = _default_backend()
    needed = {"settings", "git", "dataset", f"agent {_DEFAULT_AGENT}", f"backend {default}"}
    backends = dict.fromkeys(filter(None, (default, "local", "docker", *backend_names())))
    checks: dict[str, Callable[[], Finding]] = {
        "cooperbench": lambda: _ok("cooperbench", f"{__version__}, Python {platform.python_version()}"),
        "settings": _settings,
        "git": _git,
        "node": _node,
        **{f"backend {name}": partial(backend_finding, name) for name in backends},
        **{f"agent {name}": partial(_agent, name) for name in agent_names()},
        "model keys": _model_keys,
        "redis": partial(_redis, redis_url),
        "hub": partial(_extra, "hub", "huggingface_hub", "hub", "for `cooperbench prepare`"),
        "executor ray": partial(_extra, "executor ray", "ray", "ray", "a run looks for the cluster"),
        "executor slurm": _slurm,
        "dataset": partial(_dataset, dataset_dir),
    }
    for name, check in checks.items():
        try:
            finding = check()
        except Exception as error:  # one check that fails does not keep the others from telling
            detail = f"the check itself failed: {type(error).__name__}: {error}"
            finding = Finding(name, Status.BROKEN, detail)
        yield replace(finding, needed=finding.name in needed)


def _ok(name: str, detail: str) -> Finding:
    return Finding(name, Status.OK, detail)


def _default_backend() -> str | None:
    """None where the settings cannot be read."""
    try:
        return default_backend()
    except UserError:
        return None


def _from_error(name: str, status: Status, error: Exception, *, fix_is_last: bool = False) -> Finding:
    """What to do follows a colon, a semicolon or a full stop; where words of others stand between, the last one."""
    what, *fix = re.split("[:;] (?=[^:;]*$)" if fix_is_last else "[:;.] ", str(error), maxsplit=1)
    return Finding(name, status, what, "".join(fix))


def _missing_extra(name: str, extra: str, *packages: str) -> Finding | None:
    absent = [package for package in packages if find_spec(package) is None]
    if not absent:
        return None
    detail = f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
    return Finding(name, Status.MISSING, detail, f"pip install 'cooperbench[{extra}]'")


def _extra(name: str, package: str, extra: str, purpose: str) -> Finding:
    return _missing_extra(name, extra, package) or _ok(name, f"{package} is installed; {purpose}")


def _output(*command: str) -> str | None:
    """What a program prints; None where it is not installed or does not work."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _settings() -> Finding:
    try:
        backend = default_backend()
    except UserError as error:
        return _from_error("settings", Status.BROKEN, error, fix_is_last=True)
    there = "" if config_file().is_file() else " (no such file: defaults are in force)"
    return _ok("settings", f"{config_file()}{there}; the default backend is {backend}")


def _git() -> Finding:
    version = _output("git", "--version")
    if version is None:
        return Finding("git", Status.MISSING, "not installed", "sudo apt-get install git")
    numbers = re.search(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST_GIT:
        needed = ".".join(map(str, _OLDEST_GIT))
        return Finding("git", Status.BROKEN, f"{version} is too old", f"install git {needed} or newer")
    return _ok("git", version)


def _node() -> Finding:
    if version := _output("node", "--version"):
        return _ok("node", version)
    detail = "not installed: JavaScript tasks of the demo are left out on the local backend"
    return Finding("node", Status.MISSING, detail, "sudo apt-get install nodejs")


def backend_finding(name: str) -> Finding:
    """By its own `check` where it has one, which may ask a service: only that knows whether a token is valid."""
    from cooperbench.eval.backends import get_backend

    title = f"backend {name}"
    backend: Any = None
    try:
        backend = get_backend(name)
        if name == "gcp":
            return _google_services(title)
        if hasattr(backend, "check"):
            backend.check()
        if name == "docker":
            return _engine(title, backend.engine)
        return _ok(title, str(getattr(backend, "about", "it can be used")))
    except UserError as error:
        return _from_error(title, Status.MISSING, error)
    except CooperBenchError as error:
        return _from_error(title, Status.BROKEN, error, fix_is_last=True)
    except Exception as error:  # somebody else's code: it must not hide the others
        detail = f"cannot be used: {type(error).__name__}: {error}"
        return Finding(title, Status.BROKEN, detail, "see where it comes from: pip list")
    finally:
        if hasattr(backend, "close"):
            backend.close()


def _engine(title: str, engine: Any) -> Finding:
    version, info = engine.api.version(), engine.info
    about = f"{version.get('Version')} at {engine.where}, cgroup v{info.get('CgroupVersion', '?')}"
    cannot = [limit for limit, key in _ENGINE_LIMITS.items() if not info.get(key, True)]
    if cannot:
        fix = "enable these cgroup controllers, or set the limits to 0"
        return Finding(title, Status.BROKEN, f"{about}; it cannot limit {', '.join(cannot)}", fix)
    return _ok(title, f"{about}; limits cpu, memory and processes")


def _google_services(title: str) -> Finding:
    """By asking each service once, if there are credentials where Google's libraries look for them."""
    from cooperbench.backends.gcp.settings import read_settings
    from cooperbench.backends.gcp.wizard import probes

    own = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    credentials = Path(own or "~/.config/gcloud/application_default_credentials.json").expanduser()
    if not credentials.is_file():
        fix = "gcloud auth application-default login"
        return Finding(title, Status.MISSING, f"no credentials in {credentials}", fix)
    settings = read_settings()
    answers = []
    for service, probe in probes(settings, make_bucket=False).items():
        try:
            answers.append(f"{service}: {probe()}")
        except CooperBenchError as error:
            return _from_error(f"{title} ({service})", Status.BROKEN, error, fix_is_last=True)
    return _ok(title, f"project {settings.project}; {'; '.join(answers)}")


def _agent(name: str) -> Finding:
    from cooperbench.agents.environments import FRAMEWORKS, find_environment, works
    from cooperbench.agents.registry import get_agent

    title = f"agent {name}"
    missing = _missing_extra(title, "agents", "litellm", "minisweagent")
    if name in _MODEL_AGENTS and missing:
        return missing
    if framework := FRAMEWORKS.get(name):
        environment = find_environment(framework)
        if environment is None:
            detail = "its framework is not installed"
            return Finding(title, Status.MISSING, detail, framework.install_command)
        if not works(environment):
            detail = f"{environment.folder} does not work"
            return Finding(title, Status.BROKEN, detail, framework.install_command)
        return _ok(title, f"{framework.distribution or name} {environment.version}")
    try:
        agent: Any = get_agent(name)
    except Exception as error:  # somebody else's code: it must not hide the others
        detail = f"cannot be loaded: {type(error).__name__}: {error}"
        return Finding(title, Status.BROKEN, detail, "see where it comes from: pip list")
    needs = "asks a model" if getattr(agent, "uses_model", True) else "needs no model"
    return _ok(title, needs)


def _model_keys() -> Finding:
    """Named, never shown. Whether a provider takes them is known when it is asked."""
    if found := sorted(name for name, value in os.environ.items() if value and _KEY.fullmatch(name)):
        return _ok("model keys", ", ".join(found))
    fix = "export OPENAI_API_KEY=… (or ANTHROPIC_API_KEY, GEMINI_API_KEY, …), or put it into .env"
    return Finding("model keys", Status.MISSING, "none in the environment or .env", fix)


def _redis(url: str | None) -> Finding:
    """By sending messages over it: the one at the URL, else one that is started and ended."""
    if missing := _missing_extra("redis", "redis", "redis"):
        return replace(missing, detail=f"{missing.detail}; messages are carried in process without it")
    from cooperbench.team.mailbox import ensure_redis

    try:
        with ensure_redis(url or DEFAULT_REDIS_URL) as client:
            return _ok("redis", client.description.replace("for this run", "to try it, and ended"))
    except CooperBenchError as error:
        status = Status.BROKEN if url else Status.MISSING
        return _from_error("redis", status, error, fix_is_last=True)


def _slurm() -> Finding:
    """What nodes have is known when a run asks them."""
    name = "executor slurm"
    if shutil.which("sinfo") is None:
        return Finding(name, Status.MISSING, "no Slurm on this machine", "use a login node of a cluster")
    if missing := _missing_extra(name, "slurm", "submitit"):
        return missing
    partitions = _output("sinfo", "-h", "-o", "%P: %D nodes")
    if partitions is None:
        return Finding(name, Status.MISSING, "Slurm does not answer", "see `scontrol ping`")
    return _ok(name, "; ".join(partitions.splitlines()))


def _dataset(dataset_dir: str | None) -> Finding:
    try:
        folder = resolve_dataset_dir(dataset_dir)
        tasks = load_tasks(folder)
    except UserError as error:
        what, _, _ = str(error).partition(";")
        fix = "cooperbench prepare, or use --dataset-dir demo"
        return Finding("dataset", Status.MISSING, what, fix)
    pairs = sum(len(task.pairs) for task in tasks)
    return _ok("dataset", f"{folder}: {plural(len(tasks), 'task')}, {plural(pairs, 'pair')}")
