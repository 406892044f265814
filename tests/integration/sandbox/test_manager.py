"""Opening sandboxes: what a backend lacks is made up for, what it cannot promise is refused; and ending them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local.sandbox import LocalSandbox
from cooperbench.errors import Interrupted, SandboxDead, SandboxError, UserError
from cooperbench.sandbox.contract import Capabilities, SandboxOptions
from cooperbench.sandbox.manager import SandboxManager, open_sandbox
from cooperbench.sandbox.plain_sandbox import PlainSandbox
from tests.support.sandbox.plain import PlainBackend, PlainOwnSandbox, PlainResult

if TYPE_CHECKING:
    from cooperbench.backends.local import LocalBackend


def test_a_rich_backend_gives_its_own_sandbox(local: LocalBackend) -> None:
    sandbox = open_sandbox(
        local, "host", timeout_seconds=60, workdir="/tmp", options=SandboxOptions()
    )
    assert isinstance(sandbox, LocalSandbox)
    assert sandbox.run(["pwd"]).stdout == b"/tmp\n"
    sandbox.terminate()


def test_a_plain_backend_gets_an_adapter() -> None:
    options = SandboxOptions(network="public")
    sandbox = open_sandbox(PlainBackend(), "x", timeout_seconds=60, workdir="/", options=options)
    assert isinstance(sandbox, PlainSandbox)
    assert sandbox.exec("echo", "a b").stdout_read() == "a b\n"
    with pytest.raises(SandboxError, match="streams"):
        sandbox.open_stream(["cat"])
    sandbox.terminate()


class OfflineBackend(PlainBackend):
    capabilities = Capabilities(networks=frozenset({"none"}))


def test_unsupported_network_policy_is_rejected() -> None:
    with pytest.raises(UserError, match="'public'; it supports: none"):
        open_sandbox(
            OfflineBackend(), "x", timeout_seconds=60, options=SandboxOptions(network="public")
        )


class BrokenBackend(PlainBackend):
    def create_sandbox(
        self, image: str, timeout: int = 600, workdir: str = "/workspace"
    ) -> PlainOwnSandbox:
        raise RuntimeError("no quota left")


def test_what_a_foreign_backend_raises_is_a_sandbox_error() -> None:
    with pytest.raises(SandboxError, match="no quota left"):
        open_sandbox(BrokenBackend(), "x", timeout_seconds=60, options=SandboxOptions())


class TruncatingSandbox(PlainOwnSandbox):
    def exec(self, *args: str) -> PlainResult:
        result = super().exec(*args)
        result._done.stdout = result._done.stdout[:1000]
        return result


class DeadSandbox(PlainOwnSandbox):
    def exec(self, *args: str) -> PlainResult:
        return super().exec("false")


def test_cut_output_is_an_error() -> None:
    own = TruncatingSandbox()
    sandbox = PlainSandbox(own, lifetime_seconds=60, workdir=own.folder)
    sandbox.write_file("file", b"x" * 5000)
    with pytest.raises(SandboxError):
        sandbox.read_file("file")
    sandbox.terminate()


def test_a_sandbox_that_says_nothing_is_dead() -> None:
    own = DeadSandbox()
    sandbox = PlainSandbox(own, lifetime_seconds=60, workdir=own.folder)
    with pytest.raises(SandboxDead):
        sandbox.run(["true"])
    sandbox.terminate()


def test_closed_manager_opens_no_sandboxes() -> None:
    options = SandboxOptions(network="public")
    with SandboxManager(PlainBackend()) as sandboxes:
        sandbox = sandboxes.open("x", timeout_seconds=60, options=options)
        waiting = sandboxes.pool(1, "waiting").submit(sandboxes.stop.wait)
    assert waiting.done()
    with pytest.raises(SandboxDead):
        sandbox.run(["true"])
    with pytest.raises(Interrupted):
        sandboxes.open("x", timeout_seconds=60, options=options)
