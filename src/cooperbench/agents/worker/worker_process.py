"""Our side of the worker protocol (docs/workers.md): a running worker, and the answers to its requests.

What cannot be done is an answer with an `error`; what ends the agent is told to the worker too, and then raised here.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

from cooperbench.agents.base import REPO_DIR
from cooperbench.agents.session import DEFAULT_COMMAND_SECONDS, AgentSession
from cooperbench.errors import AgentFailure, InfraError, Interrupted, UserError
from cooperbench.gateway.access import Access
from cooperbench.models import Usage
from cooperbench.sandbox.contract import CommandResult
from cooperbench.secrets import redact
from cooperbench.temporary import owned_prefix
from cooperbench.text import printable

PROTOCOL = 1
LINE_BYTES = 64 * 1024 * 1024
"""The longest line that is taken from a worker."""
LOG_BYTES = 16 * 1024 * 1024
"""What is kept of its stderr."""
_LOG = "worker.log"
_PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
)  # fmt: skip
_READ_BYTES = 1 << 16
_WAKE_SECONDS = 0.2
_GRACE_SECONDS = 5.0
"""What a worker has to save its files once the agent has ended."""
_END_SECONDS = 10.0


class BadRequest(Exception):
    """The worker asked for something that is not in the protocol; it is told so."""


def start_message(
    session: AgentSession, config: Any, environment: Mapping[str, str]
) -> dict[str, Any]:
    """The first line that a worker reads: all that it needs to know."""
    return {
        "type": "start",
        "protocol": PROTOCOL,
        "agent_id": session.slot.agent_id,
        "setting": session.setting,
        "prompt": session.prompt,
        "repo_dir": REPO_DIR,
        "model": session.model,
        "base_url": session.base_url,
        "config": config,
        "limits": asdict(session.limits),
        "teammates": list(session.teammates),
        "environment": dict(environment),
        "folder": str(session.folder.resolve()),
    }


class Worker:
    """Runs from the beginning; leaving the `with` block ends it and everything that it started."""

    def __init__(
        self,
        session: AgentSession,
        argv: Sequence[str],
        environment: Mapping[str, str],
        silence_seconds: float,
        access: Access | None = None,
    ) -> None:
        self._session = session
        self._access = access
        """Of a worker whose model is asked through the gateway."""
        self._silence_seconds = silence_seconds
        self._name = Path(argv[-1]).name
        self._home = tempfile.TemporaryDirectory(
            prefix=owned_prefix("worker"), ignore_cleanup_errors=True
        )
        self._unread = bytearray()
        self._last_stderr = ""
        told, self._control = os.pipe()
        supervisor = [
            sys.executable,
            "-I",
            "-S",
            "-B",
            str(Path(__file__).with_name("supervisor.py")),
        ]
        # No key of the user's: those that the model needs come in the first message.
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        own = {"HOME": self._home.name, "TMPDIR": self._home.name, "PYTHONUNBUFFERED": "1"}
        try:
            self._process = subprocess.Popen(
                [*supervisor, str(told), *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=self._home.name,
                env={**kept, **own, **environment},
                pass_fds=[told],
                start_new_session=True,  # Ctrl-C is the harness's to handle
            )
        except OSError as error:
            raise InfraError(f"{argv[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(told)
        self._stderr = threading.Thread(target=self._copy_stderr, name="worker-stderr", daemon=True)
        self._stderr.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._control)
        self._wait(_END_SECONDS)
        self._process.kill()
        self._process.wait()
        self._stderr.join(_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                _open(pipe).close()
        self._home.cleanup()

    def run(self, start: Mapping[str, Any]) -> None:
        """Returns when the worker submits; every other end is raised, as an adapter does it."""
        self._send(start)
        while (message := self._receive()).get("type", "request") == "request":
            self._serve(message)
        text = str(message.get("message") or "")
        match message["type"]:
            case "done":
                self._wait(_GRACE_SECONDS)
                status = str(message.get("status", "submitted"))
                if not re.fullmatch(r"\w{1,40}", status, re.ASCII):
                    raise InfraError(
                        f"the worker ended with a status that is none: {status[:100]!r}"
                    )
                if status != "submitted":
                    raise AgentFailure(status, text)
            case "failed" if message.get("kind") == "user":
                raise UserError(" ".join(text.split()))
            case "failed":
                raise InfraError(
                    f"the worker failed: {text or 'no reason given' + self._last_stderr}"
                )
            case other:
                raise InfraError(
                    f"the worker sent a message of an unknown type: {str(other)[:100]!r}"
                )

    def _serve(self, request: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request.get("id")}
        try:
            params = _object(request, "params")
            with self._access.lock if self._access else contextlib.nullcontext():
                answer["result"] = _carry_out(self._session, str(request.get("method")), params)
        except BadRequest as error:
            answer["error"] = {"kind": "bad_request", "message": str(error)}
        except FileNotFoundError:
            answer["error"] = {"kind": "not_found", "message": "no such file"}
        except (AgentFailure, InfraError) as error:
            kind = "limit" if isinstance(error, AgentFailure) else "sandbox"
            with contextlib.suppress(InfraError):
                self._send(answer | {"error": {"kind": kind, "message": str(error)}}, last=True)
                self._wait(_GRACE_SECONDS)
            raise
        self._send(answer)

    def _send(self, message: Mapping[str, Any], *, last: bool = False) -> None:
        """The last one is sent although the agent has ended."""
        pipe = _open(self._process.stdin).fileno()
        data = memoryview(json.dumps(message).encode() + b"\n")
        os.set_blocking(pipe, False)
        while data:
            if not last:
                self._check_running()
            if not select.select([], [pipe], [], _WAKE_SECONDS)[1]:
                continue
            try:
                data = data[os.write(pipe, data) :]
            except BrokenPipeError:
                raise self._ended() from None

    def _receive(self) -> dict[str, Any]:
        pipe = _open(self._process.stdout).fileno()
        searched, heard_at = 0, time.monotonic()
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > LINE_BYTES:
                raise InfraError(f"{self._name} sent a line of more than {LINE_BYTES >> 20} MB")
            self._check_running()
            if select.select([pipe], [], [], _WAKE_SECONDS)[0]:
                piece = os.read(pipe, _READ_BYTES)
                if not piece:
                    raise self._ended()
                self._unread += piece
                heard_at = time.monotonic()
            elif self._access and self._access.waiting:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > self._silence_seconds:
                silence = f"{self._name} has not been heard of for {self._silence_seconds:g} s"
                raise InfraError(silence + self._last_stderr)
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        try:
            return dict(json.loads(line))
        except (TypeError, ValueError):
            shown = printable(redact(line[:200].decode("utf-8", "replace")))
            raise InfraError(
                f"{self._name} printed what is no message (its stdout is for the protocol): {shown}"
            ) from None

    def _check_running(self) -> None:
        if self._access and self._access.ended.is_set():
            raise self._access.outcome() or Interrupted("stopped")
        self._session.check_running()

    def _wait(self, seconds: float) -> None:
        """Give it time to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _ended(self) -> InfraError:
        self._wait(_END_SECONDS)
        self._stderr.join(_END_SECONDS)
        code = self._process.returncode
        how = "closed its stdout" if code is None else f"ended with exit code {code}"
        return InfraError(f"{self._name} {how} in mid-work{self._last_stderr}")

    def _copy_stderr(self) -> None:
        """Into a file that does not grow without end; its last line is kept for errors."""
        log, left = self._session.folder / _LOG, LOG_BYTES
        with _open(self._process.stderr) as pipe:
            while piece := pipe.readline(_READ_BYTES):
                text = redact(piece.decode("utf-8", "replace"))
                if text.strip():
                    self._last_stderr = f": {printable(text.strip())[:300]}"
                if left > 0:
                    left -= len(piece)
                    cut = f"\n[… the rest is left out, after {LOG_BYTES >> 20} MB]\n"
                    # On a full disk it is incomplete; what matters more says so.
                    with (
                        contextlib.suppress(OSError),
                        log.open("a", errors="backslashreplace") as file,
                    ):
                        file.write(text if left > 0 else cut)


