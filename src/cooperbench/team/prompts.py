"""What an agent is told: its task, its colleagues, messages and git. One template for every framework.

How to use a framework's own tools is explained by the framework.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from cooperbench.models import REPO_DIR, seats_of
from cooperbench.text import plural

if TYPE_CHECKING:
    from jinja2 import Template

    from cooperbench.agents.base import Limits
    from cooperbench.models import Pair, Seat, Setting


def task_prompt(
    pair: Pair,
    seat: Seat,
    setting: Setting,
    *,
    messaging: bool,
    git: bool,
    limits: Limits,
    repo_dir: str = REPO_DIR,
) -> str:
    """For one seat of a pair. In solo there are no colleagues, and nothing is said of any."""
    colleagues = [other.agent_id for other in seats_of(pair, setting) if other.agent_id != seat.agent_id]
    texts = [feature.description.read_bytes().decode("utf-8", "replace") for feature in seat.features]
    return _template().render(
        setting=setting,
        agent_id=seat.agent_id,
        features=[text.strip("\n") for text in texts],
        colleagues=colleagues,
        messaging=messaging and bool(colleagues),
        git=git and bool(colleagues),
        repo_dir=repo_dir,
        limits=_limit_texts(limits),
    )


def _limit_texts(limits: Limits) -> list[str]:
    texts = []
    if limits.steps is not None:
        texts.append(plural(limits.steps, "step"))
    if limits.seconds is not None:
        minutes = round(limits.seconds / 60)
        texts.append(plural(minutes, "minute") if minutes else plural(round(limits.seconds), "second"))
    if limits.cost is not None:
        texts.append(f"${limits.cost:g} of model use")
    return texts


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701  # no HTML
    source = files("cooperbench.team") / "templates" / "task.md.j2"
    return environment.from_string(source.read_text("utf-8"))
