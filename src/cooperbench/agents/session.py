"""What an agent has while it works: a sandbox, teammates, limits, a record. The same for every framework."""

from __future__ import annotations

import base64
import math
import posixpath
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cooperbench.agents.base import REPO_DIR, Limits, retry_timeout_seconds
from cooperbench.agents.recorder import Recorder
from cooperbench.errors import AgentFailure, InfraError, Interrupted, SandboxDestroyed
from cooperbench.gateway.recording import Exchanges
from cooperbench.models import AgentSlot, Message, Pair, Setting, Usage
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import CommandResult
from cooperbench.secrets import redact
from cooperbench.team.inbox import Inbox
from cooperbench.team.tools import Tools

DEFAULT_COMMAND_SECONDS = 600.0
REPLAYED_MESSAGE_SECONDS = 60.0
"""How long to wait for a message that came in the run that is repeated."""


@dataclass(frozen=True)
class AgentProgress:
    """A snapshot of an agent at work, for the live display."""

    phase: str
    """What the agent is doing, e.g. `waiting for the model`."""
    steps: int = 0
    cost: float = 0.0


@dataclass(kw_only=True, eq=False)
class AgentSession:
    """One agent at work on its part of a pair. Agents use the methods and the fields down to `limits`."""

    pair: Pair
    slot: AgentSlot
    setting: Setting
    model: str | None
    config_path: Path | None
    limits: Limits
    sandbox: Sandbox
    recorder: Recorder
    inbox: Inbox | None
    stop: threading.Event
    base_url: str | None = None
    """Where the model is, if not where LiteLLM knows it to be."""
    git_shared: bool = False
    tools: Tools = field(default_factory=dict)
    """The team's tools, for agents that want them as MCP tools; in the sandbox they are commands."""
    team_features: Mapping[str, bool] = field(default_factory=dict)
    prompts_dir: Path | None = None
    on_spend: Callable[[Usage], None] = lambda _: None
    on_outage: Callable[[str], None] = lambda _: None
    """Told why the model does not answer, and with an empty text that it does again."""
    on_progress: Callable[[AgentProgress], None] = lambda _: None
    """Called when the agent takes a step, asks its model or gets an answer."""
    exchanges: Exchanges | None = None
    """With `--record` or for `replay_model`; whoever asks a model tells it."""
    usage: Usage = field(default_factory=Usage, init=False)
    steps: int = field(default=0, init=False)
    received: int = field(default=0, init=False)
    """Messages that were shown to the agent."""
    sandbox_seconds: float = field(default=0.0, init=False)
    """Time that the agent's commands took."""

    def __post_init__(self) -> None:
        self._cost_before_call = 0.0
        self.folder = self.recorder.folder
        """Where the agent's framework may keep files of its own, beside trajectory.json."""
        self._time_limit = math.inf if self.limits.seconds is None else self.limits.seconds
        self._time_limit_from = ""
        self._started = time.monotonic()
        self._outage_seconds = 0.0
        self._asked_at: float | None = None
        """When the model was asked that has not answered yet."""
        self._failing_since: float | None = None
        self.model_error = ""
        """Why the latest model call failed, as one line."""

    @property
    def teammates(self) -> tuple[str, ...]:
        """Ids of the agents that can be written to; nobody in solo or without messages."""
        return self.inbox.teammates if self.inbox and self.inbox.has_messages else ()

    @property
    def prompt(self) -> str:
        """What the agent is told about its work and its teammates: the same for every framework."""
        from cooperbench.team.prompts import task_prompt

        return task_prompt(
            self.pair,
            self.slot,
            self.setting,
            messaging=bool(self.teammates),
            git=self.git_shared,
            limits=self.limits,
            features=self.team_features,
            prompts_dir=self.prompts_dir,
        )

    def execute(
        self,
        command: str,
        *,
        timeout_seconds: float = DEFAULT_COMMAND_SECONDS,
        stdin: bytes = b"",
        thought: str = "",
        shown: str = "",
        step: bool = True,
    ) -> CommandResult:
        """One step: a bash command in the repository. The time limit of the agent ends it too.

        `shown`: the command as the agent gave it, where its framework wraps it into another. `step=False`: the
        framework's own doing, not on record.
        """
        argv = ["bash", "-c", command]
        if not step:
            return self._run(argv, timeout_seconds, stdin)
        args: dict[str, Any] = {"command": shown or command, "timeout_seconds": timeout_seconds}
        if stdin:
            args["stdin_base64"] = base64.b64encode(stdin).decode()
        more = {"thought": thought} if thought else {}
        if args["command"] != command:
            more["executed"] = command
        return self._command("run", args, argv, timeout_seconds, stdin, **more)

    def read_file(self, path: str) -> bytes:
        """A file, relative to the repository, for the framework; FileNotFoundError where there is none."""
        with self._sandbox_in_use():
            return self.sandbox.read_file(posixpath.join(REPO_DIR, path))

    def write_file(self, path: str, data: bytes, mode: int = 0o644, *, step: bool = True) -> None:
        """One step: a file, relative to the repository; `step` as in `execute`."""
        try:
            args = {"path": path, "content": data.decode()}
        except UnicodeDecodeError:
            args = {"path": path, "content_base64": base64.b64encode(data).decode()}
        recorded: AbstractContextManager[dict[str, Any]] = nullcontext({})
        if step:
            recorded = self._step("write_file", args)
        with recorded as entry, self._sandbox_in_use():
            self.sandbox.write_file(posixpath.join(REPO_DIR, path), data, mode)
            entry["observation"] = f"{len(data)} bytes written"

    def apply_patch(self, patch: bytes, name: str) -> CommandResult:
        """One step: a patch, applied whole or not at all."""
        args = {"name": name, "patch": patch.decode("utf-8", "surrogateescape")}
        return self._command(
            "apply_patch", args, ["git", "apply", "--whitespace=nowarn", "-"], stdin=patch
        )

    def send(self, text: str, to: str | None = None) -> CommandResult:
        """One step: tell a teammate (or all of them) something, by the command that agents have."""
        args = {"to": to or "all", "content": text}
        stdin = text.encode("utf-8", "replace")
        return self._command("send_message", args, ["send_message", to or "--all"], 60, stdin)

    def begin_own_step(self) -> int:
        """A step that the agent's program takes by itself in the sandbox: its number, to be recorded later with it."""
        self.model_answered()
        self.steps += 1
        if self.inbox is not None:
            self.inbox.begin_step(self.steps)
        self.report_progress("running a command")
        return self.steps

    def incoming(self) -> list[Message]:
        """Messages that came since the last call, in order. Show them to the agent before its next step."""
        if self.inbox is None:
            return []
        with self._sandbox_in_use():
            due = self.exchanges.due(self.received) if self.exchanges else None
            if due:
                self.inbox.wait(self._capped(REPLAYED_MESSAGE_SECONDS), due)
            messages = self.inbox.incoming(due)
        self.received += len(messages)
        for message in messages:
            if not message.sequence:
                self.tell(
                    message.text, message.sender
                )  # the team's tools: no message that somebody sent
                continue
            args = {"from": message.sender, "content": message.text, "sequence": message.sequence}
            self.recorder.entry("receive_message", args, "")
        return messages

    def wait_for_message(self, timeout_seconds: float) -> bool:
        """Until there is something for `incoming`, or the time is up."""
        self.model_answered()
        self._check(self.usage.cost)
        self.report_progress("waiting for a message")
        with self._sandbox_in_use():
            return self.inbox is not None and self.inbox.wait(self._capped(timeout_seconds))

    def think(self, text: str) -> None:
        """Words of the agent to itself, for the record."""
        self.recorder.entry("think", {"content": text}, "")

    def reply(self, text: str, usage: Usage, **more: object) -> None:
        """Account for a model call and keep what the model said; `more` is what the framework has besides, as JSON."""
        self.model_answered()
        self._cost_before_call = self.usage.cost
        self.usage += usage
        self.on_spend(usage)
        self.recorder.reply(text, usage, **more)
        self.report_progress("reading the model's answer")

    def report_progress(self, phase: str) -> None:
        """Tell the display what the agent is doing now."""
        self.on_progress(AgentProgress(phase, self.steps, self.usage.cost))

    def tell(self, text: str, kind: str) -> None:
        """Keep what the framework told the model of its own accord: its prompts, a format error."""
        self.recorder.entry("tell", {"kind": kind, "content": text}, "")

    def note(self, text: str) -> None:
        """A line for people, in the log only: what the framework had to cope with."""
        self.recorder.note(text)

    @property
    def seconds(self) -> float:
        """The agent's time so far: without waiting for a provider that failed."""
        return time.monotonic() - self._started - self._outage_seconds

    def limit_time(self, seconds: float, source: str) -> None:
        """A time limit that the agent's config sets; the shorter one counts."""
        if seconds < self._time_limit:
            self._time_limit, self._time_limit_from = seconds, f" ({source})"

    def check_running(self) -> None:
        """Raise AgentFailure when the time is up, Interrupted when the run is being stopped.

        A model that has been asked may answer late, for as long as a provider may fail: then it is an InfraError.
        """
        if self.stop.is_set():
            raise Interrupted("stopped")
        if self.seconds < self._time_limit:
            return
        limit = f"time limit of {self._time_limit:g} s{self._time_limit_from}"
        if self._asked_at is None:
            raise AgentFailure("time_limit", f"{limit} reached")
        if self.seconds - self._time_limit >= retry_timeout_seconds():
            raise InfraError(
                f"model {self.model!r} has not answered by {retry_timeout_seconds():g} s after the {limit}"
            )

    def check_limits(self, *, concurrent: bool = False) -> None:
        """Before each attempt to ask a model: AgentFailure at a limit, Interrupted when the run is being stopped.

        If this is called again before a reply or a step, the attempt has failed: its time, and the pause after it, are
        not the agent's. Not so with `concurrent`: the agent asks several things at once.
        """
        now = time.monotonic()
        if self._asked_at is not None and not concurrent:
            self._outage_seconds += now - self._asked_at
            self._failing_since = self._failing_since or now
            self.on_outage(self._outage_text())
            if now - self._failing_since >= retry_timeout_seconds():
                raise InfraError(
                    f"model {self.model!r} has failed for {retry_timeout_seconds():g} s"
                )
            self._asked_at = None
        self._check(self.usage.cost)
        self._asked_at = now
        self.report_progress("waiting for the model")

    def _outage_text(self) -> str:
        """Return which model fails, where, and why, for the people who wait for it."""
        server = f" at {redact(self.base_url)}" if self.base_url else ""
        reason = self.model_error or "it does not answer"
        return f"{self.model}{server} fails: {reason}"

    def model_answered(self) -> None:
        """Be it that it refused: what is waited for from now on is not the provider."""
        if self._failing_since is not None:
            self.on_outage("")
        self._asked_at = self._failing_since = None

    def _check(self, cost: float) -> None:
        self.check_running()
        limits = self.limits
        if limits.steps is not None and self.steps >= limits.steps:
            raise AgentFailure("step_limit", f"step limit of {limits.steps} reached")
        if limits.cost is not None and cost >= limits.cost:
            raise AgentFailure("cost_limit", f"cost limit of ${limits.cost:g} reached")

    @contextmanager
    def _step(self, action: str, args: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Counted from its beginning; the entry, to which its results are added, is on record at its end."""
        # What the last call asked for is paid: it is done, although the call may have reached the limit.
        self.model_answered()
        self._check(self._cost_before_call)
        number = self.begin_own_step()
        entry: dict[str, Any] = {"action": action, "args": args, "observation": ""}
        try:
            yield entry
        except AgentFailure as error:
            entry["observation"] = str(error)
            raise
        finally:
            self.recorder.entry(**entry, step=number)

    def _command(
        self,
        action: str,
        args: dict[str, Any],
        argv: Sequence[str],
        timeout_seconds: float = DEFAULT_COMMAND_SECONDS,
        stdin: bytes = b"",
        **more: str,
    ) -> CommandResult:
        with self._step(action, args) as entry:
            result = self._run(argv, timeout_seconds, stdin)
            sent = self.inbox.sent_in_step if self.inbox is not None else []
            if action == "run" and len(sent) == 1 and _only_sends(args["command"]):
                ((to, text),) = sent
                entry |= {"action": "send_message", "args": {"to": to, "content": text, **args}}
            entry |= {
                "observation": result.stdout_read() + result.stderr_read(),
                "returncode": result.returncode,
                "timed_out": result.timed_out,
                "duration_seconds": round(result.duration_seconds, 4),
                **more,
            }
        if result.timed_out:
            # If it was the agent's own time that ran out, that is how the agent ends.
            self.check_running()
        return result

    def _run(self, argv: Sequence[str], timeout_seconds: float, stdin: bytes) -> CommandResult:
        seconds = self._capped(timeout_seconds)
        with self._sandbox_in_use():
            result = self.sandbox.run(argv, cwd=REPO_DIR, timeout_seconds=seconds, stdin=stdin)
        self.sandbox_seconds += result.duration_seconds
        return result

    @contextmanager
    def _sandbox_in_use(self) -> Iterator[None]:
        """Around everything that needs the agent's sandbox: what the agent destroys is its outcome."""
        self.check_running()
        try:
            yield
        except SandboxDestroyed as error:
            raise AgentFailure("sandbox_destroyed", str(error)) from error

    def _capped(self, timeout_seconds: float) -> float:
        """Never longer than the agent has left."""
        return max(0.05, min(timeout_seconds, self._time_limit - self.seconds))


def _only_sends(command: str) -> bool:
    """Is sending a message all that a shell command does?"""
    try:
        words = list(shlex.shlex(command.partition("<<")[0], posix=True, punctuation_chars=True))
    except ValueError:  # a quotation without end
        return False
    return words[:1] == ["send_message"] and not any(set(word) <= set("();|&") for word in words)
