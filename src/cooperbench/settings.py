"""The user's own settings: a JSON file in the platform's place, overridden by environment variables.

A backend declares its settings as a dataclass whose fields are made by `setting`, and reads them with `read_section`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field, fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from cooperbench.errors import UserError
from cooperbench.models import EVAL_NETWORKS, EvalNetwork
from cooperbench.storage import write_json

BACKEND_VARIABLE = "COOPERBENCH_BACKEND"
DOCUMENTED_BACKEND = "modal"
BACKEND_DEFAULT = f"${BACKEND_VARIABLE}, your config, {DOCUMENTED_BACKEND}"
"""Of `--backend`, for its help."""
EVAL_NETWORK_VARIABLE = "COOPERBENCH_EVAL_NETWORK"
Parser = Callable[[Any], object]
"""What a keyword, a variable or the file says as a value of the right type; ValueError says what it should be."""


def config_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(base) / "cooperbench" / "config.json"


def default_cache_dir() -> Path:
    """$COOPERBENCH_CACHE_DIR, else the user's cache folder."""
    if own := os.environ.get("COOPERBENCH_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "cooperbench"


def load_settings() -> dict[str, Any]:
    path = config_file()
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; fix or remove it") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object; fix or remove it")
    return content


def save_setting(key: str, value: str | None) -> None:
    """Set a key, or remove it with None."""
    content = load_settings()
    if value is None:
        content.pop(key, None)
    else:
        content[key] = value
    write_json(config_file(), content)


def default_backend() -> str:
    """For the command line: environment, file, then what the documentation says."""
    return os.environ.get(BACKEND_VARIABLE) or str(load_settings().get("backend") or DOCUMENTED_BACKEND)


def default_eval_network() -> EvalNetwork:
    """For the command line: environment, file, then `auto`."""
    value = os.environ.get(EVAL_NETWORK_VARIABLE) or load_settings().get("eval_network") or "auto"
    return checked_eval_network(value)


def checked_eval_network(value: object) -> EvalNetwork:
    found = next((policy for policy in EVAL_NETWORKS if policy == value), None)
    if found is None:
        raise UserError(f"the network of evaluation is {value!r}; it is one of {', '.join(EVAL_NETWORKS)}")
    return found


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
    for names, where in ((given, f"the {section} backend"), (filed, f"{config_file()}: `{section}`")):
        if unknown := sorted(set(names) - set(parsers)):
            raise UserError(f"{where} has no setting {unknown[0]!r}; there are: {', '.join(parsers)}")
    values: dict[str, Any] = {}
    for name, parse in parsers.items():
        variable = variables.get(name, f"COOPERBENCH_{section}_{name}".upper())
        found = given[name] if given.get(name) is not None else os.environ.get(variable) or filed.get(name)
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


def import_named(name: str) -> ModuleType:
    """A module that the user names; one that is not installed may lie in the working directory, as with `python -m`."""
    with suppress(ModuleNotFoundError):
        return import_module(name)
    # Last, and only now: a folder here must not pass for a library that is not installed.
    sys.path.append(str(Path.cwd()))
    return import_module(name)
