"""A minute of the campaign, on `local`; `make chaos` is all of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SECONDS = int(os.environ.get("COOPERBENCH_CHAOS_SECONDS", "60"))


@pytest.mark.xdist_group("litellm")
@pytest.mark.timeout(SECONDS + 600)
def test_a_disturbed_run_ends_like_an_undisturbed_one() -> None:
    words = [
        sys.executable,
        "-m",
        "tests.chaos",
        "--seconds",
        str(SECONDS),
        "--seed",
        "2",
        "--backends",
        "local",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 violations" in done.stdout
