"""Typst's own tests: sections of a file, with calls such as `#test(a, b)` and expected errors.

    --- string-first ---
    #test("ab".first(), "a")
    // Error: 2-12 string is empty
    #"".first()

There is no grammar of Typst among our dependencies, so this is a small reader of its own.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cooperbench.eval.canaries.literals import find_words
from cooperbench.eval.canaries.model import Check, Edit, HiddenTest, Slot, Span, TestFile

_HEADER = re.compile(rb"^--- (?P<name>[A-Za-z][\w-]*)(?: [^\n]*?)? ?---[ \t\r]*$", re.MULTILINE)
_CALL = re.compile(
    rb"(?: \# | ^[ \t]* ) (?P<function> test | assert (?: \.eq | \.ne )? ) (?P<open> \( )",
    re.MULTILINE | re.VERBOSE,
)
_ERROR = re.compile(
    rb"""
    ^ [ \t]* // [ ] Error: [ ]
    (?: [0-9:-]+ [ ] )?          # the position of the error
    (?P<message> [^\r\n]+ )
    """,
    re.MULTILINE | re.VERBOSE,
)
_PARAGRAPH_END = re.compile(rb"\r?\n[ \t]*\r?\n")
_TOKEN = re.compile(
    rb"""
      (?P<space> \s+ | //[^\n]* )
    | (?P<string> " (?: \\. | [^"\\] )* " )
    | (?P<number> [0-9] [0-9_]* (?: \.[0-9]+ )? (?: [eE][-+]?[0-9]+ )? [a-z]* )
    | (?P<name> [A-Za-z_] [\w-]* )
    | (?P<open> [(\[{] )
    | (?P<close> [)\]}] )
    | (?P<comma> , )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_CONSTRUCTORS = frozenset({b"datetime", b"duration", b"version", b"decimal", b"bytes", b"label"})
_IN_VALUES = b":-+*/%"
_TRUTHS = {b"true": b"false", b"false": b"true"}
_NOTHING = {b"none": (b"auto", b"false", b"0"), b"auto": (b"none", b"false", b"0")}


class _Token(NamedTuple):
    kind: str
    text: bytes
    span: Span


def read_typst(source: bytes) -> TestFile:
    """Return the tests of a Typst file."""
    headers = list(_HEADER.finditer(source))
    ends = [*(header.start() for header in headers[1:]), len(source)]
    tests = []
    for header, end in zip(headers, ends, strict=False):  # without headers there is only the end
        body = source[header.start() : end].rstrip()
        span = Span(header.start(), header.start() + len(body))
        checks = [*_call_checks(source, span), *_error_checks(source, span)]
        checks.sort(key=lambda check: check.span)
        name = header["name"].decode()
        tests.append(HiddenTest(name, span, header.end("name"), "kebab", tuple(checks)))
    texts = [token.text for token in _tokens(source, Span(0, len(source)))]
    return TestFile(
        source=source,
        tests=tuple(tests),
        words=tuple(sorted(set(find_words(source)))),
        numbers=tuple(sorted({text for text in texts if text.isdigit()})),
        identifiers=frozenset({*texts, *(header["name"] for header in headers)}),
        new_test=_new_test(source, tests),
    )


def _tokens(source: bytes, span: Span) -> Iterator[_Token]:
    for match in _TOKEN.finditer(source, span.start, span.end):
        kind = match.lastgroup or ""
        if kind != "space":
            yield _Token(kind, match[0], Span(*match.span()))


def _call_checks(source: bytes, section: Span) -> Iterator[Check]:
    """Yield the checks of `test(a, b)`, `assert(a)` and the like."""
    position = section.start
    while True:
        match = _CALL.search(source, position, section.end)
        if match is None:
            return
        arguments, end = _arguments(source, Span(match.end(), section.end))
        if end is None:
            return
        position = end
        function = Span(*match.span("function"))
        slots = _slots_of_call(source, function, arguments)
        if slots:
            span = Span(function.start, end)
            subjects = [argument for argument in arguments if not _is_value(argument)]
            evaluated = b", ".join(_text(source, subject) for subject in subjects[:2])
            neutral = Edit(*span, b"{ let _ = (" + evaluated + b",) }" if evaluated else b"none")
            yield Check(span, slots, (neutral,))


