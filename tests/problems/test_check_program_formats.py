"""MultiPL-E, MBXP, HumanEval-X and LeetCodeDataset: rows written in their shapes, loaded and judged in the sandbox."""

from __future__ import annotations

import json

import pytest

import greenward
from greenward.common.errors import ProblemError
from greenward.grading.judge import Grader
from greenward.problems.catalog import load_file, load_suite

MULTIPL_E = {
    "name": "HumanEval_900_double_all",
    "language": "py",
    "prompt": 'from typing import List\n\ndef double_all(xs: List[int]) -> List[int]:\n    """ Double each. """\n',
    "tests": "def check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n    assert candidate([]) == []\n\n"
    "def test_check():\n    check(double_all)\n\ntest_check()\n",
    "stop_tokens": ["\ndef", "\n#", "\nif", "\nclass"],
    "doctests": "transform",
}
MBXP = {
    "task_id": "MBPP/900",
    "language": "python",
    "prompt": '\n\ndef larger(a, b):\n\t"""\n\tWrite a function that gives the larger of two.\n\t"""\n',
    "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate(1, 2) == 2\n"
    "    assert candidate(5, -5) == 5\n",
    "entry_point": "larger",
    "canonical_solution": "\treturn a if a > b else b\n",
}
HUMANEVAL_X = {
    "task_id": "Python/900",
    "prompt": 'def twice(x):\n    return 2 * x\n\n\ndef double_all(xs):\n    """ Double each. """\n',
    "declaration": "def twice(x):\n    return 2 * x\n\n\ndef double_all(xs):\n",
    "canonical_solution": "    return [twice(x) for x in xs]\n",
    "test": "\n\nMETADATA = {}\n\n\ndef check(double_all):\n    assert double_all([1, 2]) == [twice(1), 4]\n"
    "\ncheck(double_all)\n",
    "example_test": "def check(double_all):\n    assert double_all([]) == []\ncheck(double_all)\n",
    "text": " Double each.",
}
PREAMBLE = (
    "from typing import *\nfrom collections import *\n\n"
    "class ListNode:\n    def __init__(self, val=0, next=None):\n        self.val = val\n"
    "        self.next = next\n\n"
    "def list_node(values):\n    head = ListNode(0)\n    p = head\n    for val in values:\n"
    "        p.next = ListNode(val)\n        p = p.next\n    return head.next\n\n"
    "def is_same_list(p, q):\n    while p and q:\n        if p.val != q.val:\n            return False\n"
    "        p, q = p.next, q.next\n    return p is None and q is None\n"
)
PAIR = {
    "task_id": "pair-sum",
    "difficulty": "Easy",
    "entry_point": "Solution().pairSum",
    "prompt": "from typing import *\nfrom collections import defaultdict\n",
    "starter_code": "class Solution:\n    def pairSum(self, nums: List[int], target: int) -> List[int]:\n        ",
    "test": "def check(candidate):\n    assert candidate(nums=[2, 7, 11], target=9) == [0, 1]\n"
    "    assert candidate(nums=[3, 3], target=6) == [0, 1]\n",
    "completion": "class Solution:\n    def pairSum(self, nums: List[int], target: int) -> List[int]:\n"
    "        seen = defaultdict(int)\n        for i, n in enumerate(nums):\n"
    "            if target - n in seen:\n                return [seen[target - n], i]\n            seen[n] = i\n",
    "query": "You are given a list. Return the places of two numbers that add up to the target.",
}
REVERSE = PAIR | {
    "task_id": "reverse",
    "entry_point": "Solution().reverse",
    "prompt": PREAMBLE,
    "starter_code": "class Solution:\n    def reverse(self, head: Optional[ListNode]) -> Optional[ListNode]:\n        ",
    "test": "def check(candidate):\n"
    "    assert is_same_list(candidate(head=list_node([1, 2, 3])), list_node([3, 2, 1]))\n"
    "    assert is_same_list(candidate(head=list_node(list(range(3000)))), "
    "list_node(list(range(2999, -1, -1))))\n    assert candidate(head=None) is None\n",
    "completion": "class Solution:\n    def reverse(self, head: Optional[ListNode]) -> Optional[ListNode]:\n"
    "        last = None\n        while head:\n            head.next, head, last = last, head.next, head\n"
    "        return last\n",
}
EQUAL_TO_ALL = (
    "class Equal:\n    val = 1\n    next = None\n    def __eq__(self, other): return True\n"
    "    def __ne__(self, other): return False\n    def __bool__(self): return False\n"
)


