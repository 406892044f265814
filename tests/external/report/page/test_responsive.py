"""The page at three widths, in light and dark: nothing overflows, overlaps or is hard to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.report.loading import load_run
from cooperbench.report.page.build import build_page
from tests.support.report.factory import Style, keys_of, layout, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.pairs import PairKey
    from tests.support.report.browser import Browser
    from tests.support.report.factory import Kind, KindOf

pytestmark = pytest.mark.xdist_group("browser")

PAIRS = layout(repos=2, tasks=4, pairs=20)
LONG_MODEL = "some-provider/some-vendor/a-model-with-a-rather-long-name-2026-11-01"
MODELS = {"model-a": 9, "model-b": 6, LONG_MODEL: 4}
"""How many of ten pairs each model solves alone; together it solves three fewer."""
LOOKS = [(width, dark) for width in (400, 800, 1400) for dark in (False, True)]

OVERFLOWING = """
const visible = [...document.querySelectorAll("body *")].filter((node) =>
  node.checkVisibility() && !node.closest(".visually-hidden, #tip, option"));
const name = (node) => `${node.tagName} ${node.getAttribute("class")} ${node.textContent.slice(0, 60)}`;
const outside = visible.filter((node) => {
  const box = node.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
});
// The lines of entries and the run names in the header are shortened with an ellipsis on purpose.
const cut = visible.filter((node) => node instanceof HTMLElement && !node.matches(".head, #where, input, select")
  && node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflowX !== "visible");
return [...outside, ...cut].map(name);
"""
OVERLAPPING_TEXTS = """
const failures = [];
for (const drawing of document.querySelectorAll("main svg")) {
  const frame = drawing.getBoundingClientRect();
  const texts = [...drawing.querySelectorAll("text")].map((node) => [node, node.getBoundingClientRect()]);
  texts.forEach(([node, box], index) => {
    if (box.left < frame.left - 1 || box.right > frame.right + 1) failures.push("outside: " + node.textContent);
    for (const [other, otherBox] of texts.slice(index + 1)) {
      const apart = box.right <= otherBox.left || otherBox.right <= box.left
        || box.bottom <= otherBox.top + 3 || otherBox.bottom <= box.top + 3;
      if (!apart) failures.push(`${node.textContent} over ${other.textContent}`);
    }
  });
}
return failures;
"""


def solo_kinds(solved: int) -> KindOf:
    """Of ten neighboring pairs the first ones pass."""
    keys = keys_of(PAIRS)
    return lambda key: "passed" if keys.index(key) % 10 < solved else "capability"


def coop_kinds(solved: int) -> KindOf:
    """The first ones pass, and the others fail in different ways."""
    keys = keys_of(PAIRS)
    failures: tuple[Kind, ...] = ("conflict", "integration", "capability")

    def kind_of(key: PairKey) -> Kind:
        index = keys.index(key)
        return "passed" if index % 10 < solved else failures[index % 3]

    return kind_of


@pytest.fixture(scope="session")
def models_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models in solo and coop, one of them also in team, and an unsound pair."""
    logs = tmp_path_factory.mktemp("models")
    names = []
    for number, (model, solved) in enumerate(MODELS.items(), 1):
        style = Style(models=(model, model), cost=0.25 * number)
        write_run(logs, f"{number}-solo", PAIRS, solo_kinds(solved), setting="solo", style=style)
        write_run(
            logs, f"{number}-coop", PAIRS, coop_kinds(solved - 3), setting="coop", style=style
        )
        names += [f"{number}-coop", f"{number}-solo"]
    style = Style(models=("model-a", "model-a"))
    write_run(logs, "1-team", PAIRS, "integration", setting="team", style=style)
    target = logs / "models.html"
    build_page([load_run(logs, name) for name in (*names, "1-team")], target)
    return target


