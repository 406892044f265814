"""Syntax trees of test files, and the matches of a language's query in them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from importlib import import_module, resources
from typing import NamedTuple

from tree_sitter import Language, Node, Parser, Query, QueryCursor

from cooperbench.eval.canaries.model import Span

_GRAMMARS = {
    "python": ("tree_sitter_python", "language", "python"),
    "javascript": ("tree_sitter_javascript", "language", "javascript"),
    "typescript": ("tree_sitter_typescript", "language_typescript", "javascript"),
    "tsx": ("tree_sitter_typescript", "language_tsx", "javascript"),
    "go": ("tree_sitter_go", "language", "go"),
    "rust": ("tree_sitter_rust", "language", "rust"),
}
"""By grammar: its module, the function that returns it, and the query file."""


class Match(NamedTuple):
    """A match of a pattern of a query."""

    kind: str
    """Set by the pattern with `#set! kind`; empty otherwise."""
    captures: dict[str, list[Node]]

    def node(self, name: str) -> Node:
        """Return the node with a capture name that the pattern always has."""
        return self.captures[name][0]

    def optional_node(self, name: str) -> Node | None:
        """Return the node with a capture name, if there is one."""
        nodes = self.captures.get(name)
        return nodes[0] if nodes else None


@cache
def load_grammar(grammar: str) -> tuple[Language, Query]:
    """Return a grammar, and the query for test files in it."""
    module, function, query_name = _GRAMMARS[grammar]
    language = Language(getattr(import_module(module), function)())
    folder = resources.files("cooperbench.eval.canaries").joinpath("queries")
    text = folder.joinpath(f"{query_name}.scm").read_text()
    return language, Query(language, text)


def parse(source: bytes, grammar: str) -> Node:
    """Return the root of the syntax tree of a file."""
    return Parser(load_grammar(grammar)[0]).parse(source).root_node


class SyntaxTree:
    """A parsed file."""

    def __init__(self, source: bytes, grammar: str, *, text: bytes | None = None) -> None:
        """Parse a file.

        Args:
            source: What is parsed.
            grammar: The name of the language.
            text: What the file really contains, with everything at the same position.
        """
        query = load_grammar(grammar)[1]
        self.source = source if text is None else text
        self.root = parse(source, grammar)
        self._matches: dict[str, list[Match]] = {}
        for pattern, captures in QueryCursor(query).matches(self.root):
            kind = str(query.pattern_settings(pattern).get("kind") or "")
            match = Match(kind, captures)
            for name in captures:
                self._matches.setdefault(name, []).append(match)

    def matches(self, capture: str) -> list[Match]:
        """Return the matches that have a capture, each once, by position of the captured node."""
        matches = self._matches.get(capture, [])
        return sorted(matches, key=lambda match: match.node(capture).start_byte)

    def text(self, node: Node) -> bytes:
        """Return the source text of a node."""
        return self.source[node.start_byte : node.end_byte]


class Captures:
    """Nodes of one capture, which can be looked up by position."""

    def __init__(self, tree: SyntaxTree, capture: str) -> None:
        unique = {match.node(capture).id: match.node(capture) for match in tree.matches(capture)}
        self.nodes = sorted(unique.values(), key=lambda node: node.start_byte)
        self._starts = [node.start_byte for node in self.nodes]

    def within(self, span: Span) -> Iterator[Node]:
        """Yield the nodes in a part of the file."""
        for index in range(bisect_left(self._starts, span.start), len(self.nodes)):
            node = self.nodes[index]
            if node.start_byte >= span.end:
                return
            if node.end_byte <= span.end:
                yield node


def span_of(node: Node) -> Span:
    """Return the position of a node."""
    return Span(node.start_byte, node.end_byte)


def named_children(node: Node) -> list[Node]:
    """Return the children of a node that are not punctuation or comments."""
    return [child for child in node.named_children if "comment" not in child.type]


def descendants(node: Node) -> Iterator[Node]:
    """Yield a node and everything below it."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending += reversed(current.children)


def removal(element: Node, source: bytes) -> Span:
    """Return the part of a file to remove with an element of a list: also the comma after it."""
    end = element.end_byte
    following = element.next_sibling
    if following is not None and following.type == ",":
        end = following.end_byte
    start = element.start_byte
    line_start = source.rfind(b"\n", 0, start) + 1
    rest_of_line = source.find(b"\n", end)
    is_whole_line = not source[line_start:start].strip() and not source[end:rest_of_line].strip()
    if is_whole_line and rest_of_line >= 0:
        return Span(line_start, rest_of_line + 1)
    return Span(start, end)
