"""A real browser for the tests of the page: Debian's chromium, driven by its own driver, nothing downloaded."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from tests.support.requirements import require_program

if TYPE_CHECKING:
    from collections.abc import Callable

_WAIT_SECONDS = 20.0


class Browser:
    """One window. Every page that is opened in it must stay without a word on the console."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for argument in (
            *(
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ),
            *("--disable-extensions", "--disable-background-networking", "--window-size=1280,900"),
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # It leaves folders behind wherever it is told to put what is temporary.
        self._temporary = tempfile.TemporaryDirectory(
            prefix="cooperbench-browser-", ignore_cleanup_errors=True
        )
        there = {**os.environ, "TMPDIR": self._temporary.name}
        service = Service(shutil.which("chromedriver"), env=there)
        self.driver = webdriver.Chrome(options=options, service=service)

    def close(self) -> None:
        self.driver.quit()
        self._temporary.cleanup()

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """As which device, and what its user prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._command("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})

    def _command(self, name: str, parameters: dict[str, Any]) -> None:
        self.driver.execute_cdp_cmd(name, parameters)

    def open(self, page: Path | str, address: str = "") -> None:
        """A file or an address, loaded anew."""
        url = page.resolve().as_uri() if isinstance(page, Path) else page
        self.driver.get("about:blank")
        self.console()
        self.driver.get(url + address)
        self.until(lambda: self.ask("return document.querySelector('main h1, main h2') !== null"))

    def console(self) -> list[dict[str, Any]]:
        """What was written to it since it was last asked for."""
        lines: list[dict[str, Any]] = self.driver.execute("getLog", {"type": "browser"})["value"]
        return lines

    def ask(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        """What is to be read in the elements, as a person sees it."""
        found = self.ask(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText ?? one.textContent)",
            selector,
        )
        return [str(one) for one in found]

    def text(self, selector: str) -> str:
        return self.texts(selector)[0]

    def count(self, selector: str) -> int:
        return int(self.ask("return document.querySelectorAll(arguments[0]).length", selector))

    def click(self, selector: str) -> None:
        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        self.ask("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def choose(self, name: str, value: str) -> None:
        """In a list to choose from."""
        self.ask(
            "const [one, value] = [document.querySelector(`select[name=${arguments[0]}]`), arguments[1]];"
            "if (![...one.options].some((option) => option.value === value)) throw new Error('no ' + value);"
            "one.value = value; one.dispatchEvent(new Event('change', {bubbles: true}))",
            name,
            value,
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    @property
    def address(self) -> str:
        return str(self.ask("return location.hash"))

    def until(self, holds: Callable[[], object]) -> None:
        """Wait for what takes its time; fails after a while."""
        end = time.monotonic() + _WAIT_SECONDS
        while not holds():
            assert time.monotonic() < end, "it did not come to pass"
            time.sleep(0.02)

    def assert_silent(self) -> None:
        """Nothing on the console, and nothing loaded from elsewhere."""
        assert self.console() == []
        asked_for = self.ask(
            "return performance.getEntriesByType('resource').map((one) => one.name)"
        )
        assert [
            name for name in asked_for if not name.startswith(("file:", "http://127.0.0.1:"))
        ] == []

    def contrast_failures(self) -> list[str]:
        """Texts whose contrast is below WCAG AA (4.5 to 1)."""
        return [json.dumps(one) for one in self.ask(_CONTRAST)]


def start_browser() -> Browser:
    """Start a browser, or skip the running test."""
    require_program("chromium")
    require_program("chromedriver", package="chromium-driver")
    return Browser()


_CONTRAST = """
const channel = (value) => { const one = value / 255; return one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4; };
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = (text) => { const all = text.match(/[0-9.]+/g).map(Number); return all.length < 4 || all[3] > 0 ? all.slice(0, 3) : null; };
const behind = (node) => {
  for (let one = node; one; one = one.parentElement) {
    const colour = parse(getComputedStyle(one).backgroundColor);
    if (colour) return colour;
  }
  return [255, 255, 255];
};
const failures = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !node.checkVisibility() || node.closest("script, style, option, .visually-hidden, #tip")) continue;
  const style = getComputedStyle(node);
  const [one, other] = [light(parse(node.closest("svg") ? style.fill : style.color)), light(behind(node))];
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (ratio < 4.5) failures.push([walker.currentNode.textContent.trim().slice(0, 40), node.className.toString(), Number(ratio.toFixed(2))]);
}
return failures;
"""
