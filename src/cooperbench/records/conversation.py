"""conversation.json: the messages that the agents of one pair sent to each other."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from cooperbench.records.files import JsonObject, Record


class ConversationMessage(msgspec.Struct, kw_only=True, frozen=True, rename={
    "sender": "from", "recipient": "to", "text": "message",
}):  # fmt: skip
    """One message, as the harness accepted and delivered it."""

    sequence: int
    """1, 2, 3, … in the order in which the harness accepted them."""
    sender: str
    recipient: str
    text: str
    timestamp: str | None
    """When the harness accepted it: UTC, ISO 8601. None if an imported run does not say; so are the
    next two."""
    feature_id: int | None
    """Feature of the sender."""
    sender_step: int | None
    """Number of steps that the sender had taken."""
    delivered_at: str | None
    """None if the recipient never saw it."""
    delivered_step: int | None
    delivered_by: str | None
    """`context`: as a user message; `command`: by `read_messages` or `send_message --wait`."""
    lost: bool | UnsetType = UNSET
    """True if the channel lost it (`--loss`)."""


class Conversation(Record, kw_only=True, frozen=True):
    """All messages of one pair."""

    SCHEMA: ClassVar[str] = "cooperbench.conversation/1"
    OMITTED_IF_NONE: ClassVar[frozenset[str]] = frozenset(("imported",))
    NOT_WRITTEN: ClassVar[frozenset[str]] = frozenset(("unreadable",))

    messages: list[ConversationMessage]
    imported: bool | None = None
    """True if it was read from files of another program: there may have been more messages."""
    unreadable: int = 0
    """Number of entries that are not messages."""

    @classmethod
    def from_file(cls, content: JsonObject) -> JsonObject:
        """Count the entries that are not messages."""
        entries = content.get("messages")
        if not isinstance(entries, list):
            return content | {"unreadable": 1}
        return content | {"unreadable": sum(not isinstance(entry, dict) for entry in entries)}
