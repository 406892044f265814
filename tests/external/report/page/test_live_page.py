"""`cooperbench view` in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.report.live import finish, run_with, served

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.report.browser import Browser


@pytest.mark.xdist_group("browser")
def test_open_page_shows_what_happens_meanwhile(browser: Browser, tmp_path: Path) -> None:
    with served(run_with(tmp_path, "killed")) as server:
        browser.open(server.url)
        rows = ".pairs tbody tr"
        assert "running" in browser.texts(rows)[1]
        finish(tmp_path, "integration")
        browser.until(lambda: "failed together" in browser.texts(rows)[1])
        browser.until(lambda: "up to date" in browser.text("#live"))
        browser.click(f"{rows}:nth-child(2) a")
        browser.until(lambda: browser.count("#files code"))
        browser.assert_silent()
    browser.until(lambda: "has gone" in browser.text("#live"))
