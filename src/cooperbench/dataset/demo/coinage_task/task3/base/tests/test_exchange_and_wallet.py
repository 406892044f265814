"""Conversion between currencies, and wallets."""

import unittest

from coinage import Exchange, InsufficientFunds, Money, UnknownRate, Wallet


class Converting(unittest.TestCase):
    def setUp(self):
        self.exchange = Exchange({("EUR", "USD"): "1.10", ("EUR", "JPY"): 160})

    def test_direct_inverse_and_same(self):
        self.assertEqual(self.exchange.convert(Money("59.97", "EUR"), "USD"), Money("65.97", "USD"))
        self.assertEqual(self.exchange.convert(Money(11, "USD"), "EUR"), Money(10, "EUR"))
        self.assertEqual(self.exchange.convert(Money(11, "USD"), "USD"), Money(11, "USD"))

    def test_digits_of_the_target(self):
        self.assertEqual(self.exchange.convert(Money("0.99", "EUR"), "JPY"), Money(158, "JPY"))

    def test_unknown_rate(self):
        with self.assertRaisesRegex(UnknownRate, "EUR to CHF"):
            self.exchange.convert(Money(1, "EUR"), "CHF")

    def test_bad_rate(self):
        with self.assertRaises(ValueError):
            self.exchange.set_rate("EUR", "CHF", 0)

    def test_currencies(self):
        self.assertEqual(self.exchange.currencies(), ["EUR", "JPY", "USD"])


class Wallets(unittest.TestCase):
    def test_deposit_and_withdraw(self):
        wallet = Wallet([Money(5, "EUR"), Money(1, "USD")])
        wallet.deposit(Money("0.50", "EUR"))
        wallet.withdraw(Money(1, "USD"))
        self.assertEqual(list(wallet), [Money("5.50", "EUR")])

    def test_too_much(self):
        wallet = Wallet([Money(5, "EUR")])
        with self.assertRaises(InsufficientFunds):
            wallet.withdraw(Money("5.01", "EUR"))
        self.assertEqual(wallet.balance("EUR"), Money(5, "EUR"))

    def test_transfer(self):
        mine, yours = Wallet([Money(5, "EUR")]), Wallet()
        mine.transfer(Money(2, "EUR"), yours)
        self.assertEqual((mine.balance("EUR"), yours.balance("EUR")), (Money(3, "EUR"), Money(2, "EUR")))


if __name__ == "__main__":
    unittest.main()
