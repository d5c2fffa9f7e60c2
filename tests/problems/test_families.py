"""Generated problems: their operations, their cases, their split."""

from __future__ import annotations

import ast
import hashlib
import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_oracles import ORACLES, expected_of

from greenward.common.errors import ProblemError
from greenward.config.section import FamiliesConfig
from greenward.grading.judge import Grader
from greenward.problems.generated import (
    OPERATIONS,
    Composition,
    Kind,
    compiled,
    generate,
    read_operations,
    split,
)
from greenward.problems.problem import Problem, ProblemSet
from greenward.sandbox.protocol import Limits

EDGES = {Kind.NUMBERS: ([], [0]), Kind.NUMBER: (0, -1), Kind.TEXT: ("", " "), Kind.WORDS: ([], [""])}

VALUES = {
    Kind.NUMBERS: st.lists(st.integers(-50, 50), max_size=9),
    Kind.NUMBER: st.integers(-200, 200),
    Kind.TEXT: st.text(alphabet="abeiXYU 19!-,", max_size=12),
    Kind.WORDS: st.lists(st.text(alphabet="abeXY1", max_size=5), max_size=6),
}

# Everything that the process computes, in one line: equal lines mean equal problems and splits.
FINGERPRINT = """
import hashlib
from greenward.config.section import FamiliesConfig
from greenward.problems.generated import generate
from greenward.problems.generated import split
problems = generate(FamiliesConfig(limit=400, seed=5))
sides = [[p.task_id for p in side] for side in split(problems, 0.2, 5)]
print(hashlib.sha256(repr((list(problems), sides)).encode()).hexdigest())
"""


def depth(problem: Problem) -> int:
    return len(Composition.of(problem.task_id).operations)


def test_there_are_at_least_sixty_templates_with_one_to_three_wrong_expressions() -> None:
    assert len({operation.template for operation in OPERATIONS.values()}) >= 60
    assert len(OPERATIONS) == len(list(read_operations()))  # each has a name of its own
    assert all(1 <= len(operation.wrong_expressions) <= 3 for operation in OPERATIONS.values())


def test_phrases_and_expressions_are_each_of_one_operation_of_a_kind() -> None:
    signatures = Counter((operation.takes, operation.phrase) for operation in OPERATIONS.values())
    assert max(signatures.values()) == 1
    meanings = Counter((operation.takes, operation.expression) for operation in OPERATIONS.values())
    assert max(meanings.values()) == 1


def test_every_operation_has_an_oracle() -> None:
    assert {operation.template for operation in OPERATIONS.values()} == ORACLES.keys()


