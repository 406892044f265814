"""Understanding expressions."""

import unittest
from datetime import date, datetime

from sundial import CronError, CronExpression


class Parsing(unittest.TestCase):
    def test_every_kind_of_item(self):
        self.assertTrue(CronExpression.parse("5 10-12,20 */10 jan,mar mon-fri").matches(datetime(2024, 3, 11, 20, 5)))
        self.assertTrue(CronExpression.parse("50/5 * * * *").matches(datetime(2024, 3, 11, 20, 55)))
        self.assertFalse(CronExpression.parse("50/5 * * * *").matches(datetime(2024, 3, 11, 20, 45)))

    def test_sunday_has_two_numbers(self):
        for text in ("0 0 * * 0", "0 0 * * 7", "0 0 * * sun"):
            self.assertTrue(CronExpression.parse(text).matches_day(date(2024, 3, 10)))
            self.assertFalse(CronExpression.parse(text).matches_day(date(2024, 3, 11)))

    def test_one_day_field_is_enough(self):
        either = CronExpression.parse("0 0 13 * fri")
        self.assertTrue(either.matches_day(date(2024, 3, 13)))
        self.assertTrue(either.matches_day(date(2024, 3, 15)))
        self.assertFalse(either.matches_day(date(2024, 3, 14)))

    def test_text_is_kept(self):
        self.assertEqual(str(CronExpression.parse("  0 0 * * *  ")), "0 0 * * *")

    def test_refused(self):
        for text, part in {
            "* * * *": "found 4",
            "60 * * * *": "minute: 60 is not between 0 and 59",
            "* * 0 * *": "day of month",
            "* 5-3 * * *": "backwards",
            "*/0 * * * *": "step of 0",
            "* * * foo *": "month: cannot understand 'foo'",
            "*-5 * * * *": "star",
            "1,,2 * * * *": "minute",
        }.items():
            with self.subTest(text), self.assertRaisesRegex(CronError, part):
                CronExpression.parse(text)


if __name__ == "__main__":
    unittest.main()
