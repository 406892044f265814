"""One check for each thing; `CHECKS` lists them in the order in which people read them.

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
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.errors import CooperBenchError, UserError
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


@dataclass(frozen=True)
class Asked:
    """What the user said about where things are."""

    dataset_dir: str | None = None
    redis_url: str | None = None


def examine_all(asked: Asked | None = None) -> Iterator[Finding]:
    """Everything, each as soon as it is known. One check that fails does not keep the others from telling."""
    needed = {"settings", "git", "dataset", f"agent {_DEFAULT_AGENT}", f"backend {_default_backend()}"}
    for check in CHECKS:
        try:
            for finding in check(asked or Asked()):
                yield replace(finding, needed=finding.name in needed)
        except Exception as error:
            name = check.__name__.strip("_").replace("_", " ")
            yield Finding(name, Status.BROKEN, f"the check itself failed: {type(error).__name__}: {error}")


def _default_backend() -> str | None:
    """None where the settings cannot be read."""
    from cooperbench.settings import default_backend

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


def _version_of(program: str) -> str | None:
    """None where it is not installed or does not run."""
    if shutil.which(program) is None:
        return None
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else None


def _cooperbench(_: Asked) -> Iterator[Finding]:
    yield Finding("cooperbench", Status.OK, f"{__version__}, Python {platform.python_version()}")


def _settings(_: Asked) -> Iterator[Finding]:
    from cooperbench.settings import config_file, default_backend

    try:
        backend = default_backend()
    except UserError as error:
        yield _from_error("settings", Status.BROKEN, error, fix_is_last=True)
        return
    there = "" if config_file().is_file() else " (no such file: defaults are in force)"
    yield Finding("settings", Status.OK, f"{config_file()}{there}; the default backend is {backend}")


def _git(_: Asked) -> Iterator[Finding]:
    version = _version_of("git")
    if version is None:
        yield Finding("git", Status.MISSING, "not installed", "sudo apt-get install git")
        return
    numbers = re.search(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST_GIT:
        needed = ".".join(map(str, _OLDEST_GIT))
        yield Finding("git", Status.BROKEN, f"{version} is too old", f"install git {needed} or newer")
        return
    yield Finding("git", Status.OK, version)


def _node(_: Asked) -> Iterator[Finding]:
    version = _version_of("node")
    if version is None:
        detail = "not installed: JavaScript tasks of the demo are left out on the local backend"
        yield Finding("node", Status.MISSING, detail, "sudo apt-get install nodejs")
        return
    yield Finding("node", Status.OK, version)


def _backends(_: Asked) -> Iterator[Finding]:
    from cooperbench.eval.backends import backend_names

    names = dict.fromkeys((_default_backend(), "local", "docker", *backend_names()))
    yield from (backend_finding(name) for name in names if name)


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
        return Finding(title, Status.OK, str(getattr(backend, "about", "it can be used")))
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
    return Finding(title, Status.OK, f"{about}; limits cpu, memory and processes")


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
    return Finding(title, Status.OK, f"project {settings.project}; {'; '.join(answers)}")


def _agents(_: Asked) -> Iterator[Finding]:
    from cooperbench.agents.registry import agent_names

    yield from (_agent(name) for name in agent_names())


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
        return Finding(title, Status.OK, f"{framework.distribution or name} {environment.version}")
    try:
        agent: Any = get_agent(name)
    except Exception as error:  # somebody else's code: it must not hide the others
        detail = f"cannot be loaded: {type(error).__name__}: {error}"
        return Finding(title, Status.BROKEN, detail, "see where it comes from: pip list")
    needs = "asks a model" if getattr(agent, "uses_model", True) else "needs no model"
    return Finding(title, Status.OK, needs)


def _model_keys(_: Asked) -> Iterator[Finding]:
    """Named, never shown. Whether a provider takes them is known when it is asked."""
    found = sorted(name for name, value in os.environ.items() if value and _KEY.fullmatch(name))
    if found:
        yield Finding("model keys", Status.OK, ", ".join(found))
        return
    fix = "export OPENAI_API_KEY=… (or ANTHROPIC_API_KEY, GEMINI_API_KEY, …), or put it into .env"
    yield Finding("model keys", Status.MISSING, "none in the environment or .env", fix)


def _redis(asked: Asked) -> Iterator[Finding]:
    """By sending messages over it: the one at the URL, else one that is started and ended."""
    from cooperbench.team.mailbox import DEFAULT_REDIS_URL

    if missing := _missing_extra("redis", "redis", "redis"):
        yield replace(missing, detail=f"{missing.detail}; messages are carried in process without it")
        return
    from cooperbench.team.mailbox import ensure_redis

    try:
        with ensure_redis(asked.redis_url or DEFAULT_REDIS_URL) as client:
            said = client.description.replace("for this run", "to try it, and ended")
            yield Finding("redis", Status.OK, said)
    except CooperBenchError as error:
        status = Status.BROKEN if asked.redis_url else Status.MISSING
        yield _from_error("redis", status, error, fix_is_last=True)


def _hub(_: Asked) -> Iterator[Finding]:
    here = Finding("hub", Status.OK, "huggingface_hub is installed, for `cooperbench prepare`")
    yield _missing_extra("hub", "hub", "huggingface_hub") or here


def _clusters(_: Asked) -> Iterator[Finding]:
    """For `--executor`. What nodes have is known when a run asks them."""
    here = Finding("executor ray", Status.OK, "ray is installed; a run looks for the cluster")
    yield _missing_extra("executor ray", "ray", "ray") or here
    name = "executor slurm"
    if shutil.which("sinfo") is None:
        yield Finding(name, Status.MISSING, "no Slurm on this machine", "use a login node of a cluster")
        return
    if missing := _missing_extra(name, "slurm", "submitit"):
        yield missing
        return
    done = subprocess.run(["sinfo", "-h", "-o", "%P: %D nodes"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield Finding(name, Status.MISSING, "Slurm does not answer", "see `scontrol ping`")
    else:
        yield Finding(name, Status.OK, "; ".join(done.stdout.strip().splitlines()))


def _dataset(asked: Asked) -> Iterator[Finding]:
    from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir

    try:
        folder = resolve_dataset_dir(asked.dataset_dir)
        tasks = load_tasks(folder)
    except UserError as error:
        what, _, _ = str(error).partition(";")
        yield Finding("dataset", Status.MISSING, what, "cooperbench prepare, or use --dataset-dir demo")
        return
    pairs = sum(len(task.pairs) for task in tasks)
    yield Finding("dataset", Status.OK, f"{folder}: {plural(len(tasks), 'task')}, {plural(pairs, 'pair')}")


CHECKS: tuple[Callable[[Asked], Iterator[Finding]], ...] = (
    *(
        _cooperbench,
        _settings,
        _git,
        _node,
        _backends,
        _agents,
        _model_keys,
        _redis,
        _hub,
        _clusters,
        _dataset,
    ),
)
