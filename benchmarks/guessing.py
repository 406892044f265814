"""How often code that interferes with tests guesses which copies must pass: python benchmarks/guessing.py

For each assertion of the demo's hidden tests, and new confirmation suites each time: the probability that an attacker
prefers the original in both suites, if this is the only assertion that the code gets wrong. Attackers know the
descriptions of all features of the task and see the test files. docs/evaluation.md says what follows from it.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.attacks.informed import Group, find_groups, probability, scores

from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import demo_dir, load_tasks
from cooperbench.eval.canaries import new_suites
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Feature
from cooperbench.sandbox.manager import SandboxManager

FEW = 10
"""Number of copies up to which an assertion has few alternatives."""
KINDS = ("numbers and texts", "few alternatives")


def groups_by_assertion(
    feature: Feature, store: TreeStore, seed: int
) -> dict[tuple[str, int], list[Group]]:
    groups: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for suite in next(new_suites(feature, store, Random(seed))):
        for group in find_groups(suite, store):
            groups[group.test, group.assertion].append(group)
    return groups


def measure(seeds: int) -> None:
    probabilities: dict[tuple[str, str], list[float]] = defaultdict(list)
    with SandboxManager(LocalBackend()) as sandboxes:
        tasks = load_tasks(demo_dir())
        sandboxes.prepare([*tasks], lambda *_: None)
        tester = PatchTester(sandboxes, 600)
        for task in tasks:
            descriptions = [feature.description.read_bytes() for feature in task.features]
            ways = scores(b"\n".join(descriptions))
            for feature in task.features:
                with TreeStore(tester.base(task)) as store:
                    for seed in range(seeds):
                        for groups in groups_by_assertion(feature, store, seed).values():
                            kind = KINDS[len(groups[0].values) <= FEW]
                            for name, way in ways.items():
                                probabilities[kind, name].append(probability(groups, way))
    for kind in KINDS:
        count = len(probabilities[kind, "any"]) // seeds
        print(f"{kind}: {count} assertions, {seeds} times")
        for name in ways:
            values = probabilities[kind, name]
            print(f"  the attacker prefers {name:<50} {sum(values) / len(values):6.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    measure(parser.parse_args().seeds)
