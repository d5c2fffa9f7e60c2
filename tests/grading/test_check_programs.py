"""What a check program may make of what an answer raises or returns, and what it may not."""

from __future__ import annotations

import sys

import pytest

from greenward.grading.verdict import Status
from greenward.problems.problem import Assertion, Check, Problem

SETUP = """
import contextlib, itertools, threading
def swallow(call):
    try:
        call()
    except:
        return True
    finally:
        return True
"""
# Each passes for an answer whose calls could end a loop or a test early, or could be ignored.
CARELESS = [
    "assert all(map(f, [1, 2, 3]))",
    "assert not any(v != w for v, w in zip(map(f, [1, 2]), [1, 4]))",
    "assert all(v == w for w, v in zip([1, 4], map(f, [1, 2])))",
    "assert list(filter(f, [1, 2])) in ([], [1, 2])",
    "assert list(itertools.takewhile(f, [1, 2])) in ([], [1, 2])",
    "assert list(itertools.starmap(f, [(1,), (2,)])) in ([], [1, 4])",
    "assert list(iter(lambda: f(1), 1)) == []",
    "assert list(iter(f, None)) == [] if False else swallow(lambda: f(1))",
    "assert next(map(f, [1]), 1) == 1",
    "assert max(map(f, [1]), default=1) == 1",
    "assert sum(map(f, [0])) == 0",
    "assert dict(zip([1], map(f, [1]))) in ({}, {1: 1})",
    "assert sorted(map(f, [2, 1])) in ([], [1, 4])",
    "for v in map(f, [1, 2]):\n    assert v in (1, 4)",
    "with contextlib.suppress(BaseException):\n    assert f(1) == 1",
    "with contextlib.suppress(StopIteration, TypeError):\n    assert f(1) == 1",
    "try:\n    assert f(1) == 1\nexcept Exception:\n    pass",
    "try:\n    assert f(1) == 1\nexcept StopIteration:\n    pass",
    "try:\n    assert f(1) == 1\nexcept BaseException:\n    pass",
    "assert swallow(lambda: f(1))",
    "class S:\n    def __iter__(s): return s\n    def __next__(s): return [f(1)].__getitem__(s.i())\n    n = -1\n"
    "    def i(s):\n        s.n += 1\n        if s.n: raise StopIteration\n        return 0\nassert list(S()) in ([], [1])",
    "t = threading.Thread(target=swallow, args=(lambda: f(1),))\nt.start()\nt.join()",
]
RAISED = {
    "StopIteration": "raise StopIteration",
    "StopIteration with a value": "raise StopIteration(4)",
    "StopIteration of a built-in": "return next(iter(()))",
    "StopAsyncIteration": "raise StopAsyncIteration",
    "GeneratorExit": "raise GeneratorExit",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "SystemExit": "raise SystemExit(0)",
    "BaseException": "raise BaseException('x')",
    "own StopIteration": "raise type('Done', (StopIteration,), {})()",
    "own StopIteration by another name": "raise type('ValueError', (StopIteration,), {'__str__': lambda s: 1 / 0})()",
    "StopIteration of several bases": "raise type('E', (ValueError, StopIteration), {})()",
    "own KeyboardInterrupt": "raise type('StopIteration', (KeyboardInterrupt,), {})()",
    "own BaseException": "raise type('Exception', (BaseException,), {'args': property(lambda s: 1 / 0)})()",
    "object": "return object()",
    "closed channel": "import os\n    os.close(4)",
    "garbled replies": "import os\n    while os.write(4, b'\\0\\0\\0\\2[]'): os.read(4, 1 << 16)",
    "forged StopIteration": "import os, struct\n    t = b'[\"raised\",\"StopIteration\",\"\",\"StopIteration\"]'\n"
    "    while os.write(4, struct.pack('!I', len(t)) + t): os.read(4, 1 << 16)",
    "no process": "import os\n    os._exit(0)",
}  # fmt: skip
if sys.version_info >= (3, 11):
    RAISED["group"] = "raise BaseExceptionGroup('x', [KeyboardInterrupt()])"


