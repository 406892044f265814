"""The harness's side of the worker protocol (docs/workers.md): a worker and its requests.

A request that cannot be executed is answered with an `error`. An error that ends the agent is sent
to the worker too, and then raised here.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from cooperbench.agents.base import REPO_DIR
from cooperbench.agents.session import DEFAULT_COMMAND_SECONDS, AgentSession
from cooperbench.errors import AgentFailure, InfraError, Interrupted, UserError
from cooperbench.gateway.access import Access
from cooperbench.models import Usage
from cooperbench.records import JsonObject
from cooperbench.sandbox.contract import CommandResult
from cooperbench.secrets import redact
from cooperbench.temporary import owned_prefix
from cooperbench.text import printable

PROTOCOL = 1
LINE_BYTES = 64 * 1024 * 1024
"""Maximum length of a line of a worker."""
LOG_BYTES = 16 * 1024 * 1024
"""Maximum length of the log with a worker's stderr."""
_LOG = "worker.log"
_INHERITED_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
)
_READ_BYTES = 1 << 16
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 5.0
"""Time that a worker has to save its files after the agent has ended."""
_END_SECONDS = 10.0
_DEFAULT_WAIT_SECONDS = 60.0


class BadRequest(Exception):
    """A request that the protocol does not allow. The worker gets an error and may go on."""


