"""JSON that strict readers accept, whatever agents wrote."""

from __future__ import annotations

import json
import re

import msgspec

_SURROGATES = re.compile("[\ud800-\udfff]")


def json_text(value: object) -> str:
    """Return a value as JSON, on one line.

    Strict readers reject unpaired surrogates, which come from bytes that were not UTF-8. They are
    replaced by U+FFFD.
    """
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
    return without_surrogates(text)


def without_surrogates(text: str) -> str:
    """Return a text that UTF-8 can encode."""
    return _SURROGATES.sub("\ufffd", text)
