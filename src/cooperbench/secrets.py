"""API keys: how they come from `.env`, and how they are kept out of everything that is written or shown.

A secret is the value of an environment variable whose name says so, or one that was handed to `remember_secret`. Only these
exact values are replaced, and not those too short or plain (`EMPTY`): guessing would change what agents wrote.
"""

from __future__ import annotations

import json
import os
import re
import threading
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from cooperbench.errors import UserError

ENV_FILE = ".env"
_LINE = re.compile(
    r"""[ \t]*(?:\#[^\n]*)?(?:\r?\n|\Z)
    |[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*
    (?:'(?P<single>[^']*)' | "(?P<double>(?:[^"\\]|\\.)*)" | (?P<plain>(?!['"])[^\r\n]*?))
    [ \t]*(?:(?<=[ \t'"])\#[^\r\n]*)?(?:\r?\n|\Z)
    |(?P<wrong>[^\n]*(?:\n|\Z))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_NAMES = re.compile(
    r"(?:^|_)(?:KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE)(?:_\d+)?$", re.IGNORECASE
)
_SHORTEST = 8
_LONG_WITHOUT_DIGITS = 20
_remembered: dict[str, str] = {}
_lock = threading.Lock()


def parse_env(text: str) -> tuple[dict[str, str], list[int]]:
    """The values, and the numbers of lines that are no `NAME=VALUE`. Quoted values may have several lines."""
    text = text.removeprefix("\ufeff")
    values: dict[str, str] = {}
    wrong_lines = []
    for line in _LINE.finditer(text):
        if line["wrong"] is not None:
            wrong_lines.append(text.count("\n", 0, line.start()) + 1)
        elif line["double"] is not None:
            unescaped = re.sub(
                r"\\([nrt\\\"'$])", lambda one: _ESCAPES.get(one[1], one[1]), line["double"]
            )
            values[line["name"]] = unescaped
        elif line["name"]:
            values[line["name"]] = line["single"] or line["plain"] or ""
    return values, wrong_lines


def load_env_file(path: Path | None = None) -> list[str]:
    """Set what is not set yet; says which lines were ignored, without their text: it may hold a key."""
    path = path or Path(ENV_FILE)
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}; fix or remove it") from error
    values, wrong_lines = parse_env(text)
    for name, value in values.items():
        if "\0" not in value:
            os.environ.setdefault(name, value)
    return [f"{path}, line {number}: not NAME=VALUE, ignored" for number in wrong_lines]


def redact(text: str) -> str:
    """The text with `[redacted NAME]` in the place of every known secret."""
    with _lock:
        found = dict(_remembered)
    # Each line of a record comes here: only the values of the few variables that count are looked at.
    named = {name: os.environ.get(name, "") for name in os.environ if is_secret_name(name)}
    found |= {value: name for name, value in named.items() if _is_secret(value)}
    # As it is, in JSON, in a URL.
    forms = {
        form: name
        for value, name in found.items()
        for form in (value, json.dumps(value)[1:-1], quote(value, safe=""))
    }
    for form in sorted(forms, key=len, reverse=True):  # one may be a part of another
        text = text.replace(form, f"[redacted {forms[form]}]")
    return text


def remember_secret(value: str, name: str) -> None:
    """A secret that is in no environment variable; `name` is what stands in its place."""
    if _is_secret(value):
        with _lock:
            _remembered[value] = name


@lru_cache(maxsize=1000)
def is_secret_name(name: str) -> bool:
    """Whether a variable or a setting of this name holds a secret."""
    return _NAMES.search(name) is not None


def _is_secret(value: str) -> bool:
    if len(value) < _SHORTEST:
        return False
    return len(value) >= _LONG_WITHOUT_DIGITS or any(letter.isdigit() for letter in value)
