"""Requirements of tests: programs, Python packages, and rights that a machine may lack.

A test whose requirement is missing is skipped with a reason. With COOPERBENCH_TEST_STRICT=1 it fails instead, unless the
requirement is optional there too. The run ends with a table of these skips (`summarize_skips`).
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

_REASON = re.compile(r"needs (?P<need>[^\[]+) \[enable with: (?P<remedy>[^\]]+)\]")


def is_strict() -> bool:
    """Return whether a missing requirement is a failure, as it is in CI."""
    return os.environ.get("COOPERBENCH_TEST_STRICT") == "1"


def skip_without(need: str, remedy: str, *, detail: str = "", optional: bool = False) -> NoReturn:
    """Skip the running test because this machine lacks something.

    Args:
        need: What is missing, for example "node".
        remedy: What the user has to install or change, for example "apt install nodejs".
        detail: Why it cannot be used, where that is not clear.
        optional: True if machines of CI may lack it too, so that it is never a failure.
    """
    reason = f"needs {need} [enable with: {remedy}] {detail}".rstrip()
    if is_strict() and not optional:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def require(condition: object, need: str, remedy: str, *, optional: bool = False) -> None:
    """Skip the running test unless the condition holds."""
    if not condition:
        skip_without(need, remedy, optional=optional)


def require_program(name: str, *, package: str | None = None) -> str:
    """Return the path of a program, or skip the running test.

    System folders are searched too: they are often missing from the PATH of a regular user.
    """
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        skip_without(name, f"apt install {package or name}")
    return path


def require_module(name: str, *, package: str | None = None) -> None:
    """Skip the running test unless a Python module is installed."""
    if find_spec(name) is None:
        skip_without(f"the Python package {package or name}", f"pip install {package or name}")


def require_root() -> None:
    """Skip the running test unless it runs as root."""
    require(os.geteuid() == 0, "root", "running the tests as root")


def require_control_group(available: object) -> None:
    """Skip the running test unless a control group limits sandboxes; containers often have none to give."""
    require(available, "control groups", "a host that delegates control groups", optional=True)


def reason_of_skip(report: pytest.TestReport) -> re.Match[str] | None:
    """Return need and remedy of a test that was skipped for a missing requirement."""
    if not isinstance(report.longrepr, tuple):
        return None
    return _REASON.search(str(report.longrepr[2]))


def summarize_skips(reports: Sequence[pytest.TestReport]) -> list[str]:
    """Return the lines of a table: what was missing, how many tests need it, and how to get it."""
    counts: Counter[tuple[str, str]] = Counter()
    for report in reports:
        reason = reason_of_skip(report)
        if reason is not None:
            counts[reason["need"], reason["remedy"]] += 1
    if not counts:
        return []
    rows = [("missing", "tests", "enable with")]
    rows += [(need, f"{count:,}", remedy) for (need, remedy), count in counts.most_common()]
    need_width = max(len(need) for need, _, _ in rows)
    count_width = max(len(count) for _, count, _ in rows)
    return [
        f"{need:<{need_width}}  {count:>{count_width}}  {remedy}" for need, count, remedy in rows
    ]
