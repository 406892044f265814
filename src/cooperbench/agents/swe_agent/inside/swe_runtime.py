"""SWE-ReX's deployment and runtime over our sandbox, and a hook for messages. Runs in SWE-agent's environment.

SWE-agent runs every call in an event loop of its own, so nothing here may be bound to one; the calls block, which is
fine with one agent a process.
"""

from __future__ import annotations

import base64
import os
import shlex
from pathlib import Path
from typing import Any

from client import Harness, Result, Shell, message_text
from swerex.deployment.abstract import AbstractDeployment
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError, SessionDoesNotExistError
from swerex.runtime import abstract as rex

_DEFAULT_SECONDS = 600.0
_QUICK_PIP = Path(__file__).with_name("quick_pip.sh")
_FORGET_QUICK_PIP = "unset -f pip pip3 _cb_pip _cb_offline _cb_hopeless"


class AgentOver(BaseException):
    """The harness has ended the agent. Not an Exception: SWE-agent would take those for the model's fault."""


class SandboxRuntime(rex.AbstractRuntime):
    """What SWE-agent can do in a sandbox."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        harness.ended_as = AgentOver
        self._shells: dict[str, Shell] = {}
        self.action: tuple[str, str] | None = None
        """The thought and the command of the agent that is being carried out; None: the framework's own doing."""
        self.installing = False
        """Tool bundles are being installed."""

    async def is_alive(self, *, timeout: float | None = None) -> rex.IsAliveResponse:  # noqa: ARG002
        return rex.IsAliveResponse(is_alive=True)

    async def create_session(self, request: rex.CreateSessionRequest) -> rex.CreateSessionResponse:
        self._shells[request.session] = Shell(self._harness, request.session, "/")
        sources = " ".join(
            f"[ ! -e {shlex.quote(path)} ] || . {shlex.quote(path)};" for path in request.startup_source
        )
        result = self._run(self._shells[request.session], sources or "true", request.startup_timeout)
        return rex.CreateBashSessionResponse(output=result.stdout)

    async def run_in_session(self, action: rex.Action) -> rex.Observation:
        shell = self._shells.get(action.session)
        if shell is None:
            raise SessionDoesNotExistError(f"no session {action.session!r}")
        if isinstance(action, rex.BashInterruptAction):
            # A command that took too long has been ended already.
            return rex.BashObservation(output="", exit_code=0)
        command = with_quick_pip(action.command) if self.installing else action.command
        result = self._run(shell, command, action.timeout)
        if result.timed_out:
            raise CommandTimeoutError(f"{action.command!r} took longer than {action.timeout} seconds")
        if action.check == "raise" and result.returncode:
            raise NonZeroExitCodeError(
                f"{action.command!r} ended with exit code {result.returncode}: {action.error_msg}\n{result.stdout}"
            )
        return rex.BashObservation(output=result.stdout, exit_code=result.returncode)

    async def close_session(self, request: rex.CloseSessionRequest) -> rex.CloseSessionResponse:
        self._shells.pop(request.session, None)
        return rex.CloseBashSessionResponse()

    async def execute(self, command: rex.Command) -> rex.CommandResponse:
        words = command.command if isinstance(command.command, str) else shlex.join(command.command)
        for name, value in (command.env or {}).items():
            words = f"export {name}={shlex.quote(value)}; {words}"
        if command.cwd:
            words = f"cd {shlex.quote(str(command.cwd))} && {{ {words}\n}}"
        result = self._run_unrecorded(words, command.timeout or _DEFAULT_SECONDS)
        if result.timed_out:
            raise CommandTimeoutError(f"{command.command!r} took longer than {command.timeout} seconds")
        if command.check and result.returncode:
            raise NonZeroExitCodeError(f"{command.command!r} ended with exit code {result.returncode}")
        return rex.CommandResponse(stdout=result.stdout, stderr=result.stderr, exit_code=result.returncode)

    async def read_file(self, request: rex.ReadFileRequest) -> rex.ReadFileResponse:
        data = self._harness.read_file(str(request.path))
        return rex.ReadFileResponse(
            content=data.decode(request.encoding or "utf-8", request.errors or "strict")
        )

    async def write_file(self, request: rex.WriteFileRequest) -> rex.WriteFileResponse:
        self._place(str(request.path), request.content.encode("utf-8", "surrogateescape"))
        return rex.WriteFileResponse()

    async def upload(self, request: rex.UploadRequest) -> rex.UploadResponse:
        source, target = Path(request.source_path), str(request.target_path)
        if source.is_file():
            self._place(target, source.read_bytes(), executable=os.access(source, os.X_OK))
        elif source.is_dir():
            self._upload_folder(source, target)
        return rex.UploadResponse()

    async def close(self) -> rex.CloseResponse:
        self._shells.clear()
        return rex.CloseResponse()

    def _run(self, shell: Shell, command: str, seconds: float | None) -> Result:
        thought, _ = self.action or ("", "")
        is_step = self.action is not None
        return shell.run(command, timeout_seconds=seconds or _DEFAULT_SECONDS, step=is_step, thought=thought)

    def _upload_folder(self, source: Path, target: str) -> None:
        """All in one command: where the sandbox is far away, each file by itself would take a while."""
        lines = ["set -e"]
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                place = Path(target, path.relative_to(source))
                name, mode = shlex.quote(str(place)), 755 if os.access(path, os.X_OK) else 644
                lines += [f"mkdir -p {shlex.quote(str(place.parent))}", f"base64 -d >{name} <<'.'"]
                lines += [base64.b64encode(path.read_bytes()).decode(), ".", f"chmod {mode} {name}"]
        placed = self._run_unrecorded("bash", _DEFAULT_SECONDS, "\n".join(lines).encode())
        if placed.returncode:
            raise NonZeroExitCodeError(f"{source.name} cannot be placed at {target}: {placed.output}")

    def _run_unrecorded(self, command: str, seconds: float, stdin: bytes = b"") -> Result:
        return self._harness.exec(command, timeout_seconds=seconds, step=False, stdin=stdin)

    def _place(self, path: str, data: bytes, *, executable: bool = False) -> None:
        self._harness.write_file(path, data, step=False, executable=executable)


