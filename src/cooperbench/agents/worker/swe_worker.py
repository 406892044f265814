"""The worker of the agent `swe_agent`: SWE-agent's SWEEnv, agent and configs on our sandbox.

It runs in the environment of SWE-agent, which runs each call of the runtime in a new event loop, so
that nothing here may be bound to one.
"""

from __future__ import annotations

import base64
import os
import shlex
from pathlib import Path
from typing import Any

import yaml
from client import (
    MODEL_CALL_SECONDS,
    BadConfig,
    Harness,
    JsonObject,
    Result,
    Shell,
    Verdict,
    run_worker,
)
from pydantic import ValidationError
from swerex.deployment.dummy import DummyDeployment
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError, SessionDoesNotExistError
from swerex.runtime import abstract as rex
from swerex.runtime.dummy import DummyRuntime

_RECORD = "swe_agent"
"""Folder for files of SWE-agent, beside trajectory.json."""
_DEFAULT_SECONDS = 600.0
_STATUSES = {
    "exit_context": "context_overflow",
    "exit_cost": "cost_limit",
    "exit_format": "format_error",
    "exit_total_execution_time": "time_limit",
    "exit_command_timeout": "time_limit",
    "exit_forfeit": "gave_up",
}


class SandboxRuntime(DummyRuntime):
    """SWE-agent's runtime on a sandbox. The dummy does what needs no sandbox."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        self._harness = harness
        self._shells: dict[str, Shell] = {}
        self.thought: str | None = None
        """Thought of the agent's current action; None during commands of the framework."""

    async def create_session(self, request: rex.CreateSessionRequest) -> rex.CreateSessionResponse:
        """Open a shell, and load its startup files."""
        self._shells[request.session] = Shell(self._harness, request.session, "/")
        files = [shlex.quote(path) for path in request.startup_source]
        sources = " ".join(f"[ ! -e {file} ] || . {file};" for file in files)
        result = self._run(
            self._shells[request.session], sources or "true", request.startup_timeout
        )
        return rex.CreateBashSessionResponse(output=result.stdout)

    async def run_in_session(self, action: rex.Action) -> rex.Observation:
        """Run a command in a shell."""
        shell = self._shells.get(action.session)
        if shell is None:
            raise SessionDoesNotExistError(f"no session {action.session!r}")
        if isinstance(action, rex.BashInterruptAction):
            # A command that took too long has been ended already.
            return rex.BashObservation(output="", exit_code=0)
        command = action.command
        if self.thought is None and "install.sh" in command:
            # Tool bundles may call pip, which would retry for many seconds without a network.
            command = f"PIP_RETRIES=0 eval {shlex.quote(command)}"
        result = self._run(shell, command, action.timeout)
        _check(
            result, action.command, raises=action.check == "raise", detail=f": {action.error_msg}"
        )
        return rex.BashObservation(output=result.stdout, exit_code=result.returncode)

    async def execute(self, command: rex.Command) -> rex.CommandResponse:
        """Run a command outside of the shells."""
        script = command.command
        if not isinstance(script, str):
            script = shlex.join(script)
        for name, value in (command.env or {}).items():
            script = f"export {name}={shlex.quote(value)}; {script}"
        if command.cwd:
            script = f"cd {shlex.quote(str(command.cwd))} && {{ {script}\n}}"
        seconds = command.timeout or _DEFAULT_SECONDS
        result = self._harness.exec(script, timeout_seconds=seconds, step=False)
        _check(result, command.command, raises=command.check)
        return rex.CommandResponse(
            stdout=result.stdout, stderr=result.stderr, exit_code=result.returncode
        )

    async def read_file(self, request: rex.ReadFileRequest) -> rex.ReadFileResponse:
        """Read a text file."""
        data = self._harness.read_file(str(request.path))
        text = data.decode(request.encoding or "utf-8", request.errors or "strict")
        return rex.ReadFileResponse(content=text)

    async def write_file(self, request: rex.WriteFileRequest) -> rex.WriteFileResponse:
        """Write a text file."""
        data = request.content.encode("utf-8", "surrogateescape")
        self._harness.write_file(str(request.path), data, step=False)
        return rex.WriteFileResponse()

    async def upload(self, request: rex.UploadRequest) -> rex.UploadResponse:
        """Upload a folder with one command, which is faster than one for each file."""
        source, target = Path(request.source_path), Path(request.target_path)
        lines = ["set -e"]
        for path in [source, *sorted(source.rglob("*"))]:
            if path.is_file() and "__pycache__" not in path.parts:
                lines += _upload_lines(path, target / path.relative_to(source))
        result = self._harness.exec("bash", step=False, stdin="\n".join(lines).encode())
        _check(result, f"uploading {source.name} to {target}", raises=True)
        return rex.UploadResponse()

    def _run(self, shell: Shell, command: str, seconds: float | None) -> Result:
        return shell.run(
            command,
            timeout_seconds=seconds or _DEFAULT_SECONDS,
            step=self.thought is not None,
            thought=self.thought or "",
        )


def _upload_lines(source: Path, target: Path) -> list[str]:
    """Return a shell script that creates a copy of a file."""
    path = shlex.quote(str(target))
    mode = 755 if os.access(source, os.X_OK) else 644
    return [
        f"mkdir -p {shlex.quote(str(target.parent))}",
        f"base64 -d >{path} <<'.'",
        base64.b64encode(source.read_bytes()).decode(),
        ".",
        f"chmod {mode} {path}",
    ]


def _check(result: Result, command: Any, *, raises: bool, detail: str = "") -> None:
    if result.timed_out:
        raise CommandTimeoutError(f"{command!r} took too long")
    if raises and result.returncode:
        raise NonZeroExitCodeError(
            f"{command!r} ended with exit code {result.returncode}{detail}\n{result.output}"
        )


