"""What agents are told, word for word. `COOPERBENCH_WRITE_SNAPSHOTS=1 pytest tests/unit/team/test_prompts.py` writes it anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from cooperbench.agents.base import Limits
from cooperbench.dataset.discovery import discover
from cooperbench.models import AgentSlot, Pair, Setting, Task, agent_slots
from cooperbench.team import prompts
from cooperbench.team.channel import ChannelRules
from cooperbench.team.prompts import task_prompt
from tests.support.tiny import write_tiny

SNAPSHOTS = Path(__file__).parent / "snapshots"
PAIR = (1, 2)
PARTS = ("messages", "git", "task_list", "scratchpad", "protocol", "mcp", "auto_refresh", "roles")
ALL_ON = dict.fromkeys(PARTS, True)
VARIANTS: dict[str, tuple[Setting, tuple[int, ...], dict[str, Any]]] = {
    "solo": ("solo", PAIR, {}),
    "solo_three": ("solo", (1, 2, 3), {}),
    "coop": ("coop", PAIR, {"messaging": True}),
    "coop_silent": ("coop", PAIR, {}),
    "coop_git": ("coop", PAIR, {"messaging": True, "git": True}),
    "coop_silent_git": ("coop", PAIR, {"git": True}),
    "coop_three_git": ("coop", (1, 2, 3), {"messaging": True, "git": True}),
    "coop_three_silent": ("coop", (1, 2, 3), {}),
    "team_lead": ("team", (1, 2, 3), {"messaging": True, "git": True, "features": ALL_ON}),
    "team_member": ("team", PAIR, {"messaging": True, "git": True, "features": ALL_ON, "place": 1}),
    "coop_rules": (
        "coop",
        (1, 2, 3),
        {
            "messaging": True,
            "channel": ChannelRules(
                messages=3, characters=500, delay_steps=2, loss=0.1, topology="star", knows="titles"
            ),
        },
    ),
    "coop_cannot_write": (
        "coop",
        PAIR,
        {"messaging": True, "channel": ChannelRules(topology="agent2>agent1", knows="interfaces")},
    ),
    "shared": ("coop", PAIR, {"messaging": True, "workspace": "shared", "limits": Limits(50)}),
    "shared_team": (
        "team",
        (1, 2, 3),
        {"messaging": True, "workspace": "shared", "features": ALL_ON | {"git": False}},
    ),
    "coop_limits": ("coop", PAIR, {"messaging": True, "limits": Limits(50, 2.5, 3600)}),
}


def prompt(
    pair: Pair,
    setting: Setting,
    place: int = 0,
    **options: Any,
) -> str:
    pair = replace(pair, workspace=options.pop("workspace", "separate"))
    told: dict[str, Any] = {"messaging": False, "git": False, "limits": Limits()} | options
    return task_prompt(pair, agent_slots(pair, setting)[place], setting, **told)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data") / "d")


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_told_word_for_word(dataset: Path, name: str) -> None:
    setting, features, options = VARIANTS[name]
    (pair,) = discover(dataset, features=list(features)).pairs
    told = prompt(pair, setting, **options)
    expected = SNAPSHOTS / f"{name}.md"
    if os.environ.get("COOPERBENCH_WRITE_SNAPSHOTS"):
        expected.parent.mkdir(exist_ok=True)
        expected.write_text(told)
    assert told == expected.read_text()


def test_each_agent_is_told_its_own_feature_name_and_branch(dataset: Path) -> None:
    (pair,) = discover(dataset, features=[1, 2]).pairs
    second = prompt(pair, "coop", place=1, messaging=True, git=True)
    assert "You are agent2," in second
    assert "# Feature 2" in second
    assert "# Feature 1" not in second
    assert "send_message agent1 " in second
    assert "git push team HEAD:agent2 " in second


@pytest.mark.parametrize("switch", ["messaging", "git"])
def test_solo_hears_of_no_teammate_whatever_is_switched_on(dataset: Path, switch: str) -> None:
    (pair,) = discover(dataset, features=[1, 2]).pairs
    told = prompt(pair, "solo", **{switch: True})
    assert told == prompt(pair, "solo")
    for word in ("teammate", "agent", "message", "merge", "remote", "team", "push"):
        assert word not in told.lower()


def test_what_is_off_is_not_mentioned(dataset: Path) -> None:
    (pair,) = discover(dataset, features=[1, 2]).pairs
    silent = prompt(pair, "coop", git=True)
    assert "send_message" not in silent
    assert "read_messages" not in silent
    without_git = prompt(pair, "coop", messaging=True)
    assert "remote" not in without_git
    assert "git push" not in without_git
    assert "at most" not in without_git


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    text=st.text(st.characters(codec="utf-8"))
    | st.sampled_from(["{{ 7 * 7 }}", "{% raw %}", "{# gone #}", "<b>&amp;", "\x1b[2J"])
)
def test_a_feature_text_stays_literal(tmp_path: Path, text: str) -> None:
    pair = Pair(Task("r", 1, tmp_path, (1,)), (1,))
    (feature,) = pair.features
    feature.path.mkdir(exist_ok=True)
    feature.description.write_bytes(text.encode())
    told = task_prompt(
        pair, AgentSlot("agent1", (feature,)), "coop", messaging=False, git=False, limits=Limits()
    )
    assert f"<feature>\n{text.strip(chr(10))}\n</feature>\n" in told


def test_bytes_that_are_no_text_do_not_stop_it(tmp_path: Path) -> None:
    pair = Pair(Task("r", 1, tmp_path, (1,)), (1,))
    slot = AgentSlot("solo", pair.features)
    pair.features[0].path.mkdir()
    pair.features[0].description.write_bytes(b"caf\xe9")
    assert "caf\ufffd" in task_prompt(
        pair, slot, "solo", messaging=False, git=False, limits=Limits(seconds=30)
    )


def test_a_gap_in_what_the_template_is_given_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        prompts._templates(None).get_template("task.md.j2").render(setting="coop", teammates=[])
