"""Files in and out of a sandbox through Modal's filesystem API, for what is too large for a channel's request."""

from __future__ import annotations

import posixpath
import secrets
from typing import TYPE_CHECKING

from cooperbench.backends.modal.faults import words_of
from cooperbench.errors import SandboxError

if TYPE_CHECKING:
    import modal

    from cooperbench.backends.modal.account import Account

_FILE_SECONDS = 600.0
_PLACE = """
if [ -d "$2" ]; then echo "it is a folder" >&2; rm -f -- "$1"; exit 1; fi
chmod "$3" "$1" && mv -f -- "$1" "$2" && exit 0
rm -f -- "$1"
exit 1
"""


def upload(account: Account, remote: modal.Sandbox, path: str, data: bytes) -> str:
    """Bring the content next to where it belongs, and tell where; the command `place` then puts it there whole."""
    import modal

    beside = posixpath.join(posixpath.dirname(path), f".cooperbench-{secrets.token_hex(8)}")

    async def write() -> str:
        await remote.filesystem.write_bytes.aio(data, beside)
        return beside

    try:
        return account.call(f"writing {path}", write(), _FILE_SECONDS)
    except SandboxError as error:
        if isinstance(error.__cause__, modal.exception.SandboxFilesystemError):
            raise FileProblem(f"cannot write {path} in the sandbox: {words_of(error.__cause__)}") from error
        raise


def place(beside: str, path: str, mode: int) -> list[str]:
    return ["sh", "-c", _PLACE, "place", beside, path, f"{mode:o}"]


def read_whole(account: Account, remote: modal.Sandbox, path: str, most_bytes: int) -> bytes:
    import modal

    async def read() -> bytes:
        about = await remote.filesystem.stat.aio(path)
        if about.size > most_bytes:
            raise FileProblem(f"cannot read {path} in the sandbox: it is larger than {most_bytes} bytes")
        return await remote.filesystem.read_bytes.aio(path)

    try:
        return account.call(f"reading {path}", read(), _FILE_SECONDS)
    except SandboxError as error:
        cause = error.__cause__
        missing = (
            modal.exception.SandboxFilesystemNotFoundError,
            modal.exception.SandboxFilesystemNotADirectoryError,
        )
        if isinstance(cause, missing):
            raise FileNotFoundError(f"{path}: no such file in the sandbox") from error
        if isinstance(cause, modal.exception.SandboxFilesystemError):
            raise FileProblem(f"cannot read {path} in the sandbox: {words_of(cause)}") from error
        raise


class FileProblem(SandboxError):
    """The filesystem API answered, and the answer is no."""
