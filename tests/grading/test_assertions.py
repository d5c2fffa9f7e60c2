from __future__ import annotations

from dataclasses import replace

import pytest

from greenward.common.errors import ProblemError
from greenward.common.parsing import MAX_DIGITS
from greenward.grading.judge import Grader
from greenward.grading.testcases import Relation, parse_assertion
from greenward.grading.verdict import Status
from greenward.problems.problem import Assertion, Case, Problem
from greenward.sandbox.isolation import ALL_LAYERS, CORE_LAYERS
from greenward.sandbox.pool import LocalExecutor


@pytest.mark.parametrize(
    ("source", "actual", "relation", "expected"),
    [
        ("assert f(1, 2) == 3", "f(1, 2)", Relation.EQUAL, "3"),
        ("assert 3 == f(1, 2)", "f(1, 2)", Relation.EQUAL, "3"),
        ("assert (f(1) == [1, 2]), 'message'", "f(1)", Relation.EQUAL, "[1, 2]"),
        ("assert f(abs(-1), *[2]) == 3", "f(abs(-1), *[2])", Relation.EQUAL, "3"),
        ("assert f(1) != 2", "f(1)", Relation.NOT_EQUAL, "2"),
        ("assert f(1) is True", "f(1)", Relation.IDENTICAL, "True"),
        ("assert f(1) is not None", "f(1)", Relation.NOT_IDENTICAL, "None"),
        ("assert f(1) in (1, 2)", "f(1)", Relation.MEMBER, "(1, 2)"),
        ("assert f(1)", "f(1)", Relation.TRUE, None),
        ("assert not f(1)", "f(1)", Relation.FALSE, None),
        ("assert abs(f(1) - 2.5) < 1e-6", "f(1)", Relation.CLOSE, "2.5"),
        ("assert math.isclose(f(1), 2.5, rel_tol=0.001)", "f(1)", Relation.CLOSE, "2.5"),
    ],
)
def test_the_two_sides_are_taken_apart(source, actual, relation, expected):
    found = parse_assertion(source, "f")
    assert (found.call, found.relation, found.expected) == (actual, relation, expected)


@pytest.mark.parametrize(
    "source",
    [
        "assert f(1) == f(2)", "assert all(f(x) for x in range(3))", "assert f(1) > 3",
        "assert f(1) == 1 and f(2) == 2", "x = f(1)\nassert x == 1", "assert g(1) == 1", "assert f(1) is g",
        "assert set(f([1])) == set([1])", "assert f(f(1)) == 1", "assert f(x=f(1)) == 1",
        "assert f(n := 1) == n", "assert f.__call__(1) == 1", "assert 1 == f(1)[0]",
        "assert f(1)[0] in (1, 2)", "assert abs(f(1)[0] - 2.5) < 1e-6", "assert abs(-f(1) - 2.5) < 1e-6",
        "assert math.isclose(sum(f(1)), 2.5)", "assert not f(1)[0]", "assert not math.isclose(f(1), 2.5)",
        "assert f(1) == 1 == g", "assert -f(1) is None",
    ],
)  # fmt: skip
def test_what_cannot_be_taken_apart_says_so(source):
    assert parse_assertion(source, "f") is None


@pytest.mark.parametrize("source", ["assert", "assert f(", "", "# nothing"])
def test_a_test_that_is_not_python_is_an_error(source):
    with pytest.raises(ProblemError, match="the test"):
        parse_assertion(source, "f")


def test_an_integer_that_is_too_long_to_be_read_is_an_error_that_names_the_limit():
    with pytest.raises(ProblemError, match=str(MAX_DIGITS)) as raised:
        parse_assertion(f"assert f(1) == {'9' * 3_000_000}", "f")
    assert len(raised.value.message) < 500


def grade(grader, tests, code, **fields):
    problem = Problem("p", "", "f", tests=tuple(map(Assertion, tests)), **fields)
    (verdict,) = grader.grade([(problem, code)])
    return verdict


def test_tests_of_every_shape_pass_for_a_right_answer_and_fail_for_a_wrong_one(grader):
    tests = [
        "assert f(2) == 4", "assert f(2) != 5", "assert f(2)", "assert not f(0)", "assert f(2) in [3, 4]",
        "assert f(2) not in {5: 1}", "assert f(2) is not None", "assert set([f(1), f(2)]) == set([4, 1])",
        "assert abs(f(0.1) - 0.01) < 1e-9", "import math\nassert math.isclose(f(3), 9)",
        "assert f(3) == sum(range(4)) + 3", "assert f(2) > 3",
    ]  # fmt: skip
    right = grade(grader, tests, "def f(x): return x * x")
    assert right.status is Status.PASSED, right.first_failure
    wrong = grade(grader, tests, "def f(x): return -x - 1")
    assert wrong.tests_passed == (False, True, True, False, False, True, True, *(False,) * 5)


