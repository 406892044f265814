"""Titles of features, read from the dataset. Reports are complete without it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from cooperbench.dataset.discovery import DEMO, resolve_dataset_dir
from cooperbench.errors import UserError
from cooperbench.report.loading import Run
from cooperbench.report.pairs import PairKey
from cooperbench.storage import read_bytes

MAX_TITLE_CHARACTERS = 120
_SCANNED_LINES = 20
_MARKUP = re.compile(r"^[#\s]+|\*\*")
_LABEL = re.compile(r"^(?:feature request|feature|title)(?:\s*\d+)?\s*[:-]\s*", re.IGNORECASE)
_HEADINGS = frozenset({"title", "feature", "feature request", "description", "overview"})

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


def title_of(description: bytes) -> str:
    """Return the first line of a feature.md that names the feature, without its markup."""
    text = description.decode("utf-8", "replace")
    for line in text.splitlines()[:_SCANNED_LINES]:
        title = _LABEL.sub("", _MARKUP.sub("", line).strip()).strip()
        if title and title.lower() not in _HEADINGS:
            return title[:MAX_TITLE_CHARACTERS]
    return ""
