from __future__ import annotations

import pytest

from greenward.grading.compare import same_output


@pytest.mark.parametrize(
    ("printed", "expected", "counts"),
    [
        ("3", "3", True),
        ("3\n", "3", True),
        ("3  \n\n \n", "3\n", True),
        ("1 2\r\n3\r\n", "1 2\n3", True),
        ("", "\n", True),
        ("", "0", False),
        ("yes", "Yes", False),
        ("a b", "a  b", False),
        (" x", "x", True),
        ("\n 3", "3", True),
        ("3\n\n4", "3\n4", False),
        ("3 4", "3\n4", False),
        ("1  2", "1 2", True),
        ("1.50", "1.5", True),
        ("+1.5e1", "15", True),
        ("3.0", "3", True),
        ("3", "3.0", True),
        ("-0", "0", True),
        ("0.3333333", "0.33333333333", False),
        ("0.3334", "0.3333", False),
        ("1000000.5", "1000000.0", False),
        ("3.0000001", "3", False),  # an integer is expected
        ("50000000000000001", "50000000000000000", False),
        ("50000000000000001", "50000000000000000.0", False),
        ("answer 0.3333333", "answer 0.33333333333", False),  # not a line of numbers
        ("nan", "nan", True),
        ("nan", "NaN", False),
        ("inf", "1e9999", False),
        ("1e9999", "1e9998", False),
        ("1e99999999999", "1", False),
        ("٣", "3", False),
        ("３", "3", False),
        ("1_000", "1000", False),
        ("1000", "1_000", False),
        ("1_000", "1_000.0", False),
        ("1_000", "1_000", True),
        ("007", "7", False),
        ("7", "007", False),
        ("007", "007.0", False),
        ("-07", "-7", False),
        ("00", "0", False),
        ("0.50", "0.5", True),
        (".5", "0.5", True),
        ("5.", "5", True),
        ("-.5E+1", "-5", True),
        ("1e-05", "0.00001", True),
        (".", "0", False),
        ("1e", "1", False),
        ("Infinity", "inf", False),
        ("0x10", "16", False),
        ("2.0000000001", "2.00000000", False),
        ("2.0 -1e-3", "2.00000000 -0.00100", True),
        ("Case 1: 2.0", "Case 1: 2.00", False),
        ("sNaN", "1", False),
    ],
)
def test_lines_are_equal_or_hold_the_same_decimal_numbers(printed, expected, counts):
    assert same_output(printed, expected) is counts


def test_numbers_of_any_length_are_read_in_linear_time():
    digits = "1" * 2_000_000
    assert not same_output(digits, digits[:-1] + "2")
    assert same_output(digits + ".0", digits)
    assert not same_output(digits + "_", digits)
    assert not same_output("1e" + digits, digits)
