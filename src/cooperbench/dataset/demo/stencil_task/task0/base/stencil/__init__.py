"""stencil: a small text template engine."""

from .environment import Environment, Template
from .errors import FilterError, StencilError, TemplateSyntaxError

__all__ = [
    "Environment",
    "FilterError",
    "StencilError",
    "Template",
    "TemplateSyntaxError",
]
