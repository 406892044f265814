"""The data of the page of one pair.

Long texts are cut in the middle, with a note: the complete text is in the logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from cooperbench import records
from cooperbench.records import JsonObject
from cooperbench.records.judgement import Judgement
from cooperbench.records.result import TeamMetrics
from cooperbench.records.tasks import TaskListRecord, TaskRecord
from cooperbench.records.trajectory import Step
from cooperbench.report.coordination import (
    Coordination,
    PairFiles,
    measure_pair,
    unreadable_coordination,
)
from cooperbench.report.failures import FailedTests, failed_tests, failure_reason
from cooperbench.report.page.changes import FileChanges, side_by_side
from cooperbench.report.page.overview import outcome_of
from cooperbench.report.pairs import ENDED, PairData, SentMessage
from cooperbench.storage import read_bytes, seconds_between
from cooperbench.text import head_and_tail

MAX_CHARACTERS = 12_000
"""Characters of one text of a trajectory, for example the output of a command."""
MAX_FILE_CHARACTERS = 60_000
_MAX_NOTE_CHARACTERS = 500
_MAX_TASKS = 100
_CUT_NOTE = "\n[… {cut} characters left out; the whole is in the logs …]\n"
_SHOWN_FILES = frozenset(
    (
        *("result.json", "eval.json", "conversation.json"),
        *("task_log.json", "judge.json", "workspace.json", "merged.patch"),
    )
)


@dataclass(frozen=True)
class AgentRow:
    """One agent of the pair."""

    id: str
    patch_bytes: int | None
    """None in a shared workspace."""
    has_result: bool
    """Whether result.json describes the agent. Otherwise the next fields have no meaning.
    They are None if they are not known."""
    agent: str | None = None
    model: str | None = None
    status: str | None = None
    error: str | None = None
    success: bool | None = None
    feature_ids: tuple[int, ...] = ()
    steps: int | None = None
    cost: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    duration_seconds: float | None = None


class Entry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One step of an agent. A pair has hundreds, so that empty fields are not written."""

    lane: int
    """Index of the agent."""
    t: float
    """Seconds since the start of the pair."""
    action: str
    args: JsonObject
    step: int | None = None
    duration_seconds: float = 0.0
    returncode: int | None = None
    timed_out: bool = False
    thought: str = ""
    observation: str = ""


class ShownMessage(msgspec.Struct, kw_only=True, frozen=True, rename={
    "sender": "from", "recipient": "to",
}):  # fmt: skip
    """One message between agents."""

    number: int
    sender: str
    recipient: str
    text: str
    t: float
    """Seconds from the start of the pair until it was sent."""
    read: float | None
    """Seconds until it was read; None if it was never read."""


class MergeSummary(msgspec.Struct, kw_only=True, frozen=True):
    """The merge of all patches."""

    merge_status: str | None
    strategy: str | None
    success: bool | None
    conflicting_files: list[str]
    detail: str
    clean_order: list[str] | None


class ShownTestRun(msgspec.Struct, kw_only=True, frozen=True):
    """The tests of one feature with one patch."""

    subject: str
    """The patch: an agent's id, `solo`, `merged` or `lead`."""
    feature: int
    success: bool
    tests_passed: int
    tests_failed: int
    tests_skipped: int
    duration_seconds: float
    timed_out: bool
    error: str | None
    missing_tests: list[str]
    skipped_tests: list[str]
    output: str


class TeamDetail(msgspec.Struct, kw_only=True, frozen=True):
    """Use of the tools of setting team."""

    features: dict[str, bool]
    metrics: TeamMetrics
    integrated_by_lead: bool | None
    tasks: list[TaskRecord]


