"""The first exchanges of a recording are replayed; later requests are live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.errors import AgentFailure
from cooperbench.gateway.recording import DIFFERS, PrefixExchanges, read_exchanges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class OpenGate:
    """A gate of an agent without teammates."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def arrive(self, number: int) -> None:
        self.calls.append(f"arrive {number}")

    def await_reply(self, number: int) -> None:
        self.calls.append(f"reply {number}")

    def await_replayed(self, is_replayed: Callable[[], bool]) -> None:
        self.calls.append(f"replayed {is_replayed()}")

    def await_fork(self, is_replayed: Callable[[], bool]) -> None:
        assert is_replayed()
        self.calls.append("fork")

    def fail(self, problem: str) -> AgentFailure:
        return AgentFailure(DIFFERS, problem)


def asked(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def recorded(*texts: str) -> list[dict[str, Any]]:
    return [
        {"kind": "chat", "request": asked(text), "answer": [{"id": text}], "received": number}
        | {"files": {"a.py": text}}
        for number, text in enumerate(texts)
    ]


def test_requests_are_live_after_the_prefix(tmp_path: Path) -> None:
    gate = OpenGate()
    path = tmp_path / "exchanges.jsonl.gz"
    exchanges = PrefixExchanges(path, recorded("a", "b", "c"), 2, gate, lambda: {"b.py": "live"})
    assert exchanges.due(0) == 0
    for number, text in enumerate(("a", "b")):
        exchanges.await_turn("chat", asked(text))
        assert exchanges.find("chat", asked(text)) == [{"id": text}]
        files = exchanges.list_files()
        assert files == {"a.py": text}
        exchanges.keep("chat", asked(text), [{"id": text}], number, files)
    assert exchanges.due(1) is None
    exchanges.await_turn("chat", asked("anything"))
    assert exchanges.find("chat", asked("anything")) is None
    exchanges.keep("chat", asked("anything"), [{}], 5, exchanges.list_files())
    exchanges.close()
    assert [call for call in gate.calls if not call.startswith("arrive")] == [
        "reply 1", "reply 2", "fork", "fork",
    ]  # fmt: skip
    # What is written can be forked again.
    kept = read_exchanges(path)
    assert [line["files"] for line in kept] == [{"a.py": "a"}, {"a.py": "b"}, {"b.py": "live"}]
    assert [line["received"] for line in kept] == [0, 1, 5]


def test_a_request_that_differs_names_the_difference(tmp_path: Path) -> None:
    exchanges = PrefixExchanges(tmp_path / "e.gz", recorded("4 passed", "b"), 1, OpenGate())
    with pytest.raises(AgentFailure, match="request 1 differs from the recorded run at messages"):
        exchanges.await_turn("chat", asked("5 passed"))
    exchanges.close()


def test_a_later_request_waits_for_those_that_are_replayed(tmp_path: Path) -> None:
    """A program may ask for a title while its main conversation goes on."""
    gate = OpenGate()
    exchanges = PrefixExchanges(tmp_path / "e.gz", recorded("title", "main"), 1, gate)
    exchanges.await_earlier("chat", asked("main"))
    assert gate.calls == ["replayed False"]
    exchanges.await_earlier("chat", asked("title"))
    assert gate.calls == ["replayed False"]
    exchanges.close()


def test_texts_of_live_requests_are_replaced(tmp_path: Path) -> None:
    exchanges = PrefixExchanges(tmp_path / "e.gz", recorded("a"), 0, OpenGate())
    assert exchanges.rewrite(asked("add a line")) == asked("add a line")
    exchanges.replacements = {"a line": "two lines"}
    assert exchanges.rewrite(asked("add a line, please")) == asked("add two lines, please")
    exchanges.close()
