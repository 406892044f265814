"""`cooperbench.evaluate` and `cooperbench.run_patch_test`: the documented functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cooperbench import records
from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir
from cooperbench.errors import UserError
from cooperbench.eval import backends
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.references import References
from cooperbench.eval.test_runs import not_run
from cooperbench.eval.trees import TreeStore
from cooperbench.models import EvalNetwork, Feature
from cooperbench.records import JsonObject
from cooperbench.records.config import RunRecord
from cooperbench.report.summary_text import summary_text
from cooperbench.runner.config import RunConfig, make_config, relative_to_cwd
from cooperbench.runner.display import make_display
from cooperbench.runner.experiment import evaluate_experiment
from cooperbench.runner.options import INTEGER, PATH, POSITIVE_INTEGER, TEXT
from cooperbench.runner.plan import check_experiment_exists
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.settings import DEFAULT_BACKEND, check_eval_network
from cooperbench.storage import DEFAULT_LOGS_DIR, ExperimentPaths

DEFAULT_TEST_SECONDS = 600
EVALUATION_OPTIONS = (
    "sound_only",
    "canary",
    "image_template",
    "pull",
    "mount",
    "gpu",
    "executor",
    "workers",
    "pairs_per_job",
    "slurm",
    "ray_address",
    "ray_resources",
)
"""Options of `RunOptions` that `evaluate` and `cooperbench eval` have too."""


def evaluate(  # noqa: PLR0913  # the documented signature
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
    """Evaluate the pairs of a run that have a result and no evaluation; with `force`, all of them.

    Verdicts are written to each pair's eval.json; a summary is printed. `options` are those in
    `EVALUATION_OPTIONS`.
    """
    values = dict(locals())
    values |= values.pop("options")
    values["test_timeout_seconds"] = values.pop("test_timeout")
    for name in options:
        if name not in EVALUATION_OPTIONS:
            raise TypeError(f"evaluate() got an unexpected keyword argument {name!r}")
    config = make_evaluation_config(values)
    summary = evaluate_experiment(config, make_display())
    print(summary_text(summary, relative_to_cwd(config.paths.root)))  # noqa: T201  # documented


def make_evaluation_config(values: JsonObject) -> RunConfig:
    """Return the configuration of an evaluation; by default with the network policy of the run.

    Raises:
        UserError: The run does not exist, or an option is wrong.
    """
    logs_dir = Path(values["logs_dir"]).expanduser().absolute()
    paths = ExperimentPaths(logs_dir, values["run_name"])
    check_experiment_exists(paths)
    record = records.read(paths.config, RunRecord)
    recorded_network = record.eval_network if record is not None else None
    evaluation = {
        "agent": "nop",
        "eval_network": values["eval_network"] or recorded_network or "auto",
        "eval_concurrency": values["concurrency"],
        "evaluate_only": True,
    }
    return make_config({**values, **evaluation})


def run_patch_test(  # noqa: PLR0913  # the documented signature
    repo_name: str,
    task_id: int,
    feature_id: int,
    agent_patch: str | Path | None = None,
    timeout: int = DEFAULT_TEST_SECONDS,
    backend: str = DEFAULT_BACKEND,
    *,
    dataset_dir: str | Path | None = None,
    eval_network: EvalNetwork = "auto",
) -> JsonObject:
    """Run one feature's tests on one patch.

    `agent_patch` is a path or the text of a patch; None is the golden patch. The `status` of the
    answer is `no_reference` if the golden patch itself fails: then the answer means nothing.
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
        available_ids = ", ".join(str(known_id) for known_id in task.feature_ids)
        raise UserError(f"{task.label} has no feature {feature_id}; available: {available_ids}")
    feature = task.feature(feature_id)
    patch = feature.patch.read_bytes() if agent_patch is None else _read_patch(agent_patch)
    with SandboxManager(backends.get_backend(backend)) as sandboxes:
        tester = PatchTester(sandboxes, timeout)
        references = References(tester, check_eval_network(eval_network))
        return _test_patch(feature, patch, tester, references)


def _test_patch(
    feature: Feature, patch: bytes, tester: PatchTester, references: References
) -> JsonObject:
    """Drop protected files from a patch, run the feature's tests, and describe the outcome."""
    task = feature.task
    reference = references.get(feature)
    with TreeStore(tester.base(task)) as store:
        work = drop_protected_files(patch, tester.protected_files((feature,), store), store)
    if work.patch:
        run = references.test(feature, work.patch, work.tree)
    else:
        run = not_run(work.error or "nothing to test")
    return {
        "repo_name": task.repo,
        "task_id": task.task_id,
        "feature_id": feature.feature_id,
        "status": "completed" if reference.golden.success else "no_reference",
        **msgspec.to_builtins(run.to_record()),
        "network": reference.network,
        "apply_status": work.status,
        "dropped_files": [file._asdict() for file in work.dropped],
        "output": run.output,
    }


def _read_patch(patch: str | Path) -> bytes:
    """Return the content of a patch. A text with line breaks is the patch itself, not a path."""
    if isinstance(patch, str) and ("\n" in patch or not patch.strip()):
        return patch.encode("utf-8", "surrogateescape")
    path = Path(patch)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: the patch cannot be read: {error.strerror or error}") from error
