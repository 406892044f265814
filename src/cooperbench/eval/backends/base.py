"""The contract between CooperBench and a backend, under its documented name."""

from __future__ import annotations

from cooperbench.sandbox.backend import Backend
from cooperbench.sandbox.base_sandbox import Sandbox as BaseSandbox
from cooperbench.sandbox.contract import (
    Capabilities,
    CommandResult,
    EvalBackend,
    ExecResult,
    SandboxOptions,
)
from cooperbench.sandbox.contract import SandboxProtocol as Sandbox
from cooperbench.sandbox.manager import open_sandbox

__all__ = [
    "Backend",
    "BaseSandbox",
    "Capabilities",
    "CommandResult",
    "EvalBackend",
    "ExecResult",
    "Sandbox",
    "SandboxOptions",
    "open_sandbox",
]