def first_failed_pair() -> str:
    key = keys_of(PAIRS)[0]
    return f"#/pair/{key.repo}/{key.task_id}/{key.group}?run=1-team:team"


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_overview_fits(browser: Browser, models_page: Path, width: int, dark: bool) -> None:
    browser.look(width=width, dark=dark)
    browser.open(models_page)
    browser.until(lambda: browser.count("#difficulty svg text"))
    browser.ask(
        "document.querySelectorAll('main details').forEach((node) => { node.open = true; })"
    )
    browser.until(lambda: browser.count("#success-rates details svg text"))
    assert browser.ask("return document.documentElement.scrollWidth") <= width
    assert browser.ask(OVERFLOWING) == []
    assert browser.ask(OVERLAPPING_TEXTS) == []
    assert browser.contrast_failures() == []
    browser.assert_silent()


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_pair_fits(browser: Browser, models_page: Path, width: int, dark: bool) -> None:
    browser.look(width=width, dark=dark)
    for address in (first_failed_pair(), first_failed_pair() + "&vs=1-solo:solo"):
        browser.open(models_page, address)
        browser.until(lambda: browser.count(".strip svg text"))
        browser.ask(
            "document.querySelectorAll('main details').forEach((node) => { node.open = true; })"
        )
        assert browser.ask("return document.documentElement.scrollWidth") <= width
        assert browser.ask(OVERFLOWING) == []
        assert browser.ask(OVERLAPPING_TEXTS) == []
        assert browser.contrast_failures() == []
        browser.assert_silent()


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_failure_is_in_sight_at_once(
    browser: Browser, models_page: Path, width: int, dark: bool
) -> None:
    """The failing test and its error are on the first screen of a failed pair."""
    browser.look(width=width, dark=dark)
    browser.open(models_page, first_failed_pair())
    bottom = "return document.querySelector('.why .error').getBoundingClientRect().bottom"
    assert "test_edge" in browser.text(".why .test")
    assert "AssertionError" in browser.text(".why .error")
    assert 0 < browser.ask(bottom) < 700


def test_every_model_has_a_row_with_both_intervals(browser: Browser, models_page: Path) -> None:
    browser.open(models_page)
    browser.until(lambda: browser.count("#deficit .drawing .whisker") == 8)
    assert browser.count(".figure") == 0, "no model is promoted"
    labels = browser.texts("#deficit figure:first-child svg text:not(.quiet)")
    assert [label.split()[0] for label in labels] == ["model-a", "model-a", "model-b", LONG_MODEL]


def test_whiskers_are_drawn_like_their_legend(browser: Browser, models_page: Path) -> None:
    browser.open(models_page)
    browser.until(lambda: browser.count("#success-rates svg .whisker.team"))
    style = "return getComputedStyle(document.querySelector(arguments[0])).strokeDasharray"
    dashes = set()
    for setting in ("coop", "solo", "team"):
        drawn = browser.ask(style, f"#success-rates .drawing .whisker.{setting}")
        assert drawn == browser.ask(style, f"#success-rates .legend .whisker.{setting}")
        dashes.add(drawn)
    assert len(dashes) == 3


def test_difficulty_has_a_chart_for_each_model(browser: Browser, models_page: Path) -> None:
    browser.open(models_page)
    titles = browser.texts("#difficulty .chart h3")
    assert titles[0] == "All models"
    assert [title.split(" · ")[0] for title in titles[1:]] == list(MODELS)


def test_cards_show_that_they_can_be_expanded(browser: Browser, models_page: Path) -> None:
    browser.open(models_page, first_failed_pair())
    sign = "return getComputedStyle(document.querySelector(arguments[0]), '::before').content"
    for card in ("#changes .file:not([open])", ".lanes details.entry", "#tests .raw:not([open])"):
        assert browser.ask(sign, f"{card} > summary") == '"▸"'
    assert browser.ask(sign, "#tests .raw[open] > summary") == '"▾"'


def test_failing_output_is_expanded(browser: Browser, models_page: Path) -> None:
    browser.open(models_page, first_failed_pair())
    opened = browser.texts("#tests .raw[open] pre")
    assert len(opened) == 2
    assert all("FAILED tests/test_f" in text for text in opened)
    assert browser.count("#tests .raw[open] mark") == 2


def test_numbers_say_whose_they_are(browser: Browser, models_page: Path) -> None:
    browser.open(models_page)
    assert "are of 1-coop: steps and cost add up all agents" in browser.text("#column-note")
    browser.choose("run", "2-solo:solo")
    assert "are of 2-solo: steps and cost are of its only agent" in browser.text("#column-note")
    browser.open(models_page, first_failed_pair())
    total = browser.texts(".agents tbody tr")[-1]
    assert total.split()[:3] == ["both", "agents", "8"]


def test_table_gives_a_reason(browser: Browser, models_page: Path) -> None:
    browser.open(models_page, "#/?run=1-team:team")
    assert browser.texts(".pairs .reason")[0] == "merged: AssertionError in test_edge"
    browser.open(models_page, "#/?run=1-coop:coop&outcome=conflict")
    reason = browser.texts(".pairs .reason")[0]
    assert reason == "conflict in src/app.py; union merge: AssertionError in test_edge"
