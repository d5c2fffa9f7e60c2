"""A small problem of the token MDP, with its tests by the definition of what is asked for."""

from __future__ import annotations

from greenward.problems.problem import Case, Problem

ABSOLUTE_VALUE = Problem(
    "absolute_value",
    "Return the absolute value of a number.",
    "absolute_value",
    tuple(Case((n,), -n if n < 0 else n) for n in range(-9, 11)),
    hidden_cases=tuple(Case((n,), -n if n < 0 else n) for n in (*range(-40, -30), *range(30, 40))),
    starter_code='def absolute_value(n):\n    """Return the absolute value of a number."""\n',
    reference="def absolute_value(n):\n    return n if n >= 0 else -n\n",
)
