"""`cooperbench.run`: the documented function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cooperbench.models import Setting
from cooperbench.records import JsonObject
from cooperbench.report.summary_text import summary_text
from cooperbench.runner.config import RunConfig, make_config, relative_to_cwd
from cooperbench.runner.display import make_display
from cooperbench.runner.experiment import run_experiment
from cooperbench.runner.options import OPTIONS
from cooperbench.secrets import load_env_file
from cooperbench.settings import DEFAULT_BACKEND
from cooperbench.storage import DEFAULT_LOGS_DIR, checked_run_name
from cooperbench.team.mailbox import DEFAULT_REDIS_URL

_FIELDS_BY_PARAMETER = {
    "model_name": "model",
    "test_timeout": "test_timeout_seconds",
    "time_limit": "time_limit_seconds",
}
"""Fields of `RunOptions` whose parameter of `run` has another name."""


def run(  # noqa: PLR0913  # the documented signature
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
    team_git: bool | None = None,
    **options: Any,
) -> None:
    """Run agents on pairs of features and, with `auto_eval`, evaluate their patches.

    Results are written to `logs_dir/run_name`; a summary is printed. Another call with the same
    arguments continues the run: finished pairs are skipped unless `force` is set. `model_name`,
    `agent` and `agent_config` have one value for all agents of a pair, or one per agent, separated
    by commas. In setting `team`, `team_git` replaces `git_enabled`; None means a shared git remote,
    unless all agents share one workspace. `options` are the other options of `RunOptions`
    (runner/options.py), which `cooperbench run --help` explains.
    """
    config = config_from_call(locals())
    summary = run_experiment(config, make_display())
    print(summary_text(summary, relative_to_cwd(config.paths.root)))  # noqa: T201  # documented


def config_from_call(arguments: JsonObject) -> RunConfig:
    """Return the configuration for the arguments of `run`, by the names of its parameters."""
    values = dict(arguments)
    options = values.pop("options")
    team_git = values.pop("team_git")
    for name in options:
        if name not in OPTIONS and name not in _FIELDS_BY_PARAMETER:
            raise TypeError(f"run() got an unexpected keyword argument {name!r}")
    values |= options
    values["run_name"] = checked_run_name(values["run_name"])
    if values["setting"] == "team":
        values["git_enabled"] = team_git
    for parameter, field in _FIELDS_BY_PARAMETER.items():
        if parameter in values:
            values[field] = values.pop(parameter)
    load_env_file()
    return make_config(values)
