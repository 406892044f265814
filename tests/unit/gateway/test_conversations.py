"""An agent's conversations: told apart, with teammates' messages at places that stay, and on record."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench.export.atif import steps_of
from cooperbench.gateway.conversations import REPEATED, Conversations
from cooperbench.models import Usage
from cooperbench.records.trajectory import decode_step
from tests.support.gateway.programs import API_FORMATS, Json, Program, Turn
from tests.support.gateway.sessions import AtWork, agent_at_work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EACH_API_FORMAT = pytest.mark.parametrize("api_format", API_FORMATS)
FROM = "Message from agent2:\n\n"


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[AtWork]:
    with agent_at_work(tmp_path) as at_work:
        yield at_work


def ask(conversations: Conversations, program: Program, turn: Turn | None = None) -> Json:
    """What the provider gets; the program gets `turn`."""
    exchange = conversations.begin_exchange(program.api_format, program.body())
    if turn is not None:
        conversations.record_reply(exchange, program.takes(turn), Usage(calls=1))
    return exchange.body


def pieces(body: Json) -> list[Any]:
    """The history piece by piece, without cache marks and signatures: what a provider's prompt cache compares."""
    found: list[Any] = []
    for item in body.get("messages") or body.get("input") or body["contents"]:
        content = item.get("content", item.get("parts"))
        for piece in content if isinstance(content, list) else [item]:
            kept = {
                key: one
                for key, one in piece.items()
                if key not in ("cache_control", "thoughtSignature")
            }
            found.append((item.get("role"), kept))
    return found


def texts(body: Json) -> list[str]:
    """All user texts, in order."""
    found = []
    for role, piece in pieces(body):
        text = piece.get("text", piece.get("content") if role == "user" else None)
        if role == "user" and isinstance(text, str) and "tool_use_id" not in piece:
            found.append(text)
    return found


def messages(body: Json) -> list[str]:
    return [
        text.removeprefix(FROM).removesuffix(REPEATED)
        for text in texts(body)
        if text.startswith(FROM)
    ]


def check_valid(api_format: str, body: Json) -> None:
    """What providers refuse: a call without its result right behind it, results that are not first."""
    waiting: set[str] = set()
    items = body.get("messages") or body.get("input") or body["contents"]
    for item in items:
        if api_format == "chat":
            if item["role"] == "tool":
                waiting.remove(item["tool_call_id"])
            else:
                assert not waiting
                waiting |= {call["id"] for call in item.get("tool_calls", [])}
        elif api_format == "responses":
            if item["type"] == "function_call_output":
                waiting.remove(item["call_id"])
            else:
                assert not waiting or item["type"] == "function_call"
                waiting |= {item["call_id"]} if item["type"] == "function_call" else set()
        else:
            name = "content" if api_format == "anthropic" else "parts"
            assert isinstance(item[name], list)
            for block in item[name]:
                result = block.get("tool_use_id") or block.get("functionResponse", {}).get("id")
                if result:
                    waiting.remove(result)
                elif item["role"] == "user":
                    assert not waiting
            calls = [one.get("id") if one.get("type") == "tool_use" else None for one in item[name]]
            calls += [one["functionCall"]["id"] for one in item[name] if "functionCall" in one]
            waiting |= {call for call in calls if call}
    if api_format == "anthropic":
        roles = [item["role"] for item in items]
        assert all(one != other for one, other in itertools.pairwise(roles))


@EACH_API_FORMAT
def test_message_keeps_its_position(at_work: AtWork, api_format: str) -> None:
    conversations, program = Conversations(at_work.session), Program(api_format, "do it")
    calls = [program.shell("c1", "ls"), program.shell("c2", "pwd")]
    first = ask(conversations, program, Turn("let me see", calls))
    assert messages(first) == []
    at_work.arrives("I change app.txt")
    program.returns("app.txt", "/workspace")
    second = ask(conversations, program, Turn("", [program.shell("c3", "cat app.txt")]))
    assert texts(second) == ["do it", f"{FROM}I change app.txt"]
    assert pieces(second)[-1][1] != pieces(program.body())[-1][1]
    program.returns("hello")
    at_work.arrives("me again")
    third = ask(conversations, program)
    assert pieces(third)[: len(pieces(second))] == pieces(second)
    assert messages(third) == ["I change app.txt", "me again"]
    for body in (first, second, third):
        check_valid(api_format, body)


