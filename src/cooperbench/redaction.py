"""Keeps secrets out of whatever is written or shown: logs, trajectories, errors.

A secret is the value of an environment variable whose name says so (`…_API_KEY`, `…_TOKEN`, `…_SECRET`,
`…_PASSWORD`), or a value that was handed to `remember`, e.g. from an agent config. Only these exact values are
replaced: guessing by shape would change what agents really wrote. Values that are too short or too plain to be a
secret (`EMPTY`, `not-needed`) are left alone, since replacing such words everywhere would do the same.
"""

from __future__ import annotations

import json
import os
import re
import threading
from urllib.parse import quote

_NAMES = re.compile(r"(?:^|_)(?:KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE)(?:_\d+)?$", re.IGNORECASE)
_SHORTEST = 8
_LONG_WITHOUT_DIGITS = 20
_remembered: dict[str, str] = {}
_lock = threading.Lock()


def redact(text: str) -> str:
    """The text with `[redacted NAME]` in the place of every known secret."""
    for value, name in _secrets():
        if value in text:
            text = text.replace(value, f"[redacted {name}]")
    return text


def remember(value: str, name: str) -> None:
    """A secret that is in no environment variable; `name` is what stands in its place."""
    if _is_secret(value):
        with _lock:
            _remembered[value] = name


def is_secret_name(name: str) -> bool:
    """Whether a variable or a setting of this name holds a secret."""
    return _NAMES.search(name) is not None


def _secrets() -> list[tuple[str, str]]:
    """Every form of every secret, the longest first: one may be a part of another."""
    with _lock:
        found = dict(_remembered)
    found |= {value: name for name, value in os.environ.items() if is_secret_name(name) and _is_secret(value)}
    forms = {form: name for value, name in found.items() for form in _forms(value)}
    return sorted(forms.items(), key=lambda item: -len(item[0]))


def _is_secret(value: str) -> bool:
    if len(value) < _SHORTEST:
        return False
    return len(value) >= _LONG_WITHOUT_DIGITS or any(letter.isdigit() for letter in value)


def _forms(value: str) -> set[str]:
    """As it is, in JSON, in a URL."""
    return {value, json.dumps(value)[1:-1], quote(value, safe="")}
