"""How the judges of APPS, TACO and LiveCodeBench run an answer, beside what their files say.

- `PREAMBLES`: the modules and names that an answer finds without importing them. An answer may rely on
  them (`List` in a signature, `sqrt`), but not on one with the name of the function that is asked for.
- `TEST_SECONDS`: the time limit of each test.
- `COMPARISONS`: the values that functions return are compared exactly. LiveCodeBench takes a tuple for a
  list only as the returned value itself; APPS and TACO also deeper, and either the expected value or a
  list that holds only that.

What a whole program prints is compared by LiveCodeBench's rule in all three (`grading.compare`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from greenward.problems.problem import Comparison

Suite = Literal["Apps", "Taco", "LiveCodeBench"]

# In this order: the names of `builtins` win over those of `math`, `operator` and the others before it.
_ALL_NAMES_OF = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
    "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
_MODULES = tuple(name for name in _ALL_NAMES_OF if name not in ("builtins", "typing"))


def _preamble(*modules: str) -> str:
    stars = (f"from {name} import *" for name in _ALL_NAMES_OF)
    imports = (f"import {name}" for name in (*_MODULES, *modules))
    return "\n".join((*stars, *imports, "sys.setrecursionlimit(50000)", ""))


_APPS_PREAMBLE = f"""{_preamble("time", "fractions")}
try:
    import numpy as np  # where answers may import it
except ImportError:
    pass
"""

PREAMBLES: Mapping[Suite, str] = {
    "Apps": _APPS_PREAMBLE,
    "Taco": _APPS_PREAMBLE,
    "LiveCodeBench": _preamble(),
}
TEST_SECONDS: Mapping[Suite, float] = {"Apps": 4.0, "Taco": 4.0, "LiveCodeBench": 6.0}
_EXACT_OR_IN_LIST = Comparison(tolerance=0.0, tuple_is_list=True, rule="equal_or_in_list")
COMPARISONS: Mapping[Suite, Comparison] = {
    "Apps": _EXACT_OR_IN_LIST,
    "Taco": _EXACT_OR_IN_LIST,
    "LiveCodeBench": Comparison(tolerance=0.0, tuple_is_list="outermost"),
}


def preamble_for(suite: Suite, entry_point: str) -> str:
    """The preamble without the name of the function: `operator.mul` is no answer to "write mul"."""
    forget = f"globals().pop({entry_point!r}, None)\n" if entry_point else ""
    return PREAMBLES[suite] + forget
