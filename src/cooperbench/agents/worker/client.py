"""The worker's side of the protocol, for agents in Python (3.9 or newer): this one file, nothing else of ours. Copy it.

from client import connect

harness = connect()
print(harness.start["prompt"])             # prints go to stderr: stdout is the protocol's
result = harness.exec("ls")                # one step of the agent, in its sandbox
harness.reply("I am done.", cost=0.002, prompt_tokens=800, completion_tokens=5)
harness.done()
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

MAX_ARGUMENT_BYTES = 100_000
"""One argument of a command may not have more than 128 KiB: longer commands go through a file."""
MODEL_CALL_SECONDS = 3600
"""For frameworks: the gateway decides how long a provider may take."""
_RESTORE = """\
exec 2>&1
_cb={folder}
if [ -e "$_cb/state" ]; then . "$_cb/state"; else mkdir -p "$_cb"; cd {start} || exit; fi
trap '_cb_code=$?; trap - EXIT; {{ export -p; declare -f; printf "cd %q\\n" "$PWD"; }} >"$_cb/state.new" &&
    mv "$_cb/state.new" "$_cb/state"; exit $_cb_code' EXIT
"""


class BadRequest(Exception):
    """It cannot be asked for like that."""


class BadConfig(Exception):
    """What is wrong with the agent config, in one line for the user; raised by an agent's own `work`."""


class Ended(BaseException):
    """The agent is over: save things and exit. (Frameworks would take an Exception for a tool's, and go on.)"""


class Result(NamedTuple):
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class Verdict(NamedTuple):
    """How an agent ends: a worker's last message."""

    type: str
    """`done` or `failed`."""
    kind: str
    """The agent's status if done; `user` or `infra` if failed."""
    message: str


class Harness:
    """The way to the sandbox, the teammates and the record. May be used from several threads."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers
        self._lock = threading.Lock()
        self._count = 0
        self._ended: str | None = None
        self.start: dict[str, Any] = self._receive()
        """The first message: prompt, model, config, limits, teammates, environment …"""

    def exec(
        self,
        command: str,
        *,
        timeout_seconds: float = 600.0,
        stdin: bytes = b"",
        step: bool = True,
        thought: str = "",
        shown: str = "",
    ) -> Result:
        """A bash command in the repository. `step=False`: the framework's own doing, not a step of the agent."""
        answer = self._ask(
            "exec",
            command=command,
            timeout_seconds=timeout_seconds,
            stdin_base64=_encoded(stdin),
            step=step,
            thought=thought,
            shown=shown,
        )
        return Result(**answer)

    def read_file(self, path: str) -> bytes:
        """FileNotFoundError where there is none."""
        return base64.b64decode(self._ask("read_file", path=path)["content_base64"])

    def write_file(
        self, path: str, data: bytes, *, step: bool = True, executable: bool = False
    ) -> None:
        self._ask(
            "write_file", path=path, content_base64=_encoded(data), step=step, executable=executable
        )

    def send_message(self, to: str, text: str) -> Result:
        """To a teammate, or `all`."""
        return Result(**self._ask("send_message", to=to, text=text))

    def incoming(self) -> list[dict[str, Any]]:
        """Messages that came since the last call: from, text, sequence, timestamp; `shown` is for the model."""
        return list(self._ask("incoming")["messages"])

    def wait_for_message(self, timeout_seconds: float) -> bool:
        return bool(self._ask("wait_for_message", timeout_seconds=timeout_seconds)["arrived"])

    def reply(
        self,
        text: str,
        *,
        cost: float = 0.0,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        model_seconds: float = 0.0,
        unpriced: bool = False,
        **more: Any,
    ) -> None:
        """What the model said in one call, and what that call took. `more` goes on record as it is."""
        usage = {
            "cost": cost,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "cached_tokens": cached_tokens,
            "model_seconds": model_seconds,
            "unpriced": unpriced,
        }
        self._ask("reply", text=text, usage=usage, more=more)

    def tell(self, text: str, kind: str) -> None:
        """For the record: what the framework told the model of its own accord."""
        self._ask("tell", text=text, kind=kind)

    def think(self, text: str) -> None:
        """For the record."""
        self._ask("think", text=text)

    def check_limits(self) -> None:
        """Before each attempt to ask a model. Called again before a `reply` or a step, the attempt has failed."""
        self._ask("check_limits")

    def done(self, status: str = "submitted", message: str = "") -> None:
        """The agent hands in its work; another status than `submitted` says why it ended otherwise."""
        self._send({"type": "done", "status": status, "message": message})

    def failed(self, kind: str, message: str) -> None:
        """Not the agent's fault: `user` (a key that is refused: stops the run) or `infra` (is tried again)."""
        self._send({"type": "failed", "kind": kind, "message": message})

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        with self._lock:
            if self._ended is not None:
                raise Ended(self._ended)
            self._count += 1
            self._send({"id": self._count, "method": method, "params": params})
            answer = self._receive()
            error = answer.get("error")
            if error is None:
                return dict(answer["result"])
            if error["kind"] == "bad_request":
                raise BadRequest(error["message"])
            if error["kind"] == "not_found":
                raise FileNotFoundError(params.get("path", ""))
            self._ended = error["message"]
            raise Ended(self._ended)

    def _send(self, message: dict[str, Any]) -> None:
        self._requests.write(json.dumps(message).encode() + b"\n")
        self._requests.flush()

    def _receive(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self._ended = "the harness is gone"
            raise Ended(self._ended)
        return dict(json.loads(line))


class Shell:
    """For frameworks that expect a terminal: each command is a fresh bash, with what a terminal would carry over.

    (The working directory, exported variables, functions.) Several may exist under different names.
    """

    def __init__(self, harness: Harness, name: str = "main", start_folder: str = "") -> None:
        self._harness = harness
        self._folder = f"/tmp/.cooperbench-shell/{name}"  # noqa: S108  # in the sandbox
        self._start_folder = start_folder or str(harness.start["repo_dir"])

    def run(
        self, command: str, *, timeout_seconds: float = 600.0, step: bool = True, thought: str = ""
    ) -> Result:
        """stdout has everything, in the order in which it was written. A command that is ended leaves no trace."""
        preamble = _RESTORE.format(
            folder=shlex.quote(self._folder), start=shlex.quote(self._start_folder)
        )
        text = f"{preamble}eval {shlex.quote(command)}"
        if len(text.encode("utf-8", "surrogatepass")) > MAX_ARGUMENT_BYTES:
            path = f"{self._folder}-command"
            self._harness.write_file(path, command.encode("utf-8", "surrogateescape"), step=False)
            text = f"{preamble}. {shlex.quote(path)}"
        return self._harness.exec(
            text, timeout_seconds=timeout_seconds, step=step, thought=thought, shown=command
        )

    def reset(self) -> None:
        """As if nothing had been done in it."""
        self._harness.exec(f"rm -rf {shlex.quote(self._folder)}", step=False)


def connect() -> Harness:
    """Take over stdin and stdout; what anything else prints goes to stderr, which is kept for people."""
    answers = os.fdopen(os.dup(0), "rb")
    requests = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    harness = Harness(requests, answers)
    os.environ.update(harness.start.get("environment") or {})
    return harness


def run_worker(work: Callable[[Harness], Verdict]) -> None:
    """The whole of a worker: connected, at work, its end told."""
    harness = connect()
    try:
        verdict = work(harness)
    except BadConfig as error:
        verdict = Verdict("failed", "user", f"agent config: {error}")
    except Ended:
        return
    (harness.done if verdict.type == "done" else harness.failed)(verdict.kind, verdict.message)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
