"""Tests of Go: plain ones, and those with testify, gomega, go-cmp and similar packages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from cooperbench.eval.canaries.go_values import GoValues
from cooperbench.eval.canaries.model import Check, Edit, HiddenTest, Slot, TestFile
from cooperbench.eval.canaries.reader import CHECKING, Comparison
from cooperbench.eval.canaries.syntax import Match, SyntaxTree, named_children, span_of

_FAILS = re.compile(
    rb"""
      \b [a-zA-Z]{1,2} (?: \.T\(\) )? \. (?: Error | Fatal | Fail ) \w* \(
    | \b panic \(
    | \b \w*? [fF]ail\w* \(
    """,
    re.VERBOSE,
)
"""A statement that makes a test fail."""
_OPERATORS = {b"==": b"!=", b"<": b">=", b"<=": b">"}
_OPERATORS |= {value: key for key, value in _OPERATORS.items()}
_EQUAL_FUNCTIONS = frozenset({b"DeepEqual", b"Equal", b"EqualFold", b"Is"})
"""Functions of standard packages that compare two values: `reflect.DeepEqual`, `bytes.Equal`."""
_DIFF = frozenset({b"Diff", b"Compare"})
"""Functions that return a text, which is empty if two values are equal: `cmp.Diff`."""
_EQUALITY = re.compile(
    rb"(?:Equal|EqualValues|Exactly|JSONEq|YAMLEq|ElementsMatch|InDelta|InEpsilon|DeepEqual|Same)f?"
)
"""Methods of testify with the expected value before the other one."""
_ACTUAL_FIRST = re.compile(rb"(?:EqualError|Len)f?")
_PHRASE = re.compile(rb"(?:Contains|ErrorContains)f?")
_OPPOSITES = {
    b"Equal": b"NotEqual",
    b"EqualValues": b"NotEqualValues",
    b"True": b"False",
    b"Nil": b"NotNil",
    b"NoError": b"Error",
    b"Empty": b"NotEmpty",
    b"Contains": b"NotContains",
    b"Same": b"NotSame",
    b"ErrorIs": b"NotErrorIs",
    b"Greater": b"LessOrEqual",
    b"Less": b"GreaterOrEqual",
    b"Panics": b"NotPanics",
    b"Zero": b"NotZero",
    b"Regexp": b"NotRegexp",
    b"FileExists": b"NoFileExists",
    b"DirExists": b"NoDirExists",
    b"Subset": b"NotSubset",
}
_OPPOSITES |= {value: key for key, value in _OPPOSITES.items()}
_GOMEGA = {b"To": b"NotTo", b"Should": b"ShouldNot"}
_GOMEGA |= {value: key for key, value in _GOMEGA.items()} | {b"ToNot": b"To"}
_GOMEGA_EQUALITY = re.compile(
    rb"""
      Equal | BeEquivalentTo | BeIdenticalTo | BeNumerically
    | HaveLen | HaveKeyWithValue | MatchJSON | ConsistOf
    """,
    re.VERBOSE,
)
_GOMEGA_PHRASE = re.compile(rb"ContainSubstring|HavePrefix|HaveSuffix")
_ASSERTING = re.compile(rb"(?:assert|require|must|is|s|suite|ts|c)(?:\.(?:Require|Assert)\(\))?")
_TEST_VALUE = re.compile(rb"t|tb|tt|b|f|c|s\.T\(\)|suite\.T\(\)|ts\.T\(\)")
_RETURN = re.compile(rb"\breturn\b")


def read_go(source: bytes) -> TestFile:
    """Return the tests of a Go file."""
    return GoReader(source, SyntaxTree(source, "go")).read()


@dataclass(frozen=True)
class _Condition:
    """An `if` whose body makes the test fail."""

    statement: Node
    condition: Node
    body: Node
    initializer: Node | None
    neutral: tuple[Edit, ...]


class GoReader(GoValues):
    """A reader of Go tests."""

    # Conditions that make a test fail.

    @cached_property
    def _conditions(self) -> list[_Condition]:
        conditions = []
        for match in self.tree.matches("condition"):
            body = match.node("body")
            if not self._fails(body):
                continue
            statement, condition = match.node("assertion"), match.node("condition")
            initializer = match.optional_node("initializer")
            neutral = self._neutral_condition(statement, condition, body)
            conditions.append(_Condition(statement, condition, body, initializer, neutral))
        return conditions

    def _fails(self, body: Node) -> bool:
        """Whether a block makes the test fail, and not only under further conditions."""
        for block in named_children(body):
            statements = named_children(block) if block.type == "statement_list" else [block]
            for statement in statements:
                is_call = statement.type == "expression_statement"
                if is_call and _FAILS.match(self.text(statement)):
                    return True
        return False

    def _neutral_condition(self, statement: Node, condition: Node, body: Node) -> tuple[Edit, ...]:
        has_else = statement.child_by_field_name("alternative") is not None
        if has_else and _RETURN.search(self.text(body)):
            return ()  # code after it may be unreachable
        subjects = [node for node in _operands(condition) if not self._shows_value(node)]
        used = self.used(subjects, condition, body)
        return (
            Edit(*span_of(condition), b"len([]interface{}{" + used + b"}) == -1"),
            Edit(*span_of(body), b"{}"),
        )

    def _shows_value(self, node: Node) -> bool:
        return self.is_value(node) or node.type in ("nil", "func_literal")

    def comparisons(self) -> Iterator[Comparison]:
        """Yield assertions that two values are equal."""
        for condition in self._conditions:
            yield from self._compared_by_condition(condition)
        for match in self.tree.matches("method"):
            yield from self._compared_by_method(match)
            yield from self._compared_by_diff(match)
            yield from self._compared_by_checker(match)

    def _compared_by_condition(self, condition: _Condition) -> Iterator[Comparison]:
        """Yield `if got != want` and `if !reflect.DeepEqual(got, want)`."""
        if self._diff_in(condition.initializer) is not None:
            return
        node = condition.condition
        opposite = self._opposite_condition(node)
        if node.type == "binary_expression" and self._operator(node) == b"!=":
            left, right = named_children(node)
        elif self._negated_equality(node):
            left, right = self._negated_equality(node)[:2]
        else:
            return
        yield Comparison(
            span_of(condition.statement),
            left,
            right,
            messages=(span_of(condition.body),),
            neutral=condition.neutral,
            opposite=opposite,
        )

    def _negated_equality(self, node: Node) -> list[Node]:
        """Return the arguments of `!reflect.DeepEqual(got, want)`."""
        if node.type != "unary_expression" or not self.text(node).startswith(b"!"):
            return []
        call = named_children(node)[0]
        function = call.child_by_field_name("function")
        arguments = call.child_by_field_name("arguments")
        if call.type != "call_expression" or function is None or arguments is None:
            return []
        name = self.text(function).rpartition(b".")
        operands = named_children(arguments)
        if name[2] in _EQUAL_FUNCTIONS and name[1] and len(operands) >= 2:
            return operands
        return []

    def _operator(self, node: Node) -> bytes:
        operator = node.child_by_field_name("operator")
        return self.text(operator) if operator is not None else b""

    def _opposite_condition(self, node: Node) -> Slot | None:
        """Return a slot for the opposite of a condition."""
        operator = node.child_by_field_name("operator")
        if node.type == "unary_expression" and operator is not None:
            if self.text(operator) != b"!":
                return None
            return Slot(span_of(operator), "fixed", (b"",))
        if node.type == "binary_expression" and operator is not None:
            other = _OPERATORS.get(self.text(operator))
            if other:
                return Slot(span_of(operator), "fixed", (other,))
            return Slot(span_of(node), "fixed", (b"!(" + self.text(node) + b")",))
        if node.type in ("identifier", "call_expression", "selector_expression"):
            return Slot(span_of(node), "fixed", (b"!" + self.text(node),))
        return None

    def _diff_in(self, node: Node | None) -> Node | None:
        """Return the call in `diff := cmp.Diff(want, got)`."""
        if node is None or node.type != "short_var_declaration":
            return None
        values = node.child_by_field_name("right")
        call = named_children(values)[0] if values is not None else None
        if call is None or call.type != "call_expression":
            return None
        function = call.child_by_field_name("function")
        is_diff = function is not None and self.text(function).rpartition(b".")[2] in _DIFF
        return call if is_diff else None

    @cached_property
    def _diff_conditions(self) -> dict[int, _Condition]:
        """Conditions that begin with a call of `cmp.Diff`, by its position."""
        conditions = {}
        for condition in self._conditions:
            call = self._diff_in(condition.initializer)
            if call is not None:
                conditions[call.start_byte] = condition
        return conditions

    def _compared_by_diff(self, match: Match) -> Iterator[Comparison]:
        """Yield `cmp.Diff(want, got)`."""
        call = match.node("call")
        operands = named_children(match.node("arguments"))
        owner = self.text(match.node("object"))
        is_diff = self.text(match.node("method")) in _DIFF and owner in (b"cmp", b"pretty", b"diff")
        if not is_diff or len(operands) < 2:
            return
        condition = self._diff_conditions.get(call.start_byte)
        subjects = [node for node in operands if not self._shows_value(node)]
        neutral = [self.neutral_call(call, subjects, b'""')]
        if condition is not None:
            neutral += condition.neutral
        yield Comparison(
            span_of(condition.statement if condition else call),
            operands[1],
            operands[0],
            messages=(span_of(condition.body),) if condition else (),
            neutral=tuple(neutral),
            opposite=self._opposite_condition(condition.condition) if condition else None,
        )

    def _assertion_arguments(self, match: Match) -> list[Node] | None:
        """Return the arguments of an assertion without the `t`; None for other calls."""
        owner = self.text(match.node("object"))
        if not _ASSERTING.fullmatch(owner):
            return None
        arguments = named_children(match.node("arguments"))
        is_package = owner in (b"assert", b"require", b"must")
        if is_package and arguments and _TEST_VALUE.fullmatch(self.text(arguments[0])):
            arguments = arguments[1:]
        return arguments

    def _neutral_assertion(self, match: Match, subjects: Sequence[Node]) -> tuple[Edit, ...]:
        call = match.node("call")
        is_statement = call.parent is not None and call.parent.type == "expression_statement"
        result = b"" if is_statement else b"true"
        return (self.neutral_call(call, subjects, result),)

    def _opposite_method(self, match: Match) -> Slot | None:
        """Return a slot for the opposite of a method of testify."""
        method = match.node("method")
        name = self.text(method)
        stem, suffix = (name[:-1], b"f") if name.endswith(b"f") else (name, b"")
        if stem not in _OPPOSITES or b"stretchr/testify" not in self.source:
            return None
        return Slot(span_of(method), "fixed", (_OPPOSITES[stem] + suffix,))

    def _compared_by_method(self, match: Match) -> Iterator[Comparison]:
        """Yield `assert.Equal(t, want, got)`."""
        method = self.text(match.node("method"))
        arguments = self._assertion_arguments(match)
        is_actual_first = bool(_ACTUAL_FIRST.fullmatch(method))
        is_equality = _EQUALITY.fullmatch(method) or is_actual_first
        if not is_equality or arguments is None or len(arguments) < 2:
            return
        expected, subject = arguments[:2]
        if is_actual_first:
            expected, subject = subject, expected
        subjects = [node for node in arguments[:2] if not self._shows_value(node)]
        yield Comparison(
            span_of(match.node("call")),
            subject,
            expected,
            messages=tuple(span_of(message) for message in arguments[2:]),
            neutral=self._neutral_assertion(match, subjects),
            opposite=self._opposite_method(match),
            scaled=method.startswith(b"In"),
        )

    def _compared_by_checker(self, match: Match) -> Iterator[Comparison]:
        """Yield `c.Assert(got, qt.Equals, want)`."""
        if self.text(match.node("method")) not in (b"Assert", b"Check"):
            return
        arguments = self._assertion_arguments(match)
        if arguments is None:
            arguments = named_children(match.node("arguments"))
        if len(arguments) < 3 or not re.search(rb"Equals?$", self.text(arguments[1])):
            return
        subject, expected = arguments[0], arguments[2]
        yield Comparison(
            span_of(match.node("call")),
            subject,
            expected,
            neutral=self._neutral_assertion(match, [subject]),
        )

    def checks(self) -> Iterator[Check]:
        """Yield the checks of all other assertions."""
        for condition in self._conditions:
            yield from self._condition_checks(condition)
        for match in self.tree.matches("method"):
            yield from self._method_checks(match)
            yield from self._gomega_checks(match)

    def _condition_checks(self, condition: _Condition) -> Iterator[Check]:
        node = condition.condition
        span = span_of(condition.statement)
        is_equality = node.type == "binary_expression" and self._operator(node) == b"!="
        if is_equality or self._negated_equality(node):
            return
        if self._diff_in(condition.initializer) is not None:
            return
        operator = self._operator(node)
        if operator == b"&&":
            return  # one of several things is enough
        if operator == b"||":
            slots = self._slots_of_disjuncts(node)
            if slots:
                yield Check(span, slots, condition.neutral)
                return
        phrase = self._phrase_in(node)
        if phrase is not None:
            slots = self.slots_in(phrase, phrase=True, echoes=(span_of(condition.body),))
            if slots:
                yield Check(span, slots, condition.neutral)
                return
        opposite = self._opposite_condition(node)
        if opposite:
            yield Check(span, (opposite,), condition.neutral)

    def _slots_of_disjuncts(self, node: Node) -> tuple[Slot, ...]:
        """Return what can be changed in `err != nil || got != 5`."""
        if node.type == "binary_expression" and self._operator(node) == b"||":
            slots: list[Slot] = []
            for operand in named_children(node):
                slots += self._slots_of_disjuncts(operand)
            return tuple(slots)
        if node.type == "binary_expression" and self._operator(node) == b"!=":
            pair = self.expected_operand(*named_children(node))
            return self.slots_in(pair[1]) if pair else ()
        return ()

    def _phrase_in(self, node: Node) -> Node | None:
        """Return the text in `!strings.Contains(got, "text")`."""
        if node.type != "unary_expression" or not self.text(node).startswith(b"!"):
            return None
        call = named_children(node)[0]
        function = call.child_by_field_name("function")
        arguments = call.child_by_field_name("arguments")
        if call.type != "call_expression" or function is None or arguments is None:
            return None
        operands = named_children(arguments)
        is_search = re.search(rb"\b(?:Contains|HasPrefix|HasSuffix)$", self.text(function))
        if is_search and len(operands) == 2 and operands[1].type in self.string_types:
            return operands[1]
        return None

    def _method_checks(self, match: Match) -> Iterator[Check]:
        """Yield the check of an assertion of testify that is not an equality."""
        method = self.text(match.node("method"))
        arguments = self._assertion_arguments(match)
        if arguments is None or not arguments:
            return
        if len(arguments) > 1 and (_EQUALITY.fullmatch(method) or _ACTUAL_FIRST.fullmatch(method)):
            return
        slots: tuple[Slot, ...] = ()
        if _PHRASE.fullmatch(method) and len(arguments) > 1:
            phrase = arguments[1]
            if phrase.type in self.string_types:
                slots = self.slots_in(phrase, phrase=True)
        opposite = self._opposite_method(match)
        if not slots and opposite:
            slots = (opposite,)
        if slots:
            subjects = [node for node in arguments[:1] if not self._shows_value(node)]
            neutral = self._neutral_assertion(match, subjects)
            yield Check(span_of(match.node("call")), slots, neutral)

    def _gomega_checks(self, match: Match) -> Iterator[Check]:
        """Yield the check of `Expect(got).To(Equal(want))`."""
        method = match.node("method")
        chain = match.node("object")
        arguments = named_children(match.node("arguments"))
        if self.text(method) not in _GOMEGA or chain.type != "call_expression" or not arguments:
            return
        subjects = chain.child_by_field_name("arguments")
        if subjects is None:
            return
        slots: tuple[Slot, ...] = ()
        is_negated = b"Not" in self.text(method)
        if not is_negated and arguments[0].type == "call_expression":
            slots = self._slots_of_matcher(arguments[0])
        if not slots:
            slots = (Slot(span_of(method), "fixed", (_GOMEGA[self.text(method)],)),)
        operands = [node for node in named_children(subjects) if not self._shows_value(node)]
        yield Check(span_of(match.node("call")), slots, self._neutral_assertion(match, operands))

    def _slots_of_matcher(self, matcher: Node) -> tuple[Slot, ...]:
        function = matcher.child_by_field_name("function")
        arguments = matcher.child_by_field_name("arguments")
        if function is None or arguments is None or not named_children(arguments):
            return ()
        name = self.text(function).rpartition(b".")[2]
        operands = named_children(arguments)
        if name == b"BeNumerically":
            is_equality = self.text(operands[0]) == b'"=="' and len(operands) == 2
            operands = operands[1:] if is_equality else []
        slots: list[Slot] = []
        for operand in operands:
            is_phrase = bool(_GOMEGA_PHRASE.fullmatch(name))
            if self.is_value(operand) and (is_phrase or _GOMEGA_EQUALITY.fullmatch(name)):
                slots += self.slots_in(operand, phrase=is_phrase)
        return tuple(slots)

    def weak_checks(self) -> Iterator[Check]:
        """Yield what is passed last to a function that holds assertions."""
        for match in self.tree.matches("helper.call"):
            name = self.text(match.node("helper"))
            if not CHECKING.fullmatch(name) and not self.holds_assertions(name):
                continue
            statement = match.node("helper.call")
            call = named_children(statement)[0]
            for argument in reversed(named_children(match.node("arguments"))):
                slots = self.slots_in(argument) if self.is_value(argument) else ()
                if slots:
                    neutral = self.neutral_call(call, [], b"")
                    yield Check(span_of(statement), slots, (neutral,))
                    break

    def plain(self, subject: Node, expected: Node) -> tuple[Edit, ...]:  # noqa: ARG002  # see below
        """Return nothing: types cannot change how they are compared with literals."""
        return ()

    def new_test(self, tests: Sequence[HiddenTest]) -> Edit | None:  # noqa: ARG002  # needs nodes
        """Return the insertion of a failing test at the end, under a name that begins like another.

        A runner may choose tests by the beginnings of their names.
        """
        for match in self.find_tests():
            type_node = match.optional_node("test.type")
            if type_node is None or self.text(type_node) != b"T":
                continue
            parameters = match.node("test").child_by_field_name("parameters")
            name = self.text(match.node("test.name"))
            assert parameters is not None
            variable = self.text(parameters).strip(b"() ").partition(b" ")[0]
            text = b"\nfunc " + name + b"{First}{Second}" + self.text(parameters)
            text += b" {\n\t" + variable + b'.Fatal("{second}")\n}\n'
            return Edit(len(self.source), len(self.source), text)
        return None


def _operands(condition: Node) -> list[Node]:
    """Return the values that a condition compares, without the operators."""
    node = condition
    if node.type == "parenthesized_expression" or (
        node.type == "unary_expression" and node.children[0].type == "!"
    ):
        return _operands(named_children(node)[0])
    if node.type == "binary_expression":
        left, right = named_children(node)
        operator = node.child_by_field_name("operator")
        if operator is not None and operator.type in ("||", "&&"):
            return []  # the second is evaluated only sometimes
        return [left, right]
    if node.type == "call_expression":
        arguments = node.child_by_field_name("arguments")
        return named_children(arguments) if arguments is not None else []
    return [node]
