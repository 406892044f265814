from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _impatient(impatient: None) -> None:
    """All tests of this folder ask a model."""