@pytest.mark.parametrize("examples", [12, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operation_computes_what_its_phrase_says(name: str, examples: int) -> None:
    operation = OPERATIONS[name]

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(VALUES[operation.takes])
    def agrees(value: object) -> None:
        result = compiled(operation.takes, operation.expression)(value)
        expected = expected_of(operation, value)
        assert result == expected
        assert type(result) is type(expected)

    agrees()


def test_there_are_thousands_of_problems(problems: ProblemSet) -> None:
    assert sum(depth(problem) == 2 for problem in problems) >= 4000
    assert len({problem.prompt for problem in problems}) == len(problems)


def test_expected_values_follow_the_oracles(problems: ProblemSet) -> None:
    for problem in problems:
        for case in problem.cases:
            value = case.args[0]
            for operation in Composition.of(problem.task_id).operations:
                value = expected_of(operation, value)
            assert case.expected == value, problem.task_id


def test_every_problem_has_eight_distinct_cases_and_the_edge_cases_of_its_kind(problems: ProblemSet) -> None:
    for problem in problems:
        inputs = [case.args[0] for case in problem.cases]
        assert len(inputs) >= 8
        assert len(set(map(repr, inputs))) == len(inputs)
        assert all(edge in inputs for edge in EDGES[Composition.of(problem.task_id).takes])


def test_outputs_vary_and_no_operation_is_idle(problems: ProblemSet) -> None:
    for problem in problems:
        outputs = Counter(repr(case.expected) for case in problem.cases)
        assert len(outputs) >= 3
        operations = Composition.of(problem.task_id).operations
        alone = [
            op for op in operations if op.takes is operations[0].takes and op.gives is operations[-1].gives
        ]
        if len(operations) == 2:
            for operation in alone:
                assert any(expected_of(operation, c.args[0]) != c.expected for c in problem.cases), (
                    problem.task_id
                )


def test_cases_catch_every_wrong_expression_that_random_inputs_reveal(problems: ProblemSet) -> None:
    """Weak tests would reward wrong answers. Inputs here are drawn apart from the generator's."""
    rng = random.Random(11)
    missed, revealed = [], 0
    numbers = [[rng.randint(-9, 12) for _ in range(6)] for _ in range(20)]
    chosen = [p for p in problems if Composition.of(p.task_id).takes is Kind.NUMBERS][::5]
    for problem in chosen:
        chain = Composition.of(problem.task_id)
        for _, expressions in chain.wrong_variants():
            is_revealed = any(
                chain.fails(expressions, xs, chain.evaluate(chain.expressions, xs)) for xs in numbers
            )
            is_caught = any(chain.fails(expressions, c.args[0], c.expected) for c in problem.cases)
            revealed += is_revealed
            if is_revealed and not is_caught:
                missed.append((problem.task_id, expressions))
    assert revealed > 1000
    assert not missed


def test_reference_continues_the_starter_code_by_one_statement_an_operation(problems: ProblemSet) -> None:
    for problem in problems[::7]:
        assert problem.reference.startswith(problem.starter_code)
        assert f'"""{problem.prompt}"""' in problem.starter_code
        (function,) = ast.parse(problem.reference).body
        assert isinstance(function, ast.FunctionDef) and function.name == problem.entry_point
        assert len(function.body) == 1 + depth(problem)


@pytest.mark.parametrize("count", [50, pytest.param(300, marks=pytest.mark.slow)])
def test_references_pass_in_the_sandbox(problems: ProblemSet, count: int) -> None:
    sample = random.Random(3).sample(list(problems), count)
    with Grader(Limits(), workers=2) as grader:
        verdicts = grader.grade([(problem, problem.reference) for problem in sample])
    assert [v.status.value for v in verdicts] == ["passed"] * len(sample)


def test_specification_reads_as_one_sentence() -> None:
    chain = Composition.of("families/keep_even+sum")
    assert chain.specification == "Keep the even numbers, then add up the numbers."
    assert chain.starter_code + chain.body(chain.expressions) == (
        "def solve(xs):\n"
        '    """Keep the even numbers, then add up the numbers."""\n'
        "    xs = [x for x in xs if x % 2 == 0]\n"
        "    return sum(xs)\n"
    )


def test_depth_and_limit_are_obeyed() -> None:
    assert {depth(p) for p in generate(FamiliesConfig(max_depth=1))} == {1}
    deep = generate(FamiliesConfig(max_depth=3, limit=200))
    assert len(deep) == 200
    assert {depth(p) for p in deep} >= {2, 3}


def test_a_limit_takes_from_the_whole_set(problems: ProblemSet) -> None:
    limited = generate(FamiliesConfig(limit=300))
    assert {p.task_id for p in limited} <= {p.task_id for p in problems}
    assert all(problems.by_id(p.task_id) == p for p in limited)
    assert len({Composition.of(p.task_id).takes for p in limited}) == len(Kind)


def test_another_seed_gives_other_cases(problems: ProblemSet) -> None:
    other = generate(FamiliesConfig(seed=1, limit=50))
    shared = [p for p in other if p.task_id in {q.task_id for q in problems}]
    assert shared and all(problems.by_id(p.task_id).cases != p.cases for p in shared)


def test_problems_and_split_do_not_depend_on_the_hash_seed() -> None:
    lines = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "4242")
    }
    assert len(lines) == 1
    here = generate(FamiliesConfig(limit=400, seed=5))
    sides = [[p.task_id for p in side] for side in split(here, 0.2, 5)]
    assert lines == {hashlib.sha256(repr((list(here), sides)).encode()).hexdigest() + "\n"}


@pytest.mark.parametrize(
    ("held_out", "seed"),
    [
        (0.05, 0),
        (0.5, 1),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((0.05, 1), (0.2, 0), (0.2, 1), (0.5, 0))),
    ],
)
def test_split_is_disjoint_and_complete(problems: ProblemSet, held_out: float, seed: int) -> None:
    train, hidden = split(problems, held_out, seed)
    assert len(train) + len(hidden) == len(problems)
    for what in ("task_id", "prompt", "reference"):
        assert not {getattr(p, what) for p in train} & {getattr(p, what) for p in hidden}
    assert abs(len(hidden) / len(problems) - held_out) < 0.03


def test_held_out_operations_all_occur_in_training(problems: ProblemSet) -> None:
    for limit in (40, 200, None):
        few = ProblemSet(list(problems)[:: len(problems) // limit] if limit else problems)
        train, hidden = split(few, 0.3, 2)
        trained = {name for p in train for name in p.task_id.removeprefix("families/").split("+")}
        assert all(set(p.task_id.removeprefix("families/").split("+")) <= trained for p in hidden)


def test_side_of_a_problem_does_not_depend_on_the_other_problems(problems: ProblemSet) -> None:
    _, hidden = split(problems, 0.2, 0)
    _, hidden_of_half = split(problems[: len(problems) // 2], 0.2, 0)
    half_ids = {p.task_id for p in problems[: len(problems) // 2]}
    assert {p.task_id for p in hidden_of_half} <= {p.task_id for p in hidden} & half_ids


def test_an_empty_side_is_an_error(problems: ProblemSet) -> None:
    with pytest.raises(ProblemError, match="0 held out"):
        split(problems[:3], 0.001, 0)


def test_only_ids_of_generated_problems_name_a_composition() -> None:
    for task_id in ("add", "families/keep_eve", "keep_even"):
        with pytest.raises(ProblemError, match=r"families/<operation>"):
            Composition.of(task_id)
