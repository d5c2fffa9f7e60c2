"""Counts days of the Gregorian calendar without the standard library."""

DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year):
    """Whether a year has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year, month):
    """The number of days of a month, which is counted from 1."""
    return DAYS[month - 1] + (month == 2 and is_leap(year))


def day_of_year(year, month, day):
    """1 for the first of January."""
    return sum(days_in_month(year, one) for one in range(1, month)) + day


def days_between(first, second):
    """The days from one date (year, month, day) to a later one."""
    total = day_of_year(*second) - day_of_year(*first)
    for year in range(first[0], second[0]):
        total += 366 if is_leap(year) else 365
    return total
