"""The results of mining so far, on disk, so that the same command continues.

Everything is named by commit ids, so it stays true when the history grows.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from cooperbench.errors import UserError
from cooperbench.storage import read_bytes, write_bytes

SCHEMA = "cooperbench.mining/1"
HOLDS = ""
"""Result of a trial without a problem."""


class MinedTask(msgspec.Struct, frozen=True):
    """A task that was written."""

    task: str
    """Its label: `myrepo_task/task1`."""
    base: str
    """The base commit in the repository."""
    commits: list[str]
    """The commits of its features, in the order of their numbers."""


class _File(msgspec.Struct):
    """The content of the state file."""

    schema: str = SCHEMA
    rejected: dict[str, str] = msgspec.field(default_factory=dict)
    """Why a commit is not a feature, by commit."""
    trials: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """Why a commit does not hold on a base, by base and commit; empty if it does."""
    broken_bases: dict[str, str] = msgspec.field(default_factory=dict)
    """Why a base commit cannot be used."""
    broken_setups: dict[str, str] = msgspec.field(default_factory=dict)
    """Why an environment cannot be installed, by a checksum of the files that define it."""
    tasks: list[MinedTask] = msgspec.field(default_factory=list)


class MiningState:
    """The state file. Each change is on disk when the method returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._content = _File()

    def load(self) -> None:
        """Read what an earlier call has found out.

        Raises:
            UserError: The file is damaged or of another version.
        """
        data = read_bytes(self.path)
        if data is None:
            return
        try:
            content = msgspec.json.decode(data, type=_File)
        except msgspec.MsgspecError as error:
            raise UserError(f"{self.path} cannot be read: {error}; remove it") from error
        if content.schema != SCHEMA:
            raise UserError(f"{self.path} is of another version; remove it")
        self._content = content

    @property
    def tasks(self) -> list[MinedTask]:
        """The tasks that were written."""
        return list(self._content.tasks)

    @property
    def rejected(self) -> dict[str, str]:
        """Why commits are not features, by commit."""
        return dict(self._content.rejected)

    def reject_commits(self, reasons: dict[str, str]) -> None:
        """Record why commits are not features."""
        with self._lock:
            self._content.rejected |= reasons
            self._save()

    def trial(self, base: str, commit: str) -> str | None:
        """Return why a commit does not hold on a base, `HOLDS`, or None if it was not tried."""
        return self._content.trials.get(base, {}).get(commit)

    def add_trial(self, base: str, commit: str, problem: str) -> None:
        """Record whether a commit holds on a base."""
        with self._lock:
            self._content.trials.setdefault(base, {})[commit] = problem
            self._save()

    def failures_of(self, commit: str) -> list[str]:
        """Return why a commit does not hold on the bases that were tried."""
        results = [trials.get(commit) for trials in self._content.trials.values()]
        return [problem for problem in results if problem]

    def base_problem(self, base: str) -> str:
        """Return why a base cannot be used; empty if that is not known."""
        return self._content.broken_bases.get(base, "")

    def reject_base(self, base: str, problem: str) -> None:
        """Record why a base cannot be used."""
        with self._lock:
            self._content.broken_bases[base] = problem
            self._save()

    def setup_problem(self, environment: str) -> str:
        """Return why an environment cannot be installed; empty if that is not known."""
        return self._content.broken_setups.get(environment, "")

    def reject_setup(self, environment: str, problem: str) -> None:
        """Record why an environment cannot be installed."""
        with self._lock:
            self._content.broken_setups[environment] = problem
            self._save()

    def add_task(self, task: MinedTask) -> None:
        """Record a task that was written."""
        with self._lock:
            self._content.tasks.append(task)
            self._save()

    def _save(self) -> None:
        data = msgspec.json.encode(self._content)
        write_bytes(self.path, msgspec.json.format(data, indent=1) + b"\n")
