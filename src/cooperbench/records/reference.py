"""References: how the golden patch of a feature does, kept in a cache and exchanged as one file."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from cooperbench.records.evaluation import FeatureTestRun
from cooperbench.records.files import JsonObject, Record


class SuiteRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A confirmation suite, and the outcome of each of its tests with the golden patch."""

    kind: str
    """`copies`, `in_place` or `added`: how tests that must fail were made."""
    tests: str
    """The patch with these tests as Latin-1."""
    tests_total: int
    """Number of hidden tests of the feature."""
    tests_with_decoys: int
    """Number of hidden tests of which there is a version that must fail."""
    failed: list[str]
    """Ids of the tests that must fail."""
    passed: list[str]
    """Ids of the tests that must pass."""
    failed_count: int
    """Number of tests that must fail, also where the framework does not name them."""
    passed_count: int
    """Number of tests that must pass."""
    not_compared: list[str] = msgspec.field(default_factory=list)
    """Ids of tests that may end either way."""
    names_vary: bool = False
    """Whether the ids of tests differ from run to run."""


class ReferenceRecord(Record, kw_only=True, frozen=True):
    """How the tests of one feature went with its golden patch, under some conditions."""

    SCHEMA: ClassVar[str] = "cooperbench.reference/8"

    question: str
    """SHA-256 of runner, tests and golden patch."""
    task: str
    feature_id: int
    image_digest: str
    network: str | None
    installed: bool
    """Whether tests ran in an image that contains what the runner installs."""
    golden: FeatureTestRun
    """The first run, or the one that passed."""
    passed_tests: list[str]
    """Ids of the tests that passed, if the framework gives them."""
    flaky_tests: list[str] = msgspec.field(default_factory=list)
    """Tests that did not end the same way each time; they are not required."""
    ruled_out: list[str] = msgspec.field(default_factory=list)
    """Stricter conditions under which the golden patch does not pass."""
    base_passes: bool | None = None
    """Whether the tests pass without the feature; None if that was not tried."""
    runs: int = 1
    failed_runs: int = 0
    suites: list[SuiteRecord] | None = None
    """The confirmation suites; None if none were made yet, empty if none can be made."""
    time: str = ""

    @property
    def is_current(self) -> bool:
        """Whether this version wrote it. References of other versions are not used."""
        return self.schema == self.SCHEMA


class ReferencesFile(Record, kw_only=True, frozen=True):
    """References exported by `cooperbench validate --export`."""

    SCHEMA: ClassVar[str] = "cooperbench.references/8"

    references: list[ReferenceRecord]

    @classmethod
    def to_file(cls, content: JsonObject) -> JsonObject:
        """Give each reference its own schema, as in the cache."""
        schema = {"schema": ReferenceRecord.SCHEMA}
        return content | {"references": [entry | schema for entry in content["references"]]}
