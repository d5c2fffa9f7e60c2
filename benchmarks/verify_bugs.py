"""Puts bugs into correct programs, runs every one in the sandbox, and counts by kind what became of them.

    python benchmarks/verify_bugs.py [families classic_training humaneval ...] [--per-problem 3] [--limit N]

`--limit` takes only so many of the problems. Exits with 1 if the sandbox could not judge one.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from greenward.config.section import FamiliesConfig
from greenward.grading.judge import Grader
from greenward.grading.verification import verified_bugs
from greenward.problems.catalog import load_suite
from greenward.problems.generated import generate
from greenward.problems.mutation import repair_candidates
from greenward.problems.names import FAMILIES, SHIPPED
from greenward.problems.problem import ProblemSet
from greenward.sandbox.protocol import Limits

OUTCOMES = ("verified", "equivalent", "misbehaved", "infrastructure")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="*", default=[FAMILIES, *SHIPPED])
    parser.add_argument("--per-problem", type=int, default=3)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    totals: Counter[tuple[str, str]] = Counter()
    with Grader(Limits(), workers=options.workers) as grader:
        for source in options.sources:
            problems = grader.complete(problems_of(source)[: options.limit])
            began = time.perf_counter()
            candidates = repair_candidates(problems, per_problem=options.per_problem, seed=options.seed)
            made = time.perf_counter()
            found = verified_bugs(candidates, grader)
            print(
                f"{source}: {len(candidates)} bugs in {len(problems)} programs made in {made - began:.1f} s, "
                f"run in {time.perf_counter() - made:.1f} s; {len(found.problems)} verified"
            )
            for kind, counts in found.counts.items():
                totals.update({(kind, outcome): count for outcome, count in counts.items()})
    kinds = sorted({kind for kind, _ in totals})
    print(f"{'':22}" + "".join(f"{outcome:>15}" for outcome in OUTCOMES))
    for kind in kinds:
        print(f"{kind:22}" + "".join(f"{totals[kind, outcome]:15}" for outcome in OUTCOMES))
    sums = [sum(totals[kind, outcome] for kind in kinds) for outcome in OUTCOMES]
    print(f"{f'{len(kinds)} kinds':22}" + "".join(f"{count:15}" for count in sums))
    print(f"{'share':22}" + "".join(f"{count / max(1, sum(sums)):15.1%}" for count in sums))
    return 1 if sums[-1] else 0


def problems_of(source: str) -> ProblemSet:
    return generate(FamiliesConfig()) if source == FAMILIES else load_suite(source)


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
