"""Expected values that a suite does not store: what its references return.

EvalPlus's files hold inputs and references. The references run in the sandbox, as trusted jobs, and
what they return is kept in the cache, one file for each problem, under a hash of all that it depends
on. A cached file carries its own hash; one that is torn or tampered with is computed again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from greenward.errors import ProblemError
from greenward.problems.data_hash import data_hash
from greenward.problems.problem import Expected, Problem, ProblemSet
from greenward.problems.suites.files import cache_folder
from greenward.runs.files import write_atomically
from greenward.sandbox import codec
from greenward.sandbox.codec import PlainDataError, PlainDict, PlainSet
from greenward.sandbox.protocol import Call, Executor, Job, Limits, Outcome, RunResult

_FORMAT = 1
_MAX_CHARS = 256 << 20
# References are trusted to end; the slowest take some seconds for a thousand inputs.
_LIMITS = Limits(cpu_seconds=120.0, wall_seconds=400.0, memory_bytes=4 << 30, output_bytes=1 << 20)
# A match object cannot leave its process; whether there is one can.
_IS_SOMETHING = """

_reference = {name}

def {name}(*arguments):
    return _reference(*arguments) is not None
"""


def with_expected_values(
    problems: ProblemSet, executor: Executor, *, cache: Path | None = None
) -> ProblemSet:
    """The problems with every `Expected.FROM_REFERENCE` replaced by what the reference returns.

    `executor` runs the references that the folder `cache` (by default `expected` in greenward's
    cache) does not know yet. Raises `ProblemError` when a reference does not return plain data.
    """
    folder = cache if cache is not None else cache_folder() / "expected"
    open_problems = [problem for problem in problems if _is_open(problem)]
    values: dict[str, list[Any]] = {}
    missing: list[tuple[Problem, Path]] = []
    for problem in open_problems:
        path = folder / f"{_key(problem)}.json"
        known = _read(path, len(problem.cases))
        if known is None:
            missing.append((problem, path))
        else:
            values[problem.task_id] = known
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
    for index, result in executor.run(_job(problem) for problem, _ in missing):
        problem, path = missing[index]
        values[problem.task_id] = _returned(problem, result)
        _write(path, values[problem.task_id])
    return ProblemSet((_completed(problem, values) for problem in problems), name=problems.name)


def _is_open(problem: Problem) -> bool:
    return any(case.expected is Expected.FROM_REFERENCE for case in problem.cases)


def _key(problem: Problem) -> str:
    """Names all that the values depend on, the version of Python included."""
    inputs = [(case.args, case.kwargs) for case in problem.cases]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return data_hash([_FORMAT, python, _program(problem), problem.setup_code, problem.entry_point, inputs])


def _program(problem: Problem) -> str:
    if problem.comparison.rule == "not_none":
        return problem.reference + _IS_SOMETHING.format(name=problem.entry_point)
    return problem.reference


def _job(problem: Problem) -> Job:
    if not problem.reference.strip():
        raise ProblemError(f"{problem.task_id}: its expected values come from a reference, and it has none.")
    return Job(
        code=_program(problem),
        entry_point=problem.entry_point,
        calls=tuple(Call(case.args, case.kwargs) for case in problem.cases),
        setup_code=problem.setup_code,
        limits=_LIMITS,
        trusted=True,
    )


def _returned(problem: Problem, result: RunResult) -> list[Any]:
    for number, one in enumerate(result.results, start=1):
        if not one.returned or not one.plain:
            raise ProblemError(
                f"{problem.task_id}: the reference gives no plain value for input {number}:"
                f" {one.error_class or ''} {one.error_message}."
            )
    if result.outcome is not Outcome.COMPLETED or len(result.results) != len(problem.cases):
        raise ProblemError(
            f"{problem.task_id}: the reference gave {len(result.results)} of {len(problem.cases)} values"
            f" ({result.outcome.value}): {result.error_message}."
        )
    return [_rebuilt(one.value) for one in result.results]


def _rebuilt(value: Any) -> Any:
    """A flat value of trusted code with real sets and dicts; a set inside a set is frozen."""
    if isinstance(value, PlainSet):
        return frozenset(map(_rebuilt, value.elements))
    if isinstance(value, PlainDict):
        return {_rebuilt(key): _rebuilt(entry) for key, entry in value.entries}
    if type(value) in (list, tuple):
        return type(value)(map(_rebuilt, value))
    return value


def _completed(problem: Problem, values: Mapping[str, list[Any]]) -> Problem:
    if problem.task_id not in values:
        return problem
    cases = tuple(
        replace(case, expected=value) if case.expected is Expected.FROM_REFERENCE else case
        for case, value in zip(problem.cases, values[problem.task_id], strict=True)
    )
    return replace(problem, cases=cases)


def _write(path: Path, values: list[Any]) -> None:
    try:
        text = codec.encode(values, max_chars=_MAX_CHARS)
    except PlainDataError as error:
        raise ProblemError(f"{path.name}: expected values cannot be kept: {error}.") from None
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_atomically(path, json.dumps({"sha256": digest, "values": text}).encode())


def _read(path: Path, count: int) -> list[Any] | None:
    """The values of a cached file; None if there is none, or one that is not what was written."""
    try:
        content = json.loads(path.read_bytes())
        text = content["values"]
        if hashlib.sha256(text.encode()).hexdigest() != content["sha256"]:
            return None
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return None
    values = codec.decode(text)
    return values if isinstance(values, list) and len(values) == count else None