@EACH_API_FORMAT
def test_a_message_that_was_there_before_the_first_call_is_in_it(
    at_work: AtWork, api_format: str
) -> None:
    at_work.arrives("hello early")
    body = ask(Conversations(at_work.session), Program(api_format, "do it"))
    assert texts(body) == ["do it", f"{FROM}hello early"]


@EACH_API_FORMAT
def test_the_same_request_twice_asks_the_same(at_work: AtWork, api_format: str) -> None:
    conversations, program = Conversations(at_work.session), Program(api_format, "do it")
    at_work.arrives("hi")
    body = program.body()
    once, twice = (conversations.begin_exchange(api_format, body).body for _ in range(2))
    assert json.dumps(once) == json.dumps(twice)


@EACH_API_FORMAT
def test_a_compaction_loses_no_message(at_work: AtWork, api_format: str) -> None:
    conversations, program = Conversations(at_work.session), Program(api_format, "do it")
    ask(conversations, program, Turn("", [program.shell("c1", "ls")]))
    at_work.arrives("I change app.txt")
    program.returns("app.txt")
    ask(conversations, program, Turn("", [program.shell("c2", "ls")]))
    at_work.arrives("one more")
    # The instruction to summarise: with what was shown at its place, without what is new.
    program.returns("app.txt", instruction="Summarise all of this, in text only.")
    asked = ask(conversations, program, Turn("it went well"))
    assert messages(asked) == ["I change app.txt"]
    program.compacts("This goes on from: it went well")
    after = ask(conversations, program, Turn("", [program.shell("c3", "ls")]))
    assert texts(after)[1:] == [f"{FROM}I change app.txt{REPEATED}", f"{FROM}one more"]
    program.returns("app.txt")
    assert messages(ask(conversations, program, Turn("done"))) == ["I change app.txt", "one more"]
    program.compacts("This goes on for the second time")
    assert messages(ask(conversations, program)) == ["one more"], "given again once, not for ever"
    assert len(at_work.entries("receive_message")) == 2
    kinds = [entry["args"]["kind"] for entry in at_work.entries("tell")]
    assert kinds == ["system", "task", "compacted", "compacted"]


@EACH_API_FORMAT
def test_tools_that_come_later_do_not_make_another_conversation(
    at_work: AtWork, api_format: str
) -> None:
    conversations, program = Conversations(at_work.session), Program(api_format, "do it")
    ask(conversations, program, Turn("", [program.shell("c1", "ls")]))
    program.tools = (*program.tools, "mcp_tool")
    program.returns("app.txt")
    ask(conversations, program, Turn("done"))
    at_work.arrives("hi")
    program.compacts("go on")
    assert messages(ask(conversations, program)) == ["hi"]


@EACH_API_FORMAT
def test_subagents_and_side_requests_get_no_messages(at_work: AtWork, api_format: str) -> None:
    conversations, program = Conversations(at_work.session), Program(api_format, "do it")
    at_work.arrives("for the main one")
    title = Program(api_format, "Write a title", tools=(), system="You write titles.")
    assert messages(ask(conversations, title, Turn("A title"))) == []
    assert messages(
        ask(conversations, program, Turn("", [("c1", "task", {"prompt": "count"})]))
    ) == ["for the main one"]
    at_work.arrives("later")
    others = [Program(api_format, f"count {number}", tools=("grep",)) for number in range(2)]
    for number, other in enumerate(others):
        other.thread = f"t{number + 2}"
        body = other.body()
        assert conversations.begin_exchange(api_format, body).body == body
    for number, other in enumerate(others):
        ask(conversations, other, Turn("", [other.shell(f"s{number}", "ls")]))
    for other in reversed(others):
        other.returns("x")
        assert messages(ask(conversations, other, Turn("counted"))) == []
    program.returns("counted")
    assert messages(ask(conversations, program, Turn("done"))) == ["for the main one", "later"]
    replies = [
        (entry.get("conversation"), entry["args"]["content"]) for entry in at_work.entries("reply")
    ]
    assert replies == [
        ("side", "A title"),
        (None, ""),
        ("subagent 1", ""),
        ("subagent 2", ""),
        ("subagent 2", "counted"),
        ("subagent 1", "counted"),
        (None, "done"),
    ]


