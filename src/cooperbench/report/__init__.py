"""Reports about runs: rates with intervals, comparisons and coordination.

They are shown as tables in the terminal, as data and as a page.
"""

from __future__ import annotations

from typing import Literal

Level = Literal["setting", "repo", "task"]
"""Detail of rates. It is declared here so that `--help` does not load the statistics."""
LEVELS: tuple[Level, ...] = ("setting", "repo", "task")
Method = Literal["clustered", "wilson", "bootstrap"]
METHODS: tuple[Method, ...] = ("clustered", "wilson", "bootstrap")
