"""Problems whose references, bugs and failing tests were run before they are used."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from greenward.common.errors import ProblemError
from greenward.grading.execution import ExecutionJudge
from greenward.grading.extracted import Extracted
from greenward.grading.judge import TIMES_REFERENCE, Grader, build_grader
from greenward.grading.testcases import demand_judgeable
from greenward.grading.verdict import Family, Status, Verdict
from greenward.problems.catalog import load_problems
from greenward.problems.formats import refuse_test_ids
from greenward.problems.names import BUGS, FAMILY_PREFIX, MODULES, PLANTED
from greenward.problems.problem import (
    Problem,
    ProblemSet,
    bug_kind,
    first_shared,
    original_id,
    shared_problems,
)
from greenward.problems.rows import BadRow

if TYPE_CHECKING:
    from greenward.config.recipe import Recipe


@dataclass(frozen=True)
class VerifiedBugs:
    """Problems of repair whose bug is known to fail a test, and the result for all that were tried.

    `counts` has for each kind of bug the number of candidates by outcome: verified, equivalent (no test
    finds it), misbehaved or infrastructure.
    """

    problems: ProblemSet
    counts: Mapping[str, Counter[str]]


def verified_bugs(candidates: ProblemSet, grader: Grader, *, per_problem: int | None = None) -> VerifiedBugs:
    """The candidates whose `buggy_code` is judged and fails, up to `per_problem` of each original.

    Each says in `failing_test` what went wrong first. A bug that no test finds (`equivalent`) is
    dropped, and so is one that breaks a limit of the sandbox, since every answer that leaves it in would
    cost the whole limit. Candidates of one original are tried in order, and only as many as are needed.
    """
    waiting: dict[str, list[Problem]] = defaultdict(list)
    for candidate in reversed(candidates):
        waiting[original_id(candidate)].append(candidate)
    found: dict[str, Problem] = {}
    missing = {original: per_problem or len(queue) for original, queue in waiting.items()}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    while tried := [
        queue.pop() for original, queue in waiting.items() for _ in range(min(missing[original], len(queue)))
    ]:
        verdicts = grader.grade([(candidate, candidate.buggy_code) for candidate in tried])
        for candidate, verdict in zip(tried, verdicts, strict=True):
            outcome: str = verdict.status.family.value
            if verdict.status.family is Family.JUDGED:
                outcome = "equivalent" if verdict.passed else "verified"
            counts[bug_kind(candidate)][outcome] += 1
            if outcome == "verified":
                found[candidate.task_id] = replace(candidate, failing_test=verdict.failure)
                missing[original_id(candidate)] -= 1
    problems = (found[candidate.task_id] for candidate in candidates if candidate.task_id in found)
    return VerifiedBugs(candidates.with_problems(problems), counts)


def with_failing_tests(problems: ProblemSet, grader: Grader) -> ProblemSet:
    """The problems, each with a buggy program saying in `failing_test` which of its tests fails first."""
    unknown = [problem for problem in problems if problem.buggy_code and not problem.failing_test]
    verdicts = grader.grade([(problem, problem.buggy_code) for problem in unknown])
    told = {
        problem.task_id: replace(problem, failing_test=verdict.failure)
        for problem, verdict in zip(unknown, verdicts, strict=True)
        if not verdict.passed and verdict.status.family is not Family.INFRASTRUCTURE
    }
    return problems.with_problems(told.get(problem.task_id, problem) for problem in problems)


def build_problems(
    recipe: Recipe, given: Mapping[str, ProblemSet] = MappingProxyType({})
) -> tuple[ProblemSet, ProblemSet]:
    """The problems to train on and the held-out ones, which share none (`shared_problems`).

    `given` holds those of a caller (`train`, `held_out`), whatever the recipe names.

    Raises `ProblemError` for problems in both, and for test problems of MBPP to train on unless
    `problems.allow_test_ids` is set.
    """
    section = recipe.problems
    parts: tuple[Literal["train", "held_out"], ...] = ("train", "held_out")
    train, held_out = (
        given[part] if part in given else load_verified(getattr(section, part), recipe, part=part)
        for part in parts
    )
    if not section.allow_test_ids:
        refuse_test_ids(train, override="problems.allow_test_ids=true")
    if not section.allow_shared and (shared := shared_problems(train, held_out)):
        raise ProblemError(
            f"{len(shared)} problems are both trained on and held out (first: {first_shared(shared)}).",
            remedy="Give problems.train and problems.held_out different problems, or set "
            "problems.allow_shared=true.",
        )
    return train, held_out


def load_verified(
    source: str, recipe: Recipe, *, part: Literal["train", "held_out"], skip_bad_rows: bool = False
) -> ProblemSet:
    """The problems that `source` names, with what is told of their bugs; of `bugs:` those that a test finds.

    Both sides of a recipe are split before bugs are put in, so that no held-out program was seen with
    another bug. `skip_bad_rows`, or that key of the recipe, leaves out rows that cannot be used. Raises
    `ProblemError`.
    """
    section = recipe.problems
    load = partial(load_problems, source, section.families, part, bugs=section.bugs)
    problems = usable(load, skip_bad_rows=skip_bad_rows or section.skip_bad_rows)
    made = source.startswith((BUGS, PLANTED))
    if not made and not (section.bugs.show_failing_test and any(problem.buggy_code for problem in problems)):
        return problems
    with build_grader(recipe.sandbox) as grader:
        problems = grader.complete(problems)
        if not made:
            return with_failing_tests(problems, grader)
        found = verified_bugs(problems, grader, per_problem=section.bugs.per_problem).problems
        if source.startswith(PLANTED) and (failing := failing_references(found[:1], grader)):
            raise ProblemError(f"{source}: the package fails its own tests without a bug: {failing[0]}")
    if not found:
        raise ProblemError(f"{source}: no test finds any of the {len(problems)} bugs that were tried.")
    return found


def usable(load: Callable[..., ProblemSet], *, skip_bad_rows: bool) -> ProblemSet:
    """The problems that `load` gives; with `skip_bad_rows` without those that cannot be read or judged.

    What is left out is in `ProblemSet.skipped`. An error about a bad row says that the option leaves it out.
    """
    try:
        problems = load(skip_bad_rows=skip_bad_rows)
    except BadRow as error:
        remedy = " ".join(filter(None, (error.remedy, "Or leave such rows out by --skip-bad-rows.")))
        raise ProblemError(error.message, remedy=remedy) from None
    if not skip_bad_rows:
        return problems
    kept, skipped = [], list(problems.skipped)
    for problem in problems:
        try:
            demand_judgeable(problem)
            kept.append(problem)
        except ProblemError as error:
            skipped.append(error.message)
    return ProblemSet(kept, name=problems.name, skipped=tuple(skipped))


def failing_references(problems: Sequence[Problem], grader: ExecutionJudge) -> list[str]:
    """A line for each reference solution that fails the tests of its problem, which must have one."""
    verdicts = _judged_references(problems, grader)
    return [_failure_line(*one) for one in zip(problems, verdicts, strict=True) if not one[1].passed]


def _judged_references(problems: Sequence[Problem], grader: ExecutionJudge) -> list[Verdict]:
    return grader.grade([(problem, reference_answer(problem)) for problem in problems])


def _failure_line(problem: Problem, verdict: Verdict) -> str:
    details = ", ".join(filter(None, (verdict.error_message, verdict.first_failure)))
    return f"{problem.task_id}: {verdict.status.value}. {details}"


def reference_answer(problem: Problem) -> Extracted:
    """The reference of a problem with all files that it changes."""
    return Extracted(problem.reference, files=tuple((problem.reference_files or {}).items()))


@dataclass(frozen=True)
class VerifiedReferences:
    """Problem sets whose references were run, how many there were, and a line for each that was slow."""

    problem_sets: Sequence[ProblemSet]
    count: int = 0
    slow: Sequence[str] = ()


def verify_references(
    recipe: Recipe, grader: ExecutionJudge, *problem_sets: ProblemSet, extend_limits: bool = True
) -> VerifiedReferences:
    """Run the reference solutions of problems from files: rewards from wrong tests are wrong.

    A reference that exceeds the CPU time of an answer is run again with four times as much, with
    `extend_limits`. If it passes then, answers to its problem may take four times as long as it took
    (EvalPlus's factor). Generated problems are verified where they are made, and problems without a reference
    are not checked. Raises `ProblemError` naming every reference that fails and why.
    """
    if not recipe.problems.verify_references:
        return VerifiedReferences(problem_sets)
    made = (FAMILY_PREFIX, f"{MODULES}/")
    given = [p for p in chain(*problem_sets) if p.reference and not p.task_id.startswith(made)]
    failing = {
        problem.task_id: (problem, verdict)
        for problem, verdict in zip(given, _judged_references(given, grader), strict=True)
        if not verdict.passed
    }
    most = recipe.sandbox.cpu_seconds
    late = [
        replace(problem, cpu_seconds=TIMES_REFERENCE * max(most, problem.cpu_seconds))
        for problem, verdict in failing.values()
        if extend_limits and verdict.status is Status.TIMEOUT
    ]
    slow: dict[str, Problem] = {}
    lines = []
    for problem, verdict in zip(late, _judged_references(late, grader), strict=True):
        if verdict.passed:
            del failing[problem.task_id]
            allowed = TIMES_REFERENCE * verdict.cpu_seconds
            slow[problem.task_id] = replace(problem, cpu_seconds=allowed)
            lines.append(
                f"{problem.task_id}: its reference took {verdict.cpu_seconds:.1f} s of CPU time, more than "
                f"sandbox.cpu_seconds ({most:g}). Answers to it may take {allowed:.0f} s."
            )
    if failing:
        failures = [_failure_line(*one) for one in failing.values()]
        missing = sorted({name for line in failures for name in re.findall(r"No module named '(\w+)", line)})
        first = (
            f"Allow what they import: sandbox.packages=[{','.join(missing)}]. Or fix" if missing else "Fix"
        )
        raise ProblemError(
            f"{len(failures)} of {len(given)} reference solutions fail their own tests:\n  "
            + "\n  ".join(failures[:10]),
            remedy=f"{first} the tests or the references, or set problems.verify_references=false.",
        )
    sets = [one.with_problems(slow.get(p.task_id, p) for p in one) for one in problem_sets]
    return VerifiedReferences(sets, len(given), lines)
