"""The leaderboard submission of a run: its verdicts, and checksums of everything they rest on.

A submission is one JSON object in canonical form, with its own checksum and those of each
result.json, eval.json and patch. The same logs always give the same bytes. It can be verified
against itself and, where the logs are present, against a new submission made from them. It cannot
show that the logs themselves are honest: for that, the pairs must be evaluated again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.records import JsonObject
from cooperbench.report.loading import Run, load_run
from cooperbench.report.pairs import EVALUATED, STATES, VERDICTS, AgentData, PairData
from cooperbench.storage import read_bytes

_CONFIGURATION = (
    *("agent", "model_name", "agent_config_sha256", "backend", "git_enabled", "messaging_enabled"),
    *("network", "step_limit", "cost_limit", "time_limit_seconds"),
)
"""Fields of config.json that a submission repeats, besides the parts of setting team."""
_REQUEST = (
    *("setting", "subset", "repo", "task_id", "features", "group_sizes", "groups_per_task"),
    "seed",
)
"""Options of a call that say which pairs to run."""
_MAX_SHOWN_CHARACTERS = 100


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
    steps: int
    cost: float
    prompt_tokens: int
    completion_tokens: int


class BothSources(msgspec.Struct, kw_only=True, frozen=True):
    """A value as result.json and as eval.json have it."""

    run: str | None
    evaluation: str | None


class SubmittedPair(msgspec.Struct, kw_only=True, frozen=True):
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
    cost: float
    unpriced_calls: int
    duration_seconds: float
    messages: int
    base_commit: str | None
    image_digests: BothSources
    versions: BothSources
    files: dict[str, SubmittedFile]

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


class Submission(records.Record, kw_only=True, frozen=True):
    """A whole submission."""

    SCHEMA: ClassVar[str] = "cooperbench.submission/1"

    run: str
    dataset: DatasetName
    configuration: JsonObject
    asked_for: list[JsonObject]
    """Which pairs the calls requested, each request once."""
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
    pairs = [_submitted_pair(pair) for pair in run.pairs]
    dataset, revision = run.dataset
    totals = summed_up(pairs)
    submission = Submission(
        run=run.name,
        dataset=DatasetName(name=dataset, revision=revision),
        configuration=_configuration(run),
        asked_for=_requests(run),
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
    requests: list[JsonObject] = []
    if run.config is None:
        return requests
    for call in run.config.invocations:
        options = msgspec.structs.asdict(call)
        request = {name: options[name] for name in _REQUEST}
        if request not in requests:
            requests.append(request)
    return requests


def _submitted_pair(pair: PairData) -> SubmittedPair:
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
        unpriced_calls=result.unpriced_calls if result else 0,
        duration_seconds=pair.duration_seconds,
        messages=pair.messages,
        base_commit=(result.base_commit or None) if result else None,
        image_digests=_image_digests(pair),
        versions=_versions(pair),
        files=_file_checksums(pair),
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
    patches = [f"{agent_id}.patch" for agent_id in pair.agent_ids]
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


class Verified(NamedTuple):
    """The outcome of a verification."""

    mismatches: list[str]
    """One line for each; empty if the submission is valid."""
    pairs: int
    run: Run | None
    """The run that it was compared with; None if its logs are not here."""


def verify_submission(path: Path, logs_dir: Path, run: Run | None = None) -> Verified:
    """Verify a submission against itself and against its run.

    The run is `run`, or the one of the submission's name in the logs folder, if there is one.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    try:
        content = json.loads(data)
        is_submission = isinstance(content, dict) and content.get("schema") == Submission.SCHEMA
        if not is_submission:
            return Verified([f"not a JSON object with the schema {Submission.SCHEMA}"], 0, None)
        submission = records.from_object(content, Submission)
        mismatches = list(_inconsistencies(submission, content, data))
    except (ValueError, RecursionError):
        return Verified(["not complete JSON"], 0, None)
    if run is None and submission.run:
        with suppress(UserError):
            run = load_run(logs_dir, submission.run)
    if run is not None:
        mismatches += _differences("", _comparable(submission), _comparable(submission_of(run)))
    return Verified(mismatches, len(submission.pairs), run)


def _inconsistencies(submission: Submission, content: JsonObject, data: bytes) -> Iterator[str]:
    """Yield what is wrong with a submission in itself."""
    understood = records.to_object(submission)
    if canonical(understood) != canonical(content):
        yield "it has fields that a submission does not have, or values of the wrong type"
    if submission.checksum != checksum_of(submission):
        yield f"its checksum is {_shorten(submission.checksum)}, not that of its content"
    if canonical(content) + b"\n" != data:
        yield "it is not in canonical form: not the bytes that were written"
    names = {pair.name for pair in submission.pairs}
    if len(names) != len(submission.pairs):
        yield "pairs lists a pair more than once"
    for pair in submission.pairs:
        if not pair.is_consistent:
            yield f"{pair.name}: its verdicts do not match the state {_shorten(pair.state)}"
    for name, value in msgspec.to_builtins(summed_up(submission.pairs)).items():
        if canonical(understood[name]) != canonical(value):
            yield f"{name} is {_shorten(understood[name])}, which does not follow from its pairs"


def _comparable(submission: Submission) -> JsonObject:
    """Return a submission with its pairs by name. The run may have another name elsewhere."""
    content = records.to_object(submission)
    names = [pair.name for pair in submission.pairs]
    pairs = dict(zip(names, content["pairs"], strict=True))
    return content | {"pairs": pairs, "run": None, "checksum": None}


def _differences(name: str, submitted: object, from_logs: object) -> Iterator[str]:
    """Yield a line for each value that differs."""
    if isinstance(submitted, dict) and isinstance(from_logs, dict):
        for key in sorted({*submitted, *from_logs}):
            path = f"{name}.{key}" if name else key
            yield from _differences(path, submitted.get(key), from_logs.get(key))
    elif canonical(submitted) != canonical(from_logs):
        yield (
            f"{name} is {_shorten(submitted)} in the submission, {_shorten(from_logs)} in the logs"
        )


def _shorten(value: object) -> str:
    text = json.dumps(value)
    if len(text) <= _MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[:_MAX_SHOWN_CHARACTERS]}…"
