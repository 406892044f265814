"""One imported pair: its files in the source become the files of a pair in our records.

Nothing is made up: what the source does not say is null, and listed in import.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple, TypeVar

import msgspec

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.bounded import UnreadableInput, call_bounded
from cooperbench.diff import changed_files
from cooperbench.importing.messages import make_conversation
from cooperbench.importing.source import AgentFiles, SourcePair, agent_files, unused_files
from cooperbench.importing.source_files import PairFiles, SourceAgent, SourceResult
from cooperbench.importing.transcript import TrajectoryTarget, Transcript, convert_trajectory
from cooperbench.models import Setting
from cooperbench.records.result import AgentResult, PairResult
from cooperbench.records.usage import count_if_known, sum_if_known
from cooperbench.storage import PairPaths, read_regular_file, write_bytes
from cooperbench.text import printable

_COPIED = ("result.json", "eval.json", "conversation.json", "tasks.json", "task_log.json")
_OPTIONAL = ("error", "git", "team_features", "metrics", "earlier_attempts")
"""Fields of results that are null where nothing is missing."""
_SUBMITTED = "submitted"
_T = TypeVar("_T")


@dataclass(frozen=True)
class PairImport:
    """A pair that is being imported, and where it goes."""

    source: SourcePair
    setting: Setting
    repo: str
    task_id: int
    features: tuple[int, ...]
    files: PairFiles
    agent: str | None
    """The agent framework, by result.json or config.json; so is the model."""
    model: str | None
    run_name: str
    target: PairPaths
    problems: list[str] = field(default_factory=list)
    """One line for everything that cannot be read; filled while the pair is imported."""


@dataclass(frozen=True)
class _ImportedAgent:
    """One agent, with what its files say."""

    files: AgentFiles
    patch: bytes | None
    transcript: Transcript | None


class ImportedFiles(NamedTuple):
    """The result of a pair, and the names of what is missing."""

    result: PairResult
    missing: list[str]
    """Names of the values and files that the source does not have."""


def import_pair(pair: PairImport) -> ImportedFiles:
    """Write the files of a pair, result.json last."""
    agents = []
    located = agent_files(pair.source, pair.setting, pair.features)
    for files in located:
        patch = _copy_patch(pair, files)
        agents.append(_ImportedAgent(files, patch, _convert_trajectory(pair, files)))
    for name in unused_files(pair.source, located):
        pair.problems.append(f"{name} belongs to no feature of the pair: not read")
    if pair.setting != "solo":
        _write_conversation(pair, agents)
    _copy_small_files(pair)
    if pair.files.verdict is not None:
        records.write(pair.target.recorded, pair.files.verdict)
    result = _make_result(pair, agents)
    records.write(pair.target.result, result)
    missing = [*_missing_files(pair, agents), *_missing_values(result)]
    return ImportedFiles(result, missing)


def _missing_files(pair: PairImport, agents: Sequence[_ImportedAgent]) -> Iterator[str]:
    """Yield the names of what the source does not have, or not in a form that can be read."""
    for name, content in (("result.json", pair.files.result), ("eval.json", pair.files.verdict)):
        if content is None:
            yield name
    if pair.files.messages is None and pair.setting != "solo":
        yield "conversation.json"
    for agent in agents:
        if agent.patch is None:
            yield f"{agent.files.agent_id}.patch"
        if agent.transcript is None or not agent.transcript.entries:
            yield f"{agent.files.agent_id}.trajectory"


def _missing_values(result: PairResult) -> Iterator[str]:
    """Yield the names of the values of a result that are null."""
    yield from _none_fields(result, "")
    for agent_id, agent in result.agents.items():
        yield from _none_fields(agent, f"{agent_id}.")


def _none_fields(struct: msgspec.Struct, prefix: str) -> Iterator[str]:
    for name in struct.__struct_fields__:
        if name not in _OPTIONAL and getattr(struct, name) is None:
            yield f"{prefix}{name}"


def _copy_patch(pair: PairImport, files: AgentFiles) -> bytes | None:
    try:
        patch = read_regular_file(files.patch)
    except FileNotFoundError:
        return None
    except OSError as error:
        name = files.patch.relative_to(pair.source.folder)
        pair.problems.append(f"{name} cannot be read: {error.strerror}")
        return None
    pair.target.agent(files.agent_id).write_patch(patch)
    return patch


def _convert_trajectory(pair: PairImport, files: AgentFiles) -> Transcript | None:
    target = TrajectoryTarget(
        path=pair.target.agent(files.agent_id).trajectory,
        agent_id=files.agent_id,
        feature_ids=files.feature_ids,
        agent=pair.agent,
        model=pair.model,
    )
    try:
        transcript = call_bounded(convert_trajectory, files.trajectory, target)
    except UnreadableInput as problem:
        pair.problems.append(f"{files.trajectory.name} cannot be read: {problem}")
        return None
    if transcript is not None and transcript.problem:
        pair.problems.append(transcript.problem)
    return transcript


def _write_conversation(pair: PairImport, agents: Sequence[_ImportedAgent]) -> None:
    transcripts = {
        agent.files.agent_id: agent.transcript for agent in agents if agent.transcript is not None
    }
    features = {agent.files.agent_id: agent.files.feature_ids for agent in agents}
    conversation = make_conversation(pair.files.messages, transcripts, features)
    if conversation is not None:
        records.write(pair.target.conversation, conversation)


def _copy_small_files(pair: PairImport) -> None:
    """Keep the small files as they were: they have values that our records have no field for."""
    for name in _COPIED:
        try:
            content = read_regular_file(pair.source.folder / name)
        except OSError:
            continue
        write_bytes(pair.target.recorded_files / name, content)


def _make_result(pair: PairImport, agents: Sequence[_ImportedAgent]) -> PairResult:
    source = pair.files.result or SourceResult()
    results = {agent.files.agent_id: _make_agent(pair, source, agent) for agent in agents}
    values = list(results.values())
    error = _missing_patches(source, agents)
    cost = source.total_cost
    return PairResult(
        status="error" if error else "completed",
        run_name=pair.run_name,
        repo=pair.repo,
        task_id=pair.task_id,
        features=list(pair.features),
        setting=pair.setting,
        agents=results,
        messages=0 if pair.setting == "solo" else source.messages_sent,
        team_features=_team_features(pair, source, agents),
        cost=cost if cost is not None else sum_if_known(agent.cost for agent in values),
        model_calls=None,
        prompt_tokens=count_if_known(agent.prompt_tokens for agent in values),
        completion_tokens=count_if_known(agent.completion_tokens for agent in values),
        cached_tokens=count_if_known(agent.cached_tokens for agent in values),
        model_seconds=None,
        unpriced_calls=None,
        sandbox_seconds=None,
        base_commit=None,
        backend=None,
        image=None,
        image_digest=None,
        attempt=1,
        started_at=source.started_at,
        ended_at=source.ended_at,
        duration_seconds=source.duration_seconds,
        error=error,
        version=__version__,
    )


def _make_agent(pair: PairImport, source: SourceResult, agent: _ImportedAgent) -> AgentResult:
    transcript = agent.transcript or Transcript()
    recorded = _agent_of(source, agent.files, pair.setting)
    values = _fill_gaps(recorded, transcript)
    patch = agent.patch or b""
    return AgentResult(
        agent_id=agent.files.agent_id,
        feature_ids=list(agent.files.feature_ids),
        agent=pair.agent,
        agent_version=None,
        model=transcript.model or pair.model,
        status=_status_here(values.status),
        error=printable(values.error) if values.error else None,
        steps=values.steps,
        cost=values.cost,
        model_calls=None,
        prompt_tokens=values.input_tokens,
        completion_tokens=values.output_tokens,
        cached_tokens=values.cache_read_tokens,
        model_seconds=None,
        unpriced_calls=None,
        sandbox_seconds=None,
        patch_bytes=len(patch),
        patch_sha256="" if agent.patch is None else sha256(patch).hexdigest(),
        files_changed=changed_files(patch),
        started_at=transcript.start_time,
        ended_at=transcript.end_time,
        duration_seconds=None,
    )


def _fill_gaps(recorded: SourceAgent, transcript: Transcript) -> SourceAgent:
    """Return what result.json says about an agent, and its transcript where that says nothing."""
    usage = transcript.token_usage
    input_tokens, output_tokens = recorded.input_tokens, recorded.output_tokens
    if usage is not None:
        input_tokens = _first_known(input_tokens, usage.prompt_tokens)
        output_tokens = _first_known(output_tokens, usage.completion_tokens)
    return msgspec.structs.replace(
        recorded,
        status=recorded.status or transcript.status,
        steps=_first_known(recorded.steps, transcript.steps),
        cost=_first_known(recorded.cost, transcript.cost),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


def _first_known(value: _T | None, other: _T | None) -> _T | None:
    return value if value is not None else other


def _status_here(status: str | None) -> str | None:
    """Return a status as our agents report it: frameworks write `Submitted`."""
    if status is not None and status.lower() == _SUBMITTED:
        return _SUBMITTED
    return status


def _agent_of(source: SourceResult, files: AgentFiles, setting: Setting) -> SourceAgent:
    """Return the part of result.json about an agent, found by its id or its feature."""
    agents = source.agents or {}
    if setting == "solo":
        return source.agent or agents.get("solo") or SourceAgent()
    for agent in agents.values():
        if agent.feature_id in files.feature_ids:
            return agent
    same_id = agents.get(files.agent_id)
    if same_id is not None and same_id.feature_id is None:
        return same_id
    return SourceAgent()


def _missing_patches(source: SourceResult, agents: Sequence[_ImportedAgent]) -> str | None:
    """Return why a pair cannot be evaluated; None if it can.

    An agent whose result says that it changed nothing needs no patch. A patch that was not
    published is not a failure of the agent.
    """
    missing = []
    for agent in agents:
        if agent.patch is None:
            setting: Setting = "solo" if agent.files.agent_id == "solo" else "coop"
            if _agent_of(source, agent.files, setting).patch_lines != 0:
                missing.append(agent.files.agent_id)
    if not missing:
        return None
    return f"the source has no patch of {', '.join(missing)}, so there is nothing to evaluate"


def _team_features(
    pair: PairImport, source: SourceResult, agents: Sequence[_ImportedAgent]
) -> dict[str, bool] | None:
    """Return the parts of setting team. `roles`: whether the first agent is the lead, as here."""
    if pair.setting != "team":
        return None
    features: Mapping[str, bool] = source.team_features or {}
    first = agents[0]
    lead = source.lead_agent == first.files.agent_id
    if first.transcript is not None and first.transcript.team_role == "lead":
        lead = True
    return {**features, "roles": lead}
