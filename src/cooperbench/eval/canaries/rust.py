"""Tests of Rust: #[test], #[tokio::test], #[rstest] and #[test_case], with the usual macros.

The grammar sees only tokens in the arguments of a macro. So assertions, `vec!` and `format!` are
parsed as if they were calls and arrays: their names lose the `!`, and all positions stay.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from tree_sitter import Node

from cooperbench.eval.canaries.model import (
    Check,
    Edit,
    HiddenTest,
    Slot,
    Span,
    Spans,
    TestFile,
    apply_edits,
)
from cooperbench.eval.canaries.reader import CHECKING, Comparison, Reader, Table
from cooperbench.eval.canaries.syntax import (
    Match,
    SyntaxTree,
    descendants,
    named_children,
    parse,
    span_of,
)

_CALL_MACRO = re.compile(rb"(?:debug_|prop_)?assert(?:_[a-z_]*)?|format|vec")
_ARRAY_MACRO = re.compile(rb"vec|smallvec|arrayvec")
_ARRAY_MACRO_BEFORE = re.compile(rb"(?:vec|smallvec|arrayvec)!\s*\Z")
_MAX_MACRO_NAME = 40
_TEST_ATTRIBUTE = re.compile(rb"#\[\s*(?:\w+\s*::\s*)*(?:rs)?test(?:_case|_log|_bench)?\s*[\](]")
_CASE_ATTRIBUTE = re.compile(rb"#\[\s*(?:case(?:::\w+)?|(?:test_case::)?test_case)\s*\(")
_EQUAL = re.compile(
    rb"""
    (?: debug_ | prop_ )? assert_
    (?: (?P<name> eq | ne )
      | (?P<tolerant> \w* (?: abs_diff | relative | ulps | approx | close ) \w* )
    )
    """,
    re.VERBOSE,
)
_OPERATORS = {b"==": b"!=", b"<": b">=", b"<=": b">"}
_OPERATORS |= {value: key for key, value in _OPERATORS.items()}
_OPPOSITE_METHODS = {b"is_some": b"is_none", b"is_ok": b"is_err"}
_OPPOSITE_METHODS |= {value: key for key, value in _OPPOSITE_METHODS.items()}
_SEARCH_METHODS = frozenset({b"contains", b"starts_with", b"ends_with"})
_VALUE_CALLS = re.compile(
    rb"[A-Z]\w*|from|from_\w+|new|to_string|to_owned|to_vec|into|vec|format|as_str|as_bytes"
)
_SUFFIX = re.compile(rb"(?P<digits>[0-9_]+)(?P<type>[iu](?:8|16|32|64))")
_MACRO_TYPES = frozenset({"macro_invocation", "token_tree"})
_SIMPLE = frozenset({"call_expression", "identifier", "field_expression", "macro_invocation"})


def read_rust(source: bytes) -> TestFile:
    """Return the tests of a Rust file."""
    return RustReader(source).read()


def _without_macros(source: bytes) -> bytes:
    """Return a file whose macros look like calls and arrays, with all positions as before."""
    masked = bytearray(source)
    for node in descendants(parse(source, "rust")):
        if node.type not in _MACRO_TYPES:
            continue
        for name, mark, arguments in zip(
            node.children, node.children[1:], node.children[2:], strict=False
        ):
            text = source[name.start_byte : name.end_byte].rpartition(b"::")[2].strip()
            if mark.type != "!" or arguments.type != "token_tree":
                continue
            opening = source[arguments.start_byte : arguments.start_byte + 1]
            if opening == b"(" and _CALL_MACRO.fullmatch(text):
                masked[mark.start_byte] = ord(" ")
            elif opening == b"[" and _ARRAY_MACRO.fullmatch(text):
                width = mark.end_byte - name.start_byte
                masked[name.start_byte : mark.end_byte] = b" " * width
    return bytes(masked)


class RustReader(Reader):
    """A reader of Rust tests."""

    is_compiled = True
    value_types = frozenset(
        {
            *("array_expression", "tuple_expression", "struct_expression", "unary_expression"),
            *("reference_expression", "parenthesized_expression", "field_initializer_list"),
            *("field_initializer", "type_identifier", "scoped_type_identifier"),
            *("field_identifier", "shorthand_field_initializer", "mutable_specifier"),
        }
    )
    string_types = frozenset({"string_literal", "raw_string_literal", "char_literal"})
    name_types = frozenset({"identifier", "field_expression", "scoped_identifier"})
    call_type = "call_expression"
    value_calls = _VALUE_CALLS

    def __init__(self, source: bytes) -> None:
        super().__init__(source, SyntaxTree(_without_macros(source), "rust", text=source))

    # Tests.

    def find_tests(self) -> list[Match]:
        """Return the functions with an attribute such as `#[test]`."""
        tests = []
        for match in self.tree.matches("test"):
            attributes = self._attributes(match.node("test"))
            if any(_TEST_ATTRIBUTE.match(self.text(attribute)) for attribute in attributes):
                tests.append(match)
        return tests

    def _attributes(self, function: Node) -> list[Node]:
        """Return the attributes and comments directly before a function."""
        attributes = []
        sibling = function.prev_sibling
        while sibling is not None and ("attribute" in sibling.type or "comment" in sibling.type):
            attributes.append(sibling)
            sibling = sibling.prev_sibling
        while attributes and "comment" in attributes[-1].type:
            attributes.pop()
        return attributes[::-1]

    def test_span(self, test: Node) -> Span:
        """Return a test with its attributes."""
        attributes = self._attributes(test)
        start = attributes[0].start_byte if attributes else test.start_byte
        return Span(start, test.end_byte)

    def is_expected_to_fail(self, span: Span) -> bool:
        """Whether an assertion stands in a test that must panic."""
        return self._panicking_tests.contain(span)

    @cached_property
    def _panicking_tests(self) -> Spans:
        bodies = []
        for match in self.find_tests():
            test = match.node("test")
            texts = [self.text(attribute) for attribute in self._attributes(test)]
            if any(re.match(rb"#\[\s*should_panic", text) for text in texts):
                bodies.append(span_of(test))
        return Spans(bodies)

    def select_checks(self, test: Span, checks: list[Check]) -> list[Check]:
        """Return the rows of the largest table, or all checks if there is no table.

        Without any row, the types of a table could not be inferred.
        """
        rows: list[Check] = []
        for table in self.tables_in(test):
            spans = {span_of(row) for row in table.rows}
            own = [check for check in checks if check.span in spans]
            rows = max(rows, own, key=len)
        return rows or checks

    # Values.

    def is_class_like(self, node: Node) -> bool:  # noqa: ARG002  # of the same form everywhere
        """Return False: names of functions and types look different."""
        return False

    def is_value(self, node: Node, *, top: bool = True) -> bool:
        """Whether an expression is written down as a value."""
        if node.type == "unary_expression" and self.text(node)[:1] != b"-":
            return False
        if node.type == "token_tree":
            return self._is_value_of_tokens(node)
        if node.type == "call_expression":
            function = named_children(node)[0]
            if function.type == "field_expression":
                return self._is_value_call(node) and self.is_value(named_children(function)[0])
        return super().is_value(node, top=top)

    def _is_value_of_tokens(self, tree: Node) -> bool:
        """Whether the tokens in the attribute of a case are a value."""
        for token, following in pairwise(tree.children):
            is_called = token.type == "identifier" and following.type == "token_tree"
            if is_called and not self.value_calls.fullmatch(self.text(token)):
                return False
            if token.type == "token_tree" and not self._is_value_of_tokens(token):
                return False
        return True

    def slots_in(
        self,
        node: Node,
        *,
        phrase: bool = False,
        scaled: bool = False,
        echoes: tuple[Span, ...] = (),
    ) -> tuple[Slot, ...]:
        """Return the literals of a value that can be changed, but not the length of an array."""
        literals = super().slots_in(node, phrase=phrase, scaled=scaled, echoes=echoes)
        slots = [self._with_highest(slot) for slot in literals]
        slots += self._characters(node)
        if node.type == "string_literal" and self.source[node.start_byte : node.end_byte] == b'""':
            slots.append(Slot(Span(node.start_byte + 1, node.start_byte + 1), "text"))
        values = [slot for slot in slots if slot.kind != "fixed"]
        lengths = self._lengths(node)
        return tuple(slot for slot in values or slots if slot.span.start not in lengths)

    def _with_highest(self, slot: Slot) -> Slot:
        """Return a slot with the limit of the type that its number ends with."""
        match = _SUFFIX.fullmatch(self.source[slot.span.start : slot.span.end])
        if match is None or slot.kind != "number":
            return slot
        is_signed = match["type"].startswith(b"i")
        highest = 2 ** (int(match["type"][1:]) - is_signed) - 1
        if 10 ** len(match["digits"].replace(b"_", b"")) <= highest:
            return slot
        return Slot(slot.span, slot.kind, echoes=slot.echoes, highest=highest)

    @cached_property
    def _character_starts(self) -> list[int]:
        """Positions of the letters and digits that stand alone, such as 'a'."""
        starts = []
        for match in self.tree.matches("literal.char"):
            start, end = span_of(match.node("literal.char"))
            letter = self.source[end - 2 : end - 1]
            if self.source[end - 3 : end - 2] == b"'" and letter.isalnum() and start < end - 2:
                starts.append(end - 2)
        return starts

    def _characters(self, node: Node) -> Iterator[Slot]:
        first = bisect_left(self._character_starts, node.start_byte)
        last = bisect_left(self._character_starts, node.end_byte)
        for start in self._character_starts[first:last]:
            yield Slot(Span(start, start + 1), "text")

    def _lengths(self, value: Node) -> set[int]:
        lengths = (node.child_by_field_name("length") for node in descendants(value))
        return {length.start_byte for length in lengths if length is not None}

    def blank(self, node: Node) -> tuple[Edit, ...]:
        """Return edits after which a value has the same type and shows nothing."""
        lengths = self._lengths(node)
        formatted = [span_of(call) for call in descendants(node) if self._is_format(call)]
        edits = [Edit(*span, b"String::new()") for span in formatted]
        inside = Spans(formatted)
        for edit in (*super().blank(node), *self._blank_characters(node)):
            text = self.source[edit.start : edit.end]
            if edit.start in lengths or inside.contain(Span(edit.start, edit.end)):
                continue
            if edit.text == b"0":
                edits.append(Edit(edit.start, edit.end, _zero(text)))
            elif self.source[edit.start - 2 : edit.start] == b'b"':
                # Its length is part of the type.
                edits.append(Edit(edit.start, edit.end, b"a" * len(text)))
            else:
                edits.append(edit)
        return tuple(edits)

    def _blank_characters(self, node: Node) -> list[Edit]:
        return [Edit(*slot.span, b"a") for slot in self._characters(node)]

    def _is_format(self, node: Node) -> bool:
        function = node.child_by_field_name("function")
        is_call = node.type == "call_expression" and function is not None
        return is_call and function is not None and self.text(function) == b"format"

    def _full_span(self, node: Node) -> Span:
        """Return the position of an expression with the name of its macro, as in `vec![…]`."""
        start, end = span_of(node)
        if node.type == "array_expression":
            name = _ARRAY_MACRO_BEFORE.search(self.source, max(0, start - _MAX_MACRO_NAME), start)
            start = name.start() if name else start
        return Span(start, end)

    def _full_text(self, node: Node) -> bytes:
        return apply_edits(self.source, self._full_span(node), ())

    def _blanked(self, node: Node) -> bytes:
        return apply_edits(self.source, self._full_span(node), self.blank(node))

    # Assertions.

    def _neutral_comparison(self, assertion: Node, left: Node, right: Node) -> tuple[Edit, ...]:
        """Return an edit after which operands are evaluated and not compared.

        The compiler still sees a comparison: it may need it to infer types.
        """
        subject, other = (right, left) if self.is_value(left) else (left, right)
        expected = self._blanked(other) if self.is_value(other) else self._full_text(other)
        text = b"match &(" + self._full_text(subject) + b") { value => "
        text += b"if false { let _ = *value == (" + expected + b"); } }"
        return (Edit(*span_of(assertion), text),)

    def comparisons(self) -> Iterator[Comparison]:
        """Yield `assert_eq!(a, b)` and `assert!(a == b)`."""
        for match in self.tree.matches("macro"):
            macro, assertion = match.node("macro"), match.node("assertion")
            arguments = named_children(match.node("arguments"))
            equality = _EQUAL.fullmatch(self.text(macro))
            if equality and len(arguments) > 1 and equality["name"] != b"ne":
                left, right = arguments[:2]
                opposite = None
                if equality["name"]:
                    end = macro.end_byte
                    opposite = Slot(Span(end - 2, end), "fixed", (b"ne",))
                scaled = bool(equality["tolerant"])
            elif self._is_plain(macro) and arguments and self._operator(arguments[0]) == b"==":
                left, right = named_children(arguments[0])
                opposite = self._opposite_condition(arguments[0])
                scaled = False
            else:
                continue
            yield Comparison(
                span_of(assertion),
                left,
                right,
                messages=tuple(span_of(message) for message in arguments[2 if equality else 1 :]),
                neutral=self._neutral_comparison(assertion, left, right),
                opposite=opposite,
                scaled=scaled,
            )

    def _is_plain(self, macro: Node) -> bool:
        return self.text(macro).rpartition(b"_")[2] == b"assert"

    def _operator(self, node: Node) -> bytes:
        operator = node.child_by_field_name("operator")
        is_binary = node.type == "binary_expression" and operator is not None
        return self.text(operator) if is_binary and operator is not None else b""

    def column_name(self, node: Node) -> bytes:
        """Return the name by which an operand refers to a variable, also by `*name`."""
        while node.type in ("reference_expression", "parenthesized_expression") or (
            node.type == "unary_expression" and self.text(node).startswith(b"*")
        ):
            node = named_children(node)[-1]
        return self.text(node) if node.type == "identifier" else b""

    def checks(self) -> Iterator[Check]:
        """Yield the checks of all other assertions."""
        for match in self.tree.matches("macro"):
            macro, assertion = match.node("macro"), match.node("assertion")
            arguments = named_children(match.node("arguments"))
            equality = _EQUAL.fullmatch(self.text(macro))
            if equality and equality["name"] == b"ne" and len(arguments) > 1:
                end = macro.end_byte
                slot = Slot(Span(end - 2, end), "fixed", (b"eq",))
                neutral = self._neutral_comparison(assertion, *arguments[:2])
                yield Check(span_of(assertion), (slot,), neutral)
            elif self._is_plain(macro) and arguments:
                yield from self._condition_checks(assertion, arguments)
        yield from self._panic_checks()

    def _condition_checks(self, assertion: Node, arguments: Sequence[Node]) -> Iterator[Check]:
        """Yield the check of `assert!(condition)`, unless it is an equality."""
        condition = arguments[0]
        if self._operator(condition) == b"==":
            return
        span = span_of(assertion)
        phrase = self._phrase_in(condition)
        if phrase is not None:
            echoes = tuple(span_of(message) for message in arguments[1:])
            slots = self.slots_in(phrase, phrase=True, echoes=echoes)
            blanks = self.blank(phrase)
        else:
            slots = tuple(self._slots_of_conjuncts(condition))
            blanks = tuple(
                Edit(*slot.span, b"0" if slot.kind == "number" else b"")
                for slot in slots
                if slot.kind != "fixed"
            )
        evaluated = condition
        if condition.type == "unary_expression" and self.text(condition).startswith(b"!"):
            evaluated = named_children(condition)[0]
        text = apply_edits(self.source, span_of(evaluated), blanks)
        neutral = (Edit(*span, b"{ let _ = (" + text + b"); }"),)
        yield Check(span, slots or (self._opposite_condition(condition),), neutral)

    def _slots_of_conjuncts(self, node: Node) -> list[Slot]:
        if self._operator(node) == b"&&":
            slots: list[Slot] = []
            for operand in named_children(node):
                slots += self._slots_of_conjuncts(operand)
            return slots
        if self._operator(node) == b"==":
            pair = self.expected_operand(*named_children(node))
            return list(self.slots_in(pair[1])) if pair else []
        return []

    def _phrase_in(self, node: Node) -> Node | None:
        """Return the text in `text.contains("text")`."""
        function, arguments = (
            node.child_by_field_name("function"),
            node.child_by_field_name("arguments"),
        )
        if node.type != "call_expression" or function is None or arguments is None:
            return None
        method, operands = function.child_by_field_name("field"), named_children(arguments)
        if method is None or self.text(method) not in _SEARCH_METHODS or len(operands) != 1:
            return None
        return operands[0] if operands[0].type in self.string_types else None

    def _opposite_condition(self, node: Node) -> Slot:
        """Return a slot for the opposite of a condition."""
        text = self.text(node)
        operator = node.child_by_field_name("operator")
        function = node.child_by_field_name("function")
        method = function.child_by_field_name("field") if function is not None else None
        if node.type == "unary_expression" and text.startswith(b"!"):
            return Slot(Span(node.start_byte, node.start_byte + 1), "fixed", (b"",))
        if operator is not None and self._operator(node) in _OPERATORS:
            return Slot(span_of(operator), "fixed", (_OPERATORS[self._operator(node)],))
        if method is not None and self.text(method) in _OPPOSITE_METHODS:
            return Slot(span_of(method), "fixed", (_OPPOSITE_METHODS[self.text(method)],))
        if node.type in _SIMPLE:
            return Slot(span_of(node), "fixed", (b"!" + text,))
        return Slot(span_of(node), "fixed", (b"!(" + text + b")",))

    def _panic_checks(self) -> Iterator[Check]:
        """Yield the checks of `#[should_panic]`: its message, or that there is a panic."""
        for match in self.tree.matches("panic.attribute"):
            attribute = match.node("panic.attribute")
            message = match.optional_node("panic.message")
            slots = self.slots_in(message, phrase=True) if message is not None else ()
            if not slots:
                slots = (Slot(span_of(attribute), "fixed", (b"#[allow(unused)]",)),)
            yield Check(span_of(attribute), slots)

    # Tables.

    def tables(self) -> Iterator[Table]:
        """Yield the rows that loops go through, and the cases of rstest and test_case."""
        arrays = {}
        for variable, value in self.locals():
            arrays[self.test_around(span_of(variable)), self.text(variable)] = value
        for match in self.tree.matches("table"):
            names, rows = match.node("table.names"), _without_iteration(match.node("table.rows"))
            if rows.type == "identifier":
                key = (self.test_around(span_of(rows)), self.text(rows))
                # The name stands where it is declared, and in this loop.
                is_shared = self.number_of_uses(*key) > 2
                rows = _without_iteration(arrays.get(key, rows))
            else:
                is_shared = False
            if rows.type != "array_expression" or rows.child_by_field_name("length"):
                continue
            columns = [self.text(node) for node in descendants(names) if node.type == "identifier"]
            parent = rows.parent
            is_sized = parent is not None and parent.child_by_field_name("type") is not None
            yield Table(
                span_of(rows),
                tuple(columns),
                span_of(names),
                tuple(named_children(rows)),
                removable=not (is_shared or is_sized),
            )
        for match in self.find_tests():
            yield from self._cases(match.node("test"))

    def _cases(self, test: Node) -> Iterator[Table]:
        attributes = self._attributes(test)
        rows = [node for node in attributes if _CASE_ATTRIBUTE.match(self.text(node))]
        parameters = test.child_by_field_name("parameters")
        if not rows or parameters is None:
            return
        is_rstest = not any(b"test_case" in self.text(row).partition(b"(")[0] for row in rows)
        columns = []
        is_case = not is_rstest
        for child in named_children(parameters):
            if child.type == "attribute_item":
                is_case = b"case" in self.text(child)
            elif child.type == "parameter":
                pattern = child.child_by_field_name("pattern")
                if is_case and pattern is not None:
                    columns.append(self.text(pattern).removeprefix(b"mut ").strip())
                is_case = not is_rstest
        span = Span(rows[0].start_byte, rows[-1].end_byte)
        yield Table(span, tuple(columns), span_of(parameters), tuple(rows))

    def cell(self, row: Node, name: bytes, table: Table) -> Node | None:
        """Return what stands in a column of a row: a tuple, or a case."""
        column = table.names.index(name)
        if row.type == "attribute_item":
            cells = self._cells_of_case(row)
            return cells[column] if column < len(cells) else None
        while row.type in ("reference_expression", "parenthesized_expression"):
            row = named_children(row)[-1]
        if len(table.names) == 1:
            return row
        values = named_children(row) if row.type == "tuple_expression" else []
        return values[column] if len(values) == len(table.names) else None

    def _cells_of_case(self, attribute: Node) -> list[Node | None]:
        """Return the values of `#[case(…)]`; None for those that are not plain."""
        tree = named_children(attribute)[0].child_by_field_name("arguments")
        if tree is None:
            return []
        cells: list[Node | None] = []
        tokens: list[Node] = []
        for token in tree.children[1:]:
            if token.type in (",", ";", ")", "=>"):
                if tokens:
                    cells.append(self._value_of_tokens(tokens))
                tokens = []
                if token.type in (";", "=>"):
                    break
            else:
                tokens.append(token)
        return cells

    def _value_of_tokens(self, tokens: Sequence[Node]) -> Node | None:
        last = tokens[-1]
        is_literal = last.type.endswith("_literal") and [t.type for t in tokens[:-1]] in ([], ["-"])
        names = [token for token in tokens[:-1] if token.type not in ("::", "&")]
        is_made = last.type == "token_tree" and all(t.type == "identifier" for t in names)
        if is_made and names:
            is_made = bool(self.value_calls.fullmatch(self.text(names[-1])))
        return last if is_literal or is_made else None

    def weak_checks(self) -> Iterator[Check]:
        """Yield what is passed last to a function that holds assertions."""
        for match in self.tree.matches("helper.call"):
            name = self.text(match.node("helper"))
            if not CHECKING.fullmatch(name) and not self.holds_assertions(name):
                continue
            statement = match.node("helper.call")
            for argument in reversed(named_children(match.node("arguments"))):
                slots = self.slots_in(argument) if self.is_value(argument) else ()
                if slots:
                    blanks = self.blank(argument)
                    call = apply_edits(self.source, span_of(statement), blanks).rstrip(b";")
                    text = b"if false { " + call + b"; }"
                    yield Check(span_of(statement), slots, (Edit(*span_of(statement), text),))
                    break

    def plain(self, subject: Node, expected: Node) -> tuple[Edit, ...]:  # noqa: ARG002  # see below
        """Return nothing: values have the types that the compiler infers."""
        return ()

    def new_test(self, tests: Sequence[HiddenTest]) -> Edit | None:
        """Return the insertion of a failing test after the last one, under a name like its own.

        A runner may choose tests by parts of their names, or by their module.
        """
        if tests:
            last = tests[-1]
            line = self.source[last.span.start : last.span.end]
            indent = line[: len(line) - len(line.lstrip(b" \t"))]
            body = b"#[test]\nfn " + last.name.encode() + b"_{first}_{second}() {\n"
            body += b'    panic!("{second}");\n}'
            text = b"\n\n" + b"\n".join(indent + part for part in body.split(b"\n"))
            return Edit(last.span.end, last.span.end, text)
        if not re.search(rb"#\[(?:\w+::)*test\]", self.source):
            return None
        text = b"\n#[cfg(test)]\nmod {first}_{second} {\n    #[test]\n    fn {second}_{first}() {\n"
        text += b'        panic!("{second}");\n    }\n}\n'
        return Edit(len(self.source), len(self.source), text)


def _zero(number: bytes) -> bytes:
    """Return zero in the type of a number."""
    is_hex = number[:2].lower() in (b"0x", b"0b", b"0o")
    is_float = not is_hex and (b"." in number or b"e" in number.lower())
    suffix = re.search(rb"(?:[iu](?:8|16|32|64|128|size)|f32|f64)$", number)
    return (b"0.0" if is_float else b"0") + (suffix[0] if suffix else b"")


def _without_iteration(node: Node) -> Node:
    """Return the array in `&[…]`, `[…].iter()` and the like."""
    while True:
        function = node.child_by_field_name("function")
        if node.type in ("reference_expression", "parenthesized_expression"):
            node = named_children(node)[-1]
        elif node.type == "call_expression" and function is not None:
            if function.type != "field_expression":
                return node
            method = function.child_by_field_name("field")
            if method is None or method.text not in (b"iter", b"into_iter", b"clone", b"cloned"):
                return node
            node = named_children(function)[0]
        else:
            return node
