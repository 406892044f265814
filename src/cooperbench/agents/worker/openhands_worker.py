"""The worker of the agent `openhands`: the SDK's Agent, LLM and Conversation on our sandbox.

It runs in the environment of OpenHands. The SDK's file editor works on a copy of one file or
folder, which is written back afterwards.
"""

from __future__ import annotations

import gc
import inspect
import os
import posixpath
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

gc.disable()  # garbage collections would take a third of the time of the imports below

from client import (
    MODEL_CALL_SECONDS,
    BadConfig,
    Harness,
    JsonObject,
    Shell,
    Verdict,
    run_worker,
)
from openhands.sdk import LLM, Agent, Conversation, Event, TextContent
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.conversation.state import ConversationExecutionStatus
from openhands.sdk.event import MessageEvent, SystemPromptEvent
from openhands.sdk.event.conversation_error import ConversationErrorEvent
from openhands.sdk.llm import content_to_str
from openhands.sdk.llm.exceptions import types as faults
from openhands.sdk.tool import Tool, ToolDefinition, ToolExecutor, register_tool
from openhands.tools.file_editor import FileEditorAction, FileEditorObservation, FileEditorTool
from openhands.tools.file_editor.impl import FileEditorExecutor
from openhands.tools.preset.default import get_default_condenser
from openhands.tools.task_tracker import TaskTrackerTool
from openhands.tools.terminal import TerminalAction, TerminalObservation, TerminalTool
from openhands.tools.terminal.metadata import CmdOutputMetadata
from pydantic import PrivateAttr

_RECORD = "openhands"
"""Folder for files of the SDK, beside trajectory.json."""
_CONVERSATION_SETTINGS = {
    "max_iteration_per_run",
    "stuck_detection",
    "stuck_detection_thresholds",
    "max_budget_per_run",
}
_SECTIONS = {"llm", "agent", "conversation", "tools", "terminal"}
_TERMINAL_SECONDS = 300.0
_LIMITS = {"MaxIterationsReached": "step_limit", "MaxBudgetReached": "cost_limit"}
_TERMINAL_NOTE = """

### In this environment
* Commands run in {repo_dir}. A command has {seconds:g} seconds, or its `timeout`; then it is ended
  with everything that it started.
* Commands get no input: `is_input` has no effect here.
"""
_INSPECT = """
if [ -d {path} ]; then echo folder; find -L {path} -maxdepth 2 -printf '%y %p\\n' 2>/dev/null
elif [ -x {path} ]; then echo program
elif [ -e {path} ]; then echo file
else echo nothing
fi
"""
"""Prints the kind of a path; for a folder also its entries."""


class TeammateAgent(Agent):
    """The SDK's agent. Teammates' messages are added between two steps; tools use its harness."""

    _harness: Harness = PrivateAttr()
    _terminal_seconds: float = PrivateAttr()

    @property
    def prompt_dir(self) -> str:
        """The SDK's own folder, which the SDK would look for beside this file."""
        return str(Path(inspect.getfile(Agent)).parent / "prompts")

    def step(self, conversation: Any, *args: Any, **kwargs: Any) -> None:
        """Take one step."""
        for message in self._harness.incoming():
            conversation.send_message(message["shown"], sender=message["from"])
        super().step(conversation, *args, **kwargs)


class SandboxTerminal(ToolExecutor):
    """Executes commands of the terminal tool in the sandbox."""

    def __init__(self, harness: Harness, seconds: float) -> None:
        self._shell = Shell(harness, "terminal")
        self._seconds = seconds

    def __call__(
        self,
        action: TerminalAction,
        conversation: Any = None,  # noqa: ARG002  # part of the protocol
    ) -> TerminalObservation:
        """Run a command, or reset the terminal."""
        text = "No command is running: each one runs until it ends, or until its time limit."
        code = 0
        timed_out = False
        if action.reset:
            self._shell.reset()
            text = "The terminal has been reset."
        if action.command.strip() and not action.is_input:
            seconds = action.timeout or self._seconds
            result = self._shell.run(action.command, timeout_seconds=seconds)
            text, code, timed_out = result.output, result.returncode, result.timed_out
            if timed_out:
                text += f"\n[The command was ended: it took longer than {seconds:g} seconds.]"
        return TerminalObservation.from_text(
            text,
            command=action.command,
            exit_code=code,
            timeout=timed_out,
            metadata=CmdOutputMetadata(exit_code=code),
        )


