"""What models were asked and answered: kept, read after a kill, given again, and where a request differs."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.errors import AgentFailure
from cooperbench.gateway.recording import DIFFERS, Exchanges, comparable, difference, read_exchanges
from tests.support.gateway.sessions import agent_at_work

if TYPE_CHECKING:
    from pathlib import Path


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}], **more}


def record(path: Path, *texts: str, received: tuple[int, ...] = ()) -> Path:
    recording = Exchanges(path)
    for number, text in enumerate(texts):
        recording.keep("chat", asked(text), [{"answer": text}], received[number] if received else 0)
    recording.close()
    return path


def test_the_same_requests_get_the_same_answers_in_any_order(tmp_path: Path) -> None:
    replay = Exchanges(replayed=record(tmp_path / "e.gz", "one", "two", "two"))
    for text in ("two", "one", "two"):
        assert replay.find("chat", asked(text)) == [{"answer": text}]
    with pytest.raises(AgentFailure, match="request 4 was not recorded") as caught:
        replay.find("chat", asked("two"))
    assert caught.value.status == DIFFERS


def test_the_first_difference_is_named_with_its_place(tmp_path: Path) -> None:
    replay = Exchanges(
        replayed=record(tmp_path / "e.gz", "Write a title", "The tests say: 3 passed, 1 failed")
    )
    with pytest.raises(AgentFailure) as caught:
        replay.find("chat", asked("The tests say: 4 passed"))
    assert str(caught.value) == (
        "request 1 differs from the recorded run at messages[0].content[0].text: "
        "recorded 'The tests say: 3 passed, 1 failed', now 'The tests say: 4 passed'"
    )


@pytest.mark.parametrize(
    ("recorded", "now", "said"),
    [
        ({"a": [1, 2]}, {"a": [1, 2, {"b": 1}]}, "a[2]: recorded 'null', now '{\"b\": 1}'"),
        ({"a": [1], "b": 2}, {"a": [1]}, "b: recorded '2', now 'null'"),
        (
            {"a": "x" * 90 + "1"},
            {"a": "x" * 90 + "2"},
            f"a: recorded '…{'x' * 20}1', now '…{'x' * 20}2'",
        ),
    ],
)
def test_differences_are_short(recorded: Any, now: Any, said: str) -> None:
    assert difference(recorded, now) == said


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Today's date is 2026-11-17.", "Today's date is 2027-01-02."),
        ("Today's date is Tuesday, November 17, 2026", "Today's date is Friday, May 1, 2026"),
        (
            "Chunk ID: b4a1d9\nWall time: 0.0000 seconds",
            "Chunk ID: fedcba\nWall time: 1.5321 seconds",
        ),
        ("Output: 2\nProcess Group PGID: 27016", "Output: 2\nProcess Group PGID: 318"),
        ("3 passed in 0.12s", "3 passed in 0.4s"),
        (
            '<task id="ses_e1800030dffeot16Nr8cWiimWI">',
            '<task id="ses_e18001363ffeItvy7NxMg4uO1a">',
        ),
        ("agentId: a5f8e5eed30d2b797 (use", "agentId: 0011223344556677a (use"),
        ("[main 1a2b3c4] wip", "[main 4d5e6f7] wip"),
        ("listening on http://127.0.0.1:4312/", "listening on http://127.0.0.1:9/"),
        ("cc_version=2.1.197.3fe; x", "cc_version=2.1.197.f9d; x"),
        (
            "session 01a1e7fe-0326-7c73-b19b-574e3c636e75",
            "session f9a13912-61a9-45cd-b80b-11f5988a1d57",
        ),
        ("run_shell_command_1794893642160_0", "run_shell_command_1794893981676_0"),
    ],
)
def test_what_changes_from_run_to_run_is_no_difference(one: str, other: str) -> None:
    assert comparable(asked(one)) == comparable(asked(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 passed", "4 passed"),
        ("line 12", "line 13"),
        ("decade", "facade"),
        ("app.txt", "app2.txt"),
    ],
)
def test_what_an_agent_sees_is_a_difference(one: str, other: str) -> None:
    assert comparable(asked(one)) != comparable(asked(other))


def test_names_of_sessions_and_items_are_no_difference() -> None:
    one = asked(
        "x", prompt_cache_key="a", client_metadata={"thread_id": "b"}, metadata={"user_id": "c"}
    )
    assert comparable(one) == comparable(asked("x"))
    assert comparable({"input": [{"id": "msg_1", "role": "user"}]}) == comparable(
        {"input": [{"role": "user"}]}
    )


def test_no_secret_is_kept_and_the_request_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-1234567890-abc")
    path = record(tmp_path / "e.gz", "my key is sk-1234567890-abc")
    assert b"1234567890" not in gzip.decompress(path.read_bytes())
    assert Exchanges(replayed=path).find("chat", asked("my key is sk-1234567890-abc"))


def test_what_a_killed_run_has_recorded_can_be_read(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom cooperbench.gateway.recording import Exchanges\n"
        "recording = Exchanges(Path(sys.argv[1]))\n"
        "for number in range(3):\n    recording.keep('chat', {'n': number}, [{}], 0)\n"
        "print('kept', flush=True)\ntime.sleep(60)\n"
    )
    path = tmp_path / "e.gz"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"kept\n"
        os.kill(process.pid, signal.SIGKILL)
    assert [one["request"] for one in read_exchanges(path)] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_truncated_recording_is_read_partially(tmp_path: Path) -> None:
    whole = record(tmp_path / "e.gz", "one", "two", "three").read_bytes()
    counts = []
    for length in range(len(whole) + 1):
        (tmp_path / "cut.gz").write_bytes(whole[:length])
        counts.append(len(read_exchanges(tmp_path / "cut.gz")))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 3)


def test_several_conversations_may_be_recorded_at_once(tmp_path: Path) -> None:
    recording = Exchanges(tmp_path / "e.gz")
    threads = [
        threading.Thread(target=recording.keep, args=("chat", asked(str(number) * 5000), [{}], 0))
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recording.close()
    recording.keep("chat", asked("too late"), [{}], 0)
    assert len(read_exchanges(tmp_path / "e.gz")) == 20


def test_a_replay_waits_for_the_messages_that_came_then(tmp_path: Path) -> None:
    """And holds back what comes too early, so that requests are the same."""
    path = record(tmp_path / "e.gz", "one", "two", "three", received=(0, 1, 2))
    with agent_at_work(tmp_path) as at_work:
        session = at_work.session
        session.exchanges = replay = Exchanges(replayed=path)
        at_work.arrives("early")
        assert session.incoming() == []
        replay.find("chat", asked("one"))
        assert [message.text for message in session.incoming()] == ["early"]
        replay.find("chat", asked("two"))
        threading.Timer(0.2, lambda: at_work.arrives("late")).start()
        assert [message.text for message in session.incoming()] == ["late"]
        assert session.received == 2


def test_decompression_bomb_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b'{"n": 0}\n' + b" " * (1 << 20) + b'{"n": 1}\n'))
    assert len(read_exchanges(path)) == 2
    monkeypatch.setattr("cooperbench.gateway.recording._MAX_RECORDED_BYTES", 1 << 19)
    assert read_exchanges(path) == [{"n": 0}]


def test_old_recordings_are_compared_as_sent_now(
    tmp_path: Path,
) -> None:
    path = tmp_path / "e.gz"
    recording = Exchanges(path)
    recording.keep("anthropic", asked("a", service_tier="auto"), [{"answer": "a"}], 0)
    recording.close()
    assert Exchanges(replayed=path).find("anthropic", asked("a")) == [{"answer": "a"}]
