"""Plans what runs to judge an answer by each kind of test, and computes the verdict from the results.

All of this happens in the trusted process, which alone knows the expected values. Those that are not
literals are computed once, in a process that never runs an answer (`expected_values_job`).
The examples of one doctest share a copy of the answer's namespace, as in `doctest`; what they print is
compared here. Of an example that says whether a value is a literal (`f(2) == 4`), the value is compared here,
since an object of the answer could claim to equal everything. `assert f(2) == 4` becomes the call `f(2)`,
which the answer's process makes, and the expression `4`, which is evaluated elsewhere; the grader compares
the two values. Only a bare call of the entry point is split off: any operation on its value (`len(f(2))`,
`f(2)[0]`, `f(2) == f(3)`) would be evaluated by objects and built-in functions that the answer controls. A
test of another shape runs as a check program, in a process that runs no code of the answer.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from importlib.machinery import FrozenImporter
from typing import TYPE_CHECKING, Any, Literal

from greenward.common.errors import ProblemError, SandboxError
from greenward.common.text import MAX_MESSAGE_CHARS, visible
from greenward.grading.compare import (
    COLLECTIONS,
    close,
    elements_of,
    equal,
    is_something,
    matches,
    same_output,
)
from greenward.grading.execution import status_of
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import (
    Assertion,
    Case,
    Check,
    Comparison,
    Doctest,
    Expected,
    InProcess,
    Problem,
    StdioCase,
    Test,
)
from greenward.problems.python_source import UNREADABLE, parse
from greenward.sandbox.inside.codec import PlainDataError, PlainDict, PlainSet, canonical, encode
from greenward.sandbox.inside.files import folders_above
from greenward.sandbox.protocol import MAX_RESULT_BYTES, Call, CallResult, Job, Limits, Outcome, RunResult

if TYPE_CHECKING:
    from doctest import Example


EXAMPLE_SETUP = """
def __example__(test, source, mode="single", _namespaces={}):
    import contextlib, io, sys, traceback
    names = _namespaces.setdefault(test, dict(globals()))
    if mode == "eval":
        return eval(compile(source, "<example>", mode), names)
    printed, raised = io.StringIO(), None
    sys.displayhook = sys.__displayhook__
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "<example>", mode), names)
    except BaseException as error:
        raised = traceback.format_exception_only(type(error), error)[-1]
    return [printed.getvalue(), raised]
"""
_QUALIFIED_NAME = re.compile(r"(?:.*\.)?([^.:\n]*)")


def read_examples(text: str) -> list[Example]:
    """The examples in a text that are not to be skipped. Raises `ValueError` for one that is malformed."""
    import doctest

    return [one for one in doctest.DocTestParser().get_examples(text) if not _flags(one) & doctest.SKIP]


def is_met(example: Example, value: Any) -> bool:
    """Whether what `__example__` gave is what the example must print or raise."""
    import doctest

    check, flags, wanted = doctest.OutputChecker().check_output, _flags(example), example.exc_msg
    match value:
        case [str(printed), None]:
            printed += "" if printed.endswith("\n") or not printed else "\n"
            return check(example.want, printed, flags)
        case [str(), str(raised)] if wanted is not None:
            ignores = flags & doctest.IGNORE_EXCEPTION_DETAIL
            if ignores and check(_exception_class(wanted), _exception_class(raised), flags):
                return True
            return check(wanted, raised, flags)
    return False


def _flags(example: Example) -> int:
    return sum(flag for flag, is_on in example.options.items() if is_on)


def _exception_class(message: str) -> str:
    found = _QUALIFIED_NAME.match(message.partition("\n")[0].partition(":")[0])
    return found[1] if found else message


class Relation(str, Enum):
    """What must hold between what came back and what was expected."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    IDENTICAL = "is"
    NOT_IDENTICAL = "is not"
    MEMBER = "in"
    NOT_MEMBER = "not in"
    CLOSE = "close"
    TRUE = "true"
    FALSE = "false"
    RAISES = "raises"
    PRINTS = "prints"
    EXAMPLE = "example"  # of a doctest
    COMPLETES = "completes"


@dataclass(frozen=True)
class ParsedAssertion:
    """One test: a `call` of the entry point, and what is `expected` (if anything), without the answer."""

    call: str
    relation: Relation
    expected: str | None = None
    tolerances: tuple[float, float] = (0.0, 0.0)  # of CLOSE: relative and absolute


