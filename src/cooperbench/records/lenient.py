"""Conversion of JSON that does not fit its type: wrong values become None, 0 or empty."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import NODEFAULT, UNSET, inspect

T = TypeVar("T", bound=msgspec.Struct)


class _Wrong(Exception):
    """A value does not have its type."""


def convert_struct(content: Mapping[str, object], kind: type[T]) -> T:
    """Return a struct from a JSON object.

    A missing field gets its default, or the empty value of its type. A value of the wrong type is
    replaced by the empty value; in lists and dicts it is left out.
    """
    values = {}
    for field in _fields(kind):
        if field.encode_name not in content:
            values[field.name] = _default(field)
            continue
        try:
            values[field.name] = _convert(content[field.encode_name], field.type)
        except _Wrong:
            values[field.name] = UNSET if _may_be_unset(field) else _empty(field.type)
    return kind(**values)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _default(field: inspect.Field) -> Any:
    if field.default is not NODEFAULT:
        return field.default
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return UNSET if _may_be_unset(field) else _empty(field.type)


def _may_be_unset(field: inspect.Field) -> bool:
    """Whether the default is UNSET, which `inspect` describes as no default at all."""
    has_default = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
    return not field.required and not has_default


def _convert(value: Any, kind: inspect.Type) -> Any:
    """Return a value as its type; raise `_Wrong` if it cannot be understood as one."""
    return _CONVERTERS[type(kind)](value, kind)


def _convert_any(value: Any, _kind: inspect.Type) -> Any:
    return value


def _convert_none(value: Any, _kind: inspect.Type) -> None:
    if value is not None:
        raise _Wrong


def _convert_bool(value: Any, _kind: inspect.Type) -> bool:
    if not isinstance(value, bool):
        raise _Wrong
    return value


def _convert_int(value: Any, _kind: inspect.Type) -> int:
    _require_number(value)
    return int(value)


def _convert_float(value: Any, _kind: inspect.Type) -> float:
    _require_number(value)
    try:
        return float(value)
    except OverflowError:
        raise _Wrong from None


def _require_number(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong
    if isinstance(value, float) and not math.isfinite(value):
        raise _Wrong


def _convert_str(value: Any, _kind: inspect.Type) -> str:
    if not isinstance(value, str):
        raise _Wrong
    return value


def _convert_list(value: Any, kind: inspect.ListType | inspect.VarTupleType) -> Any:
    if not isinstance(value, list):
        raise _Wrong
    items = []
    for item in value:
        try:
            items.append(_convert(item, kind.item_type))
        except _Wrong:
            continue
    return items if isinstance(kind, inspect.ListType) else tuple(items)


def _convert_dict(value: Any, kind: inspect.DictType) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _Wrong
    has_number_keys = isinstance(kind.key_type, inspect.IntType)
    entries: dict[Any, Any] = {}
    for key, item in value.items():
        try:
            entries[int(key) if has_number_keys else key] = _convert(item, kind.value_type)
        except (_Wrong, ValueError):
            continue
    return entries


def _convert_struct(value: Any, kind: inspect.StructType) -> msgspec.Struct:
    if not isinstance(value, dict):
        raise _Wrong
    return convert_struct(value, kind.cls)


def _convert_union(value: Any, kind: inspect.UnionType) -> Any:
    for member in kind.types:
        try:
            return _convert(value, member)
        except _Wrong:
            continue
    raise _Wrong


_CONVERTERS: dict[type[inspect.Type], Callable[[Any, Any], Any]] = {
    inspect.AnyType: _convert_any,
    inspect.NoneType: _convert_none,
    inspect.BoolType: _convert_bool,
    inspect.IntType: _convert_int,
    inspect.FloatType: _convert_float,
    inspect.StrType: _convert_str,
    inspect.ListType: _convert_list,
    inspect.VarTupleType: _convert_list,
    inspect.DictType: _convert_dict,
    inspect.StructType: _convert_struct,
    inspect.UnionType: _convert_union,
}


def _empty(kind: inspect.Type) -> Any:
    """Return the value that stands for nothing: None where the type allows it."""
    if isinstance(kind, inspect.UnionType):
        if any(isinstance(member, inspect.NoneType) for member in kind.types):
            return None
        return _empty(kind.types[0])
    if isinstance(kind, inspect.StructType):
        return convert_struct({}, kind.cls)
    return _EMPTY[type(kind)]()


_EMPTY: dict[type[inspect.Type], Callable[[], Any]] = {
    inspect.AnyType: lambda: None,
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.ListType: list,
    inspect.VarTupleType: tuple,
    inspect.DictType: dict,
}
