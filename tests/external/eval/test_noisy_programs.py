"""Outcomes of real test programs while the code under test prints into their output."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from cooperbench.eval.test_runs import TestRun, read_test_run
from cooperbench.records.reference import ReferenceRecord
from cooperbench.sandbox.contract import CommandResult
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GO = {
    "go.mod": "module example.invalid/m\n\ngo 1.19\n",
    "noise.go": """package m

import (
	"fmt"
	"os"
	"time"
)

func Noise() {
	go func() {
		for {
			fmt.Fprint(os.Stderr, "tick")
			time.Sleep(time.Millisecond)
		}
	}()
	fmt.Print("ERROR\\n\\r10 %\\r20 %")
	time.Sleep(3 * time.Millisecond)
}
""",
    "noise_test.go": """package m

import "testing"

func TestOne(t *testing.T) { Noise() }

func TestTwo(t *testing.T) {
	t.Run("sub", func(t *testing.T) { Noise() })
}

func TestThree(t *testing.T) {
	t.Parallel()
	Noise()
}
""",
}
RUST = {
    "Cargo.toml": '[package]\nname = "noise"\nversion = "0.1.0"\nedition = "2021"\n',
    "src/lib.rs": """use std::io::{stderr, stdout, Write};

pub fn noise() {
    stdout().write_all(b"ERROR\\n\\r10 %\\r20 %").unwrap();
    stdout().flush().unwrap();
    stderr().write_all(b"FAILED").unwrap();
}
""",
    "tests/noise.rs": """#[test]
fn one() {
    noise::noise();
}

#[test]
fn two() {
    noise::noise();
}
""",
}


def run(argv: Sequence[str], folder: Path) -> TestRun:
    done = subprocess.run(
        argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return read_test_run(CommandResult(done.returncode, done.stdout), 1.0, 600)


@pytest.mark.parametrize(
    ("program", "files", "argv"),
    [
        ("go", GO, ["go", "test", "-v", "./..."]),
        ("cargo", RUST, ["cargo", "test", "--offline"]),
        ("cargo", RUST, ["cargo", "test", "--offline", "--", "--test-threads=1"]),
    ],
)
def test_a_noisy_library_passes_like_a_quiet_one(
    tmp_path: Path, program: str, files: dict[str, str], argv: list[str]
) -> None:
    require_program(program)
    quiet_folder, noisy_folder = tmp_path / "quiet", tmp_path / "noisy"
    for path, text in files.items():
        for folder in (quiet_folder, noisy_folder):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    (quiet_folder / "noise.go").write_text("package m\n\nfunc Noise() {}\n")
    (quiet_folder / "src").mkdir(exist_ok=True)
    (quiet_folder / "src/lib.rs").write_text("pub fn noise() {}\n")
    quiet, noisy = run(argv, quiet_folder), run(argv, noisy_folder)
    assert quiet.success, quiet.output
    reference = ReferenceRecord(
        question="",
        task="t",
        feature_id=1,
        image_digest="",
        network="none",
        installed=False,
        golden=quiet.to_record(),
        passed_tests=sorted(quiet.outcomes),
    )
    assert noisy.compare_with_reference(reference).success, noisy.output
    more = replace(reference, passed_tests=[*reference.passed_tests, "another"])
    assert not noisy.compare_with_reference(more).success
