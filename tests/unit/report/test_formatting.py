"""The same share is the same number in the terminal and on the page."""

from __future__ import annotations

import json
import subprocess
from fractions import Fraction
from importlib.resources import files

from hypothesis import given
from hypothesis import strategies as st

from cooperbench.report.formatting import hundredths_text, percent_text, points_text, rate_text
from cooperbench.report.statistics import Estimate
from tests.support.requirements import require_program

COUNTS = [(passed, of) for of in (1, 3, 7, 8, 16, 40, 100, 200, 652) for passed in range(of + 1)]


def exactly(passed: int, of: int, digits: int) -> str:
    """Half up, without floating point."""
    whole = int(Fraction(passed, of) * 100 * 10**digits + Fraction(1, 2))
    return f"{whole // 10**digits}" + (f".{whole % 10**digits:0{digits}}" if digits else "")


def test_shares_are_rounded_as_people_do() -> None:
    assert (percent_text(0.625), percent_text(None)) == ("63\u00a0%", "–")
    for passed, of in COUNTS:
        for digits in (0, 1):
            assert hundredths_text(passed / of, digits) == exactly(passed, of, digits), (passed, of)


def test_intervals_and_differences_are_rounded_alike() -> None:
    estimate = Estimate(0.125, -0.0004, 0.145, 8, 4, "clustered")
    assert rate_text(estimate) == "13\u00a0% [0–15]"
    assert points_text(estimate) == "+12.5\u00a0points [0.0,\u00a0+14.5]"
    assert hundredths_text(-0.625) == "−63"


@given(st.floats(-1, 1), st.integers(0, 1))
def test_a_sign_makes_no_other_number(share: float, digits: int) -> None:
    shown = hundredths_text(abs(share), digits)
    assert hundredths_text(share, digits).removeprefix("−") == shown
    assert abs(float(shown) - 100 * abs(share)) <= 0.5 * 10**-digits + 1e-8


def test_the_page_rounds_like_the_terminal() -> None:
    require_program("node", package="nodejs")
    shares = [passed / of for passed, of in COUNTS]
    shares += [first - second for first in shares[:30] for second in shares[::40]]
    script = (
        files("cooperbench.report.page").joinpath("assets/02_format.js").read_text(encoding="utf-8")
    )
    script += f"\nconst asked = {json.dumps(shares)};"
    script += "\nconsole.log(JSON.stringify(asked.map((share) => [hundredths(share), hundredths(share, 1)])));"
    done = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        [hundredths_text(share), hundredths_text(share, 1)] for share in shares
    ]
