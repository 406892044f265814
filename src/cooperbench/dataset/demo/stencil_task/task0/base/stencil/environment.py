"""What users hold in their hands: an environment makes templates, a template renders."""

from __future__ import annotations

from typing import Any, Mapping

from .context import Context
from .filters import FILTERS, Filter
from .lexer import tokenize
from .nodes import render_all
from .parser import Parser


class Environment:
    """Settings that templates share."""

    def __init__(
        self,
        filters: Mapping[str, Filter] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.filters: dict[str, Filter] = {**FILTERS, **(filters or {})}
        self.variables: dict[str, Any] = dict(variables or {})

    def template(self, source: str) -> Template:
        """Parse a template; raises TemplateSyntaxError."""
        return Template(source, self)

    def render(self, source: str, **values: Any) -> str:
        """Parse and render in one go."""
        return self.template(source).render(**values)


class Template:
    """A parsed template. It can be rendered any number of times."""

    def __init__(self, source: str, environment: Environment) -> None:
        self.source = source
        self.environment = environment
        self._nodes = Parser(tokenize(source), environment.filters).parse()

    def render(self, **values: Any) -> str:
        """The template's text for these values, which go before the environment's variables."""
        context = Context({**self.environment.variables, **values})
        output: list[str] = []
        render_all(self._nodes, context, output)
        return "".join(output)
