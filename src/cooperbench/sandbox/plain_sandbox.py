"""Sandboxes of backends that have only the three methods of the protocol: everything goes over `exec`."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Sequence

from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.channel import READY, UNAVAILABLE, Channel, ChannelUnavailable
from cooperbench.sandbox.contract import ExecResult, SandboxProtocol, Stream, foreign_errors

_PIECE_SIZE = 90_000
"""Characters per argument; the kernel's limit is 128 KiB."""
_APPEND = 'printf %s "$2" | base64 -d >>"$1"'
_SERVE_ONCE = """
if [ "$3" ]; then printf %s "$3" | base64 -d; else cat -- "$2.request"; fi | bash -c "$1" channel "$2" | base64 -w 0
rm -f -- "$2.request"
"""


class ExecTransport:
    """A Transport for sandboxes that have only `exec`: each request runs `channel.sh` once, answered as base64.

    Deadlines are not kept here, since `exec` cannot be interrupted; the time limit inside is.
    """

    def __init__(self, sandbox: SandboxProtocol) -> None:
        self._sandbox = sandbox
        self._request = b""

    def send(self, data: bytes, deadline: float) -> None:  # noqa: ARG002  # a Transport's
        self._request += data

    def receive(self, deadline: float) -> bytes:  # noqa: ARG002  # a Transport's
        request, self._request = self._request, b""
        return self._exchange(base64.b64encode(request).decode("ascii")) if request else b""

    def close(self) -> None:
        """Nothing is held between requests."""

    def _exchange(self, request: str) -> bytes:
        scratch = f"/tmp/.cooperbench-{secrets.token_hex(8)}"  # noqa: S108
        if len(request) > _PIECE_SIZE:
            for start in range(0, len(request), _PIECE_SIZE):
                piece = request[start : start + _PIECE_SIZE]
                done = self._exec("bash", "-c", _APPEND, "cooperbench", f"{scratch}.request", piece)
                if done.returncode:
                    raise SandboxError(
                        f"cannot copy into the sandbox: {done.stderr_read().strip()[-200:]}"
                    )
            request = ""
        result = self._exec(
            "bash", "-c", _SERVE_ONCE, "cooperbench", sandbox_script("channel.sh"), scratch, request
        )
        try:
            answer = base64.b64decode(result.stdout_read().strip(), validate=True)
        except (binascii.Error, ValueError) as error:
            raise SandboxError(f"the sandbox's output did not come back whole ({error})") from error
        greeting, _, answer = answer.partition(b"\n")
        if greeting.startswith(UNAVAILABLE):
            raise ChannelUnavailable(greeting[len(UNAVAILABLE) :].decode("utf-8", "replace"))
        if greeting != READY:
            said = result.stderr_read().strip()[-200:] or "no output"
            raise SandboxDead(f"the sandbox does not answer: {said}")
        return answer

    def _exec(self, *args: str) -> ExecResult:
        with foreign_errors("the sandbox failed"):
            return self._sandbox.exec(*args)


class PlainSandbox(Sandbox):
    """Without streams."""

    def __init__(self, sandbox: SandboxProtocol, *, lifetime_seconds: float, workdir: str) -> None:
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir)
        self._sandbox = sandbox

    def _open_channel(self) -> Channel:
        return Channel(ExecTransport(self._sandbox))

    def open_stream(self, argv: Sequence[str]) -> Stream:
        raise SandboxError(
            f"this backend's sandboxes have no streams, needed for {argv[0] if argv else ''}"
        )

    def _remove(self) -> None:
        self._sandbox.terminate()

    def death(self) -> SandboxDead:
        # What becomes of its sandboxes only their backend knows: no end is put down to who worked in it.
        return SandboxDead(f"the sandbox has ended: {self._end_reason}")
