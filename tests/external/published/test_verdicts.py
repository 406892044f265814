"""Verdicts on published images: right under every policy that can give one, and none where there can be none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import evaluate, run
from cooperbench.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cooperbench.models import EvalNetwork
    from tests.external.published.conftest import Published

    Publish = Callable[..., Published]


class Lab:
    def __init__(self, here: Published, folder: Path) -> None:
        self.here = here
        self.logs = folder / "logs"

    def run(
        self, name: str, eval_network: EvalNetwork = "auto", agent: str = "oracle"
    ) -> dict[str, Any]:
        """The summary of an experiment with all pairs."""
        run(
            name, agent=agent, backend="docker", dataset_dir=self.here.dataset_dir, logs_dir=self.logs,
            concurrency=2, eval_concurrency=2, eval_network=eval_network, canary=False,
        )  # fmt: skip
        summary: dict[str, Any] = json.loads((self.logs / name / "summary.json").read_text())[
            "settings"
        ]["coop"]
        return summary

    def evaluation(self, name: str, repo: str) -> dict[str, Any]:
        path = self.logs / name / "coop" / repo / "1" / "f1_f2" / "eval.json"
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    def images(self, *words: str) -> int:
        return main(["images", *words, "--dataset-dir", str(self.here.dataset_dir)])


@pytest.fixture
def lab(
    published: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Lab]:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))

    def make(*repos: str) -> Lab:
        made = Lab(published(*repos), tmp_path)
        made.images("clean")  # what a test that was killed has left
        capsys.readouterr()
        return made

    return make


@pytest.mark.parametrize("repo", ["pip_task", "uv_task", "pnpm_task"])
def test_dependency_layer_replaces_the_network(
    repo: str, lab: Callable[..., Lab], capsys: pytest.CaptureFixture[str]
) -> None:
    there = lab(repo)
    index = there.here.index
    assert there.run("first")["rates"]["overall_success"]["passed"] == 1
    said = capsys.readouterr().out
    assert said.count("its tests run in an image that keeps what its runner installs") == 1
    evaluation = there.evaluation("first", repo)
    assert (evaluation["eval_network"], evaluation["network"]) == ("auto", "none")
    assert evaluation["references"]["1"]["installed"] is True
    index.reset()
    assert there.run("second")["rates"]["overall_success"]["passed"] == 1
    assert there.run("idle", agent="nop")["rates"]["overall_success"]["passed"] == 0
    assert index.traffic() == (0, 0), "all is in the image"

    capsys.readouterr()
    assert there.images("list") == 0
    assert "with what its runner installs: " in capsys.readouterr().out
    assert there.images("list", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["images"]
    assert len(row["images_with_installs"]) == 1
    assert there.images("clean") == 0
    assert "cooperbench-installs/" in capsys.readouterr().out
    assert there.images("list") == 0
    assert "installs" not in capsys.readouterr().out


def test_no_verdict_without_a_network(
    lab: Callable[..., Lab], capsys: pytest.CaptureFixture[str]
) -> None:
    there = lab("uv_task")
    index = there.here.index
    index.reset()
    summary = there.run("r", "none")
    assert index.traffic() == (0, 0), "none is never weakened"
    assert (summary["no_reference"], summary["evaluated"], summary["errors"]) == (1, 0, 0)
    assert "Failed to build `rectangle" in there.evaluation("r", "uv_task")["error"]
    assert there.images("list") == 0
    assert "installs" not in capsys.readouterr().out, "and no layer was made"
    evaluate(
        "r",
        backend="docker",
        dataset_dir=there.here.dataset_dir,
        logs_dir=there.logs,
        eval_network="public",
    )
    evaluation = there.evaluation("r", "uv_task")
    assert (evaluation["network"], evaluation["overall_success"]) == ("public", True)


def test_tasks_that_need_no_network_run_without(
    lab: Callable[..., Lab], capsys: pytest.CaptureFixture[str]
) -> None:
    """Go has a layer all the same, with what it compiled."""
    there = lab("go_task", "rust_task")
    assert there.run("r")["rates"]["overall_success"]["passed"] == 2
    for repo in ("go_task", "rust_task"):
        evaluation = there.evaluation("r", repo)
        assert evaluation["network"] == "none"
        assert evaluation["references"]["1"]["installed"] is (repo == "go_task")
    assert "its tests run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("repo", "tool"), [("pip_task", "pip"), ("uv_task", "uv"), ("pnpm_task", "npm")]
)
def test_an_outage_of_the_index_leaves_nothing_behind(
    repo: str, tool: str, lab: Callable[..., Lab], capsys: pytest.CaptureFixture[str]
) -> None:
    there = lab(repo)
    index = there.here.index
    with index.outage():
        summary = there.run("r")
        error = there.evaluation("r", repo)["error"]
        assert f"the package index {index.address} is unreachable ({tool}: " in error
        assert summary["evaluated"] == 0
        capsys.readouterr()
        assert there.images("list") == 0
        assert "installs" not in capsys.readouterr().out, "no layer is kept"
    evaluate("r", backend="docker", dataset_dir=there.here.dataset_dir, logs_dir=there.logs)
    evaluation = there.evaluation("r", repo)
    assert (evaluation["network"], evaluation["overall_success"]) == ("none", True)
    assert evaluation["references"]["1"]["installed"] is True
