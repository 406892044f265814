"""import.json and recorded.json: where an imported run came from, and what its authors recorded."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from cooperbench.records.files import JsonObject, Record


class ImportedPair(msgspec.Struct, kw_only=True, frozen=True):
    """One pair of an imported run."""

    pair: str
    """Folder of the pair in the run's folder: `coop/my_task/1/f1_f2`."""
    source: str
    """Folder that it was read from, relative to the imported folder."""
    layout: str
    """`public`, `public_without_setting`, `quick_start` or `trajectories`."""
    missing: list[str]
    """Values that the source does not have and that are null here, besides those of all pairs."""
    problems: list[str]
    """One line for each file that could not be read, or only in part."""


class ImportRecord(Record, kw_only=True, frozen=True):
    """The content of an imported folder: imported pairs, and what was left out."""

    SCHEMA: ClassVar[str] = "cooperbench.import/1"

    source: str
    """Name of the folder."""
    time: str
    version: str
    """Version of CooperBench that imported the run."""
    config: JsonObject | None
    """config.json of the source; None if it has none."""
    missing: list[str]
    """Values that are null in all pairs."""
    left_out: list[str]
    """One line for each thing in the folder that was not imported."""
    pairs: list[ImportedPair]


class RecordedTests(msgspec.Struct, kw_only=True, frozen=True):
    """The tests of one feature as the source recorded them; null for what it does not say."""

    passed: bool | None
    exit_code: int | None
    tests_passed: int | None
    tests_failed: int | None


class RecordedVerdict(Record, kw_only=True, frozen=True):
    """The verdict on a pair that came with an imported run. It enters none of our rates."""

    SCHEMA: ClassVar[str] = "cooperbench.recorded/1"

    rule: str
    """How `passed` was decided: `public` (tests of the merge, or of one patch alone after a
    conflict) or `quick_start` (every patch alone, and the merge)."""
    passed: bool | None
    """The verdict; null if the source has none."""
    merge_status: str | None
    """As the source has it: `clean`, `conflicts`, `missing_input`, `identical`, …"""
    strategy: str | None
    """What was tested, as the source has it: `naive`, `skip-merge-identical`, `solo-agent1`,
    `union`, …"""
    apply_status: dict[str, str]
    """Whether each agent's patch could be applied, as the source has it."""
    tests: dict[str, RecordedTests]
    """Test runs: by feature (`feature1`) in the public layout, by patch (`agent1`, `merged`) in
    that of the quick start."""
    error: str | None
    evaluated_at: str | None
