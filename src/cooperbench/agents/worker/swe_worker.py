"""The worker of the agent `swe_agent`, run in its environment: SWE-agent's SWEEnv, agent and configs on our sandbox.

SWE-agent runs every call of the runtime in an event loop of its own, so nothing here may be bound to one.
"""

from __future__ import annotations

import base64
import os
import shlex
from pathlib import Path
from typing import Any

import yaml
from client import MODEL_CALL_SECONDS, BadConfig, Harness, Result, Shell, Verdict, run_worker
from pydantic import ValidationError
from swerex.deployment.dummy import DummyDeployment
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError, SessionDoesNotExistError
from swerex.runtime import abstract as rex
from swerex.runtime.dummy import DummyRuntime

_RECORD = "swe_agent"
"""The folder with what SWE-agent itself writes down, beside trajectory.json."""
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
    """What SWE-agent can do in a sandbox. What needs no sandbox is the dummy's."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        self._harness = harness
        self._shells: dict[str, Shell] = {}
        self.thought: str | None = None
        """Of the agent's action that is being carried out; None: the framework's own doing."""

    async def create_session(self, request: rex.CreateSessionRequest) -> rex.CreateSessionResponse:
        self._shells[request.session] = Shell(self._harness, request.session, "/")
        files = [shlex.quote(path) for path in request.startup_source]
        sources = " ".join(f"[ ! -e {file} ] || . {file};" for file in files)
        result = self._run(
            self._shells[request.session], sources or "true", request.startup_timeout
        )
        return rex.CreateBashSessionResponse(output=result.stdout)

    async def run_in_session(self, action: rex.Action) -> rex.Observation:
        shell = self._shells.get(action.session)
        if shell is None:
            raise SessionDoesNotExistError(f"no session {action.session!r}")
        if isinstance(action, rex.BashInterruptAction):
            # A command that took too long has been ended already.
            return rex.BashObservation(output="", exit_code=0)
        command = action.command
        if self.thought is None and "install.sh" in command:
            # Of a tool bundle: some call pip, which would try again for many seconds where there is no network.
            command = f"PIP_RETRIES=0 eval {shlex.quote(command)}"
        result = self._run(shell, command, action.timeout)
        _check(result, action.command, raises=action.check == "raise", more=f": {action.error_msg}")
        return rex.BashObservation(output=result.stdout, exit_code=result.returncode)

    async def execute(self, command: rex.Command) -> rex.CommandResponse:
        words = command.command if isinstance(command.command, str) else shlex.join(command.command)
        for name, value in (command.env or {}).items():
            words = f"export {name}={shlex.quote(value)}; {words}"
        if command.cwd:
            words = f"cd {shlex.quote(str(command.cwd))} && {{ {words}\n}}"
        seconds = command.timeout or _DEFAULT_SECONDS
        result = self._harness.exec(words, timeout_seconds=seconds, step=False)
        _check(result, command.command, raises=command.check)
        return rex.CommandResponse(
            stdout=result.stdout, stderr=result.stderr, exit_code=result.returncode
        )

    async def read_file(self, request: rex.ReadFileRequest) -> rex.ReadFileResponse:
        data = self._harness.read_file(str(request.path))
        text = data.decode(request.encoding or "utf-8", request.errors or "strict")
        return rex.ReadFileResponse(content=text)

    async def write_file(self, request: rex.WriteFileRequest) -> rex.WriteFileResponse:
        data = request.content.encode("utf-8", "surrogateescape")
        self._harness.write_file(str(request.path), data, step=False)
        return rex.WriteFileResponse()

    async def upload(self, request: rex.UploadRequest) -> rex.UploadResponse:
        """All in one command: where the sandbox is far away, each file by itself would take a while."""
        source, target = Path(request.source_path), Path(request.target_path)
        lines = ["set -e"]
        for path in [source, *sorted(source.rglob("*"))]:
            if path.is_file() and "__pycache__" not in path.parts:
                place = target / path.relative_to(source)
                name, mode = shlex.quote(str(place)), 755 if os.access(path, os.X_OK) else 644
                lines += [f"mkdir -p {shlex.quote(str(place.parent))}", f"base64 -d >{name} <<'.'"]
                lines += [base64.b64encode(path.read_bytes()).decode(), ".", f"chmod {mode} {name}"]
        placed = self._harness.exec("bash", step=False, stdin="\n".join(lines).encode())
        _check(placed, f"placing {source.name} at {target}", raises=True)
        return rex.UploadResponse()

    def _run(self, shell: Shell, command: str, seconds: float | None) -> Result:
        is_step, thought = self.thought is not None, self.thought or ""
        return shell.run(
            command, timeout_seconds=seconds or _DEFAULT_SECONDS, step=is_step, thought=thought
        )


def _check(result: Result, command: Any, *, raises: bool, more: str = "") -> None:
    if result.timed_out:
        raise CommandTimeoutError(f"{command!r} took too long")
    if raises and result.returncode:
        raise NonZeroExitCodeError(
            f"{command!r} ended with exit code {result.returncode}{more}\n{result.output}"
        )


class TeammateHook:
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

    def on_query_message_added(
        self, *, role: str, content: Any, message_type: str, **_: Any
    ) -> None:
        """The prompts, once each; what the model and the sandbox say is on record already."""
        kind = "system" if message_type == "system_prompt" else "task" if role == "user" else ""
        if kind and kind not in self._told:
            self._told.add(kind)
            self._harness.tell(str(content), kind)

    def on_step_start(self) -> None:
        """Before the model is asked: what teammates wrote."""
        for message in self._harness.incoming():
            entry = {"role": "user", "content": message["shown"], "message_type": "user"}
            self._agent._append_history(entry | {"agent": self._agent.name})

    def on_action_started(self, *, step: Any) -> None:
        self._runtime.thought = step.thought or ""

    def on_action_executed(self, *, step: Any) -> None:  # noqa: ARG002  # the hook's signature
        self._runtime.thought = None


def work(harness: Harness) -> Verdict:
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
        raise BadConfig(f"{'.'.join(map(str, ('agent', *first['loc'])))}: {first['msg']}") from None
    except Exception as error:  # e.g. a KeyError for a variable that the help of a tool names
        raise BadConfig(f"SWE-agent cannot use it: {type(error).__name__}: {error}") from error
    # Nothing is to be deployed: the sandbox is there already, and not ours to end.
    deployment, runtime = DummyDeployment(), SandboxRuntime(harness)
    deployment.runtime = runtime
    agent.add_hook(TeammateHook(harness, runtime))
    # The repository is clean and on its only commit; SWE-agent would fetch from remotes that are not there.
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
    exit_status, most_calls = (
        str(result.info.get("exit_status")),
        config.model.per_instance_call_limit,
    )
    if "exit_cost" in exit_status and 0 < most_calls < agent.model.stats.api_calls:
        return Verdict(
            "done", "step_limit", f"limit of {most_calls} model calls reached (agent config)"
        )
    return outcome(exit_status)


def outcome(exit_status: str) -> Verdict:
    """How it ended; `submitted (exit_cost)` is SWE-agent's way of saying that it handed in for the agent."""
    reason = exit_status.removeprefix("submitted").strip(" ()")
    if reason in ("", "exit_command"):
        return Verdict("done", "submitted", "")
    if reason in _STATUSES:
        return Verdict("done", _STATUSES[reason], f"SWE-agent: {exit_status}")
    return Verdict("failed", "infra", f"SWE-agent ended with {exit_status}")


