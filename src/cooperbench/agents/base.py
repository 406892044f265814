"""The base class of agents, their limits, and the two simplest agents.

An agent needs one method, `run(session)`. Returning from it means that the agent submits its work;
every other end is an `AgentFailure`. In both cases the harness takes the work from the sandbox
itself. A `UserError` is for a problem that every pair would have: it stops the whole run.

Agents of other packages may inherit from `Agent`, but need not: a plain class with `run` works too,
and any of the other methods of `Agent` that it has is used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cooperbench.errors import AgentFailure, UserError
from cooperbench.models import REPO_DIR as REPO_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cooperbench.agents.session import AgentSession
    from cooperbench.models import Pair, Setting

RETRY_TIMEOUT_VARIABLE = "COOPERBENCH_MODEL_RETRY_TIMEOUT"
_MAX_REASON_CHARACTERS = 200


class Agent:
    """An agent. There is one object for each agent of a pair, created without arguments."""

    uses_model: ClassVar[bool] = True
    """Whether the agent calls a model, so that the user has to name one."""
    version: ClassVar[str | Callable[[], str | None] | None] = None
    """The version of the framework for the record: a text, or a function that returns it."""

    def run(self, session: AgentSession) -> None:
        """Work on `session.slot.features` until done."""
        raise NotImplementedError("an agent needs a method run(session)")

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        """Raise UserError for a configuration that cannot work, before anything starts."""

    def check_model(
        self, model: str, config_path: Path | None, base_url: str | None = None
    ) -> None:
        """Raise UserError for a model that cannot be called, before anything starts."""

    @classmethod
    def warm_up(cls) -> None:
        """Do slow imports. It is called once per run, in its own thread; its errors are ignored."""

    @classmethod
    def programs(cls) -> Path | None:
        """Return a folder with programs that the agent runs in its sandbox."""
        return None


@dataclass(frozen=True)
class Limits:
    """An agent's limits; None means no limit.

    Reaching one is an outcome of the agent, and the work so far is evaluated.
    """

    steps: int | None = None
    cost: float | None = None
    """US dollars."""
    seconds: float | None = None


class NopAgent(Agent):
    """An agent that does nothing. It must score 0."""

    uses_model = False

    def run(self, session: AgentSession) -> None:
        """Submit an empty patch."""
        session.think("Nothing to do.")


class OracleAgent(Agent):
    """An agent that applies the golden patch.

    Alone it must pass. With a teammate it shows how many features are lost by merging.
    """

    uses_model = False

    def run(self, session: AgentSession) -> None:
        """Apply the golden patch of the agent's features."""
        features = session.slot.features
        has_all = len(features) == len(session.pair.features)
        if len(features) == 1 or not has_all:
            patches = b"".join(feature.patch.read_bytes() for feature in features)
            result = session.apply_patch(patches, features[0].patch.name)
            if result.returncode == 0:
                return
        if len(features) > 1:
            # Golden patches of several features may conflict; the task's combined patch does not.
            combined = session.pair.task.combined_patch
            result = session.apply_patch(combined.read_bytes(), combined.name)
        if result.returncode != 0:
            reason = result.stderr_read().strip()[:_MAX_REASON_CHARACTERS]
            name = "the golden patch" if len(features) == 1 else "combined.patch"
            raise AgentFailure("gave_up", f"{name} does not apply: {reason}")


def retry_timeout_seconds() -> float:
    """Return how long a model's provider may fail until that is an infrastructure error."""
    value = os.environ.get(RETRY_TIMEOUT_VARIABLE, "300")
    try:
        return max(0.0, float(value))
    except ValueError:
        raise UserError(
            f"{RETRY_TIMEOUT_VARIABLE} is {value!r}; it must be a number of seconds"
        ) from None


def read_yaml(path: Path | None) -> Any:
    """Return the parsed content of an agent config; None without a path."""
    import yaml

    if path is None:
        return None
    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as YAML: {reason}") from error
