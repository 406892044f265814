"""Do the tests decide? Canaries: hidden tests of which some must fail, just as they do with the golden patch.

Tests are changed in the text of the patch that adds them, which keeps its form: who does not know the right values
cannot tell it from the real one. What this finds, and what it cannot see, is in docs/evaluation.md.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from random import Random, SystemRandom
from string import ascii_lowercase, digits
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.eval.test_side import applied_tests
from cooperbench.git import encode_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from cooperbench.eval.executor import TestRun
    from cooperbench.eval.reference import Reference
    from cooperbench.eval.trees import Change, TreeStore
    from cooperbench.models import Feature

_INDEX = re.compile(
    r"^(index [0-9a-f]+\.\.)([0-9a-f]+)(?=(?: [0-7]+)?\r?\n--- [^\n]*\n\+\+\+ b/([^\n\t]+))", re.MULTILINE
)
_NEW_TESTS = {
    # A class that both unittest and pytest find.
    r"\.py$": (
        r"^\s*(?:async )?def test|^class ()",
        (
            "\n\nimport unittest\n\n\nclass Test{First}{Second}(unittest.TestCase):\n"
            "    def test_{first}_{second}(self):\n        self.assertEqual('{first} {second}', '{second}')\n\n\n"
        ),
    ),
    r"\.[cm]?[jt]sx?$": (
        r"^\s*(?:[A-Za-z_$][\w$]*\.)?(it|test)\b *[.(]",
        "\n{found}('{first} {second}', () => {{\n  throw new Error('{second}');\n}});\n",
    ),
    r"_test\.go$": (
        r"^func Test\w*\(\w+ \*(\w+)\.T\)",
        '\nfunc Test{First}{Second}(t *{found}.T) {{\n\tt.Fatal("{second}")\n}}\n',
    ),
    r"\.rs$": (
        r"#\[test\]|::test()",
        (
            "\n#[cfg(test)]\nmod {first}_{second} {{\n    #[test]\n"
            '    fn {second}_{first}() {{\n        panic!("{second}");\n    }}\n}}\n'
        ),
    ),
}
"""By the ending of a file: how tests look in it, and one that fails."""
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_TEST_BEGINS = re.compile(
    r"^[ \t]*(?:(?:async )?def test|(?:[\w$]+\.)?(?:it|test)\b *[.(]|@pytest\.mark\.param|func Test|#\[(?:\w+::)*test)",
    re.MULTILINE,
)
_NAME = re.compile(r"\b(?:def|fn|func) (\w+)|[\"'`]([^\"'`\n]+)[\"'`]")
_HASH_COMMENTS = re.compile(r"\.(?:pyi?|rb|sh|ya?ml|ex|exs|jl|r)$", re.IGNORECASE)
_LONG_QUOTES = re.compile(r"\.(?:py|[cm]?[jt]sx?|rb|php)$")
"""Where '…' is a string and not one character."""
_STRINGS = (
    r'"""(?:\\.|[^\\])*?"""', r"'''(?:\\.|[^\\])*?'''", r'"(?:\\.|[^"\\\n])*"', r"`(?:\\.|[^`\\])*`"
)  # fmt: skip
_REST = (
    r"(?P<number>(?<![\w.])[0-9][\w.]*)|(?P<name>[A-Za-z_$][\w$]*)|(?P<open>[(\[{])|(?P<close>[)\]}])"
    r"|(?P<operator>[=!]==?|:=|&&|\|\||[-=:,.!\n])|(?P<other>[^\s])"
)
_EQUALITY = re.compile(
    r"assert_?(?:[a-z]+_?)?(?:equals?|eq|is|is_?instance|in|regex|matches)|assert(?:Is|In|Regex|CountEqual|\w*Equals?)"
    r"|(?:deep|strict|deepStrict|loose)?[eE]quals?|eql|eq|Equal(?:Values|Error)?|JSONEq|Len|Contains|ElementsMatch"
    r"|to(?:Be|Equal|StrictEqual|Contain|ContainEqual|HaveLength|MatchObject|MatchInlineSnapshot|HaveProperty|Throw|Match)"
    r"|toHaveBeen(?:Last)?CalledWith|toHaveBeenCalledTimes"
)
_CALL = re.compile(r"(?:await )?((?:self|this|cls)\.)?([A-Za-z_]\w*)!?\(")
_CHECK = re.compile("check|assert|expect|verify|ensure", re.IGNORECASE)
"""Functions that are likely to hold assertions, wherever they are defined."""
_EXPECTED = re.compile(r"(?:want|expect)\w*|exp|match", re.IGNORECASE)
_VALUE_CALLS = re.compile(
    r"[A-Z]\w*|from|to_string|to_owned|into|vec|set|frozenset|tuple|list|dict|byte|approx|date|datetime"
)
"""Calls that only make a value of their arguments."""
_TRUTH = {"true": "false", "false": "true", "True": "False", "False": "True"}
_OPPOSITES = dict(
    pair.split()
    for pair in (
        *("assertTrue assertFalse", "assertIn assertNotIn", "assertIsNone assertIsNotNone"),
        *("assertEqual assertNotEqual", "assertIs assertIsNot", "assert_eq assert_ne", "throws doesNotThrow"),
        *("toBeTruthy toBeFalsy", "toBeDefined toBeUndefined", "is_some is_none", "is_ok is_err"),
        *("NoError Error", "True False", "Nil NotNil", "Equal NotEqual", "equal notEqual"),
        *("strictEqual notStrictEqual", "deepEqual notDeepEqual", "deepStrictEqual notDeepStrictEqual"),
    )
)
_OPPOSITES |= {other: one for one, other in _OPPOSITES.items()}
_COMPARISONS = dict(pair.split("  ") for pair in ("==  !=", "<  >=", ">  <=", "is  is not", "in  not in"))
_COMPARISONS |= {other: one for one, other in _COMPARISONS.items()}
_COMPARISON = re.compile(f" ({'|'.join(sorted(_COMPARISONS, key=len, reverse=True))}) ")
_FIXED = re.compile(r"\\(?:x..|u\{\w+\}|u....|.)|%[\w.]+|\$?\{[^}\n]*\}", re.DOTALL)
"""Escapes and places for values: not to be touched."""
_WORD = re.compile("[A-Za-z]{2,}")


@dataclass(frozen=True)
class Canary:
    """Hidden tests of which some must fail, and what they do with the golden patch.

    Some runners stop at the first failure, and some tests pass when changed: these are in neither list.
    """

    tests: str = ""
    """Their patch as Latin-1; empty where none can be made."""
    changed: tuple[str, ...] = ()
    """Names of tests that were changed; empty where a test was added."""
    failed: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    passed_count: int = 0

    def tried(self, run: TestRun, reference: Reference) -> Canary | None:
        """With what they did with the golden patch.

        None where they are of no use: no test failed that passes otherwise, and none that was added.
        """
        failed = {test for test, outcome in run.outcomes.items() if outcome == "failed"}
        passed = {test for test, outcome in run.outcomes.items() if outcome == "passed"}
        unclear = {test for test in passed if any(name in test for name in self.changed)}
        number = run.tests_passed + run.tests_failed
        all_ran = bool(run.tests_failed) and number >= reference.golden.tests_passed
        is_fit = all_ran or bool(self.changed and not failed.isdisjoint(reference.passed_tests))
        if run.success or run.timed_out or not is_fit:
            return None
        return replace(
            self,
            failed=tuple(sorted(failed)),
            passed=tuple(sorted(passed.intersection(reference.passed_tests) - unclear)),
            passed_count=run.tests_passed - len(unclear),
        )

    def common_with(self, other: Canary) -> Canary:
        """What ended alike in two runs with the golden patch."""
        return replace(
            self,
            failed=tuple({*self.failed} & {*other.failed}),
            passed=tuple({*self.passed} & {*other.passed}),
            passed_count=min(self.passed_count, other.passed_count),
        )

    def agrees(self, run: TestRun, flaky_tests: Collection[str]) -> bool:
        """Do those tests fail that fail with the golden patch, and those pass that pass there?"""
        return (
            not run.success
            and not run.timed_out
            and all(run.outcomes.get(test) == "failed" for test in {*self.failed} - {*flaky_tests})
            and all(run.outcomes.get(test) == "passed" for test in {*self.passed} - {*flaky_tests})
            and run.tests_passed + len(flaky_tests) >= self.passed_count
        )


def new_canaries(feature: Feature, store: TreeStore) -> Iterator[Canary]:
    """To be tried with the golden patch in this order: changed tests, twice; else an added one that fails."""
    random = SystemRandom()
    tests = feature.tests.read_bytes().decode("latin-1")  # so that a character is a byte
    for _ in range(2):
        canary = mutated(tests, random)
        tree, below = applied_tests(canary.tests.encode("latin-1"), feature, store)
        if canary.changed and tree:
            yield replace(canary, tests=_with_new_ids(canary.tests, store.changes(tree, below)))
    tree, below = applied_tests(tests.encode("latin-1"), feature, store)
    files = {}
    for path, change in store.changes(tree, below).items() if tree else ():
        if form := next((form for ending, form in _NEW_TESTS.items() if re.search(ending, path)), None):
            content = (store.content(change.after) or b"").decode("utf-8", "surrogateescape")
            if found := re.search(form[0], content, re.MULTILINE):
                added = _with_test(content, form[1], found[1], random)
                files[path] = added.encode("utf-8", "surrogateescape")
    if files:
        yield Canary(store.patch_of(store.edited(tree, files), below).decode("latin-1"))


def _with_new_ids(tests: str, changes: Mapping[str, Change]) -> str:
    """Code under test could look whether the ids of the changed files are right."""
    ids = {
        encode_path(path).decode("latin-1"): one.after.object_id for path, one in changes.items() if one.after
    }
    return _INDEX.sub(lambda line: line[1] + ids.get(line[3], line[2])[: len(line[2])], tests)


def _with_test(content: str, form: str, found: str, random: Random) -> str:
    """Under a name that looks like the others, before what runs a file of Python as a program."""
    words = sorted(set(re.findall("[a-z]{4,9}", content))) or ["other"]
    first, second = random.choices(words, k=2)
    added = form.format(first=first, second=second, First=first.title(), Second=second.title(), found=found)
    main = re.search(r"^if __name__ ", content, re.MULTILINE)
    place = main.start() if main else len(content)
    return content[:place] + added + content[place:]


class Edit(NamedTuple):
    """In the text of a patch."""

    start: int
    end: int
    text: str


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def mutated(patch: str, random: Random) -> Canary:
    """With other expected values in all tests but one, or in the only one, as far as something can be changed."""
    found = [test for lines in _hunks(patch.encode("latin-1")) for test in _Hunk(lines, random).tests()]
    tests = [test for test in found if test[1]] or found
    if len(tests) > 1:
        tests.remove(random.choice(tests))
    for edit, _ in sorted(tests, reverse=True):
        patch = patch[: edit.start] + edit.text + patch[edit.end :]
    return Canary(patch, tuple(name for _, name in tests))


class NewLine(NamedTuple):
    """A line of what a patch makes of a file, as far as the patch shows it."""

    path: str
    number: int
    offset: int
    """Of its content in the patch."""
    added: bool
    content: bytes


def new_lines(patch: bytes) -> Iterator[NewLine]:
    """Inside a hunk no line is a header."""
    path, number, old_left, new_left, offset = "", 0, 0, 0, 0
    for line in patch.split(b"\n"):
        kind = line[:1]
        if old_left <= 0 and new_left <= 0:
            if line.startswith(b"+++ "):
                path = line[4:].partition(b"\t")[0].decode("utf-8", "replace").removeprefix("b/")
            elif hunk := _HUNK.match(line):
                old_left, number, new_left = (1 if count is None else int(count) for count in hunk.groups())
        elif kind != b"\\":
            if kind != b"-":
                yield NewLine(path, number, offset + 1, kind == b"+", line[1:])
            old_left -= kind != b"+"
            new_left -= kind != b"-"
            number += kind != b"-"
        offset += len(line) + 1


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

    def tests(self) -> Iterator[tuple[Edit, str]]:
        """A change of each test in it that can be changed, and the test's name; no name if it begins above the hunk."""
        begins = [match.start() for match in _TEST_BEGINS.finditer(self._text)]
        found: dict[int, list[Edit]] = {}
        for find in (self._given, self._opposites, self._values):
            edits: dict[int, list[Edit]] = {}
            for edit in find():
                start, test = edit.start + self._start, bisect_right(begins, edit.start)
                line = bisect_right(self._lines, start, key=attrgetter("offset")) - 1
                if self._lines[line].added:
                    edits.setdefault(test, []).append(Edit(start, edit.end + self._start, edit.text))
            found |= edits  # the latter are preferred
        for test, some in found.items():
            match = _NAME.search(self._text, begins[test - 1]) if test else None
            name = (match[1] or match[2]).encode("latin-1").decode("utf-8", "replace") if match else ""
            yield self._random.choice(some), name

    @cached_property
    def _tokens(self) -> list[_Token]:
        comment = r"\#[^\n]*" if _HASH_COMMENTS.search(self._path) else r"//[^\n]*|/\*.*?\*/"
        quoted = r"'(?:\\.|[^'\\\n])*'" if _LONG_QUOTES.search(self._path) else r"'(?:\\[^'\n]+|[^'\\\n])'"
        strings = "|".join((*_STRINGS, quoted))
        pattern = re.compile(f"(?P<comment>{comment})|(?P<string>{strings})|{_REST}", re.DOTALL | re.ASCII)
        found = (
            _Token(match.lastgroup or "", match[0], match.start()) for match in pattern.finditer(self._text)
        )
        return [token for token in found if token.kind != "comment"]

    def _given(self) -> Iterator[Edit]:
        """What is given last to a function of the tests, or stands last in a row of a table."""
        tokens = self._tokens
        for number, token in enumerate(tokens):
            call = _CALL.match(self._text, token.start) if self._begins_line(number) else None
            opening = number
            if call and (call[1] or _CHECK.match(call[2]) or self._defines(call[2])):
                opening += next(place for place, one in enumerate(tokens[number:]) if one.kind == "open")
            elif token.kind != "open" or not self._begins_line(number):
                continue
            arguments = [one for one in self._arguments(opening) if [part.text for part in one[1:2]] != ["="]]
            if call is None and len(arguments) < 2:
                continue
            edits = (self._changed(one) for one in reversed(arguments))
            if edit := next((edit for edit in edits if edit), None):
                yield edit

    def _defines(self, name: str) -> bool:
        return bool(re.search(rf"\b(?:def|function|func|fn|const|let) {re.escape(name)}\b", self._text))

    def _opposites(self) -> Iterator[Edit]:
        tokens = self._tokens
        for number, token in enumerate(tokens):
            after = tokens[number + 1].text if number + 1 < len(tokens) else ""
            end = token.start + len(token.text)
            if token.text in _OPPOSITES and after in ("(", "!"):
                yield Edit(token.start, end, _OPPOSITES[token.text])
            elif token.text == "assert" and self._begins_line(number) and self._text[end : end + 1] == " ":
                negated = self._text.startswith("not ", end + 1)
                otherwise = Edit(end + 1, end + 1 + 4 * negated, "" if negated else "not ")
                yield self._other_comparison(number + 1) or otherwise
            elif token.text in ("==", "!=") and after == "nil":
                yield Edit(token.start, end, "!=" if token.text == "==" else "==")

    def _other_comparison(self, begin: int) -> Edit | None:
        """Of an expression that is one: `assert not x == y` would be told from what people write."""
        depth, text, start = 0, "", self._tokens[begin].start if begin < len(self._tokens) else 0
        for token in self._operand(begin):
            depth -= token.kind == "close"
            if depth == 0 and token.kind != "string":
                text = text.ljust(token.start - start) + token.text
            depth += token.kind == "open"
        found = None if text.startswith("not ") else _COMPARISON.search(text)
        return Edit(start + found.start(1), start + found.end(1), _COMPARISONS[found[1]]) if found else None

    def _values(self) -> Iterator[Edit]:
        statement = ""
        tokens = self._tokens
        for number, token in enumerate(tokens):
            before = [one.text for one in tokens[max(0, number - 3) : number]]
            after = tokens[number + 1].text if number + 1 < len(tokens) else ""
            if token.kind == "name" and self._begins_line(number):
                statement = token.text
            values: list[Sequence[_Token]] = []
            if token.kind == "name" and _EQUALITY.fullmatch(token.text) and after in ("(", "!"):
                if before[-2:] != ["not", "."]:
                    arguments = list(self._arguments(number + 1 + (after == "!")))
                    has_t = bool(arguments) and [one.text for one in arguments[0]] == ["t"]
                    values = arguments[has_t : 2 + has_t]
            elif token.kind == "name" and _EXPECTED.fullmatch(token.text) and after in ("=", ":=", ":"):
                values = [self._operand(number + 2)]
            elif (token.text in ("==", "===") and statement.startswith("assert")) or (
                token.text in ("!=", "!==") and statement == "if"
            ):
                values = [self._operand(number + 1)]
            elif token.text == "in" and before[-2:-1] == ["assert"]:
                values = [tokens[number - 1 : number]]
            for value in reversed(values):
                if edit := self._changed(value):
                    yield edit
                    break

    def _changed(self, value: Sequence[_Token]) -> Edit | None:
        """One literal of a value that is written down as such."""
        literals = []
        is_go = self._path.endswith(".go")  # there functions are called like classes
        for one, following in zip(value, [*value[1:], None], strict=False):
            is_called = one.kind == "name" and following is not None and following.text == "("
            is_value = _VALUE_CALLS.fullmatch(one.text) and not (is_go and one.text[0].isupper())
            if one.kind == "other" or (is_called and not is_value):
                return None
            if one.kind in ("string", "number") or one.text in _TRUTH:
                literals.append(one)
        edits = [edit for one in literals if (edit := self._other_literal(one))]
        return self._random.choice(edits) if edits else None

    def _other_literal(self, token: _Token) -> Edit | None:
        """Another word of the file, which no spelling gives away, else another letter or digit."""
        if token.text in _TRUTH:
            return Edit(token.start, token.start + len(token.text), _TRUTH[token.text])
        if token.kind == "number":
            places = [match.span() for match in re.finditer("[1-9]", token.text)][:1] or [(0, 1)]
        else:
            plain = _FIXED.sub(lambda match: " " * len(match[0]), token.text)
            places = [match.span() for match in re.finditer(f"{_WORD.pattern}|[A-Za-z0-9]", plain)]
        if not places:
            end = token.start + len(token.text) - 1
            is_short = token.text[:3] not in ('"""', "'''")
            return Edit(end, end, self._random.choice(ascii_lowercase)) if is_short else None
        start, end = self._random.choice(places)
        old = token.text[start:end]
        others = [word for word in self._words if word.lower() != old.lower()] if end - start > 1 else []
        alphabet = digits[1:] if old[0].isdigit() else ascii_lowercase
        letter = self._random.choice(alphabet.replace(old[0].lower(), ""))
        new = self._random.choice(others) if others else letter + old[1:]
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

    def _operand(self, begin: int) -> Sequence[_Token]:
        """What stands right of an operator, up to the end of the expression."""
        depth = 0
        for number in range(begin, len(self._tokens)):
            token = self._tokens[number]
            ends = token.text in ("\n", ",", ":", "&&", "||", "and", "or", "if", "{") or token.kind == "close"
            if depth == 0 and ends and (token.text != "{" or number > begin):
                return self._tokens[begin:number]
            depth += (token.kind == "open") - (token.kind == "close")
        return self._tokens[begin:]
