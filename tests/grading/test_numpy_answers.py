"""numpy's scalars and arrays, Decimals and Fractions: the plain values that they are, in every test kind."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from greenward.grading.judge import Grader
from greenward.grading.verdict import Status
from greenward.problems.formats import oracle_for
from greenward.problems.problem import Assertion, Case, Check, Comparison, Problem, StdioCase
from greenward.sandbox.inside.codec import canonical
from greenward.sandbox.protocol import Limits

LIMITS = Limits(cpu_seconds=5.0, wall_seconds=30.0, memory_bytes=2 << 30)


@pytest.fixture(scope="module")
def grader():
    with Grader(LIMITS, workers=1, packages=["numpy"]) as grader:
        yield grader


# What an answer returns, and the plain value that it is.
VALUES = [
    ("np.int64(3)", 3), ("np.uint8(200)", 200), ("np.uint64(2**64 - 1)", 2**64 - 1),
    ("np.float16(1.5)", 1.5), ("np.float32(0.25)", 0.25), ("np.float64(0.1)", 0.1),
    ("np.longdouble(0.5)", 0.5), ("np.bool_(True)", True), ("np.complex64(1 + 2j)", 1 + 2j),
    ("np.clongdouble(1 + 2j)", 1 + 2j), ("np.str_('ab')", "ab"), ("np.bytes_(b'ab')", b"ab"),
    ("np.array(5)", 5), ("np.array([])", []), ("np.array([[1, 2], [3, 4]])", [[1, 2], [3, 4]]),
    ("np.array(['a', 'bc'])", ["a", "bc"]), ("np.array([1, None, [2]], dtype=object)", [1, None, [2]]),
    ("np.arange(6).reshape(2, 3).T", [[0, 3], [1, 4], [2, 5]]),
    ("np.array([0.5], dtype=np.longdouble)", [0.5]),
    ("[np.int64(1), (np.float32(2), {np.int64(3): np.array([4])})]", [1, (2.0, {3: [4]})]),
    ("{np.int64(1), np.int64(2)}", {1, 2}), ("np.matrix([[1, 2]])", [[1, 2]]),
    ("float('nan') * np.ones(1)", [float("nan")]),
]  # fmt: skip


@pytest.mark.parametrize(("returned", "plain"), VALUES)
def test_values_of_numpy_are_plain_values(returned, plain):
    assert repr(canonical(eval(returned, {"np": np}))) == repr(canonical(plain))


def test_answers_may_return_them(grader):
    problem = Problem("p", "", "f", tests=tuple(Case((i,), plain) for i, (_, plain) in enumerate(VALUES)))
    code = f"import numpy as np\ndef f(i): return [{', '.join('lambda: ' + v for v, _ in VALUES)}][i]()"
    (verdict,) = grader.grade([(problem, code)])
    assert verdict.passed, verdict
    (verdict,) = grader.grade([(problem, code.replace("np.int64(3)", "np.int64(4)"))])
    assert verdict.first_failure == "f(0): expected 3, got 4"


def test_arguments_and_expected_values_may_be_of_numpy(grader):
    cases = (
        Case((np.int64(2), np.array([1, 2])), np.array([2, 4])),
        Case((np.float32(0.5), [np.int8(4)]), [np.float64(2)]),
    )
    plain = "def f(x, ys):\n    assert type(x) in (int, float) and type(ys) is list\n    return [x * y for y in ys]"
    numeric = "import numpy as np\ndef f(x, ys): return x * np.array(ys)"
    problem = Problem("p", "", "f", tests=cases)
    for code in (plain, numeric):
        (verdict,) = grader.grade([(problem, code)])
        assert verdict.passed, verdict


@pytest.mark.parametrize("kind", [Assertion, Check])
def test_arguments_that_tests_make_stay_arrays_and_numbers_of_numpy(grader, kind):
    code = "import numpy as np\ndef f(x): return type(x).__name__, x.dtype.name, x.shape, x.sum()"
    tests = [
        "assert f(np.array([[1, 2]], dtype=np.int8)) == ('ndarray', 'int8', (1, 2), 3)",
        "assert f(np.zeros((0, 2))) == ('ndarray', 'float64', (0, 2), 0)",
        "assert f(np.float32(0.5)) == ('float32', 'float32', (), 0.5)",
    ]
    problem = Problem(
        "p",
        "",
        "f",
        tests=tuple(map(kind, tests)),
        setup_code="import numpy as np",
        check_setup_code="import numpy as np",
    )
    (right, wrong) = grader.grade([(problem, code), (problem, code.replace("x.sum()", "x.sum() + 1"))])
    assert right.passed, right
    assert not any(wrong.tests_passed)


def test_an_empty_array_of_an_answer_equals_nothing_in_a_test_program(grader):
    """It would be broadcast to no element, all of which are equal to what is expected."""
    tests = ["assert np.allclose(f([1, 2]), [1, 4])", "assert (f([1, 2]) == np.array([1, 4])).all()"]
    checks = tuple(Check(f"import numpy as np\n{one}") for one in tests)
    for wrong in ("np.zeros((0, 1))", "np.zeros(0)"):
        (verdict,) = grader.grade(
            [(Problem("p", "", "f", tests=checks), f"import numpy as np\ndef f(x): return {wrong}")]
        )
        assert not any(verdict.tests_passed)
    (right,) = grader.grade(
        [(Problem("p", "", "f", tests=checks), "import numpy as np\ndef f(x): return np.array(x) ** 2")]
    )
    assert right.passed, right


@pytest.mark.parametrize("kind", ["cases", "tests", "checks"])
@pytest.mark.parametrize(
    "value", ["np.int64(4)", "np.float32(4)", "np.array(4)", "Decimal(4)", "Decimal('4.0')", "Fraction(4)"]
)
def test_numbers_of_every_type_count_in_every_kind_of_test(grader, kind, value):
    test = "assert f(2) == 4"
    kinds = {
        "cases": Problem("p", "", "f", tests=(Case((2,), 4),)),
        "tests": Problem(
            "p",
            "",
            "f",
            tests=(
                Assertion(test),
                Assertion("assert abs(f(2) - 4) < 1"),
                Assertion("assert f(2) in (4, 5)"),
            ),
        ),
        "checks": Problem("p", "", "f", tests=(Check(test), Check("assert int(f(2)) + 1 == 5"))),
    }
    code = (
        "import numpy as np\nfrom decimal import Decimal\nfrom fractions import Fraction\ndef f(x): return "
    )
    (right, wrong) = grader.grade([(kinds[kind], code + value), (kinds[kind], f"{code}{value} + 2")])
    assert right.passed, right
    assert wrong.status is Status.FAILED


@pytest.mark.parametrize("number", [Decimal("0.5"), Fraction(1, 2)])
def test_exact_numbers_go_in_and_come_out(grader, number):
    problem = Problem(
        "p",
        "",
        "f",
        tests=(Case((number,), number * 3), Case(([number],), [number * 3]), Case((number,), 1.5)),
    )
    code = "def f(x): return [f(y) for y in x] if type(x) is list else x * 3"
    (verdict,) = grader.grade([(problem, code)])
    assert verdict.passed, verdict


@pytest.mark.parametrize("number", ["Decimal(12)", "Fraction(12)", "12.0", "np.int64(12)", "np.float64(12)"])
def test_oracles_take_numbers_of_every_type(grader, number):
    oracle = oracle_for("Mbpp/581", "surface_Area", 1e-6)
    problem = Problem(
        "p", "", "surface_Area", tests=(Check("judge(surface_Area, (2, 2))"),), check_setup_code=oracle or ""
    )
    code = "import numpy as np\nfrom decimal import Decimal\nfrom fractions import Fraction\ndef surface_Area(b, h):\n"
    right, wrong = grader.grade([(problem, f"{code}    return {number}{more}") for more in ("", " + 2")])
    assert right.passed, right
    assert wrong.status is Status.FAILED


HOSTILE = """
import numpy as np
class Array(np.ndarray):
    def tolist(self): return 42
    def item(self, *_): return 42
    def __eq__(self, other): return True
    def __array__(self, *_): return np.array(42)
    def __iter__(self): return iter([42])
    size = 0
