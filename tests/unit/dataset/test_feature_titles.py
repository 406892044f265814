"""Titles of features."""

from __future__ import annotations

import pytest

from cooperbench.dataset.feature_titles import MAX_TITLE_CHARACTERS, title_of


@pytest.mark.parametrize(
    ("description", "title"),
    [
        ("# Feature: wildcards\n\n## Why\n", "wildcards"),
        ("**Title**: Add a `truncate` filter\n", "Add a `truncate` filter"),
        ("## Title\nFeature 3: typed parameters\n", "typed parameters"),
        ("\n\n# Feature Request\n\nSupport seconds\n", "Support seconds"),
        ("", ""),
        ("x" * 1000, "x" * MAX_TITLE_CHARACTERS),
    ],
)
def test_title(description: str, title: str) -> None:
    assert title_of(description.encode()) == title
