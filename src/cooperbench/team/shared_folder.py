"""A folder that all agents of a team see, although their sandboxes share no file system: the harness copies files.

An agent's copy is brought up to date before each of its steps, and around each of its messages and tool calls: what it
changed goes to the harness, what others changed comes to it. For each file the last writer wins; if it had not seen
the version that it replaced, that one is kept beside the file as NAME.by-AGENT. A change wins over a removal. Empty
folders, links and file modes are not shared. What is over a limit stays with the agent, which is told so in one line.
"""

from __future__ import annotations

import hashlib
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.errors import SandboxDead, SandboxError, SandboxRefused
from cooperbench.storage import utc_now
from cooperbench.team.task_list import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cooperbench.sandbox.contract import RichSandbox

SHARED_DIR = "/workspace/shared"
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 16 << 20
MOST_FILES = 500
MOST_WRITES = 20_000
"""Of all agents together, so that the record stays bounded."""
_SECONDS = 10
_LARGE = "large"
# Without a pipe: the exit code is that of find, also where there are more files than one call of sha256sum takes.
_LIST = f"""
mkdir -p {SHARED_DIR} && cd {SHARED_DIR} || exit 1
find . -type f ! -size -{MAX_FILE_BYTES // 1024 + 1}k -exec printf '{_LARGE}  %s\\n' {{}} + &&
find . -type f -size -{MAX_FILE_BYTES // 1024 + 1}k -exec sha256sum {{}} +
"""
_LINE = re.compile(rf"([0-9a-f]{{64}}|{_LARGE})  \./(.+)")
_NAME = re.compile(r"(?!\.{1,2}(/|$))[^/\x00-\x1f\\]+(/(?!\.{1,2}(/|$))[^/\x00-\x1f\\]+){0,9}")
"""Relative, without `..`: an agent could name any path of the others' sandboxes, since it lists its own files."""
_LONGEST_NAME = 200


class Version(NamedTuple):
    number: int
    """Over all files: a later one is higher."""
    writer: str
    data: bytes | None
    """None: removed."""


class Copy(NamedTuple):
    """What an agent has of a file."""

    digest: str
    number: int
    """Of the version; 0 where the file is not shared."""
    size: int = 0