RIGHT = "def f(x): return [*range(x)] if x >= 5 else x * x"
WRAPPED = [
    "(f(2) == 4) == True", "True == (f(2) == 4)", "f(2) == 4 == f(-2)", "3 < f(2) < 5",
    "f(2) == f(-2) and f(2) == 4", "f(2) == -4 or f(2) == 4 and f(-3) == 9", "f(f(1)) == 1",
    "abs(f(f(1)) - 1) < 1e-7", "abs(2 * f(1.5) - 4.5) < 1e-7", "abs(f(1.5) - 2.25) < EPSILON",
    "math.isclose(2 * f(1.5), 4.5)", "round(f(1.5), 1) == 2.2", "len(f(5)) == 5", "isinstance(f(5), list)",
    "type(f(5)) is list", "issubclass(type(f(5)), list)", "f(5)[4] == 4", "set(f(5)) == {0, 1, 2, 3, 4}",
    "sorted(f(5), reverse=True) == [4, 3, 2, 1, 0]", "sum(f(5)) == 10", "max(f(5)) == 4",
    "tuple(f(5)) == (0, 1, 2, 3, 4)", "all(v >= 0 for v in f(5)) and len(f(5)) > 4",
    "any(v == 4 for v in [f(2)])", "4 in f(5)", "9 not in f(5) and f(5) == [0, 1, 2, 3, 4]",
    "f(5).index(3) == 3", "[f(2)] == [4]", "{f(2): 1} == {4: 1}", "f(2) + 0 == 4", "-f(2) == -4",
    "str(f(2)) == '4'", "repr(f(5)) == '[0, 1, 2, 3, 4]'", "bool(f(2) == 4)", "not f(2) != 4",
    "f.__call__(2) == 4", "(lambda value: value == 4)(f(2))", "(value := f(2)) == 4",
]  # fmt: skip
LIARS = {
    "object that agrees with everything": """
class Yes:
    __hash__ = lambda s: hash(4)
    __len__ = __int__ = __index__ = lambda s: 5
    __float__ = lambda s: 2.25
    __iter__ = lambda s: iter([0, 1, 2, 3, 4])
    __getitem__ = lambda s, k: Yes()
    __getattr__ = lambda s, name: lambda *a: Yes()
    __class__ = list
for name in "eq ne lt le gt ge contains bool".split():
    setattr(Yes, f"__{name}__", lambda *a: name != "ne")
for name in "add sub rsub mul rmul neg abs round".split():
    setattr(Yes, f"__{name}__", lambda *a: Yes())
def f(x): return Yes()
""",
    "shadowed functions": """
import builtins, math
class Yes(int):
    __eq__ = __lt__ = __le__ = __gt__ = __contains__ = __call__ = lambda *a, **k: True
    __ne__ = lambda *a: False
    __hash__ = int.__hash__
def yes(*a, **k): return Yes(1)
for name in "abs len set isinstance issubclass type sorted sum max tuple all any str repr bool round".split():
    globals()[name] = yes
    setattr(builtins, name, yes)
math.isclose = yes
def f(x): return Yes(7)
""",
    "liars of many types": """
def lying(base):
    lies = {f"__{n}__": lambda *a: True for n in "eq lt le gt ge contains".split()}
    return type("Lie", (base,), {**lies, "__ne__": lambda *a: False, "__hash__": lambda s: 4})
def f(x): return lying(str)("7") if x == 5 else lying(float)(7.0)
""",
}


@pytest.fixture(scope="module", params=["A", "B"])
def at_level(request):
    layers = {"A": ALL_LAYERS, "B": CORE_LAYERS}[request.param]
    with LocalExecutor(1, layers=layers) as executor:
        if executor.isolation.level.value != request.param:
            pytest.skip(f"this machine does not have level {request.param}")
        with Grader(executor=executor) as grader:
            yield grader


def test_operations_on_a_value_are_done_where_no_answer_runs(at_level):
    fields = {"tests": [f"assert {one}" for one in WRAPPED], "setup_code": "import math\nEPSILON = 1e-7"}
    right = grade(at_level, code=RIGHT, **fields)
    assert right.passed, right.first_failure
    for liar in LIARS.values():
        verdict = grade(at_level, code=liar, **fields)
        passed = [one for one, ok in zip(WRAPPED, verdict.tests_passed, strict=True) if ok]
        assert passed == []


