"""How long the golden merges of a dataset of the public one's size take: `python benchmarks/conflicts.py`.

The dataset is synthetic: 12 repositories of 2,000 files, 30 tasks, 199 features, 652 pairs, about three of four
in conflict. The baseline does what one would do by hand (a worktree for each side, apply, commit, merge) for some
of the pairs; its time for all of them is extrapolated.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.dataset.factory import feature_files, public_layout, write_public_shape

from cooperbench.dataset.discovery import load_tasks
from cooperbench.dataset.image_names import base_commit
from cooperbench.eval.conflicts import golden_conflicts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.models import Pair

LINES_PER_FILE = 150
IDENTITY = (
    "-c",
    "user.name=bench",
    "-c",
    "user.email=bench@localhost",
    "-c",
    "advice.detachedHead=false",
)


def git(cwd: Path, *args: str, stdin: bytes = b"", check: bool = True) -> bytes:
    done = subprocess.run(
        ["git", *IDENTITY, *args], cwd=cwd, input=stdin, capture_output=True, check=check
    )
    return done.stdout


def path_of(number: int) -> str:
    return f"src/package{number % 40}/module{number % 7}/file{number}.py"


def content(repo: str, number: int, edits: Sequence[tuple[int, str]] = ()) -> bytes:
    lines = [f"{repo} {number} line {line}\n" for line in range(LINES_PER_FILE)]
    for line, text in edits:
        lines[line] = f"{text}\n"
    return "".join(lines).encode()


def file_line(path: str, data: bytes) -> bytes:
    return f"M 100644 inline {path}\n".encode() + b"data %d\n%b\n" % (len(data), data)


def make_repository(
    folder: Path, repo: str, layout: dict[int, list[int]], files: int
) -> dict[int, str]:
    """A bare clone with a base commit per task; gives back the base commits. Feature commits are on branches."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "--bare")
    chance = random.Random(repo)
    stream: list[bytes] = []

    def commit(branch: str, parent: str, changes: Sequence[bytes]) -> None:
        head = f"commit refs/heads/{branch}\ncommitter b <b@localhost> 1000000000 +0000\ndata 1\nx\n{parent}"
        stream.extend([head.encode(), *changes])

    commit(
        "first", "", [file_line(path_of(number), content(repo, number)) for number in range(files)]
    )
    for task_id, features in layout.items():
        version = file_line("VERSION", f"{task_id}\n".encode())
        commit(f"base{task_id}", "from refs/heads/first\n", [version])
        for feature_id in features:
            hot_line = 20 if chance.random() < 0.86 else 100
            changes = [
                file_line(path_of(1), content(repo, 1, [(hot_line, f"feature {feature_id}")])),
                file_line(f"src/feature{feature_id}.py", content(repo, feature_id)),
            ]
            for number in chance.sample(range(2, files), 3):
                edit = (chance.randrange(LINES_PER_FILE), f"feature {feature_id}")
                changes.append(file_line(path_of(number), content(repo, number, [edit])))
            commit(f"task{task_id}-{feature_id}", f"from refs/heads/base{task_id}\n", changes)
    git(folder, "fast-import", "--quiet", stdin=b"".join(stream))
    return {
        task_id: git(folder, "rev-parse", f"base{task_id}").decode().strip() for task_id in layout
    }


def make_dataset(root: Path, files: int) -> tuple[Path, Path]:
    """The dataset and the folder with its clones."""
    repos, bases = root / "repos", {}
    for repo, layout in public_layout().items():
        bases[repo] = make_repository(repos / repo, repo, layout, files)

    def features(repo: str, task_id: int, feature_id: int) -> dict[str, str]:
        patch = git(repos / repo, "diff", f"base{task_id}", f"task{task_id}-{feature_id}").decode()
        return feature_files(repo, task_id, feature_id) | {"feature.patch": patch}

    def scripts(repo: str, task_id: int) -> dict[str, str]:
        return {"setup.sh": f"git checkout {bases[repo][task_id]}\n"}

    return write_public_shape(
        root / "dataset", feature_content=features, task_content=scripts
    ), repos


def merge_by_hand(clone: Path, pair: Pair, folder: Path) -> bool:
    """Whether two golden patches conflict, found out in worktrees of a clone."""
    base = base_commit(pair.task) or ""
    sides = []
    for feature in pair.features:
        place = folder / f"side{feature.feature_id}"
        git(clone, "worktree", "add", "-q", "--detach", str(place), base)
        git(place, "apply", "--index", str(feature.patch))
        git(place, "commit", "-q", "-m", "golden")
        sides.append((place, git(place, "rev-parse", "HEAD").decode().strip()))
    place, theirs = sides[0][0], sides[1][1]
    git(place, "merge", "-q", "--no-edit", theirs, check=False)
    conflict = bool(git(place, "ls-files", "-u"))
    for side, _ in sides:
        git(clone, "worktree", "remove", "--force", str(side))
    return conflict


def measure_by_hand(
    report: dict[str, Any], pairs: Sequence[Pair], repos: Path, folder: Path
) -> float:
    """Seconds a pair; the answers must be the same."""
    found = {
        (pair["repo"], pair["task_id"], tuple(pair["features"])): pair["conflict"]
        for pair in report["pairs"]
    }
    started = time.perf_counter()
    for pair in pairs:
        conflict = merge_by_hand(repos / pair.task.repo, pair, folder)
        if conflict != found[pair.task.repo, pair.task.task_id, pair.feature_ids]:
            raise SystemExit(f"{pair.label}: the baseline disagrees")
    return (time.perf_counter() - started) / len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--files", type=int, default=2000, help="files in each repository (default: 2000)"
    )
    parser.add_argument("--sample", type=int, default=20, help="pairs merged by hand (default: 20)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="tasks at once (default: one a core)"
    )
    args = parser.parse_args()
    with TemporaryDirectory(prefix="cooperbench-bench-") as folder:
        root = Path(folder)
        dataset, repos = make_dataset(root, args.files)
        tasks = load_tasks(dataset)
        started = time.perf_counter()
        report = golden_conflicts(tasks, repos_dir=repos, workers=args.workers)
        seconds = time.perf_counter() - started
        pairs = [pair for task in tasks for pair in task.pairs]
        by_hand = measure_by_hand(
            report, pairs[:: len(pairs) // args.sample][: args.sample], repos, root
        )
    count = len(report["pairs"])
    statuses = Counter(pair["status"] for pair in report["pairs"])
    print(f"{len(tasks)} tasks, {count} pairs, {args.files} files a repository, {args.workers} workers: "
          f"{statuses['conflict']} conflict, {statuses['clean']} clean, {len(report['broken'])} broken")  # fmt: skip
    print(f"{'':<34}{'s for all':>10}{'ms a pair':>11}")
    print(f"{'golden_conflicts':<34}{seconds:>10.2f}{1000 * seconds / count:>11.1f}")
    print(
        f"{f'by hand (from {args.sample} pairs, one worker)':<34}{by_hand * count:>10.2f}{1000 * by_hand:>11.1f}"
    )


if __name__ == "__main__":
    main()
