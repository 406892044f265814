"""What an agent is, to CooperBench, and the two simplest ones.

An adapter is a class with one method, `run(session)`. The loop is the adapter's; the session gives it everything
else: the sandbox, the colleagues, the limits, the record. Returning means that the agent submits; every other end is
an `AgentFailure`. Whatever happens, the harness takes the work from the sandbox itself. A `UserError` from `run` is
for what no pair would do better with (a key that is refused, a model that is not there): it stops the whole run.

Besides `run` an adapter's class may have: `uses_model = False` (it asks none), `version` (a text, for the record), and
`warm_up()`, a class method that is called once a run in a thread of its own, while sandboxes are being made, for slow
imports; what it raises is ignored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cooperbench.errors import AgentFailure, UserError
from cooperbench.models import REPO_DIR as REPO_DIR

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.agents.session import Session
    from cooperbench.models import Pair, Setting

PATIENCE_VARIABLE = "COOPERBENCH_MODEL_PATIENCE"
DEFAULT_PATIENCE_SECONDS = 300.0


class Agent(Protocol):
    """An adapter. One object per agent and pair; made without arguments."""

    def run(self, session: Session) -> None:
        """Work on `session.seat.features` until done."""
        ...


@runtime_checkable
class CheckedAgent(Agent, Protocol):
    """An adapter that looks at its configuration before anything is started, if it has this method."""

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        """Raise UserError for a configuration that cannot work."""
        ...


@runtime_checkable
class ModelCheckedAgent(Agent, Protocol):
    """An adapter that knows beforehand whether a model can be asked, if it has this method."""

    def check_model(self, model: str, config_path: Path | None) -> None:
        """Raise UserError for a model that is unknown or that there is no key for."""
        ...


@dataclass(frozen=True)
class Limits:
    """What an agent may use; None is no limit. Hitting one is an outcome, and the work so far is handed in."""

    steps: int | None = None
    cost: float | None = None
    """US dollars."""
    seconds: float | None = None


class NopAgent:
    """Does nothing: it must score 0."""

    uses_model = False

    def run(self, session: Session) -> None:
        session.think("Nothing to do.")


class OracleAgent:
    """Applies the golden patch: alone it must pass, together it shows what merging costs."""

    uses_model = False

    def run(self, session: Session) -> None:
        features = session.seat.features
        # Golden patches of several features may conflict; the task's combined patch does not.
        source = features[0].patch if len(features) == 1 else session.pair.task.combined_patch
        result = session.apply_patch(source.read_bytes(), source.name)
        if result.returncode != 0:
            reason = result.stderr_read().strip()[:200]
            raise AgentFailure("gave_up", f"{source.name} does not apply: {reason}")


def patience_seconds() -> float:
    """For how long a model's provider may fail before that is an infrastructure error."""
    value = os.environ.get(PATIENCE_VARIABLE)
    try:
        return DEFAULT_PATIENCE_SECONDS if value is None else max(0.0, float(value))
    except ValueError:
        raise UserError(f"{PATIENCE_VARIABLE} is {value!r}; it is a number of seconds") from None


def read_yaml(path: Path) -> Any:
    """An agent config, parsed."""
    import yaml

    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} is no readable YAML: {' '.join(str(error).split())}") from error
