"""What a check tells."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec


class Status(Enum):
    OK = "ok"
    MISSING = "missing"
    """Not installed or not set up: fine for those who do not want it."""
    BROKEN = "broken"
    """There, but it does not work."""


@dataclass(frozen=True)
class Finding:
    name: str
    status: Status
    detail: str
    mend: str = ""
    """The command that mends it; empty where there is nothing to mend."""


@dataclass(frozen=True)
class Asked:
    """What the user said about where things are."""

    dataset_dir: str | None = None
    redis_url: str | None = None


def from_error(name: str, status: Status, error: Exception, *, mend_is_last: bool = False) -> Finding:
    """Our errors say first what is wrong, and after a colon or a semicolon what to do.

    Where words of others stand between, what to do is what comes last.
    """
    separator = "[:;] (?=[^:;]*$)" if mend_is_last else "[:;] "
    what, *mend = re.split(separator, str(error), maxsplit=1)
    return Finding(name, status, what, "".join(mend))


def missing_extra(name: str, extra: str, *modules: str) -> Finding | None:
    """A finding where packages of an extra are not installed."""
    absent = [module for module in modules if find_spec(module) is None]
    if not absent:
        return None
    detail = f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
    return Finding(name, Status.MISSING, detail, f"pip install 'cooperbench[{extra}]'")


def version_of(*command: str) -> str | None:
    """The first line that a program says; None where it is not installed or does not run."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout or done.stderr).strip().partition("\n")[0] if done.returncode == 0 else None
