from __future__ import annotations

import pytest

from greenward.grading.printed import same_output
from greenward.problems.problem import Comparison

EXACT = Comparison(tolerance=0.0)
NEAR = Comparison(tolerance=1e-6)


@pytest.mark.parametrize(
    ("printed", "expected", "exactly", "nearly"),
    [
        ("3", "3", True, True),
        ("3\n", "3", True, True),
        ("3  \n\n \n", "3\n", True, True),
        ("1 2\r\n3\r\n", "1 2\n3", True, True),
        ("", "\n", True, True),
        ("", "0", False, False),
        ("yes", "Yes", False, False),
        ("a b", "a  b", False, False),
        (" x", "x", False, False),
        ("\n3", "3", False, False),
        ("3\n\n4", "3\n4", False, False),
        ("3 4", "3\n4", False, False),
        ("1  2", "1 2", True, True),
        ("1.50", "1.5", True, True),
        ("+1.5e1", "15", True, True),
        ("3.0", "3", True, True),
        ("3", "3.0", True, True),
        ("-0", "0", True, True),
        ("0.3333333", "0.33333333333", False, True),
        ("0.3334", "0.3333", False, False),
        ("1000000.5", "1000000.0", False, True),
        ("3.0000001", "3", False, False),  # an integer is expected
        ("50000000000000001", "50000000000000000", False, False),
        ("50000000000000001", "50000000000000000.0", False, True),
        ("answer 0.3333333", "answer 0.33333333333", False, False),  # not a line of numbers
        ("nan", "nan", True, True),
        ("nan", "NaN", False, False),
        ("inf", "1e9999", False, False),
        ("1e9999", "1e9998", False, False),
        ("1e99999999999", "1", False, False),
        ("٣", "3", False, False),
        ("1_000", "1000", False, False),
        ("0x10", "16", False, False),
    ],
)
def test_lines_are_compared_as_the_field_does(printed, expected, exactly, nearly):
    assert same_output(printed, expected, EXACT) is exactly
    assert same_output(printed, expected, NEAR) is nearly


def test_the_relative_tolerance_may_differ():
    comparison = Comparison(tolerance=1e-6, relative_tolerance=0.0)
    assert not same_output("1000000.5", "1000000.0", comparison)
    assert same_output("0.1000001", "0.1", comparison)


def test_numbers_of_any_length_are_read_in_linear_time():
    digits = "1" * 2_000_000
    assert not same_output(digits, digits[:-1] + "2", EXACT)
    assert same_output(digits + ".0", digits, EXACT)
