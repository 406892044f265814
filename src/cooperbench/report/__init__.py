"""What runs mean: rates with intervals, comparisons, coordination; in the terminal, as data and as a page."""

from __future__ import annotations

from typing import Literal

Level = Literal["setting", "repo", "task"]
"""How far rates are broken down. Here, since the command line's help must not load the statistics."""
LEVELS: tuple[Level, ...] = ("setting", "repo", "task")
Method = Literal["clustered", "wilson", "bootstrap"]
METHODS: tuple[Method, ...] = ("clustered", "wilson", "bootstrap")
