"""Text that people wrote, as money."""

from __future__ import annotations

import re
from decimal import Decimal

from .currency import Currency, find_by_symbol, get_currency
from .errors import ParseError, UnknownCurrency
from .money import Money

_AMOUNT = re.compile(
    r"""
    (?P<sign>[-+])?\s*
    (?P<before>[^\d\s.,+-]+\.?)?\s*
    (?P<whole>\d{1,3}(?:,\d{3})+|\d+)
    (?:\.(?P<fraction>\d+))?\s*
    (?P<after>[^\d\s.,+-]+\.?)?
    """,
    re.VERBOSE,
)


def parse_money(text: str, default: str | Currency | None = None) -> Money:
    """Understand `€1,250.00`, `-12.50 USD`, `CHF 3` or, with a default currency, `7.25`.

    Raises ParseError for anything else, also for more digits than the currency has: money is never lost
    by reading it.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ParseError(f"not an amount of money: {text!r}")
    currency = _currency_of(match["before"], match["after"], default, text)
    fraction = match["fraction"] or ""
    if len(fraction) > currency.digits:
        raise ParseError(f"{currency.code} has {currency.digits} digits, not {len(fraction)}: {text!r}")
    number = Decimal(match["whole"].replace(",", "") + "." + (fraction or "0"))
    return Money(-number if match["sign"] == "-" else number, currency)


def _currency_of(before: str | None, after: str | None, default: str | Currency | None, text: str) -> Currency:
    """The currency that a text names, in front of the number or behind it but not both."""
    if before and after:
        raise ParseError(f"two currencies in {text!r}")
    mark = before or after
    if mark is None:
        if default is None:
            raise ParseError(f"no currency in {text!r}")
        return get_currency(default)
    try:
        return find_by_symbol(mark)
    except UnknownCurrency:
        pass
    try:
        return get_currency(mark)
    except UnknownCurrency:
        raise ParseError(f"unknown currency {mark!r} in {text!r}") from None
