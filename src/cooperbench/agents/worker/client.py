"""The worker's side of the protocol, for agents that are written in Python: this one file, nothing else of ours.

It runs in the environment of an agent framework, under any Python from 3.9 on, and needs only the standard library:
copy it, or put its folder on the path.

    from client import connect

    harness = connect()
    print(harness.start["prompt"])             # prints go to stderr: stdout is the protocol's
    result = harness.exec("ls")                # one step of the agent, in its sandbox
    harness.reply("I am done.", cost=0.002, prompt_tokens=800, completion_tokens=5)
    harness.done()

The second half is for agents inside the harness too: what a LiteLLM call used, and what a failed one means. Errors are
judged by the HTTP status that LiteLLM's exceptions carry. Two of its classes say more than their status (400); its
mapping of providers' errors is not complete, so the words of the two commonest misfits are looked at as well: a full
context and an empty account. A request that is refused (400, 422) is the user's fault when it is the first one (a
parameter that the provider does not take), and an outcome of the agent later, when only the conversation has changed.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

LONGEST_ARGUMENT = 100_000
"""One argument of a command may not have more than 128 KiB: longer commands go through a file."""
_RESTORE = """\
exec 2>&1
_cb={folder}
if [ -e "$_cb/state" ]; then . "$_cb/state"; else mkdir -p "$_cb"; cd {start} || exit; fi
trap '_cb_code=$?; trap - EXIT; {{ export -p; declare -f; printf "cd %q\\n" "$PWD"; }} >"$_cb/state.new" &&
    mv "$_cb/state.new" "$_cb/state"; exit $_cb_code' EXIT
"""
CONTEXT_OVERFLOW = "context_overflow"
_CONTEXT_WORDS = re.compile(
    r"context[ _](?:length|window|size)|maximum context|(?:prompt|input) is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
_EMPTY_ACCOUNT_WORDS = re.compile(
    r"insufficient[_ ](?:quota|credits|balance|funds)|exceeded your current quota|credit balance is too low"
    r"|payment required|billing",
    re.IGNORECASE,
)
_FOR_THE_USER = {
    401: "the provider does not accept the key",
    403: "the provider does not allow it",
    404: "the provider does not have it",
}
_PREFIXES = re.compile(r"^(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout)(?::| -) )+")
"""LiteLLM puts the names of its classes and the provider's before what the provider said."""
_LONGEST_DETAIL = 300
_REFUSED = ("content_policy", "request_rejected")
_MOST_REFUSALS = 3
"""In a row. A framework may go on asking until its own limit."""
_ITEMS = ("message", "reasoning", "function_call")
"""Of an answer in the shape of OpenAI's responses."""


class BadRequest(Exception):
    """It cannot be asked for like that."""


class BadConfig(Exception):
    """What is wrong with the agent config, in one line for the user; raised by an agent's own `work`."""


class Ended(BaseException):
    """The agent is over: a limit was reached, the run is being stopped, the sandbox is gone. Save things and exit.

    Not an Exception: frameworks take those for a failure of a tool or a model, and go on.
    """


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
    """The way to the sandbox, the colleagues and the record. May be used from several threads."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers
        self._lock = threading.Lock()
        self._count = 0
        self._ended: str | None = None
        self.start: dict[str, Any] = self._receive()
        """The first message: prompt, model, config, limits, colleagues, environment …"""

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

    def write_file(self, path: str, data: bytes, *, step: bool = True, executable: bool = False) -> None:
        self._ask("write_file", path=path, content_base64=_encoded(data), step=step, executable=executable)

    def send_message(self, to: str, text: str) -> Result:
        """To a colleague, or `all`."""
        return Result(**self._ask("send_message", to=to, text=text))

    def incoming(self) -> list[dict[str, Any]]:
        """Messages that came since the last call: from, text, sequence, timestamp. Show them to the model."""
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
        """Ended when a limit is reached: call it before each attempt to ask a model.

        Until `reply`, or the next step, you wait for the provider; called again before that, the attempt has failed:
        that time is not the agent's.
        """
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
    """A shell that keeps its state, for frameworks that expect a terminal; several may exist under different names.

    Each command still is a fresh bash with a time limit of its own. What a terminal would carry over (the working
    directory, exported variables, functions) is saved in the sandbox when a command ends, and read before the next.
    """

    def __init__(self, harness: Harness, name: str = "main", start_folder: str = "") -> None:
        self._harness = harness
        self._folder = f"/tmp/.cooperbench-shell/{name}"  # noqa: S108  # in the sandbox
        self._start_folder = start_folder or str(harness.start["repo_dir"])

    def run(
        self, command: str, *, timeout_seconds: float = 600.0, step: bool = True, thought: str = ""
    ) -> Result:
        """stdout has everything, in the order in which it was written. A command that is ended leaves no trace."""
        preamble = _RESTORE.format(folder=shlex.quote(self._folder), start=shlex.quote(self._start_folder))
        text = f"{preamble}eval {shlex.quote(command)}"
        if len(text.encode("utf-8", "surrogatepass")) > LONGEST_ARGUMENT:
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


def message_text(sender: str, text: str) -> str:
    """A colleague's message as the model is shown it."""
    return f"Message from {sender}:\n\n{text}"