class SharedFolder:
    """All methods may be called from several threads."""

    def __init__(
        self,
        step_of: Callable[[str], int],
        announce: Callable[[str, str, str], None],
        tell: Callable[[str, str, str], None],
    ) -> None:
        self._step_of = step_of
        self._announce = announce
        """As in `TaskList`, to all others."""
        self._tell = tell
        """To the agent itself."""
        self._versions: dict[str, Version] = {}
        self._count = self._files = self._bytes = 0
        self._copies: dict[str, dict[str, Copy]] = {}
        self._sandboxes: dict[str, tuple[RichSandbox, threading.Lock]] = {}
        self._log: list[dict[str, Any]] = []
        self._lock = threading.RLock()

    def attach(self, agent_id: str, sandbox: RichSandbox) -> None:
        self._copies[agent_id] = {}
        self._sandboxes[agent_id] = (sandbox, threading.Lock())
        self.sync(agent_id)

    def detach(self, agent_id: str) -> None:
        """The agent is done; what it wrote last still goes to the others, if its sandbox is still there."""
        with suppress(SandboxDead):
            self.sync(agent_id)
        self._sandboxes.pop(agent_id, None)

    def sync(self, agent_id: str) -> None:
        """Sandboxes that are gone raise; what an agent has done to its folder or its tools is not our failure."""
        if (place := self._sandboxes.get(agent_id)) is None:
            return
        sandbox, lock = place
        with lock:
            try:
                if self._take(agent_id, sandbox):
                    self._give(agent_id, sandbox)
            except SandboxDead:
                raise
            except SandboxError:
                return

    def log(self) -> list[dict[str, Any]]:
        """Every change: who, when, at which step."""
        with self._lock:
            return list(self._log)

    def _take(self, agent_id: str, sandbox: RichSandbox) -> bool:
        """What the agent has changed; False where its folder could not be listed."""
        done = sandbox.run(["sh", "-c", _LIST], timeout_seconds=_SECONDS, output_limit=MOST_FILES * 4000)
        lines = done.stdout_read().splitlines()
        listed = {match[2]: match[1] for line in lines if (match := _LINE.fullmatch(line))}
        if done.returncode != 0 or done.timed_out or done.stdout_cut:
            self._tell(
                agent_id, "shared", f"{SHARED_DIR} could not be read: it may be too large. Not shared now."
            )
            return False
        copies = self._copies[agent_id]
        refused: list[tuple[str, str]] = []
        for path in [path for path in copies if path not in listed]:
            self._remove(agent_id, path, copies.pop(path))
        looked_at = 0
        for path, digest in sorted(listed.items()):
            known = copies.get(path)
            if known and known.digest == digest and (known.number or self._why_not(path, known.size)):
                continue
            looked_at += 1
            if looked_at > MOST_FILES:
                break  # the rest next time
            data = b"" if digest == _LARGE else _read(sandbox, path)
            if data is None:
                continue
            size = MAX_FILE_BYTES + 1 if digest == _LARGE else len(data)
            reason, number = self._write(agent_id, path, data, size, known)
            copies[path] = Copy(digest, number, size)
            if reason:
                refused.append((path, reason))
        if refused:
            names = ", ".join(shown(path) for path, _ in refused[:3]) + (" …" if len(refused) > 3 else "")
            self._tell(agent_id, "shared", f"Not shared from {SHARED_DIR}: {names}: {refused[0][1]}")
        return True

    def _write(self, agent_id: str, path: str, data: bytes, size: int, known: Copy | None) -> tuple[str, int]:
        """Why it is not shared, if so, and the number of the version that the agent has now."""
        with self._lock:
            if reason := self._why_not(path, size):
                return reason, 0
            old = self._versions.get(path)
            if old is not None and old.data == data:
                return "", old.number
            new = self._put(agent_id, path, data)
            if old is not None and old.data is not None and old.number > (known.number if known else 0):
                beside = f"{path}.by-{old.writer}"
                if old.writer != agent_id and not self._why_not(beside, len(old.data)):
                    self._put(old.writer, beside, old.data)
        self._announce(
            agent_id, f"file {path}", f"{agent_id} wrote {SHARED_DIR}/{shown(path)} ({size} bytes)"
        )
        return "", new.number

    def _remove(self, agent_id: str, path: str, had: Copy) -> None:
        with self._lock:
            old = self._versions.get(path)
            if old is None or old.data is None or old.number != had.number:
                return
            self._put(agent_id, path, None)
        self._announce(agent_id, f"file {path}", f"{agent_id} removed {SHARED_DIR}/{shown(path)}")

    def _put(self, agent_id: str, path: str, data: bytes | None) -> Version:
        self._count += 1
        old = self._versions.get(path)
        for version, sign in ((old.data if old else None, -1), (data, 1)):
            if version is not None:
                self._files += sign
                self._bytes += sign * len(version)
        self._versions[path] = Version(self._count, agent_id, data)
        entry = {"time": utc_now(), "agent": agent_id, "step": self._step_of(agent_id), "file": path}
        self._log.append(entry | {"bytes": None if data is None else len(data)})
        return self._versions[path]

    def _why_not(self, path: str, size: int) -> str:
        """One line; empty for what can be shared."""
        if len(path) > _LONGEST_NAME or not _NAME.fullmatch(path):
            return f"a name has at most {_LONGEST_NAME} plain characters"
        if size > MAX_FILE_BYTES:
            return f"a file has at most {MAX_FILE_BYTES} bytes"
        with self._lock:
            old = self._versions.get(path)
            replaced = old.data if old else None
            files = self._files + (replaced is None)
            total = self._bytes + size - len(replaced or b"")
            if files > MOST_FILES or total > MAX_TOTAL_BYTES or self._count >= MOST_WRITES:
                return (
                    f"the folder is full: at most {MAX_TOTAL_BYTES} bytes in {MOST_FILES} files; remove some"
                )
        return ""

    def _give(self, agent_id: str, sandbox: RichSandbox) -> None:
        copies = self._copies[agent_id]
        with self._lock:
            newer = [
                (path, version)
                for path, version in self._versions.items()
                if (known := copies.get(path)) is None or (known.number and known.number != version.number)
            ]
        removed = [path for path, version in newer if version.data is None and path in copies]
        for path, version in newer:
            # What the agent has in its place may be a folder: that file it cannot have.
            with suppress(SandboxRefused):
                if version.data is None:
                    continue
                sandbox.write_file(f"{SHARED_DIR}/{path}", version.data)
                copies[path] = Copy(
                    hashlib.sha256(version.data).hexdigest(), version.number, len(version.data)
                )
        if removed:
            _remove_files(sandbox, removed)
            for path in removed:
                del copies[path]


def _read(sandbox: RichSandbox, path: str) -> bytes | None:
    """None where it is gone; never more than a file may have, whatever became of it since it was listed."""
    argv = ["head", "-c", str(MAX_FILE_BYTES + 1), f"./{path}"]
    done = sandbox.run(argv, cwd=SHARED_DIR, timeout_seconds=_SECONDS, output_limit=MAX_FILE_BYTES + 1)
    return done.stdout if done.returncode == 0 else None


def _remove_files(sandbox: RichSandbox, paths: Iterable[str]) -> None:
    sandbox.run(["rm", "-f", *(f"./{path}" for path in paths)], cwd=SHARED_DIR, timeout_seconds=_SECONDS)