def _carry_out(session: AgentSession, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    step = bool(params.get("step", True))
    match method:
        case "exec":
            result = session.execute(
                _text(params, "command"),
                timeout_seconds=_number(params, "timeout_seconds", DEFAULT_COMMAND_SECONDS),
                stdin=_decoded(params, "stdin_base64"),
                thought=str(params.get("thought") or ""),
                shown=str(params.get("shown") or ""),
                step=step,
            )
            return _result(result)
        case "read_file":
            content = session.read_file(_text(params, "path"))
            return {"content_base64": base64.b64encode(content).decode()}
        case "write_file":
            data, mode = (
                _decoded(params, "content_base64"),
                0o755 if params.get("executable") else 0o644,
            )
            session.write_file(_text(params, "path"), data, mode, step=step)
        case "send_message":
            to = str(params.get("to") or "all")
            return _result(session.send(_text(params, "text"), None if to == "all" else to))
        case "incoming":
            names = ("text", "sequence", "timestamp", "shown")
            return {
                "messages": [
                    {"from": one.sender} | {name: getattr(one, name) for name in names}
                    for one in session.incoming()
                ]
            }
        case "wait_for_message":
            return {"arrived": session.wait_for_message(_number(params, "timeout_seconds", 60.0))}
        case "reply":
            usage, more = _usage(_object(params, "usage")), _object(params, "more")
            session.reply(_text(params, "text"), usage, **more)
        case "tell":
            session.tell(_text(params, "text"), str(params.get("kind") or "note"))
        case "think":
            session.think(_text(params, "text"))
        case "check_limits":
            session.check_limits()
        case _:
            raise BadRequest(f"no method {method[:100]!r}")
    return {}


def _result(result: CommandResult) -> dict[str, Any]:
    return {
        "returncode": result.returncode,
        "stdout": result.stdout_read(),
        "stderr": result.stderr_read(),
        "timed_out": result.timed_out,
        "truncated": bool(result.stdout_cut or result.stderr_cut),
    }


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        cost=_number(usage, "cost"),
        prompt_tokens=int(_number(usage, "prompt_tokens")),
        completion_tokens=int(_number(usage, "completion_tokens")),
        cached_tokens=int(_number(usage, "cached_tokens")),
        calls=1,
        model_seconds=_number(usage, "model_seconds"),
        unpriced_calls=1 if usage.get("unpriced") else 0,
    )


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{name} is missing, or no text")
    if name in ("path", "command") and "\0" in value:
        raise BadRequest(f"{name} has a zero byte in it")
    return value


def _object(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = params.get(name) or {}
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is no object")
    return value


def _number(params: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    value = default if params.get(name) is None else params[name]
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadRequest(f"{name} is no number of 0 or more")
    return value


def _decoded(params: Mapping[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(params.get(name) or "", validate=True)
    except (ValueError, TypeError):
        raise BadRequest(f"{name} is no base64") from None


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
