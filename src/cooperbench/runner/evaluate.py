"""`cooperbench.evaluate` and `cooperbench.run_patch_test`: judging what agents, or people, handed in."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.dataset.discovery import discover, load_tasks, resolve_dataset_dir
from cooperbench.errors import UserError
from cooperbench.eval.batch import Order
from cooperbench.models import Pair
from cooperbench.runner.executors import JobOrder, Placement
from cooperbench.settings import DOCUMENTED_BACKEND, checked_eval_network
from cooperbench.storage import DEFAULT_LOGS_DIR, ExperimentPaths, is_finished, read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cooperbench.models import EvalNetwork, Setting
    from cooperbench.runner.display import Display

DEFAULT_TEST_SECONDS = 600


def evaluate(
    run_name: str,
    subset: str | None = None,
    repo: str | None = None,
    task_id: int | None = None,
    features: list[int] | None = None,
    concurrency: int = 10,
    force: bool = False,
    backend: str = DOCUMENTED_BACKEND,
    *,
    dataset_dir: str | Path | None = None,
    logs_dir: str | Path = DEFAULT_LOGS_DIR,
    test_timeout: int = DEFAULT_TEST_SECONDS,
    eval_network: EvalNetwork | None = None,
    sound_only: bool = False,
    canary: bool = True,
    image_template: str | None = None,
    pull: str | None = None,
    mount: Sequence[str] = (),
    gpu: str | None = None,
    executor: str = "local",
    workers: int | None = None,
    pairs_per_job: int | None = None,
    slurm: str | None = None,
    ray_address: str | None = None,
    ray_resources: str | None = None,
) -> None:
    """Judge the pairs of a run that have a result and no evaluation of it yet; with `force`, all of them.

    Verdicts are in each pair's eval.json; a summary is printed. `eval_network`: what test runs reach, by default what
    the run was started with. `sound_only`: without features whose tests pass without them, as `validate` has found.
    `canary`: confirm successes by tests that must fail. `image_template`, `pull`, `mount` and `gpu` are for backends
    that have them. `executor` says where it is done: here, or by at most `workers` jobs of Slurm or Ray.
    """
    placement = Placement(executor, workers, pairs_per_job, slurm, ray_address, ray_resources)
    from cooperbench.report.summary import summary_text
    from cooperbench.runner.display import make_display

    paths = ExperimentPaths(Path(logs_dir), run_name)
    dataset = resolve_dataset_dir(dataset_dir)
    found = select_results(paths, dataset, subset, repo, task_id, features, sound_only=sound_only)
    network = eval_network or recorded_eval_network(paths) or "auto"
    order = Order(paths, concurrency, test_timeout, network, canary, found)
    options = {"image_template": image_template, "pull": pull, "mounts": mount, "gpu": gpu}
    given = {name: value for name, value in options.items() if value}
    summary = evaluate_experiment(order, make_display(), backend, given, placement, dataset, force=force)
    print(summary_text(summary, str(paths.root)))  # noqa: T201  # the documented function prints


def recorded_eval_network(paths: ExperimentPaths) -> EvalNetwork | None:
    """What the run was started with; None where an older version did not record it."""
    recorded = (read_json(paths.config) or {}).get("eval_network")
    return None if recorded is None else checked_eval_network(recorded)


Work = list[tuple["Pair", "Setting"]]


def select_results(
    paths: ExperimentPaths,
    dataset_dir: Path,
    subset: str | None,
    repo: str | None,
    task_id: int | None,
    features: list[int] | None,
    *,
    sound_only: bool = False,
) -> Work:
    """Pairs of a run that have something to judge. None at all is the user's error."""
    from cooperbench.eval.reference import sound_pairs

    if not paths.root.is_dir():
        known = sorted(entry.parent.name for entry in paths.logs_dir.glob("*/config.json"))
        raise UserError(
            f"no experiment {paths.run_name!r} in {paths.logs_dir}; there are: {', '.join(known) or 'none'}"
        )
    pairs = discover(dataset_dir, subset=subset, repo=repo, task_id=task_id, features=features).pairs
    asked = {(pair.task.repo, pair.task.task_id) for pair in pairs}
    found: Work = []
    for setting in paths.settings_on_disk():
        candidates = pairs
        if features is None and subset is None:
            candidates = (*pairs, *_groups_on_disk(paths, setting, pairs))
        found += [
            (pair, setting)
            for pair in (sound_pairs(candidates) if sound_only else candidates)
            if is_finished(paths.pair(pair, setting))
        ]
    if not found:
        tasks = ", ".join(sorted(f"{name}/task{number}" for name, number in asked)[:5])
        raise UserError(
            f"experiment {paths.run_name!r} has no results to evaluate among what was asked for ({tasks} …)"
        )
    return found


