from __future__ import annotations

from cooperbench.importing.messages import make_conversation
from cooperbench.importing.source_files import SourceMessage
from cooperbench.importing.transcript import SentText, Transcript
from cooperbench.records.conversation import ConversationMessage

FEATURES = {"agent1": [3], "agent2": [8]}


def recorded(text: str, time: str | None = "2025-11-03T14:02:11") -> SourceMessage:
    return SourceMessage(sender="agent1", recipient="agent2", text=text, timestamp=time)


def entry(other: str | None, text: str, step: int, time: str | None = None) -> SentText:
    return SentText(other=other, text=text, timestamp=time, step=step)


def messages(
    entries: list[SourceMessage] | None, **transcripts: Transcript
) -> list[ConversationMessage]:
    conversation = make_conversation(entries, transcripts, FEATURES)
    assert conversation is not None
    assert conversation.imported
    return conversation.messages


def test_transcripts_say_when_a_message_was_sent_and_received() -> None:
    (message,) = messages(
        [recorded("same text")],
        agent1=Transcript(sent=[entry(None, "same  text\n", 4)]),
        agent2=Transcript(received=[entry("agent1", "same text", 7, "2025-11-03T14:05:00")]),
    )
    assert (message.sender_step, message.delivered_step, message.delivered_by) == (4, 7, "context")
    assert (message.feature_id, message.delivered_at) == (3, "2025-11-03T14:05:00")


def test_a_message_that_only_its_recipient_shows_is_added() -> None:
    first, second = messages(
        [recorded("first")],
        agent2=Transcript(received=[entry("agent1", "it's <<EOF>>", 2, "2025-11-03T14:09:00")]),
    )
    assert (first.text, first.delivered_step) == ("first", None)
    assert (second.sender, second.recipient, second.text) == ("agent1", "agent2", "it's <<EOF>>")
    assert second.sender_step is None


def test_the_same_text_twice_is_two_messages() -> None:
    received = [entry("agent1", "ping", 1), entry("agent1", "ping", 2)]
    numbered = messages([recorded("ping"), recorded("ping")], agent2=Transcript(received=received))
    assert [message.delivered_step for message in numbered] == [1, 2]


def test_times_of_unknown_zones_are_not_compared() -> None:
    received = [entry("agent1", "earlier", 1, "2025-11-03T01:00:00Z")]
    numbered = messages([recorded("later")], agent2=Transcript(received=received))
    assert [message.text for message in numbered] == ["later", "earlier"]
    same_zone = [entry("agent1", "earlier", 1, "2025-11-03T01:00:00")]
    numbered = messages([recorded("later")], agent2=Transcript(received=same_zone))
    assert [message.text for message in numbered] == ["earlier", "later"]


def test_times_of_known_zones_are_compared() -> None:
    west, east = "2025-11-03T09:30:00-05:00", "2025-11-03T15:00:00+01:00"
    received = [entry("agent1", "earlier", 1, east)]
    numbered = messages([recorded("later", west)], agent2=Transcript(received=received))
    assert [message.text for message in numbered] == ["earlier", "later"]


def test_nothing_is_known_about_messages() -> None:
    assert make_conversation(None, {}, FEATURES) is None
    assert messages(None, agent1=Transcript()) == []
