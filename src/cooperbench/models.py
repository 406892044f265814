"""Data types that all packages share. Frozen, typed, without I/O: they know where files are, not what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

Setting = Literal["coop", "solo", "team"]
SETTINGS: tuple[Setting, ...] = ("coop", "solo", "team")
"""`team` is coop with a lead, members and tools to coordinate with."""
EvalNetwork = Literal["auto", "none", "public"]
EVAL_NETWORKS: tuple[EvalNetwork, ...] = ("auto", "none", "public")
"""What test runs may reach. `auto`: nothing where the golden patch passes so, else everything."""
MAX_AGENTS = 16
"""That a pair may have."""
REPO_DIR = "/workspace/repo"
"""Where the repository is, in every sandbox of every task."""


class _File:
    """A file of a feature or a task: it has this name in the dataset."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Feature | Task, _: object = None) -> Path:
        return owner.path / self._name


@dataclass(frozen=True)
class Feature:
    """One feature that could be added to a task's repository."""

    task: Task
    feature_id: int

    @property
    def path(self) -> Path:
        return self.task.path / f"feature{self.feature_id}"

    description = _File("feature.md")
    """What an agent is told."""
    patch = _File("feature.patch")
    """The golden patch, hidden from agents."""
    tests = _File("tests.patch")
    """The test patch, hidden from agents."""


@dataclass(frozen=True)
class Task:
    """A repository at a base commit, and the features that could be added to it."""

    repo: str
    """The dataset's folder, e.g. `pallets_click_task`."""
    task_id: int
    path: Path
    feature_ids: tuple[int, ...]
    """In numeric order."""

    dockerfile = _File("Dockerfile")
    setup_script = _File("setup.sh")
    runner_script = _File("runner.sh")
    run_tests_script = _File("run_tests.sh")
    combined_patch = _File("combined.patch")
    """All features together."""

    @property
    def label(self) -> str:
        return f"{self.repo}/task{self.task_id}"

    def feature(self, feature_id: int) -> Feature:
        return Feature(self, feature_id)

    @property
    def features(self) -> tuple[Feature, ...]:
        return tuple(self.feature(number) for number in self.feature_ids)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every two features, in numeric order."""
        return tuple(Pair(self, both) for both in combinations(self.feature_ids, 2))


@dataclass(frozen=True)
class Pair:
    """The features that are worked on together: two as a rule, up to `MAX_AGENTS` if asked for (a group)."""

    task: Task
    feature_ids: tuple[int, ...]
    """In numeric order; `agent1` has the first."""

    @property
    def name(self) -> str:
        """As in paths: `f1_f2`, `f1_f2_f3`."""
        return "_".join(f"f{number}" for number in self.feature_ids)

    @property
    def label(self) -> str:
        return f"{self.task.label} {self.name}"

    @property
    def features(self) -> tuple[Feature, ...]:
        return tuple(self.task.feature(number) for number in self.feature_ids)


@dataclass(frozen=True)
class AgentSlot:
    """One agent's place in a pair: who it is and what it is to build."""

    agent_id: str
    """`agent1`, `agent2`, … or `solo`."""
    features: tuple[Feature, ...]

    @property
    def feature_ids(self) -> tuple[int, ...]:
        return tuple(feature.feature_id for feature in self.features)


def agent_slots(pair: Pair, setting: Setting) -> tuple[AgentSlot, ...]:
    """Who works on a pair: one agent per feature, or one for all of them."""
    if setting == "solo":
        return (AgentSlot("solo", pair.features),)
    return tuple(
        AgentSlot(f"agent{place}", (feature,)) for place, feature in enumerate(pair.features, 1)
    )


@dataclass(frozen=True)
class Message:
    """What one agent told another, stamped by the harness."""

    sequence: int
    """1, 2, 3 … over the whole pair."""
    sender: str
    recipient: str
    text: str
    timestamp: str
    """UTC, ISO 8601, when the harness took it."""
    sender_step: int = 0
    """How many steps the sender had taken."""

    @property
    def shown(self) -> str:
        """As the recipient's model sees it."""
        return f"Message from {self.sender}:\n\n{self.text}"


@dataclass(frozen=True)
class Usage:
    """What a model was asked for and what that cost."""

    cost: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those that the provider had kept from an earlier call."""
    calls: int = 0
    model_seconds: float = 0.0
    unpriced_calls: int = 0
    """Calls of a model whose price nobody knows: `cost` is without them."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def to_record(self) -> dict[str, float | int]:
        """As it stands in result.json and summary.json."""
        return {
            "cost": self.cost,
            "model_calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "model_seconds": round(self.model_seconds, 3),
            "unpriced_calls": self.unpriced_calls,
        }

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(sum, zip(astuple(self), astuple(other), strict=True)))


USAGE_KEYS = (*Usage().to_record(), "sandbox_seconds")
"""What is summed over the agents of a pair, and over the pairs of an experiment."""


def sum_usage(records: Iterable[Mapping[str, Any]]) -> dict[str, float | int]:
    """Of agents or of pairs; what an older version did not record counts as nothing."""
    every = list(records)
    sums = {name: sum(record.get(name) or 0 for record in every) for name in USAGE_KEYS}
    return {
        name: round(value, 3) if name.endswith("_seconds") else value
        for name, value in sums.items()
    }


MergeStatus = Literal["clean", "conflict", "identical", "missing_input"]


@dataclass(frozen=True)
class MergeResult:
    """All agents' patches as one."""

    status: MergeStatus
    """Of the plain three-way merge; this alone decides merge success."""
    strategy: Literal["plain", "union", "none"]
    """How `patch` came to be: plain, union after a conflict, or none where there is no result."""
    patch: bytes
    """From the base commit to the merge; empty where there is no result."""
    conflicting_files: tuple[str, ...] = ()
    detail: str = ""
    """One line for people where something went wrong."""
    tree: str = ""
    """What identifies the merge; empty where there is no result."""


@dataclass(frozen=True)
class Image:
    """Where a task's code runs, as its backend knows it."""

    ref: str
    """The task's image as it was published or built, for `create_sandbox`."""
    agent_ref: str | None = None
    """The same without upstream history, for agents; None: the harness removes it in each sandbox."""
    digest: str = ""
    """What identifies the content, recorded with results."""
    evaluation_ref: str | None = None
    """The same without commits later than HEAD, for test runs; None: the harness removes them in each sandbox."""
