"""`cooperbench.run`: the documented function, and the one behind it that the command line uses too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from cooperbench.agents.base import retry_timeout_seconds
from cooperbench.agents.llm import has_price
from cooperbench.agents.registry import get_agent, uses_model
from cooperbench.backends.registry import check_options, find_factory, get_backend
from cooperbench.dataset.discovery import select_pairs
from cooperbench.errors import UserError
from cooperbench.eval import backends
from cooperbench.eval.reference_store import sound_pairs
from cooperbench.models import Setting, agent_slots
from cooperbench.report.summary_text import summary_text
from cooperbench.runner.config import RunConfig, make_config
from cooperbench.runner.display import Display, make_display
from cooperbench.runner.experiment import Arm, carry_out
from cooperbench.runner.model_server import check_model_servers
from cooperbench.runner.options import RunOptions
from cooperbench.secrets import load_env_file
from cooperbench.settings import DEFAULT_BACKEND
from cooperbench.storage import DEFAULT_LOGS_DIR, checked_run_name
from cooperbench.team.mailbox import DEFAULT_REDIS_URL
from cooperbench.text import plural, printable

_OTHER_NAMES = {
    "model_name": "model",
    "test_timeout": "test_timeout_seconds",
    "time_limit": "time_limit_seconds",
}
"""Of parameters of `run` that are not called like the field of `RunConfig`."""


def run(
    run_name: str,
    subset: str | None = None,
    repo: str | None = None,
    task_id: int | None = None,
    features: list[int] | None = None,
    model_name: str = "vertex_ai/gemini-3-flash-preview",
    agent: str = "mini_swe_agent",
    concurrency: int = 20,
    force: bool = False,
    redis_url: str = DEFAULT_REDIS_URL,
    setting: Setting = "coop",
    git_enabled: bool = False,
    messaging_enabled: bool = True,
    auto_eval: bool = True,
    eval_concurrency: int = 10,
    backend: str = DEFAULT_BACKEND,
    agent_config: str | None = None,
    *,
    dataset_dir: str | Path | None = None,
    logs_dir: str | Path = DEFAULT_LOGS_DIR,
    team_git: bool = True,
    **options: Any,
) -> None:
    """Run agents on pairs of features and (with `auto_eval`) judge what they did.

    Results are under `logs_dir/run_name`; a summary is printed. Calling it again continues: finished pairs are
    skipped unless `force` is set. `model_name`, `agent` and `agent_config` have one value for all agents of a pair, or
    one for each with commas. In setting `team`, `team_git` stands in the place of `git_enabled`. `options` are all
    others of `RunOptions` (runner/options.py), as `cooperbench run --help` explains them.
    """
    config = config_of_call(locals())
    summary = run_experiment(config, make_display())
    print(summary_text(summary, str(config.paths.root)))  # noqa: T201  # the documented function prints


def config_of_call(values: dict[str, Any]) -> RunConfig:
    """Of the arguments of `run`, by name."""
    options, team_git = values.pop("options"), values.pop("team_git")
    known = {field.name for field in fields(RunOptions)} | {*_OTHER_NAMES}
    for name in options.keys() - known:
        raise TypeError(f"run() got an unexpected keyword argument {name!r}")
    values |= options
    values["run_name"] = checked_run_name(values["run_name"])
    if values["setting"] == "team":
        values["git_enabled"] = team_git
    for name, field in _OTHER_NAMES.items():
        if name in values:
            values[field] = values.pop(name)
    load_env_file()
    return make_config(values)


def select(config: RunConfig) -> tuple[Arm, tuple[str, ...]]:
    """What a call asks for, and what is to be said about it."""
    found = select_pairs(config.dataset_dir, config)
    notes = found.notes
    if config.shares_git and config.setting == "solo":
        notes += (
            "--git is for coop and team; in solo there is nobody to share with, it is ignored",
        )
    if not config.sound_only:
        return Arm(config, found.pairs), notes
    sound = sound_pairs(found.pairs)
    left_out = plural(len(found.pairs) - len(sound), "pair")
    return Arm(config, sound), (*notes, f"{left_out} left out as unsound")


def check_backend(config: RunConfig) -> None:
    if backends.get_backend is get_backend:  # users may replace it, and know other names then
        find_factory(config.backend)
        check_options(config.backend, config.backend_options)


def check(arm: Arm) -> Arm:
    """With what is left to do. UserError for everything that can be found wrong before the run starts."""
    config, pairs = arm.config, arm.pairs
    retry_timeout_seconds()
    check_backend(config)
    config.check_against_disk()
    for pair in pairs if config.replay_from else ():
        for slot in agent_slots(pair, config.setting):
            recording = config.recording(pair, slot.agent_id)
            if recording is None or not recording.is_file():
                raise UserError(
                    f"nothing to replay for {pair.label}: no {recording}; run with --record"
                )
    arm = arm.planned()
    one_of_each_size = {len(pair.feature_ids): pair for pair in reversed(pairs)}.values()
    specs = dict.fromkeys(one for pair in one_of_each_size for one in config.agent_specs(pair))
    for one in specs:
        agent = get_agent(one.agent)()
        agent.check(one.config_path, pairs, config.setting)
        if one.model and arm.to_run and not config.replay_from:
            # Agents of other packages may not have the argument base_url.
            base_url = {"base_url": one.base_url} if one.base_url else {}
            agent.check_model(one.model, one.config_path, **base_url)
    # Jobs of a cluster check it on their own node.
    if arm.to_run and config.executor == "local" and not config.replay_from:
        check_model_servers(specs)
    return arm


def price_notes(config: RunConfig) -> Iterator[str]:
    """What `--max-cost` does not count."""
    if config.max_cost is None or not any(map(uses_model, config.agents)):
        return
    with suppress(UserError):  # a program of the user's needs no LiteLLM here
        for model in config.models:
            if model and not has_price(model):
                yield f"the price of {printable(model)} is not known: --max-cost does not count its calls"


def run_experiment(config: RunConfig, display: Display) -> dict[str, Any]:
    """One experiment, from its configuration to its summary."""
    arm, notes = select(config)
    check(arm)
    return carry_out([arm], display, (*notes, *price_notes(config)))[config.run_name]