@pytest.mark.parametrize(
    ("call", "value", "cheat"),
    [
        ("f(hex(255))", "255", "hex = lambda n: n"),
        ("f(hex(12))", "12", "import builtins\nbuiltins.hex = lambda n: n"),
        ("f(*map(str, [12]))", "12", "map = lambda _, values: values"),
        ("f(math.cos(0.0))", "0", "import math\nmath.cos = lambda x: int(x)"),
        ("f([n + 1 for n in range(3)])", "[0, 1, 2]", "range = lambda n: [-1, 0, 1]"),
        ("f(x=TABLE['a'].upper())", "'b'", "class D(dict):\n    __getitem__ = lambda s, k: B()"),
    ],
)
def test_an_answer_cannot_change_what_it_is_called_with(grader, call, value, cheat):
    setup = "import math\nTABLE = dict(a='a')"
    echo = f"{cheat}\ndef f(x): return x"
    verdict = grade(grader, [f"assert {call} == {value}"], echo, setup_code=setup)
    assert (verdict.status, verdict.tests_passed) == (Status.FAILED, (False,))


def test_each_call_gets_arguments_of_its_own(grader):
    tests = [
        "assert f(VALUES[:]) == 3",
        "assert f(VALUES[:]) == 3",
        "assert f(VALUES) == 3",
        "assert f(VALUES) == 3",
    ]
    code = "def f(x):\n    x.append(0)\n    return len(x) - 1"
    assert grade(grader, tests, code, setup_code="VALUES = [1, 2, 3]").passed


def test_arguments_that_only_the_answer_can_make_are_made_beside_it(grader):
    tests = ["assert f(Point(1, 2)) == 3", "assert f(root) == 7", "assert f(lambda: 5) == 5"]
    code = """
class Point:
    def __init__(self, x, y): self.x, self.y = x, y
def f(p): return p() if callable(p) else p.x + p.y
"""
    verdict = grade(grader, tests, code, setup_code="root = Point(3, 4)")
    assert verdict.passed, verdict.first_failure


def test_arguments_of_subclasses_keep_what_these_have(grader):
    setup = """
from collections import Counter, OrderedDict, defaultdict, namedtuple
import enum
P = namedtuple("P", "x y")
class Colour(enum.IntEnum):
    RED = 1
class Shouted(str):
    def shout(self):
        return self.upper()
"""
    cases = {
        "p[0].x + p[0].y": ("[P(1, 2)]", "3"),
        "p.most_common(1)": ("Counter('aab')", "[('a', 2)]"),
        "p['z']": ("defaultdict(int, a=1)", "0"),
        "p.popitem(last=False)": ("OrderedDict(a=1, b=2)", "('a', 1)"),
        "p.name": ("Colour.RED", "'RED'"),
        "[one.shout() for one in p]": ("{Shouted('a'): 1}", "['A']"),
    }
    for body, (argument, expected) in cases.items():
        tests = [f"assert f({argument}) == {expected}", f"assert f(p={argument}) == {expected}"]
        verdict = grade(grader, tests, f"def f(p): return {body}", setup_code=setup)
        assert verdict.passed, verdict.first_failure
        assert not any(grade(grader, tests, "def f(p): return p", setup_code=setup).tests_passed)


def test_an_object_that_is_not_plain_data_is_true_as_a_match_object_is(grader):
    tests = ["assert f('ab')", "assert not f('xy')"]
    assert grade(grader, tests, "import re\ndef f(x): return re.match('a', x)").passed
    assert not any(grade(grader, tests, "import re\ndef f(x): return re.match('x', x)").tests_passed)


def test_absolute_and_relative_tolerances_stay_what_they_are(grader):
    tests = ["assert abs(f(0) - 1000000) < 1e-3", "assert math.isclose(f(0), 1000000, rel_tol=1e-3)"]
    verdict = grade(grader, tests, "def f(x): return 1000001")
    assert verdict.tests_passed == (False, True)


def test_the_expected_side_may_use_setup_code_and_builtins(grader):
    verdict = grade(grader, ["assert f(2) == BASE ** 2"], "def f(x): return 9", setup_code="BASE = 3")
    assert verdict.passed


def test_the_expected_side_never_runs_with_the_answer(grader):
    cheat = "import builtins\nbuiltins.max = lambda *a: 0\nmax = builtins.max\ndef f(x): return 0"
    assert grade(grader, ["assert f(2) == max(1, 2)"], cheat).status is Status.FAILED


