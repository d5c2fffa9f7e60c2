"""Answers to contest problems judged as the judges of APPS, TACO and LiveCodeBench do.

`upstream` is LiveCodeBench's rule for printed output, stated anew: lines stripped, equal or the same
decimals.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenward.grading.compare import same_output
from greenward.grading.judge import Grader
from greenward.grading.verdict import Status, Verdict
from greenward.problems.catalog import load_file
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Limits

SUITES = ("apps", "taco", "livecodebench")


@pytest.fixture(scope="module")
def grader():
    with Grader(Limits(wall_seconds=90.0), workers=2, by_suite=True) as grader:
        yield grader


@pytest.fixture
def program(lines):
    """`program(suite, [(stdin, stdout), …])`: a problem that asks for a whole program."""

    def load(suite: str, *runs: tuple[str, str]) -> Problem:
        if suite == "livecodebench":
            tests = [{"input": stdin, "output": stdout, "testtype": "stdin"} for stdin, stdout in runs]
            return _load(lines, _live(tests))
        inputs, outputs = zip(*runs, strict=True)
        return _load(lines, _apps(suite, {"inputs": inputs, "outputs": outputs}))

    return load


@pytest.fixture
def function(lines):
    """`function(suite, name, [(arguments, value), …])`: a problem that asks for a function."""

    def load(suite: str, name: str, *calls: tuple[list[Any], Any]) -> Problem:
        if suite == "livecodebench":
            tests = [
                {
                    "input": "\n".join(map(json.dumps, args)),
                    "output": json.dumps(value),
                    "testtype": "functional",
                }
                for args, value in calls
            ]
            return _load(lines, _live(tests, name))
        inputs, outputs = zip(*calls, strict=True)
        return _load(lines, _apps(suite, {"fn_name": name, "inputs": inputs, "outputs": outputs}))

    return load


def _apps(suite: str, tests: dict[str, Any]) -> dict[str, Any]:
    number = {"problem_id": 1} if suite == "apps" else {}
    return {**number, "question": "…", "input_output": json.dumps(tests), "starter_code": ""}


def _live(tests: list[dict[str, str]], name: str | None = None) -> dict[str, Any]:
    return {
        "question_id": "1",
        "question_content": "…",
        "public_test_cases": json.dumps(tests),
        "metadata": json.dumps({"func_name": name} if name else {}),
    }


def _load(lines, row: dict[str, Any]) -> Problem:
    (problem,) = load_file(lines(row))
    return problem


def judged(grader: Grader, problem: Problem, code: str) -> Verdict:
    return grader.grade([(problem, code)])[0]


TWO_SUM = """
class Solution:
    def twoSum(self, nums: List[int], target: int) -> Optional[List[int]]:
        seen = defaultdict(int)
        for i, x in enumerate(nums):
            if target - x in seen:
                return {value}
            seen[x] = i
"""


@pytest.mark.parametrize("suite", SUITES)
def test_published_solutions_need_no_imports(grader, function, suite):
    problem = function(suite, "twoSum", ([[2, 7, 11], 9], [0, 1]), ([[3, 3], 6], [0, 1]))
    right = TWO_SUM.format(value="[seen[target - x], i]")
    assert judged(grader, problem, right).passed
    assert judged(grader, problem, "from __future__ import annotations\n" + right).passed
    assert judged(grader, problem, right.replace("[seen", "(seen").replace("i]", "i)")).passed
    assert judged(grader, problem, TWO_SUM.format(value="[i, i]")).status is Status.FAILED


@pytest.mark.parametrize("suite", SUITES)
def test_every_module_and_name_of_the_preamble_is_there(grader, program, suite):
    problem = program(suite, ("16\n", "True\n"))
    uses = [
        "string.digits == digits", "re.compile", "Counter([n])[n] == collections.Counter([n])[n]",
        "heapq.heappop([1]) == heappop([1])", "bisect.bisect([1], 0) == bisect_left([1], 0)",
        "copy.deepcopy(n) == deepcopy(n)", "math.sqrt(n) == sqrt(n) == 4", "random.random and randint",
        "statistics.mean([n]) == mean([n])", "list(itertools.accumulate([1])) == list(permutations([1])[:1] "
        "if False else accumulate([1]))", "functools.reduce is reduce and lru_cache", "operator.itemgetter",
        "io.StringIO is StringIO", "sys.stdin is stdin", "json.loads('1') == 1", "List and Optional and Deque",
        "datetime.datetime and timedelta", "pow(3, 2, 5) == 4", "sys.getrecursionlimit() == 50000",
    ]  # fmt: skip
    assert judged(grader, problem, f"n = int(input())\nprint(all([{', '.join(uses)}]))").passed


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("name", ["mul", "gcd", "combinations"])
def test_a_name_of_the_preamble_is_no_answer(grader, function, suite, name):
    problem = function(suite, name, ([6, 1], 6))
    assert judged(grader, problem, "pass").status is Status.NO_CODE
    assert judged(grader, problem, f"def {name}(a, b): return 6").passed


@pytest.mark.parametrize("suite", SUITES)
def test_programs_may_return_and_exit_at_any_place(grader, program, suite):
    problem = program(suite, ("0\n", "none\n"), ("2\n", "1\n2\n"))
    returns = """
from fractions import Fraction
import sys
n = int(input())
def show(i):
    print(Fraction(i))
if n == 0:
    print("none")
    return
for i in range(n):
    show(i + 1)
"""
    assert judged(grader, problem, returns).passed
    assert judged(grader, problem, returns.replace("return", "sys.exit(1)")).passed
    assert judged(grader, problem, returns.replace("return", "exit('done')")).passed
    assert judged(grader, problem, returns.replace("    return\n", "    1 / 0\n")).status is Status.ERROR
    assert judged(grader, problem, returns.replace('print("none")', "pass")).status is Status.FAILED
    assert judged(grader, problem, returns.replace("return", "yield")).status is Status.SYNTAX_ERROR


@pytest.mark.parametrize("suite", SUITES)
def test_programs_without_a_return_run_as_modules(grader, program, suite):
    counts = """
