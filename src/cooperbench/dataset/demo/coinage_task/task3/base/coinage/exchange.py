"""Exchange rates between currencies."""

from __future__ import annotations

from decimal import Decimal
from typing import Mapping

from .currency import Currency, get_currency
from .errors import UnknownRate
from .money import Money
from .rounding import EXACT, Number, round_to_units, to_decimal


class Exchange:
    """A table of rates: how much of the target currency one of the source currency buys."""

    def __init__(self, rates: Mapping[tuple[str, str], Number] | None = None) -> None:
        self._rates: dict[tuple[str, str], Decimal] = {}
        for (source, target), rate in (rates or {}).items():
            self.set_rate(source, target, rate)

    def set_rate(self, source: str | Currency, target: str | Currency, rate: Number) -> None:
        """Set the rate of a pair of currencies; the way back is its inverse unless it is set too."""
        value = to_decimal(rate)
        if value <= 0:
            raise ValueError(f"a rate is above zero, not {rate}")
        self._rates[get_currency(source).code, get_currency(target).code] = value

    def rate(self, source: str | Currency, target: str | Currency) -> Decimal:
        """The rate of a pair: as it was set, or the inverse of the way back; UnknownRate where there is neither."""
        key = get_currency(source).code, get_currency(target).code
        if key[0] == key[1]:
            return Decimal(1)
        if key in self._rates:
            return self._rates[key]
        if key[::-1] in self._rates:
            return EXACT.divide(1, self._rates[key[::-1]])
        raise UnknownRate(*key)

    def convert(self, money: Money, target: str | Currency) -> Money:
        """The amount in another currency, rounded once."""
        currency = get_currency(target)
        exact = EXACT.multiply(money.amount, self.rate(money.currency, currency))
        return Money.from_units(round_to_units(EXACT.multiply(exact, currency.units)), currency)

    def currencies(self) -> list[str]:
        """The codes of all currencies with a rate, sorted."""
        return sorted({code for pair in self._rates for code in pair})
