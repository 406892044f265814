"""The key of an evaluation changes with everything that the verdict depends on, and with nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.dataset.discovery import discover
from cooperbench.eval.evaluation_key import EvaluationOptions, evaluation_key
from cooperbench.runner.plan import label_pairs
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.models import Pair

OPTIONS = EvaluationOptions(timeout_seconds=60, eval_network="none")
PATCHES = {"agent1": b"one", "agent2": b"two"}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    (pair,) = discover(write_tiny(tmp_path / "data"), features=[1, 2]).pairs
    return pair


def test_same_inputs(pair: Pair) -> None:
    key = evaluation_key(pair, PATCHES, "sha256:1", OPTIONS)
    turned = dict(reversed(PATCHES.items()))
    assert evaluation_key(pair, turned, "sha256:1", OPTIONS) == key
    (labeled,) = label_pairs([pair], "an arm of a study")
    assert evaluation_key(labeled, PATCHES, "sha256:1", OPTIONS) == key


def test_options_and_image(pair: Pair) -> None:
    keys = {
        evaluation_key(pair, PATCHES, "sha256:1", OPTIONS),
        evaluation_key(pair, PATCHES, "sha256:2", OPTIONS),
        evaluation_key(pair, PATCHES, "sha256:1", OPTIONS._replace(timeout_seconds=61)),
        evaluation_key(pair, PATCHES, "sha256:1", OPTIONS._replace(eval_network="public")),
        evaluation_key(pair, PATCHES, "sha256:1", OPTIONS._replace(canary=False)),
    }
    assert len(keys) == 5


def test_patches(pair: Pair) -> None:
    """A missing patch, an empty one and one that says `missing` differ, and so do texts that only begin elsewhere."""
    variants: list[dict[str, bytes | None]] = [
        {"agent1": None, "agent2": b"two"},
        {"agent1": b"", "agent2": b"two"},
        {"agent1": b"missing", "agent2": b"two"},
        {"agent1": b"onet", "agent2": b"wo"},
        {"agent1": b"two", "agent2": b"one"},
        {"agent1": b"one"},
    ]
    keys = {evaluation_key(pair, patches, "sha256:1", OPTIONS) for patches in variants}
    assert len(keys) == len(variants)


@pytest.mark.parametrize("name", ["runner.sh", "feature1/tests.patch", "feature2/feature.patch"])
def test_files_of_the_task(pair: Pair, name: str) -> None:
    before = evaluation_key(pair, PATCHES, "sha256:1", OPTIONS)
    path = pair.task.path / name
    path.write_text(path.read_text() + "\n")
    assert evaluation_key(pair, PATCHES, "sha256:1", OPTIONS) != before
