"""Assertions of tests, changed in the text of the patch that adds them.

The patch keeps its form: who does not know the right values cannot tell it from the real one.
"""

from __future__ import annotations

import builtins
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from random import Random
from string import ascii_lowercase, digits
from typing import NamedTuple

from cooperbench.diff import NewLine, new_lines

_TEST_BEGINS = re.compile(
    r"^[ \t]*(?:(?:async )?def test|(?:[\w$]+\.)?(?:it|test)\b *[.(]|(?P<table>@pytest\.mark\.param|describe\.each)"
    r"|func Test|#\[(?:\w+::)*(?:rs)?test|--- \S+ ---$|exports\[`)",
    re.MULTILINE,
)
"""Where one begins, or the table of values above it."""
_LAST_COLUMN = (
    r"""[,|]\s*(?:#\[case\] )?["']?{}["']?(?:: [^,()\n]+)?(?:,?\s*["')\]|}]|\s+(?:in|of)\b|\n)"""
    r"|\b{}\s+[\w.*\[\]]+\s*}"
)
"""Of such a table: names of parameters, of a loop, or of the fields of a struct."""
_CODE = re.compile(r"\.(?:py|[cm]?[jt]sx?(?:\.snap)?|go|rs|typ)$")
_SCRIPT = re.compile(r"\.[cm]?[jt]sx?(?:\.snap)?$")
_NAME = re.compile(r"\b(?:def|fn|func) (\w+)")
_TITLE = re.compile(r"[\"'`]([^\"'`\n]+)[\"'`]")
_HASH_COMMENTS = re.compile(r"\.(?:pyi?|rb|sh|ya?ml|ex|exs|jl|r)$", re.IGNORECASE)
_LONG_QUOTES = re.compile(r"\.(?:py|[cm]?[jt]sx?(?:\.snap)?|rb|php)$")
"""Where '…' is a string and not one character."""
_STRINGS = (
    r'"""(?:\\.|[^\\])*?"""', r"'''(?:\\.|[^\\])*?'''", r'"(?:\\.|[^"\\\n])*"', r"`(?:\\.|[^`\\])*`"
)  # fmt: skip
_REGEX = r"(?<=[(, ])/(?![/* =])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/[a-z]*(?=[,)\n])"
_REST = (
    r"(?P<number>(?<![\w.])[0-9][\w.]*)|(?P<name>[A-Za-z_$][\w$]*)|(?P<open>[(\[{])|(?P<close>[)\]}])"
    r"|(?P<operator>[=!]==?|:=|&&|\|\||[-=:,.!\n])|(?P<other>[^\s])"
)
_EQUALITY = re.compile(
    r"assert_?(?:[a-z]+_?)?(?:equals?|eq|is|is_?instance|in|regex|matches|allclose)|assert(?:Is|In|Regex|(?!Not)\w*Equals?)"
    r"|assert_called(?:_once)?_with|(?:deep|strict|deepStrict|loose)?[eE]quals?|eql|eq|lengthOf|Equal(?:Values|Error)?"
    r"|JSONEq|Len|Contains|ElementsMatch"
    r"|to(?:Be|BeCloseTo|Equal|StrictEqual|Contain|ContainEqual|HaveLength|MatchObject|HaveProperty|Throw|Match)"
    r"|to(?:Match|ThrowErrorMatching)InlineSnapshot|toHave(?:Been)?(?:Last|Nth)?(?:Called|Returned)(?:With|Times)"
)
_OK = ["assert", ".", "ok"]
_EQUALITIES = [["t", ".", "is"], ["t", ".", "same"], ["#", "test"], ["\n", "#", "test"]]
_EQUALITIES += (["assert", ".", name] for name in ("throws", "rejects", "match"))
"""Of ava and tap, of Typst, and of node:assert."""
_COMPARED = re.compile("to(?:Be|Equal|StrictEqual)|(?:deep|strict|deepStrict)?[eE]qual")
_PLAIN = re.compile("[0-9]{1,4}|'[A-Za-z]{1,12}'|\"[A-Za-z]{1,12}\"")
_CONTAINED = re.compile("in$|contain|match|regex|throw|reject", re.IGNORECASE)
"""Assertions that a text has a word in it: texts that are right may have any other word of the file in them, too."""
_MATCHER = re.compile(
    r"to(?:Be|Have|Equal|StrictEqual|Contain|Match|Throw|Return)(?!\w*Snapshot)\w*"
)
_CALL = re.compile(r"(?:await )?((?:self|this|cls)\.)?([A-Za-z_]\w*)!?\(")
_CHECK = re.compile("check|assert|expect(?!$)|verify|ensure", re.IGNORECASE)
"""Functions that are likely to hold assertions, wherever they are defined; what `expect` is given is tested."""
_FAILS = re.compile(
    "(?i)assert|check|expect|verify|ensure|require|fail|fatal|error|raise|throw|panic"
)
_EXPECTED = re.compile(r"(?:want|expect)\w*|exp|match", re.IGNORECASE)
_VALUE_CALLS = re.compile(
    r"[A-Z]\w*|from|to_string|to_owned|into|vec|set|frozenset|tuple|list|dict|byte|approx|date|datetime"
)
"""Calls that only make a value of their arguments."""
_TRUTH = {"true": "false", "false": "true", "True": "False", "False": "True"}
_OPPOSITE_NAMES = (
    "assertTrue assertFalse, assertIn assertNotIn, assertIsNone assertIsNotNone, assertEqual assertNotEqual, "
    "assertIs assertIsNot, assertIsInstance assertNotIsInstance, assertGreater assertLessEqual, "
    "assertLess assertGreaterEqual, assertRegex assertNotRegex, assert_called_once assert_not_called, "
    "assert_eq assert_ne, is_some is_none, is_ok is_err, NoError Error, True False, Nil NotNil, Equal NotEqual, "
    "To NotTo, toBeTruthy toBeFalsy, toBeDefined toBeUndefined, throws doesNotThrow, equal notEqual, "
    "strictEqual notStrictEqual, deepEqual notDeepEqual, deepStrictEqual notDeepStrictEqual, true false, "
    "isTrue isFalse, isNull isNotNull, truthy falsy, include notInclude, "
    "toBeGreaterThan toBeLessThanOrEqual, toBeLessThan toBeGreaterThanOrEqual"
)
_OPPOSITES = dict(pair.split() for pair in _OPPOSITE_NAMES.split(", "))
_OPPOSITES |= {other: one for one, other in _OPPOSITES.items()}
_OPPOSITES |= {"toBeNull": "toBeTruthy", "toBeNaN": "toBeTruthy"}
_COMPARISONS = {"==": "!=", "===": "!==", "<": ">=", ">": "<=", "is": "is not", "in": "not in"}
_COMPARISONS |= {other: one for one, other in _COMPARISONS.items()}
_COMPARISON = re.compile(f" ({'|'.join(sorted(_COMPARISONS, key=len, reverse=True))}) ")
_ENDS = ("\n", ",", ":", "&&", "||", "and", "or", "if", "{")
_FIXED = re.compile(r"\\(?:x..|u\{\w+\}|u....|.)|%[\w.]+|\$?\{[^}\n]*\}", re.DOTALL)
"""Escapes and places for values: not to be touched."""
_WORD = re.compile("[A-Za-z]{2,}")
_WORD_IN_REGEX = r"(?<![\w<\[-])[A-Za-z]{3,}(?![\w?*>|\]-])"
"""Nothing shorter: other messages that are right may have it in them."""
_BEFORE_ROW = re.compile(r"[\[({,\n]|case$")
_ERRORS = ("OSError", "IndexError", "AttributeError", "ImportError", "ZeroDivisionError")
_SCRIPT_ERRORS = ("URIError", "EvalError", "ReferenceError")
"""Which code that is right is unlikely to raise in place of others."""
_COMMON_ERRORS = ("ValueError", "TypeError", "KeyError", "RuntimeError", "NotImplementedError")
_THROWS = re.compile("toThrow(?:Error)?|toBeInstanceOf|throws|rejects")
_CLASS = re.compile(r"(?:\w+\.)*[A-Z]\w*")


