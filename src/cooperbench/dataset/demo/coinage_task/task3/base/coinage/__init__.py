"""coinage: amounts of money that cannot lose a cent."""

from .currency import CURRENCIES, Currency, get_currency, register_currency
from .errors import CoinageError, CurrencyMismatch, InsufficientFunds, ParseError, UnknownCurrency, UnknownRate
from .exchange import Exchange
from .formatting import format_money
from .money import Money
from .parsing import parse_money
from .rounding import round_to_units
from .wallet import Wallet

__all__ = [
    "CURRENCIES",
    "CoinageError",
    "Currency",
    "CurrencyMismatch",
    "Exchange",
    "InsufficientFunds",
    "Money",
    "ParseError",
    "UnknownCurrency",
    "UnknownRate",
    "Wallet",
    "format_money",
    "get_currency",
    "parse_money",
    "register_currency",
    "round_to_units",
]
