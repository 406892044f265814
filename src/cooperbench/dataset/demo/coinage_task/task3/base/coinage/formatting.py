"""Money as text for people. For text that programs read, use `str(money)`."""

from __future__ import annotations

from .money import Money


def group_digits(digits: str, separator: str) -> str:
    """Put a separator before every third digit from the right: 1234567 → 1,234,567."""
    if not separator:
        return digits
    head = len(digits) % 3
    groups = [digits[:head]] if head else []
    groups += [digits[start : start + 3] for start in range(head, len(digits), 3)]
    return separator.join(groups)


def format_number(money: Money, group: str = ",", decimal: str = ".") -> str:
    """The amount without sign and currency, with all digits of its currency: 1,250.00"""
    whole, fraction = divmod(abs(money.units), money.currency.units)
    text = group_digits(str(whole), group)
    if money.currency.digits:
        text += f"{decimal}{fraction:0{money.currency.digits}d}"
    return text


def format_money(money: Money, *, group: str = ",", decimal: str = ".") -> str:
    """An amount with its symbol in front: €1,250.00, and -€3.50 below zero."""
    sign = "-" if money.units < 0 else ""
    return f"{sign}{money.currency.symbol}{format_number(money, group, decimal)}"