class SandboxEditor(ToolExecutor):
    """Executes actions of the SDK's file editor on copies of files of the sandbox."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._copies = str(Path(os.environ["HOME"]) / "copies")
        self._editor = FileEditorExecutor(workspace_root=self._copies + harness.start["repo_dir"])

    def __call__(self, action: FileEditorAction, conversation: Any = None) -> FileEditorObservation:
        """Execute one action of the editor."""
        if not action.path.startswith("/"):
            return self._in_sandbox(self._editor(action, conversation))
        path = posixpath.normpath(action.path)
        copy = Path(self._copies + path)
        executable = self._fetch(path, copy, is_step=action.command == "view")
        observation = self._editor(action.model_copy(update={"path": str(copy)}), conversation)
        if action.command != "view" and not observation.is_error:
            self._harness.write_file(path, copy.read_bytes(), executable=executable)
        elif action.command != "view":
            self._harness.tell(observation.text, "tool_error")
        return self._in_sandbox(observation)

    def _fetch(self, path: str, copy: Path, *, is_step: bool) -> bool:
        """Copy a file or folder from the sandbox. Return whether it is an executable file."""
        shutil.rmtree(self._copies, ignore_errors=True)
        copy.parent.mkdir(parents=True)
        command = _INSPECT.format(path=shlex.quote(path))
        result = self._harness.exec(command, step=is_step, shown=f"view {path}")
        kind, *lines = result.stdout.splitlines()
        if kind in ("file", "program"):
            copy.write_bytes(self._harness.read_file(path))
        for line in lines:
            # The editor only lists a folder, so names are enough. Folders precede their entries.
            entry = Path(self._copies + posixpath.normpath(line[2:]))
            if line.startswith("d "):
                entry.mkdir(exist_ok=True)
            elif entry.parent.is_dir():
                entry.touch()
        return kind == "program"

    def _in_sandbox(self, observation: FileEditorObservation) -> FileEditorObservation:
        """Return the observation with paths of the sandbox."""
        content = []
        for part in observation.content:
            if isinstance(part, TextContent):
                content.append(TextContent(text=part.text.replace(self._copies, "")))
            else:
                content.append(part)
        path = observation.path and observation.path.replace(self._copies, "")
        return observation.model_copy(update={"content": content, "path": path})


class SandboxTerminalTool(TerminalTool):
    """The SDK's terminal tool on the sandbox."""

    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition]:
        """Return the tool."""
        harness, seconds = conv_state.agent._harness, conv_state.agent._terminal_seconds
        (tool,) = TerminalTool.create(conv_state, executor=SandboxTerminal(harness, seconds))
        note = _TERMINAL_NOTE.format(repo_dir=harness.start["repo_dir"], seconds=seconds)
        return [tool.model_copy(update={"description": tool.description + note})]


class SandboxFileEditorTool(FileEditorTool):
    """The SDK's file editor on the sandbox."""

    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition]:
        """Return the tool."""
        harness = conv_state.agent._harness
        (tool,) = FileEditorTool.create(conv_state)
        workspace, repo_dir = str(conv_state.workspace.working_dir), str(harness.start["repo_dir"])
        changes = {"description": tool.description.replace(workspace, repo_dir)}
        return [tool.set_executor(SandboxEditor(harness)).model_copy(update=changes)]


_TOOLS = {
    "terminal": SandboxTerminalTool,
    "file_editor": SandboxFileEditorTool,
    "task_tracker": TaskTrackerTool,
}


def work(harness: Harness) -> Verdict:
    """Run the agent until its conversation ends."""
    config = harness.start["config"] or {}
    if not isinstance(config, dict) or not set(config) <= _SECTIONS:
        raise BadConfig(f"it may only be a mapping with {', '.join(sorted(_SECTIONS))}")
    model = {"model": harness.start["model"], "usage_id": "agent", "timeout": MODEL_CALL_SECONDS}
    llm = LLM(**(model | section(config, "llm", set(LLM.model_fields))))
    conversation = make_conversation(harness, config, llm)
    try:
        conversation.send_message(harness.start["prompt"])
        conversation.run()
    except ConversationRunError as error:
        return verdict_of_error(error.__cause__ or error, llm.model)
    finally:
        conversation.close()
    return outcome(conversation)


