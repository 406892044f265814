"""The leaderboard submission of a run: its verdicts, options, and checksums of what they rest on.

A submission is one JSON object in canonical form, with its own checksum and those of each
result.json, eval.json and patch. The same logs always give the same bytes. It can be verified
(`verification`) against itself and, where the logs are present, against a new submission made from
them. It cannot show that the logs themselves are honest: for that, the pairs must be evaluated
again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from cooperbench import records
from cooperbench.records import JsonObject
from cooperbench.records.evaluation import Evaluation
from cooperbench.records.history import read_history
from cooperbench.records.result import PairResult, RunConditions
from cooperbench.report.loading import Run
from cooperbench.report.mismatch import mismatch_kinds, mismatch_texts, unchecked_texts
from cooperbench.report.pairs import EVALUATED, STATES, VERDICTS, AgentData, PairData
from cooperbench.storage import ExperimentPaths, read_bytes

_CONFIGURATION = (
    *("agent", "model_name", "agent_config_sha256", "backend", "git_enabled", "messaging_enabled"),
    *("network", "step_limit", "cost_limit", "time_limit_seconds"),
)
"""Fields of config.json that a submission repeats, besides the parts of setting team."""
_REQUEST = (
    *("setting", "subset", "repo", "task_id", "features", "group_sizes", "groups_per_task"),
    "seed",
    "coupling",
)
"""Options of a call that say which pairs to run."""
_OPTIONS = ("eval_network", "prompts_sha256", "replay_from")
"""More fields of config.json that a submission repeats."""
_CALL_OPTIONS = ("version", "canary", "test_timeout_seconds", "sound_only", "force", "reruns")
"""Options of a call that verdicts depend on, and how many results it replaced."""


class DatasetName(msgspec.Struct, kw_only=True, frozen=True):
    """The dataset of a run."""

    name: str | None
    revision: str | None


class SubmittedFile(msgspec.Struct, kw_only=True, frozen=True):
    """Checksum of a file that a verdict rests on."""

    sha256: str
    bytes: int


class SubmittedAgent(msgspec.Struct, kw_only=True, frozen=True):
    """How one agent of a pair ended."""

    agent_version: str | None
    agent: str | None
    model: str | None
    status: str | None
    success: bool | None
    steps: int | None
    cost: float | None
    prompt_tokens: int | None
    completion_tokens: int | None


class BothSources(msgspec.Struct, kw_only=True, frozen=True):
    """A value as result.json and as eval.json have it."""

    run: str | None
    evaluation: str | None


class AgentOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How the agents of one pair were run; None for what result.json does not say."""

    attempts: int
    earlier_attempts: list[str] | None
    """How each of them ended."""
    dataset_sha256: str | None
    backend: str | None
    conditions: RunConditions | None
    team_features: dict[str, bool] | None


class EvaluationOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How the verdict on one pair was made."""

    dataset_sha256: str | None
    """None if an older file does not say."""
    eval_network: str
    test_timeout_seconds: int
    canary: bool | None
    """Whether successes were to be confirmed; None if the file does not say."""
    unconfirmed: int
    """Number of successes that no confirmation run supports."""
    key: str
    """Checksum of everything that the verdict depends on."""


class PairOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How one pair was run and evaluated."""

    run: AgentOptions | None
    """None without a result."""
    evaluation: EvaluationOptions | None
    """None without a verdict."""
    mismatches: list[str]
    """Kinds of the mismatches that affect the pair."""


