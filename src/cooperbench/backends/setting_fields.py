"""Settings of a backend: a dataclass with fields made by `setting`, read by `read_section`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any

from cooperbench.errors import UserError
from cooperbench.settings import config_file, load_settings

Parser = Callable[[Any], object]
"""A function that turns a keyword, a variable or a value of config.json into the right type.

It raises ValueError with a message that says what the value should be."""

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "k": 1024,
    "m": 1024**2,
    "g": 1024**3,
    "t": 1024**4,
}
_SIZE = re.compile(
    r"""
    (?P<number>[0-9]{1,15}(\.[0-9]{1,6})?)
    \s*
    (?P<unit>[bkmgt]?)
    (i?b)?
    """,
    re.VERBOSE,
)
_WHOLE_NUMBER = re.compile(r"[0-9]{1,6}")


def setting(default: Any, parse: Parser) -> Any:
    """Declare a field of a backend's settings: its default, and how it is parsed."""
    return field(default_factory=lambda: default, metadata={"parse": parse})


def parsers_of(settings_class: type) -> dict[str, Parser]:
    """Return the parsers of a dataclass whose fields are made by `setting`, by name."""
    return {declared.name: declared.metadata["parse"] for declared in fields(settings_class)}


def read_section(
    section: str,
    parsers: Mapping[str, Parser],
    keywords: Mapping[str, object],
    variables: Mapping[str, str],
    file_values: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return those of a backend's settings that are set.

    A keyword comes before an environment variable, and that before config.json.

    Args:
        section: Name of the backend and of its object in config.json.
        parsers: All settings, with their parsers.
        keywords: Arguments of the backend's constructor; None means that it is not set.
        variables: Environment variables that are not called COOPERBENCH_<section>_<name>.
        file_values: Values to use instead of those in config.json.

    Raises:
        UserError: A setting does not exist or has an invalid value.
    """
    if file_values is None:
        file_values = load_settings().get(section, {})
    if not isinstance(file_values, dict):
        raise UserError(f"{config_file()}: `{section}` must be an object")
    _check_names(keywords, parsers, source=f"the {section} backend")
    _check_names(file_values, parsers, source=f"{config_file()}: `{section}`")
    values: dict[str, Any] = {}
    for name, parse in parsers.items():
        value = keywords.get(name)
        if value is None:
            variable = variables.get(name, f"COOPERBENCH_{section}_{name}".upper())
            value = os.environ.get(variable) or file_values.get(name)
        if value is None or value == "":
            continue
        try:
            values[name] = parse(value)
        except ValueError as error:
            raise UserError(f"{section} setting {name}: {error}") from None
    return values


def _check_names(
    values: Mapping[str, object], parsers: Mapping[str, Parser], *, source: str
) -> None:
    unknown = sorted(set(values) - set(parsers))
    if unknown:
        available = ", ".join(parsers)
        raise UserError(f"{source} has no setting {unknown[0]!r}; available: {available}")


def matching(pattern: str, shape: str) -> Callable[[object], str]:
    """Return a parser of text that matches a pattern.

    `shape` describes the pattern for the user.
    """

    def parse(value: object) -> str:
        text = str(value).strip()
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} is not valid; it is {shape}")
        return text

    return parse


def one_of(*choices: str) -> Callable[[object], str]:
    """Return a parser that accepts only these values."""

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is unknown; valid values: {', '.join(choices)}")
        return str(value)

    return parse


def whole_number(value: object) -> int:
    """Parse a whole number above 0."""
    text = str(value)
    if not _WHOLE_NUMBER.fullmatch(text) or int(text) == 0:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


def byte_size(value: object) -> int:
    """Parse a number of bytes such as 8g or 512 MiB."""
    match = _SIZE.fullmatch(str(value).strip().lower())
    if not match:
        raise ValueError(f"{str(value)!r} is not a limit, e.g. 8g")
    return int(float(match["number"]) * _SIZE_UNITS[match["unit"]])


def word_list(value: Any) -> tuple[str, ...]:
    """Parse words that are separated by commas or spaces, or a list of them."""
    items = re.split(r"[\s,]+", value) if isinstance(value, str) else value
    return tuple(str(item) for item in items if item)


def name_value_pairs(value: object) -> dict[str, str]:
    """Parse `NAME=VALUE`, quoted as in a shell and separated by spaces, or an object."""
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items()}
    pairs: dict[str, str] = {}
    for assignment in shlex.split(str(value)):
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"{assignment!r} is not NAME=VALUE")
        pairs[name] = text
    return pairs
