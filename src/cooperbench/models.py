"""Data types that all packages share: frozen, typed, without I/O. They know paths, not contents."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Literal

Setting = Literal["coop", "solo", "team"]
SETTINGS: tuple[Setting, ...] = ("coop", "solo", "team")
"""`team` is coop with a lead, members and tools to coordinate with."""
Workspace = Literal["separate", "shared"]
WORKSPACES: tuple[Workspace, ...] = ("separate", "shared")
"""`separate`: each agent has its own sandbox, and patches are merged. `shared`: all agents of a
pair work on one tree in one sandbox, which becomes one patch."""
SHARED = "shared"
"""Name of the patch of a shared workspace, where others have the id of an agent."""
EvalNetwork = Literal["auto", "none", "public"]
EVAL_NETWORKS: tuple[EvalNetwork, ...] = ("auto", "none", "public")
"""Network access of test runs. `auto`: none if the golden patch passes without it, else public."""
MAX_AGENTS = 16
"""Maximum number of agents per pair."""
REPO_DIR = "/workspace/repo"
"""Path of the repository in every sandbox."""


Assignment = tuple[tuple[int, ...], ...]
"""The ids of the features of each agent, in the order of the agents."""


class _File:
    """A descriptor for a file in the folder of a feature or a task."""

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
        """The folder of the feature in the dataset."""
        return self.task.path / f"feature{self.feature_id}"

    description = _File("feature.md")
    """The description that agents get."""
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
        """The task as it is shown to people: `pallets_click_task/task2068`."""
        return f"{self.repo}/task{self.task_id}"

    def feature(self, feature_id: int) -> Feature:
        """Return one feature of the task."""
        return Feature(self, feature_id)

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features, in numeric order."""
        return tuple(self.feature(number) for number in self.feature_ids)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every two features, in numeric order."""
        return tuple(Pair(self, feature_ids) for feature_ids in combinations(self.feature_ids, 2))


@dataclass(frozen=True)
class Pair:
    """Features that agents implement together: usually two, in a group up to `MAX_AGENTS`."""

    task: Task
    feature_ids: tuple[int, ...]
    """In numeric order; `agent1` has the first."""
    assignment: Assignment | None = field(default=None, compare=False, kw_only=True)
    """The features of each agent, if one has several (`--agents`, `--split`). None: in solo one
    agent has all features, otherwise each agent has one."""
    workspace: Workspace = field(default="separate", compare=False, kw_only=True)

    @property
    def name(self) -> str:
        """The name in paths: `f1_f2`, `f1_f2_f3`."""
        return "_".join(f"f{number}" for number in self.feature_ids)

    @property
    def label(self) -> str:
        """The pair as it is shown to people: `pallets_click_task/task2068 f1_f2`."""
        return f"{self.task.label} {self.name}"

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, in numeric order."""
        return tuple(self.task.feature(number) for number in self.feature_ids)


@dataclass(frozen=True)
class AgentSlot:
    """The position of one agent in a pair: its id and the features that it has to implement."""

    agent_id: str
    """`agent1`, `agent2`, … or `solo`."""
    features: tuple[Feature, ...]

    @property
    def feature_ids(self) -> tuple[int, ...]:
        """The ids of the features."""
        return tuple(feature.feature_id for feature in self.features)


def agent_slots(pair: Pair, setting: Setting) -> tuple[AgentSlot, ...]:
    """Return the slots of a pair: those of its assignment, or by default one agent per feature.

    A single agent is setting solo, whose slot has a name of its own.
    """
    if setting == "solo":
        return (AgentSlot("solo", pair.features),)
    assignment = pair.assignment or tuple((number,) for number in pair.feature_ids)
    slots = []
    for number, feature_ids in enumerate(assignment, 1):
        features = tuple(pair.task.feature(feature_id) for feature_id in feature_ids)
        slots.append(AgentSlot(f"agent{number}", features))
    return tuple(slots)


def patch_slots(pair: Pair, setting: Setting) -> tuple[AgentSlot, ...]:
    """Return the patches of a pair, each with the features that it must implement.

    They have the ids of the agents; the one patch of a shared workspace has the id `shared`.
    """
    if pair.workspace == "shared" and setting != "solo":
        return (AgentSlot(SHARED, pair.features),)
    return agent_slots(pair, setting)


@dataclass(frozen=True)
class Message:
    """A message between agents, with the sender and time that the harness recorded."""

    sequence: int
    """Number of the message within the pair, from 1."""
    sender: str
    recipient: str
    text: str
    timestamp: str
    """Time at which the harness received it: UTC, ISO 8601."""
    sender_step: int = 0
    """Number of steps that the sender had taken."""
    lost: bool = field(default=False, kw_only=True)
    """Whether the channel lost it (`--loss`): its recipient never gets it."""

    @property
    def shown(self) -> str:
        """The message as the recipient's model sees it."""
        return f"Message from {self.sender}:\n\n{self.text}"


@dataclass(frozen=True)
class Usage:
    """Tokens, time and cost of model calls."""

    cost: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the provider had cached."""
    calls: int = 0
    model_seconds: float = 0.0
    unpriced_calls: int = 0
    """Calls to models without a known price; `cost` does not include them."""

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            cost=self.cost + other.cost,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            calls=self.calls + other.calls,
            model_seconds=self.model_seconds + other.model_seconds,
            unpriced_calls=self.unpriced_calls + other.unpriced_calls,
        )


MergeStatus = Literal["clean", "conflict", "identical", "missing_input"]


@dataclass(frozen=True)
class MergeResult:
    """The merge of all agents' patches."""

    status: MergeStatus
    """Outcome of the plain three-way merge, which alone decides merge success."""
    strategy: Literal["plain", "union", "none"]
    """How `patch` was made: `plain`, `union` after a conflict, or `none` without a result."""
    patch: bytes
    """Difference between the base commit and the merge; empty without a result."""
    conflicting_files: tuple[str, ...] = ()
    detail: str = ""
    """One line for people if something went wrong."""
    tree: str = ""
    """Git id of the merged tree; empty without a result."""


@dataclass(frozen=True)
class Image:
    """The images of a task, as a backend names them."""

    ref: str
    """The task's image as it was published or built, for `create_sandbox`."""
    agent_ref: str | None = None
    """The image without upstream history, for agents; None: each sandbox is stripped."""
    digest: str = ""
    """Digest of the content, which is recorded with results."""
    evaluation_ref: str | None = None
    """The image without commits later than HEAD, for test runs; None: each sandbox is stripped."""
    takes_snapshots: bool = True
    """Whether a backend with the capability `snapshots` can keep changes on top of it."""
