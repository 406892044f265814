"""`cooperbench report` and `cooperbench compare` as users and machines call them."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from cooperbench import records
from cooperbench.cli import main
from cooperbench.records.summary import Summary
from cooperbench.report.formatting import hundredths_text
from cooperbench.report.summary_text import summary_text
from tests.support.report.factory import Kind, Style, keys_of, layout, share, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.pairs import PairKey

PAIRS = layout(2, 6, 30)
STYLE = Style(bare=True)
SHARES: dict[Kind, float] = {
    "passed": 4, "conflict": 3, "capability": 3, "error": 1, "missing": 1, "broken": 1, "unevaluated": 1,
}  # fmt: skip


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_run(tmp_path, "mixed", PAIRS, share(SHARES), style=STYLE)
    write_run(
        tmp_path, "mixed", PAIRS, share({"passed": 3, "capability": 1}), setting="solo", style=STYLE
    )
    write_run(tmp_path, "good", PAIRS, share({"passed": 5, "conflict": 1}), style=STYLE)
    write_run(
        tmp_path,
        "elsewhere",
        PAIRS,
        style=Style(bare=True, dataset="another", content_sha256="3" * 64),
    )
    return tmp_path


def call(logs: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*words, "--log-dir", str(logs)])
    out, err = capsys.readouterr()
    return code, out, err


def test_report_shows_rates_and_what_is_left_out(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(logs, capsys, "report", "mixed", "--by", "repo")
    assert (code, err) == (0, "")
    data = json.loads(call(logs, capsys, "report", "mixed", "--json", "--by", "repo")[1])
    coop, first, second, solo, *_ = data["rates"]
    assert (coop["setting"], first["repo"], second["repo"], solo["setting"]) == (
        "coop",
        "repo01_task",
        "repo02_task",
        "solo",
    )
    assert coop["judged"] == first["judged"] + second["judged"] < coop["pairs"] == 30
    assert sum(coop["states"].values()) == 30
    assert f"mixed:coop: 30 pairs, {coop['judged']} evaluated (" in out
    assert "not part of the rates" in out
    overall = coop["rates"]["overall"]
    assert overall["n"] == coop["judged"]
    shown = [hundredths_text(overall[name]) for name in ("value", "low", "high")]
    assert "{} % [{}–{}]".format(*shown) in out
    assert (overall["clusters"], overall["method"]) == (6, "clustered")
    assert set(solo["rates"]) == {"individual", "overall"}
    (deficit,) = data["coordination_deficits"]
    assert deficit["n"] == coop["judged"]
    assert f"{100 * deficit['coordination_deficit']['value']:+.1f} points" in out
    # One model has pairs of two difficulties only: areas of that would mean nothing.
    assert "not enough for a curve" in out
    assert "AUC" not in out
    assert "retention: fewer than 10 tasks: a bootstrap is too narrow" in out
    assert "overall (solo): the same as individual" in out
    assert "eval.json is not complete JSON" in out
    assert len(data["runs"][0]["problems"]) == coop["states"]["broken"]


def test_a_run_that_is_named_twice_counts_once(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, twice = (
        json.loads(call(logs, capsys, "report", *names, "--json")[1])
        for names in (("mixed",), ("mixed", f"{logs}/mixed/", "mixed"))
    )
    assert once.pop("time")
    assert twice.pop("time")
    assert once == twice


def test_the_methods_differ_and_are_the_same_each_time(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for method in ("clustered", "wilson", "bootstrap"):
        answers = [
            json.loads(call(logs, capsys, "report", "mixed", "--json", "--interval", method)[1])
            for _ in "12"
        ]
        rates = [answer["rates"][0]["rates"]["overall"] for answer in answers]
        assert rates[0] == rates[1]
        assert rates[0]["method"] == method
        found[method] = rates[0]["low"]
    assert len(set(found.values())) == 3


def test_rows_for_other_tools(
    logs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parquet, table = tmp_path / "x.parquet", tmp_path / "x.csv"
    code, _, err = call(
        logs, capsys, "report", "mixed", "good", "--csv", str(table), "--parquet", str(parquet)
    )
    assert code == 0
    assert err == f"written: {table}\nwritten: {parquet}\n"
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert len(rows) == 90
    assert {row["state"] for row in rows} == {
        "passed",
        "failed",
        "error",
        "missing",
        "broken",
        "unevaluated",
    }
    assert {row["overall"] for row in rows if row["state"] == "error"} == {""}
    assert {row["overall"] for row in rows if row["state"] == "passed"} == {"true"}
    arrow = import_module("pyarrow.parquet").read_table(parquet).to_pylist()
    assert [row["overall"] for row in arrow] == [
        {"true": True, "false": False, "": None}[row["overall"]] for row in rows
    ]
    assert {row["cost"] for row in arrow} == {None, 0.25, 0.5}


def test_a_spreadsheet_computes_nothing_from_what_agents_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    style = Style(bare=True, models=("=cmd|' /C calc'!A0", "\x1b[2Jm"))
    write_run(tmp_path, "r", layout(1, 1, 1), style=style)
    table = tmp_path / "x.csv"
    code, out, _ = call(tmp_path, capsys, "report", "r", "--csv", str(table))
    assert code == 0
    assert next(csv.DictReader(io.StringIO(table.read_text())))["agent1_model"].startswith("'=cmd")
    assert "\x1b" not in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_the_terminal(logs: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    for name, value in (("COLUMNS", str(width)), ("NO_COLOR", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    assert main(["report", "mixed", "--log-dir", str(logs)]) == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    heading = next(line for line in lines if "individual" in line)
    assert all(name in heading for name in ("run", "tasks", "merge", "overall", "strict", "deff"))


def test_parquet_without_pyarrow_is_one_line(logs: Path) -> None:
    code = (
        "import sys\nsys.modules['pyarrow'] = None\nfrom cooperbench.cli import main\n"
        f"sys.exit(main(['report', 'good', '--parquet', 'x.parquet', '--log-dir', {str(logs)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=logs
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'cooperbench[report]'" in done.stderr


def test_mistakes_are_one_line(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, answer in (
        (("report",), "no run given; available in "),
        (("report", "gud"), "no run 'gud'"),
        (("report", "mixed", "elsewhere"), "different datasets (mixed has dataset at revision"),
        (("compare", "good", "elsewhere"), "--anyway"),
        (("compare", "good"), "name a second run"),
        (("compare", "good:both", "mixed"), "after the colon there must be one of"),
        (
            ("compare", "mixed:solo", "good", "--verdict", "merge"),
            "have no pair with a verdict (merge)",
        ),
        (("compare", "good", "mixed", "--max-drop", "5"), "is not a share from 0 to 1"),
    ):
        code, out, err = call(logs, capsys, *words)
        assert (code, out, err.count("\n")) == (2, "", 1), words
        assert answer in err
    assert call(logs, capsys, "compare", "good", "elsewhere", "--anyway")[0] == 0


def test_max_drop_is_for_ci(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(logs, capsys, "compare", "good", "mixed", "--json")
    (found,) = json.loads(out)["comparisons"]
    drop = -found["difference"]["value"]
    assert (code, err) == (0, "")
    assert drop > 0.1
    assert len(found["lost"]) - len(found["gained"]) == round(drop * found["n"])
    assert found["n"] + len(found["unpaired"]) == 30
    code, out, err = call(logs, capsys, "compare", "good", "mixed", "--max-drop", f"{drop - 0.01}")
    assert code == 1
    assert err.startswith(
        f"cooperbench: overall dropped by {drop:.3f} from good:coop to mixed:coop, more than"
    )
    assert f"Lost: passed in good:coop, failed in mixed:coop ({len(found['lost'])})" in out
    for pair in found["lost"]:
        assert (
            f"{pair['repo']}/task{pair['task_id']} f{pair['features'][0]}_f{pair['features'][1]}"
            in out
        )
    assert f"Not compared ({len(found['unpaired'])})" in out
    assert call(logs, capsys, "compare", "good", "mixed", "--max-drop", f"{drop:.6f}")[0] == 0
    assert call(logs, capsys, "compare", "mixed", "good", "--max-drop", "0")[0] == 0


def marked(logs: Path) -> list[PairKey]:
    """Two runs of twelve pairs: one unsound pair and two without a reference. Only the first run marks the unsound one."""
    pairs = layout(2, 4, 12)
    keys = keys_of(pairs)
    kinds: dict[PairKey, Kind] = {
        keys[0]: "unsound",
        keys[1]: "no_reference",
        keys[2]: "no_reference",
        keys[3]: "conflict",
    }
    write_run(logs, "new", pairs, lambda key: kinds.get(key, "passed"), style=STYLE)
    write_run(logs, "old", pairs, "conflict", style=STYLE)
    return keys


def test_no_reference_is_in_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marked(tmp_path)
    code, out, _ = call(tmp_path, capsys, "report", "new", "--csv", str(tmp_path / "x.csv"))
    assert code == 0
    assert "new:coop: 12 pairs, 10 evaluated (2 no reference: not part of the rates)" in out
    assert "task100 f1_f3: feature 3: the golden patch does not pass: ImportError in test_x" in out
    assert re.search(r"new:coop +10 +4 .*\n +without unsound +9 +3 ", out)
    assert "new:coop: 1 unsound pair: tests of a feature pass without the feature" in out
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert [(row["state"], row["unsound"], row["network"]) for row in rows[:3]] == [
        ("passed", "2", "none"),
        ("no_reference", "", ""),
        ("no_reference", "", ""),
    ]
    assert rows[1]["error"].endswith("ImportError in test_x")
    (row,) = json.loads(call(tmp_path, capsys, "report", "new", "--json")[1])["rates"]
    assert (row["states"]["no_reference"], row["judged"], row["rates"]["overall"]["value"]) == (
        2,
        10,
        0.9,
    )
    assert row["unsound"] == 1
    assert row["sound_rates"]["overall"]["value"] == pytest.approx(8 / 9)
    (row,) = json.loads(call(tmp_path, capsys, "report", "old", "--json")[1])["rates"]
    assert (row["unsound"], row["sound_rates"]) == (0, {})


def test_sound_only_leaves_a_pair_out_of_every_run_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = marked(tmp_path)
    table = tmp_path / "x.csv"
    words = ("report", "new", "old", "--sound-only")
    out = call(tmp_path, capsys, *words, "--csv", str(table))[1]
    assert "new: 1 unsound pair left out" in out
    assert "old: 1 unsound pair left out" in out
    assert "without unsound" not in out
    assert len(table.read_text().splitlines()) == 1 + 2 * 11
    data = json.loads(call(tmp_path, capsys, *words, "--json")[1])
    assert [run["unsound_left_out"] for run in data["runs"]] == [1, 1]
    assert [(row["pairs"], row["judged"], row["unsound"]) for row in data["rates"]] == [
        (11, 9, 0),
        (11, 11, 0),
    ]
    compared = json.loads(call(tmp_path, capsys, "compare", "old", "new", "--json")[1])
    (found,) = compared["comparisons"]
    assert (found["n"], len(found["unsound"]), compared["unsound_left_out"]) == (10, 1, None)
    unsound = {"repo": keys[0].repo, "task_id": keys[0].task_id, "features": list(keys[0].features)}
    assert found["unsound"] == [unsound]
    assert {(one["first_state"], one["second_state"]) for one in found["unpaired"]} == {
        ("failed", "no_reference")
    }
    out = call(tmp_path, capsys, "compare", "old", "new")[1]
    assert f"{keys[0].repo}/task{keys[0].task_id} f1_f2 (unsound)" in out
    assert "1 unsound pair among them; --sound-only compares without" in out
    compared = json.loads(
        call(tmp_path, capsys, "compare", "old", "new", "--sound-only", "--json")[1]
    )
    (found,) = compared["comparisons"]
    assert (found["n"], found["unsound"], compared["unsound_left_out"]) == (
        9,
        [],
        {"old": 1, "new": 1},
    )
    assert found["second_rate"]["value"] == pytest.approx(8 / 9)
    assert unsound not in found["gained"]
    assert (
        "new: 1 unsound pair left out"
        in call(tmp_path, capsys, "compare", "old", "new", "--sound-only")[1]
    )


def test_suspicious_pairs_are_counted_beside_the_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds: dict[tuple[int, ...], Kind] = {(1, 2): "suspicious"}
    write_run(
        tmp_path, "r", layout(1, 2, 6), lambda key: kinds.get(key.features, "passed"), style=STYLE
    )
    table = tmp_path / "x.csv"
    assert (
        "r:coop: 2 suspicious pairs: "
        in call(tmp_path, capsys, "report", "r", "--csv", str(table))[1]
    )
    (row,) = json.loads(call(tmp_path, capsys, "report", "r", "--json")[1])["rates"]
    assert row["review_notes"] == 2, "older files list them among the suspicious lines"
    assert (row["suspicious"], row["rates"]["overall"]["value"]) == (2, pytest.approx(4 / 6))
    assert [one["suspicious"] for one in csv.DictReader(io.StringIO(table.read_text()))] == [
        "1",
        "0",
        "0",
    ] * 2
    summary = records.read(tmp_path / "r" / "summary.json", Summary)
    assert summary is not None
    assert "coop: 6 pairs, 6 evaluated, 2 suspicious\n" in summary_text(summary, "logs")


def test_one_run_with_both_settings_gives_the_deficit(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = call(logs, capsys, "compare", "mixed")[1]
    assert "coordination deficit (solo − coop)" in whole
    assert "retention (coop ∕ solo)" in whole
    assert "retention: fewer than 10 tasks: a bootstrap is too narrow" in whole
    assert call(logs, capsys, "compare", "mixed:solo", "mixed:coop")[1] == whole


def test_unconfirmed_successes_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "new"):
        write_run(tmp_path, name, layout(1, 1, 3), lambda _: "passed", style=STYLE)
    for path in (tmp_path / "new").rglob("eval.json"):
        content = json.loads(path.read_text())
        content["canary"] = "off"
        path.write_text(json.dumps(content))
        break
    table = tmp_path / "x.csv"
    out = call(tmp_path, capsys, "report", "old", "new", "--csv", str(table))[1]
    assert "new:coop: 4 of 12 successes of a patch with a feature not confirmed" in out
    assert "old:coop: 0 of" not in out
    unconfirmed = [row["unconfirmed"] for row in csv.DictReader(io.StringIO(table.read_text()))]
    assert sorted(unconfirmed) == ["0", "0", "0", "0", "0", "4"]
    out = call(tmp_path, capsys, "compare", "old", "new")[1]
    assert "1 pair among them with successes that no confirmation run supports" in out
