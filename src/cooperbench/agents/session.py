"""What an agent has while it works: a sandbox, colleagues, limits, a record. The same for every framework."""

from __future__ import annotations

import base64
import posixpath
import time
from typing import TYPE_CHECKING

from cooperbench.agents.base import REPO_DIR, Limits
from cooperbench.agents.llm import patience_seconds
from cooperbench.errors import AgentFailure, InfraError, Interrupted
from cooperbench.models import Usage

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cooperbench.agents.recorder import Recorder
    from cooperbench.models import Message, Pair, Seat, Setting
    from cooperbench.sandbox.contract import CommandResult, RichSandbox
    from cooperbench.team.inbox import Inbox

DEFAULT_COMMAND_SECONDS = 600.0


class Session:
    """One agent at work on its part of a pair."""

    def __init__(
        self,
        *,
        pair: Pair,
        seat: Seat,
        setting: Setting,
        model: str | None,
        config_path: Path | None,
        sandbox: RichSandbox,
        recorder: Recorder,
        limits: Limits,
        inbox: Inbox | None,
        stop: threading.Event,
        git_shared: bool = False,
        on_spend: Callable[[Usage], None] = lambda _: None,
    ) -> None:
        self.pair = pair
        self.seat = seat
        self.setting = setting
        self.model = model
        self.config_path = config_path
        self.limits = limits
        self.usage = Usage()
        self.steps = 0
        self.sandbox_seconds = 0.0
        """Time that the agent's commands took."""
        self._sandbox = sandbox
        self._recorder = recorder
        self._inbox = inbox
        self._stop = stop
        self._git_shared = git_shared
        self._on_spend = on_spend
        self._cost_before_call = 0.0
        self._time_limit = limits.seconds
        self._time_limit_from = ""
        self._started = time.monotonic()
        self._outage_seconds = 0.0
        self._asked_at: float | None = None
        """When the model was asked that has not answered yet."""
        self._failing_since: float | None = None

    @property
    def colleagues(self) -> tuple[str, ...]:
        """Ids of the agents that can be written to; nobody in solo or without messages."""
        return self._inbox.colleagues if self._inbox else ()

    @property
    def prompt(self) -> str:
        """What the agent is told about its work and its colleagues: the same for every framework."""
        from cooperbench.team.team import task_prompt

        return task_prompt(
            self.pair,
            self.seat,
            self.setting,
            messaging=self._inbox is not None,
            git=self._git_shared,
            limits=self.limits,
        )

    @property
    def folder(self) -> Path:
        """Where the agent's framework may keep files of its own, beside trajectory.json."""
        return self._recorder.folder

    def execute(
        self,
        command: str,
        *,
        timeout_seconds: float = DEFAULT_COMMAND_SECONDS,
        thought: str = "",
        stdin: bytes = b"",
        shown: str = "",
    ) -> CommandResult:
        """One step: a bash command in the repository. The time limit of the agent ends it too.

        `shown` is the command as the agent gave it, where its framework wraps it into another.
        """
        self._begin_step()
        result = self._run_command(command, timeout_seconds, stdin)
        self._record_step(
            "run",
            {
                "command": command,
                "timeout_seconds": timeout_seconds,
                **({"stdin_base64": base64.b64encode(stdin).decode()} if stdin else {}),
            },
            result.stdout_read() + result.stderr_read(),
            returncode=result.returncode,
            timed_out=result.timed_out,
            duration_seconds=round(result.duration_seconds, 4),
            **({"thought": thought} if thought else {}),
            **({"shown": shown} if shown else {}),
        )
        if result.timed_out:
            # If it was the agent's own time that ran out, that is how the agent ends.
            self.check_running()
        return result

    def execute_quietly(
        self, command: str, *, timeout_seconds: float = DEFAULT_COMMAND_SECONDS, stdin: bytes = b""
    ) -> CommandResult:
        """A command of the framework's own, not of the agent's: no step, not on record."""
        self.check_running()
        result = self._run_command(command, timeout_seconds, stdin)
        if result.timed_out:
            self.check_running()
        return result

    def read_file(self, path: str) -> bytes:
        """A file, relative to the repository, for the framework; FileNotFoundError where there is none."""
        self.check_running()
        return self._sandbox.read_file(posixpath.join(REPO_DIR, path))

    def place_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """A file of the framework's own, not of the agent's: no step, not on record."""
        self.check_running()
        self._sandbox.write_file(posixpath.join(REPO_DIR, path), data, mode)

    def write_file(self, path: str, data: bytes) -> None:
        """One step: a file, relative to the repository."""
        self._begin_step()
        self._sandbox.write_file(posixpath.join(REPO_DIR, path), data)
        try:
            args = {"path": path, "content": data.decode()}
        except UnicodeDecodeError:
            args = {"path": path, "content_base64": base64.b64encode(data).decode()}
        self._record_step("write_file", args, f"{len(data)} bytes written")

    def apply_patch(self, patch: bytes, name: str) -> CommandResult:
        """One step: a patch, applied whole or not at all."""
        self._begin_step()
        result = self._sandbox.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=REPO_DIR, stdin=patch)
        self.sandbox_seconds += result.duration_seconds
        self._record_step(
            "apply_patch",
            {"name": name, "patch": patch.decode("utf-8", "surrogateescape")},
            result.stdout_read() + result.stderr_read(),
            returncode=result.returncode,
        )
        return result

    def send(self, text: str, to: str | None = None) -> CommandResult:
        """One step: tell a colleague (or all of them) something, by the command that agents have."""
        self._begin_step()
        argv = ["send_message", to or "--all"]
        result = self._sandbox.run(
            argv, cwd=REPO_DIR, stdin=text.encode("utf-8", "replace"), timeout_seconds=60
        )
        self.sandbox_seconds += result.duration_seconds
        self._record_step(
            "send_message",
            {"to": to or "all", "content": text},
            result.stdout_read().strip() + result.stderr_read().strip(),
            returncode=result.returncode,
        )
        return result

    def incoming(self) -> list[Message]:
        """Messages that came since the last call, in order. Show them to the agent before its next step."""
        if self._inbox is None:
            return []
        messages = self._inbox.incoming()
        for message in messages:
            self._recorder.entry(
                "receive_message",
                {"from": message.sender, "content": message.text, "sequence": message.sequence},
                "",
            )
        return messages

    def wait_for_message(self, timeout_seconds: float) -> bool:
        """Until there is something for `incoming`, or the time is up."""
        if self._inbox is None:
            return False
        self._model_answered()
        self._check(self.usage.cost)
        return self._inbox.wait(self._capped(timeout_seconds))

    def think(self, text: str) -> None:
        """Words of the agent to itself, for the record."""
        self._recorder.entry("think", {"content": text}, "")

    def reply(self, text: str, usage: Usage, **more: object) -> None:
        """Account for a model call and keep what the model said; `more` is what the framework has besides, as JSON."""
        self._model_answered()
        self._cost_before_call = self.usage.cost
        self.usage += usage
        self._on_spend(usage)
        tokens = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        }
        self._recorder.entry(
            "reply",
            {"content": text},
            "",
            tokens=tokens,
            cost=usage.cost,
            calls=usage.calls,
            unpriced_calls=usage.unpriced_calls,
            model_seconds=round(usage.model_seconds, 4),
            **more,
        )

    def tell(self, text: str, kind: str) -> None:
        """Keep what the framework told the model of its own accord: its prompts, a format error."""
        self._recorder.entry("tell", {"kind": kind, "content": text}, "")

    def note(self, text: str) -> None:
        """A line for people, in the log only: what the framework had to cope with."""
        self._recorder.note(text)

    @property
    def seconds(self) -> float:
        """The agent's time so far: without waiting for a provider that failed."""
        return time.monotonic() - self._started - self._outage_seconds

    def limit_time(self, seconds: float, source: str) -> None:
        """A time limit that the agent's config sets; the shorter one counts."""
        if self._time_limit is None or seconds < self._time_limit:
            self._time_limit, self._time_limit_from = seconds, f" ({source})"

    def check_running(self) -> None:
        """Raise AgentFailure when the time is up, Interrupted when the run is being stopped.

        A model that has been asked may answer late, for as long as a provider may fail: then it is an InfraError.
        """
        if self._stop.is_set():
            raise Interrupted("stopped")
        if self._time_limit is None or self.seconds < self._time_limit:
            return
        limit = f"time limit of {self._time_limit:g} s{self._time_limit_from}"
        if self._asked_at is None:
            raise AgentFailure("time_limit", f"{limit} reached")
        if self.seconds - self._time_limit >= patience_seconds():
            raise InfraError(
                f"model {self.model!r} has not answered by {patience_seconds():g} s after the {limit}"
            )

    def check_limits(self) -> None:
        """Before each attempt to ask a model: AgentFailure at a limit, Interrupted when the run is being stopped.

        The model has answered when a reply or a step comes. If this is called again before that, the attempt has
        failed: its time, and the pause after it, are not the agent's.
        """
        now = time.monotonic()
        if self._asked_at is not None:
            self._outage_seconds += now - self._asked_at
            self._failing_since = self._failing_since or now
            if now - self._failing_since >= patience_seconds():
                raise InfraError(f"model {self.model!r} has failed for {patience_seconds():g} s")
            self._asked_at = None
        self._check(self.usage.cost)
        self._asked_at = now

    def _model_answered(self) -> None:
        self._asked_at = self._failing_since = None

    def _check(self, cost: float) -> None:
        self.check_running()
        limits = self.limits
        if limits.steps is not None and self.steps >= limits.steps:
            raise AgentFailure("step_limit", f"step limit of {limits.steps} reached")
        if limits.cost is not None and cost >= limits.cost:
            raise AgentFailure("cost_limit", f"cost limit of ${limits.cost:g} reached")

    def _run_command(self, command: str, timeout_seconds: float, stdin: bytes) -> CommandResult:
        limit = self._capped(timeout_seconds)
        result = self._sandbox.run(["bash", "-c", command], cwd=REPO_DIR, timeout_seconds=limit, stdin=stdin)
        self.sandbox_seconds += result.duration_seconds
        return result

    def _begin_step(self) -> None:
        self._model_answered()
        # What the last call asked for is paid: it is done, although the call may have reached the limit.
        self._check(self._cost_before_call)
        self.steps += 1
        if self._inbox is not None:
            self._inbox.step = self.steps

    def _record_step(self, action: str, args: Mapping[str, object], observation: str, **more: object) -> None:
        self._recorder.entry(action, args, observation, step=self.steps, **more)

    def _capped(self, timeout_seconds: float) -> float:
        """Never longer than the agent has left."""
        if self._time_limit is None:
            return timeout_seconds
        return max(0.05, min(timeout_seconds, self._time_limit - self.seconds))
