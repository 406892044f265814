"""The suite for every backend under its documented name."""

from __future__ import annotations

from cooperbench.sandbox.conformance import *  # noqa: F403
