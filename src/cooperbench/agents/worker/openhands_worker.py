"""The worker of the agent `openhands`, run in its environment: the SDK's Agent, LLM and Conversation on our sandbox.

The SDK's file editor works on a copy of the one file (or folder) in question, which is put back after.
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

gc.disable()  # a third of the seconds that the imports below take would be the search for garbage

from client import MODEL_CALL_SECONDS, BadConfig, Harness, Shell, Verdict, run_worker
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
"""The folder with what the SDK itself writes down, beside trajectory.json."""
_CONVERSATION = {
    "max_iteration_per_run",
    "stuck_detection",
    "stuck_detection_thresholds",
    "max_budget_per_run",
}
_SECTIONS = {"llm", "agent", "conversation", "tools", "terminal"}
_TERMINAL_SECONDS = 300.0
_TERMINAL_NOTE = """

### In this environment
* Commands run in {repo_dir}. A command has {seconds:g} seconds, or its `timeout`; then it is ended with all it started.
* Commands get no input: `is_input` is of no use here.
"""
_LOOK = (
    "if [ -d {path} ]; then echo folder; find -L {path} -maxdepth 2 -printf '%y %p\\n' 2>/dev/null; "
    "elif [ -x {path} ]; then echo program; elif [ -e {path} ]; then echo file; else echo nothing; fi"
)


class TeammateAgent(Agent):
    """The SDK's agent; what teammates write comes in between two steps. Its tools find the harness here."""

    _harness: Harness = PrivateAttr()
    _terminal_seconds: float = PrivateAttr()

    @property
    def prompt_dir(self) -> str:
        """The SDK's own, which it would look for beside this file."""
        return str(Path(inspect.getfile(Agent)).parent / "prompts")

    def step(self, conversation: Any, *args: Any, **kwargs: Any) -> None:
        for message in self._harness.incoming():
            conversation.send_message(message["shown"], sender=message["from"])
        super().step(conversation, *args, **kwargs)


class SandboxTerminal(ToolExecutor):
    def __init__(self, harness: Harness, seconds: float) -> None:
        self._shell = Shell(harness, "terminal")
        self._seconds = seconds

    def __call__(self, action: TerminalAction, conversation: Any = None) -> TerminalObservation:  # noqa: ARG002
        text, code, timed_out = (
            "No command is running: here each one runs to its end, or its time limit.",
            0,
            False,
        )
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
    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._copies = str(Path(os.environ["HOME"]) / "copies")
        self._editor = FileEditorExecutor(workspace_root=self._copies + harness.start["repo_dir"])

    def __call__(self, action: FileEditorAction, conversation: Any = None) -> FileEditorObservation:
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
        """Make the copy what the sandbox has; whether it is an executable file."""
        shutil.rmtree(self._copies, ignore_errors=True)
        copy.parent.mkdir(parents=True)
        look = _LOOK.format(path=shlex.quote(path))
        found = self._harness.exec(look, step=is_step, shown=f"view {path}")
        kind, *lines = found.stdout.splitlines()
        if kind in ("file", "program"):
            copy.write_bytes(self._harness.read_file(path))
        for line in lines:
            # Entries of a folder are only listed: their names are enough. Folders come before what is in them.
            entry = Path(self._copies + posixpath.normpath(line[2:]))
            if line.startswith("d "):
                entry.mkdir(exist_ok=True)
            elif entry.parent.is_dir():
                entry.touch()
        return kind == "program"

    def _in_sandbox(self, observation: FileEditorObservation) -> FileEditorObservation:
        """With the sandbox's paths in it."""
        content = [
            TextContent(text=part.text.replace(self._copies, ""))
            if isinstance(part, TextContent)
            else part
            for part in observation.content
        ]
        path = observation.path and observation.path.replace(self._copies, "")
        return observation.model_copy(update={"content": content, "path": path})


