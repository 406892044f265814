"""A script that is wrong is refused before anything starts, with its place named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.scripted import ScriptedAgent
from cooperbench.dataset.discovery import discover
from cooperbench.errors import UserError
from tests.support.tiny import write_script, write_tiny

if TYPE_CHECKING:
    from pathlib import Path


def check(script: Path | None, dataset: Path) -> None:
    pairs = discover(dataset, features=[1, 2]).pairs
    ScriptedAgent().check(script, pairs, "coop")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("run", "step 1 is not a mapping"),
        ({"run": "x", "think": "y"}, "step 1 is not a mapping with exactly one"),
        ({"fly": "x"}, "step 1 is not a mapping with exactly one"),
        ({"run": ["x"]}, "run takes a text"),
        ({"write": {"path": "x"}}, "write takes a mapping with path and content"),
        ({"apply": "missing.patch"}, "no such patch"),
        ({"wait": {"for": "("}}, "not a regular expression"),
        ({"send": {"to": "agent2"}}, "send takes a text"),
        ({"wait": "long"}, "wait takes seconds"),
        ({"when": {"said": "x", "then": [{"fly": 1}]}}, "step 1, then, step 1 is not"),
    ],
)
def test_wrong_steps_are_named(tmp_path: Path, step: object, said: str) -> None:
    dataset = write_tiny(tmp_path / "data")
    script = write_script(tmp_path / "script.yaml", {1: [step], 2: []})
    with pytest.raises(UserError, match=said) as caught:
        check(script, dataset)
    assert str(script) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["", "[", "repos: 3", "a: b", "repos: {tiny_task: {7: {coop: {1: []}}}}", "\t\0"]
)
def test_wrong_scripts_are_named(tmp_path: Path, content: str) -> None:
    script = tmp_path / "script.yaml"
    script.write_text(content)
    with pytest.raises(UserError, match=r"script\.yaml") as caught:
        check(script, write_tiny(tmp_path / "data"))
    assert "\n" not in str(caught.value)


def test_the_script_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--agent-config"):
        check(None, write_tiny(tmp_path / "data"))