def grade(grader, checks, code, **fields):
    fields = {"check_setup_code": SETUP, **fields}
    (verdict,) = grader.grade([(Problem("p", "", "f", tests=tuple(map(Check, checks)), **fields), code)])
    return verdict


def test_these_programs_pass_for_a_right_answer(grader):
    verdict = grade(grader, CARELESS, "def f(x): return x * x")
    assert verdict.passed, verdict.first_failure


@pytest.mark.parametrize("body", RAISED.values(), ids=RAISED)
def test_no_program_can_take_what_ends_python_loops_for_success(grader, body):
    verdict = grade(grader, CARELESS, f"def f(x):\n    {body}")
    passed = [one for one, ok in zip(CARELESS, verdict.tests_passed, strict=True) if ok]
    assert passed == []
    assert verdict.status is Status.ERROR


def test_the_same_holds_for_assert_statements_that_run_as_programs(grader):
    problem = Problem(
        "p",
        "",
        "f",
        tests=(Assertion("assert all(map(f, [1, 2]))"), Assertion("assert all([f(x) for x in [1]])")),
    )
    verdicts = grader.grade(
        [(problem, f"def f(x): {body}") for body in ("raise StopIteration", "return x", "raise SystemExit")]
    )
    assert [verdict.tests_passed for verdict in verdicts] == [(False, False), (True, True), (False, False)]


def test_a_fault_counts_against_its_own_test_only(grader):
    code = "def f(x):\n    if x == 2: raise StopIteration\n    return x"
    verdict = grade(grader, ["assert f(1) == 1", "assert all(map(f, [2]))", "assert f(3) == 3"], code)
    assert verdict.tests_passed == (True, False, True)
    assert (verdict.status, verdict.error_class) == (Status.ERROR, "AnswerError")


EXPECTS = """
class raises:
    def __init__(self, kind): self.kind = kind
    def __enter__(self): return self
    def __exit__(self, kind, error, trace):
        assert kind is not None and issubclass(kind, self.kind), f"{kind} is not {self.kind}"
        self.value = error
        return True
"""


@pytest.mark.parametrize(
    ("raised", "expected", "passes"),
    [
        ("ValueError('no')", "ValueError", True),
        ("ValueError('no')", "Exception", True),
        ("KeyError('no')", "LookupError", True),
        ("IndexError('no')", "KeyError", False),
        ("type('Own', (Exception,), {})('no')", "Exception", True),
        ("type('Own', (Exception,), {})('no')", "ValueError", False),
        ("type('Own', (ValueError,), {})('no')", "ValueError", True),
        ("type('Own', (type('Base', (KeyError,), {}),), {})('no')", "LookupError", True),
        ("type('ValueError', (Exception,), {})('no')", "ValueError", False),
        ("UnicodeDecodeError('utf-8', b'', 0, 1, 'no')", "Exception", True),
        ("StopIteration('no')", "StopIteration", False),
        ("StopIteration('no')", "Exception", False),
        ("KeyboardInterrupt('no')", "BaseException", False),
    ],
)
def test_a_program_may_expect_an_exception(grader, raised, expected, passes):
    checks = [
        f"try:\n    f(-1)\nexcept {expected}:\n    pass\nelse:\n    assert False, 'nothing was raised'",
        f"with raises({expected}):\n    f(-1)",
        f"with raises({expected}) as caught:\n    f(-1)\nassert 'no' in str(caught.value)",
    ]
    code = f"def f(x):\n    if x < 0: raise {raised}\n    return x"
    assert grade(grader, checks, code, check_setup_code=EXPECTS).tests_passed == (passes,) * 3
    assert not any(grade(grader, checks, "def f(x): return x", check_setup_code=EXPECTS).tests_passed)


