"""Confirmation suites: hidden tests among copies that must fail. docs/evaluation.md explains them.

Parsers are imported when the first suite is made.
"""

from cooperbench.eval.canaries.suites import Suite, SuiteKind, new_suites

__all__ = ["Suite", "SuiteKind", "new_suites"]
