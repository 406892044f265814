"""A run says which sandboxes it will want next, early enough for a backend to start them, and wants no others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cooperbench import run
from cooperbench.eval import backends
from cooperbench.eval.backends.local import LocalBackend
from tests.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cooperbench.eval.backends.base import SandboxOptions
    from cooperbench.eval.backends.local.sandbox import LocalSandbox


class Event(NamedTuple):
    what: str
    """`expected`, `created` or `called off`."""
    purpose: str
    pair: str
    agent: str
    arguments: object


class ForeseeingBackend(LocalBackend):
    """Starts nothing ahead, but keeps account of what it was told."""

    capabilities = replace(LocalBackend.capabilities, foresees=True)

    def __init__(self, account: list[Event]) -> None:
        super().__init__()
        self._account = account

    def create_sandbox(self, *arguments: Any, options: SandboxOptions | None = None) -> LocalSandbox:
        self._note("created", arguments, options)
        return super().create_sandbox(*arguments, options=options)

    def expect(self, *arguments: Any, options: SandboxOptions) -> Callable[[], None]:
        self._note("expected", arguments, options)
        return lambda: self._note("called off", arguments, options)

    def _note(self, what: str, arguments: tuple[Any, ...], options: SandboxOptions | None) -> None:
        assert options is not None
        labels = options.labels
        everything = (*arguments, options.network, *sorted(labels.items()))
        self._account.append(
            Event(what, options.purpose, labels["pair"], labels.get("agent", ""), everything)
        )


@pytest.fixture
def account() -> list[Event]:
    events: list[Event] = []
    backends.register("foreseeing", lambda: ForeseeingBackend(events))
    return events


def carry_out(tmp_path: Path, agent: str, **options: object) -> None:
    dataset = write_tiny(tmp_path / "data")
    settings: dict[str, object] = {
        "agent": agent, "backend": "foreseeing", "dataset_dir": dataset, "logs_dir": tmp_path / "logs",
        "concurrency": 1, "eval_concurrency": 1,
    } | options  # fmt: skip
    run("r", **settings)  # type: ignore[arg-type]


def test_the_next_pair_is_expected_while_one_works(tmp_path: Path, account: list[Event]) -> None:
    carry_out(tmp_path, "oracle", auto_eval=False)
    events = [event for event in account if event.purpose == "agent"]
    created = [event for event in events if event.what == "created"]
    pairs = list(dict.fromkeys(event.pair for event in created))
    assert len(pairs) == 6
    for number, pair in enumerate(pairs):
        of_this = [event for event in events if event.pair == pair]
        assert [event.what for event in of_this] == ["expected", "expected", "created", "created"]
        # With the very arguments that it is then created with, or the backend could not tell.
        assert {event.arguments for event in of_this[:2]} == {event.arguments for event in of_this[2:]}
        if number:
            begun_before = [event for event in events if event.pair == pairs[number - 1]]
            assert events.index(of_this[0]) > events.index(begun_before[-1])


def test_each_pair_is_expected_once_however_many_begin_together(tmp_path: Path, account: list[Event]) -> None:
    carry_out(tmp_path, "nop", auto_eval=False, concurrency=4)
    expected = Counter(event.arguments for event in account if event.what == "expected")
    assert set(expected.values()) == {1}


def test_the_next_test_s_sandbox_is_expected_while_one_runs(tmp_path: Path, account: list[Event]) -> None:
    carry_out(tmp_path, "oracle", features=[1, 2])
    told = [event.what for event in account if event.purpose == "evaluation"]
    # Each patch alone, and both features on the merged one: four sandboxes.
    assert told[:7] == ["created", "expected"] * 3 + ["created"]
    assert told.count("created") == 4


def test_no_further_sandbox_is_expected_where_nothing_is_left_to_test(
    tmp_path: Path, account: list[Event]
) -> None:
    carry_out(tmp_path, "nop", features=[1, 2])
    assert [event.what for event in account if event.purpose == "evaluation"] == ["created"]
