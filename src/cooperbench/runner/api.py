"""`cooperbench.run`: the documented function, and the one behind it that the command line uses too."""

from __future__ import annotations

import atexit
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from cooperbench.agents.base import patience_seconds
from cooperbench.agents.llm import load_litellm
from cooperbench.agents.registry import get_agent, uses_model
from cooperbench.agents.worker.client import has_price
from cooperbench.backends.registry import find_factory, get_backend
from cooperbench.dataset.discovery import discover
from cooperbench.errors import UserError
from cooperbench.eval import backends
from cooperbench.models import seats_of
from cooperbench.runner.config import RunConfig, make_config
from cooperbench.runner.display import header_lines
from cooperbench.runner.options import DEFAULT_TIME_LIMIT_SECONDS
from cooperbench.runner.plan import make_plan, something_to_run
from cooperbench.settings import DOCUMENTED_BACKEND
from cooperbench.storage import DEFAULT_LOGS_DIR
from cooperbench.team.mailbox import DEFAULT_REDIS_URL, open_mailboxes
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from cooperbench.models import EvalNetwork, Pair, Setting
    from cooperbench.runner.display import Display
    from cooperbench.runner.plan import Plan
    from cooperbench.sandbox.contract import NetworkPolicy

_OTHER_NAMES = {
    "model_name": "model",
    "test_timeout": "test_timeout_seconds",
    "time_limit": "time_limit_seconds",
}
"""Of parameters of `run` that are not called like the field of `RunConfig`."""
_WARM_UP = "warm-up "


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
    backend: str = DOCUMENTED_BACKEND,
    agent_config: str | None = None,
    *,
    dataset_dir: str | Path | None = None,
    logs_dir: str | Path = DEFAULT_LOGS_DIR,
    step_limit: int | None = None,
    cost_limit: float | None = None,
    time_limit: float | None = DEFAULT_TIME_LIMIT_SECONDS,
    network: NetworkPolicy = "none",
    test_timeout: int = 600,
    max_cost: float | None = None,
    eval_network: EvalNetwork = "auto",
    sound_only: bool = False,
    canary: bool = True,
    image_template: str | None = None,
    pull: str | None = None,
    mount: Sequence[str] = (),
    gpu: str | None = None,
    record: bool = False,
    replay_from: str | None = None,
    group_sizes: Sequence[int] | None = None,
    groups_per_task: int | None = None,
    seed: int = 0,
    prompts_dir: str | Path | None = None,
    team_git: bool = True,
    team_task_list: bool = True,
    team_scratchpad: bool = True,
    team_protocol: bool = True,
    team_mcp: bool = True,
    team_auto_refresh: bool = True,
    team_roles: bool = True,
    executor: str = "local",
    workers: int | None = None,
    pairs_per_job: int | None = None,
    slurm: str | None = None,
    ray_address: str | None = None,
    ray_resources: str | None = None,
) -> None:
    """Run agents on pairs of features and (with `auto_eval`) judge what they did.

    Results are under `logs_dir/run_name`; a summary is printed. Calling it again continues: pairs with a good
    result are skipped, those that ended in an infrastructure error are run again, `force` runs all again.
    `model_name`, `agent` and `agent_config` have one value for all agents of a pair, or one for each with commas, the
    first for `agent1`: `model_name="gpt-4o,claude-sonnet-4-5"`. API keys come from the environment or from `.env` in
    the working directory. Limits (`step_limit`, `cost_limit` in dollars, `time_limit` in seconds) are per agent;
    hitting one is an outcome. `max_cost` in dollars is for the whole experiment: past it no new pair is started.
    `eval_network`: what test runs reach; `auto` is nothing where the golden patch passes so, else everything.
    `sound_only` leaves out features whose tests pass without them, as `cooperbench validate` has found. `canary`:
    confirm successes by tests that must fail. `record` keeps what models are asked and answer; `replay_from` names
    the run whose recorded answers the agent `replay_model` gets. `image_template`, `pull`, `mount` and `gpu` are for
    backends that have them. `group_sizes=[3]`: all groups of three features, an agent each, instead of pairs, at most
    `groups_per_task` of a task (by default as many as it has pairs), drawn with `seed`. `prompts_dir`: templates that
    replace ours of the same name. `team_…` take single parts out of setting `team`, `team_git` in the place of
    `git_enabled`. `executor` says where pairs are worked on: here, or by at most `workers` jobs of Slurm or Ray.
    """
    values = dict(locals())
    team_git = values.pop("team_git")
    values["git_enabled"] = team_git if setting == "team" else git_enabled
    for name, field in _OTHER_NAMES.items():
        values[field] = values.pop(name)
    from cooperbench.report.summary import summary_text
    from cooperbench.runner.display import make_display
    from cooperbench.secrets import load_env_file

    load_env_file()
    # Here only: the command line does not take the interpreter apart at its end.
    atexit.register(_let_warm_up_end)
    config = make_config(values)
    summary = run_experiment(config, make_display())
    print(summary_text(summary, str(config.paths.root)))  # noqa: T201  # the documented function prints


