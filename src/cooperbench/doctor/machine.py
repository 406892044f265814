"""Checks of this machine: programs, the user's settings, Redis, the dataset."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING

from cooperbench._version import __version__
from cooperbench.doctor.findings import Asked, Finding, Status, from_error, version_of
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

_OLDEST_GIT = (2, 38)
"""The first whose merge-tree merges without a checkout."""


def itself(asked: Asked) -> Iterator[Finding]:
    del asked
    yield Finding("cooperbench", Status.OK, f"{__version__}, Python {platform.python_version()}")


def settings(asked: Asked) -> Iterator[Finding]:
    """The file, and the backend that it, or a variable, makes the default."""
    del asked
    from cooperbench.settings import config_file, default_backend

    try:
        backend = default_backend()
    except UserError as error:
        yield from_error("settings", Status.BROKEN, error, mend_is_last=True)
        return
    detail = f"{config_file()}; the default backend is {backend}"
    yield Finding("settings", Status.OK, detail)


def git(asked: Asked) -> Iterator[Finding]:
    del asked
    version = version_of("git", "--version")
    if version is None:
        yield Finding("git", Status.MISSING, "not installed", "sudo apt-get install git")
        return
    numbers = re.search(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST_GIT:
        needed = ".".join(map(str, _OLDEST_GIT))
        yield Finding("git", Status.BROKEN, f"{version} is too old", f"install git {needed} or newer")
        return
    yield Finding("git", Status.OK, version)


def node(asked: Asked) -> Iterator[Finding]:
    del asked
    version = version_of("node", "--version")
    if version is None:
        detail = "not installed: JavaScript tasks of the demo are left out on the local backend"
        yield Finding("node", Status.MISSING, detail, "sudo apt-get install nodejs")
        return
    yield Finding("node", Status.OK, version)


def redis(asked: Asked) -> Iterator[Finding]:
    """By sending messages over it: the one at the URL, else one that is started and ended."""
    from cooperbench.team.mailbox import DEFAULT_REDIS_URL

    try:
        from cooperbench.team.redis_mailbox import ensure_redis

        with ensure_redis(asked.redis_url or DEFAULT_REDIS_URL) as running:
            yield Finding(
                "redis", Status.OK, running.description.replace("for this run", "to try it, and ended")
            )
    except CooperBenchError as error:
        status = Status.BROKEN if asked.redis_url else Status.MISSING
        yield from_error("redis", status, error, mend_is_last=True)
    except ImportError as error:
        detail = f"{error}; messages are carried in process without it"
        yield Finding("redis", Status.MISSING, detail, "pip install 'cooperbench[redis]'")


def dataset(asked: Asked) -> Iterator[Finding]:
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