ITERATORS = [
    "assert list(f(3)) == [0, 1, 2]",
    "assert sorted(f(3), reverse=True) == [2, 1, 0]",
    "assert next(f(3)) == 0 and next(f(0), None) is None",
    "a, b = f(2), f(3)\nassert [next(b), next(a), next(b), *a, *b] == [0, 0, 1, 1, 2]",
    "import itertools\nassert [*itertools.islice(f(10 ** 9), 2)] == [0, 1]",
    "assert not isinstance(f(3), list) and iter(f(3)) is not None",
]


@pytest.mark.parametrize(
    "body",
    [
        "return iter(range(n))",
        "return map(int, range(n))",
        "yield from range(n)",
        "return type('I', (), {'__iter__': lambda s: s, '__next__': iter(range(n)).__next__})()",
        "return type('I', (), {'__iter__': lambda s: s, '__next__': lambda s, i=iter(range(n)): next(i)})()",
    ],
)
def test_elements_of_an_iterator_are_asked_for_one_by_one(grader, body):
    verdict = grade(grader, ITERATORS, f"def f(n):\n    {body}")
    assert verdict.passed, verdict.first_failure


@pytest.mark.parametrize(
    ("code", "checks"),
    [
        (
            "def f(d): return d.keys()",
            ["assert f({2: 0, 1: 0}) == {1, 2} and list(f({2: 0, 1: 0})) == [2, 1]"],
        ),
        (
            "def f(d): return d.values()",
            ["assert sorted(f({1: 3, 2: 2})) == [2, 3]", "assert len(f({})) == 0"],
        ),
        ("def f(d): return d.items()", ["assert dict(f({1: 2})) == {1: 2}", "assert (1, 2) in f({1: 2})"]),
    ],
)
def test_views_of_a_dict_are_views_for_the_program_too(grader, code, checks):
    verdict = grade(grader, checks, code)
    assert verdict.passed, verdict.first_failure
    assert not grade(grader, ["f({1: object()})"], "def f(d): return {1: object()}.values()").passed


def test_the_text_of_a_key_error_is_that_of_the_answer(grader):
    checks = [
        "try:\n    f('x')\nexcept KeyError as error:\n    assert str(error) == \"'x'\" and error.args == ('x',)"
    ]
    assert grade(grader, checks, "def f(key): return {}[key]").passed


def test_iterators_may_hold_iterators_and_raise(grader):
    code = "def f(n):\n    yield iter([n, n + 1])\n    raise KeyError(n)"
    checks = [
        "assert list(next(f(3))) == [3, 4]",
        "i = f(3)\nnext(i)\ntry:\n    next(i)\nexcept KeyError:\n    pass\nelse:\n    assert False",
    ]
    assert grade(grader, checks, code).passed
    assert not grade(grader, ["assert list(f(3))"], "def f(n): yield object()").passed


@pytest.mark.parametrize(
    "body",
    [
        "yield StopIteration",
        "yield 0\n    raise StopIteration",
        "yield 0\n    raise GeneratorExit",
        "yield 0\n    raise KeyboardInterrupt",
        "return type('I', (), {'__next__': lambda s: exec('raise StopAsyncIteration')})()",
    ],
)
def test_an_iterator_that_breaks_off_is_no_short_one(grader, body):
    checks = [
        "assert all(v == 0 for v in f(3))",
        "try:\n    [*f(3)]\nexcept BaseException:\n    pass",
    ]
    verdict = grade(grader, checks, f"def f(n):\n    {body}")
    assert not verdict.tests_passed[0]
    assert not verdict.passed


def test_a_setup_that_calls_the_answer_fails_because_of_the_answer(grader):
    fields = {"check_setup_code": "first = f(1)"}
    assert grade(grader, ["assert first == 1"], "def f(x): return x", **fields).passed
    for body in ("raise ValueError", "raise StopIteration", "return object()", "raise SystemExit"):
        assert grade(grader, ["assert 1"], f"def f(x): {body}", **fields).status is Status.ERROR


def test_a_test_that_hands_over_what_is_not_plain_data_cannot_pass_by_that(grader):
    test = "try:\n    f(object())\nexcept Exception:\n    pass\nelse:\n    assert False"
    verdict = grade(grader, [test], "def f(x): raise ValueError")
    assert verdict.status is Status.ERROR
    assert "cannot hand this over" in verdict.error_message