def _arguments(source: bytes, span: Span) -> tuple[list[list[_Token]], int | None]:
    """Return the arguments of a call, and where it ends; None if it does not end."""
    arguments: list[list[_Token]] = [[]]
    depth = 0
    for token in _tokens(source, span):
        if token.kind == "close" and depth == 0:
            return [argument for argument in arguments if argument], token.span.end
        if token.kind == "comma" and depth == 0:
            arguments.append([])
            continue
        if token.kind == "open":
            depth += 1
        elif token.kind == "close":
            depth -= 1
        arguments[-1].append(token)
    return [], None


def _text(source: bytes, argument: Sequence[_Token]) -> bytes:
    return source[argument[0].span.start : argument[-1].span.end]


def _is_value(argument: Sequence[_Token]) -> bool:
    """Whether an argument is written down as a value."""
    has_literal = False
    for index, token in enumerate(argument):
        following = argument[index + 1].text if index + 1 < len(argument) else b""
        if token.kind == "name":
            if following == b"." or (following == b"(" and token.text not in _CONSTRUCTORS):
                return False
            has_literal |= token.text in _TRUTHS or token.text in _NOTHING
        elif token.kind in ("string", "number"):
            if following == b".":
                return False
            has_literal = True
        elif token.text in (b"[", b"{") or (token.kind == "other" and token.text not in _IN_VALUES):
            return False
    return has_literal


def _slots_of_call(
    source: bytes, function: Span, arguments: Sequence[Sequence[_Token]]
) -> tuple[Slot, ...]:
    name = source[function.start : function.end]
    if name == b"assert" and arguments:
        condition = Span(arguments[0][0].span.start, arguments[0][-1].span.end)
        text = source[condition.start : condition.end]
        other = text[4:] if text.startswith(b"not ") else b"not (" + text + b")"
        return (Slot(condition, "fixed", (other,)),)
    if len(arguments) < 2:
        return ()
    if name == b"assert.ne":
        return (Slot(function, "fixed", (b"assert.eq",)),)
    left, right = arguments[:2]
    for expected in (right, left):
        if _is_value(expected):
            return _slots_in(expected)
    return (Slot(function, "fixed", (b"assert.ne",)),)


def _slots_in(value: Sequence[_Token]) -> tuple[Slot, ...]:
    slots = []
    for token in value:
        if token.kind == "string":
            slots.append(Slot(Span(token.span.start + 1, token.span.end - 1), "text"))
        elif token.kind == "number":
            slots.append(Slot(token.span, "number"))
    if slots:
        return tuple(slots)
    for token in value:
        if token.text in _TRUTHS:
            slots.append(Slot(token.span, "fixed", (_TRUTHS[token.text],)))
        elif token.text in _NOTHING:
            slots.append(Slot(token.span, "fixed", _NOTHING[token.text]))
    return tuple(slots)


def _error_checks(source: bytes, section: Span) -> Iterator[Check]:
    """Yield the checks of expected error messages."""
    ends = [match.start() for match in _PARAGRAPH_END.finditer(source, *section)]
    ends.append(section.end)
    calls = [match.start() for match in _CALL.finditer(source, *section)]
    for match in _ERROR.finditer(source, *section):
        message = Span(*match.span("message"))
        end = ends[bisect_left(ends, match.end())]
        neutral: tuple[Edit, ...] = ()
        has_call = bisect_left(calls, match.start()) < bisect_left(calls, end)
        if not has_call:
            neutral = (Edit(match.start(), end, b""),)
        yield Check(message, (Slot(message, "phrase"),), neutral)


def _new_test(source: bytes, tests: Sequence[HiddenTest]) -> Edit | None:
    """Return the insertion of a failing test under a name that begins like the first."""
    if not tests:
        return None
    name = tests[0].name.encode()
    text = b"\n--- " + name + b'-{first}-{second} ---\n#test("{first}", "{second}-")\n'
    return Edit(len(source), len(source), text)
