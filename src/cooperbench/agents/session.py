"""An agent's session: its sandbox, teammates, limits and record, for every framework."""

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

from cooperbench.agents.base import REPO_DIR, Limits, retry_timeout_seconds
from cooperbench.agents.recorder import Recorder
from cooperbench.errors import (
    AgentFailure,
    CooperBenchError,
    InfraError,
    Interrupted,
    SandboxDestroyed,
    UserError,
)
from cooperbench.gateway.recording import Exchanges
from cooperbench.models import AgentSlot, Message, Pair, Setting, Usage
from cooperbench.records import JsonObject
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import CommandResult
from cooperbench.secrets import redact
from cooperbench.team.channel import NO_RULES, ChannelRules
from cooperbench.team.inbox import Inbox
from cooperbench.team.tools import Tools

DEFAULT_COMMAND_SECONDS = 600.0
_SEND_SECONDS = 60.0
_MIN_TIMEOUT_SECONDS = 0.05
REPLAYED_MESSAGE_SECONDS = 60.0
"""How long a replay waits for a message that came in the recorded run."""


@dataclass(frozen=True)
class _Command:
    """A command for the sandbox."""

    argv: Sequence[str]
    timeout_seconds: float
    stdin: bytes


@dataclass(frozen=True)
class AgentProgress:
    """A snapshot of an agent at work, for the live display."""

    phase: str
    """What the agent is doing, e.g. `waiting for the model`."""
    steps: int = 0
    cost: float = 0.0


