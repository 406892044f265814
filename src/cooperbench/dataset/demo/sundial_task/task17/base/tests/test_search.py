"""Finding moments."""

import unittest
from datetime import date, datetime

from sundial import CronExpression, NeverHappens, agenda, between, busiest_day, next_after, previous_before, upcoming


class Searching(unittest.TestCase):
    def test_next(self):
        workday = CronExpression.parse("30 9 * * mon-fri")
        self.assertEqual(next_after(workday, datetime(2024, 3, 1, 12, 0)), datetime(2024, 3, 4, 9, 30))
        self.assertEqual(next_after(workday, datetime(2024, 3, 4, 9, 29, 59)), datetime(2024, 3, 4, 9, 30))
        self.assertEqual(next_after(workday, datetime(2024, 3, 4, 9, 30)), datetime(2024, 3, 5, 9, 30))

    def test_previous(self):
        workday = CronExpression.parse("30 9 * * mon-fri")
        self.assertEqual(previous_before(workday, datetime(2024, 3, 4, 9, 30)), datetime(2024, 3, 1, 9, 30))
        self.assertEqual(previous_before(workday, datetime(2024, 3, 4, 9, 30, 1)), datetime(2024, 3, 4, 9, 30))

    def test_leap_day(self):
        leap = CronExpression.parse("0 0 29 2 *")
        self.assertEqual(next_after(leap, datetime(2096, 3, 1)), datetime(2104, 2, 29))

    def test_never(self):
        with self.assertRaises(NeverHappens):
            next_after(CronExpression.parse("0 0 30 2 *"), datetime(2024, 1, 1))

    def test_upcoming_and_between(self):
        often = CronExpression.parse("*/20 8,9 * * *")
        start, end = datetime(2024, 1, 1, 8, 20), datetime(2024, 1, 1, 9, 20)
        expected = [datetime(2024, 1, 1, 8, 20), datetime(2024, 1, 1, 8, 40), datetime(2024, 1, 1, 9, 0)]
        self.assertEqual(list(between(often, start, end)), expected)
        self.assertEqual(upcoming(often, start, 2), expected[1:])

    def test_days(self):
        schedules = {"tea": CronExpression.parse("0 16 * * *"), "gym": CronExpression.parse("0 7 * * wed")}
        self.assertEqual([name for _, name in agenda(schedules, date(2024, 1, 3))], ["gym", "tea"])
        self.assertEqual(busiest_day(schedules, date(2024, 1, 1), date(2024, 1, 8)), (date(2024, 1, 3), 2))


if __name__ == "__main__":
    unittest.main()
