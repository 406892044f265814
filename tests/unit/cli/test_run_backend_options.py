"""Flags about images and containers: in force where they are meant, refused where they would be ignored."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from cooperbench import run
from cooperbench.backends.docker.settings import Mount, read_settings
from cooperbench.backends.registry import OUR_BACKENDS, find_factory, get_backend
from cooperbench.cli import main
from cooperbench.cli.machine import NEARBY
from cooperbench.cli.run import add_arguments, config_from_arguments
from cooperbench.errors import UserError
from cooperbench.temporary import pid_namespace

if TYPE_CHECKING:
    from pathlib import Path


def options_of(*words: str) -> dict[str, object]:
    """What a call of `cooperbench run` with these words passes on to its backend."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(
        ["-n", "x", "-a", "nop", "--backend", "docker", "--dataset-dir", "demo", *words]
    )
    return config_from_arguments(args).backend_options


def test_what_is_given_reaches_the_backend() -> None:
    given = options_of("--mount", "/a b:/mnt/a", "--mount", "/c:/mnt/c:rw", "--pull", "never")
    settings = read_settings(**given)
    assert settings.mounts == (Mount("/a b", "/mnt/a"), Mount("/c", "/mnt/c", writable=True))
    assert settings.pull == "never"
    assert options_of("--image-template", "my/{short}:{task_id}", "--gpu", "T4") == {
        "image_template": "my/{short}:{task_id}",
        "gpu": "T4",
    }
    assert options_of() == {}


@pytest.mark.parametrize(
    ("backend", "options", "message"),
    [
        ("modal", {"mounts": ["/a:/b"]}, "--mount is for --backend local or docker, not modal"),
        ("modal", {"pull": "never"}, "--pull is for --backend local or docker, not modal"),
        ("gcp", {"gpu": "T4"}, "--gpu is for --backend modal, not gcp"),
        ("local", {"gpu": "T4"}, "--gpu is for --backend modal, not local"),
        ("local", {"mounts": ["/no/such:/b"]}, "/no/such does not exist"),
        ("local", {"pull": "often"}, "local setting pull: 'often' is unknown"),
        ("docker", {"mounts": ["/a"]}, "SOURCE:TARGET"),
    ],
)
def test_what_would_be_ignored_or_is_wrong_is_refused(
    backend: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        get_backend(backend, **options)


def test_every_backend_of_ours_cleans_up() -> None:
    assert all(callable(getattr(find_factory(name), "clean", None)) for name in OUR_BACKENDS)


@pytest.mark.parametrize("command", [["run", "-a", "oracle"], ["eval", "-n", "any"]])
def test_run_and_eval_have_them(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "any").mkdir()
    words = [
        "--backend",
        "local",
        "--gpu",
        "T4",
        "--dataset-dir",
        "demo",
        "--log-dir",
        str(tmp_path),
    ]
    assert main([*command, *words]) == 2
    assert capsys.readouterr().err == "cooperbench: --gpu is for --backend modal, not local\n"


def test_in_python_one_mount_needs_no_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is taken as a whole: what is wrong here is only that there is no engine."""
    monkeypatch.delenv("MSWEA_DOCKER_EXECUTABLE", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(UserError, match="cannot connect"):
        run(
            "r",
            agent="oracle",
            backend="docker",
            mount="/a:/b",
            dataset_dir="demo",
            logs_dir=tmp_path,
        )


def test_clean_goes_on_where_there_is_no_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.delenv("MSWEA_DOCKER_EXECUTABLE", raising=False)
    left = tmp_path / "cache" / "sandboxes" / f"cooperbench-sandboxes-4194305-1-{pid_namespace()}-x"
    left.mkdir(parents=True)
    assert main(["clean"]) == 0
    said = capsys.readouterr()
    assert f"removed {left}\n" in said.out
    assert said.err.startswith("docker was skipped: cannot connect to the Docker daemon")
    assert main(["clean", "--backend", "docker"]) == 2
    assert set(NEARBY) <= set(OUR_BACKENDS)
