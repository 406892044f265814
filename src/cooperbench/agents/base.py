"""The protocol of agents, and the two simplest ones.

An adapter is a class with one method, `run(session)`. Returning means that the agent submits; every other end is an
`AgentFailure`. Whatever happens, the harness takes the work from the sandbox itself. A `UserError` is for a
problem that every pair would have: it stops the whole run. Besides `run` the class may have:
- `check(config_path, pairs, setting)`: raises UserError for a configuration that cannot work, before anything starts;
- `check_model(model, config_path)`: the same for a model; it takes `base_url` too, if `--base-url` is to work;
- `uses_model = False`: it asks none; `version`: a text, for the record;
- `warm_up()`: a class method for slow imports, called once a run in a thread of its own; what it raises is ignored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cooperbench.errors import AgentFailure, UserError
from cooperbench.models import REPO_DIR as REPO_DIR

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.agents.session import AgentSession

RETRY_TIMEOUT_VARIABLE = "COOPERBENCH_MODEL_RETRY_TIMEOUT"


class Agent(Protocol):
    """An adapter. One object per agent and pair; made without arguments."""

    def run(self, session: AgentSession) -> None:
        """Work on `session.slot.features` until done."""
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

    def run(self, session: AgentSession) -> None:
        session.think("Nothing to do.")


class OracleAgent:
    """Applies the golden patch: alone it must pass, together it shows what merging costs."""

    uses_model = False

    def run(self, session: AgentSession) -> None:
        features = session.slot.features
        # Golden patches of several features may conflict; the task's combined patch does not.
        source = features[0].patch if len(features) == 1 else session.pair.task.combined_patch
        result = session.apply_patch(source.read_bytes(), source.name)
        if result.returncode != 0:
            reason = result.stderr_read().strip()[:200]
            raise AgentFailure("gave_up", f"{source.name} does not apply: {reason}")


def retry_timeout_seconds() -> float:
    """For how long a model's provider may fail before that is an infrastructure error."""
    value = os.environ.get(RETRY_TIMEOUT_VARIABLE, "300")
    try:
        return max(0.0, float(value))
    except ValueError:
        raise UserError(
            f"{RETRY_TIMEOUT_VARIABLE} is {value!r}; it must be a number of seconds"
        ) from None


def read_yaml(path: Path | None) -> Any:
    """An agent config, parsed; None where there is none."""
    import yaml

    try:
        return path and yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} is no readable YAML: {' '.join(str(error).split())}") from error
