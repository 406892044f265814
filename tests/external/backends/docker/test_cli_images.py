"""`cooperbench images` against a real engine."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import images
from tests.support.docker.tasks import DOCKERFILE, write_buildable

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.backends.docker import DockerBackend


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    parser = argparse.ArgumentParser()
    images.add_arguments(parser)
    code = images.execute(parser.parse_args([*words, "--json"]))
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


@pytest.fixture
def dataset(
    base_image: str, worker_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={base_image}")
    monkeypatch.setenv(
        "COOPERBENCH_IMAGE_TEMPLATE", f"cooperbench-test-cli-{worker_name}/{{repo}}:{{task_id}}"
    )
    write_buildable(tmp_path, DOCKERFILE + "RUN echo for the command line >/why\n")
    return str(tmp_path)


def test_the_way_of_an_image(
    docker: DockerBackend, dataset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    selection = ("--dataset-dir", dataset, "-r", "tiny_task", "-t", "7")
    code, listed, _ = command(capsys, "list", *selection)
    assert (code, [row["present"] for row in listed["images"]]) == (0, [False])

    code, built, progress = command(capsys, "build", *selection)
    assert code == 0
    assert "tiny_task/task7: building" in progress
    digest = built["images"][0]["digest"]

    _, listed, _ = command(capsys, "list", *selection)
    row = listed["images"][0]
    assert (row["present"], row["agent_image_present"], row["digest"]) == (True, True, digest)
    assert [name for name in row["images_without_later_commits"] if "judged" in name]

    _, cleaned, _ = command(capsys, "clean", *selection)
    for kind in ("prepared", "judged"):
        assert [name for name in cleaned["removed"] if kind in name]
    _, listed, _ = command(capsys, "list", *selection)
    assert [listed["images"][0][key] for key in ("present", "agent_image_present")] == [True, False]

    _, cleaned, _ = command(capsys, "clean", "--built", *selection)
    _, listed, _ = command(capsys, "list", *selection)
    assert listed["images"][0]["present"] is False


def test_one_that_cannot_be_built_is_told(
    docker: DockerBackend, dataset: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tiny_task/task7/Dockerfile").write_text(DOCKERFILE + "RUN false\n")
    code, built, progress = command(capsys, "build", "--dataset-dir", dataset)
    assert code == 1
    assert "failed" in built["images"][0]["error"]
    assert "tiny_task/task7: failed" in progress
