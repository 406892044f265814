"""Arithmetic and comparison."""

import unittest
from decimal import ROUND_UP, Decimal

from coinage import CurrencyMismatch, Money, UnknownCurrency, round_to_units


class Amounts(unittest.TestCase):
    def test_digits_follow_the_currency(self):
        self.assertEqual(str(Money("19.9", "EUR")), "19.90 EUR")
        self.assertEqual(str(Money(500, "jpy")), "500 JPY")
        self.assertEqual(Money("0.001", "KWD").units, 1)

    def test_half_to_even(self):
        self.assertEqual([Money(text, "EUR").units for text in ("0.005", "0.015", "0.025")], [0, 2, 2])

    def test_floats_are_refused(self):
        with self.assertRaises(TypeError):
            Money(0.1, "EUR")

    def test_unknown_currency(self):
        with self.assertRaisesRegex(UnknownCurrency, "XXX"):
            Money(1, "XXX")

    def test_arithmetic(self):
        euro = Money("10.00", "EUR")
        self.assertEqual(euro + Money("0.01", "EUR"), Money("10.01", "EUR"))
        self.assertEqual(euro - Money("10.01", "EUR"), Money("-0.01", "EUR"))
        self.assertEqual(euro * "1.5", Money(15, "EUR"))
        self.assertEqual(euro / 3, Money("3.33", "EUR"))
        self.assertEqual(euro / Money(4, "EUR"), Decimal("2.5"))

    def test_large_amounts_are_exact(self):
        large = Money("123456789012345678901234567890.12", "EUR")
        self.assertEqual(str(large + Money("0.01", "EUR")), "123456789012345678901234567890.13 EUR")

    def test_currencies_do_not_mix(self):
        for operation in (lambda a, b: a + b, lambda a, b: a < b, lambda a, b: a / b):
            with self.assertRaises(CurrencyMismatch):
                operation(Money(1, "EUR"), Money(1, "USD"))
        self.assertNotEqual(Money(1, "EUR"), Money(1, "USD"))

    def test_round_to_units(self):
        self.assertEqual(round_to_units(Decimal("2.5")), 2)
        self.assertEqual(round_to_units(Decimal("2.1"), ROUND_UP), 3)


if __name__ == "__main__":
    unittest.main()