@dataclass(kw_only=True, eq=False)
class AgentSession:
    """One agent at work on its part of a pair.

    Agents use the methods, and the fields down to `limits`.
    """

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
    called_model: str | None = None
    """The model that is called, if it is not the one that the agent knows (`model`)."""
    base_url: str | None = None
    """Address of the model's server, if it is not the provider's own."""
    git_shared: bool = False
    tools: Tools = field(default_factory=dict)
    """The team's tools for agents that use MCP. In the sandbox they are commands."""
    team_features: Mapping[str, bool] = field(default_factory=dict)
    prompts_dir: Path | None = None
    channel: ChannelRules = NO_RULES
    """The rules for messages."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the agent's commands besides those of the sandbox."""
    watch_command: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext()
    """Called with the number of steps around everything that may change files."""
    on_own_step: Callable[[int], None] = lambda _: None
    """Called with the number of a step that the agent's program has taken by itself."""
    on_spend: Callable[[Usage], None] = lambda _: None
    on_outage: Callable[[str], None] = lambda _: None
    """Called with the reason when the model fails, and with an empty text when it works again."""
    on_progress: Callable[[AgentProgress], None] = lambda _: None
    """Called when the agent takes a step, asks its model or gets an answer."""
    exchanges: Exchanges | None = None
    """Set with `--record` or for `replay_model`. Whoever calls a model must use it."""
    usage: Usage = field(default_factory=Usage, init=False)
    steps: int = field(default=0, init=False)
    received: int = field(default=0, init=False)
    """Number of messages that the agent was shown."""
    sandbox_seconds: float = field(default=0.0, init=False)
    """Total duration of the agent's commands."""
    fault: CooperBenchError | None = field(default=None, init=False)
    """The error of the harness that ended the last operation; None if the operation succeeded.

    It decides whether the pair is run again. Errors that an agent raises itself do not.
    """

    def __post_init__(self) -> None:
        self._cost_before_call = 0.0
        self._earlier_cost = 0.0
        """Cost of replayed replies, which were paid for in the recorded run."""
        self.folder = self.recorder.folder
        """Folder for files of the agent's framework, beside trajectory.json."""
        self._time_limit = math.inf if self.limits.seconds is None else self.limits.seconds
        self._time_limit_source = ""
        self._started = time.monotonic()
        self._outage_seconds = 0.0
        self._call_started: float | None = None
        """Start of the model call that has no reply yet."""
        self._failing_since: float | None = None
        self.model_error = ""
        """The reason why the latest model call failed, on one line."""

    @property
    def teammates(self) -> tuple[str, ...]:
        """Ids of the agents that get messages. Empty in solo and without messages."""
        if self.inbox and self.inbox.has_messages:
            return self.inbox.teammates
        return ()

    @property
    def prompt(self) -> str:
        """The prompt about the task and the teammates. It is the same for every framework."""
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
            channel=self.channel,
        )

    def execute(  # noqa: PLR0913  # options of one command, documented for agents
        self,
        command: str,
        *,
        timeout_seconds: float = DEFAULT_COMMAND_SECONDS,
        stdin: bytes = b"",
        thought: str = "",
        shown: str = "",
        step: bool = True,
    ) -> CommandResult:
        """Run a bash command in the repository as one step.

        Args:
            command: The command.
            timeout_seconds: Time limit of the command. The agent's own time limit ends it too.
            stdin: Input of the command.
            thought: The model's reason for the command, for the record.
            shown: The command as the agent wrote it, if its framework wraps it into another one.
            step: False for commands of the framework itself, which are not on record.
        """
        argv = ["bash", "-c", command]
        if not step:
            return self._run(_Command(argv, timeout_seconds, stdin))
        args: JsonObject = {"command": shown or command, "timeout_seconds": timeout_seconds}
        if stdin:
            args["stdin_base64"] = base64.b64encode(stdin).decode()
        fields = {}
        if thought:
            fields["thought"] = thought
        if args["command"] != command:
            fields["executed"] = command
        return self._run_step("run", args, _Command(argv, timeout_seconds, stdin), fields)

    def read_file(self, path: str) -> bytes:
        """Return the content of a file, for the framework. It is not a step.

        Args:
            path: Absolute, or relative to the repository.

        Raises:
            FileNotFoundError: There is no such file.
        """
        with self._using_sandbox():
            return self.sandbox.read_file(posixpath.join(REPO_DIR, path))

    def write_file(self, path: str, data: bytes, mode: int = 0o644, *, step: bool = True) -> None:
        """Write a file as one step. `path` is as in `read_file`, `step` as in `execute`."""
        try:
            args = {"path": path, "content": data.decode()}
        except UnicodeDecodeError:
            args = {"path": path, "content_base64": base64.b64encode(data).decode()}
        recorded: AbstractContextManager[JsonObject] = nullcontext({})
        if step:
            recorded = self._step("write_file", args)
        with recorded as entry, self._using_sandbox(), self.watch_command(self.steps):
            self.sandbox.write_file(posixpath.join(REPO_DIR, path), data, mode)
            entry["observation"] = f"{len(data)} bytes written"

    def apply_patch(self, patch: bytes, name: str) -> CommandResult:
        """Apply a patch as one step, completely or not at all."""
        args = {"name": name, "patch": patch.decode("utf-8", "surrogateescape")}
        argv = ["git", "apply", "--whitespace=nowarn", "-"]
        command = _Command(argv, DEFAULT_COMMAND_SECONDS, stdin=patch)
        return self._run_step("apply_patch", args, command, {})

    def send(self, text: str, to: str | None = None) -> CommandResult:
        """Send a message to a teammate, or to all, as one step. It uses the agents' own command."""
        args = {"to": to or "all", "content": text}
        argv = ["send_message", to or "--all"]
        command = _Command(argv, _SEND_SECONDS, stdin=text.encode("utf-8", "replace"))
        return self._run_step("send_message", args, command, {})

    def begin_own_step(self) -> int:
        """Count a step that the agent's program takes by itself, and return its number.

        The step is recorded later, under this number.
        """
        number = self._begin_step()
        self.on_own_step(number)
        return number

    def _begin_step(self) -> int:
        self.model_answered()
        self.steps += 1
        if self.inbox is not None:
            self.inbox.begin_step(self.steps)
        self.report_progress("running a command")
        return self.steps

    def incoming(self) -> list[Message]:
        """Return the messages that have come since the last call, in order.

        Show them to the agent before its next step.
        """
        if self.inbox is None:
            return []
        with self._using_sandbox():
            due = self.exchanges.due(self.received) if self.exchanges else None
            if due:
                self.inbox.wait(self._within_time_limit(REPLAYED_MESSAGE_SECONDS), due)
            messages = self.inbox.incoming(due)
        self.received += len(messages)
        for message in messages:
            if not message.sequence:
                # It comes from the team's tools, not from a teammate.
                self.tell(message.text, message.sender)
                continue
            args = {"from": message.sender, "content": message.text, "sequence": message.sequence}
            self.recorder.entry("receive_message", args, "")
        return messages

    def wait_for_message(self, timeout_seconds: float) -> bool:
        """Wait until `incoming` has something to return. Return False if the time is up before."""
        self.model_answered()
        self._check(self.usage.cost)
        self.report_progress("waiting for a message")
        with self._using_sandbox():
            if self.inbox is None:
                return False
            return self.inbox.wait(self._within_time_limit(timeout_seconds))

    def think(self, text: str) -> None:
        """Record a thought of the agent."""
        self.recorder.entry("think", {"content": text}, "")

    def reply(self, text: str, usage: Usage, **fields: object) -> None:
        """Record a model's reply and count its usage. `fields` are further JSON values for it."""
        self.model_answered()
        self._cost_before_call = self.usage.cost
        self.usage += usage
        self.on_spend(usage)
        self.recorder.reply(text, usage, **fields)
        self.report_progress("reading the model's answer")

    def report_progress(self, phase: str) -> None:
        """Report to the display what the agent is doing now."""
        self.on_progress(AgentProgress(phase, self.steps, self.usage.cost))

    def tell(self, text: str, kind: str) -> None:
        """Record a text that the framework itself sends to the model: a prompt, a format error."""
        self.recorder.entry("tell", {"kind": kind, "content": text}, "")

    def note(self, text: str) -> None:
        """Write a line to the log, which only people read."""
        self.recorder.note(text)

    @property
    def seconds(self) -> float:
        """The agent's time so far, without the time that it waited for a failing provider."""
        return time.monotonic() - self._started - self._outage_seconds

    def continue_from(self, *, cost: float, seconds: float) -> None:
        """Set what the agent has used up of its limits before it goes on with its model.

        A replay is faster than the recorded run, and its replies cost nothing.
        """
        self._earlier_cost = cost
        self._outage_seconds += self.seconds - seconds

    def limit_time(self, seconds: float, source: str) -> None:
        """Set a time limit of the agent config. The shorter limit applies."""
        if seconds < self._time_limit:
            self._time_limit = seconds
            self._time_limit_source = f" ({source})"

    def check_running(self) -> None:
        """Check that the agent may go on.

        Raises:
            AgentFailure: The agent's time is up.
            Interrupted: The run is being stopped.
            InfraError: The time is up during a model call, and the retry timeout has passed since.
        """
        if self.stop.is_set():
            raise Interrupted("stopped")
        if self.seconds < self._time_limit:
            return
        limit = f"time limit of {self._time_limit:g} s{self._time_limit_source}"
        if self._call_started is None:
            raise AgentFailure("time_limit", f"{limit} reached")
        if self.seconds - self._time_limit >= retry_timeout_seconds():
            late = f"{retry_timeout_seconds():g} s after the {limit}"
            raise self.remember(InfraError(f"model {self.model!r} has not replied {late}"))

    def check_limits(self, *, concurrent: bool = False) -> None:
        """Check that the agent may call its model. Call this before each attempt.

        If it is called again before a reply or a step, the attempt has failed. Its time, and the
        pause after it, do not count for the agent. `concurrent` means that the agent has several
        calls at once, so that the earlier attempt may still succeed.

        Raises the same errors as `check_running`, and AgentFailure for any other limit.
        """
        now = time.monotonic()
        if self._call_started is not None and not concurrent:
            self._outage_seconds += now - self._call_started
            self._failing_since = self._failing_since or now
            self.on_outage(self._outage_text())
            if now - self._failing_since >= retry_timeout_seconds():
                problem = f"model {self.model!r} has failed for {retry_timeout_seconds():g} s"
                raise self.remember(InfraError(problem))
            self._call_started = None
        self._check(self.usage.cost)
        self._call_started = now
        self.report_progress("waiting for the model")

    def check_spent(self) -> None:
        """Check that no limit has been reached, without a model call.

        Raises the same errors as `check_limits`.
        """
        self._check(self.usage.cost)

    def _outage_text(self) -> str:
        """Describe which model fails, where, and why."""
        server = f" at {redact(self.base_url)}" if self.base_url else ""
        reason = self.model_error or "it does not reply"
        return f"{self.model}{server} fails: {reason}"

    def model_answered(self) -> None:
        """End the current model call: the provider has replied, or refused the request."""
        if self._failing_since is not None:
            self.on_outage("")
        self._call_started = None
        self._failing_since = None

    def _check(self, cost: float) -> None:
        self.check_running()
        limits = self.limits
        if limits.steps is not None and self.steps >= limits.steps:
            raise AgentFailure("step_limit", f"step limit of {limits.steps} reached")
        if limits.cost is not None and cost + self._earlier_cost >= limits.cost:
            raise AgentFailure("cost_limit", f"cost limit of ${limits.cost:g} reached")

    @contextmanager
    def _step(self, action: str, args: JsonObject) -> Iterator[JsonObject]:
        """Count a step now, and record it at the end. The caller adds results to the entry."""
        # The last reply is billed, so its step is done even if the reply reached the cost limit.
        self.model_answered()
        self._check(self._cost_before_call)
        number = self._begin_step()
        entry: JsonObject = {"action": action, "args": args, "observation": ""}
        try:
            yield entry
        except AgentFailure as error:
            entry["observation"] = str(error)
            raise
        finally:
            self.recorder.entry(**entry, step=number)

    def _run_step(
        self, action: str, args: JsonObject, command: _Command, fields: Mapping[str, str]
    ) -> CommandResult:
        with self._step(action, args) as entry:
            result = self._run(command)
            sent = self.inbox.sent_in_step if self.inbox is not None else []
            if action == "run" and len(sent) == 1 and _is_send_command(args["command"]):
                ((to, text),) = sent
                entry |= {"action": "send_message", "args": {"to": to, "content": text, **args}}
            entry |= {
                "observation": result.stdout_read() + result.stderr_read(),
                "returncode": result.returncode,
                "timed_out": result.timed_out,
                "duration_seconds": round(result.duration_seconds, 4),
                **fields,
            }
        if result.timed_out:
            # If the agent's own time is up, the agent ends here.
            self.check_running()
        return result

    def _run(self, command: _Command) -> CommandResult:
        with self._using_sandbox(), self.watch_command(self.steps):
            result = self.sandbox.run(
                command.argv,
                cwd=REPO_DIR,
                env=self.environment,
                timeout_seconds=self._within_time_limit(command.timeout_seconds),
                stdin=command.stdin,
            )
        self.sandbox_seconds += result.duration_seconds
        return result

    @contextmanager
    def _using_sandbox(self) -> Iterator[None]:
        """Use the sandbox. If the agent has destroyed it, that is the agent's outcome."""
        self.check_running()
        with self.remembering_faults():
            try:
                yield
            except SandboxDestroyed as error:
                raise AgentFailure("sandbox_destroyed", str(error)) from error
        self.fault = None

    def remember(self, error: CooperBenchError) -> CooperBenchError:
        """Remember an error of the harness's own code in `fault`, and return it."""
        self.fault = error
        return error

    @contextmanager
    def remembering_faults(self) -> Iterator[None]:
        """Remember errors in this block, which is code of the harness and not of an agent."""
        try:
            yield
        except (InfraError, UserError, Interrupted) as error:
            self.remember(error)
            raise

    def _within_time_limit(self, timeout_seconds: float) -> float:
        """Return the timeout, or the rest of the agent's time if that is shorter."""
        remaining = self._time_limit - self.seconds
        return max(_MIN_TIMEOUT_SECONDS, min(timeout_seconds, remaining))


def _is_send_command(command: str) -> bool:
    """Return whether a shell command does nothing but send a message."""
    before_heredoc = command.partition("<<")[0]
    try:
        tokens = list(shlex.shlex(before_heredoc, posix=True, punctuation_chars=True))
    except ValueError:  # an unclosed quotation
        return False
    has_operator = any(set(token) <= set("();|&") for token in tokens)
    return tokens[:1] == ["send_message"] and not has_operator
