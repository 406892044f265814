"""The user's settings: a JSON file, overridden by environment variables.

The settings of a backend are declared in its package (`backends/setting_fields`).
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from cooperbench.errors import UserError
from cooperbench.models import EVAL_NETWORKS, EvalNetwork
from cooperbench.storage import write_json

BACKEND_VARIABLE = "COOPERBENCH_BACKEND"
DEFAULT_BACKEND = "modal"
BACKEND_DEFAULT = f"${BACKEND_VARIABLE}, your config, {DEFAULT_BACKEND}"
"""Description of the default of `--backend`, for its help."""
EVAL_NETWORK_VARIABLE = "COOPERBENCH_EVAL_NETWORK"


class GeneralSetting(NamedTuple):
    """A setting that does not belong to a backend, for the documentation."""

    variable: str
    key: str
    """Key in the settings file; empty if it cannot be set there."""
    meaning: str


GENERAL_SETTINGS = (
    GeneralSetting(
        BACKEND_VARIABLE, "backend", f"default of `--backend`; without it, `{DEFAULT_BACKEND}`"
    ),
    GeneralSetting(
        EVAL_NETWORK_VARIABLE, "eval_network", "default of `--eval-network`; without it, `auto`"
    ),
    GeneralSetting(
        "COOPERBENCH_DATASET_DIR", "", "default of `--dataset-dir`; without it, `dataset`"
    ),
    GeneralSetting(
        "COOPERBENCH_CACHE_DIR",
        "",
        "folder of images, prepared tasks and recorded runs of golden patches; without it,"
        " `$XDG_CACHE_HOME/cooperbench` or `~/.cache/cooperbench`",
    ),
    GeneralSetting(
        "COOPERBENCH_DATA_DIR",
        "",
        "folder of the environments of frameworks and command-line agents; without it,"
        " `$XDG_DATA_HOME/cooperbench` or `~/.local/share/cooperbench`",
    ),
    GeneralSetting(
        "COOPERBENCH_IMAGE_TEMPLATE", "", "default of `--image-template`, for all backends"
    ),
    GeneralSetting(
        "COOPERBENCH_BUILD_ARGS",
        "",
        "build arguments of Dockerfiles: NAME=VALUE, separated by spaces",
    ),
    GeneralSetting(
        "COOPERBENCH_EXTERNAL_AGENTS", "", "modules that register agents, separated by commas"
    ),
    GeneralSetting(
        "COOPERBENCH_MODEL_RETRY_TIMEOUT",
        "",
        "seconds for which a failing model call is retried (300)",
    ),
    GeneralSetting("XDG_CONFIG_HOME", "", "folder to use instead of `~/.config`"),
)
"""All settings that do not belong to a backend."""


def config_file() -> Path:
    """Return the path of the settings file."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(base) / "cooperbench" / "config.json"


def default_cache_dir() -> Path:
    """Return $COOPERBENCH_CACHE_DIR, or a folder in the user's cache folder."""
    if own := os.environ.get("COOPERBENCH_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "cooperbench"


def load_settings() -> dict[str, Any]:
    """Return the content of the settings file; empty if there is no file."""
    path = config_file()
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; fix or remove it") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not contain a JSON object; fix or remove it")
    return content


def save_setting(key: str, value: str | None) -> None:
    """Set a key in the settings file; None removes it."""
    content = load_settings()
    if value is None:
        content.pop(key, None)
    else:
        content[key] = value
    write_json(config_file(), content)


def default_backend() -> str:
    """Return the default of `--backend`: environment, settings file, then `DEFAULT_BACKEND`."""
    if backend := os.environ.get(BACKEND_VARIABLE):
        return backend
    return str(load_settings().get("backend") or DEFAULT_BACKEND)


def default_eval_network() -> EvalNetwork:
    """Return the default of `--eval-network`: environment, settings file, then `auto`."""
    value = os.environ.get(EVAL_NETWORK_VARIABLE) or load_settings().get("eval_network") or "auto"
    return check_eval_network(value)


def check_eval_network(value: object) -> EvalNetwork:
    """Return a valid network policy; UserError for any other value."""
    for policy in EVAL_NETWORKS:
        if policy == value:
            return policy
    raise UserError(f"eval_network is {value!r}; it must be one of {', '.join(EVAL_NETWORKS)}")


def import_user_module(name: str) -> ModuleType:
    """Import a module that the user named, installed or in the working directory."""
    with suppress(ModuleNotFoundError):
        return import_module(name)
    # At the end of the path: a folder here must not hide a library.
    sys.path.append(str(Path.cwd()))
    return import_module(name)