def select(config: RunConfig) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """The pairs that a call asks for, and what is to be said about them."""
    found = discover(
        config.dataset_dir,
        subset=config.subset,
        repo=config.repo,
        task_id=config.task_id,
        features=config.features,
        group_sizes=config.group_sizes,
        groups_per_task=config.groups_per_task,
        seed=config.seed,
    )
    if not config.sound_only:
        return found.pairs, (*found.notes, *config.notes())
    from cooperbench.eval.reference import sound_pairs

    sound = sound_pairs(found.pairs)
    left_out = f"{plural(len(found.pairs) - len(sound), 'pair')} left out as unsound"
    return sound, (*found.notes, *config.notes(), left_out)


def check(config: RunConfig, pairs: Sequence[Pair]) -> None:
    """Whatever can be known to be wrong before anything is made."""
    patience_seconds()
    if backends.get_backend is get_backend:  # users may replace it, and know other names then
        find_factory(config.backend)
    config.check_against_disk()
    for pair in pairs if config.replay_from else ():
        for seat in seats_of(pair, config.setting):
            recording = config.recording(pair, seat.agent_id)
            if recording is None or not recording.is_file():
                raise UserError(
                    f"nothing to replay for {pair.label}: {recording} is missing; run with --record"
                )
    one_of_each_size = {len(pair.feature_ids): pair for pair in reversed(pairs)}.values()
    for one in dict.fromkeys(one for pair in one_of_each_size for one in config.assigned(pair)):
        agent: Any = get_agent(one.agent)()
        if hasattr(agent, "check"):
            agent.check(one.config_path, pairs, config.setting)
        asks = one.model and not config.replay_from and something_to_run(config, pairs)
        if one.model and asks and hasattr(agent, "check_model"):
            agent.check_model(one.model, one.config_path)


def price_notes(config: RunConfig) -> Iterator[str]:
    """What `--max-cost` does not count."""
    if config.max_cost is None or not any(map(uses_model, config.assignment.agents)):
        return
    with suppress(UserError):  # an agent of its own environment needs no LiteLLM here
        load_litellm()
        for model in config.assignment.models:
            if model and not has_price(model):
                yield f"the price of {printable(model)} is not known: --max-cost does not count its calls"


def warm_up(config: RunConfig) -> None:
    """Slow imports of agents begin while sandboxes are being made. Nobody waits for them here."""
    for name in dict.fromkeys(config.assignment.agents):
        prepare = getattr(get_agent(name), "warm_up", None)
        if callable(prepare):
            threading.Thread(target=_quietly, args=(prepare,), name=_WARM_UP + name, daemon=True).start()


def _let_warm_up_end() -> None:
    """Stopped in the middle of an import it would keep the import's lock, and finalizers would wait for that."""
    for thread in threading.enumerate():
        if thread.name.startswith(_WARM_UP):
            thread.join()


def _quietly(prepare: Callable[[], object]) -> None:
    # Whatever is wrong is said by the agent itself, with a better word, when it works.
    with suppress(Exception):
        prepare()


def plan_experiment(config: RunConfig) -> tuple[Plan, tuple[str, ...]]:
    """For `--dry-run`: everything is checked, nothing is written."""
    pairs, notes = select(config)
    check(config, pairs)
    return make_plan(config, pairs), notes


def run_experiment(config: RunConfig, display: Display) -> dict[str, Any]:
    """One experiment, from its configuration to its summary."""
    from cooperbench.runner.executors.orders import open_jobs
    from cooperbench.runner.experiment import Arm, carry_out, open_backend

    pairs, notes = select(config)
    check(config, pairs)
    with ExitStack() as stack:
        jobs = stack.enter_context(
            open_jobs(config.placement, config.job_order, config.dataset_dir, config.concurrency)
        )
        backend = None if jobs else open_backend(config.backend, config.backend_options)
        stack.enter_context(config.paths.lock())
        config.check_against_disk()
        plan = make_plan(config, pairs)
        mailboxes = None
        if backend and plan.to_run:
            warm_up(config)
            if config.setting != "solo" and config.messaging_enabled:
                mailboxes = stack.enter_context(open_mailboxes(config.redis_url, config.run_name))
        config.save()
        judged_later = len(plan.to_run) if config.auto_eval else 0
        display.begin(
            header_lines(config, plan),
            to_run=len(plan.to_run),
            to_judge=judged_later + len(plan.to_evaluate),
        )
        stack.callback(display.end)
        for note in (*notes, *price_notes(config)):
            display.note(note)
        if mailboxes is not None:
            display.note(f"Messages: {mailboxes.description}")
        if backend is not None:
            return carry_out([Arm(config, plan, display)], backend, mailboxes)[0]
        assert jobs is not None
        for pair in plan.to_run if config.force else ():
            # A job that is started again must not run again what it has finished.
            config.paths.archive(pair, config.setting)
        work = [(pair, config.setting) for pair in (*plan.to_evaluate, *plan.to_run)]
        return jobs(work, display, config.max_cost, {config.setting: plan.pairs})
