"""The names that a template can see, and how dotted names find their values."""

from __future__ import annotations

from typing import Any, Mapping, Sequence


class Context:
    """A stack of scopes; inner scopes hide the names of outer ones."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._scopes: list[dict[str, Any]] = [dict(values)]

    def push(self) -> None:
        """Open an inner scope."""
        self._scopes.append({})

    def pop(self) -> None:
        """Close the innermost scope and forget its names."""
        if len(self._scopes) == 1:
            raise IndexError("the outermost scope cannot be closed")
        self._scopes.pop()

    def assign(self, name: str, value: Any) -> None:
        """Give a name a value in the innermost scope."""
        self._scopes[-1][name] = value

    def resolve(self, names: Sequence[str]) -> Any:
        """The value of a dotted name, given as its parts; None where any part is missing."""
        head, *rest = names
        for scope in reversed(self._scopes):
            if head in scope:
                value = scope[head]
                break
        else:
            return None
        for name in rest:
            found, value = lookup_member(value, name)
            if not found:
                return None
        return value


def lookup_member(owner: Any, name: str) -> tuple[bool, Any]:
    """Find `name` in a mapping, a sequence (if it is a number) or an object, and say whether it was there.

    Names that start with an underscore are private: they are never found as attributes.
    """
    if isinstance(owner, Mapping):
        if name in owner:
            return True, owner[name]
        return False, None
    if name.isdigit() and isinstance(owner, Sequence):
        index = int(name)
        if index < len(owner):
            return True, owner[index]
        return False, None
    if not name.startswith("_") and hasattr(owner, name):
        return True, getattr(owner, name)
    return False, None
