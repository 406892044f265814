"""The file: whole, self-contained, with a policy that fits to it, and nothing lost on the way into it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.errors import UserError
from cooperbench.report.loading import load_run
from cooperbench.report.page.build import build_page, embedded_json
from cooperbench.report.page.pair_detail import MAX_CHARACTERS, cut
from tests.support.report.factory import keys_of, write_run
from tests.support.report.page_fixtures import PAIRS

if TYPE_CHECKING:
    from pathlib import Path


def details_of(page: Path) -> list[dict[str, Any]]:
    found = re.findall(
        r'<script type="text/plain" id="detail-\d+">([^<]*)</script>', page.read_text()
    )
    return [json.loads(gzip.decompress(base64.b64decode(text))) for text in found]


def overview_of(page: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="overview">([^<]*)</script>', page.read_text()
    )
    assert found
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_policy_allows_just_the_style_and_script_of_the_file(page: Path) -> None:
    text = page.read_text()
    policy = unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0])
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(style) == len(script) == 1
    for name, content in (("style", style[0]), ("script", script[0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text)


def test_attempts_are_numbered_as_in_the_table(page: Path) -> None:
    overview = overview_of(page)
    details = details_of(page)
    cells = [cell for pair in overview["pairs"] for cell in pair["cells"]]
    assert sorted(cell["id"] for cell in cells) == list(range(2 * len(keys_of(PAIRS))))
    assert all(details[cell["id"]]["outcome"] == cell["outcome"] for cell in cells)
    assert [one["id"] for one in overview["series"]] == ["duo:coop", "lone:solo"]
    assert [one["pairs"] for one in overview["rates"] if one["repo"] is None] == [16, 16]


def test_the_same_runs_give_the_same_details(page: Path, logs: Path, tmp_path: Path) -> None:
    build_page([load_run(logs, "duo"), load_run(logs, "lone")], tmp_path / "again.html", split=True)
    beside = sorted((tmp_path / "again.pairs").iterdir(), key=lambda one: int(one.stem))
    texts = [
        re.fullmatch(r'cooperbenchDetail\(\d+,"([^"]*)"\)\n', one.read_text()) for one in beside
    ]
    assert [
        json.loads(gzip.decompress(base64.b64decode(text[1]))) for text in texts if text
    ] == details_of(page)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["again.html", "again.pairs"]


def test_a_split_report_replaces_its_own_folder_and_no_other(logs: Path, tmp_path: Path) -> None:
    runs = [load_run(logs, "lone")]
    target = tmp_path / "report.html"
    build_page(runs, target, split=True)
    (tmp_path / "report.pairs" / "999.js").write_text("old")
    build_page(runs, target, split=True)
    assert not (tmp_path / "report.pairs" / "999.js").exists()
    mine = tmp_path / "report.pairs" / "thesis.tex"
    mine.write_text("years of work")
    with pytest.raises(UserError, match=r"thesis\.tex, which no report wrote"):
        build_page(runs, target, split=True)
    assert mine.read_text() == "years of work"


def test_empty_run_and_folder_target_are_rejected(tmp_path: Path, logs: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no pairs in empty"):
        build_page([load_run(tmp_path, "empty")], tmp_path / "x.html")
    with pytest.raises(UserError, match="is a folder"):
        build_page([load_run(logs, "lone")], tmp_path)
    assert not (tmp_path / "x.html").exists()


def test_bytes_that_are_no_text_do_not_stop_a_report(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "odd", {"repo_task": {1: [(1, 2)]}}, "passed")
    files = paths.pair_named("coop", "repo_task", 1, (1, 2))
    trajectory = files.agent("agent1").trajectory
    trajectory.write_text(trajectory.read_text().replace("I look at", "\\ud800 I look at"))
    name = b"src/\xff.py"
    files.agent("agent1").patch.write_bytes(
        b"diff --git a/%b b/%b\n--- a/%b\n+++ b/%b\n@@ -1 +1 @@\n-\xfe\n+\xfd\n"
        % (name, name, name, name)
    )
    files.agent("agent2").patch.write_bytes(b"\x00\x01 no patch at all")
    files.conversation.write_text("[1, 2")
    page = tmp_path / "odd.html"
    build_page([load_run(tmp_path, "odd")], page)
    (detail,) = details_of(page)
    assert "agent2: no readable patch" in detail["problems"]
    assert len(detail["diffs"]) == 1
    assert any("conversation.json" in line for line in detail["problems"])


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text())))
def test_no_content_ends_the_element_that_it_stands_in(content: dict[str, object]) -> None:
    text = embedded_json({"content": content})
    assert "<" not in text
    assert json.loads(text) == json.loads(
        json.dumps({"content": content}).encode("utf-8", "replace")
    )


@given(st.integers(0, 3 * MAX_CHARACTERS))
def test_long_texts_keep_both_ends_and_say_what_is_missing(length: int) -> None:
    text = "".join(chr(97 + place % 26) for place in range(length))
    short = cut(text)
    assert len(short) <= MAX_CHARACTERS + 100
    if short != text:
        begin, _, rest = short.partition("\n[… ")
        number, _, end = rest.partition(" characters left out; the whole is in the logs …]\n")
        assert text.startswith(begin)
        assert text.endswith(end)
        assert len(begin) + int(number) + len(end) == length
