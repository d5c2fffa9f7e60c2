"""Which candidate bugs are bugs: those that a test of the problem finds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from greenward.grading.grader import Grader
from greenward.grading.verdict import Family
from greenward.problems.mutation.repair import bug_kind, original_id
from greenward.problems.problem import Problem, ProblemSet


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