_RELATIONS: dict[type[ast.cmpop], Relation] = {
    ast.Eq: Relation.EQUAL,
    ast.NotEq: Relation.NOT_EQUAL,
    ast.Is: Relation.IDENTICAL,
    ast.IsNot: Relation.NOT_IDENTICAL,
    ast.In: Relation.MEMBER,
    ast.NotIn: Relation.NOT_MEMBER,
}
_SYMMETRIC = (Relation.EQUAL, Relation.NOT_EQUAL, Relation.CLOSE)


def parse_assertion(source: str, entry_point: str) -> ParsedAssertion | None:
    """The parts of one test; None if it is to run as a check program.

    Raises `ProblemError` if it is not Python.
    """
    try:
        body = parse(clean_test(source)).body
    except UNREADABLE as error:
        raise ProblemError(f"the test {visible(source, 80)!r} is not Python: {error}.") from None
    if not body:
        raise ProblemError(f"the test {source!r} is empty.")
    try:
        match body:
            case [ast.Assert(ast.UnaryOp(ast.Not(), operand))]:
                return _assertion(entry_point, Relation.FALSE, operand)
            case [ast.Assert(ast.Compare(left, [ast.Lt() | ast.LtE()], [right]))]:
                return _near(left, right, entry_point)
            case [ast.Assert(ast.Compare(left, [operator], [right]))] if type(operator) in _RELATIONS:
                return _assertion(entry_point, _RELATIONS[type(operator)], left, right)
            case [ast.Assert(ast.Call() as test)]:
                return _assertion(entry_point, Relation.TRUE, test) or _is_close(test, entry_point)
    except ValueError:  # a hexadecimal integer with too many digits to be written in decimal
        pass
    return None


def clean_test(source: str) -> str:
    """A test as Python reads it: some suites have carriage returns, or spaces in front."""
    return source.replace("\r\n", "\n").strip()


def _assertion(
    entry_point: str,
    relation: Relation,
    actual: ast.expr,
    expected: ast.expr | None = None,
    *,
    tolerances: tuple[float, float] = (0.0, 0.0),
) -> ParsedAssertion | None:
    """The assertion, if one side is a bare call of the entry point and the other does not use it."""
    if expected is not None and relation in _SYMMETRIC and _is_bare_call(expected, entry_point):
        actual, expected = expected, actual
    if not _is_bare_call(actual, entry_point):
        return None
    if expected is None:
        return ParsedAssertion(ast.unparse(actual), relation)
    if any(_is_name(inner, entry_point) for inner in ast.walk(expected)):
        return None
    is_singleton = isinstance(expected, ast.Constant) and isinstance(expected.value, (bool, type(None)))
    if relation in (Relation.IDENTICAL, Relation.NOT_IDENTICAL) and not is_singleton:
        return None
    return ParsedAssertion(ast.unparse(actual), relation, ast.unparse(expected), tolerances)


def _near(left: ast.expr, right: ast.expr, entry_point: str) -> ParsedAssertion | None:
    """`abs(f(x) - y) < eps`."""
    bound = _number(right)
    match left:
        case ast.Call(ast.Name("abs"), [ast.BinOp(one, ast.Sub(), other)]) if bound is not None:
            return _assertion(entry_point, Relation.CLOSE, one, other, tolerances=(0.0, bound))
    return None


def _is_close(test: ast.Call, entry_point: str) -> ParsedAssertion | None:
    """`math.isclose(f(x), y, rel_tol=…, abs_tol=…)`."""
    if ast.unparse(test.func) not in ("math.isclose", "isclose") or len(test.args) != 2:
        return None
    tolerances = {"rel_tol": 1e-9, "abs_tol": 0.0}
    for keyword in test.keywords:
        value = _number(keyword.value)
        if keyword.arg not in tolerances or value is None:
            return None
        tolerances[keyword.arg] = value
    both = tolerances["rel_tol"], tolerances["abs_tol"]
    return _assertion(entry_point, Relation.CLOSE, *test.args, tolerances=both)


