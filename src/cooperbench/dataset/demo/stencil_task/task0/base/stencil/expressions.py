"""Expressions: literals, dotted names, filters, comparisons and logic.

    or_expression   = and_expression ("or" and_expression)*
    and_expression  = not_expression ("and" not_expression)*
    not_expression  = "not" not_expression | comparison
    comparison      = filtered (("==" | "!=" | "<" | "<=" | ">" | ">=" | "in") filtered)?
    filtered        = atom ("|" name (":" atom ("," atom)*)?)*
    atom            = string | number | dotted name | "(" or_expression ")"
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from .context import Context
from .errors import TemplateSyntaxError
from .filters import Filter, apply_filter

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"[^"]*"|'[^']*')
    | (?P<number>-?\d+(?:\.\d+)?)
    | (?P<name>[A-Za-z_]\w*(?:\.\w+)*)
    | (?P<operator>==|!=|<=|>=|[<>|:,()])
    )""",
    re.VERBOSE,
)
_CONSTANTS = {"true": True, "false": False, "none": None}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda item, items: item in (items or ()),
}


class Expression(Protocol):
    """Anything that has a value in a context."""

    def evaluate(self, context: Context) -> Any: ...


@dataclass(frozen=True)
class Literal:
    value: Any

    def evaluate(self, context: Context) -> Any:
        return self.value


@dataclass(frozen=True)
class Name:
    parts: tuple[str, ...]

    def evaluate(self, context: Context) -> Any:
        return context.resolve(self.parts)


@dataclass(frozen=True)
class Filtered:
    operand: Expression
    name: str
    arguments: tuple[Expression, ...]
    filters: dict[str, Filter]

    def evaluate(self, context: Context) -> Any:
        arguments = [argument.evaluate(context) for argument in self.arguments]
        return apply_filter(self.filters, self.name, self.operand.evaluate(context), arguments)


@dataclass(frozen=True)
class Comparison:
    sign: str
    left: Expression
    right: Expression

    def evaluate(self, context: Context) -> Any:
        return _COMPARISONS[self.sign](self.left.evaluate(context), self.right.evaluate(context))


@dataclass(frozen=True)
class Logic:
    """`and` and `or`; the right side is not evaluated where the left decides."""

    word: str
    left: Expression
    right: Expression

    def evaluate(self, context: Context) -> Any:
        left = self.left.evaluate(context)
        if bool(left) == (self.word == "or"):
            return left
        return self.right.evaluate(context)


@dataclass(frozen=True)
class Not:
    operand: Expression

    def evaluate(self, context: Context) -> Any:
        return not self.operand.evaluate(context)


def parse_expression(source: str, filters: dict[str, Filter], line: int | None = None) -> Expression:
    """Understand the whole of `source` as one expression."""
    parser = _ExpressionParser(source, filters, line)
    expression = parser.parse_or()
    parser.expect_end()
    return expression


class _ExpressionParser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, source: str, filters: dict[str, Filter], line: int | None) -> None:
        self._source = source
        self._filters = filters
        self._line = line
        self._tokens = self._split()
        self._position = 0

    def _split(self) -> list[tuple[str, str]]:
        tokens = []
        position = 0
        text = self._source.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"unexpected {text[position:].strip()[:1]!r}")
            kind = str(match.lastgroup)
            tokens.append((kind, match.group(kind)))
            position = match.end()
        return tokens

    def _error(self, message: str) -> TemplateSyntaxError:
        return TemplateSyntaxError(f"{message} in {self._source!r}", self._line)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._position] if self._position < len(self._tokens) else ("end", "")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        self._position += 1
        return token

    def _accept(self, *values: str) -> str | None:
        kind, value = self._peek()
        if kind in ("operator", "name") and value in values:
            self._position += 1
            return value
        return None

    def expect_end(self) -> None:
        kind, value = self._peek()
        if kind != "end":
            raise self._error(f"unexpected {value!r}")

    def parse_or(self) -> Expression:
        left = self._parse_and()
        while self._accept("or"):
            left = Logic("or", left, self._parse_and())
        return left

    def _parse_and(self) -> Expression:
        left = self._parse_not()
        while self._accept("and"):
            left = Logic("and", left, self._parse_not())
        return left

    def _parse_not(self) -> Expression:
        if self._accept("not"):
            return Not(self._parse_not())
        return self._parse_comparison()

    def _parse_comparison(self) -> Expression:
        left = self._parse_filtered()
        sign = self._accept(*_COMPARISONS)
        return left if sign is None else Comparison(sign, left, self._parse_filtered())

    def _parse_filtered(self) -> Expression:
        value = self._parse_atom()
        while self._accept("|"):
            kind, name = self._take()
            if kind != "name":
                raise self._error("a filter's name must follow '|'")
            arguments = []
            if self._accept(":"):
                arguments.append(self._parse_atom())
                while self._accept(","):
                    arguments.append(self._parse_atom())
            value = Filtered(value, name, tuple(arguments), self._filters)
        return value

    def _parse_atom(self) -> Expression:
        kind, value = self._take()
        if kind == "string":
            return Literal(value[1:-1])
        if kind == "number":
            return Literal(float(value) if "." in value else int(value))
        if kind == "name":
            return Literal(_CONSTANTS[value]) if value in _CONSTANTS else Name(tuple(value.split(".")))
        if value == "(":
            inner = self.parse_or()
            if not self._accept(")"):
                raise self._error("missing ')'")
            return inner
        raise self._error(f"unexpected {value!r}" if value else "something is missing")
