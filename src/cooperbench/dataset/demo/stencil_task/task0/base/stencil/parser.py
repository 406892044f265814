"""Builds the tree of nodes from tokens."""

from __future__ import annotations

import re
from typing import Callable, Iterable

from .errors import TemplateSyntaxError
from .expressions import Expression, parse_expression
from .filters import Filter
from .lexer import PRINT, TEXT, Token
from .nodes import ForNode, IfNode, Node, PrintNode, SetNode, TextNode

_FOR = re.compile(r"(?P<target>[A-Za-z_]\w*)\s+in\s+(?P<iterable>.+)", re.DOTALL)
_SET = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*=(?!=)\s*(?P<value>.+)", re.DOTALL)


class Parser:
    """One pass over the tokens of one template."""

    def __init__(self, tokens: Iterable[Token], filters: dict[str, Filter]) -> None:
        self._tokens = list(tokens)
        self._filters = filters
        self._position = 0
        self._block_tags: dict[str, Callable[[str, Token], Node]] = {
            "if": self._parse_if,
            "for": self._parse_for,
            "set": self._parse_set,
        }

    def parse(self) -> tuple[Node, ...]:
        """The nodes of the whole template."""
        nodes, closing, _ = self._parse_until(())
        assert closing is None
        return nodes

    def _parse_until(
        self, closers: tuple[str, ...], opened_by: Token | None = None
    ) -> tuple[tuple[Node, ...], str | None, str]:
        """Nodes up to the first tag of `closers`, that tag's word, and the rest of that tag."""
        nodes: list[Node] = []
        while self._position < len(self._tokens):
            token = self._tokens[self._position]
            self._position += 1
            if token.kind == TEXT:
                nodes.append(TextNode(token.value))
                continue
            if token.kind == PRINT:
                nodes.append(PrintNode(self._expression(token.value, token)))
                continue
            word, _, rest = token.value.partition(" ")
            if word in closers:
                return tuple(nodes), word, rest.strip()
            if word not in self._block_tags:
                raise TemplateSyntaxError(f"unexpected tag {word!r}", token.line)
            nodes.append(self._block_tags[word](rest.strip(), token))
        if opened_by is not None:
            raise TemplateSyntaxError(f"{{% {opened_by.value} %}} is never ended", opened_by.line)
        return tuple(nodes), None, ""

    def _expression(self, source: str, token: Token) -> Expression:
        if not source:
            raise TemplateSyntaxError("an expression is missing", token.line)
        return parse_expression(source, self._filters, token.line)

    def _parse_if(self, rest: str, token: Token) -> Node:
        branches: list[tuple[Expression | None, tuple[Node, ...]]] = []
        condition: Expression | None = self._expression(rest, token)
        while True:
            closers = ("endif",) if condition is None else ("elif", "else", "endif")
            body, closing, closing_rest = self._parse_until(closers, opened_by=token)
            branches.append((condition, body))
            if closing == "endif":
                return IfNode(tuple(branches))
            condition = self._expression(closing_rest, token) if closing == "elif" else None

    def _parse_for(self, rest: str, token: Token) -> Node:
        match = _FOR.fullmatch(rest)
        if match is None:
            raise TemplateSyntaxError("expected {% for name in expression %}", token.line)
        iterable = self._expression(match["iterable"], token)
        body, _, _ = self._parse_until(("endfor",), opened_by=token)
        return ForNode(match["target"], iterable, body)

    def _parse_set(self, rest: str, token: Token) -> Node:
        match = _SET.fullmatch(rest)
        if match is None:
            raise TemplateSyntaxError("expected {% set name = expression %}", token.line)
        return SetNode(match["name"], self._expression(match["value"], token))
