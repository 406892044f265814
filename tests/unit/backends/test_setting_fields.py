"""Reading a backend's settings: a keyword before a variable before the file, and errors that name what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.setting_fields import (
    matching,
    name_value_pairs,
    one_of,
    read_section,
    word_list,
)
from cooperbench.errors import UserError
from cooperbench.settings import config_file
from cooperbench.storage import write_json

if TYPE_CHECKING:
    from pathlib import Path

PARSERS = {
    "size": matching("[0-9]+g", "e.g. 2g"),
    "kind": one_of("a", "b"),
    "hosts": word_list,
    "args": name_value_pairs,
}


@pytest.fixture(autouse=True)
def _own_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def read(**given: object) -> dict[str, Any]:
    return read_section("mine", PARSERS, given, {"args": "SHARED_ARGS"})


def test_keyword_beats_variable_beats_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read() == {}
    write_json(
        config_file(),
        {"mine": {"size": "1g", "kind": "a", "hosts": ["x", "y"]}, "backend": "local"},
    )
    monkeypatch.setenv("COOPERBENCH_MINE_SIZE", "2g")
    monkeypatch.setenv("COOPERBENCH_MINE_KIND", "")
    monkeypatch.setenv("SHARED_ARGS", "A=1 'B=two words'")
    expected = {
        "size": "2g",
        "kind": "a",
        "hosts": ("x", "y"),
        "args": {"A": "1", "B": "two words"},
    }
    assert read() == expected
    assert read(size="3g", kind=None) == {**expected, "size": "3g"}


@pytest.mark.parametrize(
    ("filed", "given", "message"),
    [
        ({}, {"colour": "red"}, r"the mine backend has no setting 'colour'; available: size, kind"),
        ({"colour": 1}, {}, r"config.json: `mine` has no setting 'colour'; available: size, kind"),
        ([], {}, r"config.json: `mine` must be an object"),
        ({}, {"size": "large"}, r"mine setting size: 'large' is not valid; it is e.g. 2g"),
        ({"kind": "c"}, {}, r"mine setting kind: 'c' is unknown; valid values: a, b"),
        ({}, {"args": "A"}, r"mine setting args: 'A' is not NAME=VALUE"),
        ({}, {"args": "'A=1"}, r"mine setting args: No closing quotation"),
    ],
)
def test_what_is_wrong_is_named(filed: object, given: dict[str, object], message: str) -> None:
    write_json(config_file(), {"mine": filed})
    with pytest.raises(UserError, match=message):
        read(**given)
