"""Runs with every way to end, and the page of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.report.loading import load_run
from cooperbench.report.page.build import build_page
from cooperbench.storage import ExperimentPaths, write_json
from tests.support.report.factory import Style, keys_of, layout, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.pairs import PairKey
    from tests.support.report.factory import Kind

PAIRS = layout(repos=2, tasks=4, pairs=16)
COOP: tuple[Kind, ...] = (
    "passed",
    "conflict",
    "capability",
    "integration",
    "union",
    "error",
    "killed",
    "broken",
)
"""One after the other over the pairs, so that there are two of each."""
COSTS = {"repo01_task": 0.25, "repo02_task": 0.75}


def coop_kind(key: PairKey) -> Kind:
    return COOP[keys_of(PAIRS).index(key) % len(COOP)]


def solo_kind(key: PairKey) -> Kind:
    return "capability" if key.features == (1, 2) else "passed"


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A coop run with every way to end, and a solo run of the same pairs."""
    logs_dir = tmp_path_factory.mktemp("logs")
    for repo, cost in COSTS.items():
        part = {repo: PAIRS[repo]}
        write_run(logs_dir, "duo", part, coop_kind, setting="coop", style=Style(cost=cost))
        write_run(logs_dir, "lone", part, solo_kind, setting="solo", style=Style(cost=2 * cost))
    key = next(key for key in keys_of(PAIRS) if coop_kind(key) == "conflict")
    files = ExperimentPaths(logs_dir, "duo").pair_named("coop", key.repo, key.task_id, key.features)
    write_json(files.judgement, judgement("Both rewrite the same function."))
    return logs_dir


def judgement(text: str) -> dict[str, Any]:
    """A judge.json with this text wherever a model wrote one."""
    quote = {"source": "message:2", "text": text, "start": 0}
    symptom = {
        "symptom": "work_overlap",
        "why": text,
        "quotes": [quote, {**quote, "source": "patch:agent1"}],
    }
    label = {"cause": "expectation", "summary": text, "symptoms": [symptom]}
    return {
        "schema": "cooperbench.judge/1",
        "model": "some/model",
        "judged_at": "2026-03-04T12:00:00Z",
        "label": label,
    }


@pytest.fixture(scope="session")
def page(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    build_page([load_run(logs, "duo"), load_run(logs, "lone")], target)
    return target
