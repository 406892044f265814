"""`cooperbench.evaluate` and `cooperbench.run_patch_test`: judging what agents, or people, handed in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir, select_pairs
from cooperbench.errors import UserError
from cooperbench.eval import backends
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.reference_store import sound_pairs
from cooperbench.eval.references import References
from cooperbench.eval.test_runs import not_run
from cooperbench.eval.trees import TreeStore
from cooperbench.models import EvalNetwork, Pair, Setting
from cooperbench.report.loading import read_pairs
from cooperbench.report.summary_text import summary_text
from cooperbench.runner.ablation import named_pairs
from cooperbench.runner.api import check_backend
from cooperbench.runner.config import RunConfig, make_config
from cooperbench.runner.display import make_display
from cooperbench.runner.experiment import Arm, carry_out
from cooperbench.runner.options import INTEGER, PATH, POSITIVE_INTEGER, TEXT
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.settings import DEFAULT_BACKEND, check_eval_network
from cooperbench.storage import DEFAULT_LOGS_DIR, ExperimentPaths, is_finished, read_json
from cooperbench.text import names_for_error

DEFAULT_TEST_SECONDS = 600
EVALUATION_OPTIONS = (
    *("sound_only", "canary", "image_template", "pull", "mount", "gpu"),
    *("executor", "workers", "pairs_per_job", "slurm", "ray_address", "ray_resources"),
)
"""Of `RunOptions`, those that say how results are judged."""


def evaluate(
    run_name: str,
    subset: str | None = None,
    repo: str | None = None,
    task_id: int | None = None,
    features: list[int] | None = None,
    concurrency: int = 10,
    force: bool = False,
    backend: str = DEFAULT_BACKEND,
    *,
    dataset_dir: str | Path | None = None,
    logs_dir: str | Path = DEFAULT_LOGS_DIR,
    test_timeout: int = DEFAULT_TEST_SECONDS,
    eval_network: EvalNetwork | None = None,
    **options: Any,
) -> None:
    """Judge the pairs of a run that have a result and no evaluation of it yet; with `force`, all of them.

    Verdicts are in each pair's eval.json; a summary is printed. `options`: those of `run` in `EVALUATION_OPTIONS`.
    """
    values = {
        name: value for name, value in locals().items() if name not in ("options", "test_timeout")
    }
    for name in options:
        if name not in EVALUATION_OPTIONS:
            raise TypeError(f"evaluate() got an unexpected keyword argument {name!r}")
    values |= {"test_timeout_seconds": test_timeout, **options}
    arms = evaluation_arms(values)
    summary = carry_out(arms, make_display())[run_name]
    print(summary_text(summary, str(arms[0].config.paths.root)))  # noqa: T201  # the documented function prints


def evaluation_arms(values: Mapping[str, Any]) -> list[Arm]:
    """One for each setting of the run; UserError where nothing is to be judged."""
    paths = ExperimentPaths(Path(values["logs_dir"]), values["run_name"])
    recorded = (read_json(paths.config) or {}).get("eval_network")
    network = values["eval_network"] or recorded or "auto"
    judging = {
        "eval_network": network,
        "eval_concurrency": values["concurrency"],
        "evaluate_only": True,
    }
    config = make_config({**values, **judging, "agent": "nop"})
    check_backend(config)
    if not paths.root.is_dir():
        known = sorted(entry.parent.name for entry in paths.logs_dir.glob("*/config.json"))
        raise UserError(
            f"no experiment {paths.run_name!r} in {paths.logs_dir}; there are: {', '.join(known) or 'none'}"
        )
    found = select_pairs(config.dataset_dir, config)
    arms = []
    for setting in paths.settings_on_disk():
        pairs = [*found.pairs, *_larger_groups(config, setting, found.pairs)]
        finished = tuple(pair for pair in pairs if is_finished(paths.pair(pair, setting)))
        if finished := sound_pairs(finished) if config.sound_only else finished:
            arms.append(Arm(replace(config, setting=setting), finished))
    if len(arms) > 1:
        arms = [replace(arm, pairs=named_pairs(arm.pairs, arm.config.setting)) for arm in arms]
    if not arms:
        tasks = names_for_error(dict.fromkeys(pair.task.label for pair in found.pairs), limit=5)
        raise UserError(
            f"experiment {paths.run_name!r} has no results to evaluate among what was asked for ({tasks})"
        )
    return arms


def _larger_groups(config: RunConfig, setting: Setting, pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Those on disk with more than two features, which no enumeration of pairs finds."""
    tasks = {(pair.task.repo, pair.task.task_id): pair.task for pair in pairs}
    named = config.features is not None or config.subset is not None
    for record in () if named else read_pairs(config.paths, setting):
        task = tasks.get((record.key.repo, record.key.task_id))
        if task and len(record.key.features) > 2:
            yield Pair(task, record.key.features)


def run_patch_test(
    repo_name: str,
    task_id: int,
    feature_id: int,
    agent_patch: str | Path | None = None,
    timeout: int = DEFAULT_TEST_SECONDS,
    backend: str = DEFAULT_BACKEND,
    *,
    dataset_dir: str | Path | None = None,
    eval_network: EvalNetwork = "auto",
) -> dict[str, Any]:
    """One patch against one feature's tests. `agent_patch`: a path or the patch's text; None: the golden patch.

    `status` is `no_reference` where the golden patch itself does not pass: then the answer says nothing.
    """
    TEXT.check("repo_name", repo_name)
    INTEGER.check("task_id", task_id)
    INTEGER.check("feature_id", feature_id)
    POSITIVE_INTEGER.check("timeout", timeout)
    TEXT.check("backend", backend)
    if agent_patch is not None:
        PATH.check("agent_patch", agent_patch)
    if dataset_dir is not None:
        PATH.check("dataset_dir", dataset_dir)
    (task,) = load_tasks(resolve_dataset_dir(dataset_dir), repo_name, task_id)
    if feature_id not in task.feature_ids:
        raise UserError(
            f"{task.label} has no feature {feature_id}; there are: {', '.join(map(str, task.feature_ids))}"
        )
    feature = task.feature(feature_id)
    patch = feature.patch.read_bytes() if agent_patch is None else _read_patch(agent_patch)
    with SandboxManager(backends.get_backend(backend)) as sandboxes:
        tester = PatchTester(sandboxes, timeout)
        references = References(tester, check_eval_network(eval_network))
        reference = references.get(feature)
        with TreeStore(tester.base(task)) as store:
            work = drop_protected_files(patch, tester.protected_files((feature,), store), store)
        if work.patch:
            run = references.test(feature, work.patch, work.tree)
        else:
            run = not_run(work.error or "nothing to test")
    return {
        "repo_name": task.repo,
        "task_id": task_id,
        "feature_id": feature_id,
        "status": "completed" if reference.golden.success else "no_reference",
        **msgspec.to_builtins(run.to_record()),
        "network": reference.network,
        "apply_status": work.status,
        "dropped_files": [file._asdict() for file in work.dropped],
        "output": run.output,
    }


def _read_patch(patch: str | Path) -> bytes:
    """A patch has lines, a path has none."""
    if isinstance(patch, str) and ("\n" in patch or not patch.strip()):
        return patch.encode("utf-8", "surrogateescape")
    path = Path(patch)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: the patch cannot be read: {error.strerror or error}") from error
