"""The page in a real browser: what a reader sees, clicks and types."""

from __future__ import annotations

from importlib.resources import files
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from cooperbench.models import SETTINGS
from cooperbench.report.compare import compare_sides
from cooperbench.report.loading import (
    Side,
    arm_folders,
    load_folder,
    load_run,
    run_names,
    sound_only,
)
from cooperbench.report.page.build import build_page
from cooperbench.report.pairs import STATES
from cooperbench.storage import write_json
from tests.support.report.factory import TALK, Style, Talk, keys_of, layout, write_run
from tests.support.report.page_fixtures import COOP, PAIRS, coop_kind, judgement
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import REPO, TASK_ID, golden, write_script
from tests.unit.report.test_studies import ONE_OFF, write_dose, write_study

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.pairs import PairKey
    from tests.support.report.browser import Browser
    from tests.support.report.factory import Kind

pytestmark = pytest.mark.xdist_group("browser")

ROWS = ".pairs tbody tr"
CONFLICT = next(key for key in keys_of(PAIRS) if coop_kind(key) == "conflict")


def address_of(repo: str, task: int, name: str, more: str = "run=duo:coop") -> str:
    return f"#/pair/{repo}/{task}/{name}?{more}"


CONFLICT_ADDRESS = address_of(CONFLICT.repo, CONFLICT.task_id, "f{}_f{}".format(*CONFLICT.features))


def test_first_page_tells_the_deficit_and_lists_every_pair(
    browser: Browser, page: Path, logs: Path
) -> None:
    browser.open(page)
    compared = compare_sides(
        Side(load_run(logs, "lone"), "solo"), Side(load_run(logs, "duo"), "coop")
    )
    deficit = compared.coordination_deficit
    assert deficit is not None
    assert deficit.value is not None
    assert browser.text(".figure").split()[0] == f"{100 * deficit.value:.1f}"
    assert f"{compared.n} pairs in 4 tasks" in browser.text(".headline")
    assert browser.count(ROWS) == 16
    assert "2 of 16" not in browser.text("#found")
    # Every chart names its units and its n, in text.
    assert "% of pairs, with 95 % interval" in browser.text("#success-rates svg")
    assert "US dollars" in browser.text("#cost-and-time svg")
    assert [
        "n = " in text for text in browser.texts("#success-rates > figure > .drawing text.end")
    ] == [True] * 7
    assert "eval.json is not complete JSON" in browser.text("#what-could-not-be-read")
    browser.assert_silent()


