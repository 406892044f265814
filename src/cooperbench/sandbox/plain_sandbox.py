"""Sandboxes of backends that have only the methods of `SandboxProtocol`.

Everything goes over `exec`.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Sequence

from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.channel import READY, UNAVAILABLE, Channel, ChannelUnavailable
from cooperbench.sandbox.contract import ExecResult, SandboxProtocol, Stream, as_sandbox_errors

_MAX_ARGUMENT_LENGTH = 90_000
"""Characters per argument of `exec`; the kernel's limit is 128 KiB."""
_MAX_REASON_LENGTH = 200

# Arguments: file, base64.
_APPEND = 'printf %s "$2" | base64 -d >>"$1"'
# Arguments: channel.sh, scratch folder, the request as base64 or nothing if it is in a file beside
# that folder.
_SERVE_ONCE = """
if [ "$3" ]; then printf %s "$3" | base64 -d; else cat -- "$2.request"; fi |
  bash -c "$1" channel "$2" | base64 -w 0
rm -f -- "$2.request"
"""


class ExecTransport:
    """A `Transport` over `exec`: each request runs `channel.sh` once, which answers in base64.

    It does not keep deadlines, because `exec` cannot be interrupted. The time limit inside the
    sandbox still holds.
    """

    def __init__(self, sandbox: SandboxProtocol) -> None:
        self._sandbox = sandbox
        self._request = b""

    def send(self, data: bytes, deadline: float) -> None:  # noqa: ARG002  # part of Transport
        """Collect a request, which `receive` sends."""
        self._request += data

    def receive(self, deadline: float) -> bytes:  # noqa: ARG002  # part of Transport
        """Send the collected request and return the whole answer.

        Nothing if there is no request.
        """
        request, self._request = self._request, b""
        if not request:
            return b""
        return self._exchange(base64.b64encode(request).decode("ascii"))

    def close(self) -> None:
        """Do nothing: no process is left between requests."""

    def _exchange(self, request: str) -> bytes:
        scratch = f"/tmp/.cooperbench-{secrets.token_hex(8)}"  # noqa: S108  # a random name
        if len(request) > _MAX_ARGUMENT_LENGTH:
            self._copy_in(request, f"{scratch}.request")
            request = ""
        script = sandbox_script("channel.sh")
        result = self._exec("bash", "-c", _SERVE_ONCE, "cooperbench", script, scratch, request)
        try:
            answer = base64.b64decode(result.stdout_read().strip(), validate=True)
        except (binascii.Error, ValueError) as error:
            raise SandboxError(f"the sandbox's output did not come back whole ({error})") from error
        greeting, _, answer = answer.partition(b"\n")
        if greeting.startswith(UNAVAILABLE):
            raise ChannelUnavailable(greeting[len(UNAVAILABLE) :].decode("utf-8", "replace"))
        if greeting != READY:
            reason = _last_characters(result.stderr_read()) or "no output"
            raise SandboxDead(f"the sandbox does not answer: {reason}")
        return answer

    def _copy_in(self, encoded: str, path: str) -> None:
        """Write base64 to a file in the sandbox, decoded, in as many commands as it needs."""
        for start in range(0, len(encoded), _MAX_ARGUMENT_LENGTH):
            piece = encoded[start : start + _MAX_ARGUMENT_LENGTH]
            result = self._exec("bash", "-c", _APPEND, "cooperbench", path, piece)
            if result.returncode:
                reason = _last_characters(result.stderr_read())
                raise SandboxError(f"cannot copy into the sandbox: {reason}")

    def _exec(self, *args: str) -> ExecResult:
        with as_sandbox_errors("the sandbox failed"):
            return self._sandbox.exec(*args)


def _last_characters(text: str) -> str:
    return text.strip()[-_MAX_REASON_LENGTH:]


class PlainSandbox(Sandbox):
    """A `Sandbox` on top of one that has only `exec`. It has no streams."""

    def __init__(self, sandbox: SandboxProtocol, *, lifetime_seconds: float, workdir: str) -> None:
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir)
        self._sandbox = sandbox

    def open_stream(self, argv: Sequence[str]) -> Stream:
        """Raise SandboxError: there are no streams."""
        program = argv[0] if argv else ""
        raise SandboxError(f"this backend's sandboxes have no streams, which {program} needs")

    def death(self) -> SandboxDead:
        """Return the error for any use after its end.

        Never SandboxDestroyed: only the third-party backend knows why its sandboxes end, so no end
        is attributed to the agent.
        """
        return SandboxDead(f"the sandbox has ended: {self._end_reason}")

    def _open_channel(self) -> Channel:
        return Channel(ExecTransport(self._sandbox))

    def _remove(self) -> None:
        self._sandbox.terminate()
