"""Our side of the worker protocol: what a worker may ask for, and what it gets. docs/workers.md is for people.

Requests are carried out one after the other, in the order in which they came. What cannot be done is an answer with an
`error`; what ends the agent (a limit, a stop, a dead sandbox) is told to the worker too, and then raised here.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, NoReturn

from cooperbench.agents.base import REPO_DIR
from cooperbench.agents.session import DEFAULT_COMMAND_SECONDS
from cooperbench.errors import AgentFailure, InfraError, UserError
from cooperbench.models import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cooperbench.agents.session import Session
    from cooperbench.agents.worker.process import Worker
    from cooperbench.sandbox.contract import CommandResult

PROTOCOL = 1
DEFAULT_SILENCE_SECONDS = 1200.0
"""How long a worker may say nothing; a slow model must fit into it."""
GRACE_SECONDS = 5.0
"""What a worker has to save its files once it is told that the agent has ended."""
SUBMITTED = "submitted"
_LONGEST_STATUS = 40


class BadRequest(Exception):
    """The worker asked for something that is not in the protocol; it is told so."""


def start_message(session: Session, config: Any, environment: Mapping[str, str]) -> dict[str, Any]:
    """The first line that a worker reads: all that it needs to know."""
    return {
        "type": "start",
        "protocol": PROTOCOL,
        "agent_id": session.seat.agent_id,
        "setting": session.setting,
        "prompt": session.prompt,
        "repo_dir": REPO_DIR,
        "model": session.model,
        "config": config,
        "limits": {
            "steps": session.limits.steps,
            "cost": session.limits.cost,
            "seconds": session.limits.seconds,
        },
        "colleagues": list(session.colleagues),
        "environment": dict(environment),
        "folder": str(session.folder.resolve()),
    }


class RequestServer:
    """Serves one worker in one session, until it says that it is done."""

    def __init__(
        self, session: Session, worker: Worker, silence_seconds: float = DEFAULT_SILENCE_SECONDS
    ) -> None:
        self._session = session
        self._worker = worker
        self._silence_seconds = silence_seconds
        self._methods: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "exec": self._exec,
            "read_file": self._read_file,
            "write_file": self._write_file,
            "send_message": self._send_message,
            "incoming": self._incoming,
            "wait_for_message": self._wait_for_message,
            "reply": self._reply,
            "tell": self._tell,
            "think": self._think,
            "check_limits": self._check_limits,
        }

    def run(self, start: Mapping[str, Any]) -> None:
        """Returns when the worker submits; every other end is raised, as an adapter does it."""
        running = self._session.check_running
        self._worker.send(start, running)
        while True:
            message = self._worker.receive(running, self._silence_seconds)
            match message.get("type", "request"):
                case "request":
                    self._serve(message)
                case "done":
                    self._end(message)
                    return
                case "failed":
                    self._fail(message)
                case other:
                    raise InfraError(f"the worker sent a message of an unknown type: {str(other)[:100]!r}")
            self._worker.reset_silence()

    def _serve(self, request: Mapping[str, Any]) -> None:
        number, name, params = request.get("id"), request.get("method"), request.get("params") or {}
        try:
            method = self._methods.get(str(name))
            if method is None:
                raise BadRequest(f"no method {str(name)[:100]!r}; there are: {', '.join(self._methods)}")
            if not isinstance(params, dict):
                raise BadRequest("params is no object")
            answer = {"id": number, "result": method(params)}
        except BadRequest as error:
            answer = {"id": number, "error": {"kind": "bad_request", "message": str(error)}}
        except FileNotFoundError:
            answer = {"id": number, "error": {"kind": "not_found", "message": "no such file"}}
        except AgentFailure as failure:
            self._last_answer(number, "limit", failure)
            raise
        except InfraError as error:
            self._last_answer(number, "sandbox", error)
            raise
        self._worker.send(answer, self._session.check_running)

    def _last_answer(self, number: Any, kind: str, error: Exception) -> None:
        """It may still write down what it has."""
        told = {"id": number, "error": {"kind": kind, "message": str(error)}}
        try:
            self._worker.send(told, lambda: None)
        except InfraError:
            return
        self._worker.wait(GRACE_SECONDS)

    def _end(self, message: Mapping[str, Any]) -> None:
        self._worker.wait(GRACE_SECONDS)
        status = str(message.get("status", SUBMITTED))
        if status == SUBMITTED:
            return
        if not status.replace("_", "").isalnum() or len(status) > _LONGEST_STATUS:
            raise InfraError(f"the worker ended with a status that is none: {status[:100]!r}")
        raise AgentFailure(status, str(message.get("message") or ""))

    def _fail(self, message: Mapping[str, Any]) -> NoReturn:
        text = str(message.get("message") or "no reason given")
        if message.get("kind") == "user":
            raise UserError(" ".join(text.split()))
        raise InfraError(f"the worker failed: {text}{self._worker.stderr_tail()}")

    def _exec(self, params: Mapping[str, Any]) -> dict[str, Any]:
        command = _text(params, "command")
        seconds = _number(params, "timeout_seconds", DEFAULT_COMMAND_SECONDS)
        stdin = _decoded(params, "stdin_base64")
        if params.get("step", True):
            return _result(
                self._session.execute(
                    command,
                    timeout_seconds=seconds,
                    stdin=stdin,
                    thought=str(params.get("thought") or ""),
                    shown=str(params.get("shown") or ""),
                )
            )
        return _result(self._session.execute_quietly(command, timeout_seconds=seconds, stdin=stdin))

    def _read_file(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"content_base64": base64.b64encode(self._session.read_file(_text(params, "path"))).decode()}

    def _write_file(self, params: Mapping[str, Any]) -> dict[str, Any]:
        path, data = _text(params, "path"), _decoded(params, "content_base64")
        if params.get("step", True):
            self._session.write_file(path, data)
        else:
            self._session.place_file(path, data, 0o755 if params.get("executable") else 0o644)
        return {}

    def _send_message(self, params: Mapping[str, Any]) -> dict[str, Any]:
        to = params.get("to")
        return _result(self._session.send(_text(params, "text"), None if to in (None, "all") else str(to)))

    def _incoming(self, params: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002  # it takes none
        return {
            "messages": [
                {
                    "from": message.sender,
                    "text": message.text,
                    "sequence": message.sequence,
                    "timestamp": message.timestamp,
                }
                for message in self._session.incoming()
            ]
        }

    def _wait_for_message(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"arrived": self._session.wait_for_message(_number(params, "timeout_seconds", 60.0))}

    def _reply(self, params: Mapping[str, Any]) -> dict[str, Any]:
        usage = params.get("usage") or {}
        if not isinstance(usage, dict):
            raise BadRequest("usage is no object")
        more = params.get("more") or {}
        if not isinstance(more, dict):
            raise BadRequest("more is no object")
        self._session.reply(
            _text(params, "text"),
            Usage(
                cost=_number(usage, "cost", 0.0),
                prompt_tokens=int(_number(usage, "prompt_tokens", 0)),
                completion_tokens=int(_number(usage, "completion_tokens", 0)),
                cached_tokens=int(_number(usage, "cached_tokens", 0)),
                calls=1,
                model_seconds=_number(usage, "model_seconds", 0.0),
                unpriced_calls=1 if usage.get("unpriced") else 0,
            ),
            **{str(key): value for key, value in more.items()},
        )
        return {}

    def _tell(self, params: Mapping[str, Any]) -> dict[str, Any]:
        self._session.tell(_text(params, "text"), str(params.get("kind") or "note"))
        return {}

    def _think(self, params: Mapping[str, Any]) -> dict[str, Any]:
        self._session.think(_text(params, "text"))
        return {}

    def _check_limits(self, params: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002  # it takes none
        self._session.check_limits()
        return {}


def _result(result: CommandResult) -> dict[str, Any]:
    return {
        "returncode": result.returncode,
        "stdout": result.stdout_read(),
        "stderr": result.stderr_read(),
        "timed_out": result.timed_out,
        "truncated": bool(result.stdout_cut or result.stderr_cut),
    }


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{name} is missing, or no text")
    if name in ("path", "command") and "\0" in value:
        raise BadRequest(f"{name} has a zero byte in it")
    return value


def _number(params: Mapping[str, Any], name: str, default: float) -> float:
    value = params.get(name, default)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadRequest(f"{name} is no number of 0 or more")
    return float(value)


def _decoded(params: Mapping[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(params.get(name) or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise BadRequest(f"{name} is no base64") from None
