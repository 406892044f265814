"""The SDK's terminal and file editor, acting in our sandbox, and a tool for messages. Runs in OpenHands' environment.

The file editor is the SDK's own, with all its rules: it works on a copy of the one file (or folder) in question, which
is taken from the sandbox before and put back after.
"""

from __future__ import annotations

import posixpath
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from client import Shell
from openhands.sdk import TextContent
from openhands.sdk.tool import Action, Observation, Tool, ToolDefinition, ToolExecutor, register_tool
from openhands.tools.file_editor import FileEditorAction, FileEditorObservation, FileEditorTool
from openhands.tools.file_editor.impl import FileEditorExecutor
from openhands.tools.task_tracker import TaskTrackerTool
from openhands.tools.terminal import TerminalAction, TerminalObservation, TerminalTool
from openhands.tools.terminal.metadata import CmdOutputMetadata
from pydantic import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client import Harness

_TERMINAL_NOTE = """

### In this environment
* Commands run in {repo_dir}. A command has {seconds:g} seconds, or its `timeout`; then it is ended with all it started.
* Commands get no input: `is_input` is of no use here.
"""


class SandboxTerminal(ToolExecutor):
    def __init__(self, harness: Harness, seconds: float) -> None:
        self._shell = Shell(harness, "terminal")
        self._seconds = seconds

    def __call__(self, action: TerminalAction, conversation: Any = None) -> TerminalObservation:  # noqa: ARG002
        if action.is_input:
            return self._say(
                action, "No command is running: here each one runs to its end, or its time limit.", 1
            )
        if action.reset:
            self._shell.reset()
            if not action.command.strip():
                return self._say(action, "The terminal has been reset.", 0)
        if not action.command.strip():
            return self._say(action, "There is no further output: here each command runs to its end.", 0)
        seconds = action.timeout or self._seconds
        result = self._shell.run(action.command, timeout_seconds=seconds)
        note = (
            f"\n[The command was ended: it took longer than {seconds:g} seconds.]" if result.timed_out else ""
        )
        return self._say(action, result.output + note, result.returncode, timeout=result.timed_out)

    def _say(
        self, action: TerminalAction, text: str, code: int, *, timeout: bool = False
    ) -> TerminalObservation:
        return TerminalObservation.from_text(
            text,
            command=action.command,
            exit_code=code,
            timeout=timeout,
            metadata=CmdOutputMetadata(exit_code=code),
        )


class SandboxEditor(ToolExecutor):
    def __init__(self, harness: Harness, mirror: Path) -> None:
        self._harness = harness
        self._mirror = mirror
        self._editor = FileEditorExecutor(workspace_root=f"{mirror}{harness.start['repo_dir']}")

    def __call__(self, action: FileEditorAction, conversation: Any = None) -> FileEditorObservation:
        if not action.path.startswith("/"):
            return self._ours(self._editor(action, conversation))
        path = posixpath.normpath(action.path)
        copy = Path(f"{self._mirror}{path}")
        mode = self._fetch(path, copy, is_step=action.command == "view")
        observation = self._editor(action.model_copy(update={"path": str(copy)}), conversation)
        if action.command != "view" and not observation.is_error:
            self._harness.write_file(path, copy.read_bytes())
            if mode not in ("", "644"):
                self._harness.exec(f"chmod {mode} {shlex.quote(path)}", step=False)
        elif action.command != "view":
            self._harness.tell(observation.text, "tool_error")
        return self._ours(observation)

    def _fetch(self, path: str, copy: Path, *, is_step: bool) -> str:
        """Make the copy what the sandbox has; the file's mode, empty where there is none."""
        self._remove(copy)
        quoted = shlex.quote(path)
        found = self._harness.exec(
            f"if [ -d {quoted} ]; then echo folder; find -L {quoted} -maxdepth 2 -printf '%y %p\\n' 2>/dev/null; "
            f"elif [ -e {quoted} ]; then echo file; stat -L -c %a {quoted}; else echo nothing; fi",
            step=is_step,
            shown=f"view {path}",
        )
        kind, _, rest = found.stdout.partition("\n")
        copy.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            copy.write_bytes(self._harness.read_file(path))
            return rest.strip()
        if kind == "folder":
            copy.mkdir()
            for line in rest.splitlines():
                self._place(line[:1], line[2:])
        return ""

    def _place(self, kind: str, path: str) -> None:
        """An entry of a folder that is only listed: its name is enough."""
        entry = Path(f"{self._mirror}{posixpath.normpath(path)}")
        if kind == "d":
            entry.mkdir(parents=True, exist_ok=True)
        elif entry.parent.is_dir() and not entry.exists():
            entry.touch()

    def _remove(self, copy: Path) -> None:
        # What was in the way of a folder before may be a file of an earlier listing.
        for parent in (
            *reversed(copy.relative_to(self._mirror).parents[:-1]),
            copy.relative_to(self._mirror),
        ):
            entry = self._mirror / parent
            if entry.is_symlink() or entry.is_file():
                entry.unlink()
        if copy.is_dir() and copy != self._mirror:
            shutil.rmtree(copy)

    def _ours(self, observation: FileEditorObservation) -> FileEditorObservation:
        """With the sandbox's paths in it."""
        hidden = str(self._mirror)
        content = [
            TextContent(text=part.text.replace(hidden, "")) if isinstance(part, TextContent) else part
            for part in observation.content
        ]
        path = observation.path and observation.path.replace(hidden, "")
        return observation.model_copy(update={"content": content, "path": path})


