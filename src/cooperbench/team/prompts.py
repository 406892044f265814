"""Prompts about the task and the teammates, made from templates that users can replace."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.models import REPO_DIR, agent_slots
from cooperbench.team.channel import NO_RULES, ChannelRules
from cooperbench.team.knowledge import known_features
from cooperbench.team.shared_folder import SHARED_DIR
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from jinja2 import Environment

    from cooperbench.agents.base import Limits
    from cooperbench.models import AgentSlot, Pair, Setting


def task_prompt(  # noqa: PLR0913  # one keyword per factor of the prompt
    pair: Pair,
    slot: AgentSlot,
    setting: Setting,
    *,
    messaging: bool,
    git: bool,
    limits: Limits,
    features: Mapping[str, bool] | None = None,
    prompts_dir: Path | None = None,
    channel: ChannelRules = NO_RULES,
) -> str:
    """Return the prompt of the agent in a slot, which is the same for every framework.

    Args:
        pair: The features to build.
        slot: The agent.
        setting: `coop`, `solo` or `team`.
        messaging: Whether agents can write to each other.
        git: Whether agents share a git remote.
        limits: The agent's limits.
        features: The parts of setting team, and whether each is switched on.
        prompts_dir: A folder with templates that replace the built-in ones.
        channel: The rules for messages.
    """
    from jinja2 import TemplateError

    slots = agent_slots(pair, setting)
    agent_ids = [other.agent_id for other in slots]
    workload = {
        other.agent_id: len(other.features) for other in slots if other.agent_id != slot.agent_id
    }
    teammates = list(workload)
    enabled = {part for part, is_on in (features or {}).items() if is_on}
    role = None
    if "roles" in enabled:
        role = "lead" if slot.agent_id == agent_ids[0] else "member"
    try:
        template = _templates(prompts_dir).get_template("task.md.j2")
        return template.render(
            setting=setting,
            agent_id=slot.agent_id,
            features=_descriptions(slot),
            own="feature" if len(slot.features) == 1 else "features",
            teammates=teammates,
            workload=workload,
            messaging=messaging and bool(teammates) and not channel.is_silent,
            recipients=channel.recipients(slot.agent_id, agent_ids),
            senders=channel.senders(slot.agent_id, agent_ids),
            channel=channel,
            budgets=_budget_texts(channel),
            known=known_features(slots, slot.agent_id, channel.knows),
            git=git and bool(teammates),
            shared_tree=pair.workspace == "shared" and bool(teammates),
            repo_dir=REPO_DIR,
            limits=_limit_texts(limits),
            parts=enabled,
            role=role,
            lead=agent_ids[0],
            shared_dir=SHARED_DIR,
        )
    except TemplateError as error:
        if prompts_dir is None:
            raise
        raise UserError(f"a prompt in {prompts_dir} cannot be used: {error}") from error


def _descriptions(slot: AgentSlot) -> list[str]:
    """Return the descriptions of an agent's features."""
    descriptions = []
    for feature in slot.features:
        text = feature.description.read_bytes().decode("utf-8", "replace")
        descriptions.append(text.strip("\n"))
    return descriptions


def _budget_texts(channel: ChannelRules) -> list[str]:
    """Return the budget of an agent's messages in words, such as "3 messages"."""
    texts = []
    if channel.messages is not None:
        texts.append(plural(channel.messages, "message"))
    if channel.characters is not None:
        texts.append(f"{plural(channel.characters, 'character')} in all messages together")
    return texts


def _limit_texts(limits: Limits) -> list[str]:
    """Return the limits in words, such as "30 steps"."""
    texts = []
    if limits.steps is not None:
        texts.append(plural(limits.steps, "step"))
    if limits.seconds is not None:
        minutes = round(limits.seconds / 60)
        if minutes:
            texts.append(plural(minutes, "minute"))
        else:
            texts.append(plural(round(limits.seconds), "second"))
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
