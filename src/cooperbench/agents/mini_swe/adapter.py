"""The agents `mini_swe_agent` (commands as text) and `mini_swe_agent_v2` (commands as tool calls).

`loop` and `config` import the mini-swe-agent package, so they are imported after `load_package()`.
"""

from __future__ import annotations

import logging
import threading
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

from cooperbench.agents import llm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.agents.mini_swe.config import Config
    from cooperbench.agents.session import Session
    from cooperbench.models import Pair, Setting

_lock = threading.Lock()
_loaded = False


class MiniSweAgent:
    name: ClassVar[str] = "mini_swe_agent"
    tool_calls: ClassVar[bool] = False
    warm_up = staticmethod(llm.warm_up)

    @staticmethod
    def version() -> str | None:
        try:
            return f"{version('mini-swe-agent')} (litellm {version('litellm')})"
        except PackageNotFoundError:
            return None

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:  # noqa: ARG002
        config = self._config(config_path)
        from cooperbench.agents.mini_swe.config import check_values

        check_values(config, config_path)

    def check_model(self, model: str, config_path: Path | None) -> None:
        llm.check_model(model, self._config(config_path).model.get("model_kwargs") or {})

    def run(self, session: Session) -> None:
        assert session.model is not None
        config = self._config(session.config_path)
        from cooperbench.agents.mini_swe import loop

        settings = dict(config.agent)
        if session.limits.cost is not None and not config.sets_cost_limit:
            # The framework's default must not undercut what was asked for.
            settings["cost_limit"] = 0.0
        wall_seconds = settings.get("wall_time_limit_seconds") or 0
        if wall_seconds > 0:
            session.limit_time(wall_seconds, "agent config")
        make_model = loop.ToolCallModel if self.tool_calls else loop.TextModel
        model_settings = _with_cache(config.model, session.model)
        model = make_model(loop.ModelCalls(session, config), model_name=session.model, **model_settings)
        agent = loop.Loop(session, model, loop.SandboxEnvironment(session, config.environment), **settings)
        agent.end(agent.run(session.prompt))

    def _config(self, path: Path | None) -> Config:
        load_package(self.name)
        from cooperbench.agents.mini_swe import config

        return config.load_config(config.TOOL_CALLS if self.tool_calls else config.TEXT, path)


class MiniSweAgentV2(MiniSweAgent):
    name = "mini_swe_agent_v2"
    tool_calls = True


def load_package(agent: str) -> None:
    """Import mini-swe-agent without its banner, its folder in the user's home and its own limits.

    A UserError that names the extra where it is missing.
    """
    global _loaded
    with _lock:
        if _loaded:
            return
        llm.load_litellm()
        with TemporaryDirectory(prefix="cooperbench-") as nowhere:
            settings = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": nowhere}
            with llm.environment(settings):
                try:
                    models = import_module("minisweagent.models")
                    import_module("minisweagent.agents.default")
                    import_module("minisweagent.models.litellm_textbased_model")
                except ModuleNotFoundError as error:
                    raise llm.missing_package(error, f"agent {agent!r}") from error
        # Limits over all agents of a process, from MSWEA_GLOBAL_*: ours are --cost-limit and --max-cost.
        models.GLOBAL_MODEL_STATS.cost_limit = 0.0
        models.GLOBAL_MODEL_STATS.call_limit = 0
        logging.getLogger("minisweagent").setLevel(logging.CRITICAL)
        _loaded = True


def _with_cache(model_settings: dict[str, object], model: str) -> dict[str, object]:
    """Anthropic's models cache what is marked; the framework marks it when told to, as its own programs do."""
    is_anthropic = any(part in model.lower() for part in ("anthropic", "claude"))
    if "set_cache_control" in model_settings or not is_anthropic:
        return model_settings
    return model_settings | {"set_cache_control": "default_end"}
