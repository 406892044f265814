from __future__ import annotations

import pytest

from cooperbench.author.secret_search import find_secrets


@pytest.mark.parametrize(
    "text",
    [
        "key = 'AKIA" + "ABCDEFGHIJKLMNOP'",
        "-----BEGIN RSA " + "PRIVATE KEY-----",
        "ghp_" + "a1" * 18,
        "url = https://user:" + "hunter2hunter2@host.invalid/",
    ],
)
def test_keys_of_known_forms_are_found_but_not_shown(text: str) -> None:
    (finding,) = find_secrets(f"first line\n{text}\n")
    assert finding.startswith("line 2 has ")
    assert text not in finding


def test_keys_of_the_environment_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPANY_TOKEN", "xyz-123456789-abc")
    assert find_secrets("x = 'xyz-123456789-abc'") == ["line 1 has a key of your environment"]


@pytest.mark.parametrize("text", ["https://user:password@example.com/", "task-1234", "sk-short"])
def test_examples_are_not_secrets(text: str) -> None:
    assert find_secrets(text) == []
