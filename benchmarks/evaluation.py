"""What a verdict costs beside its runner calls: python benchmarks/evaluation.py

30 golden pairs of three tasks with two evaluations at once, reference runs known. The tests take milliseconds, so what
is measured is ours: sandboxes, patches, merges, files. On Docker where an engine answers or can be started, and on
this machine's own sandboxes. Then what it costs that verdicts cannot be bought, on pairs of the demo: canaries, and
everything else. Then the whole procedure beside that of the public release, which runs the tests of both features on the
merge, one after the other, and confirms nothing. Last, one runner call of three tasks that install when they run, from an
index on this machine: in the image as published with a network, and in the one that keeps what they install.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.docker.engines import NoEngine, docker_host, provide_base
from tests.support.docker.tasks import DOCKERFILE
from tests.support.published.images import load_image
from tests.support.published.index import PackageIndex
from tests.support.published.packages import provide_packages
from tests.support.published.tasks import write_published
from tests.support.tiny import text_patch, write_tiny

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.engine import connect
from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import discover, resolve_dataset_dir
from cooperbench.dataset.image_names import image_name
from cooperbench.eval import evaluate
from cooperbench.eval.conditions import Conditions
from cooperbench.eval.evaluation_files import evaluate_and_write
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.references import References
from cooperbench.eval.test_runs import TestRun
from cooperbench.models import agent_slots
from cooperbench.records.evaluation import Evaluation
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.storage import ExperimentPaths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cooperbench.models import Pair
    from cooperbench.sandbox.contract import EvalBackend

CONCURRENCY = 2
AIM_SECONDS = 0.5
PUBLISHED_CALL_SECONDS = 3.4
"""What a runner call of a small published task takes (dirty_equals)."""
CHECKS = (
    (evaluate, "drop_protected_files"),
    (evaluate, "find_suspicious_lines"),
    (TestRun, "compare_with_reference"),
)


class CountingTester(PatchTester):
    """Knows how many runner calls there were, how long they took, and how many pairs succeeded."""

    calls, seconds, successes = 0, 0.0, 0

    def run(self, *args: Any, **options: Any) -> TestRun:
        done = super().run(*args, **options)
        self.calls, self.seconds = self.calls + 1, self.seconds + done.duration_seconds
        return done


def hand_in(paths: ExperimentPaths, pairs: tuple[Pair, ...]) -> None:
    """Every agent has written the golden patch."""
    for pair in pairs:
        for slot in agent_slots(pair, "coop"):
            paths.pair(pair, "coop").agent(slot.agent_id).write_patch(
                slot.features[0].patch.read_bytes()
            )


def evaluate_all(
    backend: EvalBackend, paths: ExperimentPaths, pairs: tuple[Pair, ...], *, canary: bool = True
) -> tuple[float, CountingTester]:
    with SandboxManager(backend) as sandboxes:
        sandboxes.prepare([pair.task for pair in pairs], lambda *_: None)
        tester = CountingTester(sandboxes, 600, paths.run_name)
        references = References(tester, "auto")
        pool = sandboxes.pool(CONCURRENCY, "eval")
        started = time.perf_counter()
        judged = [
            pool.submit(evaluate_and_write, paths, pair, "coop", references, canary=canary)
            for pair in pairs
        ]
        records = [future.result() for future in judged]
        took = time.perf_counter() - started
    evaluations = [record for record in records if isinstance(record, Evaluation)]
    assert all(record.is_completed for record in records), records
    tester.successes = len([record for record in evaluations if record.overall_success])
    return took, tester


def integrity(folder: Path) -> None:
    """Golden pairs of the demo, and the same pairs with nothing handed in."""
    pairs = discover(resolve_dataset_dir("demo"), repo="coinage_task").pairs
    golden, nothing = (ExperimentPaths(folder / "logs", name) for name in ("golden", "nothing"))
    hand_in(golden, pairs)
    backend = LocalBackend()
    evaluate_all(backend, golden, pairs)  # makes templates and references
    without = evaluate_all(backend, golden, pairs, canary=False)[1].calls
    seconds = Counter[str]()
    for module, name in CHECKS:
        setattr(module, name, timed(getattr(module, name), seconds))
    _, tester = evaluate_all(backend, golden, pairs)
    print(
        f"canaries: {tester.calls - without} runner calls for {tester.successes} pairs that succeed",
        end=", ",
    )
    print(f"{evaluate_all(backend, nothing, pairs)[1].calls} for {len(pairs)} that hand in nothing")
    checks = seconds["checks"] / len(pairs)
    share = checks / (checks + 4 * PUBLISHED_CALL_SECONDS)
    print(f"  test side, expected tests and evidence    {checks:.2f} s a pair;", end=" ")
    print(
        f"with four runner calls of {PUBLISHED_CALL_SECONDS} s {share:.1%}   at most 3 %",
        flush=True,
    )


def timed(work: Callable[..., Any], seconds: Counter[str]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return work(*args, **options)
        finally:
            seconds["checks"] += time.perf_counter() - started  # type: ignore[assignment]

    return call


def measure(name: str, backend: EvalBackend, folder: Path, pairs: tuple[Pair, ...]) -> None:
    paths = ExperimentPaths(folder / "logs", name)
    hand_in(paths, pairs)
    evaluate_all(backend, paths, pairs)  # makes images and references
    took, tester = evaluate_all(backend, paths, pairs)
    outside = (took * CONCURRENCY - tester.seconds) / len(pairs)
    asked = 4 * len(pairs)
    print(
        f"{name}: {len(pairs)} golden pairs in {took:.1f} s, {tester.calls} runner calls for {asked} questions"
    )
    print(
        f"  outside of runner calls, a pair           {outside:.2f} s   at most {AIM_SECONDS} s",
        flush=True,
    )


def installs(backend: DockerBackend, base: str, folder: Path) -> None:
    packages = provide_packages()
    repos = ("pip_task", "uv_task", "pnpm_task")
    tasks = write_published(folder / "published", packages, repos)
    with PackageIndex(packages) as index, SandboxManager(backend) as sandboxes:
        tester = PatchTester(sandboxes, 600)
        for task in tasks.values():
            load_image(backend.engine, task, image_name(task), base=base, index=index)
        pairs = [pair for task in tasks.values() for pair in task.pairs]
        compare_with_public_release("docker", DockerBackend(pull="never"), pairs, variants=2)
        print(f"{'one runner call':<44} {'as published':>22} {'installs kept':>22}")
        for repo, task in tasks.items():
            feature = task.features[0]
            shown = []
            for conditions in (Conditions("public"), Conditions("none", installed=True)):
                tester.run(feature, feature.patch.read_bytes(), conditions)  # makes the layer
                index.reset()
                run = tester.run(feature, feature.patch.read_bytes(), conditions)
                assert run.success, run.output
                shown.append(f"{run.duration_seconds:.1f} s, {index.traffic().bytes / 1e6:.2f} MB")
            print(f"{repo:<44} {shown[0]:>22} {shown[1]:>22}", flush=True)
        backend.images.remove_created({task.label for task in tasks.values()}, built=True)


MERGE_SCRIPT = """
set -euo pipefail
cd /workspace/repo
git() { command git -c user.name=bench -c user.email=bench@bench.invalid "$@"; }
base=$(git rev-parse HEAD)
for name in 1 2; do
    git checkout -q -B "bench$name" "$base"
    git apply "/patches/patch$name.diff"
    git add -A
    git commit -qm "patch $name"
