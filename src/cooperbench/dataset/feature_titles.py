"""The title of a feature: the first line of its feature.md that names it."""

from __future__ import annotations

import re

MAX_TITLE_CHARACTERS = 120
_SCANNED_LINES = 20
_MARKUP = re.compile(r"^[#\s]+|\*\*")
_LABEL = re.compile(r"^(?:feature request|feature|title)(?:\s*\d+)?\s*[:-]\s*", re.IGNORECASE)
_HEADINGS = frozenset({"title", "feature", "feature request", "description", "overview"})


def title_of(description: bytes) -> str:
    """Return the first line of a feature.md that names the feature, without its markup."""
    text = description.decode("utf-8", "replace")
    for line in text.splitlines()[:_SCANNED_LINES]:
        title = _LABEL.sub("", _MARKUP.sub("", line).strip()).strip()
        if title and title.lower() not in _HEADINGS:
            return title[:MAX_TITLE_CHARACTERS]
    return ""
