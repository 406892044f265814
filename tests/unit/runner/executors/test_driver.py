"""What can be said without a cluster."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cooperbench.agents import llm
from cooperbench.cli import main
from cooperbench.errors import InfraError, UserError
from cooperbench.runner.executors.cluster import parse_options
from cooperbench.runner.executors.driver import read_jobs
from cooperbench.runner.executors.job import pack_folder, unpack_folder
from cooperbench.storage import write_json
from tests.unit.runner.test_config import make_config

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"executor": "cloud"}, "one of local, slurm, ray"),
        ({"workers": 2}, "--workers is not for --executor local"),
        (
            {"executor": "slurm", "ray_resources": "CPU=1"},
            "--ray-resources is not for --executor slurm",
        ),
        ({"executor": "ray", "slurm": "mem=1G"}, "--slurm is not for --executor ray"),
    ],
)
def test_options_of_another_executor_are_refused(
    tmp_path: Path, options: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        replace(make_config(tmp_path), **options)  # type: ignore[arg-type]


def test_values_may_have_commas() -> None:
    found = parse_options("partition=cpu, nodelist=n1,n2,--mem=4G", "--slurm")
    assert found == {"partition": "cpu", "nodelist": "n1,n2", "mem": "4G"}


def test_without_slurm_or_a_ray_cluster_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "run",
        "-n",
        "r",
        "-a",
        "oracle",
        "--backend",
        "local",
        "--dataset-dir",
        "demo",
        "--log-dir",
    ]
    words.append(str(tmp_path / "logs"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*words, "--executor", "slurm"]) == 2
    assert "there is no sbatch on this machine" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*words, "--executor", "ray"]) == 2
    assert "pip install 'cooperbench[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


def test_run_waits_for_earlier_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = {
        "schema": "cooperbench.jobs/1",
        "engine": "slurm",
        "jobs": {"ab.0": ["coop x/task1 f1_f2"]},
    }
    write_json(tmp_path / "logs/r/jobs.json", jobs)
    words = [
        "run",
        "-n",
        "r",
        "-a",
        "oracle",
        "--backend",
        "local",
        "--dataset-dir",
        "demo",
        "--log-dir",
    ]
    assert main([*words, str(tmp_path / "logs")]) == 2
    assert "continue with --executor slurm" in capsys.readouterr().err


def test_a_refusal_by_the_provider_is_for_all_that_use_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm, "_pauses_folder", tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "key-1")
    llm.pause_all("openai/gpt-4o", 30)
    assert 25 < llm.shared_pause("openai/gpt-4o-mini") < 35
    assert llm.shared_pause("anthropic/claude") == 0
    llm.pause_all("openai/gpt-4o", 1)
    assert llm.shared_pause("gpt-4o") > 25
    monkeypatch.setenv("OPENAI_API_KEY", "key-2")
    assert llm.shared_pause("openai/gpt-4o") == 0
    assert "key-1" not in "".join(path.name for path in tmp_path.iterdir())


def test_a_wrong_clock_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_pauses_folder", tmp_path)
    llm.pause_all("openai/gpt-4o", 10)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    assert llm.shared_pause("openai/gpt-4o") == 0


def test_a_run_cannot_name_other_jobs_of_the_user(tmp_path: Path) -> None:
    """Slurm cancels jobs by name, and accepts several names with commas."""
    record = tmp_path / "jobs.json"
    jobs = {"ab12.0": ["key"], "x,my-other-job.0": ["key"], "../x.0": ["key"], "--all.0\n": ["key"]}
    write_json(record, {"schema": "cooperbench.jobs/1", "engine": "slurm", "jobs": jobs})
    assert read_jobs(record) == {"ab12.0": ["key"]}


def test_a_packed_folder_cannot_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zeros").write_bytes(bytes(1 << 20))
    packed = pack_folder(tmp_path)
    unpack_folder(packed, tmp_path / "whole")
    monkeypatch.setattr("cooperbench.runner.executors.job._MAX_UNPACKED_BYTES", 1 << 19)
    with pytest.raises(InfraError, match="too large"):
        unpack_folder(packed, tmp_path / "bomb")
    with pytest.raises(InfraError, match="incomplete"):
        unpack_folder(packed[:-9], tmp_path / "half")
