"""What a verdict costs beside its runner calls: python benchmarks/evaluation.py

30 golden pairs of three tasks with two evaluations at once, reference runs known. The tests take milliseconds, so what
is measured is ours: sandboxes, patches, merges, files. On Docker where an engine answers or can be started, and on
this machine's own sandboxes. Then one runner call of three tasks that install when they run, from an index on this
machine: in the image as published with a network, and in the one that keeps what they install.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.backends.docker.engines import NoEngine, docker_host, provide_base
from tests.backends.docker.tasks import DOCKERFILE
from tests.published.images import load_image
from tests.published.index import PackageIndex
from tests.published.packages import provide_packages
from tests.published.tasks import write_published
from tests.tiny import write_tiny

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.engine import connect
from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import discover
from cooperbench.dataset.images import image_name
from cooperbench.eval.evaluator import Evaluator
from cooperbench.eval.executor import TestExecutor
from cooperbench.eval.reference import References
from cooperbench.eval.testrun import Conditions
from cooperbench.models import seats_of
from cooperbench.sandbox.workshop import Workshop
from cooperbench.storage import ExperimentPaths

if TYPE_CHECKING:
    from cooperbench.eval.testrun import TestRun
    from cooperbench.models import Pair
    from cooperbench.sandbox.contract import EvalBackend

CONCURRENCY = 2
AIM_SECONDS = 0.5


class CountingExecutor(TestExecutor):
    """Knows how many runner calls there were, and how long they took."""

    calls, seconds = 0, 0.0

    def run(self, *args: Any, **options: Any) -> TestRun:
        done = super().run(*args, **options)
        self.calls, self.seconds = self.calls + 1, self.seconds + done.duration_seconds
        return done


def hand_in(paths: ExperimentPaths, pairs: tuple[Pair, ...]) -> None:
    """Every agent has written the golden patch."""
    for pair in pairs:
        for seat in seats_of(pair, "coop"):
            paths.pair(pair, "coop").agent(seat.agent_id).write_patch(seat.features[0].patch.read_bytes())


def evaluate_all(
    backend: EvalBackend, paths: ExperimentPaths, pairs: tuple[Pair, ...]
) -> tuple[float, CountingExecutor]:
    with Workshop(backend) as workshop:
        workshop.images.prepare([pair.task for pair in pairs], lambda *_: None)
        executor = CountingExecutor(workshop, 600, paths.run_name)
        evaluator = Evaluator(paths, executor, References(executor, "auto"))
        pool = workshop.pool(CONCURRENCY, "eval")
        started = time.perf_counter()
        records = list(pool.map(lambda pair: evaluator.evaluate(pair, "coop"), pairs))
        took = time.perf_counter() - started
    assert all(record["individual_success"] for record in records), records
    return took, executor


def measure(name: str, backend: EvalBackend, folder: Path, pairs: tuple[Pair, ...]) -> None:
    paths = ExperimentPaths(folder / "logs", name)
    hand_in(paths, pairs)
    evaluate_all(backend, paths, pairs)  # makes images and references
    took, executor = evaluate_all(backend, paths, pairs)
    outside = (took * CONCURRENCY - executor.seconds) / len(pairs)
    asked = 4 * len(pairs)
    print(
        f"{name}: {len(pairs)} golden pairs in {took:.1f} s, {executor.calls} runner calls for {asked} questions"
    )
    print(
        f"  outside of runner calls, a pair           {outside:.2f} s   at most {AIM_SECONDS} s", flush=True
    )


def installs(backend: DockerBackend, base: str, folder: Path) -> None:
    packages = provide_packages()
    repos = ("pip_task", "uv_task", "pnpm_task")
    tasks = write_published(folder / "published", packages, repos)
    print(f"{'one runner call':<44} {'as published':>22} {'installs kept':>22}")
    with PackageIndex(packages) as index, Workshop(backend) as workshop:
        executor = TestExecutor(workshop, 600)
        for repo, task in tasks.items():
            load_image(backend.engine, task, image_name(task), base=base, index=index)
            feature = task.features[0]
            shown = []
            for conditions in (Conditions("public"), Conditions("none", installed=True)):
                executor.run(task, feature, feature.patch.read_bytes(), conditions)  # makes the layer
                index.reset()
                run = executor.run(task, feature, feature.patch.read_bytes(), conditions)
                assert run.success, run.output
                shown.append(f"{run.duration_seconds:.1f} s, {index.traffic().bytes / 1e6:.2f} MB")
            print(f"{repo:<44} {shown[0]:>22} {shown[1]:>22}", flush=True)
        backend.images.remove_made({task.label for task in tasks.values()}, built=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["COOPERBENCH_CACHE_DIR"] = str(folder / "cache")
        dataset = write_tiny(folder / "data", feature_ids=(1, 2, 3, 4, 5), task_ids=(1, 2, 3))
        pairs = discover(dataset).pairs
        for task in {pair.task for pair in pairs}:
            task.dockerfile.write_text(DOCKERFILE)
        measure("local", LocalBackend(dataset_dir=dataset), folder, pairs)
        try:
            with docker_host() as address:
                os.environ["DOCKER_HOST"] = address
                base = provide_base(connect("docker"))
                measure("docker", DockerBackend(build_args={"BASE_IMAGE": base}, pull="never"), folder, pairs)
                installs(DockerBackend(pull="never"), base, folder)
        except NoEngine as error:
            print(f"docker: left out: {error}")


if __name__ == "__main__":
    main()
