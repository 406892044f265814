"""The worker's side of the protocol, for agents in Python 3.9 or newer.

It needs nothing but this file, which you may copy.

from client import connect

harness = connect()
print(harness.start["prompt"])             # goes to stderr: stdout is for the protocol
result = harness.exec("ls")                # is one step of the agent, in its sandbox
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

JsonObject = dict[str, Any]
MAX_ARGUMENT_BYTES = 100_000
"""Longer commands go through a file: Linux allows 128 KiB for one argument."""
MODEL_CALL_SECONDS = 3600
"""Timeout of frameworks for a model call. It is long, because the gateway has its own."""
_RESTORE = """\
exec 2>&1
_cb={folder}
if [ -e "$_cb/state" ]; then . "$_cb/state"; else mkdir -p "$_cb"; cd {start} || exit; fi
trap '_cb_code=$?; trap - EXIT
    {{ export -p; declare -f; printf "cd %q\\n" "$PWD"; }} >"$_cb/state.new" &&
    mv "$_cb/state.new" "$_cb/state"; exit $_cb_code' EXIT
"""


class BadRequest(Exception):
    """The harness does not accept the request."""


class BadConfig(Exception):
    """The agent config is invalid. Workers raise it with one line for the user."""


class Ended(BaseException):
    """The agent has ended: save files and exit.

    It is not an Exception, because frameworks would treat that as a tool's error and go on.
    """


class Result(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool

    @property
    def output(self) -> str:
        """Stdout, followed by stderr."""
        return self.stdout + self.stderr


class Verdict(NamedTuple):
    """The end of an agent: a worker's last message."""

    type: str
    """Either `done` or `failed`."""
    kind: str
    """Status of the agent if done; `user` if every pair would fail."""
    message: str


class Harness:
    """The connection to the harness. It may be used from several threads."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers
        self._lock = threading.Lock()
        self._count = 0
        self._ended: str | None = None
        self.start: JsonObject = self._receive()
        """First message: prompt, model, config, limits, teammates, environment and more."""

    def exec(  # noqa: PLR0913  # options of one command
        self,
        command: str,
        *,
        timeout_seconds: float = 600.0,
        stdin: bytes = b"",
        step: bool = True,
        thought: str = "",
        shown: str = "",
    ) -> Result:
        """Run a bash command in the repository.

        `step=False` is for commands of the framework, which are not steps of the agent.
        """
        answer = self._ask(
            "exec",
            command=command,
            timeout_seconds=timeout_seconds,
            stdin_base64=_encode(stdin),
            step=step,
            thought=thought,
            shown=shown,
        )
        return Result(**answer)

    def read_file(self, path: str) -> bytes:
        """Return the content of a file; FileNotFoundError if it does not exist."""
        return base64.b64decode(self._ask("read_file", path=path)["content_base64"])

    def write_file(
        self, path: str, data: bytes, *, step: bool = True, executable: bool = False
    ) -> None:
        """Write a file."""
        self._ask(
            "write_file", path=path, content_base64=_encode(data), step=step, executable=executable
        )

    def send_message(self, to: str, text: str) -> Result:
        """Send a message to a teammate, or to `all`."""
        return Result(**self._ask("send_message", to=to, text=text))

    def incoming(self) -> list[JsonObject]:
        """Return the messages that have come since the last call.

        Each has `from`, `text`, `sequence`, `timestamp`, and `shown`, the text for the model.
        """
        return list(self._ask("incoming")["messages"])

    def wait_for_message(self, timeout_seconds: float) -> bool:
        """Wait for a message. Return False if none comes in time."""
        return bool(self._ask("wait_for_message", timeout_seconds=timeout_seconds)["arrived"])

    def reply(  # noqa: PLR0913  # fields of the usage
        self,
        text: str,
        *,
        cost: float = 0.0,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        model_seconds: float = 0.0,
        unpriced: bool = False,
        **extra_fields: Any,
    ) -> None:
        """Record a model's reply and the usage of that call; extra fields are JSON values."""
        usage = {
            "cost": cost,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "cached_tokens": cached_tokens,
            "model_seconds": model_seconds,
            "unpriced": unpriced,
        }
        self._ask("reply", text=text, usage=usage, more=extra_fields)

    def tell(self, text: str, kind: str) -> None:
        """Record a text that the framework itself sends to the model."""
        self._ask("tell", text=text, kind=kind)

    def think(self, text: str) -> None:
        """Record a thought of the agent."""
        self._ask("think", text=text)

    def check_limits(self) -> None:
        """Check the limits. Call this before each attempt at a model call.

        If it is called again before a `reply` or a step, the attempt has failed.
        """
        self._ask("check_limits")

    def done(self, status: str = "submitted", message: str = "") -> None:
        """Submit the agent's work. Another status is the reason why the agent ended otherwise."""
        self._send({"type": "done", "status": status, "message": message})

    def failed(self, kind: str, message: str) -> None:
        """Report an error.

        `kind` is `user` for a problem that every pair would have. Before the first step and model
        call it stops the run. Anything else is the outcome `crashed`, which is scored: the harness
        sees failures of sandboxes and of the gateway itself.
        """
        self._send({"type": "failed", "kind": kind, "message": message})

    def _ask(self, method: str, **params: Any) -> JsonObject:
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

    def _send(self, message: JsonObject) -> None:
        self._requests.write(json.dumps(message).encode() + b"\n")
        self._requests.flush()

    def _receive(self) -> JsonObject:
        line = self._answers.readline()
        if not line:
            self._ended = "the harness has ended"
            raise Ended(self._ended)
        return dict(json.loads(line))


class Shell:
    """A shell for frameworks that expect a terminal.

    Each command runs in a new bash. The working directory, exported variables and functions are
    restored. There may be several shells with different names.
    """

    def __init__(self, harness: Harness, name: str = "main", start_folder: str = "") -> None:
        self._harness = harness
        self._folder = f"/tmp/.cooperbench-shell/{name}"  # noqa: S108  # in the sandbox
        self._start_folder = start_folder or str(harness.start["repo_dir"])

    def run(
        self, command: str, *, timeout_seconds: float = 600.0, step: bool = True, thought: str = ""
    ) -> Result:
        """Run a command. Its stdout contains stderr, too, in the order of writing.

        A command that times out does not change the shell's state.
        """
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
        """Reset the shell to its initial state."""
        self._harness.exec(f"rm -rf {shlex.quote(self._folder)}", step=False)


def connect() -> Harness:
    """Take over stdin and stdout. All other output goes to stderr, which is logged."""
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
    """Run a worker: connect, call `work`, and report the result."""
    harness = connect()
    try:
        verdict = work(harness)
    except BadConfig as error:
        verdict = Verdict("failed", "user", f"agent config: {error}")
    except Ended:
        return
    if verdict.type == "done":
        harness.done(verdict.kind, verdict.message)
    else:
        harness.failed(verdict.kind, verdict.message)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
