"""eval.json: the verdict on one pair, with every test run behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from cooperbench.records.errors import PairError
from cooperbench.records.files import JsonObject, Record

SCHEMA = "cooperbench.eval/1"


class FeatureTestRun(msgspec.Struct, kw_only=True, frozen=True):
    """How the tests of one feature went with one patch."""

    success: bool
    tests_passed: int
    tests_failed: int
    tests_skipped: int
    framework: str | None
    """Test framework whose output was recognized."""
    exit_code: int | None
    """None if nothing was run."""
    timed_out: bool
    duration_seconds: float
    error: str | None
    """One line; None on success."""
    flaky_failures: list[str] = msgspec.field(default_factory=list)
    """Tests that failed but are not required: they also fail sometimes with the golden patch."""
    missing_tests: list[str] = msgspec.field(default_factory=list)
    """Tests that pass with the golden patch and were not mentioned here."""
    skipped_tests: list[str] = msgspec.field(default_factory=list)
    """Tests that pass with the golden patch and were skipped here."""


class DroppedFile(msgspec.Struct, kw_only=True, frozen=True):
    """A file in an agent's patch that was not evaluated."""

    path: str
    reason: str


class TestTotals(msgspec.Struct, kw_only=True, frozen=True):
    """Test runs of one patch, summed over the features that it was tested for."""

    __test__ = False

    tests_passed: int
    tests_failed: int
    tests_skipped: int
    success: bool | None
    """Whether the tests of all these features passed; None if an older file does not say."""
    error: str | None
    """The first error, on one line; None on success."""
    exit_code: int | None
    """The first exit code other than 0; None if nothing was run."""
    duration_seconds: float
    features: dict[int, FeatureTestRun]
    """The test runs by feature."""


class AgentEvaluation(TestTotals, kw_only=True, frozen=True):
    """One agent's patch alone, against the tests of its own features."""

    __test__ = False

    apply_status: str
    """Whether the patch could be applied."""
    dropped_files: list[DroppedFile]
    patch_sha256: str
    """Checksum of the patch that was evaluated, without the dropped files."""


