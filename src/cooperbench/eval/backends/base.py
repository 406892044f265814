"""The contract between CooperBench and a backend, under its documented name."""

from __future__ import annotations

from cooperbench.sandbox.base_sandbox import RichSandbox
from cooperbench.sandbox.contract import (
    Capabilities,
    CommandResult,
    EvalBackend,
    ExecResult,
    Sandbox,
    SandboxOptions,
)

__all__ = [
    "Capabilities",
    "CommandResult",
    "EvalBackend",
    "ExecResult",
    "RichSandbox",
    "Sandbox",
    "SandboxOptions",
]
