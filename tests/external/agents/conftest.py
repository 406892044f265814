from __future__ import annotations

import pytest

from cooperbench.agents.environments import DATA_VARIABLE
from tests.support.agents.frameworks import DATA


@pytest.fixture
def installed_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are those of the tests' cache."""
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
