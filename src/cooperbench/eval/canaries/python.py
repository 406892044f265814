"""Tests of pytest and unittest."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import resources

from tree_sitter import Node

from cooperbench.eval.canaries.model import Check, Edit, HiddenTest, Slot, Span, Spans, TestFile
from cooperbench.eval.canaries.reader import CHECKING, Comparison, Reader, Table
from cooperbench.eval.canaries.syntax import Match, SyntaxTree, descendants, named_children, span_of

_OPPOSITES = {
    b"assertTrue": b"assertFalse",
    b"assertIn": b"assertNotIn",
    b"assertIsNone": b"assertIsNotNone",
    b"assertEqual": b"assertNotEqual",
    b"assertIs": b"assertIsNot",
    b"assertIsInstance": b"assertNotIsInstance",
    b"assertGreater": b"assertLessEqual",
    b"assertLess": b"assertGreaterEqual",
    b"assertRegex": b"assertNotRegex",
    b"assert_called_once": b"assert_not_called",
    b"assert_called": b"assert_not_called",
}
_OPPOSITES |= {value: key for key, value in _OPPOSITES.items()}
_OPERATORS = {b"==": b"!=", b"is": b"is not", b"in": b"not in", b"<": b">=", b">": b"<="}
_OPERATORS |= {value: key for key, value in _OPERATORS.items()}
_COMMON_ERRORS = (
    *("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "RuntimeError"),
    *("ZeroDivisionError", "OSError", "ImportError", "NotImplementedError"),
)
_RARE_ERRORS = ("OSError", "IndexError", "AttributeError", "ImportError", "ZeroDivisionError")
"""Errors that classes of a library are unlikely to be derived from."""
_NEW_TEST = b"""

import unittest


class Test{First}{Second}(unittest.TestCase):
    def test_{first}_{second}(self):
        self.assertEqual('{first} {second}', '{second}')


