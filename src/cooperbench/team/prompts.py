"""Prompts: what agents read about their task and their teammates, from templates that users can replace."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.models import REPO_DIR, agent_slots
from cooperbench.team.shared_folder import SHARED_DIR
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from jinja2 import Environment

    from cooperbench.agents.base import Limits
    from cooperbench.models import AgentSlot, Pair, Setting


def task_prompt(
    pair: Pair,
    slot: AgentSlot,
    setting: Setting,
    *,
    messaging: bool,
    git: bool,
    limits: Limits,
    features: Mapping[str, bool] | None = None,
    prompts_dir: Path | None = None,
) -> str:
    """What an agent is told, the same for every framework; `features`: the parts of setting team, and which are on."""
    from jinja2 import TemplateError

    names = [other.agent_id for other in agent_slots(pair, setting)]
    teammates = [name for name in names if name != slot.agent_id]
    texts = [
        feature.description.read_bytes().decode("utf-8", "replace") for feature in slot.features
    ]
    on = {part for part, is_on in (features or {}).items() if is_on}
    role = None if "roles" not in on else "lead" if slot.agent_id == names[0] else "member"
    try:
        return (
            _templates(prompts_dir)
            .get_template("task.md.j2")
            .render(
                setting=setting,
                agent_id=slot.agent_id,
                features=[text.strip("\n") for text in texts],
                teammates=teammates,
                messaging=messaging and bool(teammates),
                git=git and bool(teammates),
                repo_dir=REPO_DIR,
                limits=_limit_texts(limits),
                parts=on,
                role=role,
                lead=names[0],
                shared_dir=SHARED_DIR,
            )
        )
    except TemplateError as error:
        if prompts_dir is None:
            raise
        raise UserError(f"a prompt in {prompts_dir} cannot be used: {error}") from error


def _limit_texts(limits: Limits) -> list[str]:
    texts = []
    if limits.steps is not None:
        texts.append(plural(limits.steps, "step"))
    if limits.seconds is not None:
        minutes = round(limits.seconds / 60)
        texts.append(
            plural(minutes, "minute") if minutes else plural(round(limits.seconds), "second")
        )
    if limits.cost is not None:
        texts.append(f"${limits.cost:g} of model use")
    return texts


@cache
def _templates(prompts_dir: Path | None) -> Environment:
    from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined

    loaders = [] if prompts_dir is None else [FileSystemLoader(prompts_dir)]
    return Environment(
        loader=ChoiceLoader([*loaders, PackageLoader("cooperbench.team")]),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # no HTML
    )
