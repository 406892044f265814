"""The tree that a template is parsed into. A node writes its text to a list of strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .context import Context
from .expressions import Expression
from .filters import to_text


class Node(Protocol):
    """A part of a template."""

    def render(self, context: Context, output: list[str]) -> None: ...


@dataclass(frozen=True)
class TextNode:
    text: str

    def render(self, context: Context, output: list[str]) -> None:
        output.append(self.text)


@dataclass(frozen=True)
class PrintNode:
    expression: Expression

    def render(self, context: Context, output: list[str]) -> None:
        output.append(to_text(self.expression.evaluate(context)))


@dataclass(frozen=True)
class SetNode:
    name: str
    expression: Expression

    def render(self, context: Context, output: list[str]) -> None:
        context.assign(self.name, self.expression.evaluate(context))


@dataclass(frozen=True)
class IfNode:
    """Branches in order, each a condition and a body; `else` is a branch without a condition."""

    branches: tuple[tuple[Expression | None, tuple[Node, ...]], ...]

    def render(self, context: Context, output: list[str]) -> None:
        for condition, body in self.branches:
            if condition is None or condition.evaluate(context):
                render_all(body, context, output)
                return


@dataclass(frozen=True)
class ForNode:
    """Renders its body once per item, in a scope of its own."""

    target: str
    iterable: Expression
    body: tuple[Node, ...]

    def render(self, context: Context, output: list[str]) -> None:
        items: Any = self.iterable.evaluate(context)
        if items is None:
            items = ()
        for item in items:
            context.push()
            context.assign(self.target, item)
            render_all(self.body, context, output)
            context.pop()


def render_all(nodes: tuple[Node, ...], context: Context, output: list[str]) -> None:
    """Render nodes one after the other."""
    for node in nodes:
        node.render(context, output)
