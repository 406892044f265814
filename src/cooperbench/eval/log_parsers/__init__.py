"""Parsers of test logs, one module per framework: log in, counts and `{test: outcome}` out.

Each module has a sample of the output that it reads. `cooperbench.eval.test_logs` applies all of
them to the output of a test run. To add a framework, add a module with a `PARSER` and list it here.
"""

from __future__ import annotations

from cooperbench.eval.log_parsers import (
    cargo,
    go,
    jest,
    mocha,
    node_test,
    pytest,
    unittest,
    vitest,
)
from cooperbench.eval.log_parsers.base import Counts, LogParser, Outcome, prepare_log

__all__ = ["PARSERS", "Counts", "LogParser", "Outcome", "prepare_log"]

PARSERS: tuple[LogParser, ...] = (
    pytest.PARSER,
    unittest.PARSER,
    node_test.PARSER,
    jest.PARSER,
    vitest.PARSER,
    mocha.PARSER,
    go.PARSER,
    cargo.PARSER,
)
