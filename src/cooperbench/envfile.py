"""API keys from `.env` in the working directory: `NAME=VALUE` lines become environment variables of this process.

What the environment has already wins. Sandboxes get none of it, since they get nothing of the environment. No shell
is at work here: `$NAME` and back ticks stay as they are.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from cooperbench.errors import UserError

ENV_FILE = ".env"
_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_LINE = re.compile(
    rf"""[ \t]*(?:export[ \t]+)?(?P<name>{_NAME})[ \t]*=[ \t]*
    (?:'(?P<single>[^']*)' | "(?P<double>(?:[^"\\]|\\.)*)" | (?P<plain>(?!['"])[^\r\n]*?))
    [ \t]*(?:(?<=[ \t'"])\#[^\r\n]*)?(?:\r?\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_IGNORED = re.compile(r"[ \t]*(?:\#[^\r\n]*)?(?:\r?\n|\Z)")
_REST = re.compile(r"[^\n]*(?:\n|\Z)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class EnvFile(NamedTuple):
    values: dict[str, str]
    wrong_lines: list[int]
    """Numbers of lines that are no `NAME=VALUE`. Their text is not told: it may hold a key."""


def parse_env(text: str) -> EnvFile:
    """Values may be quoted, then they may have several lines; in double quotes `\\n` and the like are read."""
    text = text.removeprefix("\ufeff")
    found = EnvFile({}, [])
    place = 0
    while place < len(text):
        line = _IGNORED.match(text, place)
        if line is None and (line := _LINE.match(text, place)):
            found.values[line["name"]] = _value(line)
        if line is None:
            found.wrong_lines.append(text.count("\n", 0, place) + 1)
            line = _REST.match(text, place)
            assert line is not None
        place = line.end()
    return found


def load_env_file(path: Path | None = None) -> list[str]:
    """Set what is not set yet; the result is what is to be said about lines that were ignored."""
    path = Path(ENV_FILE) if path is None else path
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}; mend or remove it") from error
    found = parse_env(text)
    for name, value in found.values.items():
        if "\0" not in value:
            os.environ.setdefault(name, value)
    return [f"{path}, line {number}: not NAME=VALUE, ignored" for number in found.wrong_lines]


def _value(line: re.Match[str]) -> str:
    if line["single"] is not None:
        return line["single"]
    if line["double"] is not None:
        return re.sub(r"\\(.)", _unescaped, line["double"], flags=re.DOTALL)
    return line["plain"]


def _unescaped(escape: re.Match[str]) -> str:
    letter = escape[1]
    return _ESCAPES.get(letter) or (letter if letter in "\\\"'$" else escape[0])