class MergeEvaluation(TestTotals, kw_only=True, frozen=True):
    """The work of all agents together, against the tests of all features.

    It is the merge of all patches, or the patch of a shared workspace, which has no merge.
    """

    __test__ = False

    merge_conflict: bool
    merge_status: str | None
    """Result of the plain three-way merge: `clean`, `identical`, `conflict`, or
    `missing_input` if an agent has no patch that could be merged. None without a merge."""
    strategy: str | None
    """How the tested merge was made: `plain`, `union` after a conflict, or `none`."""
    conflicting_files: list[str]
    detail: str
    """One line if there is nothing to test."""
    clean_order: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    """Only after a conflict of three or more patches: an order in which they merge cleanly."""
    all_orders_tried: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether every order was tried to find a clean one."""


class PublicMergeEvaluation(msgspec.Struct, kw_only=True, frozen=True):
    """The merged verdict by the rule of the public release. It enters none of our rates."""

    success: bool
    """Whether the tests of all features passed. No confirmation run is part of this rule."""
    strategy: str
    """What was tested: `plain` (the merge), `identical` (the patch that all agents have), or
    `first_agent` (that agent's patch alone: after a conflict, or without a patch to merge)."""
    tests_passed: int
    tests_failed: int
    error: str | None
    """The first error, on one line; None on success."""
    tested_features: list[int]
    """Features that were tested. If the first agent's patch fails its own, the others are not."""


class ReferenceOutcome(msgspec.Struct, kw_only=True, frozen=True):
    """How the golden patch of one feature did under the same conditions."""

    success: bool
    network: str | None
    installed: bool
    """Whether tests run in an image that contains what the runner installs."""
    tests_passed: int
    flaky_tests: list[str]
    error: str | None


class ReviewNote(msgspec.Struct, kw_only=True, frozen=True):
    """A line of an agent's patch that reaches for the test process. It decides nothing."""

    agent: str
    path: str
    line: int
    text: str


class Confirmation(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Whether confirmation runs agree that one patch passes the tests of one feature.

    They have versions of the hidden tests that must fail, among the tests that must pass.
    """

    outcome: str
    """`confirmed`, `suspicious`, or `impossible` if no version of the tests must fail."""
    kind: str | None = None
    """`copies`, `in_place` or `added`: how tests that must fail were made."""
    tests: int | None = None
    """Number of hidden tests of the feature."""
    tests_with_decoys: int | None = None
    """Number of hidden tests of which there is a version that must fail."""
    detail: str | None = None
    """Why the success is not confirmed, on one line."""


class Suspicion(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A failed confirmation: the tests may not have decided the verdict."""

    reason: str
    """`canary`. In older files also `test_process`, which is a `ReviewNote` today."""
    agent: str | None = None
    """Agent whose patch interferes with the tests; None if that is not known."""
    path: str | None = None
    line: int | None = None
    text: str | None = None
    """What the confirmation run showed."""
    feature: int | None = None
    """Feature whose tests did not end as they do with the golden patch."""
    subject: str | None = None
    """The patch that was tested: an agent's id, `merged` or `lead`; None in older files."""


class Evaluation(Record, kw_only=True, frozen=True):
    """The verdict on one pair.

    In the file, each agent's part stands at the top level under the agent's id. Reading the file
    of an evaluation that ended in an error (`EvaluationError`) also gives this type.
    """

    SCHEMA: ClassVar[str] = SCHEMA
    SPREAD: ClassVar[str] = "agents"
    OMITTED_IF_NONE: ClassVar[frozenset[str]] = frozenset(
        (
            *("error", "no_reference", "merged", "individual_success", "merge_success"),
            "merged_public",
            *("overall_success", "overall_success_strict", "integrated_by_lead", "lead"),
            *("canary", "suspicious", "review_notes", "patches", "dataset_sha256"),
        )
    )

    status: str = "completed"
    """`completed`, `no_reference` (a golden patch does not pass its tests here) or `error`."""
    repo: str
    task_id: int
    features: list[int]
    setting: str
    """`coop`, `solo` or `team`."""
    error: str | None = None
    """Why there is no verdict."""
    no_reference: dict[int, str] | None = None
    """Features without a reference, and why."""
    agents: dict[str, AgentEvaluation] = msgspec.field(default_factory=dict)
    """The agents by their ids, or `shared` for the patch of a shared workspace; at the top level of
    the file."""
    merged: MergeEvaluation | None = None
    merged_public: PublicMergeEvaluation | None = None
    """The merged verdict by the rule of the public release; None in older files."""
    individual_success: bool | None = None
    """Every agent's patch passes the tests of its own features. None in a shared workspace, where
    agents have no patches of their own; so are `merge_success` and `overall_success_strict`."""
    merge_success: bool | None = None
    """A plain git merge has no conflict."""
    overall_success: bool | None = None
    """Every patch passes alone, and the merge passes all tests; in a shared workspace: its patch
    passes all tests."""
    overall_success_strict: bool | None = None
    """Overall success without a textual conflict."""
    integrated_by_lead: bool | None = None
    """Only in setting team: the lead's patch alone passes all tests."""
    lead: TestTotals | None = None
    """Only in setting team: the lead's patch against the tests of the members' features."""
    canary: dict[str, dict[int, Confirmation]] | str | None = None
    """Confirmations of successes, by patch (an agent's id, `merged` or `lead`) and feature; or
    `off`."""
    suspicious: list[Suspicion] | None = None
    """Confirmations that failed."""
    review_notes: list[ReviewNote] | None = None
    """Lines that a person may want to read."""
    eval_network: str
    """Requested network policy: `auto`, `none` or `public`."""
    network: str | None
    """Network that the tests had: `none` or `public`; None if the backend has no policies."""
    references: dict[int, ReferenceOutcome]
    """The reference of each feature."""
    unsound: list[int]
    """Features whose tests pass without the feature."""
    key: str
    """Checksum of everything that the verdict depends on."""
    patches: dict[str, str | None] | None = None
    """SHA-256 of each agent's patch as it was on disk, by agent id; None without a patch. Older
    files do not have it, nor the next field."""
    dataset_sha256: str | None = None
    """Checksum of the pair's files in the dataset."""
    image: str
    image_digest: str
    test_timeout_seconds: int
    started_at: str
    duration_seconds: float
    version: str
    """Version of CooperBench that wrote the file."""

    @classmethod
    def from_file(cls, content: JsonObject) -> JsonObject:
        """Return the content of a file, of this or an older version, arranged as the fields are."""
        fields = super().from_file(content)
        answers = fields.get("canary")
        if isinstance(answers, dict) and all(
            isinstance(answer, str) for answer in answers.values()
        ):
            return fields | {"canary": _confirmations_of_older_file(fields, answers)}
        return fields

    @property
    def is_completed(self) -> bool:
        """Whether there is a verdict. Older files have no status."""
        return self.status == "completed"

    def totals_of(self, subject: str) -> TestTotals | None:
        """Return the test runs of an agent's patch, of `merged` or of `lead`; None without any."""
        if subject == "merged":
            return self.merged
        if subject == "lead":
            return self.lead
        return self.agents.get(subject)

    @property
    def successes(self) -> list[tuple[str, int]]:
        """Patch and feature of each success that enters a rate."""
        subjects = [*self.agents]
        if len(self.agents) > 1:  # a single patch is its own merge
            subjects += ["merged", "lead"]
        successes = []
        for subject in subjects:
            totals = self.totals_of(subject)
            if totals is not None and totals.success:
                successes += [(subject, feature) for feature in totals.features]
        return successes

    @property
    def unconfirmed_successes(self) -> list[tuple[str, int]]:
        """Patch and feature of each success that no confirmation run supports."""
        confirmations = self.canary if isinstance(self.canary, dict) else {}
        unconfirmed = []
        for subject, feature in self.successes:
            confirmation = confirmations.get(subject, {}).get(feature)
            if confirmation is None or confirmation.outcome != "confirmed":
                unconfirmed.append((subject, feature))
        return unconfirmed


def _confirmations_of_older_file(fields: JsonObject, answers: Mapping[str, str]) -> JsonObject:
    """Return the answers of an older file, one for each feature, as confirmations by patch.

    There, an answer stands for all patches that were tested for the feature.
    """
    confirmations: JsonObject = {}
    for subject, totals in {**fields.get("agents", {}), "merged": fields.get("merged")}.items():
        tested = totals.get("features") if isinstance(totals, dict) else None
        for feature in tested or ():
            if feature in answers:
                confirmation = _confirmation_of_answer(answers[feature])
                confirmations.setdefault(subject, {})[feature] = confirmation
    return confirmations


def _confirmation_of_answer(answer: str) -> JsonObject:
    if answer in ("confirmed", "suspicious"):
        return {"outcome": answer}
    return {"outcome": "impossible", "detail": answer}


class EvaluationError(PairError, kw_only=True, frozen=True):
    """eval.json of an evaluation that ended in an error. It is tried again next time."""

    SCHEMA: ClassVar[str] = SCHEMA
