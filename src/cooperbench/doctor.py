"""What is installed, reachable and configured on this machine, one finding a thing. Keys are named, never shown."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL_BACKEND = "backend local"
_KEYS = (
    "ANTHROPIC_API_KEY",
    "AZURE_API_KEY",
    "DEEPSEEK_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
    "OPENAI_API_KEY",
    "OPENROUTER_API_KEY",
    "TOGETHERAI_API_KEY",
    "VERTEXAI_PROJECT",
    "XAI_API_KEY",
)
_OTHER_KEY = re.compile(r"[A-Z][A-Z0-9_]*_API_KEY")
_OLDEST_GIT = (2, 38)
"""The first whose merge-tree merges without a checkout."""


class Status(Enum):
    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    name: str
    status: Status
    detail: str
    mend: str = ""
    """The command that mends it; empty where there is nothing to mend."""


def examine_all(dataset_dir: str | None = None) -> Iterator[Finding]:
    """Everything, each as soon as it is known."""
    yield Finding("cooperbench", Status.OK, f"{__version__}, Python {platform.python_version()}")
    yield _git()
    yield _node()
    yield _local()
    yield _engine("docker")
    yield _engine("podman")
    yield from _other_backends()
    yield from _agents()
    yield _redis()
    yield _model_keys()
    yield _dataset(dataset_dir)


def _version_of(*command: str) -> str | None:
    """The first line that a program says; None where it is not installed or does not run."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout or done.stderr).strip().partition("\n")[0] if done.returncode == 0 else None


def _git() -> Finding:
    version = _version_of("git", "--version")
    if version is None:
        return Finding("git", Status.MISSING, "not installed", "sudo apt-get install git")
    numbers = re.search(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST_GIT:
        needed = ".".join(map(str, _OLDEST_GIT))
        return Finding("git", Status.BROKEN, f"{version} is too old", f"install git {needed} or newer")
    return Finding("git", Status.OK, version)


def _node() -> Finding:
    version = _version_of("node", "--version")
    if version is None:
        detail = "not installed: JavaScript tasks of the demo are left out on the local backend"
        return Finding("node", Status.MISSING, detail, "sudo apt-get install nodejs")
    return Finding("node", Status.OK, version)


def _local() -> Finding:
    """By starting a sandbox, as nothing else tells."""
    from cooperbench.eval.backends.local import LocalBackend

    backend = LocalBackend()
    try:
        sandbox = backend.create_sandbox("host", timeout=60)
        code = sandbox.run(["true"], timeout_seconds=30).returncode
        sandbox.terminate()
    except CooperBenchError as error:
        return Finding(LOCAL_BACKEND, Status.BROKEN, str(error), "sudo apt-get install bubblewrap util-linux")
    finally:
        backend.close()
    if code:
        return Finding(
            LOCAL_BACKEND, Status.BROKEN, f"a sandbox started but `true` gave {code}", "use --backend docker"
        )
    return Finding(LOCAL_BACKEND, Status.OK, "a sandbox was started and ended")


def _engine(client: str) -> Finding:
    from cooperbench.eval.backends.docker.engine import connect

    name = f"backend docker ({client})"
    try:
        engine = connect(client)
    except UserError as error:
        what, _, mend = str(error).partition(": ")
        missing = shutil.which(client) is None
        install = (
            f"install {'Docker: https://docs.docker.com/engine/install' if client == 'docker' else 'Podman'}"
        )
        return Finding(name, Status.MISSING if missing else Status.BROKEN, what, install if missing else mend)
    try:
        version, info = engine.api.version(), engine.info
        cannot = [limit for limit, key in _LIMITS.items() if not info.get(key, True)]
        about = f"{version.get('Version')} at {engine.where}, cgroup v{info.get('CgroupVersion', '?')}"
        if cannot:
            mend = "enable these cgroup controllers, or set the limits to 0"
            return Finding(name, Status.BROKEN, f"{about}; it cannot limit {', '.join(cannot)}", mend)
        return Finding(name, Status.OK, f"{about}; limits cpu, memory and processes")
    except (CooperBenchError, OSError) as error:
        return Finding(name, Status.BROKEN, str(error), f"{client} info")
    finally:
        engine.close()


_LIMITS = {"memory": "MemoryLimit", "processes": "PidsLimit", "cpu": "CpuCfsQuota"}


def _other_backends() -> Iterator[Finding]:
    from cooperbench.eval.backends import backend_names, get_backend

    for name in backend_names():
        if name in ("local", "docker"):
            continue
        try:
            get_backend(name)
        except CooperBenchError as error:
            what, _, mend = str(error).partition("; ")
            yield Finding(f"backend {name}", Status.MISSING, what, mend)
        else:
            yield Finding(f"backend {name}", Status.OK, "can be loaded")


def _agents() -> Iterator[Finding]:
    from cooperbench.agents.registry import agent_names, get_agent

    names = {*agent_names(), "mini_swe_agent", "mini_swe_agent_v2", "swe_agent", "openhands"}
    for name in sorted(names):
        try:
            agent: Any = get_agent(name)
        except CooperBenchError as error:
            what, _, mend = str(error).partition("; ")
            yield Finding(f"agent {name}", Status.MISSING, what, mend)
        else:
            needs = "asks a model" if getattr(agent, "uses_model", True) else "needs no model"
            yield Finding(f"agent {name}", Status.OK, needs)


def _redis() -> Finding:
    for server in ("redis-server", "valkey-server"):
        version = _version_of(server, "--version")
        if version is not None:
            return Finding("redis", Status.OK, version)
    detail = "no server on the PATH; messages are carried in process without one"
    return Finding("redis", Status.MISSING, detail, "sudo apt-get install redis-server")


def _model_keys() -> Finding:
    """Names only."""
    found = sorted(
        name for name in os.environ if (name in _KEYS or _OTHER_KEY.fullmatch(name)) and os.environ[name]
    )
    filed = sorted(set(_names_in(Path(".env"))) - set(found))
    where = [*found, *(f"{name} (in .env)" for name in filed)]
    if not where:
        mend = "export OPENAI_API_KEY=… or another provider's; agents without a model need none"
        return Finding("model keys", Status.MISSING, "none in the environment or .env", mend)
    return Finding("model keys", Status.OK, ", ".join(where))


def _names_in(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    names = [line.strip().removeprefix("export ").partition("=")[0].strip() for line in lines if "=" in line]
    return [name for name in names if name in _KEYS or _OTHER_KEY.fullmatch(name)]


def _dataset(dataset_dir: str | None) -> Finding:
    from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir

    try:
        folder = resolve_dataset_dir(dataset_dir)
        tasks = load_tasks(folder)
    except UserError as error:
        what, _, _ = str(error).partition(";")
        return Finding("dataset", Status.MISSING, what, "cooperbench prepare, or use --dataset-dir demo")
    pairs = sum(len(task.pairs) for task in tasks)
    return Finding("dataset", Status.OK, f"{folder}: {plural(len(tasks), 'task')}, {plural(pairs, 'pair')}")
