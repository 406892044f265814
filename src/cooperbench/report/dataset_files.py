"""Titles of features, read from the dataset. Reports are complete without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cooperbench.dataset.discovery import DEMO, resolve_dataset_dir
from cooperbench.dataset.feature_titles import title_of
from cooperbench.errors import UserError
from cooperbench.report.loading import Run
from cooperbench.report.pairs import PairKey
from cooperbench.storage import read_bytes

FeatureKey = tuple[str, int, int]
"""Repository, task id and feature id."""


def find_dataset(runs: Sequence[Run]) -> Path | None:
    """Return the folder of the dataset of these runs, if it is in its usual place."""
    names = {run.dataset[0] for run in runs}
    try:
        folder = resolve_dataset_dir(DEMO if names == {DEMO} else None)
    except UserError:
        return None
    return folder if names in ({DEMO}, {folder.name}) else None


def read_feature_titles(runs: Sequence[Run], keys: Iterable[PairKey]) -> dict[FeatureKey, str]:
    """Return the titles of the features of these pairs, as far as the dataset is at hand."""
    folder = find_dataset(runs)
    if folder is None:
        return {}
    features: set[FeatureKey] = set()
    for key in keys:
        features.update((key.repo, key.task_id, feature_id) for feature_id in key.features)
    titles = {}
    for repo, task_id, feature_id in sorted(features):
        path = folder / repo / f"task{task_id}" / f"feature{feature_id}" / "feature.md"
        title = title_of(read_bytes(path, follow_link=True) or b"")
        if title:
            titles[repo, task_id, feature_id] = title
    return titles