def with_quick_pip(command: str) -> str:
    """The command with a pip that does not try what cannot work."""
    return f"{_QUICK_PIP.read_text('utf-8')}\n{command}\n_cb_code=$?; {_FORGET_QUICK_PIP}; (exit $_cb_code)"


class SandboxDeployment(AbstractDeployment):
    """A sandbox that is there already, and that is not ours to end."""

    def __init__(self, harness: Harness) -> None:
        self._runtime = SandboxRuntime(harness)

    def add_hook(self, hook: Any) -> None:
        """There is nothing to tell it: the sandbox was made elsewhere."""

    async def is_alive(self, *, timeout: float | None = None) -> rex.IsAliveResponse:
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """It has been started."""

    async def stop(self) -> None:
        await self._runtime.close()

    @property
    def runtime(self) -> SandboxRuntime:
        return self._runtime

    def __del__(self) -> None:
        """Instead of the base's, which would stop it in an event loop that is gone."""


class ColleagueHook:
    """An agent hook of SWE-agent's, without its base class: messages in, prompts and actions to the record."""

    def __init__(self, harness: Harness, runtime: SandboxRuntime) -> None:
        self._harness = harness
        self._runtime = runtime
        self._agent: Any = None
        self._told: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda **_: None
        raise AttributeError(name)

    def on_init(self, *, agent: Any) -> None:
        self._agent = agent

    def on_tools_installation_started(self) -> None:
        self._runtime.installing = True

    def on_setup_attempt(self) -> None:
        """They are installed."""
        self._runtime.installing = False

    def on_query_message_added(self, *, role: str, content: Any, message_type: str, **_: Any) -> None:
        """The prompts, once each; what the model and the sandbox say is on record already."""
        kind = {"system_prompt": "system"}.get(message_type, "task" if role == "user" else "")
        if kind and kind not in self._told:
            self._told.add(kind)
            self._harness.tell(content if isinstance(content, str) else str(content), kind)

    def on_step_start(self) -> None:
        """Before the model is asked: what colleagues wrote."""
        for message in self._harness.incoming():
            self._agent._append_history(
                {
                    "role": "user",
                    "content": message_text(message["from"], message["text"]),
                    "agent": self._agent.name,
                    "message_type": "user",
                }
            )

    def on_action_started(self, *, step: Any) -> None:
        self._runtime.action = (step.thought, step.action)

    def on_action_executed(self, *, step: Any) -> None:  # noqa: ARG002  # the hook's signature
        self._runtime.action = None
