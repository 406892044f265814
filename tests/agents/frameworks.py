"""Environments of frameworks for the tests: made once, kept in a cache, used by all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cooperbench.agents.environments.frameworks import get_framework
from cooperbench.agents.environments.store import DATA_VARIABLE, find_environment, install
from cooperbench.errors import UserError
from tests.eval.backends.docker.engines import cache_folder, locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CACHE = cache_folder()
DATA = CACHE / "frameworks"
FIRST_TIME_SECONDS = 1800
"""Some hundred MB may have to be installed."""


def provide(name: str, source: str | None = None) -> None:
    """The environment of a framework, in a data directory of the tests' own."""
    with locked(CACHE / f"{name}.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_VARIABLE, str(DATA))
        framework = get_framework(name)
        if find_environment(framework) is not None:
            return
        try:
            install(framework, source=source, python=None, say=print)
        except UserError as error:
            if "needs Python" in str(error):
                pytest.skip(str(error))
            raise


def using_them() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_VARIABLE, str(DATA))
        yield


def write_config(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path