"""
"""A class that both unittest and pytest find."""
_HELPER_NAME = b"plain_copy"


def read_python(source: bytes) -> TestFile:
    """Return the tests of a Python file."""
    return PythonReader(source, SyntaxTree(source, "python")).read()


class PythonReader(Reader):
    """A reader of tests for pytest and unittest."""

    value_types = frozenset(
        {
            *("list", "tuple", "set", "dictionary", "pair", "unary_operator"),
            *("parenthesized_expression", "concatenated_string", "keyword_argument"),
            "expression_list",
        }
    )
    string_types = frozenset({"string"})
    name_types = frozenset({"identifier", "attribute"})
    empty_values = (b"None", b"''", b"[]", b"{}", b"()")
    value_calls = re.compile(
        rb"[A-Z]\w*|set|frozenset|tuple|list|dict|bytes|bytearray|approx|date|datetime|timedelta"
    )
    truths = (b"True", b"False")

    def comments_in(self, test: Node) -> Iterator[Span]:
        """Yield the comments in a test, and strings that stand alone, such as its documentation."""
        yield from super().comments_in(test)
        for node in descendants(test):
            if node.type == "expression_statement" and node.children[0].type == "string":
                for content in node.children[0].children:
                    if content.type == "string_content":
                        yield span_of(content)

    def comparisons(self) -> Iterator[Comparison]:
        """Yield `assert a == b`, and methods such as assertEqual."""
        for match in self.tree.matches("condition"):
            yield from self._asserted_comparisons(match)
        for match in self.tree.matches("method"):
            if match.kind == "equal":
                yield self._compared_by_method(match)

    def _asserted_comparisons(self, match: Match) -> Iterator[Comparison]:
        condition = _unwrap(match.node("condition"))
        operator = self._operator(condition)
        if operator is None or self.text(operator) not in (b"==", b"is"):
            return
        left, right = named_children(condition)
        if self.text(operator) == b"is" and not self._is_name(left, right):
            return
        opposite = Slot(span_of(operator), "fixed", (_OPERATORS[self.text(operator)],))
        yield Comparison(
            span_of(match.node("assertion")),
            left,
            right,
            messages=_spans(match, "message"),
            neutral=(self._neutral_statement(match.node("assertion"), left, right),),
            opposite=opposite,
        )

    def _is_name(self, left: Node, right: Node) -> bool:
        """Whether `is` compares two names. Otherwise it compares with None or another constant."""
        return left.type in self.name_types and right.type in self.name_types

    def _compared_by_method(self, match: Match) -> Comparison:
        left, right, assertion = (match.node(name) for name in ("left", "right", "assertion"))
        arguments = named_children(match.node("arguments"))
        method = match.node("method")
        opposite = None
        if self.text(method) in _OPPOSITES:
            opposite = Slot(span_of(method), "fixed", (_OPPOSITES[self.text(method)],))
        return Comparison(
            span_of(assertion),
            left,
            right,
            messages=tuple(span_of(argument) for argument in arguments[2:]),
            neutral=(self._neutral_statement(assertion, left, right),),
            opposite=opposite,
            scaled=b"Almost" in self.text(method) or b"allclose" in self.text(method),
        )

    def _operator(self, node: Node) -> Node | None:
        """Return the operator of a comparison of two operands."""
        if node.type != "comparison_operator" or len(named_children(node)) != 2:  # operands
            return None
        operators = node.children_by_field_name("operators")
        return operators[0] if len(operators) == 1 else None

    def _neutral_statement(self, statement: Node, *operands: Node) -> Edit:
        """Return an edit after which operands are evaluated and not compared."""
        subjects = [self.text(node) for node in operands if not self.is_value(node)]
        return Edit(*span_of(statement), b"(" + b", ".join(subjects) + b")")

    def is_expected_to_fail(self, span: Span) -> bool:
        """Whether an assertion stands in a block that must raise an exception."""
        return self._raising_blocks.contain(span)

    @cached_property
    def _raising_blocks(self) -> Spans:
        matches = self.tree.matches("raises.body")
        return Spans(span_of(match.node("raises.body")) for match in matches)

    def checks(self) -> Iterator[Check]:
        """Yield the checks of all other assertions."""
        for match in self.tree.matches("condition"):
            yield from self._condition_checks(match)
        for match in self.tree.matches("method"):
            if match.kind == "phrase":
                yield self._phrase_check(match)
            elif match.kind == "opposite":
                yield self._opposite_check(match)
            elif match.kind == "mock":
                yield from self._mock_checks(match)
            elif match.kind == "exception":
                yield from self._exception_checks(match)

    def _condition_checks(self, match: Match) -> Iterator[Check]:
        assertion = match.node("assertion")
        condition = _unwrap(match.node("condition"))
        operator = self._operator(condition)
        if operator is None:
            yield from self._negation_checks(assertion, match.node("condition"))
            return
        left, right = named_children(condition)
        name = self.text(operator)
        neutral = (self._neutral_statement(assertion, left, right),)
        if name == b"in" and left.type in self.string_types:
            slots = self.slots_in(left, phrase=True, echoes=_spans(match, "message"))
            if slots and b"|" not in self.text(left):
                yield Check(span_of(assertion), slots, neutral)
                return
        is_equality = name == b"==" or (name == b"is" and self._is_name(left, right))
        if not is_equality and name in _OPERATORS:
            slot = Slot(span_of(operator), "fixed", (_OPERATORS[name],))
            yield Check(span_of(assertion), (slot,), neutral)

    def _negation_checks(self, assertion: Node, condition: Node) -> Iterator[Check]:
        """Yield the check of a condition that is not a comparison: its parts, or its opposite."""
        node = _unwrap(condition)
        conjuncts = _conjuncts(node)
        slots: list[Slot] = []
        if len(conjuncts) > 1:
            for conjunct in conjuncts:
                slots += self._slots_of_conjunct(_unwrap(conjunct))
        if slots:
            yield Check(span_of(assertion), tuple(slots), (Edit(*span_of(assertion), b"pass"),))
            return
        text = self.text(condition)
        if node.type == "not_operator":
            argument = named_children(node)[0]
            opposite = self.text(argument)
            neutral = b"(" + opposite + b")"
        elif node.type in ("boolean_operator", "conditional_expression", "comparison_operator"):
            opposite = b"not " + (
                text if condition.type == "parenthesized_expression" else b"(" + text + b")"
            )
            neutral = b"pass"
        else:
            opposite = b"not " + text
            neutral = b"(" + text + b")"
        slot = Slot(span_of(condition), "fixed", (opposite,))
        yield Check(span_of(assertion), (slot,), (Edit(*span_of(assertion), neutral),))

    def _slots_of_conjunct(self, node: Node) -> tuple[Slot, ...]:
        operator = self._operator(node)
        if operator is None or self.text(operator) != b"==":
            return ()
        pair = self.expected_operand(*named_children(node))
        return self.slots_in(pair[1]) if pair else ()

    def _phrase_check(self, match: Match) -> Check:
        """Return the check of assertIn and assertRegex."""
        left, right, assertion = (match.node(name) for name in ("left", "right", "assertion"))
        method = match.node("method")
        is_pattern = self.text(method).lower() not in (b"assertin", b"assert_in")
        value = right if is_pattern else left
        neutral = (self._neutral_statement(assertion, left, right),)
        slots: tuple[Slot, ...] = ()
        if value.type in self.string_types and b"|" not in self.text(value):
            slots = self.slots_in(value, phrase=True)
        if not slots and self.text(method) in _OPPOSITES:
            slots = (Slot(span_of(method), "fixed", (_OPPOSITES[self.text(method)],)),)
        return Check(span_of(assertion), slots, neutral)

    def _opposite_check(self, match: Match) -> Check:
        method, assertion = match.node("method"), match.node("assertion")
        slot = Slot(span_of(method), "fixed", (_OPPOSITES[self.text(method)],))
        arguments = named_children(match.node("arguments"))[:2]
        subjects = [node for node in arguments if node.type != "keyword_argument"]
        return Check(span_of(assertion), (slot,), (self._neutral_statement(assertion, *subjects),))

    def _mock_checks(self, match: Match) -> Iterator[Check]:
        """Yield the check of what a mock was called with, or that it was called."""
        method, assertion = match.node("method"), match.node("assertion")
        neutral = (Edit(*span_of(assertion), self.text(match.node("object"))),)
        slots: list[Slot] = []
        if not self.text(method).startswith((b"assert_not", b"assert_has")):
            for argument in named_children(match.node("arguments")):
                if self.is_value(argument, top=False):
                    slots += self.slots_in(argument)
        if not slots and self.text(method) in _OPPOSITES:
            slots = [Slot(span_of(method), "fixed", (_OPPOSITES[self.text(method)],))]
        if slots:
            yield Check(span_of(assertion), tuple(slots), neutral)

    def _exception_checks(self, match: Match) -> Iterator[Check]:
        """Yield the check of a message, or of the class of an exception."""
        error, assertion = match.node("class"), match.node("assertion")
        pattern = self._pattern_argument(match)
        neutral = [Edit(*span_of(error), b"BaseException")]
        if b"arn" in self.text(match.node("method")):
            neutral = [Edit(*span_of(error), b"Warning")]
        slots: tuple[Slot, ...] = ()
        if pattern is not None:
            neutral.append(Edit(*span_of(pattern), b"''"))
            if self.is_value(pattern) and b"|" not in self.text(pattern):
                slots = self.slots_in(pattern, phrase=True)
        others = tuple(name.encode() for name in other_errors(self.text(error).decode()))
        if not slots and b"arn" not in self.text(match.node("method")):
            slots = (Slot(span_of(error), "fixed", others),)
        if slots:
            yield Check(span_of(assertion), slots, tuple(neutral))

    def _pattern_argument(self, match: Match) -> Node | None:
        arguments = named_children(match.node("arguments"))
        if b"Regex" in self.text(match.node("method")) and len(arguments) > 1:
            return arguments[1]
        for argument in arguments:
            if argument.type == "keyword_argument":
                name, value = named_children(argument)[:2]
                if self.text(name) == b"match":
                    return value
        return None

    def tables(self) -> Iterator[Table]:
        """Yield the rows of parametrize and of loops."""
        for match in self.tree.matches("table"):
            names, rows = match.node("table.names"), match.node("table.rows")
            if rows.type not in ("list", "tuple"):
                continue
            if match.optional_node("table.function"):
                columns = self._parameter_names(names)
                arguments = named_children(match.node("table.arguments"))
                removable = len(arguments) == 2  # otherwise there may be ids
            else:
                columns = tuple(
                    self.text(node) for node in descendants(names) if node.type == "identifier"
                )
                removable = True
            # A tuple of one row needs a comma.
            has_comma = len(rows.children) > 1 and rows.children[-2].type == ","
            removable &= rows.type == "list" or has_comma
            yield Table(
                span_of(match.node("table")),
                columns,
                span_of(names),
                tuple(named_children(rows)),
                removable=removable,
                has_test_per_row=match.optional_node("table.function") is not None,
            )

    def _parameter_names(self, names: Node) -> tuple[bytes, ...]:
        """Return the names of parametrize: in one string, or in several."""
        texts = [self.text(node) for node in descendants(names) if node.type == "string_content"]
        return tuple(name.strip() for text in texts for name in text.split(b",") if name.strip())

    def cell(self, row: Node, name: bytes, table: Table) -> Node | None:
        """Return what stands in a column of a row, also of `pytest.param`."""
        if row.type == "call":
            arguments = named_children(named_children(row)[1])
            column = table.names.index(name)
            positional = [node for node in arguments if node.type != "keyword_argument"]
            return positional[column] if column < len(positional) else None
        if len(table.names) > 1 and row.type not in ("tuple", "list"):
            return None
        return super().cell(row, name, table)

    def is_declaration(self, node: Node) -> bool:
        """Whether a name stands where a parameter or a keyword is named."""
        if super().is_declaration(node):
            return True
        parent = node.parent
        return (
            parent is not None
            and parent.type == "keyword_argument"
            and parent.children[0].id == node.id
        )

    def weak_checks(self) -> Iterator[Check]:
        """Yield what is passed last to a function that holds assertions."""
        for match in self.tree.matches("helper.call"):
            name = self.text(match.node("helper"))
            if name.startswith(b"assert_") and b"called" in name:
                continue
            if not CHECKING.fullmatch(name) and not self.holds_assertions(name):
                continue
            arguments = named_children(match.node("arguments"))
            for argument in reversed(arguments):
                slots: tuple[Slot, ...] = ()
                if argument.type != "keyword_argument" and self.is_value(argument):
                    slots = self.slots_in(argument)
                if slots:
                    span = span_of(match.node("helper.call"))
                    yield Check(span, slots, (Edit(*span, b"pass"),))
                    break

    def plain(self, subject: Node, expected: Node) -> tuple[Edit, ...]:
        """Wrap an operand that is compared with a literal."""
        if self.is_class_like(subject) or any(
            node.type == "call" for node in descendants(expected)
        ):
            return ()
        start, end = span_of(subject)
        return (Edit(start, start, _HELPER_NAME + b"("), Edit(end, end, b")"))

    def helper(self) -> Edit | None:
        """Return the insertion of `plain_copy` before the first test or class."""
        position = self._first_definition()
        if position is None:
            return None
        code = resources.files("cooperbench.eval.canaries").joinpath("plain_operands/python.txt")
        return Edit(position, position, code.read_bytes() + b"\n\n")

    def _first_definition(self) -> int | None:
        for node in self.tree.root.children:
            if node.type in ("function_definition", "decorated_definition", "class_definition"):
                return node.start_byte
        return None

    def new_test(self, tests: Sequence[HiddenTest]) -> Edit | None:
        """Return the insertion of a failing class before the end of a program, or at the end."""
        has_class = any(node.type == "class_definition" for node in self.tree.root.children)
        if not tests and not has_class:
            return None
        main = re.search(rb"^if __name__ ==", self.source, re.MULTILINE)
        position = main.start() if main else len(self.source)
        return Edit(position, position, _NEW_TEST)


def other_errors(names: str) -> list[str]:
    """Return exceptions that are not related to the expected ones."""
    expected = re.findall(r"(\w+)\s*(?=[,)|]|$)", names)
    classes = [getattr(builtins, name, None) for name in expected]
    is_builtin = all(isinstance(error, type) for error in classes)
    others = []
    candidates = _COMMON_ERRORS if is_builtin else _RARE_ERRORS
    for name in candidates:
        other = getattr(builtins, name)
        related = [
            error
            for error in classes
            if isinstance(error, type) and (issubclass(error, other) or issubclass(other, error))
        ]
        if not related and name not in expected:
            others.append(name)
    return others


def _unwrap(node: Node) -> Node:
    """Return an expression without the parentheses around it."""
    while node.type == "parenthesized_expression" and named_children(node):
        node = named_children(node)[0]
    return node


def _conjuncts(node: Node) -> list[Node]:
    """Return the conditions that are joined with `and`."""
    if node.type == "boolean_operator" and any(child.type == "and" for child in node.children):
        parts = []
        for child in named_children(node):
            parts += _conjuncts(_unwrap(child))
        return parts
    return [node]


def _spans(match: Match, capture: str) -> tuple[Span, ...]:
    return tuple(span_of(node) for node in match.captures.get(capture, []))
