"""The folder that all agents of a team share.

The harness copies files between the sandboxes before each step of an agent and with each of its
messages and tool calls. For each file the last writer wins, and a change wins over a removal. A
file that exceeds a limit is not shared, and its writer is notified.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from cooperbench.errors import SandboxError, SandboxRefused
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.team.teammates import one_line

SHARED_DIR = "/workspace/shared"
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 16 << 20
MAX_FILES = 500
_SECONDS = 10
_MAX_REFUSALS_NAMED = 3
_LARGE = "large"
_LIST = f"""
mkdir -p {SHARED_DIR} && cd {SHARED_DIR} || exit 1
find . -type f ! -size -{MAX_FILE_BYTES // 1024 + 1}k -exec printf '{_LARGE}  %s\\n' {{}} + &&
find . -type f -size -{MAX_FILE_BYTES // 1024 + 1}k -exec sha256sum {{}} +
"""
_LINE = re.compile(rf"([0-9a-f]{{64}}|{_LARGE})  \./(.+)")
_NAME = re.compile(r"(?!.*(^|/)\.{0,2}(/|$))[^\x00-\x1f\\]{1,200}")
"""A relative path without `..`: agents choose the names of files in other sandboxes."""


class File(NamedTuple):
    """The shared version of a file."""

    version: int
    """Number of the version; it increases with every change to any file."""
    data: bytes | None
    """The content; None if the file was removed."""


class Copy(NamedTuple):
    """The version of a file that one agent has."""

    digest: str
    version: int | None
    """The shared version; None if the file is not shared."""
    removals: int = 0
    """Removals counted so far. After another one there may be room to share the file."""


class SharedFolder:
    """The shared files of a team. All methods may be called from several threads."""

    def __init__(
        self,
        notify_others: Callable[[str, str, str], None],
        notify: Callable[[str, str, str], None],
    ) -> None:
        """Store the callbacks, which both take agent id, subject and text.

        Args:
            notify_others: Tells the other agents what an agent did.
            notify: Tells an agent what became of its own files.
        """
        self._notify_others = notify_others
        self._notify = notify
        self._files: dict[str, File] = {}
        self._versions = 0
        self._removals = 0
        self._copies: dict[str, dict[str, Copy]] = {}
        self._sandboxes: dict[str, tuple[Sandbox, threading.Lock]] = {}
        self._lock = threading.Lock()

    def attach(self, agent_id: str, sandbox: Sandbox) -> None:
        """Start sharing with an agent's sandbox."""
        self._copies[agent_id] = {}
        self._sandboxes[agent_id] = (sandbox, threading.Lock())
        self.sync(agent_id)

    def detach(self, agent_id: str) -> None:
        """Stop sharing with a finished agent, after sharing what it wrote last."""
        with suppress(SandboxError):
            self.sync(agent_id)
        self._sandboxes.pop(agent_id, None)

    def sync(self, agent_id: str) -> None:
        """Copy an agent's changes to the shared files, and the shared files to the agent.

        Damage that the agent does to its folder or tools is ignored; other errors are raised.
        """
        entry = self._sandboxes.get(agent_id)
        if entry is None:
            return
        sandbox, lock = entry
        with lock, suppress(SandboxRefused):
            if self._upload(agent_id, sandbox):
                self._download(self._copies[agent_id], sandbox)

    def _upload(self, agent_id: str, sandbox: Sandbox) -> bool:
        """Take over what the agent has changed; return False if its folder cannot be listed."""
        listed = self._list_files(agent_id, sandbox)
        if listed is None:
            return False
        copies = self._copies[agent_id]
        for path in copies.keys() - listed.keys():
            self._remove(agent_id, path, copies.pop(path))
        changed = [
            path for path, digest in listed.items() if self._is_changed(copies.get(path), digest)
        ]
        refusals: dict[str, str] = {}
        for path in sorted(changed)[:MAX_FILES]:
            data = _read_shared_file(sandbox, path)
            if data is None:
                continue
            version = None
            try:
                version = self._write(agent_id, path, data)
            except ValueError as error:
                refusals[path] = str(error)
            copies[path] = Copy(listed[path], version, self._removals)
        if refusals:
            self._notify_of_refusals(agent_id, refusals)
        return True

    def _list_files(self, agent_id: str, sandbox: Sandbox) -> dict[str, str] | None:
        """Return the digests of an agent's files by path; None if they cannot be listed."""
        done = sandbox.run(
            ["sh", "-c", _LIST], timeout_seconds=_SECONDS, output_limit=4_000 * MAX_FILES
        )
        if done.returncode != 0 or done.stdout_cut:
            text = f"{SHARED_DIR} is not shared: it cannot be listed, or has too many files"
            self._notify(agent_id, "shared", text)
            return None
        listed = {}
        for line in done.stdout_read().splitlines():
            if match := _LINE.fullmatch(line):
                digest, path = match.groups()
                listed[path] = digest
        return listed

    def _notify_of_refusals(self, agent_id: str, refusals: Mapping[str, str]) -> None:
        """Tell an agent which of its files are not shared, and the first reason."""
        names = ", ".join([one_line(path) for path in refusals][:_MAX_REFUSALS_NAMED])
        if len(refusals) > _MAX_REFUSALS_NAMED:
            names += " …"
        reason = next(iter(refusals.values()))
        self._notify(agent_id, "shared", f"Not shared from {SHARED_DIR}: {names}: {reason}")

    def _is_changed(self, copy: Copy | None, digest: str) -> bool:
        if copy is None or copy.digest != digest:
            return True
        return copy.version is None and copy.removals != self._removals

    def _write(self, agent_id: str, path: str, data: bytes) -> int:
        """Share a file and return its version; ValueError says why it cannot be shared."""
        if not _NAME.fullmatch(path):
            raise ValueError("a name has at most 200 plain characters")
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"a file has at most {MAX_FILE_BYTES} bytes")
        with self._lock:
            if path in self._files and self._files[path].data == data:
                return self._files[path].version
            sizes = {
                name: len(file.data) for name, file in self._files.items() if file.data is not None
            }
            sizes[path] = len(data)
            if len(sizes) > MAX_FILES or sum(sizes.values()) > MAX_TOTAL_BYTES:
                limits = f"at most {MAX_TOTAL_BYTES} bytes in {MAX_FILES} files"
                raise ValueError(f"the folder is full: {limits}; remove some")
            version = self._store(path, data)
        text = f"{agent_id} wrote {SHARED_DIR}/{one_line(path)} ({len(data)} bytes)"
        self._notify_others(agent_id, f"file {path}", text)
        return version

    def _remove(self, agent_id: str, path: str, copy: Copy) -> None:
        """Remove a shared file that an agent has deleted, unless it has a newer version."""
        with self._lock:
            if copy.version is None or self._files[path].version != copy.version:
                return
            self._store(path, None)
            self._removals += 1
        text = f"{agent_id} removed {SHARED_DIR}/{one_line(path)}"
        self._notify_others(agent_id, f"file {path}", text)

    def _store(self, path: str, data: bytes | None) -> int:
        self._versions += 1
        self._files[path] = File(self._versions, data)
        return self._versions

    def _download(self, copies: dict[str, Copy], sandbox: Sandbox) -> None:
        """Write newer versions of shared files to an agent's sandbox."""
        with self._lock:
            files = list(self._files.items())
        for path, file in files:
            copy = copies.get(path)
            if copy is not None and copy.version in (None, file.version):
                continue
            if file.data is not None:
                # Refused if the agent has a folder with this name.
                with suppress(SandboxRefused):
                    sandbox.write_file(f"{SHARED_DIR}/{path}", file.data)
                    copies[path] = Copy(hashlib.sha256(file.data).hexdigest(), file.version)
            elif copy is not None:
                sandbox.run(["rm", "-f", f"./{path}"], cwd=SHARED_DIR, timeout_seconds=_SECONDS)
                del copies[path]


def _read_shared_file(sandbox: Sandbox, path: str) -> bytes | None:
    """Return a file's content, at most one byte over the limit; None if it cannot be read."""
    limit = MAX_FILE_BYTES + 1
    argv = ["head", "-c", str(limit), f"./{path}"]
    done = sandbox.run(argv, cwd=SHARED_DIR, timeout_seconds=_SECONDS, output_limit=limit)
    return done.stdout if done.returncode == 0 else None
