"""The conformance suite, run against the local backend (all ways of starting a sandbox) and a plain custom one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local.launcher import Means
from cooperbench.backends.local.rundir import run_dir
from cooperbench.backends.local.sandbox import LocalSandbox
from cooperbench.backends.local.unshare import Unshare
from cooperbench.backends.local.view import Content, HostView
from cooperbench.sandbox.conformance import SandboxConformance
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.plain import PlainSandbox
from tests.sandbox.plain import PlainBackend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cooperbench.backends.local import LocalBackend
    from cooperbench.sandbox.contract import RichSandbox


class TestLocal(SandboxConformance):
    isolated = True

    @pytest.fixture
    def make_sandbox(self, local: LocalBackend) -> Callable[[], RichSandbox]:
        return lambda: local.create_sandbox("host", timeout=300)


class TestUnshare(SandboxConformance):
    isolated = True

    @pytest.fixture
    def make_sandbox(self, cache_dir: Path) -> Callable[[], RichSandbox]:
        own = run_dir(cache_dir)
        return lambda: LocalSandbox(
            own.new_folder(),
            HostView(own, ()),
            Means(Unshare(), overlays=True),
            Content(),
            lifetime_seconds=300,
            workdir="/workspace",
            options=SandboxOptions(),
            on_end=lambda _: None,
        )

    def test_a_sandbox_whose_processes_were_all_killed(self, sandbox: RichSandbox) -> None:
        """Its first process is process 1 of the namespace, which cannot be killed from inside: it goes on."""
        assert sandbox.run(["bash", "-c", "kill -9 -1"]).returncode == 137
        assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"


class TestPlain(SandboxConformance):
    @pytest.fixture
    def make_sandbox(self) -> Callable[[], RichSandbox]:
        own = PlainBackend().create_sandbox("any")
        return lambda: PlainSandbox(own, lifetime_seconds=300, workdir=own.folder)
