"""`cooperbench validate --canaries` says which features have successes that can be confirmed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cooperbench.cli import main
from tests.support.attacks.rectangle import BASE, GOLDEN, SOURCE, write_rectangle, write_task
from tests.support.tiny import text_patch

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SHELL_TEST = """python3 -c 'from rectangle import area; assert area(2, 3) == 6' || exit 1
echo "Ran 1 test in 0.001s"
echo
echo OK
"""


def validate(root: Path, *options: str) -> int:
    argv = ["validate", "--canaries", "--backend", "local", "--dataset-dir", str(root), "-f", "1,2"]
    return main([*argv, *options])


def test_kind_and_numbers_of_tests_are_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_rectangle(tmp_path)
    assert validate(tmp_path, "--json") == 0
    (report,) = json.loads(capsys.readouterr().out)["tasks"]
    first, second = report["canaries"]
    assert first == {"feature_id": 1, "kind": "copies", "tests": 5, "tests_with_decoys": 5}
    assert second["kind"] == "copies"


def test_a_feature_without_canary_is_a_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    golden = text_patch(
        SOURCE, BASE[SOURCE].splitlines(keepends=True), GOLDEN[SOURCE].splitlines(keepends=True)
    )
    tests = text_patch("tests/check.sh", None, SHELL_TEST.splitlines(keepends=True))
    write_task(
        tmp_path,
        BASE,
        golden={1: golden, 2: golden},
        tests={1: tests, 2: tests},
        combined=golden,
        command="bash tests/check.sh",
    )
    assert validate(tmp_path) == 1
    output = capsys.readouterr().out
    assert "feature 1: its successes cannot be confirmed" in output
    assert "rectangle_task/task1 feature 2  none  0      0" in output
