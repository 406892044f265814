"""Typst's own test suite, which is started by cargo: a summary line, and no names of passed tests.

It is read as part of the output of cargo, with which it belongs together.
"""

from __future__ import annotations

SAMPLE = """\
❌ string-first (tests/suite/foundations/str.typ:12)
  Error: 2-12 string is empty
3421 passed, 2 failed, 1 skipped
"""

SUMMARY = r"""
    (?= [0-9]{1,9} [ ]passed,[ ] [0-9]{1,9} [ ]failed,[ ] [0-9]{1,9} [ ]skipped \n )
"""
"""Verbose pattern for the place before a summary."""
FAILED_TEST = r"❌[ ] (?P<typst> [A-Za-z] [-\w]{0,200} ) [ ] [^\n]* \.typ [^\n]*"
"""Verbose pattern for a test that fails."""
