"""Problems of HumanEval+ and MBPP+ that equality with the reference would judge wrongly.

EvalPlus declares the same ones. With `RULES` the comparison follows another rule. Where a
specification can be read in two ways, or has many right answers, a test program judges the value:
each oracle is Python source that defines `judge(candidate, arguments)`.

One is stricter than EvalPlus's: for Mbpp/164 EvalPlus accepts whatever is returned.
"""

from __future__ import annotations

from collections.abc import Mapping

from greenward.problems.problem import Rule

# By entry point, MBPP+ only. The others' results cannot leave their process (match objects).
RULES: Mapping[str, Rule] = {
    "similar_elements": "same_set",  # Mbpp/2
    "find_char_long": "same_set",  # Mbpp/7
    "common_in_nested_lists": "same_set",  # Mbpp/111
    "extract_singly": "same_set",  # Mbpp/140
    "larg_nnum": "same_set",  # Mbpp/232
    "intersection_array": "same_set",  # Mbpp/249
    "find_dissimilar": "same_set",  # Mbpp/579
    "Diff": "same_set",  # Mbpp/769
    "check_str": "not_none",  # Mbpp/737
    "text_match_three": "not_none",  # Mbpp/787
    "text_starta_endb": "not_none",  # Mbpp/794
}

# What is compared as a set may be anything that has elements. Iterators and views cannot leave their
# process as they are.
_ELEMENTS = """
def _with_elements(function):
    from collections.abc import Iterator, MappingView

    def call(*arguments):
        value = function(*arguments)
        return list(value) if isinstance(value, (Iterator, MappingView)) else value

    return call

if "NAME" in globals():
    NAME = _with_elements(NAME)
"""


def setup_for(entry_point: str) -> str:
    """What must run after an answer so that its values can be judged by the rule of `entry_point`."""
    return _ELEMENTS.replace("NAME", entry_point) if RULES.get(entry_point) == "same_set" else ""


def oracle_for(task_id: str, entry_point: str, tolerance: float) -> str | None:
    """The source of a problem's own oracle; None when it has none.

    `tolerance` is how far numbers may lie apart.
    """
    if (task_id, entry_point) == ("HumanEval/32", "find_zero"):
        return _ROOT.replace("TOLERANCE", repr(tolerance))
    readings = _READINGS.get((task_id, entry_point))
    return readings + _ANY_READING.replace("TOLERANCE", repr(tolerance)) if readings else None


# Any root will do. As the numbers grow, so does what rounding leaves of a root: no relative tolerance.
_ROOT = """
import math

def judge(candidate, arguments):
    (coefficients,) = arguments
    x = candidate(list(coefficients))
    value = sum(c * math.pow(x, power) for power, c in enumerate(coefficients))
    assert abs(value) <= TOLERANCE, f"the polynomial is {value} at {x}"
"""

_ANY_READING = """
from numbers import Number

def judge(candidate, arguments):
    expected = readings(*arguments)
    value = candidate(*arguments)
    assert isinstance(value, Number), f"a number was expected, not {value!r}"
    assert any(value == one or _is_close(value, one) for one in expected), (
        f"got {value!r}, right are {expected!r}"
    )

def _is_close(value, expected):
    return isinstance(expected, float) and abs(complex(value) - expected) <= TOLERANCE
"""

_READINGS = {
    # Do a number's divisors include itself?
    ("Mbpp/164", "are_equivalent"): """
def sum_of_divisors(number):
    low = [d for d in range(1, int(abs(number) ** 0.5) + 1) if number % d == 0]
    return sum({*low, *(number // d for d in low)})

def readings(first, second):
    ours, theirs = sum_of_divisors(first), sum_of_divisors(second)
    return (ours == theirs, ours - first == theirs - second)
""",
    # EvalPlus accepts 0 for every input: the sum for 1 and for what is no natural number.
    ("Mbpp/295", "sum_div"): """
def readings(number):
    return (sum(divisor for divisor in range(1, number) if number % divisor == 0), 0)
""",
    # Are the numbers aligned at their first digit or at their last?
    ("Mbpp/558", "digit_distance_nums"): """
def distance(digits, others):
    return sum(abs(int(digit) - int(other)) for digit, other in zip(digits, others))

def readings(first, second):
    digits, others = str(first), str(second)
    width = max(len(digits), len(others))
    return (distance(digits, others), distance(digits.zfill(width), others.zfill(width)))
""",
    # Is the height that of the pyramid or that of its side?
    ("Mbpp/581", "surface_Area"): """
def readings(base, height):
    slant = ((base / 2) ** 2 + height**2) ** 0.5
    return (2 * base * height + base**2, round(2 * base * slant + base**2))
""",
}
