"""What SWE-agent tells us while it works, and what colleagues tell its agent. Runs in SWE-agent's environment."""

from __future__ import annotations

from typing import Any

from client import Ended, Harness
from swe_runtime import AgentOver, SandboxRuntime


class ColleagueHook:
    """An agent hook of SWE-agent's, without its base class: what it does not care for it lets pass."""

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
        try:
            messages = self._harness.incoming()
        except Ended as end:
            raise AgentOver(str(end)) from None
        for message in messages:
            self._agent._append_history(
                {
                    "role": "user",
                    "content": f"Message from {message['from']}:\n\n{message['text']}",
                    "agent": self._agent.name,
                    "message_type": "user",
                }
            )

    def on_action_started(self, *, step: Any) -> None:
        self._runtime.action = (step.thought, step.action)

    def on_action_executed(self, *, step: Any) -> None:  # noqa: ARG002  # the hook's signature
        self._runtime.action = None