@pytest.fixture(scope="module")
def judge():
    with Grader(workers=1) as grader:
        yield lambda problem, *codes: [
            verdict.status.value for verdict in grader.grade([(problem, code) for code in codes])
        ]


def test_a_row_of_multipl_e_loads_and_is_judged_by_its_tests(lines, judge):
    (problem,) = load_suite(str(lines(MULTIPL_E)))
    assert (problem.task_id, problem.entry_point) == ("HumanEval_900_double_all", "double_all")
    right, wrong = (problem.starter_code + f"    return [{factor} * x for x in xs]\n" for factor in (2, 3))
    assert judge(problem, right, wrong) == ["passed", "failed"]


def test_tests_of_multipl_e_that_call_nothing_are_called(lines, judge):
    tests = "def check(candidate):\n    assert candidate([1]) == [2]\n"
    (problem,) = load_suite(str(lines(MULTIPL_E | {"tests": tests})))
    assert judge(problem, "def double_all(xs):\n    return xs\n") == ["failed"]
    with pytest.raises(ProblemError, match="neither calls the function nor defines check"):
        load_file(lines(MULTIPL_E | {"tests": "import math\n"}))


@pytest.mark.parametrize("canonical", [MBXP["canonical_solution"], None])
def test_a_row_of_mbxp_loads_with_or_without_a_reference(lines, judge, canonical):
    (problem,) = load_suite(str(lines(MBXP | {"canonical_solution": canonical})))
    assert bool(problem.reference) is (canonical is not None)
    assert problem.prompt == "Write a function that gives the larger of two."
    answers = (problem.starter_code + f"\treturn {word}(a, b)\n" for word in ("max", "min"))
    assert judge(problem, *answers) == ["passed", "failed"]
    if problem.reference:
        assert judge(problem, problem.reference) == ["passed"]


def test_a_row_of_humaneval_x_is_judged_by_the_last_function_of_its_prompt(lines, judge, tmp_path):
    suite = lines(HUMANEVAL_X)
    (problem,) = load_suite(str(suite))
    assert (problem.entry_point, problem.prompt) == ("double_all", "Double each.")
    assert judge(problem, problem.reference, problem.starter_code + "    return xs\n") == ["passed", "failed"]
    answers = tmp_path / "answers.jsonl"
    rows = ({"task_id": "Python/900", "completion": f"    return [{n} * x for x in xs]\n"} for n in (2, 3))
    answers.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    graded = greenward.grade(answers, str(suite), quiet=True, output=tmp_path / "graded")
    assert graded.summary["statuses"] == {"passed": 1, "failed": 1}
    with pytest.raises(ProblemError, match=r"'task_id' must name a problem in Python.*'CPP/0'"):
        load_file(lines(HUMANEVAL_X | {"task_id": "CPP/0", "prompt": "int f(int x){\n"}))
    with pytest.raises(ProblemError, match="'prompt' does not end in the signature of a function"):
        load_file(lines(HUMANEVAL_X | {"prompt": "x = 1\n"}))


@pytest.mark.parametrize("row", [MULTIPL_E, MBXP])
def test_other_languages_are_refused_by_name(lines, row):
    with pytest.raises(ProblemError, match=r"row 1 \(line 1\): field 'language' is 'js'; only Python"):
        load_file(lines(row | {"language": "js"}))


def test_a_method_is_judged_with_the_imports_of_the_prompt_before_the_answer(lines, judge):
    (problem,) = load_suite(str(lines(PAIR)))
    assert problem.entry_point == "pairSum"
    assert problem.prompt.startswith("You are given a list.")
    body = "class Solution:\n    def pairSum(self, nums, target):\n        return {}\n"
    answers = [
        problem.reference,
        body.format("[1, 0]"),
        "x = 1\n",
        EQUAL_TO_ALL + body.format("Equal()"),
        "import sys\ndef check(candidate): pass\nsys.modules['checks'] = None\n" + body.format("[0, 9]"),
        body.format("(_ for _ in ()).throw(StopIteration)"),
    ]
    statuses = judge(problem, *answers)
    assert statuses[0] == "passed"
    assert "passed" not in statuses[1:]


