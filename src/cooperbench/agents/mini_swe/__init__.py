"""The agents `mini_swe_agent` (commands as text) and `mini_swe_agent_v2` (commands as tool calls).

They run the PyPI package mini-swe-agent. The module `framework` imports it, so that it must be
imported after `load_package()`.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from cooperbench.agents import llm
from cooperbench.agents.base import Agent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.agents.mini_swe.framework import Config
    from cooperbench.agents.session import AgentSession
    from cooperbench.models import Pair, Setting


class MiniSweAgent(Agent):
    """mini-swe-agent with commands as text."""

    tool_calls: ClassVar[bool] = False

    @classmethod
    def warm_up(cls) -> None:
        """Import LiteLLM and start the gateway."""
        llm.warm_up_gateway()

    @staticmethod
    def version() -> str | None:
        """Return the versions of the framework and of LiteLLM; None if they are not installed."""
        try:
            return f"{version('mini-swe-agent')} (litellm {version('litellm')})"
        except PackageNotFoundError:
            return None

    def check(
        self,
        config_path: Path | None,
        pairs: Sequence[Pair],  # noqa: ARG002  # all pairs are alike
        setting: Setting,  # noqa: ARG002  # all settings are alike
    ) -> None:
        """Check the config."""
        self._load_config(config_path)

    def check_model(
        self, model: str, config_path: Path | None, base_url: str | None = None
    ) -> None:
        """Check that the model can be called."""
        llm.check_model(model, self._load_config(config_path).model.model_kwargs, base_url)

    def run(self, session: AgentSession) -> None:
        """Run the framework's loop."""
        with session.remembering_faults():
            self._run_loop(session)

    def _run_loop(self, session: AgentSession) -> None:
        config = self._load_config(session.config_path)
        from cooperbench.agents.mini_swe.framework import Loop
        from cooperbench.gateway.conversations import Calls
        from cooperbench.gateway.server import Gateway

        with Gateway.shared().open(session, config.model.model_kwargs, Calls(session)) as access:
            agent = Loop(access, config, tool_calls=self.tool_calls)
            agent.end(agent.run(session.prompt))

    def _load_config(self, path: Path | None) -> Config[Any]:
        load_package()
        from cooperbench.agents.mini_swe.framework import load_config

        return load_config(path, tool_calls=self.tool_calls)


class MiniSweAgentV2(MiniSweAgent):
    """mini-swe-agent with commands as tool calls."""

    tool_calls = True


@cache
def load_package() -> None:
    """Import mini-swe-agent without its banner, its folder in the user's home and its limits."""
    llm.load_litellm()
    with TemporaryDirectory(prefix="cooperbench-") as nowhere:
        settings = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": nowhere}
        models = llm.import_extra("minisweagent.models", "mini-swe-agent", settings)
    # MSWEA_GLOBAL_* limit all agents of a process. We have --cost-limit and --max-cost instead.
    models.GLOBAL_MODEL_STATS.cost_limit = 0.0
    models.GLOBAL_MODEL_STATS.call_limit = 0
    logging.getLogger("minisweagent").setLevel(logging.CRITICAL)
    for name in ("actions_text", "actions_toolcall"):
        # The framework compiles the same templates in every step, which takes half of the CPU time.
        module: Any = import_module(f"minisweagent.models.utils.{name}")
        module.Template = cache(module.Template)
