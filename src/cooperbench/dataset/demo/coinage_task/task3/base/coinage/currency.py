"""Currencies: their codes, symbols, names, and how many digits their smallest unit has."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import UnknownCurrency

_CODE = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True)
class Currency:
    """A currency as ISO 4217 describes it."""

    code: str
    symbol: str
    name: str
    digits: int = 2

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.code):
            raise ValueError(f"a currency's code is three capital letters, not {self.code!r}")
        if self.digits < 0:
            raise ValueError("a currency cannot have fewer than 0 digits")

    @property
    def units(self) -> int:
        """How many of the smallest unit make one."""
        return 10**self.digits

    def __str__(self) -> str:
        return self.code


CURRENCIES: dict[str, Currency] = {}


def register_currency(currency: Currency) -> Currency:
    """Make a currency known by its code; a code can be registered again with the same values only."""
    known = CURRENCIES.setdefault(currency.code, currency)
    if known != currency:
        raise ValueError(f"{currency.code} is registered already, as {known.name}")
    return known


def get_currency(code: str | Currency) -> Currency:
    """Find a currency by its code, in any case; a Currency is returned as it is."""
    if isinstance(code, Currency):
        return code
    try:
        return CURRENCIES[code.strip().upper()]
    except KeyError:
        raise UnknownCurrency(code) from None


def find_by_symbol(symbol: str) -> Currency:
    """Find a currency by its symbol; the first one registered wins."""
    for currency in CURRENCIES.values():
        if currency.symbol == symbol:
            return currency
    raise UnknownCurrency(symbol)


for _currency in (
    Currency("EUR", "€", "euro"),
    Currency("USD", "$", "US dollar"),
    Currency("GBP", "£", "pound sterling"),
    Currency("CHF", "Fr.", "Swiss franc"),
    Currency("JPY", "¥", "yen", 0),
    Currency("SEK", "kr", "Swedish krona"),
    Currency("KWD", "KD", "Kuwaiti dinar", 3),
):
    register_currency(_currency)
