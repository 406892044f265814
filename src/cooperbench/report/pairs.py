"""One pair as it is on disk, for every report. Large files are read when they are needed.

A file that is missing, incomplete or of an older schema becomes a line in `problems` and a state
of its own. The content of a file never raises an exception, and a file that cannot be read never
counts as a failure of the agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from cooperbench import records
from cooperbench.models import SHARED, Message, Setting
from cooperbench.records.conversation import Conversation as ConversationRecord
from cooperbench.records.conversation import ConversationMessage
from cooperbench.records.evaluation import (
    AgentEvaluation,
    Evaluation,
    MergeEvaluation,
    ReviewNote,
    Suspicion,
)
from cooperbench.records.imported import RecordedVerdict
from cooperbench.records.result import AgentResult, PairResult
from cooperbench.records.trajectory import Step, Trajectory, read_journal
from cooperbench.records.usage import count_if_known
from cooperbench.records.workspace import WorkspaceRecord
from cooperbench.storage import PairPaths, read_bytes

State = Literal["passed", "failed", "error", "no_reference", "unevaluated", "missing", "broken"]
Loss = Literal["passed", "capability", "conflict", "integration"]


class Meaning(NamedTuple):
    """A state or an outcome, for people."""

    mark: str
    """One character, for the page."""
    short: str
    """As a label, and after a number: `2 not run yet`."""
    sentence: str


STATES: Mapping[State, Meaning] = {
    "passed": Meaning("✓", "passed", "every patch passes alone, and their merge passes all tests"),
    "failed": Meaning(
        "✗", "failed", "a patch alone or the merge fails tests, or the tests did not decide"
    ),
    "error": Meaning(
        "!", "ended in an error", "a sandbox, a server or a provider failed; not scored"
    ),
    "no_reference": Meaning(
        "∅", "no reference", "a golden patch does not pass its tests here; not scored"
    ),
    "unevaluated": Meaning("…", "not evaluated yet", "the agents are done, the tests have not run"),
    "missing": Meaning("·", "not run yet", "there is no result yet"),
    "broken": Meaning(
        "!", "could not be read", "a file cannot be read or has no verdict; not scored"
    ),
}
LOSSES: Mapping[Loss, Meaning] = {
    "passed": STATES["passed"],
    "capability": Meaning(
        "✗", "failed alone", "a patch fails its own feature's tests before it is merged"
    ),
    "conflict": Meaning(
        "⚡", "conflict", "each passes alone, git cannot merge them, a union merge fails"
    ),
    "integration": Meaning(
        "≠", "failed together", "the patches merge or are one patch, which fails the tests"
    ),
}
"""How a judged pair ended: `failed` is split by the first thing that went wrong."""
EVALUATED: tuple[State, ...] = ("passed", "failed")
"""Those with a verdict: rates are over these."""
NOT_EVALUATED: tuple[State, ...] = tuple(state for state in STATES if state not in EVALUATED)
ENDED: tuple[State, ...] = (*EVALUATED, "no_reference", "unevaluated")
"""The agents came to an end: what they did and cost is on record."""


VERDICTS: Mapping[str, str] = {
    "individual": "every patch passes its own tests alone",
    "merge": "the patches merge in plain git",
    "merged": "the merge passes all tests",
    "overall": "every patch passes alone, and the merge passes all tests",
    "strict": "overall, and without a textual conflict",
}

PUBLIC_VERDICT = "public"
"""The verdict by the rule of the public release, for comparisons. It enters no rate."""
_MERGE_TEXTS = {"missing_input": "a patch is missing"}
_REVIEW_NOTE_REASON = "test_process"
"""Reason of entries of `suspicious` in older files that are review notes today."""
_SHARED_MEANINGS = {
    "merged": "the patch of the shared workspace passes all tests",
    "overall": "the same as merged: the patch of a shared workspace is not merged",
}
_SOLO_MEANINGS = {
    "individual": "the agent's patch passes the tests of all its features",
    "overall": "the same as individual: a single patch is not merged",
}


def merge_text(merge_status: str | None) -> str:
    """Return how the plain three-way merge ended, in words; empty if there was none."""
    if merge_status is None:
        return ""
    return _MERGE_TEXTS.get(merge_status, merge_status)


def verdict_meaning(verdict: str, setting: Setting, *, shared: bool = False) -> str:
    """Return what a verdict means in a setting, in shared workspaces or in others."""
    if setting == "solo":
        return _SOLO_MEANINGS.get(verdict, VERDICTS[verdict])
    if shared:
        return _SHARED_MEANINGS.get(verdict, VERDICTS[verdict])
    return VERDICTS[verdict]


def applicable_verdicts(setting: Setting, *, shared: bool = False) -> tuple[str, ...]:
    """Return the names of the verdicts in a setting, in shared workspaces or in others.

    In solo and in a shared workspace there is nothing to merge.
    """
    if setting == "solo":
        return ("individual", "overall")
    return ("merged", "overall") if shared else tuple(VERDICTS)


@dataclass(frozen=True, order=True)
class PairKey:
    """A pair by its path under logs/, in the order of reports."""

    repo: str
    task_id: int
    features: tuple[int, ...]

    @property
    def label(self) -> str:
        """The pair for people: `click_task/task7 f1_f2`."""
        return f"{self.repo}/task{self.task_id} {self.group}"

    @property
    def group(self) -> str:
        """The features as in paths: `f1_f2`."""
        return "_".join(f"f{feature_id}" for feature_id in self.features)


@dataclass(frozen=True)
class AgentData:
    """One agent's part of result.json and eval.json; None for values that they do not have."""

    agent_id: str
    agent: str | None
    model: str | None
    status: str | None
    """How it ended: `submitted`, `step_limit`, …"""
    success: bool | None
    """Whether its patch alone passes the tests of its own features."""
    feature_ids: tuple[int, ...]
    steps: int | None
    cost: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    duration_seconds: float | None
    record: AgentResult

    @property
    def configuration(self) -> str:
        """Model and agent framework, for people."""
        return " · ".join(part for part in (self.model, self.agent) if part) or "unknown"


