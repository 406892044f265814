"""A request as it came in, in terms that do not depend on the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    api_key: str
    body: Mapping[str, Any]
    """As it was sent."""
    messages: tuple[Mapping[str, Any], ...]
    """System prompt included, first."""
    number: int = 0
    """Which request of its conversation this is: 1, 2, 3 …"""
    marker: str | None = None
    """Of the script that answers it."""

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def opening(self) -> str:
        """What was said before the model's first words. Codex tells about its surroundings before its task."""
        return "\n".join(
            text_of(message)
            for message in takewhile(
                lambda one: one.get("role") in ("system", "developer", "user"), self.messages
            )
        )

    @property
    def beginning(self) -> str:
        """Up to the first user message: the same in all requests of a conversation."""
        count = next(
            (place for place, one in enumerate(self.messages, 1) if one.get("role") == "user"), None
        )
        return "\n".join(map(text_of, self.messages[:count]))

    @property
    def last(self) -> str:
        """The text of the last message."""
        return text_of(self.messages[-1]) if self.messages else ""

    def texts(self, role: str) -> list[str]:
        """What was said in a role, e.g. `user`, in order."""
        return [text_of(message) for message in self.messages if message.get("role") == role]


def text_of(message: Mapping[str, Any]) -> str:
    """The words of a message, whether its content is a text or a list of blocks."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    texts = []
    for block in content or []:
        inner = block.get("text") if "text" in block else block.get("content")
        texts.append(
            inner if isinstance(inner, str) else text_of({"content": inner}) if inner else ""
        )
    return "\n".join(filter(None, texts))
