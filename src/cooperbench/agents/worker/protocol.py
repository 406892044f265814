"""Our side of the worker protocol: what a worker may ask for, and what it gets. docs/workers.md is for people.

Requests are carried out one after the other, in the order in which they came. What cannot be done is an answer with an
`error`; what ends the agent (a limit, a stop, a dead sandbox) is told to the worker too, and then raised here.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from cooperbench.agents.base import REPO_DIR
from cooperbench.agents.session import DEFAULT_COMMAND_SECONDS
from cooperbench.errors import AgentFailure, InfraError, UserError
from cooperbench.models import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.agents.session import Session
    from cooperbench.agents.worker.process import Worker
    from cooperbench.models import Message
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
        "limits": asdict(session.limits),
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
                    return self._end(message)
                case "failed":
                    self._fail(message)
                case other:
                    raise InfraError(f"the worker sent a message of an unknown type: {str(other)[:100]!r}")

    def _serve(self, request: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request.get("id")}
        try:
            answer["result"] = self._result(str(request.get("method")), _object(request, "params"))
        except BadRequest as error:
            answer["error"] = {"kind": "bad_request", "message": str(error)}
        except FileNotFoundError:
            answer["error"] = {"kind": "not_found", "message": "no such file"}
        except (AgentFailure, InfraError) as error:
            kind = "limit" if isinstance(error, AgentFailure) else "sandbox"
            self._last_answer(answer | {"error": {"kind": kind, "message": str(error)}})
            raise
        self._worker.send(answer, self._session.check_running)

    def _last_answer(self, answer: Mapping[str, Any]) -> None:
        """The agent has ended; the worker may still write down what it has."""
        try:
            self._worker.send(answer, lambda: None)
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
        text = str(message.get("message") or f"no reason given{self._worker.stderr_tail()}")
        if message.get("kind") == "user":
            raise UserError(" ".join(text.split()))
        raise InfraError(f"the worker failed: {text}")

    def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        session = self._session
        match method:
            case "exec":
                result = session.execute(
                    _text(params, "command"),
                    timeout_seconds=_number(params, "timeout_seconds", DEFAULT_COMMAND_SECONDS),
                    stdin=_decoded(params, "stdin_base64"),
                    thought=str(params.get("thought") or ""),
                    shown=str(params.get("shown") or ""),
                    step=_is_step(params),
                )
                return _result_of(result)
            case "read_file":
                content = session.read_file(_text(params, "path"))
                return {"content_base64": base64.b64encode(content).decode()}
            case "write_file":
                data, mode = _decoded(params, "content_base64"), 0o755 if params.get("executable") else 0o644
                session.write_file(_text(params, "path"), data, mode, step=_is_step(params))
            case "send_message":
                to = params.get("to")
                return _result_of(
                    session.send(_text(params, "text"), None if to in (None, "all") else str(to))
                )
            case "incoming":
                return {"messages": [_message(message) for message in session.incoming()]}
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


def _result_of(result: CommandResult) -> dict[str, Any]:
    return {
        "returncode": result.returncode,
        "stdout": result.stdout_read(),
        "stderr": result.stderr_read(),
        "timed_out": result.timed_out,
        "truncated": bool(result.stdout_cut or result.stderr_cut),
    }


def _message(message: Message) -> dict[str, Any]:
    return {
        "from": message.sender,
        "text": message.text,
        "sequence": message.sequence,
        "timestamp": message.timestamp,
    }


def _is_step(params: Mapping[str, Any]) -> bool:
    return bool(params.get("step", True))


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


def _object(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = params.get(name) or {}
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is no object")
    return value


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{name} is missing, or no text")
    if name in ("path", "command") and "\0" in value:
        raise BadRequest(f"{name} has a zero byte in it")
    return value


def _number(params: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    value = params.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadRequest(f"{name} is no number of 0 or more")
    return float(value)


def _decoded(params: Mapping[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(params.get(name) or "", validate=True)
    except (ValueError, TypeError):
        raise BadRequest(f"{name} is no base64") from None