@dataclass(frozen=True)
class SentMessage(Message):
    """One line of conversation.json."""

    delivered_at: str | None = None


class Conversation(NamedTuple):
    """The messages that the agents of a pair sent to each other, in order."""

    messages: tuple[SentMessage, ...] = ()
    complete: bool = True
    """False if there is no usable conversation.json, or if it has messages that cannot be read.
    Then these are the messages that trajectories mention, or those that can be read."""


@dataclass(frozen=True)
class PairData:
    """One pair in one setting of one run."""

    key: PairKey
    setting: Setting
    paths: PairPaths
    result: PairResult | None
    evaluation: Evaluation | None
    problems: tuple[str, ...] = ()
    unreadable: bool = False
    """Whether result.json or eval.json exists but is not a JSON object."""
    agent_count: int | None = None
    """Number of agents in config.json; None: one per feature, or solo."""

    @property
    def label(self) -> str:
        """The pair for people: `click_task/task7 f1_f2`."""
        return self.key.label

    @cached_property
    def state(self) -> State:
        """How far the pair has come."""
        if self.unreadable:
            return "broken"
        if self.result is None:
            return "missing"
        if not self.result.is_completed:
            return "error"
        if self.evaluation is None:
            return "unevaluated"
        return _evaluation_state(self.evaluation)

    @cached_property
    def verdicts(self) -> dict[str, bool | None]:
        """The verdicts by their names in `VERDICTS`; empty if the pair has not been evaluated.

        A verdict is None if it does not apply to the setting or if an older file lacks it.
        """
        evaluation = self._verdict
        if evaluation is None:
            return {}
        merged = evaluation.merged
        verdicts = {
            "individual": evaluation.individual_success,
            "merge": evaluation.merge_success,
            "merged": merged.success if merged else None,
            "overall": evaluation.overall_success,
            "strict": evaluation.overall_success_strict,
        }
        applicable = applicable_verdicts(self.setting, shared=self.shares_workspace)
        return {name: verdicts[name] if name in applicable else None for name in VERDICTS}

    @property
    def public_success(self) -> bool | None:
        """The verdict by the rule of the public release; None without it. It is in no rate."""
        public = self._verdict.merged_public if self._verdict else None
        return public.success if public else None

    @cached_property
    def recorded(self) -> RecordedVerdict | None:
        """The verdict that came with an imported run; None without one. It is in no rate."""
        return records.read(self.paths.recorded, RecordedVerdict)

    def verdict(self, name: str) -> bool | None:
        """Return the verdict with a name of `VERDICTS`, or `public`; None if there is none."""
        return self.public_success if name == PUBLIC_VERDICT else self.verdicts.get(name)

    @property
    def loss(self) -> Loss | None:
        """The first thing that went wrong: a patch alone, the merge in git, or its tests."""
        if self.state != "failed":
            return "passed" if self.state == "passed" else None
        alone = [self.verdicts["individual"], *(agent.success for agent in self.agents)]
        if False in alone or self.setting == "solo":
            return "capability"
        return "conflict" if self.verdicts["merge"] is False else "integration"

    @property
    def attempts(self) -> int:
        """Number of attempts at the pair, with the last one."""
        return max(1, self.result.attempt) if self.result is not None else 1

    @property
    def earlier_attempts(self) -> list[str]:
        """How each earlier attempt ended, for people; empty if the file does not say."""
        attempts = (self.result.earlier_attempts if self.result is not None else None) or []
        texts = []
        for number, attempt in enumerate(attempts, 1):
            reason = f": {attempt.error}" if attempt.error else ""
            texts.append(f"attempt {number} of {self.attempts}: {attempt.status}{reason}")
        return texts

    @property
    def error(self) -> str | None:
        """Why there is no verdict, if that is not the agents' fault."""
        for record in (self.result, self.evaluation):
            if record is not None and not record.is_completed:
                return str(record.error)
        return self.problems[0] if self.state == "broken" and self.problems else None

    @property
    def _verdict(self) -> Evaluation | None:
        """The evaluation, if it is a verdict."""
        return self.evaluation if self.state in EVALUATED else None

    @property
    def unsound(self) -> tuple[int, ...]:
        """Features whose tests pass without the feature, so that the verdict says little."""
        return tuple(self._verdict.unsound) if self._verdict else ()

    @property
    def unsound_text(self) -> str:
        """A sentence about `unsound`; empty if there are no such features."""
        if not self.unsound:
            return ""
        features = ", ".join(str(feature_id) for feature_id in self.unsound)
        noun = "features" if len(self.unsound) > 1 else "feature"
        return f"the tests of {noun} {features} pass without the {noun}"

    @property
    def successes(self) -> int:
        """Number of successes, each of one patch and one feature."""
        return len(self._verdict.successes) if self._verdict else 0

    @property
    def unconfirmed(self) -> int:
        """Number of successes that no confirmation run supports."""
        return len(self._verdict.unconfirmed_successes) if self._verdict else 0

    @property
    def suspicious(self) -> list[Suspicion]:
        """Failed confirmations: the tests may not have decided the verdict."""
        return [entry for entry in self._suspicions if entry.reason != _REVIEW_NOTE_REASON]

    @property
    def _suspicions(self) -> list[Suspicion]:
        """Entries of `suspicious` in eval.json; in older files some are review notes."""
        return (self._verdict.suspicious or []) if self._verdict else []

    @property
    def suspicious_texts(self) -> list[str]:
        """One line for each entry of `suspicious`."""
        return [_suspicious_text(suspicion) for suspicion in self.suspicious]

    @property
    def review_notes(self) -> list[ReviewNote]:
        """Lines of patches that a person may want to read."""
        notes = list((self._verdict.review_notes or []) if self._verdict else [])
        older = [entry for entry in self._suspicions if entry.reason == _REVIEW_NOTE_REASON]
        notes += [_review_note(entry) for entry in older]
        return notes

    @property
    def review_note_texts(self) -> list[str]:
        """One line for each entry of `review_notes`."""
        return [f"{note.agent} {note.path}:{note.line}: {note.text}" for note in self.review_notes]

    @property
    def dataset_sha256(self) -> str | None:
        """Checksum of the pair's files in the dataset; None if no file has it."""
        for record in (self.evaluation, self.result):
            if record is not None and record.dataset_sha256:
                return record.dataset_sha256
        return None

    @property
    def network(self) -> str | None:
        """Network that the tests had: `none` or `public`; None if eval.json does not say."""
        return (self.evaluation.network or None) if self.evaluation else None

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """The ids of all agents, in order."""
        if self.setting == "solo":
            return ("solo",)
        # Not the names in result.json: they become names of files.
        slots = [f"agent{number}" for number in range(1, len(self.key.features) + 1)]
        agents = self.result.agents if self.result else {}
        assigned: list[int] = []
        for number, agent_id in enumerate(slots, 1):
            if agent_id not in agents:
                break
            assigned += agents[agent_id].feature_ids
            if sorted(assigned) == sorted(self.key.features):
                return tuple(slots[:number])
        return tuple(slots[: self.agent_count])

    @cached_property
    def agents(self) -> tuple[AgentData, ...]:
        """The agents that result.json describes."""
        results = self.result.agents if self.result else {}
        evaluations = self._verdict.agents if self._verdict else {}
        return tuple(
            _agent_data(agent_id, results[agent_id], evaluations.get(agent_id))
            for agent_id in self.agent_ids
            if agent_id in results
        )

    @property
    def shares_workspace(self) -> bool:
        """Whether all agents worked on one tree, whose patch belongs to all of them."""
        return self.result is not None and self.result.shared is not None

    @property
    def patch_names(self) -> tuple[str, ...]:
        """The names of the patches: the ids of the agents, or `shared`."""
        return (SHARED,) if self.shares_workspace else self.agent_ids

    @property
    def tested_patches(self) -> tuple[str, ...]:
        """The names of everything that is tested, in order; of one patch there is no merge."""
        if len(self.patch_names) == 1:
            return self.patch_names
        return (*self.patch_names, "merged", "lead")

    def workspace(self) -> WorkspaceRecord | None:
        """Return which agent's commands changed which files; None without a shared workspace."""
        return records.read(self.paths.workspace, WorkspaceRecord)

    @property
    def merged(self) -> MergeEvaluation | None:
        """The evaluation of the work of all agents together; None without a verdict."""
        return self._verdict.merged if self._verdict else None

    @property
    def merge_status(self) -> str | None:
        """`clean`, `identical`, `conflict` or `missing_input`; None without a verdict."""
        return (self.merged.merge_status or None) if self.merged else None

    @property
    def conflicting_files(self) -> list[str]:
        """Files in which a plain git merge has conflicts."""
        return self.merged.conflicting_files if self.merged else []

    @property
    def integrated_by_lead(self) -> bool | None:
        """Whether the lead's patch alone has all features; None without a lead or a verdict."""
        team_features = (self.result.team_features or {}) if self.result else {}
        if not team_features.get("roles") or self._verdict is None:
            return None
        return self._verdict.integrated_by_lead

    @property
    def cost(self) -> float | None:
        """US dollars, all agents together; None if it is not known."""
        return self._ended_result.cost if self._ended_result else 0.0

    @property
    def steps(self) -> int | None:
        """Steps of all agents together; None if they are not known."""
        return count_if_known(agent.steps for agent in self.agents)

    @property
    def tokens(self) -> int | None:
        """Tokens of all agents' model calls; None if they are not known."""
        counts: list[int | None] = []
        for agent in self.agents:
            counts += [agent.prompt_tokens, agent.completion_tokens]
        return count_if_known(counts)

    @property
    def messages(self) -> int | None:
        """Number of messages that the agents sent; None if result.json does not say."""
        return self._ended_result.messages if self._ended_result else 0

    @property
    def duration_seconds(self) -> float | None:
        """Time that the agents took; None if it is not known."""
        return self._ended_result.duration_seconds if self._ended_result else 0.0

    @property
    def unpriced_calls(self) -> int | None:
        """Calls to models whose price is not known; None if result.json does not say."""
        return self._ended_result.unpriced_calls if self._ended_result else 0

    @property
    def _ended_result(self) -> PairResult | None:
        """The result, if the agents came to an end."""
        if self.result is None or not self.result.is_completed:
            return None
        return self.result

    @property
    def test_seconds(self) -> float:
        """Time that the evaluation took."""
        return self.evaluation.duration_seconds if self.evaluation else 0.0

    def trajectory(self, agent_id: str) -> list[Step]:
        """Return the steps in trajectory.json, or in the journal of an interrupted run."""
        paths = self.paths.agent(agent_id)
        trajectory = records.read(paths.trajectory, Trajectory)
        return trajectory.steps if trajectory is not None else read_journal(paths)

    def conversation(self) -> Conversation:
        """Return the messages in conversation.json; without one, those that agents received."""
        record = records.read(self.paths.conversation, ConversationRecord)
        if record is not None:
            is_complete = record.unreadable == 0 and not record.imported
            messages = [_message(*numbered) for numbered in enumerate(record.messages, 1)]
        else:
            sent = self.result.messages if self.result else None
            is_complete = self.setting == "solo" or sent == 0
            messages = [] if is_complete else list(self._received_messages())
        messages.sort(key=lambda message: message.sequence)
        return Conversation(tuple(messages), is_complete)

    def _received_messages(self) -> Iterator[SentMessage]:
        """Yield the messages that the agents' trajectories mention."""
        position = 0
        for agent_id in self.agent_ids:
            for step in self.trajectory(agent_id):
                if step.action != "receive_message":
                    continue
                position += 1
                sequence = step.args.get("sequence")
                yield SentMessage(
                    sequence=sequence if isinstance(sequence, int) and sequence else position,
                    sender=str(step.args.get("from", "")),
                    recipient=agent_id,
                    text=str(step.args.get("content", "")),
                    timestamp=step.timestamp,
                )

    def patch(self, name: str) -> bytes | None:
        """Return the patch with a name of `patch_names`; None if there is none."""
        return read_bytes(self.paths.agent(name).patch)

    def test_outputs(self) -> dict[str, str]:
        """Return the output of the tests by name: `agent1-f1`, `merged-f2`, …."""
        folder = self.paths.test_output("agent1", 1).parent
        outputs = {}
        for path in sorted(folder.glob("*.txt")):
            data = read_bytes(path)
            if data is not None:
                outputs[path.stem] = data.decode("utf-8", "replace")
        return outputs