class Edit(NamedTuple):
    """In the text of a patch."""

    start: int
    end: int
    text: str


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def mutated(patch: str, random: Random, *, only_one: bool = False) -> tuple[str, tuple[str, ...]]:
    """With other expected values in all tests but one, or in only one, where that can be; and their names."""
    found = [
        test for lines in _hunks(patch.encode("latin-1")) for test in _Hunk(lines, random).tests()
    ]
    tests = [test for test in found if test[1]] or found
    if len(tests) > 1:
        tests = random.sample(tests, 1 if only_one else len(tests) - 1)
    for edit, _ in sorted(tests, reverse=True):
        patch = patch[: edit.start] + edit.text + patch[edit.end :]
    return patch, tuple(name for _, name in tests)


def _hunks(patch: bytes) -> list[list[NewLine]]:
    hunks: list[list[NewLine]] = []
    for line in new_lines(patch):
        if not hunks or (line.path, line.number) != (hunks[-1][-1].path, hunks[-1][-1].number + 1):
            hunks.append([])
        hunks[-1].append(line)
    return hunks


class _Hunk:
    """The new side of a hunk."""

    def __init__(self, lines: Sequence[NewLine], random: Random) -> None:
        self._random = random
        self._lines, self._path, self._start = lines, lines[0].path, lines[0].offset
        # What the patch removes is filled with blanks, so that everything keeps its distance from the start.
        text = bytearray(b" " * (lines[-1].offset - self._start + len(lines[-1].content)))
        for line in lines:
            at = line.offset - self._start
            text[at : at + len(line.content) + 1] = line.content + b"\n"
        self._text = text.decode("latin-1")

    @cached_property
    def _words(self) -> list[str]:
        strings = (token.text for token in self._tokens if token.kind == "string")
        return sorted({word for text in strings for word in _WORD.findall(_FIXED.sub(" ", text))})

    @cached_property
    def _begins(self) -> list[int]:
        """Where tests begin; of one with a table, where the first table does."""
        found = list(_TEST_BEGINS.finditer(self._text))
        inner = {one.start() for table, one in pairwise(found) if table["table"]}
        return [one.start() for one in found if one.start() not in inner]

    def tests(self) -> Iterator[tuple[Edit, str]]:
        """A change of each test in it that can be changed, and its name, empty where it begins further above."""
        begins = self._begins
        is_inside = self._lines[0].number > 1 and not (begins and self._is_added(begins[0] + 1))
        found: dict[int, list[Edit]] = {}
        for find in (self._given, self._errors, self._opposites, self._replaced, self._values):
            edits: dict[int, list[Edit]] = {}
            for edit in find() if begins or _CODE.search(self._path) else ():
                test = bisect_right(begins, edit.start)
                if (test or is_inside) and self._is_added(edit.start):
                    edit = Edit(edit.start + self._start, edit.end + self._start, edit.text)
                    edits.setdefault(test, []).append(edit)
            found |= edits  # the latter are preferred
        for test, some in found.items():
            form = _TITLE if _SCRIPT.search(self._path) else _NAME
            name = form.search(self._text, begins[test - 1]) if test else None
            yield (
                self._random.choice(some),
                name[1].encode("latin-1").decode("utf-8", "replace") if name else "",
            )

    def _is_added(self, place: int) -> bool:
        line = bisect_right(self._lines, place + self._start, key=attrgetter("offset")) - 1
        return self._lines[line].added

    @cached_property
    def _tokens(self) -> list[_Token]:
        comment = r"\#[^\n]*" if _HASH_COMMENTS.search(self._path) else r"//[^\n]*|/\*.*?\*/"
        quoted = (
            r"'(?:\\.|[^'\\\n])*'"
            if _LONG_QUOTES.search(self._path)
            else r"'(?:\\[^'\n]+|[^'\\\n])'"
        )
        strings = "|".join((*_STRINGS, quoted, *([_REGEX] if _SCRIPT.search(self._path) else [])))
        pattern = re.compile(
            f"(?P<comment>{comment})|(?P<string>{strings})|{_REST}", re.DOTALL | re.ASCII
        )
        found = (
            _Token(one.lastgroup or "", one[0], one.start()) for one in pattern.finditer(self._text)
        )
        return [token for token in found if token.kind != "comment"]

    def _given(self) -> Iterator[Edit]:
        """What is given last to a function of the tests, or stands last in a row of a table."""
        tokens = self._tokens
        for number, token in enumerate(tokens):
            call = _CALL.match(self._text, token.start) if self._begins_line(number) else None
            if call and self._asserts(call[2], elsewhere=bool(call[1])):
                opening = next(
                    place for place in range(number, len(tokens)) if tokens[place].kind == "open"
                )
                given = [
                    one
                    for one in self._arguments(opening)
                    if [part.text for part in one[1:2]] != ["="]
                ]
                edits = (self._changed(one) for one in reversed(given))
                yield from filter(None, [next(filter(None, edits), None)])
            elif token.kind == "open" and self._begins_line(number):
                yield from self._in_row(number)

    def _errors(self) -> Iterator[Edit]:
        """The error that a test of Python expects."""
        for number, token, _, after, _ in self._walk():
            if token.text in ("raises", "assertRaises", "assertRaisesRegex") and after == "(":
                error = next(self._arguments(number + 1), ())
                if error and not any(
                    one.kind == "other" or one.text.endswith("Exception") for one in error
                ):
                    found = [
                        getattr(builtins, one.text, None) for one in error if one.kind == "name"
                    ]
                    wide = tuple(one for one in found if isinstance(one, type))
                    # An error of the library's own may be one of the common ones, too.
                    others = _ERRORS + (_COMMON_ERRORS if len(wide) == len(found) else ())
                    names = [
                        name for name in others if not issubclass(getattr(builtins, name), wide)
                    ]
                    end = error[-1].start + len(error[-1].text)
                    yield Edit(error[0].start, end, self._random.choice(names))

    def _replaced(self) -> Iterator[Edit]:
        """In scripts, the class of an error, or all that a value is compared with by a literal of the tests."""
        begin = self._begins[0] if self._begins and _SCRIPT.search(self._path) else len(self._text)
        literals = [
            one.text for one in self._tokens if one.start > begin and _PLAIN.fullmatch(one.text)
        ]
        for number, token, before, after, _ in self._walk():
            is_error = _THROWS.fullmatch(token.text)
            others = (
                _SCRIPT_ERRORS if is_error else literals if _COMPARED.fullmatch(token.text) else ()
            )
            if not others or token.start < begin or after != "(" or before == ["not", "."]:
                continue
            arguments = [
                [part for part in one if part.text != "\n"] for one in self._arguments(number + 1)
            ]
            first, second = [*arguments, [], []][:2]
            value = second if before[0] == "assert" or before[1:] != ["."] else first
            last = (value or first or self._tokens[number + 1 : number + 2])[-1]
            start, end = (value or [last])[0].start, last.start + len(last.text)
            if value and (not is_error or _CLASS.fullmatch(self._text, start, end)):
                yield Edit(start, end, self._random.choice(others))
            elif is_error and arguments and not value:
                yield Edit(end, end, ", " * bool(first) + self._random.choice(others))

    def _asserts(self, name: str, *, elsewhere: bool) -> bool:
        """Whether this function is likely to hold assertions. `elsewhere`: also one that is not defined here."""
        begin = rf"\b(?:def|function|func|fn|const|let) {re.escape(name)}\b"
        found = re.search(
            rf"{begin}(.*?)(?=\n\s+(?:def|function|func|fn) |\n \S|\Z)", self._text, re.DOTALL
        )
        return bool(_CHECK.match(name) or (_FAILS.search(found[1]) if found else elsewhere))

    def _walk(self) -> Iterator[tuple[int, _Token, list[str], str, str]]:
        """Each token: its number, two before it, the one after it, what its statement begins with if not lenient."""
        statement = "\n"
        for number, token in enumerate(self._tokens):
            if token.kind == "name" and self._begins_line(number):
                statement = "" if self._is_lenient(number) else token.text
            before = [one.text for one in self._tokens[max(0, number - 2) : number]]
            after = "".join(one.text for one in self._tokens[number + 1 : number + 2])
            yield number, token, before, after, statement

    def _opposites(self) -> Iterator[Edit]:
        is_go, is_script = self._path.endswith(".go"), _SCRIPT.search(self._path)
        for number, token, before, after, statement in self._walk():
            end = token.start + len(token.text)
            # `t.Error`, `http.Error`, `bytes.Equal` and chai's `to.equal` have none.
            has_none = token.text[0].isupper() or (is_script and before[-1:] == ["."])
            owner = ")" if token.text in ("To", "NotTo") else "t" if is_script else ""
            is_owned = before[:1] and before[0] in ("assert", "require", "suite", "s", owner)
            is_part = token.text.startswith("is_") and not statement
            is_opposed = token.text in _OPPOSITES and (is_owned or not has_none) and not is_part
            if is_opposed and after in ("(", "!"):
                yield Edit(token.start, end, _OPPOSITES[token.text])
            elif is_script and token.text in ("to", "should") and before[-1:] == [after] == ["."]:
                yield self._negation(end + 1, "not.")
            elif (
                is_script
                and _MATCHER.fullmatch(token.text)
                and after == "("
                and before[-1:] == ["."]
            ):
                negated = before == ["not", "."]
                start = self._tokens[number - 2].start if negated else token.start
                # `not` is the last resort: code could let what has none pass, and the rest fail.
                other = _OPPOSITES.get(token.text, f"not.{token.text}")
                yield Edit(start, token.start if negated else end, "" if negated else other)
            elif (
                is_script
                and after == "("
                and (token.text == "assert" or [*before, token.text] == _OK)
            ):
                yield from self._negated(number + 2, "!")
            elif token.text == "assert" and self._text.startswith("!(", end):
                yield Edit(token.start, end + 2, "assert_ne!(true, ")
            elif (
                token.text == "assert"
                and self._begins_line(number)
                and self._text[end : end + 1] == " "
            ):
                yield from self._negated(number + 1, "not ")
            elif is_go and token.text == "!" and before[-1:] == ["if"] == [statement]:
                yield Edit(token.start, end, "")
            elif token.text == "==" and after == "nil" and statement:
                yield Edit(token.start, end, "!=")
            elif (
                token.text == "!="
                and statement
                and (after == "nil" or (is_go and statement == "if"))
            ):
                yield Edit(token.start, end, "==")

    def _is_lenient(self, number: int) -> bool:
        """Whether the statement that begins there allows one of several things, or all but one."""
        kind = self._tokens[number].text
        ends, words = (
            (("\n", "{"), {"and", "&&"}) if kind == "if" else (("\n",), {"or", "||", "else"})
        )
        rest = (
            [one.text for one in self._operand(number + 1, ends)]
            if kind in ("if", "assert")
            else []
        )
        return rest[:1] == ["not"] or not words.isdisjoint(rest)

    def _negation(self, place: int, word: str) -> Edit:
        """With this word there, or without it."""
        has_it = self._text.startswith(word, place)
        return Edit(place, place + has_it * len(word), "" if has_it else word)

    def _negated(self, begin: int, word: str) -> Iterator[Edit]:
        """The opposite of an expression. `assert not x == y` would be told from what people write."""
        whole = self._operand(begin, ("\n", ","))
        start = whole[0].start if whole else self._tokens[begin - 1].start + 1
        depth, text = 0, ""
        for token in whole:
            depth -= token.kind == "close"
            if depth == 0 and token.kind != "string":
                text = text.ljust(token.start - start) + token.text
            depth += token.kind == "open"
        found = None if text.startswith("not ") else _COMPARISON.search(text)
        if re.search(r" (?:or|\|\||else) ", text):
            expression = self._text[start : whole[-1].start + len(whole[-1].text)]
            if "\n" not in expression:
                yield Edit(start, start + len(expression), f"{word}({expression})")
        elif found:
            yield Edit(start + found.start(1), start + found.end(1), _COMPARISONS[found[1]])
        else:
            yield self._negation(start, word)

    def _values(self) -> Iterator[Edit]:
        tokens, seen = self._tokens, set[tuple[int, str]]()
        for number, token, before, after, statement in self._walk():
            values: list[Sequence[_Token]] = []
            is_equality = _EQUALITY.fullmatch(token.text) or [*before, token.text] in _EQUALITIES
            if token.kind == "name" and is_equality and after in ("(", "!") and statement:
                if before != ["not", "."]:
                    arguments = list(self._arguments(number + 1 + (after == "!")))
                    has_t = bool(arguments) and [one.text for one in arguments[0]] == ["t"]
                    # One of several may be right, and which one is up to the code.
                    values = arguments[has_t : (1 if token.text == "assertIn" else 2) + has_t]
            elif (
                token.kind == "name"
                and _EXPECTED.fullmatch(token.text)
                and after in ("=", ":=", ":")
            ):
                values = [self._operand(number + 2)]
            elif token.text == "=" and before[-1:] == ["]"] and self._path.endswith(".snap"):
                values = [tokens[number + 1 : number + 2]]
            elif before[:1] == ["assert"] and tokens[number - 1].kind in ("string", "number"):
                # `assert 5 == Like(4)`: what is tested stands to the right.
                values = [tokens[number - 1 : number]] if statement and token.text == "in" else []
            elif (token.text in ("==", "===") and statement.startswith("assert")) or (
                token.text in ("!=", "!==") and statement == "if"
            ):
                values = [self._operand(number + 1)]
            for value in reversed(values):
                if edit := self._changed(value, contained=bool(_CONTAINED.search(token.text))):
                    yield edit
                    break
                test = bisect_right(self._begins, token.start)
                if [one.kind for one in value[-1:]] == ["name"] and (
                    test,
                    value[-1].text,
                ) not in seen:
                    seen.add((test, value[-1].text))
                    yield from self._rows(test, value[-1].text)

    def _rows(self, test: int, name: str) -> Iterator[Edit]:
        """In rows of a test's table, if it calls their last column by this name."""
        start, end = ([0, *self._begins, len(self._text)][place] for place in (test, test + 1))
        if re.search(_LAST_COLUMN.replace("{}", re.escape(name)), self._text[start:end]):
            first, last = (
                bisect_left(self._tokens, at, key=attrgetter("start")) for at in (start, end)
            )
            for number in range(max(first, 1), last):
                if self._tokens[number].kind == "open" and _BEFORE_ROW.match(
                    self._tokens[number - 1].text
                ):
                    yield from self._in_row(number, name)

    def _in_row(self, opening: int, name: str = "") -> Iterator[Edit]:
        """What stands last in a row: what code does with other input, or before the tests begin, nobody knows."""
        parts = ([part for part in one if part.text != "\n"] for one in self._arguments(opening))
        columns = [one for one in parts if one]
        is_called = (
            self._path.endswith(".py") and columns and any(one.text == "(" for one in columns[-1])
        )
        is_row = len(columns) > 1 and any(one[0].kind != "open" for one in columns)
        if is_row and not is_called and columns[-1][-1].text.strip("\"'") != name:
            yield from filter(None, [self._changed(columns[-1])])

    def _changed(self, value: Sequence[_Token], *, contained: bool = False) -> Edit | None:
        """One literal of a value that is written down as such."""
        literals = []
        is_go = self._path.endswith(".go")  # there functions are called like classes
        for one, following in zip(value, [*value[1:], None], strict=False):
            is_called = one.kind == "name" and following is not None and following.text == "("
            is_value = _VALUE_CALLS.fullmatch(one.text) and not (is_go and one.text[0].isupper())
            if one.kind == "other" or (is_called and not is_value):
                return None
            if one.text in ("abs", "rel"):  # of `approx`: how exact it has to be
                break
            if one.kind in ("string", "number") or one.text in _TRUTH:
                literals.append(one)
        edits = [
            edit for one in literals if (edit := self._other_literal(one, contained=contained))
        ]
        return self._random.choice(edits) if edits else None

    def _other_literal(self, token: _Token, *, contained: bool) -> Edit | None:
        """Another word of the file, which no spelling gives away, else another letter or digit."""
        if token.text in _TRUTH:
            return Edit(token.start, token.start + len(token.text), _TRUTH[token.text])
        if token.kind == "number":
            zeros = re.match("(?!0[A-Za-z])(?:[0._]*(?=[1-9])|)", token.text)  # not of 0xff, 0u8, …
            places = [(zeros.end(), zeros.end() + 1)] if zeros else []
        else:
            plain = _FIXED.sub(lambda match: " " * len(match[0]), token.text)
            pattern = _WORD_IN_REGEX if token.text[0] == "/" else f"{_WORD.pattern}|[A-Za-z0-9]"
            places = [match.span() for match in re.finditer(pattern, plain)]
        if not places:
            end = token.start + len(token.text) - 1
            is_short = re.match(r"""(["'])(?!\1\1)|`""", token.text)
            return Edit(end, end, self._random.choice(ascii_lowercase)) if is_short else None
        start, end = self._random.choice(places)
        if contained:
            if "|" in token.text:  # in a pattern: either may be what is found
                return None
            start, end = max(places, key=lambda place: place[1] - place[0])
        old = token.text[start:end]
        others = (
            [word for word in self._words if word.lower() != old.lower()] if end - start > 1 else []
        )
        alphabet = digits[1:] if old[0].isdigit() else ascii_lowercase
        letter = self._random.choice(alphabet.replace(old[0].lower(), ""))
        new = self._random.choice(others) if others and not contained else letter + old[1:]
        return Edit(token.start + start, token.start + end, new)

    def _begins_line(self, number: int) -> bool:
        return number == 0 or self._tokens[number - 1].text == "\n"

    def _arguments(self, opening: int) -> Iterator[Sequence[_Token]]:
        """Those of a call."""
        begin = opening + 1
        depth = 0
        for number in range(opening, len(self._tokens)):
            token = self._tokens[number]
            depth += (token.kind == "open") - (token.kind == "close")
            if depth == 0 or (depth == 1 and token.text == ","):
                yield self._tokens[begin:number]
                begin = number + 1
            if depth == 0:
                return

    def _operand(self, begin: int, ends: Collection[str] = _ENDS) -> Sequence[_Token]:
        """What stands right of an operator, up to the end of the expression."""
        depth = 0
        for number in range(begin, len(self._tokens)):
            token = self._tokens[number]
            is_end = token.text in ends or token.kind == "close"
            if depth == 0 and is_end and (token.text != "{" or number > begin):
                return self._tokens[begin:number]
            depth += (token.kind == "open") - (token.kind == "close")
        return self._tokens[begin:]
