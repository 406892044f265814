"""The filters that every environment has. A filter takes the value and its arguments and returns a new value."""

from __future__ import annotations

from typing import Any, Callable

from .errors import FilterError

Filter = Callable[..., Any]


def to_text(value: Any) -> str:
    """A value as it is printed: `none` is nothing, booleans are lower case."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def upper(value: Any) -> str:
    return to_text(value).upper()


def lower(value: Any) -> str:
    return to_text(value).lower()


def title(value: Any) -> str:
    """Upper-case the first letter of each word and leave the others alone."""
    return " ".join(word[:1].upper() + word[1:] for word in to_text(value).split(" "))


def trim(value: Any) -> str:
    return to_text(value).strip()


def length(value: Any) -> int:
    """How many items a value has; nothing has none."""
    if value is None:
        return 0
    try:
        return len(value)
    except TypeError:
        raise FilterError(f"length: {type(value).__name__} has no length") from None


def join(value: Any, separator: str = "") -> str:
    return to_text(separator).join(to_text(item) for item in value or ())


def replace(value: Any, old: str, new: str) -> str:
    return to_text(value).replace(to_text(old), to_text(new))


def first(value: Any) -> Any:
    """The first item, or `none` of an empty sequence."""
    for item in value or ():
        return item
    return None


def last(value: Any) -> Any:
    """The last item, or `none` of an empty sequence."""
    items = list(value or ())
    return items[-1] if items else None


FILTERS: dict[str, Filter] = {
    "upper": upper,
    "lower": lower,
    "title": title,
    "trim": trim,
    "length": length,
    "join": join,
    "replace": replace,
    "first": first,
    "last": last,
}


def apply_filter(filters: dict[str, Filter], name: str, value: Any, arguments: list[Any]) -> Any:
    """Call the filter `name`; a wrong number of arguments is a FilterError like an unknown name."""
    try:
        function = filters[name]
    except KeyError:
        known = ", ".join(sorted(filters))
        raise FilterError(f"there is no filter {name!r}; there are: {known}") from None
    try:
        return function(value, *arguments)
    except TypeError as error:
        raise FilterError(f"{name}: {error}") from error
