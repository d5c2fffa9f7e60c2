import unittest
from datetime import date

from calendar_days import day_of_year, days_between, days_in_month, is_leap


class CalendarDays(unittest.TestCase):
    def test_leap_years(self):
        for year, leap in ((2024, True), (2023, False), (1900, False), (2000, True)):
            self.assertEqual(is_leap(year), leap)

    def test_days_in_month(self):
        self.assertEqual([days_in_month(2024, month) for month in (1, 2, 4, 12)], [31, 29, 30, 31])
        self.assertEqual(days_in_month(1900, 2), 28)

    def test_day_of_year(self):
        for one in (date(2024, 1, 1), date(2024, 3, 1), date(2023, 12, 31)):
            self.assertEqual(day_of_year(one.year, one.month, one.day), one.timetuple().tm_yday)

    def test_days_between(self):
        first, second = date(1999, 11, 3), date(2024, 2, 29)
        days = days_between((1999, 11, 3), (2024, 2, 29))
        self.assertEqual(days, (second - first).days)
