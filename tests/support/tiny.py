"""A dataset whose tests take milliseconds: a text file, features that change a line each, tests in shell.

Features 1, 2, 3 and 5 change lines far apart: any two merge cleanly. Feature 4 changes the line of feature 1: they conflict,
and a union merge keeps both. Its setup needs no network and gives the same commit everywhere.
"""

from __future__ import annotations

from difflib import unified_diff
from typing import TYPE_CHECKING

from tests.support.dataset.factory import write_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

REPO = "tiny_task"
TASK_ID = 7
LINES = [f"line {number}\n" for number in range(1, 41)]
PLACES = {1: 5, 2: 15, 3: 25, 4: 5, 5: 35}
BASE_COMMIT = "9" * 40

SETUP = """#!/usr/bin/env bash
set -euo pipefail
dest=${1:-/workspace/repo}
mkdir -p "$dest/tests"
cd "$dest"
for number in $(seq 1 40); do echo "line $number"; done >app.txt
printf 'echo "base test"\\n' >tests/base.sh
printf 'ignored/\\n*.log\\n' >.gitignore
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=/nonexistent
export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
git init -q .
git symbolic-ref HEAD refs/heads/main
git -c user.name=t -c user.email=t@t.invalid add -A
git -c user.name=t -c user.email=t@t.invalid commit -qm "The past"
echo "secret future" >future.txt
git add -A
git -c user.name=t -c user.email=t@t.invalid commit -qm "The future"
git reset -q --hard HEAD~1
"""

RUNNER = """#!/usr/bin/env bash
set -euo pipefail
cd /workspace/repo
reset() { git reset -q --hard; git clean -qfdx; }
trap reset EXIT
reset
if [ -n "${2:-}" ]; then git apply "/patches/$2"; fi
git apply "/patches/$1"
ran=0 failed=0
for test in tests/*.sh; do
    ran=$((ran + 1))
    bash "$test" || { failed=$((failed + 1)); echo "FAIL: $test"; }
done
echo "Ran $ran tests in 0.001s"
echo
if [ "$failed" -gt 0 ]; then echo "FAILED (failures=$failed)"; exit 1; fi
echo OK
"""


def changed(*feature_ids: int) -> list[str]:
    """The text with some features in it."""
    lines = list(LINES)
    for feature_id in feature_ids:
        place = PLACES[feature_id]
        lines[place] = lines[place] + f"feature {feature_id}\n"
    return "".join(lines).splitlines(keepends=True)


def text_patch(path: str, old: Sequence[str] | None, new: Sequence[str]) -> str:
    before, after = (f"a/{path}" if old is not None else "/dev/null"), f"b/{path}"
    return "".join(unified_diff(list(old or []), list(new), before, after))


def golden(*feature_ids: int) -> str:
    return text_patch("app.txt", LINES, changed(*feature_ids))


def hidden_test(feature_id: int) -> str:
    return text_patch(
        f"tests/f{feature_id}.sh", None, [f'grep -q "^feature {feature_id}$" app.txt\n']
    )


def write_tiny(
    root: Path, feature_ids: Sequence[int] = (1, 2, 3, 4), task_ids: Sequence[int] = (TASK_ID,)
) -> Path:
    def features(repo: str, task_id: int, feature_id: int) -> Mapping[str, str]:
        return {
            "feature.md": f"# Feature {feature_id}\n\nAdd a line `feature {feature_id}`.\n",
            "feature.patch": golden(feature_id),
            "tests.patch": hidden_test(feature_id),
        }

    def task(repo: str, task_id: int) -> Mapping[str, str]:
        return {
            "Dockerfile": "FROM scratch\n",
            "setup.sh": SETUP,
            "runner.sh": RUNNER,
            "run_tests.sh": "exit 0\n",
            "combined.patch": golden(*feature_ids),
        }

    layout = {REPO: {task_id: list(feature_ids) for task_id in task_ids}}
    return write_dataset(root, layout, feature_content=features, task_content=task)


def write_script(
    path: Path,
    coop: Mapping[int, Sequence[object]],
    solo: list[object] | None = None,
    task_id: int = TASK_ID,
) -> Path:
    """A script for the agent `scripted`."""
    import yaml

    chapters: dict[str, object] = {"coop": {number: list(steps) for number, steps in coop.items()}}
    if solo is not None:
        chapters["solo"] = {"*": solo}
    path.write_text(
        yaml.safe_dump({"description": "for tests", "repos": {REPO: {task_id: chapters}}})
    )
    return path
