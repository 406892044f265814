"""Texts for which regular expressions and parsers may need time that grows faster than their length."""

from __future__ import annotations


def hostile_texts(size: int) -> dict[str, str]:
    """Return texts of about `size` characters, by what they consist of."""
    fragments = {
        "brackets": "[",
        "braces": "{",
        "parentheses": "(",
        "nested": "[{(",
        "quotes": '"',
        "single quotes": "'",
        "backslashes": "\\",
        "escaped quotes": '\\"',
        "spaces": " ",
        "tabs": "\t",
        "returns": "\r",
        "line ends": "\n",
        "blank lines": " \n",
        "dots": "a.",
        "slashes": "a/",
        "colons": "a::",
        "dashes": "-",
        "equals": "=",
        "underscores": "_",
        "identifier": "a",
        "words": "a ",
        "capitals": "aB",
        "backticks": "`",
        "nulls": "\0",
        "escapes": "\x1b[",
        "commas": "1 passed, ",
        "arrows": " > ",
        "ellipses": "test_x (m.T) ... ",
        "statuses": "PASSED ",
        "test ids": "a.py::t[",
        "quoted strings": '"a" ',
        "assignments": "a = ",
        "sections": "[test\n",
    }
    texts = {name: text * (size // len(text)) for name, text in fragments.items()}
    texts["ends differently"] = "a" * size + "!"
    texts["deep JSON"] = "[" * (size // 2) + "]" * (size // 2)
    texts["deep objects"] = '{"a":' * (size // 6) + "1" + "}" * (size // 6)
    return texts
