"""The agents `mini_swe_agent` (commands as text) and `mini_swe_agent_v2` (commands as tool calls)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cooperbench.agents.mini_swe import framework
from cooperbench.agents.models import library

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.agents.mini_swe.config import Config
    from cooperbench.agents.session import Session
    from cooperbench.models import Pair, Setting

StyleName = Literal["text", "tool_calls"]


class MiniSweAgent:
    version = staticmethod(framework.installed_version)
    style: ClassVar[StyleName] = "text"

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:  # noqa: ARG002
        config = _load_config(self.style, config_path)
        from cooperbench.agents.mini_swe.config import check_values

        check_values(config, config_path)

    def check_model(self, model: str, config_path: Path | None) -> None:
        from cooperbench.agents.models.keys import check_model

        check_model(model, _load_config(self.style, config_path).model.get("model_kwargs") or {})

    def run(self, session: Session) -> None:
        _run(self.style, session)

    @staticmethod
    def warm_up() -> None:
        library.warm_up()


class MiniSweAgentV2(MiniSweAgent):
    style = "tool_calls"


def _load_config(style: StyleName, path: Path | None) -> Config:
    framework.load("mini_swe_agent" if style == "text" else "mini_swe_agent_v2")
    from cooperbench.agents.mini_swe import config

    return config.load_config(config.TEXT if style == "text" else config.TOOL_CALLS, path)


def _run(style: StyleName, session: Session) -> None:
    assert session.model is not None
    config = _load_config(style, session.config_path)
    from cooperbench.agents.mini_swe.loop import Asking, Loop, SandboxEnvironment, TextModel, ToolCallModel

    settings = dict(config.agent)
    if session.limits.cost is not None and not config.sets_cost_limit:
        # The framework's default must not undercut what was asked for.
        settings["cost_limit"] = 0.0
    wall_seconds = settings.get("wall_time_limit_seconds") or 0
    if wall_seconds > 0:
        session.limit_time(wall_seconds, "agent config")
    make_model = TextModel if style == "text" else ToolCallModel
    asking = Asking(session, config)
    model = make_model(asking, model_name=session.model, **_with_cache(config.model, session.model))
    loop = Loop(session, model, SandboxEnvironment(session, config.environment), **settings)
    loop.end(loop.run(session.prompt))


def _with_cache(model_settings: dict[str, object], model: str) -> dict[str, object]:
    """Anthropic's models cache what is marked; the framework marks it when told to, as its own programs do."""
    if "set_cache_control" in model_settings or not any(
        part in model.lower() for part in ("anthropic", "claude")
    ):
        return model_settings
    return model_settings | {"set_cache_control": "default_end"}