def verdict_of_error(error: BaseException, model: str) -> Verdict:
    """Return the verdict for an error of the SDK. The harness knows about failed model calls."""
    if isinstance(error, faults.LLMContextWindowTooSmallError):
        return Verdict("failed", "user", f"model {model!r}: {error}")
    if isinstance(error, faults.LLMError):
        return Verdict("done", "format_error", str(error))
    return Verdict("done", "crashed", f"{type(error).__name__}: {error}")


def section(config: JsonObject, name: str, allowed: set[str]) -> JsonObject:
    """Return a section of the config, after checking the names of its settings."""
    settings = config.get(name) or {}
    if not isinstance(settings, dict):
        raise BadConfig(f"{name} is not a mapping")
    for key in settings:
        if key not in allowed:
            names = ", ".join(sorted(allowed))
            raise BadConfig(f"{name} has no setting {key!r}; available: {names}")
    return dict(settings)


def make_conversation(harness: Harness, config: JsonObject, llm: LLM) -> Any:
    """Return the SDK's conversation between the agent and its model."""
    workspace = Path(os.environ["HOME"]) / "workspace"
    workspace.mkdir()
    names = config.get("tools", list(_TOOLS))
    if not isinstance(names, list) or not set(names) <= set(_TOOLS):
        raise BadConfig(f"tools must be a list of {', '.join(_TOOLS)}, not {names!r}")
    for name in names:
        register_tool(_TOOLS[name].name, _TOOLS[name])
    settings = {
        "condenser": get_default_condenser(llm=llm.model_copy(update={"usage_id": "condenser"})),
        **section(config, "agent", set(Agent.model_fields) - {"llm", "tools"}),
    }
    agent = TeammateAgent(
        llm=llm, tools=[Tool(name=_TOOLS[name].name) for name in names], **settings
    )
    agent._harness = harness
    terminal = section(config, "terminal", {"timeout_seconds"})
    agent._terminal_seconds = float(terminal.get("timeout_seconds", _TERMINAL_SECONDS))
    options = section(config, "conversation", _CONVERSATION_SETTINGS)
    if harness.start["limits"]["steps"] is not None:
        # The harness counts steps. Keep the SDK's own limit from ending the agent before.
        options.setdefault("max_iteration_per_run", 2 * int(harness.start["limits"]["steps"]) + 50)

    def on_event(event: Event) -> None:
        if isinstance(event, SystemPromptEvent):
            harness.tell(event.system_prompt.text, "system")
        elif isinstance(event, MessageEvent) and event.source == "user" and not event.sender:
            harness.tell("".join(content_to_str(event.llm_message.content)), "task")

    return Conversation(
        agent=agent,
        workspace=str(workspace),
        callbacks=[on_event],
        visualizer=None,
        persistence_dir=str(Path(harness.start["folder"]) / _RECORD),
        delete_on_close=False,
        **options,
    )


def outcome(conversation: Any) -> Verdict:
    """Return the verdict for a conversation that ended by itself."""
    status = conversation.state.execution_status
    if status == ConversationExecutionStatus.FINISHED:
        return Verdict("done", "submitted", "")
    if status == ConversationExecutionStatus.STUCK:
        return Verdict("done", "stuck", "the framework stopped the agent, which repeated itself")
    errors = [
        event for event in conversation.state.events if isinstance(event, ConversationErrorEvent)
    ]
    if not errors:
        return Verdict("done", "crashed", f"it ended as {status.value}")
    last_error = errors[-1]
    limit = _LIMITS.get(last_error.code)
    if limit:
        return Verdict("done", limit, f"{last_error.detail} (agent config)")
    return Verdict("done", "crashed", last_error.detail)


gc.freeze()
gc.enable()
if __name__ == "__main__":
    run_worker(work)
