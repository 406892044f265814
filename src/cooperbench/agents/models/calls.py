"""One model call that can be waited for: tried again while that makes sense, given up when the agent has to end.

LiteLLM and the frameworks above it retry too, each in its own way, deaf to Ctrl-C and to time limits; they are told
not to. A call that is in flight when the agent has to end is left behind in its thread (a daemon: it holds up
nothing) instead of being waited for.
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cooperbench.agents.models.faults import detail, final_error, retry_after_seconds
from cooperbench.errors import InfraError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_VARIABLE = "COOPERBENCH_MODEL_PATIENCE"
DEFAULT_PATIENCE_SECONDS = 300.0
DEFAULT_CALL_SECONDS = 600.0
"""How long one attempt may take."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
_LOOK_UP_SECONDS = 0.2
"""How often a waiting agent looks whether it has to end."""
NO_OTHER_RETRIES = {"num_retries": 0, "max_retries": 0}


def patience_seconds() -> float:
    """For how long a failing call is tried again, from its first failure on."""
    value = os.environ.get(PATIENCE_VARIABLE)
    try:
        return DEFAULT_PATIENCE_SECONDS if value is None else max(0.0, float(value))
    except ValueError:
        raise UserError(f"{PATIENCE_VARIABLE} is {value!r}; it is a number of seconds") from None


@dataclass
class Caller:
    """Asks one model on behalf of one agent."""

    model: str
    litellm: Any
    check: Callable[[], None]
    """Raises when the agent has to end; called often."""
    note: Callable[[str], None]
    """Takes what people should find in the log."""
    patience: float = field(default_factory=patience_seconds)
    answered: int = 0
    again: Callable[[], None] = lambda: None
    """Called before another attempt at the same call."""

    def ask(self, call: Callable[[], Any]) -> Any:
        """`call()`, until it answers. What it raises in the end is one of ours: see `faults`, or an InfraError."""
        first_failure: float | None = None
        attempt = 0
        while True:
            self.check()
            attempt += 1
            try:
                answer = self._abandonable(call)
            except Exception as error:
                # What ends the agent may look like a failure of the call.
                self.check()
                final = final_error(error, self.model, self.litellm, first_call=self.answered == 0)
                if final is not None:
                    raise final from error
                now = time.monotonic()
                first_failure = first_failure or now
                pause = _pause_seconds(attempt, retry_after_seconds(error))
                if now + pause > first_failure + self.patience:
                    raise InfraError(
                        f"model {self.model!r} did not answer in {attempt} attempts: {detail(error)}"
                    ) from error
                self.note(f"model call failed, again in {pause:.1f} s: {detail(error)}")
                self._wait(pause)
                self.again()
            else:
                self.answered += 1
                return answer

    def _abandonable(self, call: Callable[[], Any]) -> Any:
        outcome = _Outcome()
        threading.Thread(target=outcome.take, args=(call,), name="model-call", daemon=True).start()
        while not outcome.done.wait(_LOOK_UP_SECONDS):
            self.check()
        if outcome.error is not None:
            raise outcome.error
        return outcome.answer

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(_LOOK_UP_SECONDS, left))


class _Outcome:
    """Of a call in another thread."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.answer: Any = None
        self.error: Exception | None = None

    def take(self, call: Callable[[], Any]) -> None:
        try:
            self.answer = call()
        except Exception as error:
            self.error = error
        finally:
            self.done.set()


def _pause_seconds(attempt: int, asked_for: float | None) -> float:
    """What the provider asked for and a little more, so that not all agents come back at once; else growing."""
    if asked_for is not None:
        return asked_for * random.uniform(1.0, 1.1)  # noqa: S311  # jitter, not a secret
    usual = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1))
    return usual * random.uniform(0.5, 1.5)  # noqa: S311  # jitter, not a secret
