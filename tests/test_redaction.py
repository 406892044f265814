"""Secrets do not reach what is written; ordinary words do."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench import redaction
from cooperbench.redaction import redact, remember


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_remembered", {})


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "my_password", "AZURE_API_KEY_2"]
)
def test_values_of_secret_variables_are_replaced_wherever_they_stand(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
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


def test_a_secret_within_a_longer_one_does_not_leave_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "abcdefg1")
    monkeypatch.setenv("B_KEY", "abcdefg1-and-more")
    assert redact("abcdefg1-and-more, abcdefg1") == "[redacted B_KEY], [redacted A_KEY]"


@given(st.text(min_size=20), st.text(), st.text())
def test_no_remembered_secret_survives_as_text_or_json(secret: str, before: str, after: str) -> None:
    remember(secret, "api_key")
    text = before + secret + after
    assert secret not in redact(text)
    assert secret not in redact(json.dumps({"a": text}))
