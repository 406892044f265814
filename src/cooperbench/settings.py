"""The user's own settings: a JSON file in the platform's place, overridden by environment variables.

Those of a backend are declared in its package (`backends/setting_fields`).
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from cooperbench.errors import UserError
from cooperbench.models import EVAL_NETWORKS, EvalNetwork
from cooperbench.storage import write_json

BACKEND_VARIABLE = "COOPERBENCH_BACKEND"
DEFAULT_BACKEND = "modal"
BACKEND_DEFAULT = f"${BACKEND_VARIABLE}, your config, {DEFAULT_BACKEND}"
"""Of `--backend`, for its help."""
EVAL_NETWORK_VARIABLE = "COOPERBENCH_EVAL_NETWORK"


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
    return os.environ.get(BACKEND_VARIABLE) or str(
        load_settings().get("backend") or DEFAULT_BACKEND
    )


def default_eval_network() -> EvalNetwork:
    """For the command line: environment, file, then `auto`."""
    value = os.environ.get(EVAL_NETWORK_VARIABLE) or load_settings().get("eval_network") or "auto"
    return check_eval_network(value)


def check_eval_network(value: object) -> EvalNetwork:
    found = next((policy for policy in EVAL_NETWORKS if policy == value), None)
    if found is None:
        raise UserError(f"eval_network is {value!r}; it must be one of {', '.join(EVAL_NETWORKS)}")
    return found


def import_user_module(name: str) -> ModuleType:
    """A module that the user names; one that is not installed may lie in the working directory, as with `python -m`."""
    with suppress(ModuleNotFoundError):
        return import_module(name)
    # Last, and only now: a folder here must not pass for a library that is not installed.
    sys.path.append(str(Path.cwd()))
    return import_module(name)