def test_one_instance_serves_all_calls_of_a_check(lines, judge):
    (problem,) = load_suite(str(lines(PAIR)))
    counting = (
        "class Solution:\n    def __init__(self):\n        self.calls = 0\n"
        "    def pairSum(self, nums, target):\n        self.calls += 1\n"
        "        return [0, 1] if (self.calls, len(nums)) in ((1, 3), (2, 2)) else None\n"
    )
    assert judge(problem, counting) == ["passed"]


def test_instances_of_the_prompts_classes_cross_and_those_of_the_answer_do_not(lines, judge):
    (problem,) = load_suite(str(lines(REVERSE)))
    method = "class Solution:\n    def reverse(self, head):\n"
    answers = [
        problem.reference,
        method + "        return head\n",
        EQUAL_TO_ALL + method + "        return Equal()\n",
        # A class of the same name whose objects are equal to all: only its attributes cross.
        EQUAL_TO_ALL.replace("class Equal", "class ListNode") + method + "        return ListNode()\n",
        method + "        head.next = head\n        return head\n",
        f"{PREAMBLE}\nis_same_list = lambda p, q: True\n{method}        return None\n",
    ]
    statuses = judge(problem, *answers)
    assert statuses[0] == "passed"
    assert "passed" not in statuses[1:]


def test_circular_and_shared_objects_survive_the_crossing(lines, judge):
    row = REVERSE | {
        "test": "def check(candidate):\n    node = ListNode(1)\n    node.next = node\n"
        "    given = candidate(head=[node, {'a': node}, (1, None)])\n"
        "    assert given[0] is given[1]['a'] and given[0].next is given[0] and given[2] == (1, None)\n"
    }
    (problem,) = load_suite(str(lines(row)))
    same = "class Solution:\n    def reverse(self, head):\n        return head\n"
    assert judge(problem, same, same.replace("return head", "return [ListNode(1), head[1], head[2]]")) == [
        "passed",
        "failed",
    ]


def test_a_call_of_check_that_the_test_makes_itself_is_not_made_twice(lines, judge):
    (problem,) = load_suite(str(lines(PAIR | {"test": PAIR["test"] + "\ncheck(Solution().pairSum)\n"})))
    assert judge(problem, problem.reference) == ["passed"]


def test_an_unknown_format_is_answered_with_those_that_are_supported(lines, tmp_path):
    binary = tmp_path / "suite.parquet"
    binary.write_bytes(b"PAR1\x00\xff\xfe")
    table = tmp_path / "suite.csv"
    table.write_text("task_id,prompt\n1,add\n")
    folder = tmp_path / "downloaded"
    (folder / "data").mkdir(parents=True)
    for path in (lines({"instruction": "add", "output": "…"}), binary, table, folder):
        with pytest.raises(ProblemError) as caught:
            load_suite(str(path))
        assert str(path) in caught.value.message
        for name in ("HumanEval", "MBPP", "MultiPL-E", "MBXP", "LeetCodeDataset", "APPS", "LiveCodeBench"):
            assert name in caught.value.remedy


GOOD = [MBXP | {"task_id": f"MBPP/{900 + number}"} for number in range(3)]
BAD = {
    "not an object": "42",
    "cut off": json.dumps(MBXP)[:80],
    "a field is missing": json.dumps({k: v for k, v in MBXP.items() if k != "prompt"}),
    "a field has another type": json.dumps(MBXP | {"entry_point": 3}),
    "the test is not Python": json.dumps(MBXP | {"test": "def check(candidate)\n"}),
    "the id occurs twice": json.dumps(GOOD[0]),
    "another language": json.dumps(MBXP | {"language": "ruby"}),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_bad_row_is_named_by_file_and_line_or_skipped_and_counted(lines, what, place):
    path = lines(*GOOD[:place], BAD[what], *GOOD[place:], name="suite.jsonl")
    line = 2 if (what, place) == ("the id occurs twice", 0) else place + 1  # the later one is named
    with pytest.raises(ProblemError, match=rf"suite\.jsonl, .*line {line}\b"):
        load_suite(str(path))
    found = load_suite(str(path), skip_bad_rows=True)
    assert sorted(problem.task_id for problem in found) == [row["task_id"] for row in GOOD]
    assert len(found.skipped) == 1
    assert f"line {line}" in found.skipped[0]


def test_a_file_of_bad_rows_only_is_an_error_with_the_option_too(lines):
    with pytest.raises(ProblemError, match="line 1"):
        load_suite(str(lines(MBXP | {"entry_point": 3})), skip_bad_rows=True)
