"""The page as one HTML document: template, style and script joined, under a policy that allows nothing else.

Style and script are allowed by their hash; markup is never parsed at run time (trusted types forbid it). Data are
JSON in script elements that browsers do not execute.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Mode = Literal["inside", "beside", "live"]
"""Where the details of pairs are: in the document, in scripts beside it, or at the server that sent it."""


@cache
def _joined(suffix: str) -> str:
    """All assets of a kind; their names begin with digits that give the order."""
    assets = [
        one for one in (files("cooperbench.report.page") / "assets").iterdir() if one.name.endswith(suffix)
    ]
    return "\n".join(one.read_text(encoding="utf-8") for one in sorted(assets, key=lambda one: one.name))


def style() -> str:
    return _joined(".css")


@cache
def script() -> str:
    """In a scope of its own: names of the page are no globals."""
    return f'"use strict";\n(() => {{\n{_joined(".js")}\n}})();\n'


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(mode: Mode) -> str:
    """The content security policy. Nothing is loaded from anywhere, except details where they are not inside.

    In a file beside, `'self'` is for a web server, `file:` for a page that is opened from disk.
    """
    beside = " 'self' file:" if mode == "beside" else ""
    parts = {
        "default-src": "'none'",
        "script-src": _source(script()) + beside,
        "style-src": _source(style()),
        "img-src": "data:",
        "connect-src": "'self'" if mode == "live" else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "cooperbench" if mode == "beside" else "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def embedded_json(content: Mapping[str, Any]) -> str:
    """JSON that can stand inside of a script element: it has no `<`, so that nothing in it ends the element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return _without_surrogates(text).replace("<", "\\u003c")


def _without_surrogates(text: str) -> str:
    """Bytes that were no UTF-8 are half characters in Python; in JSON they are replaced."""
    return text.encode("utf-8", "replace").decode()


def document(title: str, overview: Mapping[str, Any], mode: Mode) -> str:
    """All but the details. It may end here, or script elements with details may follow."""
    template = (files("cooperbench.report.page") / "assets" / "page.html").read_text(encoding="utf-8")
    values = {
        "policy": html.escape(policy(mode)),
        "title": html.escape(_without_surrogates(title)),
        "style": style(),
        "overview": embedded_json({**overview, "mode": mode}),
        "script": script(),
    }
    pieces = template.split("@")
    # The template has one name between every two signs.
    return "".join(piece if at % 2 == 0 else values[piece] for at, piece in enumerate(pieces))
