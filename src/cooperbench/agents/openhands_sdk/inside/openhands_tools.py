"""The SDK's terminal and file editor, acting in our sandbox. Runs in OpenHands' environment.

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
from openhands.sdk.tool import Tool, ToolDefinition, ToolExecutor, register_tool
from openhands.tools.file_editor import FileEditorAction, FileEditorObservation, FileEditorTool
from openhands.tools.file_editor.impl import FileEditorExecutor
from openhands.tools.task_tracker import TaskTrackerTool
from openhands.tools.terminal import TerminalAction, TerminalObservation, TerminalTool
from openhands.tools.terminal.metadata import CmdOutputMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client import Harness

_TERMINAL_NOTE = """

### In this environment
* Commands run in {repo_dir}. A command has {seconds:g} seconds, or its `timeout`; then it is ended with all it started.
* Commands get no input: `is_input` is of no use here.
"""
_LOOK = (
    "if [ -d {path} ]; then echo folder; find -L {path} -maxdepth 2 -printf '%y %p\\n' 2>/dev/null; "
    "elif [ -e {path} ]; then echo file; stat -L -c %a {path}; else echo nothing; fi"
)


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
    def __init__(self, harness: Harness, copies: Path) -> None:
        self._harness = harness
        self._copies = copies
        self._editor = FileEditorExecutor(workspace_root=f"{copies}{harness.start['repo_dir']}")

    def __call__(self, action: FileEditorAction, conversation: Any = None) -> FileEditorObservation:
        if not action.path.startswith("/"):
            return self._in_sandbox(self._editor(action, conversation))
        path = posixpath.normpath(action.path)
        copy = self._copy_of(path)
        mode = self._fetch(path, copy, is_step=action.command == "view")
        observation = self._editor(action.model_copy(update={"path": str(copy)}), conversation)
        if action.command != "view" and not observation.is_error:
            self._harness.write_file(path, copy.read_bytes())
            if mode not in ("", "644"):
                self._harness.exec(f"chmod {mode} {shlex.quote(path)}", step=False)
        elif action.command != "view":
            self._harness.tell(observation.text, "tool_error")
        return self._in_sandbox(observation)

    def _copy_of(self, path: str) -> Path:
        return Path(f"{self._copies}{path}")

    def _fetch(self, path: str, copy: Path, *, is_step: bool) -> str:
        """Make the copy what the sandbox has; the file's mode, empty where there is none."""
        shutil.rmtree(self._copies, ignore_errors=True)
        copy.parent.mkdir(parents=True)
        look = _LOOK.format(path=shlex.quote(path))
        found = self._harness.exec(look, step=is_step, shown=f"view {path}")
        kind, *lines = found.stdout.splitlines()
        if kind == "file":
            copy.write_bytes(self._harness.read_file(path))
            return lines[0]
        for line in lines:
            # Entries of a folder are only listed: their names are enough. Folders come before what is in them.
            entry = self._copy_of(posixpath.normpath(line[2:]))
            if line.startswith("d "):
                entry.mkdir(exist_ok=True)
            elif entry.parent.is_dir():
                entry.touch()
        return ""

    def _in_sandbox(self, observation: FileEditorObservation) -> FileEditorObservation:
        """With the sandbox's paths in it."""
        hidden = str(self._copies)
        content = [
            TextContent(text=part.text.replace(hidden, "")) if isinstance(part, TextContent) else part
            for part in observation.content
        ]
        path = observation.path and observation.path.replace(hidden, "")
        return observation.model_copy(update={"content": content, "path": path})


class ToolContext:
    """What the tools below need. The SDK makes them from their classes, and one process serves one agent."""

    harness: ClassVar[Harness]
    terminal_seconds: ClassVar[float]
    copies: ClassVar[Path]


class SandboxTerminalTool(TerminalTool):
    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition]:
        harness, seconds = ToolContext.harness, ToolContext.terminal_seconds
        (tool,) = TerminalTool.create(conv_state, executor=SandboxTerminal(harness, seconds))
        note = _TERMINAL_NOTE.format(repo_dir=harness.start["repo_dir"], seconds=seconds)
        return [tool.model_copy(update={"description": tool.description + note})]


class SandboxFileEditorTool(FileEditorTool):
    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition]:
        (tool,) = FileEditorTool.create(conv_state)
        place, shown = str(conv_state.workspace.working_dir), str(ToolContext.harness.start["repo_dir"])
        editor = SandboxEditor(ToolContext.harness, ToolContext.copies)
        told = {"description": tool.description.replace(place, shown)}
        return [tool.set_executor(editor).model_copy(update=told)]


TOOLS = {
    "terminal": SandboxTerminalTool,
    "file_editor": SandboxFileEditorTool,
    "task_tracker": TaskTrackerTool,
}


def sandbox_tools(
    harness: Harness, names: Sequence[str], terminal_seconds: float, copies: Path
) -> list[Tool]:
    """The tools of an agent, made known to the SDK."""
    ToolContext.harness, ToolContext.terminal_seconds, ToolContext.copies = harness, terminal_seconds, copies
    tools = [TOOLS[name] for name in names]
    for tool in tools:
        register_tool(tool.name, tool)
    return [Tool(name=tool.name) for tool in tools]
