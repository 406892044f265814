"""`cooperbench author describe -m`: what a model writes is checked before it becomes a draft."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from tests.support.agents.mini_swe import KEY, MODEL
from tests.support.author.repositories import python_repository
from tests.support.modelserver import ModelServer, say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASK = "shapes_task/task1"
GOOD = "# Cubes\n\nThe new module `shapes.cube` has a function `cube(size)`.\n"
VAGUE = "# Cubes\n\nSizes can be multiplied.\n"
REVEALING = f"{GOOD}\nIt does `return size ** 3`.\n"


@pytest.fixture
def description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The description of a feature whose commit message says little."""
    monkeypatch.chdir(tmp_path)
    python_repository(tmp_path / "shapes")
    assert main(["author", "init", "shapes", "--no-run"]) == 0
    assert main(["author", "add", TASK, "--branch", "cube"]) == 0
    return tmp_path / "dataset" / TASK / "feature1/feature.md"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with ModelServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield server


def describe(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main(["author", "describe", TASK, *options, "-m", MODEL, "--json"])
    (feature,) = json.loads(capsys.readouterr().out)["features"]
    return status, feature


def test_a_model_gets_its_problems_back(
    description: Path, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    replies = [VAGUE, f"```markdown\n{GOOD}```"]
    model.script("", lambda request: say(replies[min(len(request.messages) // 2 - 1, 1)]))
    status, feature = describe(capsys)
    assert (status, feature["written"], feature["problems"]) == (0, True, [])
    assert description.read_text() == GOOD
    last = model.requests_of("")[-1]
    assert "tests import `cube`; the description never names it" in json.dumps(last.messages)
    # It is a draft until a person accepts it.
    assert main(["author", "pack", TASK, "--to", "shared"]) == 2


def test_code_of_the_golden_patch_is_rejected(
    description: Path, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    before = description.read_text()
    model.script("", lambda _: say(REVEALING))
    status, feature = describe(capsys)
    assert (status, feature["written"]) == (1, False)
    assert "is code of the golden patch: return size ** 3" in feature["problems"][0]
    assert description.read_text() == before


def test_names_that_a_model_never_mentions_are_added(
    description: Path, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.script("", lambda _: say(VAGUE))
    assert describe(capsys)[0] == 0
    text = description.read_text()
    assert text.startswith(VAGUE)
    assert "- `def cube(size)`" in text


def test_the_text_of_a_pull_request_is_shown_to_the_model(
    description: Path, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    context = description.with_name("pull_request.txt")
    context.write_text("Cubes were requested by the carpenters.")
    model.script("", lambda _: say(GOOD))
    assert describe(capsys, "1", "--context", str(context))[0] == 0
    (request,) = model.requests_of("")
    assert "requested by the carpenters" in json.dumps(request.messages)
