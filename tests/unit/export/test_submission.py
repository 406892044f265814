"""A leaderboard file holds against its logs, and any change to either is found."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench import records
from cooperbench.cli import main
from cooperbench.export.submission import (
    Submission,
    SubmittedPair,
    canonical,
    checksum_of,
    submission_of,
    summed_up,
)
from cooperbench.export.verification import verify_submission
from cooperbench.report.loading import load_run
from tests.support.report.factory import Kind, keys_of, layout, write_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAIRS = layout(1, 2, 6)
KINDS: list[Kind] = ["passed", "conflict", "capability", "error", "missing", "passed"]
PAIR = "coop repo01_task/task100 f1_f2"
Document = dict[str, Any]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_run(tmp_path, "r", PAIRS, lambda key: KINDS[keys_of(PAIRS).index(key)])
    write_run(tmp_path, "whole", layout(1, 1, 2))
    return tmp_path


def handed_in(logs: Path, name: str = "r") -> Path:
    target = logs / "submission.json"
    words = ["export", name, "--format", "leaderboard", "-o", str(target), "--log-dir", str(logs)]
    assert main(words) == 0
    return target


def test_it_says_what_was_run_and_what_came_out(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = handed_in(logs)
    document = json.loads(path.read_bytes())
    assert path.read_bytes() == canonical(document) + b"\n"
    assert document["dataset"] == {"name": "dataset", "revision": "1234567890abcdef"}
    assert document["configuration"]["model_name"] == "gpt-4o"
    assert document["versions"] == ["0.1.0"]
    assert "tmp" not in path.read_text()
    run = load_run(logs, "r")
    assert [pair["state"] for pair in document["pairs"]] == [pair.state for pair in run.pairs]
    judged = [pair for pair in document["pairs"] if pair["verdicts"]]
    assert {"passed", "failed", "error"} <= {pair["state"] for pair in document["pairs"]}
    overall = [sum(pair["verdicts"]["overall"] for pair in judged), len(judged)]
    assert document["totals"]["coop"]["verdicts"]["overall"] == overall
    assert all(pair["image_digests"]["evaluation"].startswith("sha256:") for pair in judged)
    names = {"result.json", "eval.json", "agent1.patch", "agent2.patch", "merged.patch"}
    assert all(set(pair["files"]) == names for pair in judged)
    assert document["complete"] is False
    assert f"{6 - len(judged)} of 6 pairs without a verdict (" in capsys.readouterr().err
    assert submission_of(load_run(logs, "whole")).complete


def test_what_was_written_holds_with_and_without_logs(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = handed_in(logs)
    again = path.read_bytes()
    assert handed_in(logs).read_bytes() == again
    capsys.readouterr()
    for words, answer in (
        (["--log-dir", str(logs)], f"is valid: 6 pairs, all as in {logs}/r\n"),
        (["--log-dir", str(logs / "elsewhere")], "nothing else was checked\n"),
    ):
        assert main(["export", "--verify", str(path), *words]) == 0
        out, err = capsys.readouterr()
        assert (out.endswith(answer), err) == (True, "")
    shutil.move(logs / "r", logs / "renamed")
    assert main(["export", "renamed", "--verify", str(path), "--log-dir", str(logs)]) == 0


def test_it_says_which_pairs_have_no_reference_or_are_unsound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds: dict[tuple[int, ...], Kind] = {
        (1, 2): "no_reference",
        (1, 3): "unsound",
        (2, 3): "passed",
    }
    write_run(tmp_path, "r", layout(1, 1, 3), lambda key: kinds[key.features])
    path = handed_in(tmp_path)
    assert "1 of 3 pairs without a verdict (1 no_reference)" in capsys.readouterr().err
    document = json.loads(path.read_bytes())
    assert [(pair["state"], pair["unsound"], pair["network"]) for pair in document["pairs"]] == [
        ("no_reference", None, None),
        ("passed", [3], "none"),
        ("passed", [], "none"),
    ]
    assert document["totals"]["coop"]["states"]["no_reference"] == 1
    assert document["totals"]["coop"]["verdicts"]["overall"] == [2, 2]
    assert document["complete"] is False
    assert verify_submission(path, tmp_path).mismatches == []


def sum_up(document: Document) -> None:
    """Write what follows from the pairs, as a careful liar would."""
    pairs = msgspec.convert(document["pairs"], list[SubmittedPair])
    document |= msgspec.to_builtins(summed_up(pairs))


def lie(document: Document) -> None:
    """Turn a failure into a success, with everything in the file that belongs to it."""
    pair = next(pair for pair in document["pairs"] if pair["state"] == "failed")
    pair["state"] = "passed"
    pair["verdicts"] = dict.fromkeys(pair["verdicts"], True)
    sum_up(document)


def claim_all(document: Document) -> None:
    document["complete"] = True


def take_away(document: Document) -> None:
    document["pairs"] = [pair for pair in document["pairs"] if pair["state"] == "passed"]
    sum_up(document)


def count_twice(document: Document) -> None:
    document["pairs"].append(next(pair for pair in document["pairs"] if pair["state"] == "passed"))
    sum_up(document)


def other_model(document: Document) -> None:
    document["configuration"]["model_name"] = "gpt-5"


@pytest.mark.parametrize(
    ("change", "in_itself", "against_logs"),
    [
        (lie, None, 'state is "passed" in the submission, "failed" in the logs'),
        (claim_all, "complete is true, which does not follow from its pairs", "complete is true"),
        (take_away, None, "f1_f3 is null in the submission, {"),
        (count_twice, "pairs lists a pair more than once", "totals.coop"),
        (
            other_model,
            None,
            'configuration.model_name is "gpt-5" in the submission, "gpt-4o" in the logs',
        ),
    ],
)
def test_a_changed_submission_is_found_out(
    logs: Path, change: Callable[[Document], None], in_itself: str | None, against_logs: str
) -> None:
    path = handed_in(logs)
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(canonical(document) + b"\n")
    naive = verify_submission(path, logs / "elsewhere").mismatches
    assert any(line.startswith("its checksum is ") for line in naive)
    # Whoever writes a new checksum as well is caught by the logs.
    document["checksum"] = checksum_of(records.from_object(document, Submission))
    path.write_bytes(canonical(document) + b"\n")
    assert verify_submission(path, logs / "elsewhere").mismatches == (
        [in_itself] if in_itself else []
    )
    assert any(against_logs in line for line in verify_submission(path, logs).mismatches)


def test_changed_logs_are_found_file_by_file(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = handed_in(logs, "whole")
    files = load_run(logs, "whole").pairs[0].paths
    files.agent("agent1").patch.write_bytes(b"another")
    files.merged_patch.unlink()
    evaluation = json.loads(files.evaluation.read_text())
    evaluation["overall_success"] = False
    files.evaluation.write_text(json.dumps(evaluation))
    capsys.readouterr()
    assert main(["export", "--verify", str(path), "--log-dir", str(logs)]) == 1
    out, err = capsys.readouterr()
    lines = [line for line in out.splitlines() if not line.startswith("not checked: ")]
    places = [line.partition(" is ")[0] for line in lines]
    for name in ("agent1.patch.sha256", "eval.json.sha256", "merged.patch"):
        assert f"pairs.{PAIR}.files.{name}" in places
    assert f"pairs.{PAIR}.verdicts.overall is true in the submission, false in the logs" in lines
    assert err == f"cooperbench: {path} is not valid: {len(lines)} mismatches\n"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters()) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_only_the_true_file_verifies(logs: Path, data: st.DataObject) -> None:
    document = records.to_object(submission_of(load_run(logs, "whole")))
    true = canonical(document)
    where = data.draw(
        st.sampled_from([document, document["pairs"][0], document["pairs"][0]["files"]])
    )
    where[data.draw(st.sampled_from([*where, "new"]))] = data.draw(JSON)
    forged = json.dumps(document).encode()
    path = logs / "forged.json"
    path.write_bytes(
        data.draw(st.sampled_from([forged, forged[:-1], b"[" * 100_000, b"[]", b"\xff"]))
    )
    assert path.read_bytes() == true + b"\n" or verify_submission(path, logs).mismatches