def test_filters_show_what_they_say_and_stay_in_the_address(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.choose("outcome", "conflict")
    assert browser.count(ROWS) == COOP.count("conflict") * 2
    assert all("conflict" in text for text in browser.texts(ROWS))
    browser.choose("repo", CONFLICT.repo)
    assert all(CONFLICT.repo.removesuffix("_task") in text for text in browser.texts(ROWS))
    found = browser.texts(ROWS)
    address = browser.address
    browser.open(page, address)
    assert browser.texts(ROWS) == found
    browser.choose("outcome", "")
    browser.choose("repo", "")
    browser.choose("outcome", "failed")
    assert browser.count(ROWS) == 6
    browser.choose("run", "lone:solo")
    assert browser.count(ROWS) == 4
    browser.assert_silent()


def test_clicking_a_part_of_a_bar_shows_its_pairs(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.until(lambda: browser.count("#how-pairs-ended svg rect.part"))
    browser.ask(
        "[...document.querySelectorAll('#how-pairs-ended .part')]"
        ".find((one) => one.textContent.startsWith('failed together'))"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert browser.count(ROWS) == 2
    assert "outcome=integration" in browser.address


def test_sorting_by_cost_goes_both_ways(browser: Browser, page: Path) -> None:
    browser.open(page)
    costs = f"{ROWS} td:nth-child(7)"
    browser.click(".pairs th:nth-child(7) button")
    down = [text for text in browser.texts(costs) if text != "–"]
    assert down == sorted(down, reverse=True)
    assert set(down) == {"$0.50", "$1.50"}
    browser.click(".pairs th:nth-child(7) button")
    up = [text for text in browser.texts(costs) if text != "–"]
    assert up == down[::-1]
    assert browser.texts(costs)[-1] == "–", "what has no cost comes last"


def test_everything_can_be_reached_by_keys(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("j", "j", "k", "j")
    assert (
        browser.ask(
            f"return [...document.querySelectorAll('{ROWS}')].findIndex((one) => one.matches('.here'))"
        )
        == 1
    )
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.count("h1"))
    first = browser.text("h1")
    browser.press("j")
    browser.until(lambda: browser.text("h1") != first)
    browser.press("k")
    browser.until(lambda: browser.text("h1") == first)
    browser.press(Keys.ESCAPE)
    browser.until(lambda: browser.count(ROWS))
    browser.press("/")
    browser.until(lambda: browser.ask("return document.activeElement.name === 'q'"))
    browser.press("repo02", " ", "f1_f3")
    assert len(browser.texts(ROWS)) == 2
    browser.press(Keys.ESCAPE, "?")
    assert "previous pair" in browser.text("dialog[open]")
    browser.press(Keys.ESCAPE)
    assert browser.count("dialog[open]") == 0
    browser.assert_silent()


def test_pair_shows_lanes_messages_diffs_tests_and_files(browser: Browser, page: Path) -> None:
    browser.open(page, CONFLICT_ADDRESS)
    assert browser.texts(".lanes .lane-head") == [
        f"agent{n} f{CONFLICT.features[n - 1]}" for n in (1, 2)
    ]
    assert sorted(browser.texts(".entry.message .text")) == sorted(talk.text for talk in TALK)
    browser.until(lambda: browser.count(".arrows .stroke-lane") == len(TALK))
    assert browser.count(".strip .arrow") == len(TALK)
    browser.click(".lanes details.entry:has(.body, summary) summary")
    browser.click("#fold")
    browser.until(lambda: any("total 8" in text for text in browser.texts(".lanes .body pre")))
    sides = browser.texts(".file[open] .side")
    assert len(sides) == 2
    for side, feature in zip(sides, CONFLICT.features, strict=True):
        assert f"+    return feature_{feature}(value)" in side
        assert "conflicts" in side
    assert "✗ conflict" in browser.text(".verdict")
    assert "src/app.py" in browser.text(".verdict")
    assert [text.split("\n")[0][0] for text in browser.texts("#tests summary")] == [
        "✓",
        "✓",
        "✗",
        "✗",
    ]
    assert "agent1/trajectory.json" in browser.text("#files")
    browser.assert_silent()


def test_evidence_leads_to_its_message(browser: Browser, page: Path) -> None:
    browser.open(page, CONFLICT_ADDRESS)
    browser.click("#coordination button.plain")
    browser.until(lambda: browser.count(".entry.message.flash") == 1)


def test_an_opinion_is_shown_apart_and_only_where_there_is_one(
    browser: Browser, page: Path
) -> None:
    browser.open(page, CONFLICT_ADDRESS)
    shown = browser.text("#opinion-of-a-judge")
    for part in (
        "some/model",
        "expectation",
        "work overlap",
        "it is part of no number",
        "patch agent1",
    ):
        assert part in shown
    assert "work overlap" not in browser.text("#coordination")
    browser.click("#opinion-of-a-judge button.plain")
    browser.until(lambda: browser.count(".entry.message.flash") == 1)
    passed = next(key for key in keys_of(PAIRS) if coop_kind(key) == "passed")
    browser.open(page, address_of(passed.repo, passed.task_id, "f{}_f{}".format(*passed.features)))
    assert browser.count("#tests") == 1
    assert browser.count("#opinion-of-a-judge") == 0
    browser.assert_silent()


def test_unfinished_and_broken_pairs_are_marked(browser: Browser, page: Path) -> None:
    killed = next(key for key in keys_of(PAIRS) if coop_kind(key) == "killed")
    browser.open(page, address_of(killed.repo, killed.task_id, "f{}_f{}".format(*killed.features)))
    assert "running" in browser.text("main")
    assert browser.count(".lanes .entry") > 4
    broken = next(key for key in keys_of(PAIRS) if coop_kind(key) == "broken")
    browser.open(page, address_of(broken.repo, broken.task_id, "f{}_f{}".format(*broken.features)))
    assert "eval.json is not complete JSON" in browser.text(".notes")
    browser.open(page, address_of("nothing", 1, "f1_f2"))
    assert "no such pair" in browser.text("h1")
    browser.assert_silent()


def test_no_reference_and_unsound_are_distinct(browser: Browser, tmp_path: Path) -> None:
    pairs = layout(1, 2, 6)
    unsound, without, *_ = keys_of(pairs)
    kinds: dict[PairKey, Kind] = {unsound: "unsound", without: "no_reference"}
    write_run(tmp_path, "r", pairs, lambda key: kinds.get(key, "conflict"))
    run = load_run(tmp_path, "r")
    build_page([run], tmp_path / "all.html")
    browser.open(tmp_path / "all.html")
    browser.until(lambda: browser.count("#success-rates svg text"))
    assert "no reference" in browser.text("#how-pairs-ended .legend")
    assert browser.texts("#success-rates svg text:not(.quiet)")[:3] == [
        "overall",
        "r · coop",
        "without 1 unsound pair",
    ]
    assert [text.split()[-1] for text in browser.texts("#success-rates text.end")[:2]] == ["5", "4"]
    assert browser.texts(f"{ROWS} .tag") == ["unsound"]
    title = browser.ask("return document.querySelector('.pairs .tag').title")
    assert title == "the tests of feature 2 pass without the feature"
    title = browser.ask("return document.querySelector('.pairs .is-no_reference').title")
    assert title == STATES["no_reference"].sentence
    assert browser.contrast_failures() == []
    browser.choose("outcome", "no_reference")
    assert browser.count(ROWS) == 1
    browser.open(tmp_path / "all.html", "#/?q=unsound")
    assert browser.count(ROWS) == 1
    browser.open(
        tmp_path / "all.html", address_of(without.repo, without.task_id, "f1_f3", "run=r:coop")
    )
    assert STATES["no_reference"].sentence in browser.text("main")
    assert "feature 3: the golden patch does not pass: ImportError in test_x" in browser.text(
        ".notes"
    )
    assert browser.count(".verdict") == 0
    assert browser.count(".lanes .entry") > 4
    browser.open(
        tmp_path / "all.html", address_of(unsound.repo, unsound.task_id, "f1_f2", "run=r:coop")
    )
    assert "unsound: the tests of feature 2 pass without the feature" in browser.text(".notes")
    build_page(sound_only([run]), tmp_path / "sound.html")
    browser.open(tmp_path / "sound.html")
    assert browser.count(ROWS) == 5
    assert browser.count(".tag.unsound") == 0
    assert "r: 1 unsound pair left out" in browser.text("main")
    browser.assert_silent()


def test_suspicious_pairs_show_their_evidence(browser: Browser, tmp_path: Path) -> None:
    pairs = layout(1, 2, 4)
    key, *_ = keys_of(pairs)
    write_run(tmp_path, "r", pairs, lambda one: "suspicious" if one == key else "passed")
    build_page([load_run(tmp_path, "r")], tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    assert "r · coop: 1 suspicious" in browser.text("#success-rates")
    assert browser.texts(f"{ROWS} .tag.suspicious") == ["suspicious"]
    browser.open(tmp_path / "r.html", "#/?q=suspicious")
    assert browser.count(ROWS) == 1
    browser.open(tmp_path / "r.html", address_of(key.repo, key.task_id, "f1_f2", "run=r:coop"))
    shown = browser.text(".notes")
    assert "review note: agent1 src/app.py:3: os._exit(0)" in shown
    assert "suspicious: the tests of feature 2 do not fail where they must" in shown
    assert browser.contrast_failures() == []
    browser.assert_silent()


def test_mismatches_stand_above_all_numbers_and_mark_them(browser: Browser, tmp_path: Path) -> None:
    pairs = layout(1, 2, 4)
    key, *_ = keys_of(pairs)
    paths = write_run(tmp_path, "r", pairs)
    evaluation = paths.pair_named("coop", key.repo, key.task_id, key.features).evaluation
    evaluation.write_text(evaluation.read_text() + " ")
    build_page([load_run(tmp_path, "r")], tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    line = f"r: coop: eval.json is not the one in history.jsonl: {key.label}"
    assert browser.texts("#mismatches li") == [line]
    assert "r · coop †" in browser.text("#success-rates")
    assert browser.texts(f"{ROWS} .tag.mismatch") == ["mismatch"]
    browser.open(tmp_path / "r.html", "#/?q=mismatch")
    assert browser.count(ROWS) == 1
    browser.open(tmp_path / "r.html", address_of(key.repo, key.task_id, "f1_f2", "run=r:coop"))
    assert f"mismatch: {line}" in browser.text(".notes")
    assert browser.contrast_failures() == []
    browser.assert_silent()


def test_two_runs_of_a_pair_stand_side_by_side(browser: Browser, page: Path) -> None:
    browser.open(page, CONFLICT_ADDRESS)
    browser.choose("vs", "lone:solo")
    browser.until(lambda: browser.count(".comparison"))
    assert browser.texts(".comparison > .sides > .side > h2") == ["duo · coop", "lone · solo"]
    changed = browser.text(".comparison tbody tr")
    assert "conflict" in changed
    assert "changed" in changed
    left, right = browser.texts(".comparison > .sides > .side")
    assert TALK[0].text in left
    assert "None." in right
    assert "vs=lone" in browser.address
    browser.assert_silent()


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_enough_contrast(browser: Browser, page: Path, dark: bool) -> None:
    browser.look(dark=dark)
    for address in ("", CONFLICT_ADDRESS):
        browser.open(page, address)
        assert browser.ask("return document.documentElement.dataset.theme") == (
            "dark" if dark else "light"
        )
        assert browser.contrast_failures() == []


def test_theme_can_be_switched_and_is_remembered(browser: Browser, page: Path) -> None:
    browser.open(page)
    try:
        browser.click("#theme")
        assert browser.ask("return document.documentElement.dataset.theme") == "dark"
        browser.open(page)
        assert browser.ask("return document.documentElement.dataset.theme") == "dark"
    finally:
        browser.ask("localStorage.clear()")


def every_other_task(key: PairKey) -> Kind:
    return "capability" if key.task_id % 2 else "passed"


def test_phone_never_scrolls_sideways(
    browser: Browser, page: Path, logs: Path, tmp_path: Path
) -> None:
    browser.look(width=375, height=700)
    for setting in SETTINGS:
        name = f"another-{setting}-with-a-rather-long-name"
        style = Style(models=("other", "other"), bare=True)
        write_run(tmp_path, name, PAIRS, every_other_task, setting=setting, style=style)
    runs = [
        load_run(logs, "duo"),
        load_run(logs, "lone"),
        *(load_run(tmp_path, one) for one in run_names(tmp_path)),
    ]
    build_page(runs, tmp_path / "four.html")
    browser.open(tmp_path / "four.html")
    browser.until(lambda: browser.count("#difficulty svg text"))
    assert browser.ask("return document.documentElement.scrollWidth") == 375
    for address in ("", CONFLICT_ADDRESS, CONFLICT_ADDRESS + "&vs=lone:solo"):
        browser.open(page, address)
        browser.ask(
            "document.querySelectorAll('main details').forEach((one) => { one.open = true; })"
        )
        assert browser.ask("return document.documentElement.scrollWidth") == 375, address


def test_hundreds_of_pairs_come_as_one_scrolls(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path, "many", layout(4, 10, 250), "passed", style=Style(bare=True))
    build_page([load_run(tmp_path, "many")], tmp_path / "many.html")
    browser.open(tmp_path / "many.html")
    assert browser.count(ROWS) < 250
    assert browser.text("#found") == "250 pairs"

    def scrolled_to_the_end() -> bool:
        browser.ask("scrollTo({top: document.body.scrollHeight, behavior: 'instant'})")
        return browser.count(ROWS) == 250

    browser.until(scrolled_to_the_end)
    assert len(set(browser.texts(f"{ROWS} a"))) == 250
    browser.assert_silent()


def test_fast_scrolling_renders_all_rows(browser: Browser, tmp_path: Path) -> None:
    """The end of the table is then in sight before and after: no change that an observer would tell of."""
    write_run(tmp_path, "many", layout(4, 10, 250), "passed", style=Style(bare=True))
    build_page([load_run(tmp_path, "many")], tmp_path / "many.html")
    browser.open(tmp_path / "many.html")
    browser.ask(
        "const to_the_end = () => scrollTo({top: document.body.scrollHeight, behavior: 'instant'});"
        "new MutationObserver(to_the_end).observe(document.querySelector('.pairs tbody'), {childList: true});"
        "to_the_end();"
    )
    browser.until(lambda: browser.count(ROWS) == 250)


def test_times_in_the_lanes_are_rounded_not_cut(browser: Browser, page: Path) -> None:
    browser.open(page)
    script = (
        files("cooperbench.report.page").joinpath("assets/02_format.js").read_text(encoding="utf-8")
    )
    times = {
        0: "0:00.0",
        0.96: "0:01.0",
        9.94: "0:09.9",
        9.96: "0:10",
        59.99: "0:59",
        61.5: "1:01",
        3600: "60:00",
    }
    assert browser.ask(f"{script}\nreturn arguments[0].map(moment)", list(times)) == list(
        times.values()
    )


HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"
    "<!--\u202egnirts\x1b[2J&lt;b&gt; ${1} @script@ ]]>"
)
SHOWN = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")


@pytest.mark.parametrize("split", [False, True])
def test_hostile_text_stays_text(browser: Browser, tmp_path: Path, split: bool) -> None:
    style = Style(
        talk=(Talk(1, 1, HOSTILE),), observation=HOSTILE, thought=HOSTILE, models=(HOSTILE, HOSTILE)
    )
    paths = write_run(tmp_path, "hostile", {"repo_task": {1: [(1, 2)]}}, "conflict", style=style)
    folder = paths.pair_named("coop", "repo_task", 1, (1, 2))
    name = "a<script>document.title='owned'</script>.py"
    folder.agent("agent1").patch.write_text(
        f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+{HOSTILE}\n"
    )
    folder.test_output("agent1", 1).write_text(HOSTILE)
    write_json(folder.judgement, judgement(HOSTILE))
    page = tmp_path / "out" / "hostile.html"
    build_page([load_run(tmp_path, "hostile")], page, split=split)
    browser.open(page, address_of("repo_task", 1, "f1_f2", "run=hostile:coop"))
    browser.until(lambda: browser.count("#fold"))
    browser.click("#fold")
    browser.ask("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
    browser.until(lambda: SHOWN in browser.text("#tests"))
    assert SHOWN in browser.text(".entry.message .text")
    assert any(SHOWN in text for text in browser.texts(".lanes .body pre"))
    assert name in browser.text("#changes")
    assert any(SHOWN in text for text in browser.texts("#changes .code"))
    assert SHOWN in browser.text(".agents")
    assert SHOWN in browser.text("#opinion-of-a-judge")
    assert browser.count("main img, main script") == 0
    assert browser.ask("return document.title") == "CooperBench: hostile"
    browser.assert_silent()
    # And if a line of the page ever forgot: markup cannot be parsed here at all.
    refused = browser.ask(
        "try { document.body.innerHTML = '<b>'; return false } catch (error) { return error.name }"
    )
    assert refused == "TypeError"


def test_a_team_shows_its_tasks_and_what_the_lead_merged(browser: Browser, tmp_path: Path) -> None:
    team = "coop-task-create --assign agent2 '<b>change</b> app.txt'; coop-task-create other; coop-task-claim 2"
    script = write_script(
        tmp_path / "script.yaml", {1: [{"run": team}], 2: [{"apply": "two.patch"}]}
    )
    (tmp_path / "two.patch").write_text(golden(2))
    run_tiny(tmp_path, "scripted", setting="team", agent_config=str(script))
    build_page([load_run(tmp_path / "logs", "r")], tmp_path / "team.html")
    browser.open(tmp_path / "team.html")
    assert browser.texts("#teams tbody td")[:5] == ["r", "1", "0 % (no interval) n = 1", "2", "0"]
    browser.open(tmp_path / "team.html", f"#/pair/{REPO}/{TASK_ID}/f1_f2?run=r:team")
    assert browser.texts("#team tbody td") == [
        "1", "open", "agent2", "<b>change</b> app.txt", "", "2", "in_progress", "agent1", "other", ""
    ]  # fmt: skip
    assert "integrated by the lead\nno\nswitched off\nnothing" in browser.text("#team")
    browser.assert_silent()


def test_many_agents_have_a_lane_each_and_a_curve(browser: Browser, tmp_path: Path) -> None:
    everyone = tuple(range(1, 17))
    sizes = [group for size in (2, 3, 4) for group in combinations(everyone[:4], size)]
    pairs = {"a_task": {1: [*sizes, everyone], 2: sizes}}
    style = Style(("a",) * 16, ("m",) * 16, talk=(Talk(1, 1, "hello"),))
    write_run(tmp_path, "many", pairs, "conflict", style=style)
    write_run(tmp_path, "four", {"a_task": {1: sizes, 2: sizes}}, "conflict", style=style)
    build_page([load_run(tmp_path, "many")], tmp_path / "many.html")
    build_page([load_run(tmp_path, "four")], tmp_path / "four.html")
    browser.open(
        tmp_path / "many.html",
        address_of("a_task", 1, "_".join(f"f{one}" for one in everyone), "run=many:coop"),
    )
    assert browser.texts(".lanes .lane-head")[15] == "agent16 f16"
    assert browser.count(".strip g .lane") == 16
    assert "agent15 and agent16" not in browser.text("#coordination")  # the first forty of 120
    assert "… 80 more" in browser.text("#coordination")
    assert browser.count("#changes .file .side") == 16
    assert browser.contrast_failures() == []
    browser.look(dark=True)
    assert browser.contrast_failures() == []
    # Wide lanes scroll, the page does not.
    assert browser.driver.execute_script(
        "return document.documentElement.scrollWidth <= innerWidth"
    )
    browser.assert_silent()
    browser.open(tmp_path / "four.html")
    assert "agents; below it the number of groups" in browser.text("#number-of-agents svg")
    assert browser.texts("#number-of-agents .legend li") == ["overall", "merge"]
    assert "2 largest groups of 2 tasks" in browser.text("#number-of-agents figcaption")
    browser.assert_silent()


def test_levels_of_a_sweep_are_a_curve(browser: Browser, tmp_path: Path) -> None:
    write_dose(tmp_path, {"0": 2, "3": 1, "unlimited": 0})
    arms = arm_folders(tmp_path / "dose")
    build_page([load_folder(arm) for arm in arms], tmp_path / "dose.html")
    browser.open(tmp_path / "dose.html")
    assert "messages; below it the pairs" in browser.text("#study svg")
    assert "unlimited" in browser.text("#study svg")
    assert browser.texts("#study .legend li") == ["overall", "merge"]
    assert browser.texts("#study h3") == ["By messages: dose", "Effects: dose"]
    assert browser.count("#study figure tbody tr") == 3
    browser.assert_silent()


def test_the_effects_of_an_ablation_are_on_the_page(browser: Browser, tmp_path: Path) -> None:
    folder = write_study(tmp_path, ONE_OFF)
    build_page([load_folder(arm) for arm in arm_folders(folder)], tmp_path / "study.html")
    browser.open(tmp_path / "study.html")
    assert browser.text("#study h3") == "Effects: study"
    assert browser.count("#study tbody tr") == 16
    assert "+50.0 points [+25.3, +74.7]" in browser.text("#study").replace("\u00a0", " ")
    assert "Holm: p corrected over the factors" in browser.text("#study")
    browser.assert_silent()
