"""Applies the allowlist to requests: what is not allowed is removed, or the request is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from cooperbench.gateway.allowlist import (
    CONTENT_REASON,
    REASONS,
    RULES,
    TOOL_REASON,
    Fields,
    Items,
    Rule,
    Value,
    Variants,
)
from cooperbench.gateway.api_formats import GEMINI, RESPONSES, JsonMapping, JsonObject, Refused

_DATE_OF_TYPE = re.compile(r"_20\d{6}$")
_DATA_SCHEME = "data:"
_SNAKE_CASE = re.compile(r"_([a-z])")
_MAX_NAME_CHARACTERS = 60
_FIELDS_ABOUT_TOOLS = ("tools", "tool_choice", "parallel_tool_calls", "toolConfig")
"""Fields that providers reject in a request without tools."""


class AllowedRequest(NamedTuple):
    """A request that may be forwarded."""

    body: JsonObject
    removed: Mapping[str, str]
    """Paths of everything that was removed from the program's request, with reasons."""


def allow_request(api_format: str, body: JsonMapping) -> AllowedRequest:
    """Return the request without fields and tools that are not allowed.

    Raises:
        Refused: The request has contents that are not inline, or needs a state of the provider.
    """
    rules = RULES[api_format]
    request_filter = _Filter(renames=api_format == GEMINI)
    for name, reason in rules.refused_fields.items():
        if request_filter.value_of(body, name):
            raise Refused(400, f"{name} is not supported: {reason}")
    try:
        allowed: JsonObject = request_filter.apply_fields(rules.body, body)
    except _NotAllowedError as error:
        where = request_filter.where
        raise Refused(400, f"{where}: {error}" if where else str(error)) from None
    if not allowed.get("tools"):
        for name in _FIELDS_ABOUT_TOOLS:
            allowed.pop(name, None)
    if api_format == RESPONSES:
        # The default is to keep the reply at the provider.
        allowed["store"] = False
    return AllowedRequest(allowed, request_filter.removed)


class _NotAllowedError(Exception):
    """Something that is not on the allowlist. Its list removes it or refuses the request."""


class _Filter:
    """Applies rules to one request, from the body down."""

    def __init__(self, *, renames: bool) -> None:
        self.removed: dict[str, str] = {}
        self._path: list[str] = []
        self._renames = renames
        """Whether names may be in snake case, too. Google's servers accept both."""

    @property
    def where(self) -> str:
        """The path of the current value: `messages[].content[].source`."""
        return ".".join(self._path).replace(".[", "[")

    def value_of(self, fields: JsonMapping, name: str) -> object:
        """Return the value of a field, whichever way its name is written."""
        for key, value in fields.items():
            if self._name(key) == name:
                return value
        return None

    def apply_fields(self, rule: Fields, fields: object) -> JsonObject:
        """Return an object with the fields that are allowed."""
        if not isinstance(fields, dict):
            raise _NotAllowedError("it must be an object")
        allowed: JsonObject = {}
        for key, value in fields.items():
            name = self._name(key)
            field_rule = rule.rules.get(name)
            if field_rule is not None:
                allowed[name] = self._apply_to_field(field_rule, name, value)
            elif rule.keeps_others:
                allowed[key] = value
            elif value is not None and value is not False:
                self._note_removed(name, REASONS.get(name, "it is not on the allowlist"))
        if rule.needs and all(allowed.get(name) is None for name in rule.needs):
            others = sorted(set(map(self._name, fields)) - allowed.keys())
            unlisted = f", not {_shorten(', '.join(others))}" if others else ""
            raise _NotAllowedError(f"{CONTENT_REASON}{unlisted}")
        return allowed

    def _apply_to_field(self, rule: Rule, name: str, value: Any) -> Any:
        if value is None:
            return None
        self._path.append(name)
        allowed = self._apply(rule, value)
        self._path.pop()
        return allowed

    def _apply(self, rule: Rule, value: Any) -> Any:
        match rule:
            case Fields():
                return self.apply_fields(rule, value)
            case Variants():
                return self._apply_variant(rule, value)
            case Items():
                return self._apply_items(rule, value)
        _check_value(rule, value)
        return value

    def _apply_variant(self, rule: Variants, value: Any) -> JsonObject:
        if not isinstance(value, dict):
            raise _NotAllowedError("it must be an object")
        kind = str(value.get("type") or rule.default)
        fields = rule.by_type.get(_DATE_OF_TYPE.sub("", kind))
        if fields is None:
            raise _NotAllowedError(f"{CONTENT_REASON}, not type {_shorten(kind)!r}")
        return self.apply_fields(fields, value)

    def _apply_items(self, rule: Items, value: Any) -> Any:
        if isinstance(value, str) and not rule.removes:
            return value
        values = value if isinstance(value, list) else [value]
        self._path.append("[]")
        allowed = []
        for item in values:
            depth = len(self._path)
            try:
                allowed.append(self._apply(rule.item, item))
            except _NotAllowedError:
                if not rule.removes:
                    raise
                del self._path[depth:]
                self._note_removed(_label(item), TOOL_REASON)
        self._path.pop()
        return allowed

    def _note_removed(self, name: str, reason: str) -> None:
        path = f"{self.where}.{name}" if self._path else name
        self.removed[_shorten(path)] = reason

    def _name(self, key: str) -> str:
        if not self._renames or "_" not in key:
            return key
        return _SNAKE_CASE.sub(lambda match: match[1].upper(), key)


def _check_value(rule: Value, value: Any) -> None:
    """Check a value without structure.

    Raises:
        _NotAllowedError: It may lead to data elsewhere.
    """
    if rule is Value.PLAIN:
        return
    if not isinstance(value, str):
        raise _NotAllowedError("it must be a text")
    if rule is Value.DATA_URL and not value[: len(_DATA_SCHEME)].lower() == _DATA_SCHEME:
        raise _NotAllowedError(f"{CONTENT_REASON}, as a data URL")
    if rule is Value.BASE64 and ":" in value:
        raise _NotAllowedError(f"{CONTENT_REASON}, as base64")


def _label(item: object) -> str:
    """Return a name for a tool that was removed."""
    if not isinstance(item, dict):
        return "tool"
    return str(item.get("type") or next(iter(item), "tool"))


def _shorten(text: str) -> str:
    return text[:_MAX_NAME_CHARACTERS]
