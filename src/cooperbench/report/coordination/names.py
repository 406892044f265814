"""Files and symbols that people name in running text. Careful rather than complete: a word that may be English is none.

A file is a word with a known ending, or a path. A symbol is an identifier in backticks, one with `()` behind it, one
after a noun like *function* or *class*, a snake_case word, or `Class.member`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_ENDINGS = (
    "py|pyi|pyx|ts|tsx|js|jsx|mjs|cjs|mts|cts|go|rs|c|h|cc|cpp|hpp|java|kt|rb|php|cs|swift|scala|sh|bash|"
    "toml|cfg|ini|json|yaml|yml|lock|md|rst|txt|sql|html|css|scss|proto|xml|tmpl|j2|snap|mod|sum"
)
_NOUNS = (
    "function|func|method|class|struct|trait|interface|enum|type|module|decorator|constant|variable|attribute|property|"
    "parameter|param|argument|arg|field|helper|option|flag|kwarg|named|called"
)
_FILE = rf"(?:[\w@+-]{{1,80}}[./]){{1,24}}(?:{_ENDINGS})(?![\w/])"
_IDENTIFIER = r"[A-Za-z_$][\w$]{0,80}"
_DOTTED = rf"{_IDENTIFIER}(?:(?:\.|::|#){_IDENTIFIER}){{0,6}}"
_TOKEN = re.compile(
    rf"`(?P<ticked>[^`\n]{{1,160}})`"
    rf"|(?<![\w./@-])(?:\./)?(?P<file>{_FILE})"
    rf"|(?<![\w./@-])(?P<called>{_DOTTED})\(\)?"
    rf"|\b(?P<noun>{_NOUNS})\s{{1,4}}(?P<named>{_DOTTED})"
    rf"|(?<![\w./@-])(?P<snake>(?:[A-Za-z]\w{{0,60}}\.)?_{{0,2}}[A-Za-z0-9]{{1,40}}(?:_[A-Za-z0-9]{{1,40}}){{1,8}})(?![\w/-]|\.\w)"
    r"|(?<![\w./@-])(?P<member>[A-Z][A-Za-z0-9]{1,60}\.[a-z_]\w{1,60})(?![\w/(-]|\.\w)",
)
_NO_FILES = frozenset({"node.js", "next.js", "vue.js", "react.js", "express.js"})
_WHOLE_FILE = re.compile(rf"(?:\./)?({_FILE})(?::\d+(?:-\d+)?)?")
_WHOLE_SYMBOL = re.compile(
    rf"(?:{_NOUNS.replace('|', ' |')} |def |fn |async )?({_DOTTED})(?:\([^()]{{0,120}}\))?(?:\s*->.{{0,60}})?:?"
)
_LOOKS_LIKE_CODE = re.compile(r"[a-z][A-Z]|_|[A-Z][a-z]+[A-Z]|[a-z]\d")
_DETAILS = frozenset(
    {"parameter", "param", "argument", "arg", "field", "option", "flag", "kwarg", "variable", "attribute"}
)
_NO_SYMBOLS = frozenset(
    {"self", "this", "none", "null", "true", "false", "return", "import", "main", "todo", "and", "or"}
)


@dataclass(frozen=True)
class Named:
    """A file or symbol in a text."""

    kind: Literal["file", "symbol", "detail"]
    """`detail`: a parameter, a field and the like, which no patch can be asked for by name."""
    name: str
    start: int
    end: int


def names_in(text: str) -> list[Named]:
    """In order. The text is a sentence: it is bounded by whoever cut it out."""
    found = []
    for token in _TOKEN.finditer(text):
        one = _named(token, text)
        if one is not None:
            found.append(one)
    return found


def _named(token: re.Match[str], text: str) -> Named | None:
    start, end = token.span()
    if token["ticked"] is not None:
        ticked = token["ticked"].strip()
        file = _WHOLE_FILE.fullmatch(ticked)
        if file:
            return Named("file", file[1], start, end)
        symbol = _WHOLE_SYMBOL.fullmatch(ticked)
        if symbol and symbol[1].lower() not in _NO_SYMBOLS:
            around = (text[max(0, start - 40) : start].split()[-1:], text[end : end + 40].split()[:1])
            is_detail = any(word.lower().strip("*_:,.;()") in _DETAILS for words in around for word in words)
            return Named("detail" if is_detail else "symbol", _plain(symbol[1]), start, end)
        return None
    if token["file"] is not None:
        return None if token["file"].lower() in _NO_FILES else Named("file", token["file"], start, end)
    if token["called"] is not None:
        return Named("symbol", _plain(token["called"]), start, end)
    if token["named"] is not None:
        name = token["named"]
        is_file = _WHOLE_FILE.match(text, token.start("named"))
        if is_file:
            return Named("file", is_file[1], token.start("named"), is_file.end())
        if not _LOOKS_LIKE_CODE.search(name):
            return None
        detail = token["noun"] in _DETAILS
        return Named("detail" if detail else "symbol", _plain(name), token.start("named"), end)
    return Named("symbol", token["snake"] or token["member"], start, end)


def _plain(name: str) -> str:
    return name.replace("::", ".").replace("#", ".")
