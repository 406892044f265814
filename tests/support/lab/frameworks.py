"""Pairs of real frameworks to fork: agent2 builds its feature only if it hears from agent1 in time."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from tests.support.agents.frameworks import TONGUES, Tongue

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.modelserver import ModelServer, Request
    from tests.support.modelserver.replies import Reply


class Pair:
    """The scripts of two frameworks. What agent2 does after its first step depends on a message."""

    def __init__(self, server: ModelServer, first: str, second: str) -> None:
        self.live = 0
        self.is_recorded = False
        self._sent = threading.Event()
        server.script("You are agent1", self._script(first, self._send))
        server.script("You are agent2", self._script(second, self._decide))

    def _script(self, name: str, act: Any) -> Callable[[Request], Reply]:
        tongue = TONGUES[name]

        def reply(request: Request) -> Reply:
            if self.is_recorded:
                self.live += 1
            if not request.body.get("tools"):
                return tongue.last_words[0]
            steps = sum(
                message.get("role") in ("assistant", "model") for message in request.messages
            )
            action = act(tongue, request, steps)
            ending = [*tongue.last_words, tongue.last_words[-1]]
            return action or ending[min(steps - 2, len(ending) - 1)]

        return reply

    def _send(self, tongue: Tongue, request: Request, steps: int) -> Reply | None:
        if steps == 0:
            return tongue.tell("agent2", "the word is amber")
        self._sent.set()
        return tongue.run(building(1)) if steps == 1 else None

    def _decide(self, tongue: Tongue, request: Request, steps: int) -> Reply | None:
        if steps == 0:
            if not self.is_recorded:
                assert self._sent.wait(60)
            return tongue.run("pwd; ls; date")
        if steps > 1:
            return None
        has_heard = "the word is amber" in json.dumps(request.messages)
        return tongue.run(building(2) if has_heard else "echo nobody told me")


def building(feature: int) -> str:
    line = feature * 10 - 4
    return f"sed -i 's/^line {line}$/&\\nfeature {feature}/' app.txt"
