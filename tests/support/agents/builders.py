"""Two command-line agents at a model that knows what they have to do: they look around, talk and build."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from tests.support.agents.frameworks import TONGUES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.modelserver import Request
    from tests.support.modelserver.replies import Reply

_WAIT_SECONDS = 60
_AROUND = "env | cut -d= -f1; cat /proc/net/dev; ls /cooperbench/programs; git status --short; echo have''looked"


def told_by(number: int) -> str:
    return f"I am at line {number * 10 - 4}"


def builders(*names: str) -> Callable[[Request], Reply]:
    """The model of both: who asks is said in the prompt, which is not the first message of every program."""
    written = {1: threading.Event(), 2: threading.Event()}

    def reply(request: Request) -> Reply:
        said = json.dumps(request.messages)
        number = 1 if "You are agent1" in said else 2
        tongue = TONGUES[names[number - 1]]
        if not (request.body.get("tools") or "functionDeclarations" in json.dumps(request.body)):
            return tongue.last_words[0]  # a title for the conversation
        line = number * 10 - 4
        answers = [
            tongue.run(_AROUND),
            tongue.run(f"sed -i 's/^line {line}$/&\\nfeature {number}/' app.txt; echo have''built"),
            tongue.tell(f"agent{3 - number}", told_by(number)),
            # Not before the teammate has written, so that its message is there with the next call.
            tongue.run("sleep 0.3"),
            *tongue.last_words,
        ]
        done = sum(
            word in said for word in ("havelooked", "havebuilt", told_by(number), "sleep 0.3")
        )
        if done >= 3:
            written[number].set()
            written[3 - number].wait(_WAIT_SECONDS)
        return answers[min(done, len(answers) - 1)]

    return reply