class ModelCalls:
    """Functions of LiteLLM as a framework calls them: checked before, accounted for after, the last failure judged."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._model = str(harness.start["model"])
        self._refusals = 0
        self.fault: Verdict | None = None
        """What the last call means for the agent; None where it was answered."""
        self.count = 0
        """Calls that were answered."""

    def watch(self, module: Any, name: str) -> None:
        """From now on, calls of this function, which a framework finds in this module."""
        ask = getattr(module, name)
        setattr(module, name, lambda **kwargs: self._call(ask, kwargs))

    def _call(self, ask: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        self._harness.check_limits()
        started = time.monotonic()
        try:
            # The framework tries again, and then the harness knows of it.
            response = ask(**({"max_retries": 0} | kwargs))
            text, more = litellm_reply(response)
        except Exception as error:
            self.fault = judge_model_error(error, self._model, first_call=self.count == 0)
            self._refusals = self._refusals + 1 if self.fault.kind in _REFUSED else 0
            if self._refusals >= _MOST_REFUSALS:
                raise RuntimeError("refused, however it is asked") from error
            raise
        self.fault, self._refusals = None, 0
        self.count += 1
        usage = litellm_usage(response, self._model)
        self._harness.reply(text, model_seconds=time.monotonic() - started, **usage, **more)
        return response


def litellm_usage(response: Any, model: str) -> dict[str, Any]:
    """What a LiteLLM call used, as `reply` takes it.

    A model that LiteLLM's price list does not have is unpriced, never free; one at zero is free.
    """
    litellm, tokens = sys.modules["litellm"], getattr(response, "usage", None)
    unpriced = not has_price(model)
    try:
        cost = float(litellm.completion_cost(response, model=model))
    except Exception:
        # Whatever it stumbles over, it is the price that is not known; the answer itself is good.
        cost, unpriced = 0.0, True

    def said(name: str, other_name: str, place: Any = tokens) -> Any:
        return getattr(place, name, None) or getattr(place, other_name, None) or 0

    # Providers say it in two ways, and so do chat completions and responses.
    details = said("prompt_tokens_details", "input_tokens_details")
    return {
        "cost": cost,
        "unpriced": unpriced and cost <= 0,
        "prompt_tokens": said("prompt_tokens", "input_tokens"),
        "completion_tokens": said("completion_tokens", "output_tokens"),
        "cached_tokens": said("cached_tokens", "", details) or said("cache_read_input_tokens", ""),
    }


def has_price(model: str) -> bool:
    """Is the model in LiteLLM's price list? LiteLLM has been imported."""
    prices = [sys.modules["litellm"].model_cost.get(name, {}) for name in (model, model.partition("/")[2])]
    return any("input_cost_per_token" in price for price in prices)


def litellm_reply(response: Any) -> tuple[str, dict[str, Any]]:
    """The words of an answer of LiteLLM (chat completions or responses), and what it has beyond them."""
    if hasattr(response, "choices"):
        if not response.choices:
            raise ValueError("the answer has no choices in it")
        message = response.choices[0].message
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]
        text, reasoning = message.content or "", getattr(message, "reasoning_content", None)
        finish_reason = response.choices[0].finish_reason
    else:
        items = [item if isinstance(item, dict) else item.model_dump() for item in response.output]
        of_type = {kind: [item for item in items if item["type"] == kind] for kind in _ITEMS}
        text = "".join(part.get("text", "") for item in of_type["message"] for part in item["content"])
        reasoning = "".join(
            part["text"] for item in of_type["reasoning"] for part in item.get("summary") or []
        )
        calls = [(item["call_id"], item["name"], item["arguments"]) for item in of_type["function_call"]]
        finish_reason = None
    tool_calls = [{"id": id_, "name": name, "arguments": arguments} for id_, name, arguments in calls]
    found = {"finish_reason": finish_reason, "tool_calls": tool_calls, "reasoning": reasoning}
    return text, {name: value for name, value in found.items() if value}


def judge_model_error(error: BaseException, model: str, *, first_call: bool, text: str = "") -> Verdict:
    """`infra` is what may go away when the model is asked again. `text`: what the provider said, if not `detail`."""
    text = text or detail(error)
    status = getattr(error, "status_code", None)
    refused = status in (400, 422)
    if _is_litellm(error, "ContextWindowExceededError"):
        return Verdict("done", CONTEXT_OVERFLOW, text)
    if _is_litellm(error, "ContentPolicyViolationError"):
        return Verdict("done", "content_policy", text)
    if "No module named" in text:
        return for_user(model, f"needs a package that is not installed: {text}")
    if status == 402 or (status in (400, 403, 429) and _EMPTY_ACCOUNT_WORDS.search(text)):
        return for_user(model, f"the account is used up: {text}")
    if status in _FOR_THE_USER:
        return for_user(model, f"{_FOR_THE_USER[status]}: {text}")
    if status == 413 or (refused and _CONTEXT_WORDS.search(text)):
        return Verdict("done", CONTEXT_OVERFLOW, text)
    if refused and first_call:
        return for_user(model, f"the provider refuses the request: {text}")
    if refused:
        return Verdict("done", "request_rejected", text)
    return Verdict("failed", "infra", f"{type(error).__name__}: {text}")


def for_user(model: str, message: str) -> Verdict:
    """What no pair would do better with: it stops the run."""
    return Verdict("failed", "user", f"model {model!r}: {message}")


def detail(error: BaseException, clean: Callable[[str], str] = str) -> str:
    """What the provider said, as one line; `clean` gets it before it is cut, since half a secret is not recognised."""
    text = clean(_PREFIXES.sub("", " ".join(str(error).split()))) or type(error).__name__
    return text if len(text) <= _LONGEST_DETAIL else text[:_LONGEST_DETAIL] + "…"


def _is_litellm(error: BaseException, name: str) -> bool:
    """LiteLLM is not imported for this: an error of its own can only come from where it has been."""
    return isinstance(error, getattr(sys.modules.get("litellm.exceptions"), name, ()))


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