FUNCTIONS = {
    "of tests": ("return [g(x) for x in (1, 4)]", ["f(lambda x: -x) == [-1, -4]", "f(float) == [1.0, 4.0]"]),
    "of packages": ("return [g(x) for x in (1, 4)]", ["f(__import__('math').sqrt) == [1.0, 2.0]"]),
    "in containers": ("return g['one'][0](2)", ["f({'one': [lambda x: x + 1]}) == 3"]),
    "with arguments by name": ("return g(1, b=2)", ["f(lambda a, *, b: (a, b)) == (1, 2)"]),
    "called in threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "    with ThreadPoolExecutor(4) as threads: return [*threads.map(g, range(40))]",
        ["f(lambda x: x * x) == [x * x for x in range(40)]"],
    ),
    "of answers": (
        "return lambda x: g + x",
        ["f(1)(2) == 3", "[one(5) for one in map(f, (1, 2))] == [6, 7]"],
    ),
    "with a state": (
        "seen = {}\n    def once(x): return seen[x] if x in seen else seen.setdefault(x, g(x))\n    return once",
        ["[*map(f(calls.append), (1, 1, 2))] == [None] * 3 and calls == [1, 2]"],
    ),
    "handed back": ("return g", ["f(lambda: 5)() == 5", "f(f)(3) == 3"]),
    "that call the answer": (
        "return g() if callable(g) else g + 1",
        ["f(lambda: f(1) * 2) == 4", "f(lambda: f(lambda: f(1))) == 2"],
    ),
    "iterators": (
        "return sum(g)",
        ["f(iter([1, 2])) == 3", "f(x for x in range(4)) == 6", "f(map(int, '12')) == 3"],
    ),
    "endless iterators": ("return next(g) + next(g)", ["f(__import__('itertools').count(3)) == 7"]),
    "built-in classes": ("return isinstance(3, g)", ["f(int)", "f((str, int))", "f(str) is False"]),
    "names and parameters": (
        "import functools, inspect\n"
        "    @functools.wraps(g)\n    def h(*args): return [*inspect.signature(g).parameters, g(*args)]\n"
        "    return h",
        [
            "[f(lambda x, y=2: x)(1), f(lambda x, y=2: x).__name__] == [['x', 'y', 1], '<lambda>']",
            "f(len).__doc__ == len.__doc__",
        ],
    ),
    "counters and dicts": (
        "g.update(b=2)\n    return g, g['none']",
        [
            "f(__import__('collections').Counter('aa')) == ({'a': 2, 'b': 2}, 0)",
            "f(__import__('collections').defaultdict(lambda: 7, a=2)) == ({'a': 2, 'b': 2, 'none': 7}, 7)",
        ],
    ),
    "named tuples": (
        "return g._replace(x=g.y), g.x",
        [
            "f(__import__('collections').namedtuple('P', 'x y')(1, 2)) == ((2, 2), 1)",
            "f(__import__('collections').namedtuple('P', 'x y index')(1, 2, 3))[1] == 1",
        ],
    ),
    "classes of plain values": (
        "return isinstance(3, g) or g('1.5')",
        ["f(__import__('decimal').Decimal) == __import__('decimal').Decimal('1.5')"],
    ),
    "themselves": (
        "return max(g, key=lambda h: h(3)) if isinstance(g, list) else g",
        ["f(len) is len and f(f) is f and f(calls.append)(2) is None and calls == [2]", "f([abs, f]) is abs"],
    ),
    "as keys": (
        "f.seen = getattr(f, 'seen', {})\n    f.seen[g] = f.seen.get(g, 0) + 1\n    return f.seen[g]",
        ["[*map(f, (len, print, len))] == [1, 1, 2]"],
    ),
    "with their names": (
        "import functools\n    @functools.wraps(g)\n    def h(*a): return g.__name__, g(*a)\n    return h",
        ["f(len)(()) == ('len', 0) and f(len).__name__ == 'len' and f(len).__doc__ == len.__doc__"],
    ),
    "with their parameters": (
        "import inspect\n    def h(*a): return g(*a) if len(a) >= n else lambda *b: h(*a, *b)\n"
        "    n = g.__code__.co_argcount\n    return h if len(inspect.signature(g).parameters) == n else None",
        ["f(lambda a, b, c: a + b + c)(1)(2)(3) == 6", "f(lambda: 3)() == 3"],
    ),
    "with parameters of all kinds": (
        "return [g(1), g(1, 2, c=3), g(1, c=3, k=4, z=5), g(1, 2, 3, 4, a=6)]",
        [
            "f(lambda a, /, b=[], c=0, *d, k=7, **e: (a, b, c, d, k, e)) == [(1, [], 0, (), 7, {}),"
            " (1, 2, 3, (), 7, {}), (1, [], 3, (), 4, {'z': 5}), (1, 2, 3, (4,), 7, {'a': 6})]"
        ],
    ),
    "by name only": (
        "try: return g(1, 2)\n    except TypeError: return g(1, b=2)",
        ["f(lambda a, *, b=5, c=3: a + b + c) == 6"],
    ),
    "views": (
        "return sum(g.values() if isinstance(g, dict) else g)",
        ["f({1: 2, 3: 4}.values()) == 6", "f({1: 2}) + f({1: 2}.keys()) == 3"],
    ),
    "class of a result": ("return type(g)", ["f(3) is int", "f('') == str"]),
}


