"""`cooperbench images` without an engine; what it does with one is tested beside the docker backend."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import images
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MSWEA_DOCKER_EXECUTABLE", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    images.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("action", ["list", "pull", "build", "clean"])
def test_no_engine_is_one_line(action: str) -> None:
    with pytest.raises(UserError, match="cannot connect to the Docker daemon") as caught:
        images.execute(parsed(action, "--dataset-dir", "demo"))
    assert "\n" not in str(caught.value)


def test_a_wrong_selection_comes_before_the_engine() -> None:
    with pytest.raises(UserError, match="no_such"):
        images.execute(parsed("list", "--dataset-dir", "demo", "-r", "no_such"))


def test_which_tasks() -> None:
    labels = [
        task.label
        for task in images.select_tasks(parsed("list", "--dataset-dir", "demo", "-f", "1,10"))
    ]
    assert labels == ["coinage_task/task3"]


def test_an_unknown_action(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("burn")
    assert "invalid choice: 'burn'" in capsys.readouterr().err
