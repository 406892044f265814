"""One pair as it lies on disk, for every report: its state and verdicts at hand, large files read when asked for.

Tolerant by design: what is missing, half written or of an older schema becomes a line in `problems` and a state of its
own. Nothing in here raises for what is in a file, and nothing that could not be read is taken for a failure of agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeGuard

from cooperbench.agents.recorder import read_journal
from cooperbench.models import Message, Setting
from cooperbench.report.fields import flag, listed, mapping, number, text_or_none
from cooperbench.storage import PairPaths, read_bytes, read_json

State = Literal["passed", "failed", "error", "no_reference", "unevaluated", "missing", "broken"]
Loss = Literal["passed", "capability", "conflict", "integration"]


class Meaning(NamedTuple):
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
        "≠", "failed together", "the patches merge, but the merged code fails its tests"
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
    "overall": "both: alone and merged",
    "strict": "overall, and without a textual conflict",
}

_SOLO_MEANINGS = {
    "individual": "the agent's patch passes the tests of all its features",
    "overall": "the same as individual: a single patch is not merged",
}


def verdict_meaning(verdict: str, setting: Setting) -> str:
    """Return what a verdict means in a setting."""
    if setting == "solo":
        return _SOLO_MEANINGS.get(verdict, VERDICTS[verdict])
    return VERDICTS[verdict]


def applicable_verdicts(setting: Setting) -> tuple[str, ...]:
    """One agent's patch merges with nothing."""
    return tuple(VERDICTS) if setting != "solo" else ("individual", "overall")


