"""How long one waits before anything happens: help, import, discovery, planning. Prints a table; run it by hand.

.venv/bin/python benchmarks/start.py
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.dataset.factory import write_public_shape

from cooperbench.dataset.discovery import discover
from cooperbench.eval.evaluation_files import read_patches
from cooperbench.eval.evaluation_key import EvaluationOptions, evaluation_key
from cooperbench.records.evaluation import SCHEMA
from cooperbench.runner.config import RunConfig
from cooperbench.runner.plan import plan_pairs
from cooperbench.storage import write_json

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15


def median_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def process(*words: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True)


def peak_mb(*words: str) -> float:
    """Peak memory of one process, which is started by a process of its own so that nothing else counts."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, sys.executable, *words],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout) / 1024


def finished_experiment(root: Path) -> tuple[RunConfig, Callable[[], object]]:
    """652 pairs that are done and judged, and the work of finding that out."""
    dataset = write_public_shape(root / "data")
    config = RunConfig(
        run_name="r", dataset_dir=dataset, logs_dir=root / "logs", setting="coop", agent="nop", model=None,
        backend="local",
    )  # fmt: skip
    pairs = discover(dataset).pairs
    for pair in pairs:
        paths = config.paths.pair(pair, "coop")
        for place, feature in enumerate(pair.features, 1):
            paths.agent(f"agent{place}").write_patch(feature.patch.read_bytes())
        key = evaluation_key(
            pair, read_patches(paths, pair, "coop"), "", EvaluationOptions(600, "auto")
        )
        write_json(
            paths.evaluation,
            {
                "schema": SCHEMA,
                "status": "completed",
                "key": key,
                "image_digest": "",
                "test_timeout_seconds": 600,
            },
        )
        write_json(paths.result, {"status": "completed"})
    plan = plan_pairs(config, pairs)
    assert (len(plan.pairs), len(plan.to_run), len(plan.to_evaluate)) == (652, 0, 0)
    return config, lambda: plan_pairs(config, discover(dataset).pairs)


def main() -> None:
    bare = median_ms(process("-c", "pass"))
    rows = [("a bare interpreter", bare, peak_mb("-c", "pass"), "")]
    for name, words, limit in (
        ("import cooperbench", ["-c", "import cooperbench"], "200 ms, 60 MB"),
        ("cooperbench --help", ["-m", "cooperbench", "--help"], "200 ms, 60 MB"),
        ("cooperbench run --help", ["-m", "cooperbench", "run", "--help"], ""),
    ):
        rows.append((name, median_ms(process(*words)), peak_mb(*words), limit))
    with tempfile.TemporaryDirectory() as folder:
        config, plan = finished_experiment(Path(folder))
        rows.append(
            ("discovery, 652 pairs", median_ms(lambda: discover(config.dataset_dir)), 0.0, "100 ms")
        )
        rows.append(("plan, 652 finished pairs", median_ms(plan), 0.0, "1000 ms"))
    print(f"{'what':<28}{'median ms':>10}{'peak MB':>9}  target")
    for name, milliseconds, megabytes, target in rows:
        print(
            f"{name:<28}{milliseconds:>10.1f}{f'{megabytes:.0f}' if megabytes else '':>9}  {target}"
        )
    print(f"(this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB)")


if __name__ == "__main__":
    main()
