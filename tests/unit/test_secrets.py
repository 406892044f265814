"""Secrets do not reach what is written; ordinary words do. `.env` is read as people write it, and no sandbox sees it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench import secrets
from cooperbench.errors import UserError
from cooperbench.secrets import load_env_file, parse_env, redact, remember_secret

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_remembered", {})


@pytest.mark.parametrize(
    "name",
    ["OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "my_password", "AZURE_API_KEY_2"],
)
def test_secret_values_are_replaced(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "sk-4f/9+x y\n1")
    text = 'Bearer sk-4f/9+x y\n1; {"key": "sk-4f/9+x y\\n1"}; http://h/?k=sk-4f%2F9%2Bx%20y%0A1'
    assert (
        redact(text)
        == f'Bearer [redacted {name}]; {{"key": "[redacted {name}]"}}; http://h/?k=[redacted {name}]'
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "EMPTY"),
        ("OPENAI_API_KEY", "not-needed"),
        ("MAX_TOKENS", "400000000"),
        ("SSH_KEY_PATH", "/keys/1234"),
    ],
)
def test_what_is_no_secret_stays(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert redact(f"it says {value}") == f"it says {value}"


def test_a_secret_within_a_longer_one_does_not_leave_its_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_KEY", "abcdefg1")
    monkeypatch.setenv("B_KEY", "abcdefg1-and-more")
    assert redact("abcdefg1-and-more, abcdefg1") == "[redacted B_KEY], [redacted A_KEY]"


@given(st.text(min_size=20), st.text(), st.text())
def test_no_remembered_secret_survives_as_text_or_json(
    secret: str, before: str, after: str
) -> None:
    remember_secret(secret, "api_key")
    text = before + secret + after
    assert secret not in redact(text)
    assert secret not in redact(json.dumps({"a": text}))


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1", "1"),
        ("  export A = two words  # said", "two words"),
        ("A=with#hash", "with#hash"),
        ("A='single # \\n $X'", "single # \\n $X"),
        ('A="double \\"quoted\\" \\n" # said', 'double "quoted" \n'),
        ("A=", ""),
        ("A=it's", "it's"),
        ('A="-----BEGIN\nKEY-----"', "-----BEGIN\nKEY-----"),
        ("A=eyJ==\r", "eyJ=="),
        ("A=a=b", "a=b"),
    ],
)
def test_a_value_is_read_as_it_is_meant(line: str, value: str) -> None:
    assert parse_env(f"# first\n\n{line}\nLAST=x") == ({"A": value, "LAST": "x"}, [])


def test_lines_that_are_none_are_counted_and_not_told(tmp_path: Path) -> None:
    file = tmp_path / "some.env"
    file.write_text("\ufeff# keys\nsk-secret\nKEY='sk-secret\n\n1A=2\n")
    notes = load_env_file(file)
    assert notes == [f"{file}, line {number}: not NAME=VALUE, ignored" for number in (2, 3, 5)]
    file.write_bytes(b"A=\xff")
    with pytest.raises(UserError, match=r"some\.env cannot be read"):
        load_env_file(file)


@given(st.text())
def test_any_text_is_read_to_its_end(text: str) -> None:
    values, _ = parse_env(text)
    assert all("\n" not in name for name in values)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]*", fullmatch=True),
        st.text(st.characters(exclude_characters="'")),
    )
)
def test_what_is_quoted_comes_back(values: dict[str, str]) -> None:
    assert parse_env("".join(f"{name}='{value}'\n" for name, value in values.items())) == (
        values,
        [],
    )
