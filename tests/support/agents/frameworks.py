"""The real frameworks for the tests: their environments, made once and kept in a cache, and how a model speaks to them."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cooperbench.agents.environments import DATA_VARIABLE, find_environment, get_framework, install
from cooperbench.errors import UserError
from tests.support.docker.engines import cache_folder, locked
from tests.support.modelserver import Answer, ToolCall, say
from tests.support.requirements import skip_without

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CACHE = cache_folder()
DATA = CACHE / "frameworks"
SWE_AGENT_SOURCE = os.environ.get("COOPERBENCH_TEST_SWE_AGENT")
KEY = "key-0123456789"
MODEL = "openai/scripted-1"


@dataclass(frozen=True)
class Tongue:
    """By which names a model calls the tools of a framework, and how it ends its work."""

    terminal: str
    editor: str
    last_words: tuple[Answer, ...]
    argument: str = "command"
    more: Mapping[str, str] = field(default_factory=dict)
    """Other arguments that its terminal wants."""

    def run(self, command: str) -> Answer:
        arguments = {self.argument: command, **self.more}
        return Answer("", (ToolCall(self.terminal, arguments),))

    def tell(self, teammate: str, message: str) -> Answer:
        return self.run(shlex.join(["send_message", teammate, message]))

    def edit(self, **arguments: Any) -> Answer:
        return Answer("", (ToolCall(self.editor, arguments),))


_SUBMIT = Answer("", (ToolCall("submit", {}),))
TONGUES = {
    "openhands": Tongue(
        "terminal", "file_editor", (Answer("", (ToolCall("finish", {"message": "Done."}),)),)
    ),
    # The first one only shows what is about to be handed in.
    "swe_agent": Tongue("bash", "str_replace_editor", (_SUBMIT, _SUBMIT)),
    "claude_code": Tongue("Bash", "Edit", (say("Done."),)),
    "codex": Tongue("exec_command", "", (say("Done."),), "cmd"),
    "gemini_cli": Tongue("run_shell_command", "replace", (say("Done."),)),
    "opencode": Tongue("bash", "edit", (say("Done."),), more={"description": "a step"}),
}
CLIS = ("claude_code", "codex", "gemini_cli", "opencode")


def settings(name: str, url: str) -> dict[str, Any]:
    """An agent config for a model server at this address, which is asked once only."""
    if name in CLIS:
        return {"model": {"model_kwargs": {"api_base": url, "api_key": KEY}}}
    if name == "openhands":
        return {"llm": {"base_url": url, "api_key": KEY, "num_retries": 0}}
    retry = {"retries": 1, "min_wait": 0.01, "max_wait": 0.02}
    return {"agent": {"model": {"api_base": url, "api_key": KEY, "retry": retry}}}


def provide(name: str) -> None:
    """The environment of a framework, in a data directory of the tests' own."""
    if name == "swe_agent" and not SWE_AGENT_SOURCE:
        skip_without(
            "SWE-agent, which has no release",
            "COOPERBENCH_TEST_SWE_AGENT=/path/to/its/source",
            optional=True,
        )
    with locked(CACHE / f"{name}.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_VARIABLE, str(DATA))
        framework = get_framework(name)
        found = find_environment(framework)
        if found is not None and framework.version in ("", found.version):
            return
        source = SWE_AGENT_SOURCE if framework.source_folders else None
        try:
            install(framework, source=source, python=None, say=print)
        except UserError as error:
            if "needs Python" in str(error):
                remedy = "installing that version of Python"
                skip_without(f"another Python for {name}", remedy, detail=str(error), optional=True)
            raise


def write_config(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path
