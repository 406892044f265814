"""One container, from its creation to its removal.

It has a kernel in common with the host and its own file system, processes, limits and network. No new privileges can
be gained in it, and of the capabilities of root it has those that package managers and test suites need. Root inside
is root of the engine's machine if it ever got out, unless the engine is rootless or remaps users.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from cooperbench.backends.docker.containers import SCRATCH_DIR
from cooperbench.backends.docker.faults import EngineGone, NotRunning, NotThere, lacks_tool
from cooperbench.backends.docker.stream import STDERR
from cooperbench.errors import InfraError, SandboxDead, SandboxError, SandboxTimeout
from cooperbench.sandbox import channel_script
from cooperbench.sandbox.base_sandbox import BaseSandbox
from cooperbench.sandbox.channel import (
    CappedOutput,
    Channel,
    ChannelBroken,
    ChannelPool,
    ChannelUnavailable,
    Command,
    last_script,
)
from cooperbench.sandbox.contract import TIMEOUT_EXIT_CODE, CommandResult
from cooperbench.sandbox.transport import stream_over

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cooperbench.backends.docker.engine import Engine
    from cooperbench.backends.docker.stream import ContainerStream
    from cooperbench.sandbox.contract import Stream

_LIFETIME_OVER = (86, 143)
_CLOCKS_APART_SECONDS = 2.0
_STREAM_ENDED = 87
_KILLED = 137
LAST_COMMAND = "/cooperbench/last"
_STREAM = 'export COOPERBENCH_COMMAND="$1"; shift; exec "$@"'
_OOM_KILLS = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null"
_NO_SHELL = r"exec (sh|/run/podman-init)\b.*(failed|no such file)"
_DYING_SECONDS = 5.0
_log = logging.getLogger("cooperbench")


def first_command(lifetime_seconds: float, *, trusted: bool) -> list[str]:
    """What a container is started with. `trusted`: its image's tools have been tried before."""
    supervisor = resources.files(__package__).joinpath("supervisor.sh").read_text("utf-8")
    seconds = str(max(1, round(lifetime_seconds)))
    words = ["sh", "-c", supervisor, "supervisor", channel_script(), f"{SCRATCH_DIR}/1", seconds]
    return [*words, "trusted" if trusted else ""]


