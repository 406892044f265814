"""API keys: reading them from `.env`, and redacting them in everything that is written or shown.

A secret is the value of an environment variable with a telling name, or a value that was passed to
`remember_secret`. Only these exact values are replaced, and only if they are long enough: guessing
would change what agents wrote.
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
    r"""
    # An empty line or a comment.
    [ \t]*(?:\#[^\n]*)?(?:\r?\n|\Z)
    # NAME=VALUE, perhaps after `export`; the value may be quoted.
    |[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*
    (?:'(?P<single>[^']*)' | "(?P<double>(?:[^"\\]|\\.)*)" | (?P<plain>(?!['"])[^\r\n]*?))
    # The rest of that line: perhaps a comment.
    [ \t]*(?:(?<=[ \t'"])\#[^\r\n]*)?(?:\r?\n|\Z)
    # Anything else is an error.
    |(?P<wrong>[^\n]*(?:\n|\Z))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([nrt\\\"'$])")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_NAMES = re.compile(
    r"(?:^|_)(?:KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE)(?:_\d+)?$", re.IGNORECASE
)
_MIN_LENGTH = 8
_MIN_LENGTH_WITHOUT_DIGITS = 20
_remembered: dict[str, str] = {}
_lock = threading.Lock()


def parse_env(text: str) -> tuple[dict[str, str], list[int]]:
    """Return the values by name, and the numbers of lines that are not `NAME=VALUE`.

    Quoted values may span several lines.
    """
    text = text.removeprefix("\ufeff")
    values: dict[str, str] = {}
    wrong_lines = []
    for line in _LINE.finditer(text):
        if line["wrong"] is not None:
            wrong_lines.append(text.count("\n", 0, line.start()) + 1)
        elif line["double"] is not None:
            values[line["name"]] = _ESCAPE.sub(_unescape, line["double"])
        elif line["name"]:
            values[line["name"]] = line["single"] or line["plain"] or ""
    return values, wrong_lines


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])


def load_env_file(path: Path | None = None) -> list[str]:
    """Set the variables of a file that are not set yet.

    Returns:
        A warning for each invalid line, without its text, because that may contain a key.
    """
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
    """Return the text with every known secret replaced by `[redacted NAME]`."""
    with _lock:
        secrets = dict(_remembered)
    # This runs for every line of a record, so it reads only variables with a telling name.
    for name in os.environ:
        if is_secret_name(name):
            value = os.environ.get(name, "")
            if _is_secret(value):
                secrets[value] = name
    encoded: dict[str, str] = {}
    for value, name in secrets.items():
        in_json = json.dumps(value)[1:-1]
        in_url = quote(value, safe="")
        encoded |= {value: name, in_json: name, in_url: name}
    # The longest first, because one secret may be part of another.
    for form in sorted(encoded, key=len, reverse=True):
        text = text.replace(form, f"[redacted {encoded[form]}]")
    return text


def remember_secret(value: str, name: str) -> None:
    """Redact a value that is in no environment variable; `name` appears in its place."""
    if _is_secret(value):
        with _lock:
            _remembered[value] = name


@lru_cache(maxsize=1000)
def is_secret_name(name: str) -> bool:
    """Whether a variable or setting of this name contains a secret."""
    return _NAMES.search(name) is not None


def _is_secret(value: str) -> bool:
    if len(value) < _MIN_LENGTH:
        return False
    return len(value) >= _MIN_LENGTH_WITHOUT_DIGITS or any(letter.isdigit() for letter in value)
