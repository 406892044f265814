"""The site that `make docs` builds: without warnings, complete, and readable without a network.

Strict mode turns each warning into an error: links to missing pages and anchors, pages that are not
in the navigation, names that the Python API does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from cooperbench.cli import COMMANDS, make_parser
from cooperbench.records.schema import RECORDS, json_schema
from tests.support.paths import ROOT
from tests.support.report.browser import start_browser

MAKEFILE = ROOT / "Makefile"
INTERNAL_VARIABLES = {
    "COOPERBENCH_GCP_BATCH_ENDPOINT",
    "COOPERBENCH_GCP_COMPUTE_ENDPOINT",
    "COOPERBENCH_JOB",
    "COOPERBENCH_JOB_FOLDER",
    "COOPERBENCH_TEAM",
    "COOPERBENCH_TOKEN",
    "COOPERBENCH_USE_BUILD_PACKAGES",
}
"""Variables that CooperBench sets for its own processes, or that only its tests set."""
EXTERNAL_SOURCE = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="https?://')


def build_site(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does, in another folder."""
    recipe = re.search(r"\(BIN\)/mkdocs (.*)$", MAKEFILE.read_text(), re.MULTILINE)
    assert recipe
    program = Path(sys.executable).parent / "mkdocs"
    return subprocess.run(
        (program, *recipe[1].split(), "--site-dir", site, *options),
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = build_site(folder)
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


def option_strings(command: str) -> list[str]:
    """Return every flag of a command and of its subcommands."""
    (subparsers,) = (
        action
        for action in make_parser(command)._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    flags: list[str] = []
    pending = [subparsers.choices[command]]
    while pending:
        for action in pending.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                pending += action.choices.values()
            elif action.help != argparse.SUPPRESS:
                flags += action.option_strings
    # The page says once, at its top, that every command has it.
    return [flag for flag in flags if flag not in ("-h", "--help")]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_flag_is_on_the_generated_page(site: Path, command: str) -> None:
    page = (site / "reference-commands.html").read_text()
    section = page.partition(f'<h2 id="{command}">')[2].partition("<h2")[0]
    shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", section))
    assert [flag for flag in option_strings(command) if flag not in shown] == []


def test_every_environment_variable_is_on_the_page_of_settings(site: Path) -> None:
    page = (site / "reference-settings.html").read_text()
    sources = (ROOT / "src/cooperbench").rglob("*.py")
    code = "\n".join(path.read_text() for path in sources)
    names = set(re.findall(r"[\"$](COOPERBENCH_[A-Z_]+[A-Z])\b", code)) - INTERNAL_VARIABLES
    assert [name for name in sorted(names) if name not in page] == []


def test_every_json_schema_is_there_and_linked(site: Path) -> None:
    page = (site / "files.html").read_text()
    for name in RECORDS:
        assert json.loads((site / f"schemas/{name}.json").read_text()) == json_schema(name)
        assert f'href="schemas/{name}.json"' in page


def test_the_page_of_prompts_has_every_template(site: Path) -> None:
    page = (site / "reference-prompts.html").read_text()
    templates = files("cooperbench.team") / "templates"
    names = [entry.name for entry in templates.iterdir() if entry.name.endswith(".j2")]
    assert [name for name in names if f">{name}<" not in page] == []
    for settings in ("coop", "solo", "team"):
        assert f"--setting {settings}" in page


def test_the_search_works_from_the_folder(site: Path) -> None:
    browser = start_browser()
    try:
        browser.open(site / "index.html")
        browser.ask(
            "const query = document.querySelector('[data-md-component=search-query]');"
            "query.focus(); query.value = 'deficit'; query.dispatchEvent(new Event('input'))"
        )
        browser.until(lambda: browser.count(".md-search-result__item") > 2)
        assert "Coordination deficit" in " ".join(browser.texts(".md-search-result__item"))
    finally:
        browser.close()


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    loading = [
        page.name for page in site.glob("*.html") if EXTERNAL_SOURCE.search(page.read_text())
    ]
    assert loading == []


def test_broken_links_fail_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Home\n\n[page](missing.md) [anchor](export.md#missing)\n")
    (docs / "export.md").write_text("# Exports\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    settings = settings.replace("docs/hooks", f"{ROOT}/docs/hooks").replace("src", f"{ROOT}/src")
    config = tmp_path / "mkdocs.yml"
    config.write_text(settings)
    build = build_site(tmp_path / "site", "--config-file", str(config))
    assert build.returncode == 1
    assert "'missing.md', but the target is not found" in build.stderr
    assert "'export.md#missing', but the doc 'export.md' does not contain an anchor" in build.stderr
