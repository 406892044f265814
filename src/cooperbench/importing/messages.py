"""The messages of an imported pair: those of conversation.json, and what transcripts add to them.

The public release reads conversation.json out of transcripts by patterns, which miss some messages.
What a recipient's transcript shows is therefore added, with the step before which it arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter

from cooperbench.importing.source_files import SourceMessage
from cooperbench.importing.transcript import SentText, Transcript
from cooperbench.records.conversation import Conversation, ConversationMessage
from cooperbench.storage import parse_time


@dataclass(frozen=True)
class _Entry:
    """A message, with what is known of it so far."""

    sender: str
    recipient: str
    text: str
    timestamp: str | None
    sender_step: int | None = None
    delivered_at: str | None = None
    delivered_step: int | None = None

    def is_same(self, sender: str, recipient: str, text: str) -> bool:
        """Whether a message found elsewhere is this one."""
        if sender != self.sender or (self.recipient and recipient and recipient != self.recipient):
            return False
        return " ".join(text.split()) == " ".join(self.text.split())


def make_conversation(
    recorded: Sequence[SourceMessage] | None,
    transcripts: Mapping[str, Transcript],
    features: Mapping[str, Sequence[int]],
) -> Conversation | None:
    """Return the messages of a pair; None if no file says anything about messages.

    Args:
        recorded: The entries of conversation.json; None if there is none.
        transcripts: The transcripts by agent id.
        features: The features of every agent by its id.
    """
    if recorded is None and not transcripts:
        return None
    entries = [_recorded_entry(message) for message in recorded or ()]
    for agent_id, transcript in transcripts.items():
        for sent in transcript.sent:
            _add_sent(entries, agent_id, sent, list(features))
    for agent_id, transcript in transcripts.items():
        for received in transcript.received:
            _add_received(entries, agent_id, received)
    messages = [
        _make_message(number, entry, features) for number, entry in enumerate(_sorted(entries), 1)
    ]
    return Conversation(messages=messages, imported=True)


def _recorded_entry(message: SourceMessage) -> _Entry:
    timestamp = message.timestamp if isinstance(message.timestamp, str) else None
    return _Entry(message.sender or "", message.recipient or "", message.text or "", timestamp)


def _add_sent(entries: list[_Entry], sender: str, sent: SentText, agent_ids: list[str]) -> None:
    """Add a message of a sender's transcript, or its step to the entry of conversation.json."""
    recipient = sent.other or ""
    others = [agent_id for agent_id in agent_ids if agent_id != sender]
    if not recipient and len(others) == 1:
        recipient = others[0]
    for index, entry in enumerate(entries):
        if entry.sender_step is None and entry.is_same(sender, recipient, sent.text):
            entries[index] = replace(entry, sender_step=sent.step)
            return
    entries.append(_Entry(sender, recipient, sent.text, sent.timestamp, sender_step=sent.step))


def _add_received(entries: list[_Entry], recipient: str, received: SentText) -> None:
    """Add a message of a recipient's transcript, or its delivery to the entry there is."""
    sender = received.other or ""
    for index, entry in enumerate(entries):
        if entry.delivered_step is None and entry.is_same(sender, recipient, received.text):
            entries[index] = replace(
                entry, delivered_at=received.timestamp, delivered_step=received.step
            )
            return
    entry = _Entry(
        sender,
        recipient,
        received.text,
        received.timestamp,
        delivered_at=received.timestamp,
        delivered_step=received.step,
    )
    entries.append(entry)


def _sorted(entries: list[_Entry]) -> list[_Entry]:
    """Return the messages by time, if all times can be compared: all have a zone, or none has."""
    timed: list[tuple[datetime, _Entry]] = []
    have_zone = set()
    for entry in entries:
        time = parse_time(entry.timestamp)
        if entry.timestamp is None or time is None:
            return entries
        have_zone.add(datetime.fromisoformat(entry.timestamp).tzinfo is not None)
        timed.append((time, entry))
    if len(have_zone) > 1:
        return entries
    timed.sort(key=itemgetter(0))
    return [entry for _, entry in timed]


def _make_message(
    number: int, entry: _Entry, features: Mapping[str, Sequence[int]]
) -> ConversationMessage:
    sender_features = features.get(entry.sender)
    return ConversationMessage(
        sequence=number,
        sender=entry.sender,
        recipient=entry.recipient,
        text=entry.text,
        timestamp=entry.timestamp,
        feature_id=sender_features[0] if sender_features else None,
        sender_step=entry.sender_step,
        delivered_at=entry.delivered_at,
        delivered_step=entry.delivered_step,
        delivered_by=None if entry.delivered_step is None else "context",
    )
