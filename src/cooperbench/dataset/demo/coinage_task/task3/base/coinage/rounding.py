"""From exact numbers to whole units. All rounding of the package happens here."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

Number = int | str | Decimal

EXACT = Context(prec=200)
"""For arithmetic on amounts: enough digits for any of them, unlike the 28 of the default context."""


def to_decimal(number: Number) -> Decimal:
    """An exact number; floats are refused since they are not what they look like."""
    if isinstance(number, bool) or not isinstance(number, (int, str, Decimal)):
        raise TypeError(f"an amount is an int, a str or a Decimal, not {type(number).__name__}")
    try:
        value = Decimal(number)
    except InvalidOperation:
        raise ValueError(f"{number!r} is not a number") from None
    if not value.is_finite():
        raise ValueError(f"{number!r} is not an amount")
    return value


def round_to_units(value: Decimal, rounding: str = ROUND_HALF_EVEN) -> int:
    """The whole number nearest to `value`; halves go to the even neighbour unless told otherwise."""
    return int(value.to_integral_value(rounding=rounding, context=EXACT))