def test_a_fork_of_claude_code_is_a_subagent(at_work: AtWork) -> None:
    """It begins with the history of the main conversation, which goes on at the same time."""
    conversations, program = Conversations(at_work.session), Program("anthropic", "do it")
    ask(conversations, program, Turn("", [program.shell("c1", "ls"), ("c2", "Agent", {})]))
    fork = Program("anthropic", "do it", system="cc_is_subagent=true; Be good.")
    fork.turns = [*program.turns]
    fork.returns("app.txt", "started")
    at_work.arrives("hi")
    assert messages(ask(conversations, fork, Turn("forked"))) == []
    program.returns("app.txt", "started")
    assert messages(ask(conversations, program)) == ["hi"]


@EACH_API_FORMAT
def test_steps_are_the_calls_with_what_came_of_them(at_work: AtWork, api_format: str) -> None:
    conversations, program = Conversations(at_work.session), Program(api_format, "do it")
    edit = ("c2", "Edit", {"file_path": "app.txt", "old_string": "a", "new_string": "b"})
    send = ("c3", "mcp__cooperbench__send_message", {"to": "agent2", "text": "done soon"})
    ask(conversations, program, Turn("I look", [program.shell("c1", "make test"), edit, send]))
    assert at_work.session.steps == at_work.inbox.step == 3
    program.returns("Exit code 2\nno rule", "edited", "Message sent.")
    ask(conversations, program, Turn("and wait", [program.shell("c4", "sleep 9")]))
    conversations.finish()
    steps = [entry for entry in at_work.entries() if "step" in entry]
    assert [(entry["step"], entry["action"], entry["observation"]) for entry in steps] == [
        (1, "run", "Exit code 2\nno rule"),
        (2, "Edit", "edited"),
        (3, "send_message", "Message sent."),
        (4, "run", ""),
    ]
    assert steps[0]["args"]["command"] == "make test"
    assert steps[0]["returncode"] == 2
    assert steps[2]["args"] == {"to": "agent2", "content": "done soon"}
    assert all(entry["duration_seconds"] >= 0 for entry in steps[:3])
    replies = at_work.entries("reply")
    assert [call["name"] for call in replies[0]["tool_calls"]] == [
        program.tools[0],
        "Edit",
        send[1],
    ]


def test_calls_without_ids_are_matched_by_their_names(at_work: AtWork) -> None:
    """Gemini's models give none; the CLI makes some up."""
    conversations, program = Conversations(at_work.session), Program("gemini", "do it")
    ask(
        conversations,
        program,
        Turn("", [program.shell("", "ls"), program.shell("", "pwd"), ("", "glob", {})]),
    )
    program.turns[-1].calls = [
        (f"made_up_{number}", *call[1:]) for number, call in enumerate(program.turns[-1].calls)
    ]
    program.returns("app.txt", "/workspace", "nothing")
    ask(conversations, program, Turn("done"))
    observed = [
        (entry["action"], entry["observation"]) for entry in at_work.entries() if "step" in entry
    ]
    assert observed == [("run", "app.txt"), ("run", "/workspace"), ("glob", "nothing")]


@pytest.mark.parametrize(
    ("name", "args", "command"),
    [
        ("shell", {"command": ["bash", "-lc", "ls -l | wc"]}, "ls -l | wc"),
        ("shell", {"command": ["ls", "a b"]}, "ls 'a b'"),
        ("exec_command", {"cmd": "ls"}, "ls"),
    ],
)
def test_a_command_is_a_command_in_every_program(
    at_work: AtWork, name: str, args: Json, command: str
) -> None:
    conversations, program = Conversations(at_work.session), Program("responses", "do it")
    ask(conversations, program, Turn("", [("c1", name, args)]))
    conversations.finish()
    (step,) = at_work.entries("run")
    assert step["args"]["command"] == command


def test_parallel_conversations_are_told_apart_in_atif(at_work: AtWork) -> None:
    conversations, program = Conversations(at_work.session), Program("anthropic", "do it")
    ask(conversations, program, Turn("main", [program.shell("c1", "ls"), ("c2", "Agent", {})]))
    other = Program("anthropic", "count", tools=("grep",))
    ask(conversations, other, Turn("sub", [other.shell("s1", "wc")]))
    other.returns("3")
    ask(conversations, other, Turn("counted"))
    program.returns("app.txt", "counted")
    ask(conversations, program, Turn("done"))
    entries = [decode_step(json.dumps(entry).encode()) for entry in at_work.entries()]
    steps = msgspec.to_builtins(steps_of(entries))
    by_text = {step["message"]: step for step in steps if step["source"] == "agent"}
    assert [call["tool_call_id"] for call in by_text["main"]["tool_calls"]] == ["c1", "c2"]
    assert [call["tool_call_id"] for call in by_text["sub"]["tool_calls"]] == ["s1"]
    assert by_text["sub"]["observation"]["results"][0]["content"] == "3"
    assert by_text["sub"]["extra"]["conversation"] == "subagent 1"


