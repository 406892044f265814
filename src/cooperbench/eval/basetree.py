"""The base commit of a task, read out of an untouched sandbox: just what merging needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.errors import SandboxError
from cooperbench.eval.merge import GITLINK, BaseFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.eval.backends.base import RichSandbox

REPO_DIR = "/workspace/repo"
_SCRATCH = "/tmp/cooperbench-base"  # noqa: S108  # inside a sandbox
_SECONDS = 300
_GIT = (
    'git() { GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null command git -c safe.directory="*" '
    '-c core.fsmonitor=false -C "$1" "${@:2}"; }; '
)


class SandboxBaseTree:
    """`BaseTree` of HEAD in a sandbox's repository."""

    def __init__(self, sandbox: RichSandbox) -> None:
        self._sandbox = sandbox
        self._entries: dict[str, tuple[str, str]] | None = None

    def listing(self) -> Mapping[str, str]:
        return {path: mode for path, (mode, _) in self._listed().items()}

    def read(self, paths: Sequence[str]) -> Mapping[str, BaseFile]:
        entries = {path: self._listed()[path] for path in paths if path in self._listed()}
        blobs = sorted({oid for mode, oid in entries.values() if mode != GITLINK})
        contents = self._contents(blobs) if blobs else {}
        return {
            path: BaseFile(mode, oid.encode() if mode == GITLINK else contents[oid])
            for path, (mode, oid) in entries.items()
        }

    def _listed(self) -> dict[str, tuple[str, str]]:
        if self._entries is None:
            output = self._output(f'git "{REPO_DIR}" ls-tree -r -z --full-tree HEAD', b"")
            self._entries = {}
            for entry in filter(None, output.split(b"\0")):
                head, _, path = entry.partition(b"\t")
                mode, _, oid = head.decode().split(" ")
                self._entries[path.decode("utf-8", "surrogateescape")] = (mode, oid)
        return self._entries

    def _contents(self, blobs: Sequence[str]) -> dict[str, bytes]:
        request = "".join(f"{oid}\n" for oid in blobs).encode()
        output = self._output(f'git "{REPO_DIR}" cat-file --batch', request)
        contents, position = {}, 0
        for oid in blobs:
            end = output.index(b"\n", position)
            size = int(output[position:end].split()[2])
            contents[oid] = output[end + 1 : end + 1 + size]
            position = end + size + 2
        return contents

    def _output(self, command: str, stdin: bytes) -> bytes:
        """By way of a file: what a command prints is capped, a file is not."""
        script = f"{_GIT}{command} >{_SCRATCH}"
        done = self._sandbox.run(["bash", "-c", script], stdin=stdin, timeout_seconds=_SECONDS)
        if done.returncode != 0:
            raise SandboxError(f"{REPO_DIR} cannot be read: {done.stderr_read().strip()[-300:]}")
        output = self._sandbox.read_file(_SCRATCH)
        self._sandbox.run(["rm", "-f", _SCRATCH], timeout_seconds=60)
        return output
