"""What can go wrong with money, short of not having any."""

from __future__ import annotations


class CoinageError(Exception):
    """Base of all errors of this package."""


class UnknownCurrency(CoinageError, KeyError):
    """No currency is registered under a code."""

    def __str__(self) -> str:
        return f"unknown currency: {self.args[0]}"


class CurrencyMismatch(CoinageError, TypeError):
    """Two amounts of different currencies met where they must be the same."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right} do not mix; convert one of them first")
        self.left = left
        self.right = right


class UnknownRate(CoinageError, LookupError):
    """An exchange has no rate for a pair of currencies."""

    def __init__(self, source: str, target: str) -> None:
        super().__init__(f"no rate from {source} to {target}")
        self.source = source
        self.target = target


class InsufficientFunds(CoinageError, ValueError):
    """More was to be taken out of a wallet than is in it."""


class ParseError(CoinageError, ValueError):
    """A text is not an amount of money."""