def test_tests_are_counted_by_how_they_are_judged(grader):
    before = grader.tests_by_mode.copy()
    assert grade(
        grader, ["assert f(1) > 0", "assert f(1) == 1", "assert f(1) == int('1')"], "def f(x): return 1"
    ).passed
    assert grader.tests_by_mode - before == {"check": 1, "values": 2}


def test_verdicts_stay_in_the_order_of_the_tests_however_these_are_judged(grader):
    tests = [
        "assert f(1) > 0",
        "assert f(2) == 2",
        "x = f(3)\nassert x == 3",
        "assert f(4) == 5",
        "assert f(5) < 0",
    ]
    verdict = grade(grader, tests, "def f(x): return x")
    assert verdict.tests_passed == (True, True, True, False, False)
    assert verdict.first_failure == "f(4): expected 5, got 4"
    assert verdict.status is Status.FAILED


def test_a_test_program_never_counts_for_a_test_that_was_not_reached(grader):
    tests = ["assert f(1) == 1", "assert f(2) is None", "assert f(3) is None", "x = 1"]
    verdict = grade(grader, tests, "import os\ndef f(x): return x if x == 1 else os._exit(0)")
    assert verdict.status is Status.ERROR
    assert verdict.tests_passed == (True, False, False, False)


@pytest.mark.parametrize(
    "test",
    [
        "assert type(f(1)) == int",
        "assert f(1) == f(1.0)",
        "assert isinstance(f(1), int)",
        "assert all(f(x) >= x for x in range(5))",
        "try:\n    f('a', 1)\nexcept TypeError:\n    pass\nelse:\n    raise AssertionError",
        "import math\nassert math.isclose(f(3), 9)",
    ],
)
def test_what_cannot_be_taken_apart_is_judged_where_no_object_of_the_answer_is(grader, test):
    assert grade(grader, [test], "def f(x): return x * x").passed
    liar = """
class L(str):
    def __eq__(s, o): return True
    __ge__ = __eq__
    __float__ = lambda s: 9.0
    __class__ = int
    __hash__ = None
def f(*x): return L(x)
"""
    before = grader.tests_by_mode.copy()
    assert not grade(grader, [test], liar).passed
    assert grader.tests_by_mode - before == {"check": 1}


def test_a_test_that_needs_other_names_of_the_answer_fails_as_an_error(grader):
    verdict = grade(grader, ["assert f(1) == h"], "h = 1\ndef f(x): return 1")
    assert (verdict.status, verdict.error_class) == (Status.ERROR, "NameError")


def test_setup_code_that_needs_the_answer_is_an_error_where_tests_run_apart_from_it(grader):
    fields = {"setup_code": "k = h + 1"}
    assert grade(grader, ["assert f(1) == 1"], "h = 1\ndef f(x): return x", **fields).passed
    with pytest.raises(ProblemError, match="in_process_tests"):
        grade(grader, ["assert f(1) > 0"], "h = 1\ndef f(x): return x", **fields)


@pytest.fixture
def patient(grader):
    with grader.with_limits(replace(grader.limits, cpu_seconds=2.0)) as patient:
        yield patient


@pytest.mark.parametrize("digits", [4301, pytest.param(MAX_DIGITS, marks=pytest.mark.slow)])
def test_long_integers_are_compared_in_every_form_of_a_test(patient, digits):
    value = 10**digits - 1
    tests = [
        f"assert f({digits}) == {'9' * digits}",
        f"assert {'9' * digits} == f({digits})",
        f"assert f({digits}) == {value:#x}",
        f"assert f({digits}) == 10**{digits} - 1",
        f"assert f({digits}) % {'9' * digits} == 0",
        f"assert str(f({digits})) == '{'9' * digits}'",
        f"assert f({2 * MAX_DIGITS}) == {10 ** (2 * MAX_DIGITS) - 1:#x}",
        f"assert f({2 * MAX_DIGITS:#0{MAX_DIGITS}x}) == 10**{2 * MAX_DIGITS} - 1",
    ]
    assert grade(patient, tests, "def f(n): return 10**n - 1").passed
    assert grade(patient, tests, "def f(n): return int(str(10**n - 1))").passed
    for test in tests:
        assert grade(patient, [test], "def f(n): return 10**n - 2").status is Status.FAILED
    literal = f"def f(n): return {'9' * digits}"
    assert grade(patient, tests[:4], literal).passed
    problem = Problem("p", "", "f", tests=(Case((digits, value), value),))
    (right, wrong) = patient.grade(
        [(problem, f"def f(n, m): return {one}") for one in ("int(str(m))", "m + 1")]
    )
    assert (right.status, wrong.status) == (Status.PASSED, Status.FAILED)
