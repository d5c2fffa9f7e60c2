"""Computes the expected values that a suite does not store: what its references return.

EvalPlus's files hold inputs and references. The references run in the sandbox, as trusted jobs, and
what they return is kept in the cache, one file for each problem, under a hash of all that it depends
on. A cached file carries its own hash; one that is torn or altered is computed again.

A case whose value is too large to leave the sandbox is left out: no answer could return it, either.
(Of MBPP+ five cases of Mbpp/255, whose values have up to 128 million elements.)
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from greenward.grading.time_limits import TIMES_REFERENCE
from greenward.problems.problem import Expected, Problem, ProblemSet, data_hash
from greenward.problems.suites.files import cache_folder
from greenward.runs.files import write_atomically, writing
from greenward.sandbox import codec
from greenward.sandbox.protocol import Call, Executor, Job, Limits, Outcome, RunResult
from greenward.user_text import parse_json_text

_FORMAT = 2
_MAX_CHARS = 1 << 30
# References are trusted to end: the slowest take 20 s. Answers have no more memory, either.
_LIMITS = Limits(cpu_seconds=120.0, wall_seconds=400.0, memory_bytes=1 << 30)
# A match object cannot leave its process; whether there is one can.
_IS_SOMETHING = """

_reference = {name}

def {name}(*arguments):
    return _reference(*arguments) is not None
"""


@dataclass(frozen=True)
class _Values:
    """What a reference returned: a value for each case that is kept, and the time that it took.

    `case_seconds` are those of the cases that are kept, if they could be measured.
    """

    values: list[Any]
    left_out: list[int]
    cpu_seconds: float
    case_seconds: list[float]


def with_expected_values(
    problems: ProblemSet, executor: Executor, *, cache: Path | None = None
) -> ProblemSet:
    """The problems with every `Expected.FROM_REFERENCE` replaced by what the reference returns.

    Their `cpu_seconds` become at least four times what the reference took, as EvalPlus has it, and their
    `reference_seconds` what it took for each case.
    `executor` runs the references that the folder `cache` (by default `expected` in greenward's
    cache) does not know yet. Raises `ProblemError` when a reference fails.
    """
    folder = cache if cache is not None else cache_folder() / "expected"
    known: dict[str, _Values] = {}
    missing: list[tuple[Problem, Path]] = []
    for problem in problems:
        if any(case.expected is Expected.FROM_REFERENCE for case in problem.cases):
            path = folder / f"{_key(problem)}.json"
            values = _read(path)
            if values is None:
                missing.append((problem, path))
            else:
                known[problem.task_id] = values
    if missing:
        with writing(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
    for index, result in executor.run(_job(problem) for problem, _ in missing):
        problem, path = missing[index]
        known[problem.task_id] = values = _returned(problem, result)
        _write(path, values)
    return problems.with_problems(
        _completed(problem, known[problem.task_id]) if problem.task_id in known else problem
        for problem in problems
    )


def _key(problem: Problem) -> str:
    """Names all that the values depend on, the version of Python included."""
    limits = (codec.MAX_CHARS, _LIMITS)
    inputs = [(case.args, case.kwargs) for case in problem.cases]
    program = (_program(problem), problem.setup_code, problem.entry_point)
    return data_hash([_FORMAT, sys.version_info[:2], limits, program, inputs])


def _program(problem: Problem) -> str:
    if problem.comparison.rule == "not_none":
        return problem.reference + _IS_SOMETHING.format(name=problem.entry_point)
    return problem.reference


def _job(problem: Problem) -> Job:
    if not problem.reference.strip():
        raise problem.error("its expected values come from a reference, and it has none.")
    return Job(
        code=_program(problem),
        entry_point=problem.entry_point,
        calls=tuple(Call(case.args, case.kwargs) for case in problem.cases),
        setup_code=problem.setup_code,
        limits=_LIMITS,
        trusted=True,
    )


def _returned(problem: Problem, result: RunResult) -> _Values:
    if result.outcome is not Outcome.COMPLETED or len(result.results) != len(problem.cases):
        raise problem.error(
            f"the reference gave {len(result.results)} of {len(problem.cases)} values"
            f" ({result.outcome.value}): {result.error_message}."
        )
    values, left_out = [], []
    for position, one in enumerate(result.results):
        if one.returned and one.plain:
            values.append(codec.decode(codec.encode(one.value, max_chars=_MAX_CHARS)))
        elif one.returned or one.error_class == "MemoryError":
            left_out.append(position)
        else:
            raise problem.error(
                f"the reference fails on input {position + 1}: {one.error_class}: {one.error_message}."
            )
    if not values:
        raise problem.error(
            f"the reference returns nothing that can leave the sandbox: {result.results[0].error_message}."
        )
    kept = [seconds for position, seconds in enumerate(result.call_seconds) if position not in left_out]
    return _Values(values, left_out, result.cpu_seconds, kept)


def _completed(problem: Problem, known: _Values) -> Problem:
    kept = [case for position, case in enumerate(problem.cases) if position not in known.left_out]
    base = problem.base_tests
    return replace(
        problem,
        cases=tuple(
            replace(case, expected=value) if case.expected is Expected.FROM_REFERENCE else case
            for case, value in zip(kept, known.values, strict=True)
        ),
        base_tests=None if base is None else base - sum(position < base for position in known.left_out),
        tests_left_out=problem.tests_left_out + len(known.left_out),
        cpu_seconds=max(problem.cpu_seconds, TIMES_REFERENCE * known.cpu_seconds),
        reference_seconds=tuple(known.case_seconds),
    )


def _write(path: Path, known: _Values) -> None:
    text = codec.encode(list(vars(known).values()), max_chars=_MAX_CHARS)
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_atomically(path, json.dumps({"sha256": digest, "content": text}).encode())


def _read(path: Path) -> _Values | None:
    """What a cached file holds; None if there is none, or one that is not what was written."""
    try:
        file = parse_json_text(path.read_bytes())
        text = file["content"]
        if hashlib.sha256(text.encode()).hexdigest() != file["sha256"]:
            return None
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return _Values(*codec.decode(text))
