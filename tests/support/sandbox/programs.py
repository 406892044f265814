"""A folder of programs in a sandbox, for the tests of every backend that can show one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.sandbox.contract import PROGRAMS_DIR, SandboxOptions
from cooperbench.sandbox.manager import open_sandbox

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.sandbox.contract import EvalBackend


def make_programs(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "greet").write_text("#!/bin/sh\necho hello from $0\n")
    (folder / "bin" / "greet").chmod(0o755)
    return folder


def check_programs(backend: EvalBackend, image: str, folder: Path) -> None:
    """They run, cannot be changed, and are only where they were asked for."""
    options = SandboxOptions("agent", programs=make_programs(folder))
    sandbox = open_sandbox(backend, image, timeout_seconds=300, options=options)
    said = sandbox.run([f"{PROGRAMS_DIR}/bin/greet"])
    assert said.stdout_read() == f"hello from {PROGRAMS_DIR}/bin/greet\n", said.stderr_read()
    for change in (f"echo more >>{PROGRAMS_DIR}/bin/greet", f"touch {PROGRAMS_DIR}/new"):
        assert "Read-only" in sandbox.run(["bash", "-c", change]).stderr_read()
    sandbox.terminate()
    other = open_sandbox(backend, image, timeout_seconds=300, options=SandboxOptions())
    assert other.run(["test", "-e", PROGRAMS_DIR]).returncode == 1
    other.terminate()
