"""Jobs."""

import unittest
from datetime import datetime

from sundial import Scheduler, SundialError, UnknownJob


class Scheduling(unittest.TestCase):
    def setUp(self):
        self.calls = []
        self.scheduler = Scheduler()
        self.scheduler.add("a", "0 8 * * *", lambda: self.calls.append("a"))
        self.scheduler.add("b", "*/30 * * * *", lambda: self.calls.append("b"))

    def test_runs_once_a_minute(self):
        now = datetime(2024, 1, 1, 8, 0, 10)
        self.assertEqual(self.scheduler.run_pending(now), ["a", "b"])
        self.assertEqual(self.scheduler.run_pending(now.replace(second=40)), [])
        self.assertEqual(self.calls, ["a", "b"])

    def test_a_missed_moment_is_caught_up(self):
        self.scheduler.run_pending(datetime(2024, 1, 1, 8, 0))
        self.assertEqual(self.scheduler.run_pending(datetime(2024, 1, 1, 8, 31)), ["b"])

    def test_next_run(self):
        moment, job = self.scheduler.next_run(datetime(2024, 1, 1, 7, 45))
        self.assertEqual((moment, job.name), (datetime(2024, 1, 1, 8, 0), "a"))

    def test_names(self):
        with self.assertRaises(SundialError):
            self.scheduler.add("a", "* * * * *", print)
        self.scheduler.remove("a")
        with self.assertRaisesRegex(UnknownJob, "'a'"):
            self.scheduler.get("a")
        self.assertEqual(len(self.scheduler), 1)


if __name__ == "__main__":
    unittest.main()
