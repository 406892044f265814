"""Values, variables and tables in Go tests.

The files are compiled, and Go rejects variables and imports that nothing uses. So a check that is
made neutral still mentions the variables in it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property

from tree_sitter import Node

from cooperbench.eval.canaries.model import Edit, NameStyle, Slot, Span
from cooperbench.eval.canaries.reader import Reader, Table
from cooperbench.eval.canaries.syntax import descendants, named_children, span_of

_VALUE_CALLS = re.compile(
    rb"""
      u?int(?:8|16|32|64)? | float(?:32|64) | string | byte | rune | bool
    | New(?:Int|Float) | Date | Duration | RawMessage
    | (?: \w* (?: Ptr | Pointer ) | ptr | To )
    """,
    re.VERBOSE,
)
_SMALL_TYPES = {b"uint8": 255, b"byte": 255, b"int8": 127, b"uint16": 65535, b"int16": 32767}
_PACKAGE_NAME = re.compile(rb"[a-z]\w*\.[A-Z]\w*")


class GoValues(Reader):
    """The part of a reader of Go tests that knows values, variables and tables."""

    name_style: NameStyle = "camel"
    is_compiled = True
    value_types = frozenset(
        {
            *("literal_value", "literal_element", "keyed_element", "unary_expression"),
            *("parenthesized_expression", "binary_expression", "nil"),
        }
    )
    string_types = frozenset({"interpreted_string_literal", "raw_string_literal", "rune_literal"})
    name_types = frozenset({"identifier", "selector_expression"})
    call_type = "call_expression"
    value_calls = _VALUE_CALLS

    @cached_property
    def _runes(self) -> list[int]:
        return [
            match.node("literal.rune").start_byte for match in self.tree.matches("literal.rune")
        ]

    def is_class_like(self, node: Node) -> bool:  # noqa: ARG002  # of the same form everywhere
        """Return False: no type can change what `==` does."""
        return False

    def is_value(self, node: Node, *, top: bool = True) -> bool:
        """Whether an expression is written down as a value."""
        if node.type == "nil":
            return not top
        if node.type == "composite_literal":
            body = node.child_by_field_name("body")
            return body is not None and self.is_value(body)
        if node.type == "type_conversion_expression":
            operand = node.child_by_field_name("operand")
            return operand is not None and self.is_value(operand)
        if node.type == "unary_expression" and self.text(node)[:1] not in b"-+&^":
            return False
        if node.type == "binary_expression":
            return all(self._is_constant(operand) for operand in named_children(node))
        return super().is_value(node, top=top)

    def _is_constant(self, node: Node) -> bool:
        if node.type == "selector_expression":
            return bool(_PACKAGE_NAME.fullmatch(self.text(node)))
        return self.is_value(node)

    def slots_in(
        self,
        node: Node,
        *,
        phrase: bool = False,
        scaled: bool = False,
        echoes: tuple[Span, ...] = (),
    ) -> tuple[Slot, ...]:
        """Return the literals of a value that can be changed, but not keys and sizes of types."""
        literals = super().slots_in(node, phrase=phrase, scaled=scaled, echoes=echoes)
        slots = [self._with_highest(slot, node) for slot in literals]
        slots += self._rune_slots(node)
        slots += self._empty_texts(node)
        values = [slot for slot in slots if slot.kind != "fixed"]
        fixed_parts = self._fixed_parts(node)
        return tuple(slot for slot in values or slots if slot.span.start not in fixed_parts)

    def _with_highest(self, slot: Slot, value: Node) -> Slot:
        """Return a slot with the limit of the type to which its number is converted."""
        parent = value.descendant_for_byte_range(*slot.span)
        while (
            parent is not None and slot.kind == "number" and parent.start_byte >= value.start_byte
        ):
            function = parent.child_by_field_name("function")
            if parent.type == "call_expression" and function is not None:
                highest = _SMALL_TYPES.get(self.text(function))
                return Slot(slot.span, slot.kind, echoes=slot.echoes, highest=highest)
            parent = parent.parent
        return slot

    def _rune_slots(self, node: Node) -> Iterator[Slot]:
        first = bisect_left(self._runes, node.start_byte)
        for start in self._runes[first : bisect_left(self._runes, node.end_byte)]:
            if self.source[start + 1 : start + 2].isalnum() and self.source[start + 2] == ord("'"):
                yield Slot(Span(start + 1, start + 2), "text")

    def _empty_texts(self, node: Node) -> Iterator[Slot]:
        """Yield slots for strings without content, which only other strings can replace."""
        if node.type in ("interpreted_string_literal", "raw_string_literal"):
            start, end = span_of(node)
            if end - start == 2:  # only the quotes
                yield Slot(Span(start + 1, end - 1), "text")

    def _fixed_parts(self, value: Node) -> set[int]:
        """Return the positions of literals that are keys or sizes: equal keys do not compile."""
        positions: set[int] = set()
        for node in descendants(value):
            key = node.child_by_field_name("key") if node.type == "keyed_element" else None
            if node.type in ("array_type", "map_type", "slice_type", "struct_type"):
                key = node
            if key is not None:
                positions.update(range(key.start_byte, key.end_byte))
        return positions

    def blank(self, node: Node) -> tuple[Edit, ...]:
        """Return edits after which a value has the same type and shows nothing."""
        literal = node
        while literal.type in ("unary_expression", "parenthesized_expression"):
            literal = named_children(literal)[0]
        body = literal.child_by_field_name("body") if literal.type == "composite_literal" else None
        if body is not None and not self.kept_names(body):
            return (Edit(*span_of(body), b"{}"),)
        fixed_parts = self._fixed_parts(node)
        edits = [edit for edit in super().blank(node) if edit.start not in fixed_parts]
        is_number = [edit.text == b"0" for edit in edits]
        return tuple(
            Edit(edit.start, edit.end, b"0.0")
            if number and b"." in self.source[edit.start : edit.end]
            else edit
            for edit, number in zip(edits, is_number, strict=True)
        )

    # Variables, which have to be used.

    @cached_property
    def _declarations(self) -> dict[bytes, list[int]]:
        """Positions at which variables are declared, by name."""
        declarations: dict[bytes, list[int]] = {}
        for match in self.tree.matches("declared"):
            for node in match.captures["declared"]:
                declarations.setdefault(self.text(node), []).append(node.start_byte)
        return {name: sorted(positions) for name, positions in declarations.items()}

    def kept_names(self, *nodes: Node) -> list[bytes]:
        """Return the variables that these nodes use, and that are declared before them."""
        names: list[bytes] = []
        for node in nodes:
            test = self.test_around(span_of(node))
            for part in descendants(node):
                name = self.text(part)
                if part.type != "identifier" or name in names or name == b"_" or test is None:
                    continue
                if _is_key(part):
                    continue
                positions = self._declarations.get(name, [])
                first = bisect_left(positions, test.start)
                if first < len(positions) and positions[first] < node.start_byte:
                    names.append(name)
        return names

    def used(self, subjects: Sequence[Node], *nodes: Node) -> bytes:
        """Return expressions that evaluate the subjects and use all variables in the nodes."""
        names = self.kept_names(*nodes)
        texts = [self.text(node) for node in subjects]
        texts = [text for text in texts if text not in names]
        return b", ".join([*texts, *names])

    def neutral_call(self, call: Node, subjects: Sequence[Node], result: bytes) -> Edit:
        """Return an edit after which a call evaluates its operands, and returns a constant."""
        arguments = self.used(subjects, call)
        if result:
            kind = b"string" if result == b'""' else b"bool"
            text = b"func(...interface{}) " + kind + b" { return " + result + b" }"
        else:
            text = b"func(...interface{}) {}"
        return Edit(*span_of(call), text + b"(" + arguments + b")")

    # Tables and variables.

    def locals(self) -> Iterator[tuple[Node, Node]]:
        """Yield the names and values of variables that are declared with their values."""
        for match in self.tree.matches("local.names"):
            names = match.node("local.names")
            values = named_children(match.node("local.values"))
            variables = named_children(names) if names.type == "expression_list" else [names]
            if len(variables) == len(values):
                yield from zip(variables, values, strict=True)

    @cached_property
    def _struct_fields(self) -> dict[bytes, tuple[bytes, ...]]:
        """Names of the fields of the types of the file."""
        fields = {}
        for match in self.tree.matches("type.fields"):
            name = self.text(match.node("type.name"))
            fields[name] = self._fields_of(match.node("type.fields"))
        return fields

    def _fields_of(self, struct: Node) -> tuple[bytes, ...]:
        names: list[bytes] = []
        for field in named_children(named_children(struct)[0]):
            names += map(self.text, field.children_by_field_name("name"))
        return tuple(names)

    def tables(self) -> Iterator[Table]:
        """Yield the rows that loops go through."""
        for match in self.tree.matches("range"):
            names, values = match.node("range.names"), match.node("range.values")
            literal, is_shared = values, False
            if values.type == "identifier":
                key = (self.test_around(span_of(values)), self.text(values))
                literal = self._literals.get(key, values)
                # The name stands where it is declared, and in this loop.
                is_shared = self.number_of_uses(*key) > 2
            variables = named_children(names)
            if literal.type == "composite_literal" and len(variables) == 2:
                variable = self.text(variables[1])
                table = self._table(names, variable, literal, is_shared=is_shared)
                if table:
                    yield table

    @cached_property
    def _literals(self) -> dict[tuple[Span | None, bytes], Node]:
        """Literals with several values, by test and the name of the variable."""
        literals = {}
        for variable, value in self.locals():
            if value.type == "composite_literal":
                literals[self.test_around(span_of(variable)), self.text(variable)] = value
        return literals

    def _table(
        self, names: Node, variable: bytes, literal: Node, *, is_shared: bool
    ) -> Table | None:
        kind, body = literal.child_by_field_name("type"), literal.child_by_field_name("body")
        if (
            kind is None
            or body is None
            or kind.type not in ("slice_type", "array_type", "map_type")
        ):
            return None
        element = kind.child_by_field_name("element") or kind.child_by_field_name("value")
        while element is not None and element.type == "pointer_type":
            element = named_children(element)[0]
        if element is None:
            return None
        if element.type == "struct_type":
            fields = self._fields_of(element)
        else:
            fields = self._struct_fields.get(self.text(element), ())
        columns = tuple(variable + b"." + field for field in fields) or (variable,)
        rows = tuple(named_children(body))
        is_sized = kind.type == "array_type"
        removable = not (is_sized or is_shared) and not any(map(self.kept_names, rows))
        return Table(span_of(literal), columns, span_of(names), rows, removable=removable)

    def cell(self, row: Node, name: bytes, table: Table) -> Node | None:
        """Return what stands in a column of a row: by position, or by the name of a field."""
        element = row.child_by_field_name("value") if row.type == "keyed_element" else row
        value = named_children(element)[0] if element and named_children(element) else None
        if value is None or table.names == (name,):
            return value if b"." not in name else None
        while value.type in ("unary_expression", "composite_literal"):
            inner = value.child_by_field_name("operand") or value.child_by_field_name("body")
            if inner is None:
                return None
            value = inner
        if value.type != "literal_value":
            return None
        cells = named_children(value)
        field = name.rpartition(b".")[2]
        for cell in cells:
            if cell.type == "keyed_element":
                key, inner = cell.child_by_field_name("key"), cell.child_by_field_name("value")
                if key is not None and inner is not None and self.text(key) == field:
                    return named_children(inner)[0]
        index = table.names.index(name)
        if index < len(cells) and cells[index].type == "literal_element":
            return named_children(cells[index])[0]
        return None


def _is_key(node: Node) -> bool:
    """Whether a name stands before a colon in a literal: it is a field, or a key."""
    element = node.parent
    pair = element.parent if element is not None else None
    if element is None or pair is None or pair.type != "keyed_element":
        return False
    key = pair.child_by_field_name("key")
    return key is not None and key.id == element.id
