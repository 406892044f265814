"""The base class of the readers of all languages.

A reader finds tests and assertions with the query of its language. It says which operand of an
assertion is the expected value, and how an assertion can be made neutral.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from cooperbench.eval.canaries.literals import find_parts, find_words
from cooperbench.eval.canaries.model import (
    Check,
    Edit,
    HiddenTest,
    NameStyle,
    Slot,
    SlotKind,
    Span,
    Spans,
    TestFile,
    Vocabulary,
)
from cooperbench.eval.canaries.syntax import (
    Captures,
    Match,
    SyntaxTree,
    descendants,
    named_children,
    removal,
    span_of,
)

_CLASS = re.compile(rb"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
_MATCHER = re.compile(rb"(?:Is|Has|Any|Contains|Match|Like|Contain|Have|Be|Not)(?![a-z])\w*|Like")
"""Classes whose instances equal more than one value."""
CHECKING = re.compile(rb"(?i)_*(?:check|assert|expect|verify|ensure)\w*")
"""Names of functions that are likely to hold assertions."""
FAILING = re.compile(
    rb"(?i)assert|check|expect|verify|ensure|require|fail|fatal|error|raise|throw|panic"
)
"""Contents of functions that are likely to hold assertions."""


@dataclass(frozen=True)
class Table:
    """Rows of values, of which a test calls each column by a name."""

    span: Span
    names: tuple[bytes, ...]
    names_span: Span
    rows: tuple[Node, ...]
    removable: bool = True
    """Whether a row can be removed without changing anything else."""
    has_test_per_row: bool = False
    """Whether the framework runs the test once for each row."""


@dataclass(frozen=True)
class Comparison:
    """An assertion that two values are equal."""

    span: Span
    subject: Node
    expected: Node
    messages: tuple[Span, ...] = ()
    neutral: tuple[Edit, ...] = ()
    opposite: Slot | None = None
    """What can be changed if the expected value is not known."""
    scaled: bool = False
    """Whether it allows a tolerance."""


class Reader(ABC):
    """A reader of test files of one language."""

    name_style: NameStyle = "snake"
    value_types: frozenset[str] = frozenset()
    """Types of nodes that values consist of, apart from literals."""
    string_types: frozenset[str] = frozenset()
    name_types: frozenset[str] = frozenset({"identifier"})
    call_type = "call"
    empty_values: tuple[bytes, ...] = ()
    """Literals for nothing, which can replace each other."""
    value_calls = re.compile(rb"[A-Z]\w*")
    """Names of functions that only make a value of their arguments."""
    truths: tuple[bytes, bytes] = (b"true", b"false")
    is_compiled = False
    """See `TestFile.is_compiled`."""

    def __init__(self, source: bytes, tree: SyntaxTree) -> None:
        self.source = source
        self.tree = tree
        self._texts = Captures(self.tree, "literal.text")
        self._numbers = Captures(self.tree, "literal.number")
        self._truths = Captures(self.tree, "literal.truth")
        self._known_values: dict[tuple[Span, bytes], list[tuple[Table | None, Node, Node]]] = {}

    # What a language has to say.

    @abstractmethod
    def checks(self) -> Iterator[Check]:
        """Yield the checks of the file that need no other knowledge."""

    @abstractmethod
    def comparisons(self) -> Iterator[Comparison]:
        """Yield the assertions that two values are equal."""

    def tables(self) -> Iterator[Table]:
        """Yield the tables of values in the file."""
        return iter(())

    def cell(self, row: Node, name: bytes, table: Table) -> Node | None:
        """Return what stands in a column of a row."""
        if len(table.names) == 1:
            return row
        column = table.names.index(name)
        cells = named_children(row)
        return cells[column] if column < len(cells) else None

    def comments_in(self, test: Node) -> Iterator[Span]:
        """Yield the comments in a test."""
        for node in descendants(test):
            if "comment" in node.type:
                yield span_of(node)

    def locals(self) -> Iterator[tuple[Node, Node]]:
        """Yield the names and values of variables."""
        for match in self.tree.matches("local"):
            yield match.node("local.name"), match.node("local.value")

    def weak_checks(self) -> Iterator[Check]:
        """Yield checks that are likely, for tests that have no others."""
        return iter(())

    def find_tests(self) -> list[Match]:
        """Return the tests of the file by position; those within others are ignored."""
        return self.tree.matches("test")

    def is_expected_to_fail(self, span: Span) -> bool:  # noqa: ARG002  # languages override it
        """Whether an assertion stands where it must not hold."""
        return False

    def select_checks(self, test: Span, checks: list[Check]) -> list[Check]:  # noqa: ARG002
        """Return the checks of a test that can be changed one by one."""
        return checks

    def test_span(self, test: Node) -> Span:
        """Return what has to be copied with a test."""
        return span_of(test)

    def name_of(self, match: Match) -> tuple[str, int, NameStyle]:
        """Return the name of a test, where a number can be added to it, and how."""
        name = match.node("test.name")
        text = self.text(name).decode("utf-8", "replace")
        return text, name.end_byte, self.name_style

    def helper(self) -> Edit | None:
        """Return the insertion of the function that makes plain copies."""
        return None

    @abstractmethod
    def new_test(self, tests: Sequence[HiddenTest]) -> Edit | None:
        """Return the insertion of a test that fails."""

    @abstractmethod
    def plain(self, subject: Node, expected: Node) -> tuple[Edit, ...]:
        """Return edits after which a plain copy of an operand is compared with a literal."""

    # What they have in common.

    def text(self, node: Node) -> bytes:
        """Return the source text of a node."""
        return self.tree.text(node)

    def read(self) -> TestFile:
        """Return the tests of the file with their checks."""
        checks = [*self.checks(), *self._checks_of_comparisons()]
        effective = [check for check in checks if not self.is_expected_to_fail(check.span)]
        sorted_checks = _SortedChecks(effective)
        weak = _SortedChecks(self.weak_checks())
        tests = []
        for match in self._outermost_tests:
            test_span = self.test_span(match.node("test"))
            span = _whole_lines(test_span, self.source)
            name, name_end, style = self.name_of(match)
            checks = self.select_checks(test_span, sorted_checks.within(span)) or weak.within(span)
            comments = tuple(self.comments_in(match.node("test")))
            tests.append(HiddenTest(name, span, name_end, style, tuple(checks), comments))
        vocabulary = self._vocabulary()
        return TestFile(
            source=self.source,
            tests=tuple(tests),
            words=tuple(sorted(vocabulary.words)),
            numbers=tuple(sorted(vocabulary.numbers)),
            identifiers=frozenset(re.findall(rb"\w+", self.source)),
            helper=self.helper(),
            new_test=self.new_test(tests),
            is_compiled=self.is_compiled,
        )

    @cached_property
    def _outermost_tests(self) -> list[Match]:
        end = 0
        outermost = []
        for match in self.find_tests():
            if match.node("test").start_byte >= end:
                end = match.node("test").end_byte
                outermost.append(match)
        return outermost

    @cached_property
    def _test_spans(self) -> list[Span]:
        return [self.test_span(match.node("test")) for match in self._outermost_tests]

    @cached_property
    def _tables(self) -> list[Table]:
        return list(self.tables())

    @cached_property
    def _locals(self) -> list[tuple[Node, Node]]:
        return list(self.locals())

    @cached_property
    def _names(self) -> dict[tuple[Span, bytes], list[Node]]:
        """Uses of each name in each test."""
        names: dict[tuple[Span, bytes], list[Node]] = {}
        for node in descendants(self.tree.root):
            if node.type in self.name_types:
                test = self.test_around(span_of(node))
                if test:
                    names.setdefault((test, self.text(node)), []).append(node)
        return names

    def tables_in(self, test: Span) -> list[Table]:
        """Return the tables in a test."""
        return self._tables_by_test.get(test, [])

    @cached_property
    def _tables_by_test(self) -> dict[Span, list[Table]]:
        tables: dict[Span, list[Table]] = {}
        for table in self._tables:
            test = self.test_around(table.span)
            if test:
                tables.setdefault(test, []).append(table)
        return tables

    def number_of_uses(self, test: Span | None, name: bytes) -> int:
        """Return how often a name stands in a test."""
        return len(self._names.get((test, name), [])) if test else 0

    @cached_property
    def _test_tables(self) -> dict[tuple[Span, bytes], list[Table]]:
        """Tables with a column of a name in each test."""
        tables: dict[tuple[Span, bytes], list[Table]] = {}
        for table in self._tables:
            test = self.test_around(table.span)
            if test is None:
                continue
            for name in {*table.names}:
                tables.setdefault((test, name), []).append(table)
        return tables

    @cached_property
    def _test_locals(self) -> dict[tuple[Span, bytes], list[tuple[Node, Node]]]:
        """Variables with a name in each test, and their values."""
        variables: dict[tuple[Span, bytes], list[tuple[Node, Node]]] = {}
        for variable, value in self._locals:
            test = self.test_around(span_of(variable))
            if test:
                variables.setdefault((test, self.text(variable)), []).append((variable, value))
        return variables

    def holds_assertions(self, name: bytes) -> bool:
        """Whether a function is defined in the file, and something in it can fail."""
        return name in self._failing_functions

    @cached_property
    def _failing_functions(self) -> frozenset[bytes]:
        names = set()
        for match in self.tree.matches("function"):
            if FAILING.search(self.text(match.node("function.body"))):
                names.add(self.text(match.node("function.name")))
        return frozenset(names)

    def _vocabulary(self) -> Vocabulary:
        vocabulary = Vocabulary()
        for node in self._texts.nodes:
            vocabulary.words.update(find_words(self.text(node)))
        for node in self._numbers.nodes:
            vocabulary.numbers.add(self.text(node))
        return vocabulary

    def is_value(self, node: Node, *, top: bool = True) -> bool:
        """Whether an expression is written down as a value: of literals, and names inside it."""
        if self._is_literal(node):
            return True
        if node.type in self.name_types:
            return not top
        if node.type == self.call_type:
            return self._is_value_call(node)
        if node.type not in self.value_types:
            return False
        return all(self.is_value(child, top=False) for child in named_children(node))

    def _is_literal(self, node: Node) -> bool:
        if node.type in self.string_types:
            return True
        span = span_of(node)
        if any(True for _ in self._numbers.within(span)) and not node.named_children:
            return True
        return self.text(node) in (*self.truths, *self.empty_values)

    def _is_value_call(self, node: Node) -> bool:
        function, *operands = named_children(node)
        name = re.split(rb"\W+", self.text(function))[-1]
        if not self.value_calls.fullmatch(name) or _MATCHER.fullmatch(name):
            return False
        arguments = named_children(operands[-1]) if operands else []
        return all(self.is_value(argument, top=False) for argument in arguments)

    def is_class_like(self, node: Node) -> bool:
        """Whether an operand may equal several values, because its class decides about that."""
        if node.type in ("unary_operator", "binary_operator", "not_operator"):
            return any(self.is_class_like(child) for child in named_children(node))
        function = node
        if node.type == self.call_type:
            function = named_children(node)[0]
        if self.text(node) in self._class_like_variables:
            return True
        return bool(_CLASS.fullmatch(re.split(rb"\W+", self.text(function))[-1]))

    @cached_property
    def _class_like_variables(self) -> frozenset[bytes]:
        """Names of variables that hold an object whose class may decide what it equals."""
        self._class_like_variables = frozenset()  # no variable is looked up meanwhile
        names = set()
        for variable, value in self._locals:
            if self.is_class_like(value):
                names.add(self.text(variable))
        return frozenset(names)

    def slots_in(
        self,
        node: Node,
        *,
        phrase: bool = False,
        scaled: bool = False,
        echoes: tuple[Span, ...] = (),
    ) -> tuple[Slot, ...]:
        """Return the literals of a value that can be changed; of several, truths are left out."""
        span = span_of(node)
        if self.text(node) in self.empty_values:
            others = tuple(value for value in self.empty_values if value != self.text(node))
            return (Slot(span, "fixed", others),)
        slots: list[Slot] = []
        text_kind: SlotKind = "phrase" if phrase else "text"
        number_kind: SlotKind = "scaled_number" if scaled else "number"
        for text in self._texts.within(span):
            slot = Slot(span_of(text), text_kind, echoes=echoes)
            if not phrase or find_parts(slot, self.source):
                slots.append(slot)
        if not phrase:
            numbers = self._numbers.within(span)
            slots += [Slot(span_of(number), number_kind, echoes=echoes) for number in numbers]
        labels = self._labels_in(node)
        slots = [slot for slot in slots if not any(label.contains(slot.span) for label in labels)]
        if not slots and not phrase:
            for truth in self._truths.within(span):
                other = self.truths[1 - self.truths.index(self.text(truth))]
                slots.append(Slot(span_of(truth), "fixed", (other,)))
        return tuple(slots)

    def _labels_in(self, value: Node) -> list[Span]:
        """Return the options of calls, such as a tolerance."""
        labels = []
        for node in descendants(value):
            if node.type == "keyword_argument":
                name = self.text(named_children(node)[0])
                if name in (b"abs", b"rel", b"id", b"marks", b"nan_ok"):
                    labels.append(span_of(node))
        return labels

    def blank(self, node: Node) -> tuple[Edit, ...]:
        """Return edits after which a value has the same type and shows nothing."""
        edits = [Edit(*span_of(text), b"") for text in self._texts.within(span_of(node))]
        edits += [Edit(*span_of(number), b"0") for number in self._numbers.within(span_of(node))]
        return tuple(edits)

    def expected_operand(self, left: Node, right: Node) -> tuple[Node, Node] | None:
        """Return the subject and the expected value of an assertion; None if both are unknown."""
        left_is_value, right_is_value = self.is_value(left), self.is_value(right)
        if left_is_value and right_is_value:
            # One of them may be made of names only, such as `(rate.value, rate.path)`.
            left_is_value, right_is_value = bool(self.slots_in(left)), bool(self.slots_in(right))
        if left_is_value == right_is_value:
            return None
        subject, expected = (left, right) if right_is_value else (right, left)
        if self.is_class_like(subject) or not self.slots_in(expected):
            return None
        return subject, expected

    def _checks_of_comparisons(self) -> Iterator[Check]:
        """Yield checks for assertions of equality: with a value, a name of one, or the opposite."""
        named: list[Comparison] = []
        for comparison in self.comparisons():
            pair = self.expected_operand(comparison.subject, comparison.expected)
            if pair:
                yield self._value_check(comparison, *pair)
            elif self._name_in(comparison):
                named.append(comparison)
            elif comparison.opposite:
                yield Check(comparison.span, (comparison.opposite,), comparison.neutral)
        yield from self._checks_of_names(named)

    def _value_check(self, comparison: Comparison, subject: Node, expected: Node) -> Check:
        scaled = comparison.scaled or b"approx" in self.text(expected)
        slots = self.slots_in(expected, scaled=scaled, echoes=comparison.messages)
        return Check(
            comparison.span,
            slots,
            neutral=comparison.neutral,
            plain=self.plain(subject, expected),
            opposite=comparison.opposite,
        )

    def _name_in(self, comparison: Comparison) -> bytes:
        """Return the name of a table's column or variable that an assertion compares with."""
        operands = (comparison.expected, comparison.subject)
        if any(self.is_class_like(operand) for operand in operands):
            return b""
        for node in operands:
            name = self.column_name(node)
            if name and self._values_of(name, comparison.span):
                return name
        return b""

    def column_name(self, node: Node) -> bytes:
        """Return the name by which an operand refers to a variable or to a column."""
        return self.text(node) if node.type in self.name_types else b""

    def _values_of(self, name: bytes, user: Span) -> list[tuple[Table | None, Node, Node]]:
        """Return where values of a name are written: table, row and cell, or None and both nodes.

        They stand in the same test as their user.
        """
        test = self.test_around(user)
        if test is None:
            return []
        if (test, name) not in self._known_values:
            self._known_values[test, name] = self._find_values(test, name)
        return self._known_values[test, name]

    def _find_values(self, test: Span, name: bytes) -> list[tuple[Table | None, Node, Node]]:
        values: list[tuple[Table | None, Node, Node]] = []
        for table in self._test_tables.get((test, name), []):
            for row in table.rows:
                cell = self.cell(row, name, table)
                if cell is not None and self._is_safe_cell(cell):
                    values.append((table, row, cell))
        for variable, value in self._test_locals.get((test, name), []):
            if not self.is_value(value) or not self.slots_in(value):
                return []
            values.append((None, variable, value))
        return values

    def _is_safe_cell(self, cell: Node) -> bool:
        """Whether a value in a table can be changed. A constructor might reject another one.

        That would happen when the file is loaded, and no test would run.
        """
        for node in descendants(cell):
            if node.type == self.call_type and not self._is_plain_call(node):
                return False
        return self.is_value(cell) and bool(self.slots_in(cell))

    def _is_plain_call(self, node: Node) -> bool:
        """Whether a call takes any arguments: those of built-in collections do."""
        return bool(re.fullmatch(rb"[a-z_]*", self.text(named_children(node)[0])))

    def test_around(self, span: Span) -> Span | None:
        """Return the position of the test that a part of the file belongs to."""
        index = bisect_right(self._test_starts, span.start) - 1
        if index >= 0 and self._test_spans[index].contains(span):
            return self._test_spans[index]
        return None

    @cached_property
    def _test_starts(self) -> list[int]:
        return [test.start for test in self._test_spans]

    def _checks_of_names(self, comparisons: Iterable[Comparison]) -> Iterator[Check]:
        """Yield checks of values in tables and variables, or of assertions that use them."""
        groups: dict[tuple[Span | None, bytes], list[Comparison]] = {}
        for comparison in comparisons:
            key = (self.test_around(comparison.span), self._name_in(comparison))
            groups.setdefault(key, []).append(comparison)
        for (test, name), users in groups.items():
            if test and self._is_only_compared(name, test, users):
                yield from self._row_checks(name, users)
                continue
            for comparison in users:
                if comparison.opposite:
                    yield Check(comparison.span, (comparison.opposite,), comparison.neutral)

    def _row_checks(self, name: bytes, users: Sequence[Comparison]) -> Iterator[Check]:
        plain: list[Edit] = []
        neutral: list[Edit] = []
        for comparison in users:
            is_expected = self.column_name(comparison.expected) == name
            subject = comparison.subject if is_expected else comparison.expected
            expected = comparison.expected if is_expected else comparison.subject
            plain += self.plain(subject, expected)
            neutral += comparison.neutral
        scaled = any(comparison.scaled for comparison in users)
        for table, row, cell in self._values_of(name, users[0].span):
            slots = self.slots_in(cell, scaled=scaled)
            if table is None:
                # The value stays, but shows nothing, and is not compared.
                edits = (*neutral, *self.blank(cell))
            elif table.removable:
                edits = (Edit(*removal(row, self.source), b""),)
            elif table.has_test_per_row:
                # This row fails in copies for other rows, which is not compared.
                edits = self.blank(cell)
            else:
                edits = ()
            yield Check(span_of(row), slots, edits, tuple(plain))

    def _is_only_compared(self, name: bytes, test: Span, users: Iterable[Comparison]) -> bool:
        """Whether a test only compares with a name. Otherwise it may be input."""
        key = (test, name)
        parts = [table.names_span for table in self._test_tables.get(key, [])]
        parts += [span_of(variable) for variable, _ in self._test_locals.get(key, [])]
        for comparison in users:
            parts += [span_of(comparison.expected), *comparison.messages]
            if self.column_name(comparison.subject) == name:
                parts.append(span_of(comparison.subject))
        allowed = Spans(parts)
        for node in self._names.get(key, []):
            if not self.is_declaration(node) and not allowed.contain(span_of(node)):
                return False
        return True

    def is_declaration(self, node: Node) -> bool:
        """Whether a name stands where a parameter or a field is declared."""
        return node.parent is not None and "parameter" in node.parent.type


def _whole_lines(span: Span, source: bytes) -> Span:
    """Return a span with the indentation before it."""
    start = source.rfind(b"\n", 0, span.start) + 1
    return Span(start, span.end) if not source[start : span.start].strip() else span


class _SortedChecks:
    """Checks that can be looked up by position."""

    def __init__(self, checks: Iterable[Check]) -> None:
        self._checks = sorted(
            (check for check in checks if check.slots), key=lambda check: check.span
        )
        self._starts = [check.span.start for check in self._checks]

    def within(self, span: Span) -> list[Check]:
        """Return the checks in a part of the file."""
        first = bisect_left(self._starts, span.start)
        last = bisect_left(self._starts, span.end)
        return [check for check in self._checks[first:last] if check.span.end <= span.end]
