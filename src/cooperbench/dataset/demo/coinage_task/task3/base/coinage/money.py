"""Money: a whole number of units of one currency."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import total_ordering
from typing import Iterable

from .currency import Currency, get_currency
from .errors import CurrencyMismatch
from .rounding import EXACT, Number, round_to_units, to_decimal


@total_ordering
@dataclass(frozen=True, init=False, eq=False)
class Money:
    """An amount of a currency. Immutable; operations return new amounts."""

    units: int
    """In the currency's smallest unit: 1999 for 19.99 EUR."""
    currency: Currency

    def __init__(self, amount: Number, currency: str | Currency) -> None:
        found = get_currency(currency)
        object.__setattr__(self, "units", round_to_units(EXACT.multiply(to_decimal(amount), found.units)))
        object.__setattr__(self, "currency", found)

    @classmethod
    def from_units(cls, units: int, currency: str | Currency) -> Money:
        """An amount given in the smallest unit."""
        found = get_currency(currency)
        return cls(EXACT.scaleb(Decimal(units), -found.digits), found)

    @classmethod
    def zero(cls, currency: str | Currency) -> Money:
        """Nothing, of a currency."""
        return cls(0, currency)

    @property
    def amount(self) -> Decimal:
        """The amount with all digits of its currency: Decimal("19.90")."""
        return EXACT.scaleb(Decimal(self.units), -self.currency.digits)

    def _check_same(self, other: Money) -> None:
        if self.currency != other.currency:
            raise CurrencyMismatch(self.currency.code, other.currency.code)

    def __add__(self, other: object) -> Money:
        if not isinstance(other, Money):
            return NotImplemented
        self._check_same(other)
        return Money.from_units(self.units + other.units, self.currency)

    def __sub__(self, other: object) -> Money:
        if not isinstance(other, Money):
            return NotImplemented
        return self + -other

    def __mul__(self, factor: object) -> Money:
        if isinstance(factor, (int, str, Decimal)) and not isinstance(factor, bool):
            return Money.from_units(round_to_units(EXACT.multiply(self.units, to_decimal(factor))), self.currency)
        return NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, divisor: object) -> Money | Decimal:
        """Money by a number is money; money by money is a ratio."""
        if isinstance(divisor, Money):
            self._check_same(divisor)
            return Decimal(self.units) / Decimal(divisor.units)
        if isinstance(divisor, (int, str, Decimal)) and not isinstance(divisor, bool):
            return Money.from_units(round_to_units(EXACT.divide(self.units, to_decimal(divisor))), self.currency)
        return NotImplemented

    def __neg__(self) -> Money:
        return Money.from_units(-self.units, self.currency)

    def __abs__(self) -> Money:
        return Money.from_units(abs(self.units), self.currency)

    def __bool__(self) -> bool:
        return self.units != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Money):
            return NotImplemented
        return (self.units, self.currency) == (other.units, other.currency)

    def __hash__(self) -> int:
        return hash((self.units, self.currency))

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Money):
            return NotImplemented
        self._check_same(other)
        return self.units < other.units

    def __repr__(self) -> str:
        return f'Money("{self.amount}", "{self.currency.code}")'

    def __str__(self) -> str:
        return f"{self.amount} {self.currency.code}"


def sum_money(amounts: Iterable[Money], currency: str | Currency) -> Money:
    """The sum of amounts of one currency; nothing at all is zero."""
    return sum(amounts, Money.zero(currency))
