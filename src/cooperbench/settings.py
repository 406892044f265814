"""The user's own settings: a JSON file in the platform's place, overridden by environment variables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cooperbench.errors import UserError
from cooperbench.storage import write_json

BACKEND_VARIABLE = "COOPERBENCH_BACKEND"
DOCUMENTED_BACKEND = "modal"


def config_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(base) / "cooperbench" / "config.json"


def load_settings() -> dict[str, Any]:
    path = config_file()
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; mend or remove it") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object; mend or remove it")
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
