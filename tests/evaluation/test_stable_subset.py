from __future__ import annotations

from collections import Counter

from greenward.evaluation.suites import stable_subset
from greenward.problems.problem import Problem, ProblemSet


def problem_set(sizes: dict[str, int]) -> ProblemSet:
    return ProblemSet(
        Problem(task_id=f"{tag}/{number}", prompt="", entry_point="f", tags=(tag,))
        for tag, size in sizes.items()
        for number in range(size)
    )


def test_choice_does_not_depend_on_the_order_of_the_set() -> None:
    problems = problem_set({"lists": 50, "strings": 30})
    turned = ProblemSet(reversed(problems))
    assert {p.task_id for p in stable_subset(problems, 20)} == {p.task_id for p in stable_subset(turned, 20)}


def test_choice_keeps_the_order_of_the_set() -> None:
    problems = problem_set({"lists": 40})
    order = {problem.task_id: position for position, problem in enumerate(problems)}
    positions = [order[problem.task_id] for problem in stable_subset(problems, 10)]
    assert positions == sorted(positions)


def test_each_tag_has_its_share() -> None:
    chosen = stable_subset(problem_set({"lists": 200, "strings": 100, "numbers": 20}), 32)
    counts = Counter(problem.tags[0] for problem in chosen)
    assert len(chosen) == 32
    assert abs(counts["lists"] - 20) <= 1
    assert abs(counts["strings"] - 10) <= 1
    assert abs(counts["numbers"] - 2) <= 1


def test_larger_choice_contains_the_smaller() -> None:
    problems = problem_set({"lists": 60, "strings": 25, "odd": 1})
    small, large = ({p.task_id for p in stable_subset(problems, count)} for count in (12, 30))
    assert small < large


def test_all_are_chosen_when_there_are_no_more() -> None:
    problems = problem_set({"lists": 5})
    assert stable_subset(problems, 5) is problems
    assert stable_subset(problems, 500) is problems