@EACH_API_FORMAT
@pytest.mark.parametrize("history", [None, "x", [1], [None], {}])
def test_a_body_of_another_shape_is_refused(
    at_work: AtWork, api_format: str, history: object
) -> None:
    name = {"responses": "input", "gemini": "contents"}.get(api_format, "messages")
    if api_format == "responses" and history == "x":
        return
    with pytest.raises(ValueError, match=f"{name} must be a list"):
        Conversations(at_work.session).begin_exchange(
            api_format, {name: history, "tools": [{"name": "t"}]}
        )


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)
NAMES = st.sampled_from(
    [
        "role",
        "type",
        "content",
        "parts",
        "text",
        "tool_use_id",
        "functionResponse",
        "tool_calls",
        "system",
        "tools",
    ]
)
WORDS = st.sampled_from(
    ["user", "assistant", "tool", "tool_result", "text", "function_call_output"]
)
OBJECTS = st.dictionaries(
    NAMES, ANYTHING | WORDS | st.lists(st.dictionaries(NAMES, ANYTHING | WORDS), max_size=3)
)


@given(api_format=st.sampled_from(API_FORMATS), items=st.lists(OBJECTS, max_size=4), rest=OBJECTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_an_agent_sends_the_gateway_goes_on(
    at_work: AtWork, api_format: str, items: list[Json], rest: Json
) -> None:
    name = {"responses": "input", "gemini": "contents"}.get(api_format, "messages")
    conversations = Conversations(at_work.session)
    exchange = conversations.begin_exchange(api_format, {**rest, name: items})
    conversations.record_reply(
        exchange, {**rest, "content": items, "output": items, "choices": items}, Usage()
    )


EVENTS = st.lists(
    st.sampled_from(["message", "turn", "turns", "again", "say", "compact", "sub", "side"]),
    max_size=14,
)


@given(api_format=st.sampled_from(API_FORMATS), events=EVENTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_places_stay_whatever_happens(at_work: AtWork, api_format: str, events: list[str]) -> None:
    at_work.session.incoming()
    conversations, program = Conversations(at_work.session), Program(api_format, "do it")
    other = Program(api_format, "count", tools=("grep",))
    other.thread = "t2"
    sent: list[str] = []
    shortened: dict[str, int] = {}
    before: list[Any] = []
    ids = iter(range(1_000))
    for event in ["turn", *events, "turn"]:
        if event == "message":
            sent.append(f"text {len(sent)}")
            shortened[sent[-1]] = -1
            at_work.arrives(sent[-1])
            continue
        if event in ("sub", "side"):
            aside = (
                other
                if event == "sub"
                else Program(api_format, "Title", tools=(), system="You write titles.")
            )
            body = aside.body()
            assert conversations.begin_exchange(api_format, body).body == body
            continue
        if event == "compact":
            program.compacts(f"summary {next(ids)}")
            before = []
            shortened = {text: count + 1 if count >= 0 else -1 for text, count in shortened.items()}
        elif event == "say" and program.turns[-1].own and not program.turns[-1].calls:
            program.says(f"go on {next(ids)}")
        body = program.body()
        if program.turns[-1].own:
            continue
        exchange = conversations.begin_exchange(api_format, body)
        check_valid(api_format, exchange.body)
        shortened = {text: max(count, 0) for text, count in shortened.items()}
        expected = [text for text in sent if shortened[text] < 2]
        assert sorted(messages(exchange.body)) == sorted(expected)
        own = [
            piece
            for piece in pieces(exchange.body)
            if not str(piece[1].get("text", piece[1].get("content"))).startswith(FROM)
        ]
        assert own == pieces(body)
        assert pieces(exchange.body)[: len(before)] == before
        assert json.dumps(conversations.begin_exchange(api_format, body).body) == json.dumps(
            exchange.body
        )
        before = pieces(exchange.body)
        if event in ("turn", "turns"):
            calls = [
                program.shell(f"c{next(ids)}", "ls") for _ in range(2 if event == "turns" else 1)
            ]
            conversations.record_reply(exchange, program.takes(Turn("", calls)), Usage())
            program.returns(*("out" for _ in calls))
        elif event == "say":
            conversations.record_reply(exchange, program.takes(Turn("well")), Usage())