def is_completed(record: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    """Older records have no status."""
    return record is not None and record.get("status", "completed") == "completed"


@dataclass(frozen=True, order=True)
class PairKey:
    """A pair by its place under logs/, in the order of reports."""

    repo: str
    task_id: int
    features: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"{self.repo}/task{self.task_id} {self.group}"

    @property
    def group(self) -> str:
        return "_".join(f"f{number}" for number in self.features)


@dataclass(frozen=True)
class AgentData:
    """One agent's part of result.json and eval.json; None where they do not tell."""

    agent_id: str
    agent: str | None
    model: str | None
    status: str | None
    """How it ended: `submitted`, `step_limit`, …"""
    success: bool | None
    """Its patch passes its own feature's tests alone."""
    feature_ids: tuple[int, ...]
    steps: int
    cost: float
    prompt_tokens: int
    completion_tokens: int
    duration_seconds: float
    record: Mapping[str, Any]

    @property
    def configuration(self) -> str:
        return " · ".join(part for part in (self.model, self.agent) if part) or "unknown"


@dataclass(frozen=True)
class SentMessage(Message):
    """One line of conversation.json."""

    delivered_at: str | None = None


class Conversation(NamedTuple):
    """What the agents of a pair told each other, in order."""

    messages: tuple[SentMessage, ...] = ()
    complete: bool = True
    """False: there is no usable conversation.json, or it has messages that cannot be read. These are then those that
    the agents' records mention, or those that can be read."""


@dataclass(frozen=True)
class PairData:
    """One pair in one setting of one run."""

    key: PairKey
    setting: Setting
    paths: PairPaths
    result: Mapping[str, Any] | None
    evaluation: Mapping[str, Any] | None
    problems: tuple[str, ...] = ()
    unreadable: bool = False
    """result.json or eval.json is there and is no JSON object."""

    @property
    def label(self) -> str:
        return self.key.label

    @cached_property
    def state(self) -> State:
        if self.unreadable:
            return "broken"
        if self.result is None:
            return "missing"
        if not is_completed(self.result):
            return "error"
        if self.evaluation is None:
            return "unevaluated"
        if not is_completed(self.evaluation):
            return "no_reference" if self.evaluation.get("status") == "no_reference" else "error"
        overall = flag(self.evaluation, "overall_success")
        return "broken" if overall is None else "passed" if overall else "failed"

    @cached_property
    def verdicts(self) -> dict[str, bool | None]:
        """By the names in `VERDICTS`; None where one does not apply or an older record does not tell. Empty where the
        state is neither passed nor failed."""
        if self.state not in EVALUATED:
            return {}
        found = {
            "individual": flag(self.evaluation, "individual_success"),
            "merge": flag(self.evaluation, "merge_success"),
            "merged": flag(self.merged, "success"),
            "overall": self.state == "passed",
            "strict": flag(self.evaluation, "overall_success_strict"),
        }
        return {
            name: found[name] if name in applicable_verdicts(self.setting) else None
            for name in VERDICTS
        }

    @property
    def loss(self) -> Loss | None:
        """The first thing that went wrong: a patch fails alone, else git cannot merge, else they fail together."""
        if self.state != "failed":
            return "passed" if self.state == "passed" else None
        alone = [self.verdicts["individual"], *(agent.success for agent in self.agents)]
        if False in alone or self.setting == "solo":
            return "capability"
        return "conflict" if self.verdicts["merge"] is False else "integration"

    @property
    def error(self) -> str | None:
        """Why there is no verdict, where that was not the agents' doing."""
        for record in (self.result, self.evaluation):
            if record is not None and not is_completed(record):
                return str(record.get("error"))
        return self.problems[0] if self.state == "broken" and self.problems else None

    @property
    def _judged(self) -> Mapping[str, Any] | None:
        """eval.json where there is a verdict."""
        return self.evaluation if self.state in EVALUATED else None

    @property
    def unsound(self) -> tuple[int, ...]:
        """Features whose tests pass without the feature: the verdict tells little."""
        return tuple(listed(self._judged, "unsound", int))

    @property
    def unsound_text(self) -> str:
        features, s = ", ".join(map(str, self.unsound)), "s" if len(self.unsound) > 1 else ""
        return f"the tests of feature{s} {features} pass without the feature{s}" if features else ""

    @property
    def suspicious(self) -> list[dict[str, Any]]:
        """Evidence that the tests may not have decided, as eval.json has it."""
        return listed(self._judged, "suspicious", dict)

    @property
    def suspicious_texts(self) -> list[str]:
        return [_suspicious_text(one) for one in self.suspicious]

    @property
    def network(self) -> str | None:
        """What the tests had, `none` or `public`; None where eval.json does not tell."""
        return text_or_none(self.evaluation, "network")

    @property
    def agent_ids(self) -> tuple[str, ...]:
        if self.setting == "solo":
            return ("solo",)
        return tuple(f"agent{place}" for place in range(1, len(self.key.features) + 1))

    @cached_property
    def agents(self) -> tuple[AgentData, ...]:
        """Those of whom result.json tells."""
        records = mapping(self.result, "agents")
        return tuple(
            _agent(agent_id, mapping(records, agent_id), mapping(self._judged, agent_id))
            for agent_id in self.agent_ids
            if agent_id in records
        )

    @property
    def merged(self) -> Mapping[str, Any]:
        """What eval.json says of the merge; empty without a verdict."""
        return mapping(self._judged, "merged")

    @property
    def merge_status(self) -> str | None:
        """`clean`, `identical`, `conflict`, `missing_input`; None without a verdict."""
        return text_or_none(self.merged, "merge_status")

    @property
    def conflicting_files(self) -> list[str]:
        return listed(self.merged, "conflicting_files", str)

    @property
    def integrated_by_lead(self) -> bool | None:
        """The lead's patch alone has all features; None where there is no lead or no verdict."""
        has_lead = flag(mapping(self.result, "team_features"), "roles")
        return flag(self._judged, "integrated_by_lead") if has_lead else None

    @property
    def cost(self) -> float:
        return number(self.result, "cost")

    @property
    def steps(self) -> int:
        return sum(agent.steps for agent in self.agents)

    @property
    def messages(self) -> int:
        return int(number(self.result, "messages"))

    @property
    def duration_seconds(self) -> float:
        return number(self.result, "duration_seconds")

    def trajectory(self, agent_id: str) -> list[dict[str, Any]]:
        """Its entries in trajectory.json, or in the journal of a run that has not come to its end."""
        files = self.paths.agent(agent_id)
        content = read_json(files.trajectory)
        return listed(content, "steps", dict) if content is not None else read_journal(files)

    def conversation(self) -> Conversation:
        content = read_json(self.paths.conversation)
        lines = listed(content, "messages", dict)
        nothing_sent = self.setting == "solo" or (self.result or {}).get("messages") == 0
        complete = nothing_sent if content is None else content.get("messages") == lines
        if content is None and not complete:
            lines = list(self._received())
        messages = [_message(place, line) for place, line in enumerate(lines, 1)]
        return Conversation(tuple(sorted(messages, key=lambda message: message.sequence)), complete)

    def _received(self) -> Iterator[dict[str, Any]]:
        for agent_id in self.agent_ids:
            for entry in self.trajectory(agent_id):
                if entry.get("action") == "receive_message":
                    args = mapping(entry, "args")
                    line = {"to": agent_id, "message": args.get("content", "")}
                    yield {**args, **line, "timestamp": entry.get("timestamp", "")}

    def patch(self, agent_id: str) -> bytes | None:
        return read_bytes(self.paths.agent(agent_id).patch)

    def test_outputs(self) -> dict[str, str]:
        """What tests printed, by `agent1-f1`, `merged-f2`, …"""
        folder = self.paths.test_output("x", 0).parent
        found = {file.stem: read_bytes(file) for file in sorted(folder.glob("*.txt"))}
        return {
            name: data.decode("utf-8", "replace")
            for name, data in found.items()
            if data is not None
        }


def _agent(agent_id: str, record: Mapping[str, Any], verdict: Mapping[str, Any]) -> AgentData:
    return AgentData(
        agent_id=agent_id,
        agent=text_or_none(record, "agent"),
        model=text_or_none(record, "model"),
        status=text_or_none(record, "status"),
        success=flag(verdict, "success"),
        feature_ids=tuple(listed(record, "feature_ids", int)),
        steps=int(number(record, "steps")),
        cost=number(record, "cost"),
        prompt_tokens=int(number(record, "prompt_tokens")),
        completion_tokens=int(number(record, "completion_tokens")),
        duration_seconds=number(record, "duration_seconds"),
        record=record,
    )


def _message(place: int, line: Mapping[str, Any]) -> SentMessage:
    return SentMessage(
        sequence=int(number(line, "sequence")) or place,
        sender=str(line.get("from", "")),
        recipient=str(line.get("to", "")),
        text=str(line.get("message", "")),
        timestamp=str(line.get("timestamp", "")),
        sender_step=int(number(line, "sender_step")),
        delivered_at=text_or_none(line, "delivered_at"),
    )


def _suspicious_text(record: Mapping[str, Any]) -> str:
    """One entry of `suspicious` in eval.json."""
    if record.get("reason") == "canary":
        return f"the tests of feature {record.get('feature')} do not fail where they must"
    place = f"{record.get('path')}:{record.get('line')}"
    return f"{record.get('agent')} reaches for the test process at {place}: {record.get('text')}"