@pytest.mark.parametrize(("body", "expressions"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_iterators_and_built_in_classes_pass_between_program_and_answer(grader, body, expressions):
    checks = [f"calls = []\nassert {one}" for one in expressions]
    verdict = grade(grader, checks, f"def f(g):\n    {body}")
    assert verdict.passed, verdict.first_failure
    assert not any(grade(grader, checks, "def f(g): return None").tests_passed)


def test_an_exception_of_a_function_of_the_program_reaches_the_answer(grader):
    code = (
        "def f(g):\n    try: return g()\n    except LookupError as error: return [type(error), *error.args]"
    )
    checks = [
        "assert f(lambda: {}['k']) == [KeyError, 'k']",
        "assert f(lambda: [][1]) == [IndexError, 'list index out of range']",
        "try:\n    f(lambda: 1 / 0)\nexcept ZeroDivisionError:\n    pass\nelse:\n    assert False",
        "class Own(Exception): pass\ndef fail(): raise Own('x', 3)\n"
        "try:\n    f(fail)\nexcept Own as error:\n    assert error.args == ('x', 3)\nelse:\n    assert False",
        "class Lost(KeyError): pass\ndef fail(): raise Lost('k')\nassert f(fail)[1:] == ['k']",
        "def fail(): raise FileNotFoundError('x')\n"
        "try:\n    f(fail)\nexcept FileNotFoundError:\n    pass\nelse:\n    assert False",
    ]
    verdict = grade(grader, checks, code)
    assert verdict.passed, verdict.first_failure


def test_exception_classes_of_the_program_are_caught_and_raised_by_the_answer(grader):
    code = (
        "def f(g, *kinds):\n"
        "    try: return g()\n"
        "    except kinds as error: return kinds.index(type(error))\n"
        "    except ValueError as error: raise kinds[0]('again') from error"
    )
    own = (
        "import json\nclass Own(Exception): pass\nclass Inner(Own): pass\nclass Other(Own): pass\n"
        "class Plain: pass\nclass Mixed(Plain, LookupError): pass\ndef fail(kind):\n    def g(): raise kind('x')\n    return g\n"
    )
    checks = [
        "assert f(fail(Inner), Own, Inner) == 1 and f(fail(Own), Inner, Own) == 1",
        "try:\n    f(fail(Inner), Other)\nexcept Own as error:\n    assert type(error) is Inner\nelse:\n    assert 0",
        "try:\n    f(fail(ValueError), Inner)\nexcept Own as error:\n    assert repr(error) == \"Inner('again')\"",
        "assert f(fail(Mixed), Own, Mixed) == 1 and f(fail(KeyError), Own, KeyError) == 1",
        "assert f(lambda: json.loads('{'), json.JSONDecodeError) == 0",
        "try:\n    f(fail(Own), json.JSONDecodeError)\nexcept Own:\n    pass\nelse:\n    assert 0",
        "try:\n    f(fail(KeyError), Own)\nexcept KeyError as error:\n    assert error.args == ('x',)",
    ]
    verdict = grade(grader, [own + check for check in checks], code)
    assert verdict.passed, verdict.first_failure
    assert not any(grade(grader, [own + checks[0]], "def f(*a): return None").tests_passed)


@pytest.mark.parametrize(
    "function",
    ["eval", "exec", "getattr", "vars", "open", "str.format", "operator.attrgetter", "operator.methodcaller"],
)
def test_a_function_that_reaches_everything_is_not_handed_over(grader, function):
    checks = [f"import operator\nf({function})", f"import operator\ntry: f([{function}])\nfinally: pass"]
    verdict = grade(grader, checks, "def f(g): return 1")
    assert verdict.tests_passed == (False, False)
    assert "cannot hand this over to the answer: by " in verdict.error_message
    assert grade(
        grader, ["import operator\nassert f(operator.itemgetter(0)) == 1"], "def f(g): return 1"
    ).passed


RAW = """
import os
def send(text):
    os.write(4, len(text).to_bytes(4, "big") + text)
def receive():
    return os.read(4, int.from_bytes(os.read(4, 4), "big"))
def for_ever(text):
    while True:
        send(text)
        receive()
"""


@pytest.mark.parametrize(
    ("given", "end"), [("(x for x in [1])", "map(g, [1, 2])"), ("iter([1])", "iter(g, None)")]
)
def test_what_gives_the_elements_of_an_iterator_never_comes_back_as_a_function(grader, given, end):
    """Exhausted, it would end the loop of a test that calls it."""
    code = (
        RAW
        + """
def f(g):
    if hasattr(g, "__next__"):
        list(g)
    for_ever(b'["value",{"own":[0]}]')
"""
    )
    checks = [f"g = f({given})\nfor got in {end}:\n    assert got == 77"]
    assert grade(grader, checks, code).tests_passed == (False,)
    honest = "def f(g):\n    list(g)\n    return lambda *x: 1"
    assert grade(grader, checks, honest).tests_passed == (False,)


@pytest.mark.parametrize("tag", ["set", "tuple", "deque", "dict", "Counter", "defaultdict"])
def test_an_iterator_in_the_place_of_elements_is_a_fault_of_the_answer(grader, tag):
    code = RAW + f'def f(x): for_ever(b\'["value",{{"{tag}":{{"iterator":[7]}}}}]\')'
    verdict = grade(grader, ["f(1)", "try:\n    f(1)\nexcept BaseException:\n    pass"], code)
    assert verdict.tests_passed == (False, False)
    assert verdict.status is Status.ERROR


@pytest.mark.parametrize(
    "value",
    [
        "namedtuple('T', 'startswith equals issuperset')(lambda *a: True, lambda *a: True, bool)",
        "type('T', (tuple,), {'_fields': ('startswith',), 'startswith': lambda *a: True})((1,))",
        "defaultdict(lambda: True)",
    ],
)
def test_nothing_of_an_answer_brings_methods_or_defaults_into_a_test(grader, value):
    checks = [
        "assert f(1).startswith('y')",
        "assert f(1).equals([9])",
        "assert f(1).issuperset({1, 3})",
        "assert f(1)['absent']",
    ]
    code = f"from collections import defaultdict, namedtuple\ndef f(x): return {value}"
    assert not any(grade(grader, checks, code).tests_passed)


def test_a_named_tuple_that_cannot_be_made_anew_is_a_tuple(grader):
    checks = [
        "from collections import namedtuple\nP = namedtuple('P', ['a', 'def'], rename=True)\nassert f(P(1, 2)) == 1",
        "class T(tuple): _fields = ('a', 'b')\nassert f(T([1, 2, 3])) == 1",
        "assert f([1]) == 1",
    ]
    assert grade(grader, checks, "def f(x): return x[0]").passed


def test_what_is_more_than_an_iterator_is_not_handed_over(grader):
    verdict = grade(grader, ["import io\nassert f(io.StringIO('ab')) == 'ab'"], "def f(g): return g.read()")
    assert verdict.status is Status.ERROR
    assert (
        "cannot hand this over to the answer: <class '_io.StringIO'> is no mere iterator"
        in verdict.error_message
    )


@pytest.mark.parametrize("base", ["ValueError", "Exception"])
def test_no_answer_borrows_the_end_of_a_loop_from_the_test(grader, base):
    """The iterator of the test ends by StopIteration; the answer raises an exception of that name."""
    body = f"[*g]\n    raise type('StopIteration', ({base},), {{}})()"
    checks = [
        "assert all(map(lambda x: f(iter(x)) == sum(x), [[1], [2, 3]]))",
        "for got, wanted in zip(map(f, [iter([1])]), [1]):\n    assert got == wanted",
        "assert list(map(f, [iter([])])) in ([], [0])",
        "assert list(map(f, ['', ''])) in ([], [0, 0])",
    ]
    assert grade(grader, checks, f"def f(g):\n    {body}").tests_passed == (False,) * 4
    assert grade(grader, checks, "def f(g): return sum(g)").passed


def test_views_pass_to_functions_of_the_program(grader):
    code = "def f(g, d): return [g(d.values()), d.keys(), [d.items()]]"
    check = (
        "total, keys, (items,) = f(sum, {1: 2})\nassert total == 2 and keys == {1} and [*items] == [(1, 2)]"
    )
    assert grade(grader, [check], code).passed


def test_a_generator_receives_what_is_sent_to_it(grader):
    code = """
def f(g=None):
    if g is not None:
        return next(g), g.send(4)
    def totals():
        total = 0
        while True:
            total += yield total
    return totals()
"""
    checks = [
        "g = f()\nassert [next(g), g.send(10), g.send(5)] == [0, 10, 15]",
        "def double():\n    x = 0\n    while True: x = yield x * 2\nassert f(double()) == (0, 8)",
        "import types\nassert isinstance(f(), types.GeneratorType)",
    ]
    assert grade(grader, checks, code).passed
    eager = grade(grader, checks, "def f(g=None): return iter([0, 10, 15])")
    assert eager.tests_passed == (False, False, False)


def test_calls_nest_between_both_sides_about_as_deep_as_in_one(grader):
    checks = [
        "def g(n): return n and 1 + f(g, n - 1)\nassert f(g, 200) == 200",
        "class G:\n    def g(s, n): return n and 1 + f(s.g, n - 1)\nassert f(G().g, 200) == 200",
        "def g(n): return f(g, n + 1)\ntry:\n    f(g, 0)\nexcept RecursionError:\n    pass\nelse:\n    assert 0",
        "assert f(abs, -1) == 1",
    ]
    verdict = grade(grader, checks, "def f(g, n): return g(n)")
    assert verdict.passed, (verdict.tests_passed, verdict.error_message)
    for limit in (10**5, 2**31 - 1):
        code = f"import sys\nsys.setrecursionlimit({limit})\ndef f(g, n): return g(n)"
        assert grade(grader, (checks[0], checks[-1]), code).passed


def test_a_program_may_call_the_answer_in_several_threads(grader):
    checks = [
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as threads:\n"
        "    assert [*threads.map(f, range(200))] == [x * x for x in range(200)]\n"
        "    assert [*threads.map(lambda x: f(lambda: x), range(50))] == [*range(50)]"
    ]
    code = "def f(x): return x() if callable(x) else x * x"
    verdict = grade(grader, checks, code)
    assert verdict.passed, verdict.first_failure


def test_threads_of_the_answer_may_call_back_into_the_answer(grader):
    code = """
from concurrent.futures import ThreadPoolExecutor
def f(g, n):
    if n == 0:
        return g(0)
    with ThreadPoolExecutor(2) as threads:
        return sum(threads.map(lambda _: g(n - 1), range(2)))
"""
    check = "def g(n): return f(g, n) if n else 1\nassert f(g, 2) == 4"
    verdict = grade(grader, [check] * 5, code)
    assert verdict.passed, verdict.first_failure


@pytest.mark.parametrize(
    ("code", "check"),
    [
        (
            "import threading\ndef f(g=None):\n    if g: threading.Timer(0.01, g).start()\n    return 5",
            "import time\nf(lambda: 1)\ntime.sleep(0.1)\nassert f() == 5",
        ),
        (
            "def f(g): g()",
            "def leave(): raise KeyboardInterrupt\ntry:\n    f(leave)\nexcept KeyboardInterrupt:\n    pass",
        ),
    ],
    ids=["a late call", "a call that is left"],
)
def test_an_answer_may_wait_for_a_function_when_the_tests_end(grader, code, check):
    verdict = grade(grader, [check], code)
    assert verdict.passed, (verdict.first_failure, verdict.error_message)


def test_what_a_function_of_the_program_cannot_return_is_said(grader):
    verdict = grade(grader, ["f(lambda: object())"], "def f(g): return g()")
    assert "cannot hand this over" in verdict.error_message


FORGED = [
    '["own",99]',
    '["value",{"own":[99]}]',
    '["value",{"own":["x"]}]',
    '["value",{"function":[5,1,2,3]}]',
    '["value",{"function":[5]}]',
    '["value",{"items":[1]}]',
    '["call",99,[],{}]',
    '["call","x",[1],[2,3]]',
    '["value",{"function":[[]]}]',
    '["value",{"class":"exec"}]',
    '["value",{"exception":["Popen","subprocess",{"class":"object"}]}]',
    '["value",{"exception":["system","os",{"class":"Exception"}]}]',
    '["value",{"namedtuple":["T",["count"],[1]]}]',
    '["value",{"namedtuple":["T(object): pass\\nclass U",["a"],[1]]}]',
    '["value",{"numpy":["|O",[1],{"bytes":"0000000000000000"}]}]',
    '["value",{"function":[0,1,2,[["x",9]]]}]',
    '["value",{"own":[0]}]',
    '["opaque",1]',
]


@pytest.mark.parametrize(
    "body",
    [
        "return g(object())",
        "return g(g(object()))",
        "raise StopIteration(g(1))",
        'import os\n    for t in (b\'["value",{"exception":["D","m",{"class":"StopIteration"}]}]\','
        ' b\'["raised","m.D","","Exception"]\'): os.write(4, len(t).to_bytes(4, \'big\') + t)',
        *(f"import os; t = b'{text}'; os.write(4, len(t).to_bytes(4, 'big') + t)" for text in FORGED),
    ],
)
def test_no_answer_gains_by_what_it_does_with_a_function_of_the_program(grader, body):
    checks = ["assert f(lambda x: x) == 1", "assert all(map(f, [lambda x: x] * 2))"]
    verdict = grade(grader, checks, f"def f(g):\n    {body}")
    assert verdict.tests_passed == (False, False)
    assert grade(grader, checks, "def f(g): return g(1)").passed


@pytest.mark.parametrize(
    "value",
    [
        "lambda *a: True",
        "KeyError",
        "type('E', (ValueError,), {})",
        "collections.defaultdict(lambda: True, a=1)",
        "collections.Counter('a')",
        "collections.namedtuple('P', 'x y')(1, 2)",
    ],
)
def test_what_is_more_than_plain_data_is_no_result(grader, value):
    """It passes where each value passes that is true; it equals nothing that a number does not equal."""
    as_one, as_other = (
        grade(grader, CARELESS, f"import collections\ndef f(x): return {v}") for v in ("7", value)
    )
    for check, ok, other_ok in zip(CARELESS, as_one.tests_passed, as_other.tests_passed, strict=True):
        assert ok or not other_ok, check