class ShownFile(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A file in the pair's folder."""

    name: str
    bytes: int
    text: str | None = None
    """The content of a small text file."""


class PairDetail(msgspec.Struct, kw_only=True, frozen=True):
    """Everything that the page of a pair shows."""

    outcome: str
    error: str | None
    reason: str
    seconds: float | None
    failures: list[FailedTests]
    unsound: str
    suspicious: list[str]
    review_notes: list[str]
    problems: list[str]
    earlier_attempts: list[str]
    agents: list[AgentRow]
    patches: list[str]
    """Names of the patches: the ids of the agents, or `shared`."""
    entries: list[Entry]
    messages: list[ShownMessage]
    diffs: list[FileChanges]
    merged: MergeSummary | None
    tests: list[ShownTestRun]
    team: TeamDetail | None
    opinion: Judgement | None
    """The opinion of an LLM judge."""
    files: list[ShownFile]
    coordination: Coordination | None
    """None if the agents did not come to an end."""


class _Timeline(NamedTuple):
    """Times of a pair; on the page they are seconds since its start."""

    start: str

    def seconds(self, timestamp: str | None) -> float | None:
        """Return the seconds since the start; None if one of the times is not known."""
        return seconds_between(self.start, timestamp)


def pair_detail(pair: PairData) -> PairDetail:
    """Read everything about one pair."""
    files = PairFiles(pair)
    coordination = measure_pair(pair, files) if pair.state in ENDED else None
    timeline = _Timeline(_start_time(pair, files))
    problems = list(pair.problems)
    if coordination is not None:
        problems += coordination.problems
    return PairDetail(
        outcome=outcome_of(pair),
        error=pair.error,
        reason=failure_reason(pair),
        seconds=_rounded(pair.duration_seconds),
        failures=failed_tests(pair),
        unsound=pair.unsound_text,
        suspicious=[cut(text, _MAX_NOTE_CHARACTERS) for text in pair.suspicious_texts],
        review_notes=[cut(text, _MAX_NOTE_CHARACTERS) for text in pair.review_note_texts],
        problems=problems,
        earlier_attempts=[cut(text, _MAX_NOTE_CHARACTERS) for text in pair.earlier_attempts],
        agents=[_agent_row(pair, agent_id) for agent_id in pair.agent_ids],
        patches=list(pair.patch_names),
        entries=_entries(pair, files, timeline),
        messages=[_shown_message(message, timeline) for message in files.conversation.messages],
        diffs=side_by_side(files.patches, pair.conflicting_files),
        merged=_merge_summary(pair),
        tests=list(_test_runs(pair)),
        team=_team_detail(pair),
        opinion=records.read(pair.paths.judgement, Judgement),
        files=list(_shown_files(pair)),
        coordination=coordination,
    )


def unreadable_detail(pair: PairData, problem: str) -> PairDetail:
    """Return the little that is known about a pair whose files cannot be read."""
    problem = f"the files of this pair cannot be read: {problem}"
    return PairDetail(
        outcome=outcome_of(pair),
        error=pair.error,
        reason=failure_reason(pair),
        seconds=_rounded(pair.duration_seconds),
        failures=[],
        unsound=pair.unsound_text,
        suspicious=[cut(text, _MAX_NOTE_CHARACTERS) for text in pair.suspicious_texts],
        review_notes=[cut(text, _MAX_NOTE_CHARACTERS) for text in pair.review_note_texts],
        problems=[*pair.problems, problem],
        earlier_attempts=[cut(text, _MAX_NOTE_CHARACTERS) for text in pair.earlier_attempts],
        agents=[_agent_row(pair, agent_id) for agent_id in pair.agent_ids],
        patches=list(pair.patch_names),
        entries=[],
        messages=[],
        diffs=[],
        merged=_merge_summary(pair),
        tests=[],
        team=None,
        opinion=None,
        files=[],
        coordination=unreadable_coordination(problem) if pair.state in ENDED else None,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _start_time(pair: PairData, files: PairFiles) -> str:
    """Return when the first agent of the pair started; empty if it is not known."""
    if pair.result is not None and pair.result.started_at:
        return pair.result.started_at
    timestamps = [steps[0].timestamp for steps in files.trajectories.values() if steps]
    return min([timestamp for timestamp in timestamps if timestamp], default="")


def cut(text: str, maximum: int = MAX_CHARACTERS) -> str:
    """Return the beginning and the end of a long text; errors are at the end."""
    return head_and_tail(text, maximum, _CUT_NOTE)


def _cut_arguments(arguments: JsonObject) -> JsonObject:
    """Return the arguments of a step with long texts cut."""
    shortened: JsonObject = {}
    for name, value in arguments.items():
        shortened[name] = cut(value) if isinstance(value, str) else value
    return shortened


def _entries(pair: PairData, files: PairFiles, timeline: _Timeline) -> list[Entry]:
    """Return the steps of all agents in order of time.

    Steps that send a message are left out, because the message itself is shown.
    """
    sending_steps = {
        (message.sender, message.sender_step) for message in files.conversation.messages
    }
    entries = []
    for lane, agent_id in enumerate(pair.agent_ids):
        seconds = 0.0
        for step in files.trajectories[agent_id]:
            # An entry without a time of its own stays behind the previous one.
            own_seconds = timeline.seconds(step.timestamp)
            if own_seconds is not None:
                seconds = own_seconds
            is_shown_as_message = (agent_id, step.number) in sending_steps
            if step.action == "send_message" and is_shown_as_message:
                continue
            entries.append(_entry(lane, seconds, step))
    return sorted(entries, key=lambda entry: entry.t)


def _entry(lane: int, seconds: float, step: Step) -> Entry:
    thought = step.extra.get("thought")
    return Entry(
        lane=lane,
        t=seconds,
        action=step.action,
        args=_cut_arguments(step.args),
        step=step.number,
        duration_seconds=step.duration_seconds or 0.0,
        returncode=step.returncode or None,
        timed_out=bool(step.timed_out),
        thought=cut(thought) if isinstance(thought, str) else "",
        observation=cut(step.observation),
    )


def _shown_message(message: SentMessage, timeline: _Timeline) -> ShownMessage:
    return ShownMessage(
        number=message.sequence,
        sender=message.sender,
        recipient=message.recipient,
        text=cut(message.text),
        t=timeline.seconds(message.timestamp) or 0.0,
        read=timeline.seconds(message.delivered_at),
    )


def _agent_row(pair: PairData, agent_id: str) -> AgentRow:
    patch_bytes = None
    if not pair.shares_workspace:
        patch_bytes = len(pair.patch(agent_id) or b"")
    for agent in pair.agents:
        if agent.agent_id == agent_id:
            return AgentRow(
                id=agent_id,
                patch_bytes=patch_bytes,
                has_result=True,
                agent=agent.agent,
                model=agent.model,
                status=agent.status,
                error=agent.record.error or None,
                success=agent.success,
                feature_ids=agent.feature_ids,
                steps=agent.steps,
                cost=agent.cost,
                prompt_tokens=agent.prompt_tokens,
                completion_tokens=agent.completion_tokens,
                duration_seconds=agent.duration_seconds,
            )
    return AgentRow(id=agent_id, patch_bytes=patch_bytes, has_result=False)


def _merge_summary(pair: PairData) -> MergeSummary | None:
    merged = pair.merged
    if merged is None:
        return None
    return MergeSummary(
        merge_status=merged.merge_status,
        strategy=merged.strategy,
        success=merged.success,
        conflicting_files=merged.conflicting_files,
        detail=merged.detail,
        clean_order=merged.clean_order or None,
    )


def _test_runs(pair: PairData) -> Iterator[ShownTestRun]:
    """Yield the test runs of the agents' patches, of the merge and of the lead's patch."""
    if pair.evaluation is None:
        return
    outputs = pair.test_outputs()
    for subject in pair.tested_patches:
        totals = pair.evaluation.totals_of(subject)
        if totals is None:
            continue
        for feature_id, run in totals.features.items():
            yield ShownTestRun(
                subject=subject,
                feature=feature_id,
                success=run.success,
                tests_passed=run.tests_passed,
                tests_failed=run.tests_failed,
                tests_skipped=run.tests_skipped,
                duration_seconds=run.duration_seconds,
                timed_out=run.timed_out,
                error=run.error,
                missing_tests=run.missing_tests,
                skipped_tests=run.skipped_tests,
                output=cut(outputs.get(f"{subject}-f{feature_id}", "")),
            )


def _team_detail(pair: PairData) -> TeamDetail | None:
    """Return the use of the team's tools; None in other settings."""
    if pair.result is None or not pair.result.team_features:
        return None
    task_list = records.read(pair.paths.tasks, TaskListRecord)
    tasks = task_list.tasks[:_MAX_TASKS] if task_list else []
    return TeamDetail(
        features=pair.result.team_features,
        metrics=pair.result.metrics or TeamMetrics(),
        integrated_by_lead=pair.integrated_by_lead,
        tasks=[
            msgspec.structs.replace(task, title=cut(task.title), note=cut(task.note))
            for task in tasks
        ],
    )


def _shown_files(pair: PairData) -> Iterator[ShownFile]:
    """Yield the files in the pair's folder; small text files with their content."""
    folder = pair.paths.folder
    patches = {f"{name}.patch" for name in pair.patch_names}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_hidden = "/." in f"/{name}"
        if path.is_symlink() or not path.is_file() or is_hidden:
            continue
        text = None
        if name in _SHOWN_FILES or name in patches:
            content = read_bytes(path) or b""
            text = cut(content.decode("utf-8", "replace"), MAX_FILE_CHARACTERS)
        yield ShownFile(name=name, bytes=path.stat().st_size, text=text)
