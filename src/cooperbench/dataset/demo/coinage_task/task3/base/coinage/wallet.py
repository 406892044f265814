"""A wallet: amounts of several currencies, kept apart."""

from __future__ import annotations

from typing import Iterable, Iterator

from .currency import Currency, get_currency
from .errors import InsufficientFunds
from .money import Money


class Wallet:
    """Holds one balance per currency. No balance can fall below zero."""

    def __init__(self, amounts: Iterable[Money] = ()) -> None:
        self._balances: dict[str, Money] = {}
        for amount in amounts:
            self.deposit(amount)

    def balance(self, currency: str | Currency) -> Money:
        """What there is of a currency; zero if it was never put in."""
        found = get_currency(currency)
        return self._balances.get(found.code, Money.zero(found))

    def deposit(self, amount: Money) -> None:
        """Put an amount in."""
        if amount.units < 0:
            raise ValueError(f"cannot deposit {amount}")
        self._balances[amount.currency.code] = self.balance(amount.currency) + amount

    def withdraw(self, amount: Money) -> None:
        """Take an amount out, or raise InsufficientFunds and change nothing."""
        if amount.units < 0:
            raise ValueError(f"cannot withdraw {amount}")
        left = self.balance(amount.currency) - amount
        if left.units < 0:
            raise InsufficientFunds(f"{amount} is more than the {self.balance(amount.currency)} there is")
        self._balances[amount.currency.code] = left

    def transfer(self, amount: Money, other: Wallet) -> None:
        """Move an amount to another wallet."""
        self.withdraw(amount)
        other.deposit(amount)

    def __iter__(self) -> Iterator[Money]:
        """The balances that are not zero, by currency code."""
        return (self._balances[code] for code in sorted(self._balances) if self._balances[code])

    def __repr__(self) -> str:
        return f"Wallet([{', '.join(repr(balance) for balance in self)}])"
