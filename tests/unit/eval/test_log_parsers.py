"""The sample of output in each parser's module, and what the parser reads from it."""

from __future__ import annotations

import pytest

from cooperbench.eval.log_parsers import (
    Counts,
    cargo,
    go,
    jest,
    mocha,
    node_test,
    prepare_log,
    typst,
    unittest,
    vitest,
)
from cooperbench.eval.log_parsers import pytest as pytest_parser
from cooperbench.eval.log_parsers.base import LogParser, Outcome
from cooperbench.eval.test_logs import read_counts

_SUITE: dict[str, Outcome] = {
    "area > of a square": "passed",
    "area > of a circle": "failed",
    "area": "failed",
    "of a triangle": "skipped",
}
_AREA = "test/area.test"


@pytest.mark.parametrize(
    ("parser", "sample", "counts", "outcomes"),
    [
        (
            pytest_parser.PARSER,
            pytest_parser.SAMPLE,
            Counts(1, 2, 2),
            {
                "tests/test_area.py::test_square": "passed",
                "tests/test_area.py::test_circle[radius 2]": "failed",
                "tests/test_area.py::test_slow": "skipped",
                "tests/test_area.py::test_negative": "skipped",
                "tests/test_volume.py": "failed",
            },
        ),
        (
            unittest.PARSER,
            unittest.SAMPLE,
            Counts(1, 1, 1),
            {
                "test_area.AreaTest.test_circle": "failed",
                "test_area.AreaTest.test_slow": "skipped",
                "test_area.AreaTest.test_square": "passed",
            },
        ),
        (
            jest.PARSER,
            jest.SAMPLE,
            Counts(1, 1, 1),
            {
                f"{_AREA}.js > area > of a square": "passed",
                f"{_AREA}.js > area > of a circle": "failed",
                f"{_AREA}.js > area > of a triangle": "skipped",
            },
        ),
        (
            vitest.PARSER,
            vitest.SAMPLE,
            Counts(1, 1, 1),
            {
                f"{_AREA}.ts > area > of a square": "passed",
                f"{_AREA}.ts > area > of a circle": "failed",
                f"{_AREA}.ts > area > of a triangle": "skipped",
            },
        ),
        (node_test.PARSER, node_test.SAMPLE, Counts(1, 1, 1), _SUITE),
        (node_test.PARSER, node_test.SAMPLE_TAP, Counts(1, 1, 1), _SUITE),
        (
            mocha.PARSER,
            mocha.SAMPLE,
            Counts(1, 1, 1),
            {"of a square": "passed", "of a triangle": "skipped", "of a circle": "failed"},
        ),
        (
            go.PARSER,
            go.SAMPLE,
            Counts(2, 2, 1),
            {
                "example.com/shapes/area.TestArea": "failed",
                "example.com/shapes/area.TestArea/square": "passed",
                "example.com/shapes/area.TestArea/circle": "failed",
                "example.com/shapes/area.TestSlow": "skipped",
                "example.com/shapes/volume": "failed",
            },
        ),
        (
            cargo.PARSER,
            cargo.SAMPLE,
            Counts(2, 1, 1),
            {
                "shapes::area::square": "passed",
                "shapes::area::circle": "failed",
                "shapes::area::slow": "skipped",
                "shapes::src/lib.rs - area (line 3)": "passed",
            },
        ),
        (
            cargo.PARSER,
            cargo.SAMPLE_NEXTEST,
            Counts(1, 1, 0),
            {"shapes area::square": "passed", "shapes area::circle": "failed"},
        ),
        (cargo.PARSER, typst.SAMPLE, Counts(3421, 2, 1), {"string-first": "failed"}),
    ],
    ids=lambda value: value.name if isinstance(value, LogParser) else "",
)
def test_sample(
    parser: LogParser, sample: str, counts: Counts, outcomes: dict[str, Outcome]
) -> None:
    text = prepare_log(sample)
    assert list(parser.parse_counts(text)) == [counts]
    assert dict(parser.parse_outcomes(text)) == outcomes
    assert read_counts(sample) == counts._replace(framework=parser.name), "and of no other parser"