def agent_settings(start: dict[str, Any]) -> dict[str, Any]:
    """SWE-agent's config with the user's over it, and the model."""
    from sweagent.utils.serialization import merge_nested_dicts

    config = start["config"] or {}
    if not isinstance(config, dict) or not config.keys() <= {"extends", "agent"}:
        raise BadConfig("it is a mapping with extends and agent, and nothing else")
    own = config.get("agent") or {}
    folder = Path(os.environ["SWE_AGENT_CONFIG_DIR"])
    extended = folder / str(config.get("extends", "default.yaml"))
    if not extended.is_file():
        raise BadConfig(f"SWE-agent has no config {extended.name!r} to extend")
    settings: dict[str, Any] = merge_nested_dicts(
        yaml.safe_load(extended.read_text())["agent"], own
    )
    model = settings.setdefault("model", {})
    model["name"] = start["model"]
    model.setdefault("completion_kwargs", {}).setdefault("timeout", MODEL_CALL_SECONDS)
    for name in ("per_instance_cost_limit", "total_cost_limit"):
        # The harness counts the cost; SWE-agent's defaults would refuse models without a known price.
        model[name] = (own.get("model") or {}).get(name, 0)
    tools = settings.setdefault("tools", {})
    for bundle in tools.setdefault("bundles", []):
        bundle["path"] = str((folder.parent / bundle["path"]).resolve())
    return settings


if __name__ == "__main__":
    run_worker(work)
