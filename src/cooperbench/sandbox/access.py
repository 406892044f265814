"""The one door to sandboxes: whatever a backend can or cannot do, what comes out is a `RichSandbox`.

A backend that has only the three methods of the protocol gets `PlainSandbox`, which does everything by `exec`: each
call runs the channel's script for one request, passed in arguments and answered as base64, so that commands have the
same time limits, capped output and byte-exact data as everywhere else. That costs a few processes a call. It needs
bash and coreutils in the sandbox; streams need a real channel and are refused.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import secrets
import time
from typing import TYPE_CHECKING, Protocol, cast

from cooperbench.errors import CooperBenchError, SandboxDead, SandboxError
from cooperbench.sandbox.channel import Channel, ChannelUnavailable, channel_script
from cooperbench.sandbox.contract import DEFAULT_OUTPUT_LIMIT, capabilities_of, check_network

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.sandbox.contract import (
        CommandResult,
        EvalBackend,
        ExecResult,
        RichSandbox,
        Sandbox,
        SandboxOptions,
        Stream,
    )

_PIECE_SIZE = 90_000
"""Characters per argument; the kernel's limit is 128 KiB."""
_APPEND = 'printf %s "$2" | base64 -d >>"$1"'
_SERVE_ONCE = """
if [ "$3" ]; then printf %s "$3" | base64 -d; else cat -- "$2.request"; fi | bash -c "$1" channel "$2" | base64 -w 0
rm -f -- "$2.request"
"""
_READY = b"cooperbench-channel 1 ready\n"
_UNAVAILABLE = b"cooperbench-channel unavailable "


class _OptionsBackend(Protocol):
    def create_sandbox(
        self, image: str, timeout: int, workdir: str, *, options: SandboxOptions
    ) -> Sandbox: ...


def open_sandbox(
    backend: EvalBackend,
    image: str,
    *,
    timeout_seconds: int,
    workdir: str = "/workspace",
    options: SandboxOptions,
) -> RichSandbox:
    """Create a sandbox that lives for at most `timeout_seconds`.

    A network policy that a backend does not list is refused. A backend that takes no options cannot be asked for one:
    whoever wrote it decides about the network.
    """
    can = capabilities_of(backend)
    if can.options:
        check_network(can, options)
    try:
        if can.options:
            with_options = cast("_OptionsBackend", backend)
            sandbox = with_options.create_sandbox(image, timeout_seconds, workdir, options=options)
        else:
            sandbox = backend.create_sandbox(image, timeout=timeout_seconds, workdir=workdir)
    except CooperBenchError:
        raise
    except Exception as error:
        raise SandboxError(f"the backend could not make a sandbox of {image}: {error}") from error
    if can.rich:
        return cast("RichSandbox", sandbox)
    return PlainSandbox(sandbox, lifetime_seconds=timeout_seconds, workdir=workdir)


class PlainSandbox:
    """A `RichSandbox` without streams, over `exec` alone."""

    def __init__(self, sandbox: Sandbox, *, lifetime_seconds: float, workdir: str) -> None:
        self._sandbox = sandbox
        self._workdir = workdir
        self._deadline = time.monotonic() + lifetime_seconds
        self._terminated = False

    def exec(self, *args: str) -> ExecResult:
        self._check_alive()
        return _exec(self._sandbox, *args)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> CommandResult:
        left_seconds = self._deadline - time.monotonic()
        return self._channel().run(
            argv,
            timeout_seconds=left_seconds if timeout_seconds is None else timeout_seconds,
            cwd=posixpath.join(self._workdir, cwd or ""),
            env=env,
            stdin=stdin,
            output_limit=output_limit,
        )

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self._channel().write_file(posixpath.join(self._workdir, path), data, mode)

    def read_file(self, path: str) -> bytes:
        return self._channel().read_file(posixpath.join(self._workdir, path))

    def open_stream(self, argv: Sequence[str]) -> Stream:
        raise SandboxError(f"this backend's sandboxes have no streams, needed for {argv[0] if argv else ''}")

    def terminate(self) -> None:
        if not self._terminated:
            self._terminated = True
            self._sandbox.terminate()

    def _channel(self) -> Channel:
        """A channel for one request."""
        self._check_alive()
        channel = Channel(_ExecTransport(self._sandbox))
        channel.handshake()
        return channel

    def _check_alive(self) -> None:
        if self._terminated:
            raise SandboxDead("the sandbox has ended: it was terminated")


class _ExecTransport:
    """A `Transport` whose other end lives for one request: what is sent is kept until an answer is asked for.

    Deadlines are not kept here: `exec` cannot be interrupted. The time limit inside is.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._request = b""
        self._greeted = False
        self._answered = False

    def send(self, data: bytes, deadline: float) -> None:
        del deadline
        self._request += data

    def receive(self, deadline: float) -> bytes:
        del deadline
        if not self._greeted:
            self._greeted = True
            return _READY
        if self._answered:
            return b""
        self._answered = True
        return self._converse()

    def close(self) -> None:
        self._answered = True

    def _converse(self) -> bytes:
        scratch = f"/tmp/.cooperbench-{secrets.token_hex(8)}"  # noqa: S108
        request = base64.b64encode(self._request).decode("ascii")
        if len(request) > _PIECE_SIZE:
            for start in range(0, len(request), _PIECE_SIZE):
                piece = request[start : start + _PIECE_SIZE]
                done = _exec(self._sandbox, "bash", "-c", _APPEND, "cooperbench", f"{scratch}.request", piece)
                if done.returncode:
                    raise SandboxError(f"cannot copy into the sandbox: {done.stderr_read().strip()[-200:]}")
            request = ""
        script = channel_script()
        result = _exec(self._sandbox, "bash", "-c", _SERVE_ONCE, "cooperbench", script, scratch, request)
        try:
            answer = base64.b64decode(result.stdout_read().strip(), validate=True)
        except (binascii.Error, ValueError) as error:
            raise SandboxError(f"the sandbox's output did not come back whole ({error})") from error
        greeting, _, answer = answer.partition(b"\n")
        if greeting.startswith(_UNAVAILABLE):
            reason = greeting[len(_UNAVAILABLE) :].decode("utf-8", "replace")
            raise ChannelUnavailable(f"commands cannot be run in this sandbox: {reason}")
        if greeting + b"\n" != _READY:
            raise SandboxDead(
                f"the sandbox does not answer: {result.stderr_read().strip()[-200:] or 'no output'}"
            )
        return answer


def _exec(sandbox: Sandbox, *args: str) -> ExecResult:
    """Whatever a foreign backend raises is about the sandbox, not about the command."""
    try:
        return sandbox.exec(*args)
    except CooperBenchError:
        raise
    except Exception as error:
        raise SandboxError(f"the sandbox failed: {type(error).__name__}: {error}") from error
