"""The contract between CooperBench and a backend: what `cooperbench.sandbox.contract` asks of one at least."""

from __future__ import annotations

from cooperbench.sandbox.contract import EvalBackend, ExecResult, Sandbox

__all__ = ["EvalBackend", "ExecResult", "Sandbox"]
