"""Finding backends by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local import LocalBackend
from cooperbench.errors import UserError
from cooperbench.eval import backends
from tests.support.sandbox.plain import PlainBackend

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("", "get_backend register"),
        (
            ".base",
            "Backend BaseSandbox EvalBackend Sandbox ExecResult SandboxOptions Capabilities",
        ),
        (".docker", "DockerBackend"),
        (".gcp", "GCPBatchBackend"),
        (".conformance", "SandboxConformance"),
    ],
)
def test_documented_import_paths_exist(module: str, names: str) -> None:
    there = import_module(f"cooperbench.eval.backends{module}")
    assert [name for name in names.split() if not hasattr(there, name)] == []


def test_local() -> None:
    assert isinstance(backends.get_backend("local"), LocalBackend)


def test_unknown_names_what_there_is() -> None:
    with pytest.raises(
        UserError, match=r"unknown backend 'loacl'; available: .*docker, .*gcp, .*local, .*modal"
    ):
        backends.get_backend("loacl")


@pytest.mark.parametrize("name", ["modal", "docker", "gcp"])
def test_unusable_backend_is_one_line(name: str) -> None:
    try:
        assert callable(backends.get_backend(name).create_sandbox)
    except UserError as error:
        message = str(error)
    else:
        return
    assert "--backend local" in message
    assert "\n" not in message


def test_registered() -> None:
    backends.register("registered-in-a-test", PlainBackend)
    assert isinstance(backends.get_backend("registered-in-a-test"), PlainBackend)
    assert "registered-in-a-test" in backends.backend_names()


def test_dotted_name() -> None:
    assert isinstance(
        backends.get_backend("tests.support.sandbox.plain:PlainBackend"), PlainBackend
    )


@pytest.mark.parametrize(
    "name", ["tests.support.sandbox.plain:Nothing", "no.such.module:Backend", ":", "a:"]
)
def test_a_dotted_name_that_leads_nowhere(name: str) -> None:
    with pytest.raises(UserError, match="cannot be loaded"):
        backends.get_backend(name)


def test_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other_project-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-project\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cooperbench.backends]\nother = tests.support.sandbox.plain:PlainBackend\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(backends.get_backend("other"), PlainBackend)
    assert "other" in backends.backend_names()