class SendMessageAction(Action):
    to: str = Field(description="The id of a colleague, or `all`.")
    message: str = Field(description="What to tell.")


class SendMessageObservation(Observation):
    pass


class SendMessage(ToolExecutor):
    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def __call__(self, action: SendMessageAction, conversation: Any = None) -> SendMessageObservation:  # noqa: ARG002
        result = self._harness.send_message(action.to, action.message)
        return SendMessageObservation.from_text(result.output, is_error=result.returncode != 0)


class ToolContext:
    """What the tools below need. The SDK makes them from their classes, and one process serves one agent."""

    harness: ClassVar[Harness]
    terminal_seconds: ClassVar[float]
    mirror: ClassVar[Path]


class SandboxTerminalTool(TerminalTool):
    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition]:
        (tool,) = TerminalTool.create(
            conv_state, executor=SandboxTerminal(ToolContext.harness, ToolContext.terminal_seconds)
        )
        note = _TERMINAL_NOTE.format(
            repo_dir=ToolContext.harness.start["repo_dir"], seconds=ToolContext.terminal_seconds
        )
        return [tool.model_copy(update={"description": tool.description + note})]


class SandboxFileEditorTool(FileEditorTool):
    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition]:
        (tool,) = FileEditorTool.create(conv_state)
        place, shown = str(conv_state.workspace.working_dir), str(ToolContext.harness.start["repo_dir"])
        told = {"description": tool.description.replace(place, shown)}
        return [
            tool.set_executor(SandboxEditor(ToolContext.harness, ToolContext.mirror)).model_copy(update=told)
        ]


class SendMessageTool(ToolDefinition[SendMessageAction, SendMessageObservation]):
    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition]:  # noqa: ARG003  # the SDK's signature
        colleagues = ", ".join(ToolContext.harness.start["colleagues"])
        return [
            cls(
                action_type=SendMessageAction,
                observation_type=SendMessageObservation,
                description=f"Tell a colleague ({colleagues}) something, as `send_message` in the terminal does.",
                executor=SendMessage(ToolContext.harness),
            )
        ]


_TOOLS = {
    "terminal": SandboxTerminalTool,
    "file_editor": SandboxFileEditorTool,
    "task_tracker": TaskTrackerTool,
}


def sandbox_tools(
    harness: Harness, names: Sequence[str], terminal_seconds: float, mirror: Path
) -> list[Tool]:
    """The tools of an agent, made known to the SDK."""
    ToolContext.harness, ToolContext.terminal_seconds, ToolContext.mirror = harness, terminal_seconds, mirror
    tools = [_TOOLS[name] for name in names]
    if harness.start["colleagues"]:
        tools.append(SendMessageTool)
    for tool in tools:
        register_tool(tool.name, tool)
    return [Tool(name=tool.name) for tool in tools]