class TeammateHook:
    """A hook for SWE-agent's agent: adds teammates' messages, and records prompts and actions.

    It does not inherit from SWE-agent's class, which can only be imported later.
    """

    def __init__(self, harness: Harness, runtime: SandboxRuntime) -> None:
        self._harness = harness
        self._runtime = runtime
        self._agent: Any = None
        self._recorded_kinds: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda **_: None
        raise AttributeError(name)

    def on_init(self, *, agent: Any) -> None:
        """Remember the agent."""
        self._agent = agent

    def on_query_message_added(
        self, *, role: str, content: Any, message_type: str, **_: Any
    ) -> None:
        """Record each prompt once. Replies and observations are on record already."""
        kind = ""
        if message_type == "system_prompt":
            kind = "system"
        elif role == "user":
            kind = "task"
        if kind and kind not in self._recorded_kinds:
            self._recorded_kinds.add(kind)
            self._harness.tell(str(content), kind)

    def on_step_start(self) -> None:
        """Add teammates' messages before the model is called."""
        for message in self._harness.incoming():
            entry = {"role": "user", "content": message["shown"], "message_type": "user"}
            self._agent._append_history(entry | {"agent": self._agent.name})

    def on_action_started(self, *, step: Any) -> None:
        """Let the commands that follow count as a step."""
        self._runtime.thought = step.thought or ""

    def on_action_executed(self, *, step: Any) -> None:  # noqa: ARG002  # the hook's signature
        """Let the commands that follow be the framework's own."""
        self._runtime.thought = None


def work(harness: Harness) -> Verdict:
    """Run the agent until it ends."""
    from sweagent.agent.agents import DefaultAgentConfig, get_agent_from_config
    from sweagent.agent.problem_statement import TextProblemStatement
    from sweagent.environment.repo import PreExistingRepoConfig
    from sweagent.environment.swe_env import SWEEnv
    from sweagent.exceptions import TotalCostLimitExceededError

    start = harness.start
    settings = agent_settings(start)
    try:
        config = DefaultAgentConfig(**settings)
        agent = get_agent_from_config(config)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(["agent", *(str(part) for part in first["loc"])])
        raise BadConfig(f"{location}: {first['msg']}") from None
    except Exception as error:  # e.g. a KeyError for a variable that the help of a tool names
        raise BadConfig(f"SWE-agent cannot use it: {type(error).__name__}: {error}") from error
    # The sandbox exists already, and the harness ends it.
    deployment = DummyDeployment()
    runtime = SandboxRuntime(harness)
    deployment.runtime = runtime
    agent.add_hook(TeammateHook(harness, runtime))
    # The repository is clean. A reset would fetch from remotes, which it does not have.
    repo = PreExistingRepoConfig(repo_name=str(start["repo_dir"]).lstrip("/"), reset=False)
    env = SWEEnv(deployment=deployment, repo=repo, post_startup_commands=[])
    folder = Path(start["folder"]) / _RECORD
    folder.mkdir(parents=True, exist_ok=True)
    env.start()
    task = TextProblemStatement(text=start["prompt"], id=str(start["agent_id"]))
    try:
        result = agent.run(env=env, problem_statement=task, output_dir=folder)
    except TotalCostLimitExceededError as error:
        return Verdict("done", "cost_limit", f"SWE-agent: {error}")
    exit_status = str(result.info.get("exit_status"))
    max_calls = config.model.per_instance_call_limit
    if "exit_cost" in exit_status and 0 < max_calls < agent.model.stats.api_calls:
        reason = f"limit of {max_calls} model calls reached (agent config)"
        return Verdict("done", "step_limit", reason)
    return outcome(exit_status)


def outcome(exit_status: str) -> Verdict:
    """Return the verdict for SWE-agent's exit status.

    `submitted (exit_cost)` means that the agent reached a limit, and SWE-agent submitted its work.
    """
    reason = exit_status.removeprefix("submitted").strip(" ()")
    if reason in ("", "exit_command"):
        return Verdict("done", "submitted", "")
    if reason in _STATUSES:
        return Verdict("done", _STATUSES[reason], f"SWE-agent: {exit_status}")
    return Verdict("done", "crashed", f"SWE-agent ended with {exit_status}")


def agent_settings(start: JsonObject) -> JsonObject:
    """Return SWE-agent's config, with the user's config merged into it, and the model."""
    from sweagent.utils.serialization import merge_nested_dicts

    config = start["config"] or {}
    if not isinstance(config, dict) or not config.keys() <= {"extends", "agent"}:
        raise BadConfig("it may only be a mapping with extends and agent")
    own = config.get("agent") or {}
    folder = Path(os.environ["SWE_AGENT_CONFIG_DIR"])
    extended = folder / str(config.get("extends", "default.yaml"))
    if not extended.is_file():
        raise BadConfig(f"SWE-agent has no config {extended.name!r} to extend")
    settings: JsonObject = merge_nested_dicts(yaml.safe_load(extended.read_text())["agent"], own)
    model = settings.setdefault("model", {})
    model["name"] = start["model"]
    model.setdefault("completion_kwargs", {}).setdefault("timeout", MODEL_CALL_SECONDS)
    for name in ("per_instance_cost_limit", "total_cost_limit"):
        # The harness counts the cost. SWE-agent's defaults would reject models without a price.
        model[name] = (own.get("model") or {}).get(name, 0)
    tools = settings.setdefault("tools", {})
    for bundle in tools.setdefault("bundles", []):
        bundle["path"] = str((folder.parent / bundle["path"]).resolve())
    return settings


if __name__ == "__main__":
    run_worker(work)