done
git merge -q --no-edit bench1
git diff "$base" HEAD >/patches/merged.patch
git checkout -q --detach "$base"
"""


def run_like_public_release(
    sandboxes: SandboxManager, pair: Pair, patches: Sequence[bytes]
) -> list[int]:
    """Evaluate a pair as the public release does; return the exit codes of its two runner calls.

    One sandbox with a network, as published: merge in it, then the tests of feature 1, then those
    of feature 2. No reference, no patch alone, no confirmation.
    """
    options = SandboxOptions("evaluation", "public", {"task": pair.task.label})
    image = sandboxes.image(pair.task)
    exit_codes = []
    with sandboxes.sandbox(image.ref, timeout_seconds=600, options=options) as sandbox:
        for number, patch in enumerate(patches, 1):
            sandbox.write_file(f"/patches/patch{number}.diff", patch)
        sandbox.run_checked(["bash", "-c", MERGE_SCRIPT], "merge", 60)
        for feature in pair.features:
            sandbox.write_file("/patches/tests.patch", feature.tests.read_bytes())
            argv = ["bash", "/usr/local/bin/runner.sh", "tests.patch", "merged.patch"]
            exit_codes.append(sandbox.run(argv, timeout_seconds=600).returncode)
    return exit_codes


def distinct_patches(pair: Pair, variant: int) -> list[bytes]:
    """Return the golden patches of a pair, each with a file that no other variant has."""
    patches = []
    for feature in pair.features:
        path = f"notes/variant{variant}_{feature.feature_id}.txt"
        note = text_patch(path, None, [f"variant {variant}\n"])
        patches.append(feature.patch.read_bytes() + note.encode())
    return patches


def evaluate_distinct(
    sandboxes: SandboxManager, work: Sequence[tuple[Pair, list[bytes]]], *, canary: bool
) -> tuple[float, int, list[bool]]:
    """Evaluate pairs, two at once; return seconds, number of runner calls, and the verdicts."""
    tester = CountingTester(sandboxes, 600)
    references = References(tester, "auto")

    def evaluate_one(pair: Pair, patches: list[bytes]) -> bool:
        by_agent = {"agent1": patches[0], "agent2": patches[1]}
        evaluation = evaluate.evaluate_pair(pair, "coop", by_agent, references, canary=canary)
        return bool(evaluation.record.overall_success_strict)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        started = time.perf_counter()
        successes = list(pool.map(lambda item: evaluate_one(*item), work))
        took = time.perf_counter() - started
    return took, tester.calls, successes


def compare_with_public_release(
    name: str, backend: EvalBackend, pairs: Sequence[Pair], *, variants: int
) -> None:
    """Measure both procedures in turn on the same pairs with distinct patches."""
    with SandboxManager(backend) as sandboxes:
        sandboxes.prepare([pair.task for pair in pairs], lambda *_: None)
        # Makes images and references. Golden patches of some pairs do not merge.
        first = [(pair, distinct_patches(pair, -1)) for pair in pairs]
        verdicts = evaluate_distinct(sandboxes, first, canary=True)[2]
        merging = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict]
        work = [(pair, distinct_patches(pair, v)) for v in range(variants) for pair in merging]
        print(f"{name}: {len(work)} pairs with distinct patches, {CONCURRENCY} at once", flush=True)
        totals: dict[str, float] = defaultdict(float)
        for start in range(0, len(work), CONCURRENCY):
            # Procedures take turns every few seconds, so that other load hits all of them.
            _measure_in_turn(sandboxes, work[start : start + CONCURRENCY], totals)
            public = totals["public release"]
            for procedure, seconds in totals.items():
                text = f"{seconds / (start + CONCURRENCY):.1f} s a pair ({seconds / public:.2f})"
                print(f"  {procedure:<24} {text}", flush=True)


def _measure_in_turn(
    sandboxes: SandboxManager, work: Sequence[tuple[Pair, list[bytes]]], totals: dict[str, float]
) -> None:
    """Evaluate pairs with each procedure, and add the seconds that it takes."""
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        started = time.perf_counter()
        codes = list(pool.map(lambda item: run_like_public_release(sandboxes, *item), work))
        totals["public release"] += time.perf_counter() - started
    assert not any(map(any, codes)), codes
    for procedure, canary in (("without confirmation", False), ("with confirmation", True)):
        took, _, verdicts = evaluate_distinct(sandboxes, work, canary=canary)
        assert all(verdicts), verdicts
        totals[procedure] += took


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["COOPERBENCH_CACHE_DIR"] = str(folder / "cache")
        dataset = write_tiny(folder / "data", feature_ids=(1, 2, 3, 4, 5), task_ids=(1, 2, 3))
        pairs = discover(dataset).pairs
        for task in {pair.task for pair in pairs}:
            task.dockerfile.write_text(DOCKERFILE)
        measure("local", LocalBackend(dataset_dir=dataset), folder, pairs)
        integrity(folder)
        demo = discover(resolve_dataset_dir("demo"), repo="coinage_task").pairs
        compare_with_public_release("local", LocalBackend(), demo, variants=2)
        try:
            with docker_host() as address:
                os.environ["DOCKER_HOST"] = address
                base = provide_base(connect("docker"))
                measure(
                    "docker",
                    DockerBackend(build_args={"BASE_IMAGE": base}, pull="never"),
                    folder,
                    pairs,
                )
                installs(DockerBackend(pull="never"), base, folder)
        except NoEngine as error:
            print(f"docker: left out: {error}")


if __name__ == "__main__":
    main()
