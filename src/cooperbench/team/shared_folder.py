"""A folder that all agents of a team see: the harness copies files between their sandboxes, before each step of an
agent and with each of its messages and tool calls. For each file the last writer wins, and a change wins over a
removal. What is over a limit stays with the agent, which is told so.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from cooperbench.errors import SandboxError, SandboxRefused
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.team.tools import shown

SHARED_DIR = "/workspace/shared"
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 16 << 20
MAX_FILES = 500
_SECONDS = 10
_LARGE = "large"
_LIST = f"""
mkdir -p {SHARED_DIR} && cd {SHARED_DIR} || exit 1
find . -type f ! -size -{MAX_FILE_BYTES // 1024 + 1}k -exec printf '{_LARGE}  %s\\n' {{}} + &&
find . -type f -size -{MAX_FILE_BYTES // 1024 + 1}k -exec sha256sum {{}} +
"""
_LINE = re.compile(rf"([0-9a-f]{{64}}|{_LARGE})  \./(.+)")
_NAME = re.compile(r"(?!.*(^|/)\.{0,2}(/|$))[^\x00-\x1f\\]{1,200}")
"""Relative and without `..`: the agent's own sandbox lists its files, and they are written into those of others."""


class File(NamedTuple):
    version: int
    """A later one is higher, over all files."""
    data: bytes | None
    """None: it was removed."""


class Copy(NamedTuple):
    """What an agent has of a file."""

    digest: str
    version: int | None
    """None: it is not shared."""
    removals: int = 0
    """How many there had been by then: after more of them there may be room for it."""


class SharedFolder:
    """All methods may be called from several threads."""

    def __init__(
        self, announce: Callable[[str, str, str], None], tell: Callable[[str, str, str], None]
    ) -> None:
        """Both take agent, subject and text; what one did is announced to the others, or told to itself."""
        self._announce = announce
        self._tell = tell
        self._files: dict[str, File] = {}
        self._versions = 0
        self._removals = 0
        self._copies: dict[str, dict[str, Copy]] = {}
        self._sandboxes: dict[str, tuple[Sandbox, threading.Lock]] = {}
        self._lock = threading.Lock()

    def attach(self, agent_id: str, sandbox: Sandbox) -> None:
        self._copies[agent_id] = {}
        self._sandboxes[agent_id] = (sandbox, threading.Lock())
        self.sync(agent_id)

    def detach(self, agent_id: str) -> None:
        """The agent is done; what it wrote last still goes to the others, if its sandbox is still there."""
        with suppress(SandboxError):
            self.sync(agent_id)
        self._sandboxes.pop(agent_id, None)

    def sync(self, agent_id: str) -> None:
        """Damage that an agent does to its folder or tools is ignored; errors of its sandbox pass through."""
        sandbox, lock = self._sandboxes.get(agent_id, (None, threading.Lock()))
        with lock, suppress(SandboxRefused):
            if sandbox is not None and self._take(agent_id, sandbox):
                self._give(self._copies[agent_id], sandbox)

    def _take(self, agent_id: str, sandbox: Sandbox) -> bool:
        """What the agent has changed; False where its folder could not be listed."""
        done = sandbox.run(
            ["sh", "-c", _LIST], timeout_seconds=_SECONDS, output_limit=4_000 * MAX_FILES
        )
        if done.returncode != 0 or done.stdout_cut:
            problem = f"{SHARED_DIR} is not shared: it cannot be listed, or has too many files"
            self._tell(agent_id, "shared", problem)
            return False
        lines = map(_LINE.fullmatch, done.stdout_read().splitlines())
        listed = {line[2]: line[1] for line in lines if line}
        copies, refused, reason = self._copies[agent_id], list[str](), ""
        for path in copies.keys() - listed.keys():
            self._remove(agent_id, path, copies.pop(path))
        changed = [
            path for path, digest in listed.items() if self._is_changed(copies.get(path), digest)
        ]
        for path in sorted(changed)[:MAX_FILES]:
            argv, limit = ["head", "-c", str(MAX_FILE_BYTES + 1), f"./{path}"], MAX_FILE_BYTES + 1
            read = sandbox.run(argv, cwd=SHARED_DIR, timeout_seconds=_SECONDS, output_limit=limit)
            if read.returncode != 0:
                continue
            try:
                version = self._write(agent_id, path, read.stdout)
            except ValueError as problem:
                version, reason = None, reason or str(problem)
                refused.append(shown(path))
            copies[path] = Copy(listed[path], version, self._removals)
        if refused:
            names = ", ".join(refused[:3]) + (" …" if len(refused) > 3 else "")
            self._tell(agent_id, "shared", f"Not shared from {SHARED_DIR}: {names}: {reason}")
        return True

    def _is_changed(self, copy: Copy | None, digest: str) -> bool:
        if copy is None or copy.digest != digest:
            return True
        return copy.version is None and copy.removals != self._removals

    def _write(self, agent_id: str, path: str, data: bytes) -> int:
        """The number of its version; ValueError says why it is not shared."""
        if not _NAME.fullmatch(path):
            raise ValueError("a name has at most 200 plain characters")
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"a file has at most {MAX_FILE_BYTES} bytes")
        with self._lock:
            if path in self._files and self._files[path].data == data:
                return self._files[path].version
            kept = {name: one.data for name, one in self._files.items() if one.data is not None}
            kept[path] = data
            if len(kept) > MAX_FILES or sum(map(len, kept.values())) > MAX_TOTAL_BYTES:
                limits = f"at most {MAX_TOTAL_BYTES} bytes in {MAX_FILES} files"
                raise ValueError(f"the folder is full: {limits}; remove some")
            version = self._put(path, data)
        did = f"{agent_id} wrote {SHARED_DIR}/{shown(path)} ({len(data)} bytes)"
        self._announce(agent_id, f"file {path}", did)
        return version

    def _remove(self, agent_id: str, path: str, had: Copy) -> None:
        with self._lock:
            if had.version is None or self._files[path].version != had.version:
                return
            self._put(path, None)
            self._removals += 1
        self._announce(agent_id, f"file {path}", f"{agent_id} removed {SHARED_DIR}/{shown(path)}")

    def _put(self, path: str, data: bytes | None) -> int:
        self._versions += 1
        self._files[path] = File(self._versions, data)
        return self._versions

    def _give(self, copies: dict[str, Copy], sandbox: Sandbox) -> None:
        with self._lock:
            files = list(self._files.items())
        for path, file in files:
            copy = copies.get(path)
            if copy is not None and copy.version in (None, file.version):
                continue
            if file.data is not None:
                # Where the agent has a folder of this name there cannot be a file.
                with suppress(SandboxRefused):
                    sandbox.write_file(f"{SHARED_DIR}/{path}", file.data)
                    copies[path] = Copy(hashlib.sha256(file.data).hexdigest(), file.version)
            elif copy is not None:
                sandbox.run(["rm", "-f", f"./{path}"], cwd=SHARED_DIR, timeout_seconds=_SECONDS)
                del copies[path]
