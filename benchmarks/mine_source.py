"""Mines problems from the standard library and from packages with their tests, and judges all of them again.

    pip download --no-binary :all: --no-deps toolz more-itertools boltons   # source distributions, with tests
    for file in *.tar.gz; do tar xzf $file; done
    python benchmarks/mine_source.py toolz-* more_itertools-* boltons-* --json mining.json

The standard library is mined twice: with CPython's `test` package where it is installed (`--limit` problems),
and by doctests alone. Every problem that was written is then read from its file: the original must pass three
times, an empty body and bodies that return a constant must fail. Targets, on two idle cores: 150 problems of
the standard library with tests in 3 minutes, 60 by doctests alone, 100 of three packages. Exits with 1 if one
is missed or a problem does not hold.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from greenward.grading.answers import extract_code
from greenward.grading.judge import Grader
from greenward.problems.formats import load_json
from greenward.problems.mining import CONSTANTS, EMPTY_BODIES
from greenward.problems.problem import Doctest, Problem, ProblemSet, begun_function, function_in
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Job, RunResult
from greenward.tasks.spec import verify
from greenward.tasks.spec.verify import LIMITS, MiningOptions

MOST_SECONDS, LIBRARY, DOCTESTS, PACKAGES = 180, 150, 60, 100


class CountingExecutor(LocalExecutor):
    """Adds up the CPU time of all runs."""

    cpu_seconds = 0.0

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[int, RunResult]]:
        for index, result in super().run(jobs):
            CountingExecutor.cpu_seconds += result.cpu_seconds
            yield index, result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", help="folders of unpacked source distributions")
    parser.add_argument("--limit", type=int, default=160, help="problems of the standard library with tests")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=("library", "doctests", "packages"), help="one part alone")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    verify.LocalExecutor = CountingExecutor  # type: ignore[attr-defined]
    parts: dict[str, list[tuple[str, str, MiningOptions]]] = {
        "library": [("standard library, CPython's tests", "stdlib", MiningOptions(limit=chosen.limit))],
        "doctests": [("standard library, doctests alone", "stdlib", MiningOptions(suites=False))],
        "packages": [(Path(one).name, one, MiningOptions()) for one in chosen.packages],
    }
    if not (Path(sysconfig.get_path("stdlib")) / "test" / "test_textwrap.py").is_file():
        parts["library"] = []  # Debian, for example, leaves out CPython's tests
    rows: list[dict[str, Any]] = []
    print(f"{'source':36}{'functions':>10}{'problems':>10}{'wall s':>8}{'CPU s':>8}{'do not hold':>13}")
    for part, sources in parts.items():
        for name, source, options in sources if chosen.only in (None, part) else ():
            row = {"part": part, "source": name, **measured(source, options, chosen.workers)}
            rows.append(row)
            print(
                f"{name:36}{row['functions']:10}{row['problems']:10}{row['wall_seconds']:8.0f}"
                f"{row['cpu_seconds']:8.0f}{len(row['do_not_hold']):13}",
                flush=True,
            )
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    missed = list(misses(rows))
    print("\n".join(missed) or "every target is met")
    return 1 if missed else 0


def measured(source: str, options: MiningOptions, workers: int) -> dict[str, Any]:
    CountingExecutor.cpu_seconds = -time.process_time()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "mined"
        result = verify.mine_problems([source], out, replace(options, workers=workers))
        wall_seconds = time.perf_counter() - began
        cpu_seconds = CountingExecutor.cpu_seconds + time.process_time()
        files = [file for name in (verify.TRAIN, verify.HELD_OUT) if (file := out / name).exists()]
        written = ProblemSet(problem for file in files for problem in load_json(file))
    return {
        "functions": result.functions,
        "problems": len(written),
        "doctests": sum(bool(one.tests_of(Doctest)) for one in written),
        "methods": sum("." in one.entry_point for one in written),
        "wall_seconds": wall_seconds,
        "cpu_seconds": cpu_seconds,
        "left_out": dict(result.left_out),
        "do_not_hold": broken(written, result.packages, workers),
    }


def broken(problems: ProblemSet, packages: tuple[str, ...], workers: int) -> list[str]:
    """The problems whose original does not pass three times, or that a wrong body passes."""
    found: list[str] = []
    with Grader(LIMITS, workers=workers, packages=packages) as grader:
        for _ in range(3):
            originals = grader.grade([(problem, problem.reference) for problem in problems])
            found += [one.task_id for one, run in zip(problems, originals, strict=True) if not run.passed]
        wrong = [(problem, body) for problem in problems for body in wrong_bodies(problem)]
        answers = [(problem, extract_code(body, problem, "completion").code) for problem, body in wrong]
        runs = grader.grade(answers)
    found += [one.task_id for (one, _), run in zip(answers, runs, strict=True) if run.passed]
    return sorted(set(found))


def wrong_bodies(problem: Problem) -> list[str]:
    body = (function_in(problem, problem.reference) or "").removeprefix(begun_function(problem))
    first = next(line for line in body.splitlines() if line.strip())
    indentation = first[: len(first) - len(first.lstrip())]
    statements = (*EMPTY_BODIES, *(f"return {one}" for one in CONSTANTS))
    return [f"{indentation}{statement}\n" for statement in statements]


def misses(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row["do_not_hold"]:
            yield f"{row['source']}: these do not hold: {', '.join(row['do_not_hold'][:10])}"
        if row["part"] == "library" and row["wall_seconds"] > MOST_SECONDS:
            yield f"{row['source']}: {row['wall_seconds']:.0f} s, the target is {MOST_SECONDS} s"
    for part, least in (("library", LIBRARY), ("doctests", DOCTESTS), ("packages", PACKAGES)):
        found = [row["problems"] for row in rows if row["part"] == part]
        if found and sum(found) < least:
            yield f"{part}: {sum(found)} problems, the target is {least}"


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
