"""What can go wrong with a template. All errors know the line that they come from, where there is one."""

from __future__ import annotations


class StencilError(Exception):
    """Base of all errors of this package."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


class TemplateSyntaxError(StencilError):
    """The template's text cannot be understood."""


class FilterError(StencilError):
    """A filter is unknown, or refuses its value or arguments."""
