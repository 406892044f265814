"""Finds out which agent's commands change which files of a shared workspace.

After each command, git takes a snapshot of the work tree in the sandbox. What has changed since the
last snapshot is attributed to all agents whose commands ran meanwhile. The snapshots are a record
only: no patch and no verdict depends on them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cooperbench.agents.base import REPO_DIR
from cooperbench.errors import SandboxDestroyed, SandboxError
from cooperbench.records.workspace import FileChange, WorkspaceChange, WorkspaceRecord
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.storage import utc_now
from cooperbench.text import printable

STATE_DIR = "/cooperbench/workspace"
_SNAPSHOT_SECONDS = 60
_MAX_BYTES = 200_000
"""Size of the list of files that one snapshot may add to the record."""
_MAX_FAILURES = 5
"""After so many failures in a row no more snapshots are taken: each may take a minute."""
_MAX_REASON_CHARACTERS = 200


class WorkspaceTracker:
    """The snapshots of one workspace. All methods may be called from several threads."""

    def __init__(self, sandbox: Sandbox, git_dir: str) -> None:
        """Store the sandbox and the git directory of its base commit."""
        self._sandbox = sandbox
        self._git_dir = git_dir
        script = sandbox_script("work_tree.sh") + sandbox_script("track_changes.sh")
        self._argv = ["bash", "-c", script, "track_changes"]
        self._tree = ""
        """Git id of the tree in the last snapshot."""
        self._lock = threading.Lock()
        """Guards the next fields."""
        self._running: dict[str, int] = {}
        """Agents with commands that run now, with their steps."""
        self._active: dict[str, int] = {}
        """Agents whose commands ran at any time since the last snapshot began."""
        self._examined: dict[str, int] = {}
        """The same, until the snapshot that is being taken began; empty if none is."""
        self._ended_commands = 0
        self._ended_during: list[str] | None = None
        self._taking = threading.Lock()
        """Held while a snapshot is taken; guards the next fields."""
        self._covered_commands = 0
        """Number of commands that had ended when the last snapshot began."""
        self._changes: list[WorkspaceChange] = []
        self._snapshots = 0
        self._failed_snapshots = 0
        self._failures_in_a_row = 0
        self._seconds = 0.0
        self._problem: str | None = None

    def start(self) -> None:
        """Take the first snapshot, before any agent works."""
        self._take_snapshot()

    @contextmanager
    def command(self, agent_id: str, step: int) -> Iterator[None]:
        """Watch a command of an agent, and take a snapshot when it has ended."""
        with self._lock:
            self._running[agent_id] = self._active[agent_id] = step
        try:
            yield
        except SandboxDestroyed:
            with self._lock:
                self._note_end({**self._examined, **self._active})
            raise
        finally:
            with self._lock:
                self._running.pop(agent_id, None)
                self._ended_commands += 1
                number = self._ended_commands
            self._cover(number)

    def step_ended(self, agent_id: str, step: int) -> None:
        """Take a snapshot after a step of a program, which goes on running."""
        with self._lock:
            if agent_id in self._running:
                self._running[agent_id] = self._active[agent_id] = step
            self._ended_commands += 1
            number = self._ended_commands
        self._cover(number)

    def finish(self) -> None:
        """Take the last snapshot, when all agents have ended."""
        with self._taking:
            self._take_snapshot()

    def snapshot_command(self) -> list[str]:
        """Return the command that takes the next snapshot in the sandbox."""
        mode = "all" if self._failures_in_a_row else ""
        return [*self._argv, REPO_DIR, self._git_dir, STATE_DIR, self._tree, mode]

    def files_of(self, agent_id: str) -> list[str]:
        """Return the files that changed while commands of an agent ran."""
        paths: set[str] = set()
        with self._taking:
            for change in self._changes:
                if agent_id in change.agents:
                    paths.update(file.path for file in change.files)
        return sorted(paths)

    def record(self) -> WorkspaceRecord:
        """Return the content of workspace.json."""
        with self._taking:
            return WorkspaceRecord(
                changes=list(self._changes),
                snapshots=self._snapshots,
                failed_snapshots=self._failed_snapshots,
                snapshot_seconds=round(self._seconds, 3),
                problem=self._problem,
                ended_during=self._ended_during,
            )

    def _cover(self, number: int) -> None:
        """Take a snapshot unless one has begun since the command with this number ended."""
        with self._taking:
            if number > self._covered_commands:
                self._take_snapshot()

    def _take_snapshot(self) -> None:
        """Take a snapshot and record what has changed; the caller holds `_taking`."""
        if self._failures_in_a_row >= _MAX_FAILURES:
            return
        with self._lock:
            active, self._active = self._active, dict(self._running)
            self._examined = active
            self._covered_commands = self._ended_commands
        started = time.monotonic()
        try:
            files, is_complete = self._changed_files()
        except SandboxError as error:
            self._note_failure(error, active)
            return
        finally:
            self._seconds += time.monotonic() - started
            with self._lock:
                # Git may have seen what a command did that began meanwhile.
                active = {**active, **self._active}
                self._examined = {}
        self._snapshots += 1
        self._failures_in_a_row = 0
        if files:
            steps = {agent_id: active[agent_id] for agent_id in sorted(active)}
            change = WorkspaceChange(
                time=utc_now(),
                agents=list(steps),
                steps=steps,
                files=files,
                is_complete=is_complete,
            )
            self._changes.append(change)

    def _note_failure(self, error: SandboxError, active: Mapping[str, int]) -> None:
        self._failed_snapshots += 1
        self._failures_in_a_row += 1
        self._problem = printable(str(error))[-_MAX_REASON_CHARACTERS:]
        with self._lock:
            # The next snapshot has their changes.
            self._active = {**active, **self._active}
            if isinstance(error, SandboxDestroyed):
                self._note_end(self._active)

    def _note_end(self, active: Mapping[str, int]) -> None:
        """Record who was at work when the sandbox ended; the caller holds `_lock`."""
        if self._ended_during is None:
            self._ended_during = sorted(active)

    def _changed_files(self) -> tuple[list[FileChange], bool]:
        """Return the files that have changed since the last snapshot, and whether these are all."""
        output = self._sandbox.run(
            self.snapshot_command(), timeout_seconds=_SNAPSHOT_SECONDS, output_limit=2 * _MAX_BYTES
        )
        if output.returncode != 0:
            reason = output.stderr_read().strip() or f"exit code {output.returncode}"
            raise SandboxError(f"no snapshot of the workspace: {reason}")
        # Of a longer output, the first and the last half of the limit are kept.
        is_complete = output.stdout_cut == 0
        content = output.stdout if is_complete else output.stdout[:_MAX_BYTES]
        tree, _, changes = content.partition(b"\n")
        self._tree = tree.decode("ascii", "replace")
        return parse_changes(changes), is_complete


def parse_changes(output: bytes) -> list[FileChange]:
    """Return the files in the output of `git diff-tree -z --raw --numstat`, which may be cut."""
    fields = iter(output.decode("utf-8", "replace").split("\0")[:-1])
    statuses: dict[str, str] = {}
    files = {}
    for entry in fields:
        if entry.startswith(":"):
            path = next(fields, None)
            if path is None:
                break  # it was cut here
            statuses[path] = entry.rpartition(" ")[2][:1]
            files[path] = FileChange(path=path, status=statuses[path], added=None, removed=None)
            continue
        added, _, removed_and_path = entry.partition("\t")
        removed, _, path = removed_and_path.partition("\t")
        if path in statuses and added.isdecimal() and removed.isdecimal():
            files[path] = FileChange(
                path=path, status=statuses[path], added=int(added), removed=int(removed)
            )
    return list(files.values())
