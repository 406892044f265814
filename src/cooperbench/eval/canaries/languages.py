"""Readers of test files, by their names."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module

from cooperbench.eval.canaries.model import TestFile

_READERS = {
    r"\.py$": ("python", "read_python"),
    r"\.[cm]?jsx?$": ("javascript", "read_javascript"),
    r"\.[cm]?ts$": ("javascript", "read_typescript"),
    r"\.tsx$": ("javascript", "read_tsx"),
    r"_test\.go$": ("go", "read_go"),
    r"\.rs$": ("rust", "read_rust"),
    r"\.typ$": ("typst", "read_typst"),
}
"""By the ending of a file: module and function of its reader."""
_MAX_BYTES = 2_000_000


def read_test_file(path: str, source: bytes) -> TestFile | None:
    """Return the tests of a file; None if it is not in a language that can be read."""
    if len(source) > _MAX_BYTES:
        return None
    for ending, (module, function) in _READERS.items():
        if re.search(ending, path):
            reader: Callable[[bytes], TestFile] = getattr(
                import_module(f"cooperbench.eval.canaries.{module}"), function
            )
            try:
                file = reader(source)
            except RecursionError:
                return None  # nobody writes values that are nested that deep
            return file if file.tests or file.new_test else None
    return None
