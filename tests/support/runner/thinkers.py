"""Agents as adapters of frameworks are: they account for model calls, record what a model said, and act. Nobody is asked.

They are named to `run` by their dotted path, as anybody's own agent is.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.models import Usage
from tests.support.tiny import PLACES

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.agents.session import AgentSession

THINKER = "tests.support.runner.thinkers:Thinker"
REFUSED = "tests.support.runner.thinkers:Refused"
COST = 0.25
TOKENS = {"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 40}
SECRET = "sk-live-0123456789abcdef"


def ask(session: AgentSession, answer: str, **more: object) -> None:
    """One model call, as far as the session is concerned. The price of the model `free-for-all` is not known."""
    session.check_limits()
    unpriced = session.model == "free-for-all"
    cost = 0.0 if unpriced else COST
    session.reply(
        answer,
        Usage(cost, **TOKENS, calls=1, model_seconds=0.5, unpriced_calls=int(unpriced)),
        **more,
    )


class Thinker:
    """Adds its feature by a command, after one model call; tells its teammates by the command that agents have."""

    version = "1.2.3"
    warmed = threading.Event()

    @classmethod
    def warm_up(cls) -> None:
        cls.warmed.set()

    def check_model(self, model: str, config_path: Path | None) -> None:
        if model == "nobody":
            raise UserError("model 'nobody' is unknown")

    def run(self, session: AgentSession) -> None:
        session.tell("You are a programmer.", "system")
        session.tell(session.prompt, "task")
        for feature_id in session.slot.feature_ids:
            line = PLACES[feature_id] + 1
            ask(
                session,
                f"I add feature {feature_id}.\nIt goes into line {line}.",
                reasoning="It is short.",
            )
            session.execute(
                f"sed -i '{line}s/$/\\nfeature {feature_id}/' app.txt\necho done; printf '\\377'"
            )
        if session.teammates:
            ask(session, "I tell the others.")
            session.execute(f"send_message --all 'feature {session.slot.feature_ids[0]} is in'")
            while not session.wait_for_message(60):
                session.check_limits()
            for message in session.incoming():
                session.tell(message.text, "message")


class Refused:
    """Works on features 1 and 2. Feature 3's key is refused, while its teammate is in a command that does not end."""

    def run(self, session: AgentSession) -> None:
        if 3 in session.slot.feature_ids:
            ask(session, "I try.")
            # As the gateway does it for every agent that asks a model.
            raise session.remember(UserError(f"the key {SECRET} is refused"))
        ask(session, "I wait.")
        if 3 in session.pair.feature_ids:
            session.execute("sleep 3600", timeout_seconds=3600)
