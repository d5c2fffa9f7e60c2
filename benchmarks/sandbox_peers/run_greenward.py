"""The grader of this repository: with all layers of isolation, with each left out, with each alone."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Sequence
from contextlib import ExitStack

if "torch" in sys.argv:
    import torch  # noqa: F401

from side import ENTRY_POINT, EXPECTED, INPUTS, Way, serve

from greenward.grading.judge import Grader
from greenward.problems.problem import Case, Check, Problem, StdioCase
from greenward.sandbox.isolation import ALL_LAYERS, Layer, Level
from greenward.sandbox.pool import LocalExecutor

TESTS = list(zip(INPUTS, EXPECTED, strict=True))
ASSERTIONS = [f"    assert candidate(*{arguments}) == {expected}" for arguments, expected in TESTS]
CHECK = "\n".join(["def check(candidate):", *ASSERTIONS, f"check({ENTRY_POINT})"])

VALUES = Problem("values", "", ENTRY_POINT, tests=tuple(Case(*test) for test in TESTS))
CHECKS = Problem("checks", "", ENTRY_POINT, tests=(Check(CHECK),))
STDIO = Problem(
    "stdio", "", "", tests=tuple(StdioCase(f"{a} {b}\n", f"{result}\n") for (a, b), result in TESTS)
)
PROGRAM = f"print({ENTRY_POINT}(*map(int, input().split())))\n"


class Graders:
    """Graders by number of workers, each started when it is first needed, on some of the layers."""

    def __init__(self, layers: Collection[Layer], open_ones: ExitStack) -> None:
        self._layers, self._open_ones = layers, open_ones
        self._graders: dict[int, Grader] = {}

    def way(self, problem: Problem, more_code: str = "") -> Way:
        def grade(codes: Sequence[str], workers: int) -> Sequence[bool]:
            answers = [(problem, code + more_code) for code in codes]
            return [verdict.passed for verdict in self._grader(workers).grade(answers)]

        return grade

    def _grader(self, workers: int) -> Grader:
        if workers not in self._graders:
            executor = LocalExecutor(workers, require=Level.D, layers=self._layers)
            lacking = set(self._layers) - set(executor.isolation.layers)
            assert not lacking, f"not in force here: {[layer.value for layer in lacking]}"
            self._open_ones.callback(executor.close)
            self._graders[workers] = Grader(executor=executor)
        return self._graders[workers]


def main() -> None:
    warnings.simplefilter("ignore")  # of weak isolation, which is wanted here
    with ExitStack() as open_ones:
        with LocalExecutor(1, require=Level.D) as executor:
            here = frozenset(executor.isolation.layers)
        protected = Graders(here, open_ones)
        ways = {
            "values": protected.way(VALUES),
            "checks": protected.way(CHECKS),
            "stdio": protected.way(STDIO, PROGRAM),
            "no layer": Graders((), open_ones).way(VALUES),
        }
        for layer in here:
            ways[f"only {layer.value}"] = Graders({layer}, open_ones).way(VALUES)
            ways[f"all but {layer.value}"] = Graders(here - {layer}, open_ones).way(VALUES)
        layers = [layer.value for layer in Layer if layer in here]
        missing = [layer.value for layer in ALL_LAYERS - here]
        serve(ways, {"layers": " ".join(layers), "missing": " ".join(missing)})


if __name__ == "__main__":
    main()