@dataclass(frozen=True)
class WorkerProgram:
    """The program of a worker."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    silence_seconds: float
    """How long it may send nothing."""

    @property
    def name(self) -> str:
        """The name of the program in error messages."""
        return Path(self.argv[-1]).name


def start_message(session: AgentSession, config: Any, environment: Mapping[str, str]) -> JsonObject:
    """Return the first message to a worker, with everything that it needs to know."""
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
    """A worker process. Leaving the `with` block ends it and everything that it started."""

    def __init__(
        self, session: AgentSession, program: WorkerProgram, access: Access | None = None
    ) -> None:
        self._session = session
        self._program = program
        self._access = access
        """The access of a worker that calls its model through the gateway."""
        self._unread = bytearray()
        self._last_stderr = ""
        self._stderr_thread = threading.Thread(
            target=self._copy_stderr, name="worker-stderr", daemon=True
        )
        self._home: tempfile.TemporaryDirectory[str]
        self._control: int
        """A pipe to the supervisor. Closing it ends the worker."""
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self._home = tempfile.TemporaryDirectory(
            prefix=owned_prefix("worker"), ignore_cleanup_errors=True
        )
        control_reader, self._control = os.pipe()
        supervisor = str(Path(__file__).with_name("supervisor.py"))
        argv = [sys.executable, "-I", "-S", "-B", supervisor, str(control_reader)]
        try:
            self._process = subprocess.Popen(
                [*argv, *self._program.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=self._home.name,
                env=self._environment(),
                pass_fds=[control_reader],
                start_new_session=True,  # the harness handles Ctrl-C
            )
        except OSError as error:
            problem = f"{self._program.argv[0]} cannot be started: {error.strerror}"
            raise self._session.remember(InfraError(problem)) from error
        finally:
            os.close(control_reader)
        self._stderr_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._control)
        self._wait(_END_SECONDS)
        self._process.kill()
        self._process.wait()
        self._stderr_thread.join(_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                _require_pipe(pipe).close()
        self._home.cleanup()

    def _environment(self) -> dict[str, str]:
        """Return the worker's variables, without keys, which come in its first message."""
        inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
        own = {"HOME": self._home.name, "TMPDIR": self._home.name, "PYTHONUNBUFFERED": "1"}
        return {**inherited, **own, **self._program.environment}

    def run(self, start: JsonObject) -> None:
        """Serve the worker until it submits.

        Raises:
            AgentFailure: The agent has ended in another way, or the worker has crashed.
            InfraError: The sandbox or the model's provider has failed.
            UserError: The worker reports a problem that the user must solve.
        """
        self._send(start)
        message = self._receive()
        while message.get("type", "request") == "request":
            self._serve(message)
            message = self._receive()
        text = str(message.get("message") or "")
        match message["type"]:
            case "done":
                self._wait(_GRACE_SECONDS)
                _raise_unless_submitted(str(message.get("status", "submitted")), text)
            case "failed" if message.get("kind") == "user":
                raise UserError(" ".join(text.split()))
            case "failed":
                # The harness sees failures of sandboxes itself. This one is the worker's own.
                reason = text or f"no reason given{self._last_stderr}"
                raise _crash(f"the worker failed: {reason}")
            case other:
                problem = f"the worker sent a message of an unknown type: {str(other)[:100]!r}"
                raise _crash(problem)

    def _serve(self, request: JsonObject) -> None:
        answer: JsonObject = {"id": request.get("id")}
        method = str(request.get("method"))
        try:
            params = _get_object(request, "params")
            with self._access.lock if self._access else contextlib.nullcontext():
                answer["result"] = _execute(self._session, method, params)
        except BadRequest as error:
            answer["error"] = {"kind": "bad_request", "message": str(error)}
        except FileNotFoundError:
            answer["error"] = {"kind": "not_found", "message": "no such file"}
        except (AgentFailure, InfraError) as error:
            kind = "limit" if isinstance(error, AgentFailure) else "sandbox"
            with contextlib.suppress(AgentFailure):
                self._send(answer | {"error": {"kind": kind, "message": str(error)}}, last=True)
                self._wait(_GRACE_SECONDS)
            raise
        self._send(answer)

    def _send(self, message: JsonObject, *, last: bool = False) -> None:
        """Send a message. The last one is sent even though the agent has ended."""
        pipe = _require_pipe(self._process.stdin).fileno()
        data = memoryview(json.dumps(message).encode() + b"\n")
        os.set_blocking(pipe, False)
        while data:
            if not last:
                self._check_running()
            if not select.select([], [pipe], [], _POLL_SECONDS)[1]:
                continue
            try:
                data = data[os.write(pipe, data) :]
            except BrokenPipeError:
                raise self._end_error() from None

    def _receive(self) -> JsonObject:
        line = self._read_line()
        try:
            return dict(json.loads(line))
        except (TypeError, ValueError):
            excerpt = printable(redact(line[:200].decode("utf-8", "replace")))
            raise _crash(
                f"{self._program.name} printed something else than a message "
                f"(its stdout is for the protocol): {excerpt}"
            ) from None

    def _read_line(self) -> bytes:
        pipe = _require_pipe(self._process.stdout).fileno()
        name, silence_seconds = self._program.name, self._program.silence_seconds
        searched = 0
        last_sign = time.monotonic()
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > LINE_BYTES:
                raise _crash(f"{name} sent a line of more than {LINE_BYTES >> 20} MB")
            self._check_running()
            if select.select([pipe], [], [], _POLL_SECONDS)[0]:
                data = os.read(pipe, _READ_BYTES)
                if not data:
                    raise self._end_error()
                self._unread += data
                last_sign = time.monotonic()
            elif self._access and self._access.waiting:
                # It waits for its model.
                last_sign = time.monotonic()
            elif time.monotonic() - last_sign > silence_seconds:
                problem = f"{name} has sent nothing for {silence_seconds:g} s"
                raise _crash(problem + self._last_stderr)
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def _check_running(self) -> None:
        if self._access and self._access.ended.is_set():
            raise self._access.outcome() or Interrupted("stopped")
        self._session.check_running()

    def _wait(self, seconds: float) -> None:
        """Give the worker time to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _end_error(self) -> AgentFailure:
        """Return the error for a worker that ended without its last message."""
        self._wait(_END_SECONDS)
        self._stderr_thread.join(_END_SECONDS)
        exit_code = self._process.returncode
        end = "closed its stdout"
        if exit_code is not None:
            end = f"ended with exit code {exit_code}"
        return _crash(f"{self._program.name} {end} unexpectedly{self._last_stderr}")

    def _copy_stderr(self) -> None:
        """Copy stderr to a log of limited length, and remember its last line for errors."""
        log = self._session.folder / _LOG
        available = LOG_BYTES
        with _require_pipe(self._process.stderr) as pipe:
            while data := pipe.readline(_READ_BYTES):
                text = redact(data.decode("utf-8", "replace"))
                if text.strip():
                    self._last_stderr = f": {printable(text.strip())[:300]}"
                if available <= 0:
                    continue
                available -= len(data)
                if available <= 0:
                    text = f"\n[… the rest is omitted, after {LOG_BYTES >> 20} MB]\n"
                # On a full disk the log is incomplete; other files report that error.
                with (
                    contextlib.suppress(OSError),
                    log.open("a", errors="backslashreplace") as file,
                ):
                    file.write(text)


def _crash(problem: str) -> AgentFailure:
    """Return the outcome of an agent whose program has failed."""
    return AgentFailure("crashed", problem)


def _raise_unless_submitted(status: str, message: str) -> None:
    if not re.fullmatch(r"\w{1,40}", status, re.ASCII):
        raise _crash(f"the worker ended with an invalid status: {status[:100]!r}")
    if status != "submitted":
        raise AgentFailure(status, message)


def _execute(session: AgentSession, method: str, params: JsonObject) -> JsonObject:
    """Execute a request, and return its result."""
    function = _METHODS.get(method)
    if function is None:
        raise BadRequest(f"no method {method[:100]!r}")
    return function(session, params) or {}


def _exec(session: AgentSession, params: JsonObject) -> JsonObject:
    result = session.execute(
        _get_text(params, "command"),
        timeout_seconds=_get_number(params, "timeout_seconds", DEFAULT_COMMAND_SECONDS),
        stdin=_get_bytes(params, "stdin_base64"),
        thought=str(params.get("thought") or ""),
        shown=str(params.get("shown") or ""),
        step=_is_step(params),
    )
    return _result(result)


def _read_file(session: AgentSession, params: JsonObject) -> JsonObject:
    content = session.read_file(_get_text(params, "path"))
    return {"content_base64": base64.b64encode(content).decode()}


def _write_file(session: AgentSession, params: JsonObject) -> None:
    data = _get_bytes(params, "content_base64")
    mode = 0o755 if params.get("executable") else 0o644
    session.write_file(_get_text(params, "path"), data, mode, step=_is_step(params))


def _send_message(session: AgentSession, params: JsonObject) -> JsonObject:
    to = str(params.get("to") or "all")
    return _result(session.send(_get_text(params, "text"), None if to == "all" else to))


def _incoming(session: AgentSession, _: JsonObject) -> JsonObject:
    messages = [
        {
            "from": message.sender,
            "text": message.text,
            "sequence": message.sequence,
            "timestamp": message.timestamp,
            "shown": message.shown,
        }
        for message in session.incoming()
    ]
    return {"messages": messages}


def _wait_for_message(session: AgentSession, params: JsonObject) -> JsonObject:
    seconds = _get_number(params, "timeout_seconds", _DEFAULT_WAIT_SECONDS)
    return {"arrived": session.wait_for_message(seconds)}


def _reply(session: AgentSession, params: JsonObject) -> None:
    usage = _usage(_get_object(params, "usage"))
    session.reply(_get_text(params, "text"), usage, **_get_object(params, "more"))


def _tell(session: AgentSession, params: JsonObject) -> None:
    session.tell(_get_text(params, "text"), str(params.get("kind") or "note"))


def _think(session: AgentSession, params: JsonObject) -> None:
    session.think(_get_text(params, "text"))


def _check_limits(session: AgentSession, _: JsonObject) -> None:
    session.check_limits()


_METHODS: dict[str, Callable[[AgentSession, JsonObject], JsonObject | None]] = {
    "exec": _exec,
    "read_file": _read_file,
    "write_file": _write_file,
    "send_message": _send_message,
    "incoming": _incoming,
    "wait_for_message": _wait_for_message,
    "reply": _reply,
    "tell": _tell,
    "think": _think,
    "check_limits": _check_limits,
}


def _is_step(params: JsonObject) -> bool:
    return bool(params.get("step", True))


def _result(result: CommandResult) -> JsonObject:
    return {
        "returncode": result.returncode,
        "stdout": result.stdout_read(),
        "stderr": result.stderr_read(),
        "timed_out": result.timed_out,
        "truncated": bool(result.stdout_cut or result.stderr_cut),
    }


def _usage(usage: JsonObject) -> Usage:
    return Usage(
        cost=_get_number(usage, "cost"),
        prompt_tokens=int(_get_number(usage, "prompt_tokens")),
        completion_tokens=int(_get_number(usage, "completion_tokens")),
        cached_tokens=int(_get_number(usage, "cached_tokens")),
        calls=1,
        model_seconds=_get_number(usage, "model_seconds"),
        unpriced_calls=1 if usage.get("unpriced") else 0,
    )


def _get_text(params: JsonObject, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{name} is missing or not a text")
    if name in ("path", "command") and "\0" in value:
        raise BadRequest(f"{name} contains a zero byte")
    return value


def _get_object(params: JsonObject, name: str) -> JsonObject:
    value = params.get(name) or {}
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is not an object")
    return value


def _get_number(params: JsonObject, name: str, default: float = 0.0) -> float:
    value = default if params.get(name) is None else params[name]
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadRequest(f"{name} is not a number of 0 or more")
    return value


def _get_bytes(params: JsonObject, name: str) -> bytes:
    try:
        return base64.b64decode(params.get(name) or "", validate=True)
    except (ValueError, TypeError):
        raise BadRequest(f"{name} is not base64") from None


def _require_pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