class SandboxTerminalTool(TerminalTool):
    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition]:
        harness, seconds = conv_state.agent._harness, conv_state.agent._terminal_seconds
        (tool,) = TerminalTool.create(conv_state, executor=SandboxTerminal(harness, seconds))
        note = _TERMINAL_NOTE.format(repo_dir=harness.start["repo_dir"], seconds=seconds)
        return [tool.model_copy(update={"description": tool.description + note})]


class SandboxFileEditorTool(FileEditorTool):
    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition]:
        harness = conv_state.agent._harness
        (tool,) = FileEditorTool.create(conv_state)
        place, shown = str(conv_state.workspace.working_dir), str(harness.start["repo_dir"])
        told = {"description": tool.description.replace(place, shown)}
        return [tool.set_executor(SandboxEditor(harness)).model_copy(update=told)]


_TOOLS = {
    "terminal": SandboxTerminalTool,
    "file_editor": SandboxFileEditorTool,
    "task_tracker": TaskTrackerTool,
}


def work(harness: Harness) -> Verdict:
    config = harness.start["config"] or {}
    if not isinstance(config, dict) or not set(config) <= _SECTIONS:
        raise BadConfig(f"it is a mapping with {', '.join(sorted(_SECTIONS))}, and nothing else")
    model = {"model": harness.start["model"], "usage_id": "agent", "timeout": MODEL_CALL_SECONDS}
    llm = LLM(**(model | section(config, "llm", set(LLM.model_fields))))
    conversation = converse(harness, config, llm)
    try:
        conversation.send_message(harness.start["prompt"])
        conversation.run()
    except ConversationRunError as error:
        return broken_off(error.__cause__ or error, llm.model)
    finally:
        conversation.close()
    return outcome(conversation)


def broken_off(error: BaseException, model: str) -> Verdict:
    """By the SDK itself: what a model call meant is known to the harness."""
    if isinstance(error, faults.LLMContextWindowTooSmallError):
        return Verdict("failed", "user", f"model {model!r}: {error}")
    if isinstance(error, faults.LLMError):
        return Verdict("done", "format_error", str(error))
    return Verdict("failed", "infra", f"{type(error).__name__}: {error}")


def section(config: dict[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    settings = config.get(name) or {}
    if not isinstance(settings, dict):
        raise BadConfig(f"{name} is no mapping")
    for key in settings:
        if key not in known:
            raise BadConfig(f"{name} has no setting {key!r}; there are: {', '.join(sorted(known))}")
    return dict(settings)


def converse(harness: Harness, config: dict[str, Any], llm: LLM) -> Any:
    workspace = Path(os.environ["HOME"]) / "workspace"
    workspace.mkdir()
    names = config.get("tools", list(_TOOLS))
    if not isinstance(names, list) or not set(names) <= set(_TOOLS):
        raise BadConfig(f"tools is a list of {', '.join(_TOOLS)}, not {names!r}")
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
    options = section(config, "conversation", _CONVERSATION)
    if harness.start["limits"]["steps"] is not None:
        # The harness counts steps; this is only so that the SDK's own limit does not come first.
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
    """How a conversation ended that ended by itself."""
    status = conversation.state.execution_status
    if status == ConversationExecutionStatus.FINISHED:
        return Verdict("done", "submitted", "")
    if status == ConversationExecutionStatus.STUCK:
        return Verdict("done", "stuck", "the framework found the agent going in circles")
    errors = [
        event for event in conversation.state.events if isinstance(event, ConversationErrorEvent)
    ]
    code, text = (
        (errors[-1].code, errors[-1].detail) if errors else ("", f"it ended as {status.value}")
    )
    limit = {"MaxIterationsReached": "step_limit", "MaxBudgetReached": "cost_limit"}.get(code)
    return (
        Verdict("done", limit, f"{text} (agent config)")
        if limit
        else Verdict("failed", "infra", text)
    )


gc.freeze()
gc.enable()
if __name__ == "__main__":
    run_worker(work)