class Number(np.int64):
    def item(self): return 42
    def __int__(self): return 42
    def __index__(self): return 42
    def __eq__(self, other): return True
class Long(np.longdouble):
    def item(self): return 42
    def __float__(self): return 42.0
np.ndarray_tolist = np.generic_item = None
def f(kind):
    if kind == "array": return np.zeros(2, dtype=np.int64).view(Array)
    return Number(7) if kind == "number" else Long(7)
"""


@pytest.mark.parametrize(("kind", "held"), [("array", [0, 0]), ("number", 7), ("long", 7.0)])
def test_methods_of_subclasses_take_no_part(grader, kind, held):
    honest = Problem("p", "", "f", tests=(Case((kind,), held),))
    wanted = Problem("p", "", "f", tests=(Case((kind,), 42),))
    right, wrong = grader.grade([(honest, HOSTILE), (wanted, HOSTILE)])
    assert right.passed, right
    assert wrong.status is Status.FAILED


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("np.zeros(50_000_000, dtype=np.int8)", Status.WRONG_TYPE),
        ("np.broadcast_to(np.int8(0), (10**12,))", Status.WRONG_TYPE),
        ("np.array([object()])", Status.WRONG_TYPE),
        ("np.int64", Status.WRONG_TYPE),
        ("np", Status.WRONG_TYPE),
    ],
)
def test_what_is_too_large_or_holds_no_plain_data_is_of_a_wrong_type(grader, value, status):
    code = f"import numpy as np\ndef f(): return {value}"
    (verdict,) = grader.grade([(Problem("p", "", "f", tests=(Case((), 0),)), code)])
    assert verdict.status is status, verdict


def test_an_array_that_holds_itself_is_too_deep(grader):
    code = """
import numpy as np
def f():
    array = np.empty((), dtype=object)
    array[()] = array
    return array
"""
    (verdict,) = grader.grade([(Problem("p", "", "f", tests=(Case((), 0),)), code)])
    assert verdict.status in (Status.WRONG_TYPE, Status.ERROR)


def test_without_the_package_an_answer_cannot_pretend_to_be_numpy():
    code = """
import sys, types
class ndarray:
    size = 0
    def tolist(self): return 4
fake = types.ModuleType("numpy")
fake.ndarray = fake.generic = fake.longdouble = fake.clongdouble = ndarray
sys.modules["numpy"] = fake
def f(): return ndarray()
"""
    with Grader(LIMITS, workers=1) as grader:
        (verdict,) = grader.grade([(Problem("p", "", "f", tests=(Case((), 4),)), code)])
    assert verdict.status is Status.WRONG_TYPE


def test_what_programs_print_of_numpy_is_compared_as_text(grader):
    problem = Problem("p", "", "", tests=(StdioCase("", "4 0.5\n"),), comparison=Comparison())
    code = "import numpy as np\nprint(np.int64(4), np.float32(0.5))"
    assert grader.grade([(problem, code)])[0].passed
