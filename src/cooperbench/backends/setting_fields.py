"""Settings of a backend: a dataclass whose fields are made by `setting`, read with `read_section`."""

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
"""What a keyword, a variable or the file says as a value of the right type; ValueError says what it should be."""


def setting(default: Any, parse: Parser) -> Any:
    """A field of a backend's settings: what it is where nobody sets it, and how it is read."""
    return field(default_factory=lambda: default, metadata={"parse": parse})


def parsers_of(kind: type) -> dict[str, Parser]:
    """Of a dataclass whose fields are made by `setting`."""
    return {declared.name: declared.metadata["parse"] for declared in fields(kind)}


def read_section(
    section: str,
    parsers: Mapping[str, Parser],
    given: Mapping[str, object],
    variables: Mapping[str, str],
    filed: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Those of a backend's settings that are set: by keyword, else by variable, else in its object of config.json.

    `variables`: those that are not called COOPERBENCH_<section>_<name>. `filed`: in the place of that object.
    """
    if filed is None:
        filed = load_settings().get(section, {})
    if not isinstance(filed, dict):
        raise UserError(f"{config_file()}: `{section}` must be an object")
    for names, where in (
        (given, f"the {section} backend"),
        (filed, f"{config_file()}: `{section}`"),
    ):
        if unknown := sorted(set(names) - set(parsers)):
            raise UserError(
                f"{where} has no setting {unknown[0]!r}; there are: {', '.join(parsers)}"
            )
    values: dict[str, Any] = {}
    for name, parse in parsers.items():
        variable = variables.get(name, f"COOPERBENCH_{section}_{name}".upper())
        found = (
            given[name]
            if given.get(name) is not None
            else os.environ.get(variable) or filed.get(name)
        )
        if found is None or found == "":
            continue
        try:
            values[name] = parse(found)
        except ValueError as error:
            raise UserError(f"{section} setting {name}: {error}") from None
    return values


def matching(pattern: str, shape: str) -> Callable[[object], str]:
    """A parser of text that matches a pattern; `shape` describes it for the user."""

    def parse(value: object) -> str:
        text = str(value).strip()
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} is not valid; it is {shape}")
        return text

    return parse


def one_of(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is unknown; there are: {', '.join(choices)}")
        return str(value)

    return parse


def whole_number(value: object) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", str(value)) or int(str(value)) == 0:
        raise ValueError(f"{str(value)!r} is not a whole number above 0")
    return int(str(value))


def byte_size(value: object) -> int:
    match = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([bkmgt]?)(?:i?b)?", str(value).strip().lower()
    )
    if not match:
        raise ValueError(f"{str(value)!r} is not a limit, e.g. 8g")
    return int(float(match[1]) * 1024 ** "bkmgt".find(match[2] or "b"))


def word_list(value: Any) -> tuple[str, ...]:
    """Separated by commas or spaces, or a list."""
    words = re.split(r"[\s,]+", value) if isinstance(value, str) else value
    return tuple(str(word) for word in words if word)


def name_value_pairs(value: object) -> dict[str, str]:
    """`NAME=VALUE`, quoted as in a shell and separated by spaces, or an object."""
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items()}
    words = shlex.split(str(value))
    for word in words:
        if "=" not in word:
            raise ValueError(f"{word!r} is not NAME=VALUE")
    return {name: text for name, _, text in (word.partition("=") for word in words)}