class DockerSandbox(BaseSandbox):
    """A container."""

    _losses = (NotThere, NotRunning, EngineGone)

    def __init__(
        self,
        engine: Engine,
        container: str,
        stream: ContainerStream,
        *,
        image: str,
        lifetime_seconds: float,
        workdir: str,
        memory_bytes: int | None,
        on_end: Callable[[DockerSandbox], None],
    ) -> None:
        """Takes over a container that has just been started, and `stream`, the stdin and stdout of its supervisor."""
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir)
        self.container = container
        self.image = image
        self._engine = engine
        self._stream = stream
        self._memory_bytes = memory_bytes
        self._on_end = on_end
        self._end_lock = threading.Lock()
        self._removed = False
        self._oom_kills = 0
        next(self._numbers)  # the supervisor's channel
        first: list[Channel] = [Channel(_Held(stream))]
        self._first_channel = first[0]
        self._commands = ChannelPool(lambda: first.pop() if first else self._open_channel())
        try:
            first[0].handshake()
        except ChannelUnavailable as error:
            self.end(str(error))
            raise lacks_tool(image, error.reason) from error
        except (SandboxDead, SandboxTimeout) as error:
            reason = self._find_reason() or str(error)
            heard = stream.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            self.end(reason)
            if re.search(_NO_SHELL, heard, re.IGNORECASE):
                raise lacks_tool(image, "sh is missing") from error
            raise SandboxError(
                f"the sandbox did not start: {reason}{': ' if heard else ''}{heard}"
            ) from error
        except BaseException:
            self.end("it was given up while starting")
            raise

    def open_stream(self, argv: Sequence[str]) -> Stream:
        mark = f"stream-{self.container[:12]}-{next(self._numbers)}"
        command = ["sh", "-c", _STREAM, "sh", mark, *argv]
        with self._alive(), self._engine.faults("opening a stream"):
            stream = self._engine.exec(self.container, command, self._workdir)
        return stream_over(stream, lambda: self._end_stream(mark))

    def end(self, reason: str) -> None:
        """Kill everything in it and remove it. Calling it again does nothing."""
        with self._end_lock:
            self._end_reason = self._end_reason or reason
            if self._removed:
                return
            self._removed = True
            try:
                self._engine.remove_container(self.container)
            except InfraError as error:
                # Nothing more can be done now; the next start removes what is left.
                _log.warning("%s", error)
            finally:
                self._commands.close()
                self._stream.close()
                self._on_end(self)

    def _run(self, command: Command) -> CommandResult:
        result = super()._run(command)
        if result.returncode == _KILLED and self._memory_bytes and self._ran_out_of_memory():
            note = f"[killed: the sandbox ran out of its memory of {self._memory_bytes / 1024**2:.0f} MiB]\n"
            result = replace(result, stderr=result.stderr + note.encode())
        return result

    def _run_last(self, command: Command) -> CommandResult:
        started = time.monotonic()
        with self._alive():
            self._commands.write_file(LAST_COMMAND, last_script(command))
            self._first_channel.leave()
        out, err = CappedOutput(command.output_limit), CappedOutput(command.output_limit)
        deadline, timed_out = started + command.timeout_seconds, False
        try:
            while frames := self._stream.receive_frames(deadline):
                for frame in frames:
                    (err if frame.source == STDERR else out).add(frame.data)
            code = self._exit_code()
        except TimeoutError:
            code, timed_out = TIMEOUT_EXIT_CODE, True
        seconds = time.monotonic() - started
        return CommandResult(code, out.taken(), err.taken(), out.cut, err.cut, timed_out, seconds)

    def _exit_code(self) -> int:
        """Of the container, whose output has ended."""
        deadline = time.monotonic() + _DYING_SECONDS
        while time.monotonic() < deadline:
            with self._engine.faults("asking for a container's exit code"):
                state = self._engine.api.inspect_container(self.container)["State"]
            if not state["Running"]:
                return int(state["ExitCode"])
            time.sleep(0.01)
        raise SandboxError("the connection to the engine was lost while the tests ran")

    def _open_channel(self) -> Channel:
        self._check_alive()
        argv = ["bash", "-c", channel_script(), "channel", f"{SCRATCH_DIR}/{next(self._numbers)}", "trusted"]
        try:
            with self._engine.faults("opening a channel"):
                channel = Channel(self._engine.exec(self.container, argv))
            channel.handshake()
        except (ChannelBroken, NotRunning, NotThere, EngineGone) as error:
            if self._find_end():
                raise self.death() from error
            raise SandboxError(f"no channel into the sandbox: {error}") from error
        return channel

    def _ran_out_of_memory(self) -> bool:
        """Has the kernel killed processes for it since we last looked?"""
        with self._alive():
            found = self._commands.run(Command(["sh", "-c", _OOM_KILLS], timeout_seconds=30, cwd="/")).stdout
        kills = sum(int(count) for count in re.findall(rb"^oom_kill (\d+)$", found, re.MULTILINE))
        before, self._oom_kills = self._oom_kills, kills
        return kills > before

    def _find_reason(self) -> str:
        deadline = time.monotonic() + _DYING_SECONDS
        while True:
            try:
                with self._engine.faults("asking for a container's state"):
                    state = self._engine.api.inspect_container(self.container)["State"]
            except NotThere:
                return "somebody removed its container"
            except InfraError as error:
                return str(error)
            if not state.get("Running"):
                return self._reason_in(state)
            if time.monotonic() >= deadline:
                return ""
            time.sleep(0.05)

    def _reason_in(self, state: Mapping[str, Any]) -> str:
        code = state.get("ExitCode")
        if code in _LIFETIME_OVER and time.monotonic() > self._deadline - _CLOCKS_APART_SECONDS:
            return f"it reached its lifetime of {self._lifetime_seconds:g} s"
        if code == _STREAM_ENDED:
            return "the connection to its engine was lost"
        self._destroyed = True
        if state.get("OOMKilled"):
            limit = f" of {self._memory_bytes / 1024**2:.0f} MiB" if self._memory_bytes else ""
            return f"it ran out of its memory{limit}"
        if code in (_KILLED, *_LIFETIME_OVER):
            return "its processes were killed"
        return f"its container ended with exit code {code} {state.get('Error') or ''}".strip()


class _Held:
    """The supervisor's stream as a `Transport`: a channel that breaks must not close it, as that ends the container."""

    def __init__(self, stream: ContainerStream) -> None:
        self.send = stream.send
        self.receive = stream.receive

    def close(self) -> None:
        """The sandbox does."""