total = 0
def add(n):
    global total
    total += n
def main():
    for line in sys.stdin:
        add(int(line))
    print(total)
if __name__ == "__main__":
    main()
"""
    assert judged(grader, program(suite, ("1\n2\n", "3\n")), counts).passed


@pytest.mark.parametrize("suite", SUITES)
def test_printed_numbers_are_compared_as_exact_decimals(grader, program, suite):
    problem = program(suite, ("", "2.00000000 -1\nyes\n"))
    for printed, passes in (
        ("2.0 -1.0\\nyes", True),
        ("  2 -1 \\n yes\\n\\n", True),
        ("2.0000000001 -1\\nyes", False),
        ("2 -1\\nYes", False),
        ("2 -1 yes", False),
        ("2 -1\\n\\nyes", False),
    ):
        assert judged(grader, problem, f"print('{printed}')").passed is passes, printed


def upstream(printed: str, expected: str) -> bool:
    ours, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (printed, expected))
    if len(ours) != len(theirs):
        return False
    for one, other in zip(ours, theirs, strict=True):
        if one != other:
            try:
                if list(map(Decimal, one.split())) != list(map(Decimal, other.split())):
                    return False
            except ArithmeticError:
                return False
    return True


WORDS = st.sampled_from(["1", "1.0", "1.00", "1e0", "10", "-0", "0", "a", "A", "2", "inf", "1e01", "NaN"])
TEXTS_HERE = st.sampled_from(["01", "1_0", "١", "Infinity", "-00", "01.0"])  # upstream, numbers
SPACES = st.sampled_from([" ", "\n", "\t", "\r\n"])


def outputs(words):
    """Words that stand apart, some lines of them."""
    pairs = st.tuples(words, SPACES).map("".join)
    return st.lists(st.one_of(pairs, SPACES), max_size=6).map("".join)


@settings(max_examples=300, deadline=None)
@given(outputs(WORDS), outputs(WORDS))
def test_output_is_compared_as_upstream(printed, expected):
    assert same_output(printed, expected) is upstream(printed, expected)


@settings(max_examples=300, deadline=None)
@given(outputs(WORDS | TEXTS_HERE), outputs(WORDS | TEXTS_HERE))
def test_nothing_passes_that_fails_upstream(printed, expected):
    assert upstream(printed, expected) or not same_output(printed, expected)


def test_values_of_functions_are_compared_exactly(grader, function):
    for suite in SUITES:
        problem = function(suite, "f", ([1], 0.5), ([2], 0.25))
        assert judged(grader, problem, "def f(n): return 1 / 2**n").passed
        assert judged(grader, problem, "def f(n): return 1 / 2**n + 1e-9").status is Status.FAILED


def test_tuples_inside_stand_for_lists_in_apps_alone(grader, function):
    code = "def f(n): return ((n, n),)"
    assert judged(grader, function("livecodebench", "f", ([1], [[1, 1]])), code).status is Status.FAILED
    assert judged(grader, function("livecodebench", "f", ([1], [1, 1])), "def f(n): return n, n").passed
    for suite in ("apps", "taco"):
        assert judged(grader, function(suite, "f", ([1], [[1, 1]])), code).passed


def test_values_of_apps_may_be_wrapped_in_lists(grader, function):
    problem = function("apps", "f", ([1], [2]), ([2], [3]))
    assert judged(grader, problem, "def f(n): return n + 1").passed
    assert judged(grader, problem, "def f(n): return [n + 1]").passed
    assert judged(grader, problem, "def f(n): return [n]").status is Status.FAILED
    assert judged(grader, problem, "def f(n): return [n + 1, 0]").status is Status.FAILED


def test_keys_of_single_dicts_of_apps_are_integers_again(grader, function):
    problem = function("apps", "f", ([{"1": 2}], {"1": 3}), ([{"5": 2}], {"5": 3}))
    assert judged(grader, problem, "def f(d): return {key: d[key] + 1 for key in (1, 5) if key in d}").passed
    (case,) = function("apps", "f", ([{"a": 2}], 1)).cases
    assert case.args == ({"a": 2},)


BUSY = """
import time
def busy(n):
    end = time.process_time() + 0.06
    while time.process_time() < end:
        pass
"""
# Given in seconds, a limit is that of each test: the answers below take 0.3 s, 0.06 s for each of five tests.
PATIENT = Limits(cpu_seconds=0.2, wall_seconds=45.0)


@pytest.mark.parametrize("suite", SUITES)
def test_time_is_limited_for_each_test(grader, program, function, suite):
    functions = function(suite, "f", *(([n], n) for n in range(5)))
    programs = program(suite, *((str(n), str(n)) for n in range(5)))
    answers = [
        (functions, BUSY + "def f(n):\n    busy(n)\n    return n"),
        (programs, BUSY + "n = int(input())\nbusy(n)\nprint(n)"),
    ]
    with grader.with_limits(PATIENT) as patient:
        assert all(verdict.passed for verdict in patient.grade(answers))
        verdict = judged(patient, functions, "def f(n):\n    while n == 3: pass\n    return n")
        assert (verdict.status, verdict.error_class) == (Status.TIMEOUT, "CPUTimeLimit")
        assert verdict.tests_passed == (True, True, True, False, False)
        assert verdict.cpu_seconds < 0.6  # of 1.0 s for the whole answer
    assert functions.test_seconds == programs.test_seconds == (6.0 if suite == "livecodebench" else 4.0)
