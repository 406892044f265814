"""What one can choose of reports, in names: for the command line's help, which must not load the statistics."""

from __future__ import annotations

from typing import Literal

Level = Literal["setting", "repo", "task"]
LEVELS: tuple[Level, ...] = ("setting", "repo", "task")
Method = Literal["clustered", "wilson", "bootstrap"]
METHODS: tuple[Method, ...] = ("clustered", "wilson", "bootstrap")
