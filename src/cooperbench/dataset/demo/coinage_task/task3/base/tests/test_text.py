"""Formatting and parsing."""

import unittest

from coinage import Money, ParseError, format_money, parse_money


class Formatting(unittest.TestCase):
    def test_symbol_and_groups(self):
        self.assertEqual(format_money(Money("1234567.5", "EUR")), "€1,234,567.50")
        self.assertEqual(format_money(Money("-3.5", "USD")), "-$3.50")
        self.assertEqual(format_money(Money(1500, "JPY")), "¥1,500")

    def test_other_separators(self):
        self.assertEqual(format_money(Money("1234.5", "EUR"), group=".", decimal=","), "€1.234,50")


class Parsing(unittest.TestCase):
    def test_understood(self):
        for text, expected in {
            "€1,250.00": Money(1250, "EUR"),
            "-12.5 USD": Money("-12.50", "USD"),
            "chf 3": Money(3, "CHF"),
            "Fr. 3": Money(3, "CHF"),
        }.items():
            with self.subTest(text):
                self.assertEqual(parse_money(text), expected)
        self.assertEqual(parse_money("7.25", "EUR"), Money("7.25", "EUR"))

    def test_refused(self):
        for text in ("", "abc", "1.234 EUR", "7", "$ 3 EUR", "1,23 EUR", "3 QQQ"):
            with self.subTest(text), self.assertRaises(ParseError):
                parse_money(text)


if __name__ == "__main__":
    unittest.main()
