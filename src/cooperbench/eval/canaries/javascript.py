"""Tests of jest, vitest, node:test, mocha with chai, and ava, in JavaScript and TypeScript."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import resources

from tree_sitter import Node

from cooperbench.eval.canaries.model import Check, Edit, HiddenTest, NameStyle, Slot, Span, TestFile
from cooperbench.eval.canaries.reader import CHECKING, Comparison, Reader, Table
from cooperbench.eval.canaries.syntax import Match, SyntaxTree, descendants, named_children, span_of

_EQUALITY = re.compile(
    rb"""
      to(?:Be|BeCloseTo|Equal|StrictEqual|ContainEqual|HaveLength|MatchObject)
    | to(?:Match|ThrowErrorMatching)InlineSnapshot
    | equals? | eql? | lengthOf | is | same
    | (?:deep|strict|deepStrict|loose)Equals?
    """,
    re.VERBOSE,
)
_PHRASE = re.compile(
    rb"""
    to (?: Contain | Match | Throw | ThrowError )
    | includes? | contains? | match | regex | throws? | throwsAsync | rejects
    """,
    re.VERBOSE,
)
"""Assertions that a text contains something, or that an exception is thrown."""
_CALLED = re.compile(
    rb"to(?:Have(?:Been)?(?:Last|Nth)?(?:Called|Returned)(?:With|Times)|HaveProperty)"
)
_THROWS = re.compile(rb"toThrow(?:Error)?|throws?|rejects|throwsAsync")
_OPPOSITES = {
    b"toBeTruthy": b"toBeFalsy",
    b"toBeDefined": b"toBeUndefined",
    b"toBeGreaterThan": b"toBeLessThanOrEqual",
    b"toBeLessThan": b"toBeGreaterThanOrEqual",
    b"equal": b"notEqual",
    b"strictEqual": b"notStrictEqual",
    b"deepEqual": b"notDeepEqual",
    b"deepStrictEqual": b"notDeepStrictEqual",
    b"throws": b"doesNotThrow",
    b"rejects": b"doesNotReject",
    b"true": b"false",
    b"isTrue": b"isFalse",
    b"isNull": b"isNotNull",
    b"truthy": b"falsy",
    b"include": b"notInclude",
    b"match": b"doesNotMatch",
}
_OPPOSITES |= {value: key for key, value in _OPPOSITES.items()}
_AVA_OPPOSITES = {b"is": b"not", b"deepEqual": b"notDeepEqual", b"throws": b"notThrows"}
_ERRORS = (b"URIError", b"EvalError", b"ReferenceError")
"""Errors that correct code is unlikely to throw in place of others."""
_SEARCH = re.compile(rb"(?:get|getAll|find|findAll)By[A-Z]\w*")
"""Queries of testing-library, which throw if nothing matches."""
_CLASS = re.compile(rb"(?:\w+\.)*[A-Z]\w*")
_FORMATTED = re.compile(r"%[a-z#%]|\$\w|\$\{")
_OPERATORS = {b"!==": b"===", b"!=": b"==", b"===": b"!==", b"==": b"!="}
_COMPARISONS = {b"<": b">=", b">": b"<=", b"<=": b">", b">=": b"<", **_OPERATORS}
_NEW_TEST = b"""
{function}('{first} {second}', () => {
  throw new Error('{second}');
});
"""
_HELPER_NAME = b"plainCopy"


def read_javascript(source: bytes) -> TestFile:
    """Return the tests of a JavaScript file."""
    return ScriptReader(source, "javascript").read()


def read_typescript(source: bytes) -> TestFile:
    """Return the tests of a TypeScript file."""
    return ScriptReader(source, "typescript").read()


def read_tsx(source: bytes) -> TestFile:
    """Return the tests of a TypeScript file with JSX."""
    return ScriptReader(source, "tsx").read()


class ScriptReader(Reader):
    """A reader of tests in JavaScript and TypeScript."""

    name_style: NameStyle = "title"
    value_types = frozenset(
        {
            *("array", "object", "pair", "unary_expression", "parenthesized_expression"),
            *("property_identifier", "shorthand_property_identifier", "new_expression"),
            *("computed_property_name", "as_expression", "satisfies_expression", "arguments"),
        }
    )
    string_types = frozenset({"string", "template_string", "regex"})
    name_types = frozenset({"identifier", "member_expression"})
    call_type = "call_expression"
    empty_values = (b"null", b"undefined", b"''", b"[]", b"{}")
    value_calls = re.compile(rb"[A-Z]\w*|any|anything|objectContaining|arrayContaining|from|of")

    def __init__(self, source: bytes, grammar: str) -> None:
        super().__init__(source, SyntaxTree(source, grammar))
        self._has_types = grammar != "javascript"

    def name_of(self, match: Match) -> tuple[str, int, NameStyle]:
        """Return the title of a test without quotes."""
        name = match.node("test.name")
        if name.type not in ("string", "template_string"):
            return "", name.end_byte, "expression"
        title = self.text(name)[1:-1].decode("utf-8", "replace")
        title = re.sub(r"\\(.)", r"\1", title)
        if _FORMATTED.search(title):
            title = ""  # the framework fills in values
        return title, name.end_byte - 1, "title"

    def comparisons(self) -> Iterator[Comparison]:
        """Yield assertions that two values are equal."""
        for match in self.tree.matches("matcher"):
            if not _EQUALITY.fullmatch(self.text(match.node("matcher"))):
                continue
            if match.kind == "expect":
                yield from self._expected_comparisons(match)
            elif match.kind == "assert":
                yield from self._asserted_comparisons(match)

    def _expected_comparisons(self, match: Match) -> Iterator[Comparison]:
        """Yield `expect(subject).toBe(expected)`."""
        chain = self._chain(match.node("chain"))
        arguments = named_children(match.node("arguments"))
        if chain is None or not arguments:
            return
        subject, modifiers = chain
        if b"not" in modifiers or b"rejects" in modifiers:
            return
        yield Comparison(
            span_of(match.node("assertion")),
            subject,
            arguments[0],
            neutral=(self._neutral(match.node("assertion"), subject, modifiers),),
            opposite=self._negation(match),
            scaled=b"Close" in self.text(match.node("matcher")),
        )

    def _asserted_comparisons(self, match: Match) -> Iterator[Comparison]:
        """Yield `assert.equal(actual, expected)`."""
        arguments = named_children(match.node("arguments"))
        if len(arguments) < 2:
            return
        assertion = match.node("assertion")
        yield Comparison(
            span_of(assertion),
            arguments[0],
            arguments[1],
            messages=tuple(span_of(message) for message in arguments[2:]),
            neutral=(self._neutral(assertion, arguments[0], ()),),
            opposite=self._opposite_method(match),
        )

    def _chain(self, node: Node) -> tuple[Node, tuple[bytes, ...]] | None:
        """Return the subject of `expect(subject).not.to`, and the words after it."""
        modifiers = []
        while node.type == "member_expression":
            property_node = node.child_by_field_name("property")
            object_node = node.child_by_field_name("object")
            if property_node is None or object_node is None:
                return None
            modifiers.append(self.text(property_node))
            node = object_node
        arguments = node.child_by_field_name("arguments")
        if node.type != "call_expression" or arguments is None:
            return None
        subjects = named_children(arguments)
        return (subjects[0], tuple(reversed(modifiers))) if subjects else None

    def _neutral(self, assertion: Node, subject: Node, modifiers: Sequence[bytes]) -> Edit:
        """Return an edit after which the subject is evaluated and not compared."""
        text = self.text(subject)
        if b"rejects" in modifiers:
            text = b"Promise.resolve(" + text + b").catch(() => {})"
        elif b"resolves" in modifiers:
            text = b"Promise.resolve(" + text + b")"
        else:
            text = b"void (" + text + b")"
        return Edit(*span_of(assertion), text)

    def _negation(self, match: Match) -> Slot:
        """Return a slot for the opposite of `expect(…)`: another matcher, or `not`."""
        matcher, chain = match.node("matcher"), match.node("chain")
        name = self.text(matcher)
        if name in _OPPOSITES and name.startswith(b"to"):
            return Slot(span_of(matcher), "fixed", (_OPPOSITES[name],))
        text = self.text(chain)
        if re.search(rb"\.not\b(?=[\w.]*$)", text):
            other = re.sub(rb"\.not\b(?=[\w.]*$)", b"", text)
        else:
            other = text + b".not"
        return Slot(span_of(chain), "fixed", (other,))

    def _opposite_method(self, match: Match) -> Slot | None:
        """Return a slot for the opposite of a method of `assert`."""
        matcher = match.node("matcher")
        name = self.text(matcher)
        owner = match.optional_node("object")
        opposites = _OPPOSITES
        if owner is not None and self.text(owner) == b"t":
            opposites = {**_OPPOSITES, **_AVA_OPPOSITES}
        if owner is None or name not in opposites:
            return None
        return Slot(span_of(matcher), "fixed", (opposites[name],))

    def checks(self) -> Iterator[Check]:
        """Yield the checks of all other assertions."""
        for match in self.tree.matches("matcher"):
            if match.kind == "expect":
                yield from self._expect_checks(match)
            elif match.kind == "property":
                yield from self._property_checks(match)
            elif match.kind == "assert":
                yield from self._assert_checks(match)
        for match in self.tree.matches("condition"):
            yield from self._condition_checks(match)

    def _expect_checks(self, match: Match) -> Iterator[Check]:
        chain = self._chain(match.node("chain"))
        name = self.text(match.node("matcher"))
        if chain is None:
            return
        subject, modifiers = chain
        is_negated = b"not" in modifiers
        arguments = named_children(match.node("arguments"))
        is_equality = _EQUALITY.fullmatch(name) and not is_negated and b"rejects" not in modifiers
        is_snapshot = b"Snapshot" in name and b"Inline" not in name
        if is_snapshot or (is_equality and arguments):
            return
        assertion = match.node("assertion")
        slots: tuple[Slot, ...] = ()
        neutral = (self._neutral(assertion, subject, modifiers),)
        if not is_negated and arguments:
            slots = self._slots_of_arguments(name, arguments)
            if slots and _THROWS.fullmatch(name):
                neutral = (Edit(*span_of(match.node("arguments")), b"()"),)
        yield Check(span_of(assertion), slots or (self._negation(match),), neutral)

    def _slots_of_arguments(self, name: bytes, arguments: Sequence[Node]) -> tuple[Slot, ...]:
        """Return what can be changed in the arguments of a matcher that is not an equality."""
        if _CALLED.fullmatch(name):
            slots: list[Slot] = []
            if name == b"toHaveProperty":
                arguments = arguments[1:]  # the first one is the name of the property
            for argument in arguments:
                if self.is_value(argument):
                    slots += self.slots_in(argument)
            return tuple(slots)
        if _EQUALITY.fullmatch(name):  # of the reason of a rejected promise
            return self.slots_in(arguments[0]) if self.is_value(arguments[0]) else ()
        return self._slots_of_phrase(name, arguments[0]) if _PHRASE.fullmatch(name) else ()

    def _slots_of_phrase(self, name: bytes, expected: Node) -> tuple[Slot, ...]:
        """Return what can be changed in a word, a pattern, or an exception."""
        if _THROWS.fullmatch(name) and _CLASS.fullmatch(self.text(expected)):
            others = tuple(error for error in _ERRORS if error != self.text(expected))
            return (Slot(span_of(expected), "fixed", others),)
        if expected.type == "object":
            return self.slots_in(expected) if self.is_value(expected) else ()
        if not self.is_value(expected) or b"|" in self.text(expected):
            return ()
        is_phrase = expected.type in self.string_types
        return self.slots_in(expected, phrase=is_phrase)

    def _property_checks(self, match: Match) -> Iterator[Check]:
        """Yield the check of `expect(subject).to.be.true`."""
        chain = self._chain(match.node("chain"))
        if chain is None:
            return
        assertion = match.node("assertion")
        neutral = (self._neutral(assertion, *chain),)
        yield Check(span_of(assertion), (self._chai_negation(match),), neutral)

    def _chai_negation(self, match: Match) -> Slot:
        chain = match.node("chain")
        text = self.text(chain)
        if re.search(rb"\.not\b(?=[\w.]*$)", text):
            return Slot(span_of(chain), "fixed", (re.sub(rb"\.not\b(?=[\w.]*$)", b"", text),))
        return Slot(span_of(chain), "fixed", (re.sub(rb"\.to\b(?=[\w.]*$)", b".to.not", text),))

    def _assert_checks(self, match: Match) -> Iterator[Check]:
        name = self.text(match.node("matcher"))
        arguments = named_children(match.node("arguments"))
        assertion = match.node("assertion")
        if not arguments or (_EQUALITY.fullmatch(name) and len(arguments) > 1):
            return
        neutral = self._neutral(assertion, arguments[0], ())
        if name == b"rejects":
            neutral = self._neutral(assertion, arguments[0], (b"rejects",))
        if name in (b"assert", b"ok"):
            yield self._truth_check(assertion, arguments[0], neutral)
            return
        slots: tuple[Slot, ...] = ()
        if _PHRASE.fullmatch(name):
            slots = self._slots_of_arguments(name, arguments[1:2]) if arguments[1:] else ()
            if slots and _THROWS.fullmatch(name):
                rest = Span(arguments[0].end_byte, arguments[-1].end_byte)
                yield Check(span_of(assertion), slots, (Edit(*rest, b""),))
                return
        opposite = self._opposite_method(match)
        if not slots and _THROWS.fullmatch(name) and len(arguments) == 1:
            # The opposite would not fail if the code under test is never called.
            end = arguments[0].end_byte
            others = tuple(b", " + error for error in _ERRORS)
            slots = (Slot(Span(end, end), "fixed", others),)
        if slots or opposite:
            yield Check(span_of(assertion), slots or _only(opposite), (neutral,))

    def _truth_check(self, assertion: Node, condition: Node, neutral: Edit) -> Check:
        """Return the check of `assert(condition)`."""
        node = condition
        if node.type == "unary_expression" and self.text(node).startswith(b"!"):
            operand = self.text(named_children(node)[0])
            slot = Slot(span_of(node), "fixed", (operand,))
        elif node.type == "binary_expression" and self._operator(node) in _COMPARISONS:
            operator = node.child_by_field_name("operator")
            assert operator is not None
            slot = Slot(span_of(operator), "fixed", (_COMPARISONS[self.text(operator)],))
            left = node.child_by_field_name("left")
            if left is not None:
                neutral = self._neutral(assertion, left, ())
        else:
            text = self.text(node)
            is_simple = node.type in ("identifier", "member_expression", "call_expression")
            other = b"!" + text if is_simple else b"!(" + text + b")"
            slot = Slot(span_of(node), "fixed", (other,))
        return Check(span_of(assertion), (slot,), (neutral,))

    def _operator(self, node: Node) -> bytes:
        operator = node.child_by_field_name("operator")
        return self.text(operator) if operator is not None else b""

    def _condition_checks(self, match: Match) -> Iterator[Check]:
        """Yield the check of `if (actual !== expected) throw …`."""
        condition = match.node("condition")
        left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
        if self._operator(condition) not in (b"!==", b"!=") or left is None or right is None:
            return
        pair = self.expected_operand(left, right)
        if pair:
            subject, expected = pair
            slots = self.slots_in(expected, echoes=(span_of(match.node("body")),))
            neutral = (
                Edit(*span_of(match.node("assertion")), b"void (" + self.text(subject) + b");"),
            )
            yield Check(
                span_of(match.node("assertion")), slots, neutral, self.plain(subject, expected)
            )

    def tables(self) -> Iterator[Table]:
        """Yield the rows of `each` and of loops."""
        for match in self.tree.matches("table.rows"):
            rows = tuple(named_children(match.node("table.rows")))
            names = match.node("table.names")
            yield Table(
                span_of(match.node("table")), self._column_names(names, rows), span_of(names), rows
            )
        for match in self.tree.matches("table.template"):
            template, names = match.node("table.template"), match.node("table.names")
            cells = tuple(named_children(template))
            cells = tuple(cell for cell in cells if cell.type == "template_substitution")
            header = self.text(template)[1:].strip().partition(b"\n")[0]
            columns = tuple(name.strip() for name in header.split(b"|"))
            yield Table(
                span_of(match.node("table")),
                columns,
                span_of(names),
                cells,
                removable=False,
                has_test_per_row=True,
            )

    def _column_names(self, names: Node, rows: Sequence[Node]) -> tuple[bytes, ...]:
        """Return the names of columns: of parameters, or of the fields of a row's object."""
        types = ("identifier", "shorthand_property_identifier_pattern")
        columns = [self.text(node) for node in descendants(names) if node.type in types]
        has_objects = bool(rows) and rows[0].type == "object"
        if has_objects and len(columns) == 1 and b"{" not in self.text(names):
            keys = self._fields(rows[0])
            return tuple(columns[0] + b"." + key for key in keys)
        return tuple(columns)

    def _fields(self, row: Node) -> dict[bytes, Node]:
        fields = {}
        for pair in named_children(row):
            key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
            if key is not None and value is not None:
                fields[self.text(key).strip(b"'\"")] = value
        return fields

    def cell(self, row: Node, name: bytes, table: Table) -> Node | None:
        """Return what stands in a column: by position, by key, or in a template."""
        if row.type == "template_substitution":
            is_column = table.rows.index(row) % len(table.names) == table.names.index(name)
            return named_children(row)[0] if is_column else None
        if row.type == "object":
            return self._fields(row).get(name.rpartition(b".")[2])
        if row.type != "array":
            return row if len(table.names) == 1 else None
        return super().cell(row, name, table)

    def is_declaration(self, node: Node) -> bool:
        """Whether a name stands in the parameters of a function."""
        parent = node.parent
        while parent is not None and ("pattern" in parent.type or "parameter" in parent.type):
            if "parameter" in parent.type:
                return True
            parent = parent.parent
        return False

    def weak_checks(self) -> Iterator[Check]:
        """Yield what is passed last to a function that holds assertions."""
        for match in self.tree.matches("helper.call"):
            name = self.text(match.node("helper"))
            is_search = bool(_SEARCH.fullmatch(name))
            is_assertion = CHECKING.fullmatch(name) or self.holds_assertions(name)
            if name == b"expect" or not (is_search or is_assertion):
                continue
            for argument in reversed(named_children(match.node("arguments"))):
                if not self.is_value(argument) or argument.type == "object":
                    continue
                slots = self.slots_in(argument, phrase=is_search)
                if slots:
                    span = span_of(match.node("helper.call"))
                    yield Check(span, slots, (Edit(*span, b"void 0;"),))
                    break

    def plain(self, subject: Node, expected: Node) -> tuple[Edit, ...]:
        """Wrap an operand that is compared with a literal."""
        is_made = any(
            node.type in ("call_expression", "new_expression") for node in descendants(expected)
        )
        if is_made or subject.type in ("arrow_function", "function_expression"):
            return ()
        if b"resolves" in self.source[subject.end_byte : expected.start_byte]:
            return ()
        start, end = span_of(subject)
        return (Edit(start, start, _HELPER_NAME + b"("), Edit(end, end, b")"))

    def helper(self) -> Edit | None:
        """Return the insertion of `plainCopy` at the end; such functions are known everywhere."""
        folder = resources.files("cooperbench.eval.canaries").joinpath("plain_operands")
        code = folder.joinpath("javascript.txt").read_bytes()
        if self._has_types:
            code = code.replace(b"plainCopy(value) {", b"plainCopy(value: any): any {")
            code = code.replace(b"const items = [];", b"const items: any[] = [];")
        return Edit(len(self.source), len(self.source), code)

    def new_test(self, tests: Sequence[HiddenTest]) -> Edit | None:
        """Return the insertion of a failing test at the end."""
        if not tests:
            return None
        function = self.text(self.tree.matches("test")[0].node("test.function"))
        name = re.match(rb"(?:[\w$]+\.)?(?:it|test|specify)", function)
        text = _NEW_TEST.replace(b"{function}", name[0] if name else b"test")
        return Edit(len(self.source), len(self.source), text)


def _only(slot: Slot | None) -> tuple[Slot, ...]:
    return (slot,) if slot else ()