class SubmittedPair(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The verdict on one pair."""

    setting: str
    repo: str
    task_id: int
    features: list[int]
    state: str
    verdicts: dict[str, bool | None] | None
    merge_status: str | None
    unsound: list[int] | None
    suspicious: int | None
    network: str | None
    agents: dict[str, SubmittedAgent]
    cost: float | None
    unpriced_calls: int | None
    duration_seconds: float | None
    messages: int | None
    base_commit: str | None
    image_digests: BothSources
    versions: BothSources
    files: dict[str, SubmittedFile]
    options: PairOptions | None = None
    """None in older files."""

    @property
    def name(self) -> str:
        """The pair for people: setting, repository, task and features."""
        features = "_".join(f"f{feature_id}" for feature_id in self.features)
        return f"{self.setting} {self.repo}/task{self.task_id} {features}"

    @property
    def is_consistent(self) -> bool:
        """Whether the verdicts fit the state."""
        overall = (self.verdicts or {}).get("overall")
        if self.state not in EVALUATED:
            return overall is None
        return overall is (self.state == "passed")


class SettingTotals(msgspec.Struct, kw_only=True, frozen=True):
    """Counts over the pairs of one setting."""

    states: dict[str, int]
    verdicts: dict[str, list[int]]
    """For each verdict how many pairs meet it, of how many that have it."""


class Totals(msgspec.Struct, kw_only=True, frozen=True):
    """Everything in a submission that follows from its pairs."""

    versions: list[str]
    """Versions of CooperBench that wrote the logs."""
    totals: dict[str, SettingTotals]
    """Counts by setting."""
    complete: bool
    """Whether every requested pair has a verdict."""


class SubmittedHistory(msgspec.Struct, kw_only=True, frozen=True):
    """The last result or verdict in history.jsonl; its line depends on all lines before."""

    entries: int
    """Number of results and verdicts."""
    sha256: str


class RunOptions(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How the run was made."""

    eval_network: str | None
    prompts_sha256: str | None
    replay_from: str | None
    calls: list[JsonObject]
    """Options of the calls, each combination once."""
    requested: int | None
    """Number of pairs that calls asked for; None if an older version did not record them."""
    requested_sha256: str | None
    """Checksum of these pairs and of their files in the dataset."""
    history: SubmittedHistory | None
    mismatches: list[str]
    """What does not fit together in the logs."""
    unchecked: list[str]
    """What cannot be checked."""
    imported: JsonObject | None = None
    """Where an imported run came from; only in submissions of such runs."""


class Submission(records.Record, kw_only=True, frozen=True):
    """A whole submission."""

    SCHEMA: ClassVar[str] = "cooperbench.submission/1"
    OMITTED_IF_NONE: ClassVar[frozenset[str]] = frozenset(("options",))

    run: str
    dataset: DatasetName
    configuration: JsonObject
    asked_for: list[JsonObject]
    """Which pairs the calls requested, each request once."""
    options: RunOptions | None = None
    """None in older files."""
    versions: list[str]
    totals: dict[str, SettingTotals]
    complete: bool
    pairs: list[SubmittedPair]
    checksum: str = ""


def submission_bytes(run: Run) -> bytes:
    """Return the submission file of a run."""
    return canonical(records.to_object(submission_of(run))) + b"\n"


def submission_of(run: Run) -> Submission:
    """Return the submission of a run: the same files give the same submission."""
    pairs = [_submitted_pair(run, pair) for pair in run.pairs]
    dataset, revision = run.dataset
    totals = summed_up(pairs)
    submission = Submission(
        run=run.name,
        dataset=DatasetName(name=dataset, revision=revision),
        configuration=_configuration(run),
        asked_for=_requests(run),
        options=_run_options(run),
        versions=totals.versions,
        totals=totals.totals,
        complete=totals.complete,
        pairs=pairs,
    )
    return msgspec.structs.replace(submission, checksum=checksum_of(submission))


def _configuration(run: Run) -> JsonObject:
    identity = run.config.identity if run.config else {}
    configuration = {name: identity.get(name) for name in _CONFIGURATION}
    team_parts = {name: value for name, value in identity.items() if name.startswith("team_")}
    return configuration | team_parts


def _requests(run: Run) -> list[JsonObject]:
    """Return which pairs each call was about. Repeating the same command changes nothing."""
    return _options_of_calls(run, _REQUEST)


def _options_of_calls(run: Run, names: Sequence[str]) -> list[JsonObject]:
    """Return some options of every call, each combination once."""
    combinations: list[JsonObject] = []
    if run.config is None:
        return combinations
    for call in run.config.invocations:
        options = msgspec.structs.asdict(call)
        combination = {name: options[name] for name in names}
        if combination.get("coupling", "") is None:
            del combination["coupling"]  # older submissions are without it
        if combination not in combinations:
            combinations.append(combination)
    return combinations


def _run_options(run: Run) -> RunOptions:
    identity = run.config.identity if run.config else {}
    requested = run.config.requested if run.config else None
    return RunOptions(
        **{name: identity.get(name) for name in _OPTIONS},
        calls=_options_of_calls(run, _CALL_OPTIONS),
        requested=None if requested is None else len(requested),
        requested_sha256=(
            None if requested is None else hashlib.sha256(canonical(requested)).hexdigest()
        ),
        history=_last_of_history(run),
        mismatches=mismatch_texts(run.mismatches),
        unchecked=unchecked_texts(run.mismatches),
        imported=msgspec.to_builtins(run.imported) if run.imported else None,
    )


def _last_of_history(run: Run) -> SubmittedHistory | None:
    """Return the last result or verdict. Calls that change nothing do not count."""
    checksums = history_checksums(run)
    if not checksums:
        return None
    return SubmittedHistory(entries=len(checksums), sha256=checksums[-1])


def history_checksums(run: Run) -> list[str]:
    """Return the checksum of each line of history.jsonl that is a result or a verdict."""
    history = read_history(ExperimentPaths(run.root.parent, run.root.name))
    if history is None:
        return []
    return [
        checksum
        for entry, checksum in zip(history.entries, history.checksums, strict=True)
        if entry.event in ("result", "evaluation")
    ]


def _pair_options(run: Run, pair: PairData) -> PairOptions:
    evaluation = None
    if pair.evaluation is not None and pair.verdicts:
        evaluation = _evaluation_options(pair.evaluation)
    return PairOptions(
        run=_agent_options(pair.result) if pair.result else None,
        evaluation=evaluation,
        mismatches=mismatch_kinds(run.mismatches, run.name, pair),
    )


def _agent_options(result: PairResult) -> AgentOptions:
    attempts = None
    if result.earlier_attempts is not None:
        attempts = [attempt.status for attempt in result.earlier_attempts]
    return AgentOptions(
        attempts=max(1, result.attempt),
        earlier_attempts=attempts,
        dataset_sha256=result.dataset_sha256,
        backend=result.backend or None,
        conditions=result.conditions,
        team_features=result.team_features,
    )


def _evaluation_options(evaluation: Evaluation) -> EvaluationOptions:
    return EvaluationOptions(
        dataset_sha256=evaluation.dataset_sha256,
        eval_network=evaluation.eval_network,
        test_timeout_seconds=evaluation.test_timeout_seconds,
        canary=None if evaluation.canary is None else evaluation.canary != "off",
        unconfirmed=len(evaluation.unconfirmed_successes),
        key=evaluation.key,
    )


def _submitted_pair(run: Run, pair: PairData) -> SubmittedPair:
    result = pair.result
    has_verdict = bool(pair.verdicts)
    return SubmittedPair(
        setting=pair.setting,
        repo=pair.key.repo,
        task_id=pair.key.task_id,
        features=list(pair.key.features),
        state=pair.state,
        verdicts=pair.verdicts or None,
        merge_status=pair.merge_status,
        unsound=list(pair.unsound) if has_verdict else None,
        suspicious=len(pair.suspicious) if has_verdict else None,
        network=pair.network,
        agents={agent.agent_id: _submitted_agent(agent) for agent in pair.agents},
        cost=pair.cost,
        unpriced_calls=pair.unpriced_calls,
        duration_seconds=pair.duration_seconds,
        messages=pair.messages,
        base_commit=(result.base_commit or None) if result else None,
        image_digests=_image_digests(pair),
        versions=_versions(pair),
        files=_file_checksums(pair),
        options=_pair_options(run, pair),
    )


def _image_digests(pair: PairData) -> BothSources:
    return BothSources(
        run=(pair.result.image_digest or None) if pair.result else None,
        evaluation=(pair.evaluation.image_digest or None) if pair.evaluation else None,
    )


def _versions(pair: PairData) -> BothSources:
    return BothSources(
        run=(pair.result.version or None) if pair.result else None,
        evaluation=(pair.evaluation.version or None) if pair.evaluation else None,
    )


def _submitted_agent(agent: AgentData) -> SubmittedAgent:
    return SubmittedAgent(
        agent_version=agent.record.agent_version or None,
        agent=agent.agent,
        model=agent.model,
        status=agent.status,
        success=agent.success,
        steps=agent.steps,
        cost=agent.cost,
        prompt_tokens=agent.prompt_tokens,
        completion_tokens=agent.completion_tokens,
    )


def _file_checksums(pair: PairData) -> dict[str, SubmittedFile]:
    patches = [f"{name}.patch" for name in pair.patch_names]
    checksums = {}
    for name in ("result.json", "eval.json", *patches, "merged.patch"):
        content = read_bytes(pair.paths.folder / name)
        if content is not None:
            digest = hashlib.sha256(content).hexdigest()
            checksums[name] = SubmittedFile(sha256=digest, bytes=len(content))
    return checksums


def canonical(content: object) -> bytes:
    """Return JSON in canonical form: sorted keys, no spaces."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def checksum_of(submission: Submission) -> str:
    """Return the checksum of everything but the checksum itself."""
    content = records.to_object(submission)
    del content["checksum"]
    return f"sha256:{hashlib.sha256(canonical(content)).hexdigest()}"


def summed_up(pairs: Sequence[SubmittedPair]) -> Totals:
    """Return everything in a submission that follows from its pairs."""
    versions = set()
    totals: dict[str, SettingTotals] = {}
    for pair in pairs:
        versions |= {pair.versions.run, pair.versions.evaluation}
        if pair.setting not in totals:
            totals[pair.setting] = SettingTotals(
                states=dict.fromkeys(STATES, 0), verdicts={name: [0, 0] for name in VERDICTS}
            )
        _count_pair(pair, totals[pair.setting])
    is_complete = bool(pairs) and all(pair.state in EVALUATED for pair in pairs)
    return Totals(
        versions=sorted(version for version in versions if version),
        totals=totals,
        complete=is_complete,
    )


def _count_pair(pair: SubmittedPair, totals: SettingTotals) -> None:
    totals.states[pair.state] = totals.states.get(pair.state, 0) + 1
    for name, counts in totals.verdicts.items():
        verdict = (pair.verdicts or {}).get(name)
        if verdict is not None:
            counts[0] += int(verdict)
            counts[1] += 1