def _is_bare_call(node: ast.expr, entry_point: str) -> bool:
    """Whether this is a call of the entry point by its name, with arguments that do not use it."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry_point):
        return False
    inner = [one for part in (*node.args, *node.keywords) for one in ast.walk(part)]
    return not any(_is_name(one, entry_point) or isinstance(one, ast.NamedExpr) for one in inner)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _number(node: ast.expr) -> float | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return float(value) if isinstance(value, (int, float)) else None


# What runners of tests and the interpreter look for, wherever it lies.
_SETTINGS = re.compile(
    r"conftest\.py|\.?pytest\.(?:ini|toml)|pyproject\.toml|tox\.ini|setup\.cfg|(?:site|user)customize\.py"
    r"|.*\.pth|.*\.(?:dist|egg)-info"
)
_TEST = re.compile(r"test_.*\.py|.*_test\.py")
_CACHES = "__pycache__"  # what Python may run in place of a source


def program_changes(changes: Iterable[tuple[str, str | None]], problem: Problem) -> dict[str, str | None]:
    """The changes (path, text) that are of the program; None is the text of a file that is deleted.

    Whatever else an answer changes counts for nothing:

    - files of the problem's tests, and caches;
    - new modules that would take the place of a module or package of the problem, unless that is deleted, or
      of a folder that holds tests only; a new `__init__.py` may make a package of a folder that has none;
    - new files in place of a folder that holds tests only, or below a path of a test;
    - for tests that run beside the answer (`InProcess`): settings (`conftest.py`, `pytest.ini`,
      `pyproject.toml`, `sitecustomize.py`, `*.pth` …), new files named as tests (`test_*.py`, `*_test.py`),
      and new files in folders that hold tests only.

    A new module of the answer's (`numpy.py`, `textwrap.py`) is found only where no other module has its
    name.
    """
    changed, tests = dict(changes), problem.test_files or {}
    if not changed:
        return changed
    program = {*(problem.files or {}), problem.path}
    deleted = {path for path, text in changed.items() if text is None}
    only_tests = {one for test in tests for one in folders_above(test)}
    only_tests -= {one for path in program for one in folders_above(path)}
    taken = {*map(_module, (program - deleted).union(tests, only_tests)), ""}

    def counts(path: str) -> bool:
        *folders, name = path.split("/")
        is_new = path not in program
        if path in tests or _CACHES in folders:
            return False
        if is_new and name.endswith(".py") and _module(path) in taken:
            return False
        if is_new and (path in only_tests or not tests.keys().isdisjoint(folders_above(path))):
            return False  # tests and such a file cannot lie in one folder
        if not problem.tests_of(InProcess) or path == problem.path:
            return True
        if any(map(_SETTINGS.fullmatch, (*folders, name))):
            return False
        is_as_tests = _TEST.fullmatch(name) or not only_tests.isdisjoint([*folders_above(path), path])
        return not (is_new and is_as_tests)

    return {path: text for path, text in changed.items() if counts(path)}


def _module(path: str) -> str:
    """The same text for the files that can be a module of one name, and for their folder."""
    return f"/{path}".removesuffix(".py").removesuffix("/__init__")


# How a test is judged: by values compared here, by a test program in a process of its own, by what
# the program printed, or in the answer's own process, where the answer could forge the result.
Mode = Literal["values", "check", "stdio", "in_process"]
DEFAULT_COMPARISON = Comparison()
MAX_VALUE_CHARS = 120
MAX_TRACEBACK_CHARS = 2000

_WANTED = {
    Relation.COMPLETES: "it to pass",
    Relation.RAISES: "{} to be raised",
    Relation.PRINTS: "it to print {}",
    Relation.TRUE: "it to be true",
    Relation.FALSE: "it to be false",
    Relation.EQUAL: "{}",
}


@dataclass(frozen=True)
class Expectation:
    """What one call, expression, test program or run of an answer must give.

    `expected` is a flat plain value, the name of an exception class for RAISES, a text for PRINTS, a
    `doctest.Example` for EXAMPLE; `tolerances` are the relative and the absolute one of CLOSE. Of what is
    printed, `max_output_bytes` are kept: a text as long as that may have been cut and does not pass. PRINTS
    has no `comparison`.
    """

    description: str
    relation: Relation
    expected: Any = None
    comparison: Comparison = DEFAULT_COMPARISON
    mode: Mode = "values"
    tolerances: tuple[float, float] = (0.0, 0.0)
    max_output_bytes: int = 0

    def is_met_by(self, result: CallResult) -> bool:
        """Whether the result is right."""
        if self.relation is Relation.RAISES:
            return not result.returned and result.error_class == self.expected
        if not result.returned:
            return False
        if not result.plain:  # and therefore not None, and true as a match object is
            is_not_none = self.relation is Relation.NOT_EQUAL and self.expected is None
            if is_not_none or self.relation in (Relation.TRUE, Relation.NOT_IDENTICAL):
                return True
            return self._asks_for_anything and is_something(self.expected)
        return self._holds_for(result.value)

    def failing_status(self, result: CallResult) -> Status:
        """The status of an answer for which this expectation is the first that is not met."""
        if not result.returned:
            if result.error_class == "MemoryError":
                return Status.MEMORY
            is_program = self.relation is Relation.COMPLETES
            return Status.FAILED if is_program and result.error_class == "AssertionError" else Status.ERROR
        if result.plain or self._asks_for_anything or self.relation is Relation.RAISES:
            return Status.FAILED
        return Status.WRONG_TYPE

    def failure(self, result: CallResult) -> str:
        """One bounded line: what was called, what was expected, what the result was."""
        if not result.returned:
            came = visible(f"raised {result.error_class}: {result.error_message}", MAX_MESSAGE_CHARS)
        elif not result.plain:
            came = visible(result.error_message, MAX_MESSAGE_CHARS)
        else:
            came = f"got {show_value(self._shown(result.value))}"
        return f"{self.description}: expected {self._wanted()}, {came}"

    def _wanted(self) -> str:
        if self._asks_for_anything:
            return "anything" if is_something(self.expected) else "nothing"
        if self.relation is Relation.EXAMPLE:
            return show_value(self.expected.want if self.expected.exc_msg is None else self.expected.exc_msg)
        wanted = self.expected if self.relation is Relation.RAISES else show_value(self.expected)
        if self.relation is Relation.EQUAL and self.comparison.rule == "same_set":
            return f"{wanted} in any order"
        return _WANTED.get(self.relation, f"{self.relation.value} {{}}").format(wanted)

    def _shown(self, value: Any) -> Any:
        match value:
            case [printed, raised] if self.relation is Relation.EXAMPLE:
                return printed if raised is None else raised
        return value

    @property
    def _asks_for_anything(self) -> bool:
        return self.relation is Relation.EQUAL and self.comparison.rule == "not_none"

    def _holds_for(self, value: Any) -> bool:
        relation, expected = self.relation, self.expected
        if relation is Relation.EQUAL:
            return matches(value, expected, self.comparison)
        if relation is Relation.NOT_EQUAL:
            return not equal(value, expected, self.comparison)
        if relation is Relation.CLOSE:
            relative, absolute = self.tolerances
            return close(value, expected, relative=relative, absolute=absolute)
        if relation is Relation.PRINTS:
            is_whole = len(value.encode("utf-8", "replace")) < self.max_output_bytes
            return is_whole and same_output(value, expected)
        if relation in (Relation.IDENTICAL, Relation.NOT_IDENTICAL):
            return (value is expected) is (relation is Relation.IDENTICAL)
        if relation in (Relation.TRUE, Relation.FALSE):
            inner = value[0] if isinstance(value, (PlainSet, PlainDict)) else value
            return bool(inner) is (relation is Relation.TRUE)
        if relation is Relation.COMPLETES:
            return True
        if relation is Relation.EXAMPLE:
            return is_met(expected, value)
        if isinstance(expected, str):
            is_member = isinstance(value, str) and value in expected
        else:
            is_member = any(equal(value, element, self.comparison) for element in elements_of(expected))
        return is_member is (relation is Relation.MEMBER)


@dataclass(frozen=True)
class GradingPlan:
    """How to judge any answer to one problem.

    `job` is what to run, but for the code and the limits; of the output,
    `max_output_bytes` are kept, if it matters. `expectations` are in the order of the problem's tests;
    `positions` says which of a run's results belongs to each.
    """

    job: Job
    expectations: tuple[Expectation, ...]
    positions: tuple[int, ...]
    max_output_bytes: int | None = None


def judge(plan: GradingPlan, result: RunResult) -> Verdict:
    """The verdict: every test that was reached is compared; all must pass and the run complete.

    What an answer returned may be what no test foresaw: a value that breaks its comparison is that
    answer's failure, and costs no other answer its verdict.
    """
    verdict = partial(
        Verdict, cpu_seconds=result.cpu_seconds, wall_seconds=result.wall_seconds, layers=result.layers
    )
    try:
        return _judge(plan, result, verdict)
    except Exception as error:
        return verdict(
            status=Status.WRONG_TYPE,
            tests_passed=(False,) * len(plan.expectations),
            error_class=type(error).__name__,
            error_message=visible(f"what the answer returned cannot be judged: {error}", MAX_MESSAGE_CHARS),
        )


def _judge(plan: GradingPlan, result: RunResult, verdict: partial[Verdict]) -> Verdict:
    results = [result.results[at] if at < len(result.results) else None for at in plan.positions]
    pairs = zip(plan.expectations, results, strict=True)
    passed = tuple(one is not None and expectation.is_met_by(one) for expectation, one in pairs)
    error_class, error_message, first_failure = result.error_class, result.error_message, ""
    traceback = result.traceback
    # What a test found tells more than that another was not reached.
    not_passed = (i for i, ok in enumerate(passed) if not ok)
    failing = min(not_passed, key=lambda i: results[i] is None, default=None)
    if failing is not None:
        expectation, failed = plan.expectations[failing], results[failing]
        if failed is not None:
            first_failure = expectation.failure(failed)
        else:  # what ended the program, if that is known
            ended = f"{error_class}: {error_message}" if error_class else "not reached or not finished"
            first_failure = visible(f"{expectation.description}: {ended}", MAX_MESSAGE_CHARS)
    if result.outcome is not Outcome.COMPLETED:
        status = status_of(result.outcome)
    elif len(result.results) != len(passed):
        status = Status.INFRASTRUCTURE
        error_message = f"the sandbox reported {len(result.results)} results for {len(passed)} tests"
    elif failing is None:
        status = Status.PASSED
    else:
        assert failed is not None  # as many results as tests: every test was reached
        status = expectation.failing_status(failed)
        error_class, error_message = failed.error_class, failed.error_message
        traceback = failed.traceback
    return verdict(
        status=status,
        tests_passed=passed,
        error_class=None if error_class is None else visible(error_class, 100),
        error_message=visible(error_message, MAX_MESSAGE_CHARS),
        traceback=visible(traceback, MAX_TRACEBACK_CHARS),
        first_failure=first_failure,
        stdout=visible(result.stdout),
        stderr=visible(result.stderr),
    )


def show_value(value: Any) -> str:
    """A plain value, flat or not, as Python would write it, bounded whatever its size."""
    return visible(_written(value, MAX_VALUE_CHARS), MAX_VALUE_CHARS)


def _written(value: Any, budget: int) -> str:
    match value:
        case int() if value.bit_length() > 400:
            return f"<an int of {value.bit_length()} bits>"
        case str() | bytes() | bytearray():
            return repr(value[: max(0, budget)])
        case PlainDict(entries):
            return _joined("{", entries, "}", budget, ": ")
        case dict():
            return _joined("{", value.items(), "}", budget, ": ")
        case PlainSet(elements):
            return _joined("{", elements, "}", budget) if elements else "set()"
        case set() | frozenset():
            return _joined("{", value, "}", budget) if value else "set()"
        case list():
            return _joined("[", value, "]", budget)
        case deque():
            return _joined("deque([", value, "])", budget)
        case range():
            return _joined("range(", (value.start, value.stop, value.step), ")", budget)
        case tuple():
            return _joined("(", value, ",)" if len(value) == 1 else ")", budget)
    return repr(value)


def _joined(start: str, values: Iterable[Any], end: str, budget: int, between: str = "") -> str:
    """The values between brackets; with `between`, each value is a pair."""
    parts: list[str] = []
    for value in values:
        if budget <= 0:
            parts.append("…")
            break
        written = _written(value[0] if between else value, budget)
        if between:
            written += between + _written(value[1], budget - len(written))
        parts.append(written)
        budget -= len(written) + 2
    return start + ", ".join(parts) + end


_COMPUTING_LIMITS = Limits(cpu_seconds=20.0, wall_seconds=60.0)
_EXTRA_OUTPUT_BYTES = 64 << 10  # than expected, before an output is too long to be right
_EXTRA_RESULT_BYTES = 1 << 20  # than expected, before results are too long to be read
_FRAME_BYTES = 100  # around a result, at most
_UNKNOWN = object()  # stands for an expected value that only a test program can compare
_NUMBER_CHARS = 24  # that a right answer may write a number longer by: 0.1 as 0.09999999999999998


def expected_values_job(problem: Problem) -> Job | None:
    """The trusted job whose result `make_plan` needs to know the expected values, if there is one.

    Raises `ProblemError` for a test that is not Python.
    """
    assertions = [parse_assertion(source, problem.entry_point) for source in problem.sources(Assertion)]
    expressions = _to_compute(assertions)
    if not expressions and not (problem.setup_code and None in assertions):
        return None
    return Job(
        code=f"def {problem.entry_point}(*_, **__): raise NameError('there is no answer here')",
        expressions=expressions,
        setup_code=problem.setup_code,
        files={**(problem.files or {}), **(problem.test_files or {})},
        limits=_COMPUTING_LIMITS,
        trusted=True,
    )


def demand_judgeable(problem: Problem) -> None:
    """Raises `ProblemError` for a problem that cannot be judged, as far as that shows before code runs."""
    if problem.label is not None:
        return
    is_open = any(isinstance(case.expected, Expected) for case in problem.cases)
    if expected_values_job(problem) is None and not is_open:
        make_plan(problem)


def make_plan(problem: Problem, computed: RunResult | None = None) -> GradingPlan:
    """Prepares a problem; `computed` is the result of its `expected_values_job`, if it has one.

    Raises `ProblemError` for a problem without tests or with several kinds of tests, with an entry
    point where there should be none or none where there should be one, for a function of a module that
    cannot be hidden, with test programs that are not Python, and with expected values that are not plain
    data or cannot be computed.
    """
    kinds = [kind.plural for kind in _MAKERS if problem.tests_of(kind)]
    if len(kinds) != 1:
        known = ", ".join(kind.plural for kind in _MAKERS)
        raise problem.error(
            f"expected one kind of test ({known}), found {' and '.join(kinds) or 'none'}.",
            remedy="Without a test every answer would pass; with several kinds it is unclear which decides.",
        )
    module = problem.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if problem.path in (problem.files or {}) and FrozenImporter.find_spec(module) is not None:
        raise problem.error(
            f"the module {module} is a part of the interpreter, where an answer could call its original.",
            remedy="Ask for a function of another module.",
        )
    may_be_module = problem.path and kinds[0] in ("doctests", "in_process_tests")
    if (kinds[0] == "stdio_cases") is bool(problem.entry_point) and not may_be_module:
        raise problem.error(
            f"expected {'an empty' if problem.entry_point else 'an'} entry point "
            f"beside {kinds[0]}, found {problem.entry_point!r}.",
            remedy="Problems with stdio_cases ask for whole programs, all others for a function.",
        )
    name = re.escape(problem.entry_point.rpartition(".")[2])
    if name and re.search(rf"(?m)^[ \t]*async\s+def\s+{name}\b", problem.starter_code + problem.reference):
        raise problem.error(
            f"{problem.entry_point} is an async function, and no event loop runs in the sandbox.",
            remedy="Ask for a function that is called and returns (it may drive coroutines by `send`).",
        )
    _demand_python(problem, [problem.setup_code], "setup code")  # it would fail every answer
    job = Job(
        code="",
        entry_point=None if may_be_module else problem.entry_point or None,
        setup_code="" if kinds[0] == "stdio_cases" else problem.setup_code,
        preamble=problem.preamble,
        files={**(problem.files or {}), **(problem.test_files or {})},
        path=problem.path,
    )
    try:
        job.check_files()
    except SandboxError as error:
        raise problem.error(error.message) from None
    job, expectations = _MAKERS[type(problem.tests[0])](problem, job, computed)
    most = min(MAX_RESULT_BYTES, sum(map(_returned_bytes, expectations), _EXTRA_RESULT_BYTES))
    tests = range(len(expectations))
    checks_last = sorted(tests, key=lambda test: expectations[test].mode == "check")  # as results come
    position = {test: at for at, test in enumerate(checks_last)}
    return GradingPlan(
        job=replace(job, result_bytes=most),
        expectations=tuple(expectations),
        positions=tuple(position[test] for test in tests),
        max_output_bytes=expectations[0].max_output_bytes or None,
    )


_Made = tuple[Job, list[Expectation]]  # the expectations in the order of the tests


def _plan_cases(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    calls = tuple(Call(case.args, case.kwargs) for case in problem.cases)
    numbered = enumerate(zip(problem.cases, calls, strict=True), 1)
    expectations = [_case_expectation(problem, number, case, call) for number, (case, call) in numbered]
    return replace(job, calls=calls), expectations


def _case_expectation(problem: Problem, number: int, case: Case, call: Call) -> Expectation:
    if isinstance(case.expected, Expected):
        raise problem.error(
            f"the expected value of case {number} is not known yet.",
            remedy="`Grader.complete` computes it from the reference.",
        )
    try:
        call.text  # noqa: B018 (it raises what is to be told)
        expected = canonical(case.expected)
    except PlainDataError as error:
        raise problem.error(f"case {number} is not plain data: {error}.") from None
    named = (f"{name}={show_value(value)}" for name, value in case.kwargs.items())
    arguments = ", ".join((*map(show_value, case.args), *named))
    description = visible(f"{problem.entry_point}({arguments})", MAX_MESSAGE_CHARS)
    if case.raises is None:
        if problem.comparison.rule == "same_set" and not isinstance(expected, COLLECTIONS):
            raise problem.error(f"case {number} is compared as a set, but expects {show_value(expected)}.")
        return Expectation(description, Relation.EQUAL, expected, problem.comparison)
    if case.raises == "SystemExit":
        raise problem.error(
            f"case {number} expects SystemExit, which ends the process of the answer.",
            remedy="Test what the program prints (stdio_cases), or that it raises another exception.",
        )
    if expected is not None or not case.raises.isidentifier():
        raise problem.error(
            f"case {number} expects {show_value(expected)} and the exception {case.raises!r}.",
            remedy="A case expects a value, or with expected None the class name of an exception.",
        )
    return Expectation(description, Relation.RAISES, case.raises)


def _plan_assertions(problem: Problem, job: Job, computed: RunResult | None) -> _Made:
    assertions = [parse_assertion(source, problem.entry_point) for source in problem.sources(Assertion)]
    results = computed.results if computed is not None else ()
    pairs = zip(_to_compute(assertions), results, strict=False)
    values = {expression: one.value for expression, one in pairs if one.returned and one.plain}
    expectations, expressions, checks = [], list[str](), list[str]()
    for source, assertion in zip(problem.sources(Assertion), assertions, strict=True):
        expected = None if assertion is None else _expected_value(assertion, values)
        if assertion is None or expected is _UNKNOWN:
            checks.append(clean_test(source))
            expectations.append(_completes(checks[-1], "check"))
            continue
        is_container = isinstance(expected, (str, list, tuple))  # PlainSet and PlainDict are tuples, too
        if assertion.relation in (Relation.MEMBER, Relation.NOT_MEMBER) and not is_container:
            raise problem.error(f"the test of {assertion.call!r} looks for a member of no container.")
        expressions.append(assertion.call)
        expectations.append(
            Expectation(
                visible(assertion.call, MAX_MESSAGE_CHARS),
                assertion.relation,
                expected,
                problem.comparison,
                tolerances=assertion.tolerances,
            )
        )
    if computed is not None and computed.outcome is Outcome.INFRASTRUCTURE:
        raise problem.error(f"its expected values could not be computed: {computed.error_message}.")
    if checks and computed is not None and computed.outcome in (Outcome.LOAD_ERROR, Outcome.SYNTAX_ERROR):
        raise problem.error(
            f"the test {checks[0]!r} runs apart from the answer, but the setup code fails there: "
            f"{computed.error_class}: {computed.error_message}.",
            remedy="Tests that need names of the answer besides its entry point are in_process_tests.",
        )
    check_setup = problem.setup_code if checks else ""
    job = replace(job, expressions=tuple(expressions), checks=tuple(checks), check_setup=check_setup)
    return job, expectations


def _to_compute(assertions: Sequence[ParsedAssertion | None]) -> tuple[str, ...]:
    """The expected sides that are not literals, each once."""
    unknown = (one.expected for one in assertions if one and _expected_value(one, {}) is _UNKNOWN)
    return tuple(dict.fromkeys(side for side in unknown if side is not None))


def _expected_value(assertion: ParsedAssertion, computed: Mapping[str, Any]) -> Any:
    """The expected side of an assertion, None without one: a literal, or computed, or else _UNKNOWN."""
    if assertion.expected is None:
        return None
    try:
        return canonical(ast.literal_eval(assertion.expected))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, PlainDataError):
        return computed.get(assertion.expected, _UNKNOWN)


def _plan_checks(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    checks = problem.sources(Check)
    _demand_python(problem, [problem.check_setup_code, *checks])
    texts = (f"check {number}: {visible(check, 200)}" for number, check in enumerate(checks, 1))
    expectations = [_completes(text, "check") for text in texts]
    return replace(job, checks=checks, check_setup=problem.check_setup_code), expectations


def _plan_stdio(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    runs = problem.tests_of(StdioCase)
    longest = max(len(run.stdout.encode("utf-8", "replace")) for run in runs)
    expectations = [
        Expectation(
            f"run {number} with input {show_value(run.stdin)}",
            Relation.PRINTS,
            run.stdout,
            mode="stdio",
            max_output_bytes=longest + _EXTRA_OUTPUT_BYTES,
        )
        for number, run in enumerate(runs, 1)
    ]
    return replace(job, stdins=tuple(run.stdin for run in runs)), expectations


def _plan_doctests(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    expressions, expectations = list[str](), list[Expectation]()
    for number, text in enumerate(problem.sources(Doctest)):
        try:
            examples = read_examples(text)
        except ValueError as error:
            raise problem.error(f"a doctest is malformed: {error}.") from None
        for one in examples:
            shown = visible(f">>> {one.source.rstrip()}", MAX_MESSAGE_CHARS)
            if (compared := _comparison_of(one)) is not None:
                source, relation, literal = compared
                expressions.append(f"__example__({number}, {source!r}, 'eval')")
                expectations.append(Expectation(shown, relation, literal, _EXACTLY))
                continue
            expressions.append(f"__example__({number}, {one.source!r})")
            mode: Mode = "in_process" if _asks_the_answer(one, problem.entry_point) else "values"
            expectations.append(Expectation(shown, Relation.EXAMPLE, one, mode=mode))
    if not expectations:
        raise problem.error("its doctests have no example that is not skipped.")
    setup = f"{problem.setup_code}\n{EXAMPLE_SETUP}"
    return replace(job, expressions=tuple(expressions), setup_code=setup), expectations


_EXACTLY = Comparison(tolerance=0.0, tuple_is_list=False)
_OPPOSITES = {
    Relation.EQUAL: Relation.NOT_EQUAL,
    Relation.IDENTICAL: Relation.NOT_IDENTICAL,
    Relation.MEMBER: Relation.NOT_MEMBER,
}
_OPPOSITES |= {other: one for one, other in _OPPOSITES.items()}
_YES_OR_NO = ("True\n", "False\n")


def _comparison_of(example: Example) -> tuple[str, Relation, Any] | None:
    """The expression, the relation and the literal of an example that says whether the first is the second.

    None for any other. `f(2) == 4` with the output False is NOT_EQUAL.
    """
    match _statements(example):
        case [ast.Assert(ast.Compare(left, [operator], [right]))] if not example.want:
            is_so = True
        case [ast.Expr(ast.Compare(left, [operator], [right]))] if example.want in _YES_OR_NO:
            is_so = example.want == _YES_OR_NO[0]
        case _:
            return None
    relation = _RELATIONS.get(type(operator))
    if relation is None or example.exc_msg is not None:
        return None
    sides = (
        [(left, right), (right, left)]
        if relation in (Relation.EQUAL, Relation.NOT_EQUAL)
        else [(left, right)]
    )
    for value, other in sides:
        literal = _expected_value(ParsedAssertion("", relation, ast.unparse(other)), {})
        if relation in (Relation.IDENTICAL, Relation.NOT_IDENTICAL):
            is_fit = literal is None or isinstance(literal, bool)
        else:
            is_fit = relation in (Relation.EQUAL, Relation.NOT_EQUAL) or isinstance(
                literal, (str, list, tuple)
            )
        if literal is not _UNKNOWN and is_fit:
            return ast.unparse(value), relation if is_so else _OPPOSITES[relation], literal
    return None


def _asks_the_answer(example: Example, entry_point: str) -> bool:
    """Whether objects or functions that the answer controls decide an example: it asserts, or prints True or
    False, and is more than a call of the entry point (without one, of what Python does not have).
    """
    body = _statements(example)
    name = entry_point.rpartition(".")[2]
    match body:
        case [ast.Expr(ast.Call(ast.Name(called) | ast.Attribute(attr=called)))]:
            if called == name or not (name or hasattr(builtins, called)):
                return False
    asserts = any(isinstance(node, ast.Assert) for statement in body for node in ast.walk(statement))
    return asserts or example.want in _YES_OR_NO


def _statements(example: Example) -> list[ast.stmt]:
    try:
        return parse(example.source).body
    except UNREADABLE:
        return []


def _plan_in_process(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    sources = problem.sources(InProcess)
    _demand_python(problem, sources)
    expectations = [_completes(source, "in_process") for source in sources]
    return replace(job, expressions=tuple(f"exec({source!r}, globals())" for source in sources)), expectations


_MAKERS: dict[type[Test], Callable[[Problem, Job, RunResult | None], _Made]] = {
    Case: _plan_cases,
    Assertion: _plan_assertions,
    Check: _plan_checks,
    StdioCase: _plan_stdio,
    Doctest: _plan_doctests,
    InProcess: _plan_in_process,
}


def _completes(description: str, mode: Mode) -> Expectation:
    return Expectation(visible(description, MAX_MESSAGE_CHARS), Relation.COMPLETES, mode=mode)


def _returned_bytes(expectation: Expectation) -> int:
    """At most so much text is what a right answer returns for a test of values."""
    if expectation.mode != "values":
        return _FRAME_BYTES
    is_example = expectation.relation is Relation.EXAMPLE
    expected = encode(expectation.expected.want if is_example else expectation.expected)
    return _FRAME_BYTES + 2 * len(expected) + _NUMBER_CHARS * (expected.count(",") + 1)


def _demand_python(problem: Problem, sources: Iterable[str], what: str = "test") -> None:
    for source in sources:
        try:
            parse(source)
        except UNREADABLE as error:
            raise problem.error(f"the {what} {visible(source, 80)!r} is not Python: {error}.") from None