def _groups_on_disk(paths: ExperimentPaths, setting: Setting, pairs: Iterable[Pair]) -> list[Pair]:
    """Teams of more than two, which no enumeration of pairs finds."""
    from cooperbench.report.loading import read_pairs

    tasks = {(pair.task.repo, pair.task.task_id): pair.task for pair in pairs}
    return [
        Pair(tasks[key.repo, key.task_id], key.features)
        for key in (record.key for record in read_pairs(paths, setting))
        if len(key.features) > 2 and (key.repo, key.task_id) in tasks
    ]


def evaluate_experiment(
    order: Order,
    display: Display,
    backend_name: str,
    backend_options: Mapping[str, object],
    placement: Placement,
    dataset: Path,
    *,
    force: bool,
) -> dict[str, Any]:
    """Judge what of the order has to be judged; the summary of the whole run."""
    from cooperbench.eval.evaluator import is_evaluated, mark_unsound
    from cooperbench.eval.reference import ReferenceStore
    from cooperbench.runner.executors.orders import open_jobs
    from cooperbench.runner.experiment import evaluate_pairs, open_backend
    from cooperbench.text import plural

    if order.concurrency < 1 or order.test_timeout_seconds < 1:
        raise UserError("concurrency and the test timeout are at least 1")
    paths, store = order.paths, ReferenceStore()
    with ExitStack() as stack:
        there = JobOrder(None, replace(order, work=(), concurrency=1), backend_name, backend_options)
        jobs = stack.enter_context(open_jobs(placement, there, dataset, order.concurrency))
        backend = None if jobs else open_backend(backend_name, backend_options)
        stack.enter_context(paths.lock())
        work = [
            (pair, setting)
            for pair, setting in order.work
            if force
            or not is_evaluated(paths.pair(pair, setting), pair, setting, order.eval_network, order.canary)
        ]
        for pair, setting in order.work:
            mark_unsound(paths.pair(pair, setting), pair, store)
        lines = [f"Evaluating {plural(len(work), 'pair')} of {paths.run_name} on {backend_name}"]
        if skipped := len(order.work) - len(work):
            lines.append(f"{skipped} more are evaluated already (--force judges them again)")
        display.begin(lines, to_run=0, to_judge=len(work))
        stack.callback(display.end)
        if backend is None:
            assert jobs is not None
            return jobs(work, display, None, {})
        return evaluate_pairs(replace(order, work=work), backend, display)


def run_patch_test(
    repo_name: str,
    task_id: int,
    feature_id: int,
    agent_patch: str | Path | None = None,
    timeout: int = DEFAULT_TEST_SECONDS,
    backend: str = DOCUMENTED_BACKEND,
    *,
    dataset_dir: str | Path | None = None,
    eval_network: EvalNetwork = "auto",
) -> dict[str, Any]:
    """One patch against one feature's tests. `agent_patch`: a path or the patch's text; None: the golden patch.

    `status` is `no_reference` where the golden patch does not pass under the same conditions: then the answer says
    nothing about the patch.
    """
    from cooperbench.eval.executor import TestExecutor, not_run
    from cooperbench.eval.reference import References
    from cooperbench.eval.test_side import judged_patch
    from cooperbench.eval.trees import TreeStore
    from cooperbench.runner.experiment import open_backend
    from cooperbench.sandbox.session import SandboxSession

    (task,) = load_tasks(resolve_dataset_dir(dataset_dir), repo_name, task_id)
    if feature_id not in task.feature_ids:
        raise UserError(
            f"{task.label} has no feature {feature_id}; there are: {', '.join(map(str, task.feature_ids))}"
        )
    if timeout < 1:
        raise UserError(f"timeout is {timeout}; it is at least 1")
    feature = task.feature(feature_id)
    patch = feature.patch.read_bytes() if agent_patch is None else _read_patch(agent_patch)
    with SandboxSession(open_backend(backend, {})) as session:
        executor = TestExecutor(session, timeout)
        references = References(executor, checked_eval_network(eval_network))
        reference = references.get(feature)
        with TreeStore(executor.base(task)) as store:
            work = judged_patch(patch, executor.test_side((feature,), store), store)
        if work.patch:
            run = references.test(feature, work.patch, work.tree)
        else:
            run = not_run(work.error or "nothing to test")
    return {
        "repo_name": task.repo,
        "task_id": task_id,
        "feature_id": feature_id,
        "status": "completed" if reference.success else "no_reference",
        **run.to_json(),
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
