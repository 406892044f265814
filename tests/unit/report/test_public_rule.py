"""Verdicts by the public release's rule beside ours, in files and in `cooperbench compare`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from cooperbench.report.loading import load_run
from cooperbench.report.pairs import VERDICTS
from tests.support.report.factory import Kind, Style, layout, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.pairs import PairKey

PAIRS = layout(1, 1, 5)
KINDS: tuple[Kind, ...] = ("passed", "union", "conflict", "capability", "suspicious")
PUBLIC: dict[Kind, bool] = {
    "passed": True,
    "union": False,
    "conflict": True,
    "capability": True,
    "suspicious": True,
}
REASONS: dict[Kind, str] = {
    "union": "conflict: the union merge passes, the first agent's patch alone does not",
    "conflict": "conflict: the first agent's patch has all features, the union merge fails",
    "capability": "the tests pass after the merge, but a patch does not pass its own tests alone",
    "suspicious": "the tests pass, but a confirmation run does not agree",
}


def kind_of(key: PairKey) -> Kind:
    return KINDS[[*PAIRS["repo01_task"][100]].index(key.features)]


def write_public_run(logs: Path, name: str) -> None:
    """Write a run with a pair of each kind, and verdicts by the public rule."""
    write_run(logs, name, PAIRS, kind_of, style=Style(bare=True))
    for pair in load_run(logs, name).pairs:
        content = json.loads(pair.paths.evaluation.read_text())
        kind = kind_of(pair.key)
        conflict = content["merged"]["merge_conflict"]
        content["merged"]["success"] = kind in ("passed", "union", "capability", "suspicious")
        public: dict[str, Any] = {
            "success": PUBLIC[kind],
            "strategy": "first_agent" if conflict else "plain",
            "tests_passed": 7,
            "tests_failed": 0,
            "error": None,
            "tested_features": list(pair.key.features),
        }
        pair.paths.evaluation.write_text(json.dumps(content | {"merged_public": public}))


def test_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_public_run(tmp_path, "a")
    write_public_run(tmp_path, "b")
    assert main(["compare", "a", "b", "--json", "--log-dir", str(tmp_path)]) == 0
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    first, second = comparison["rules"]
    assert (first["side"], second["side"]) == ("a:coop", "b:coop")
    assert (first["n"], first["overall"], first["public"], first["without"]) == (5, 2, 4, 0)
    reasons = {
        KINDS[[*PAIRS["repo01_task"][100]].index(tuple(entry["pair"]["features"]))]: entry["reason"]
        for entry in first["differences"]
    }
    assert reasons == REASONS
    assert main(["compare", "a", "b", "--log-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "by our rule and by the public release's" in text
    assert REASONS["union"] in text


def test_it_enters_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_public_run(tmp_path, "a")
    assert main(["report", "a", "--json", "--log-dir", str(tmp_path)]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content.pop("rules")[0]["public"] == 4
    assert "public" not in json.dumps(content)
    assert main(["report", "a", "--log-dir", str(tmp_path)]) == 0
    assert "public" not in capsys.readouterr().out
    assert "public" not in VERDICTS


def test_comparison_of_public_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_public_run(tmp_path, "a")
    write_public_run(tmp_path, "b")
    arguments = ["compare", "a", "b", "--verdict", "public", "--json", "--log-dir", str(tmp_path)]
    assert main(arguments) == 0
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert comparison["first_rate"]["value"] == pytest.approx(4 / 5)


def test_runs_of_older_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They have no such verdict: nothing is invented, and the table says how to add it."""
    write_public_run(tmp_path, "new")
    write_run(tmp_path, "old", PAIRS, kind_of, style=Style(bare=True))
    for pair in load_run(tmp_path, "old").pairs:
        content = json.loads(pair.paths.evaluation.read_text())
        del content["merged_public"]
        pair.paths.evaluation.write_text(json.dumps(content))
    assert main(["compare", "new", "old", "--log-dir", str(tmp_path)]) == 0
    assert "old:coop: 5 pairs without it; `eval --force` adds it" in capsys.readouterr().out
    arguments = ["compare", "new", "old", "--verdict", "public", "--log-dir", str(tmp_path)]
    assert main(arguments) == 2
    assert "no pair with a verdict (public)" in capsys.readouterr().err