def _evaluation_state(evaluation: Evaluation) -> State:
    if evaluation.status == "no_reference":
        return "no_reference"
    if not evaluation.is_completed:
        return "error"
    if evaluation.overall_success is None:
        return "broken"
    return "passed" if evaluation.overall_success else "failed"


def _agent_data(
    agent_id: str, result: AgentResult, evaluation: AgentEvaluation | None
) -> AgentData:
    return AgentData(
        agent_id=agent_id,
        agent=result.agent or None,
        model=result.model or None,
        status=result.status or None,
        success=evaluation.success if evaluation else None,
        feature_ids=tuple(result.feature_ids),
        steps=result.steps,
        cost=result.cost,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        duration_seconds=result.duration_seconds,
        record=result,
    )


def _message(position: int, message: ConversationMessage) -> SentMessage:
    return SentMessage(
        sequence=message.sequence or position,
        sender=message.sender,
        recipient=message.recipient,
        text=message.text,
        timestamp=message.timestamp or "",
        sender_step=message.sender_step or 0,
        delivered_at=message.delivered_at or None,
        lost=message.lost is True,
    )


def _suspicious_text(suspicion: Suspicion) -> str:
    return f"the tests of feature {suspicion.feature} do not fail where they must"


def _review_note(suspicion: Suspicion) -> ReviewNote:
    return ReviewNote(
        agent=suspicion.agent or "",
        path=suspicion.path or "",
        line=suspicion.line or 0,
        text=suspicion.text or "",
    )
