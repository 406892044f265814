"""One browser for all tests of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.report.browser import start_browser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.report.browser import Browser


@pytest.fixture(scope="session")
def _one_browser() -> Iterator[Browser]:
    browser = start_browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(_one_browser: Browser) -> Browser:
    """Wide and light; a test that wants something else says so."""
    _one_browser.look()
    return _one_browser
