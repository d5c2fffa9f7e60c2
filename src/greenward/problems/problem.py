"""Defines problems and their tests as records, and puts an answer that is one function into its file.

`Problem.files` holds the answer's own file, too, with the function that is asked for unwritten. Everything
else of the file stays as it is, the function's decorators included.
"""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, get_args

from greenward.common.errors import ProblemError
from greenward.problems.names import KIND_TAG, MUTANT_TAG
from greenward.problems.python_source import FunctionNode, parse_or_none, qualified_functions, source_lines

PromptName = Literal["greenward", "evalplus", "livecodebench", "bigcodebench", "bigcodebench-instruct"]
"""The prompts with which problems are put (`environments.prompts`): ours and published ones."""
Rule = Literal["equal", "same_set", "not_none", "equal_or_in_list"]


class Expected(Enum):
    """Stands for an expected value that is not known yet."""

    FROM_REFERENCE = "from_reference"  # what the reference returns; `grading.judge` computes it


@dataclass(frozen=True)
class Comparison:
    """How a returned value is compared with the expected one.

    `tolerance` is both absolute and relative, as in `math.isclose`; 0 demands equality. If there is a
    `relative_tolerance`, the two add up, as in numpy's `allclose`. `tuple_is_list` accepts a tuple for a
    list, for suites whose JSON lost the difference; "outermost" does so for the returned value itself only.

    The `rule` is one of:

    - `equal`: the values are equal;
    - `same_set`: the elements are equal, whatever their order, number and container;
    - `not_none`: both values are None or False, or neither is;
    - `equal_or_in_list`: equal to the expected value, or to a list that holds only that (APPS).

    EvalPlus declares `same_set` and `not_none` for single problems of its suites.
    """

    tolerance: float = 1e-6
    tuple_is_list: bool | Literal["outermost"] = False
    rule: Rule = "equal"
    relative_tolerance: float | None = None


@dataclass(frozen=True)
class Case:
    """One call of the entry point and the value that it must return (plain data only).

    If `raises` names an exception class, the call must raise that exception instead, and `expected` is None.
    """

    plural: ClassVar = "cases"
    args: tuple[Any, ...]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    raises: str | None = None

    def __post_init__(self) -> None:
        """Raises `ProblemError` for arguments that are no tuple, keyword arguments that are no mapping."""
        _demand(self, ("args",), (tuple, list), "a tuple of arguments, as (1,) for one")
        _demand(self, ("kwargs",), Mapping, "a mapping")
        _demand(self, ("raises",), (str, type(None)), "the name of an exception class, or None")


@dataclass(frozen=True)
class StdioCase:
    """One run of a whole program: what it reads and what it must print.

    Standard input is a file, standard output a pipe. The output is compared line by line, without spaces at
    the ends of lines and empty lines at both ends, numbers as exact decimals (`1.50` is `1.5`). Any exit
    status but 0 and any exception is `error`. Limits hold for each process. Each case has a process of its
    own, but programs that use only what `greenward.sandbox.inside.sharing` allows share one for up to 32
    cases, one after the other: they can find out that other cases came before, but leave nothing to later
    ones.
    """

    plural: ClassVar = "stdio_cases"
    stdin: str
    stdout: str


@dataclass(frozen=True)
class _SourceTest:
    """A test that is written as text."""

    source: str

    def __post_init__(self) -> None:
        _demand(self, ("source",), str, "text")


class Assertion(_SourceTest):
    """An assert statement (MBPP).

    One that compares one call of the entry point (`f(x) == y`, `not f(x)`, `abs(f(x) - y) < e`,
    `math.isclose` …) is split: the answer's process makes the call, and a worker that never runs answers
    evaluates the expected value. All others (`len(f(x)) == 3`) run as a `Check`.
    """

    plural: ClassVar = "tests"


class Check(_SourceTest):
    """A test program that calls the entry point (HumanEval's `check`).

    It runs in a process of its own, after `Problem.check_setup_code`, against a proxy of the entry point.
    Arguments and results cross as plain data; what an answer changes in its arguments does not come back.
    Functions and iterators, of either side, are called where they are; built-in classes cross by their names.
    The program receives an exception of the answer as the nearest built-in class (`AnswerError` for one that
    derives from `Exception` alone).
    """

    plural: ClassVar = "checks"


class Doctest(_SourceTest):
    """A text with `>>>` examples, which run in a copy of the answer's namespace.

    What they print is compared outside by the rules of Python's `doctest`, options included. Of an example
    that says whether a value is a literal (`f(2) == 4` with the output True, `assert f(2) == 4`), the value
    is plain data and is compared outside. Of others that assert, or print True or False, only calls of the
    entry point (`is_prime(7)`) are judged so: what `isinstance(f(2), int)` or `4 in f(2)` says, objects of
    the answer decide, and **an answer could forge it**.
    """

    plural: ClassVar = "doctests"


class InProcess(_SourceTest):
    """A test program that needs the answer's own objects and runs in its process.

    Tests for unittest or pytest are of this kind. An answer could forge its success there: prefer `Case` or
    `Doctest` where they suffice.
    """

    plural: ClassVar = "in_process_tests"


Test: TypeAlias = Case | Assertion | Check | StdioCase | Doctest | InProcess
TEST_KINDS: tuple[type[Test], ...] = get_args(Test)
_Kind = TypeVar("_Kind", bound=Test)


class AnyLabel(Protocol):
    """The right label of what is to be classified: it stands in place of tests.

    `pair` is shared by the versions of one thing, which are chosen together.
    """

    @property
    def pair(self) -> str: ...

    def question(self, problem: Problem, *, chat: bool) -> str:
        """What is asked; `chat`: of a model that follows instructions."""

    def judge(self, text: str | None) -> Any:
        """The `grading.verdict.Verdict` on an answer."""

    @staticmethod
    def figures(answers: Sequence[tuple[Problem, str]]) -> dict[str, Any]:
        """What an evaluation says of the answers beside pass@k: further `metrics`, and records by name."""


@dataclass(frozen=True)
class Problem:
    """A function or program to write and the tests that judge it, or a function to classify.

    `prompt` is the specification in words; `starter_code` is the signature, with the docstring if there is
    one, that an answer continues. `tests` are of one kind: calls with values (`Case`), assert statements
    (`Assertion`), test programs (`Check`, `InProcess`), examples (`Doctest`), or runs of a whole program
    (`StdioCase`), whose entry point is empty. `hidden_cases` are further cases, which nothing grades unless
    they are put in the place of `tests`.

    Where there is a `label` in place of tests, `prompt` is what is to be classified.

    A program may consist of several files. `path` is that of the answer's own file, a module that is imported
    under its name; `files` are those beside it, which an answer may edit, and `test_files` those of the
    tests, which are always the problem's. All are relative paths with text. `entry_point` may be a method
    (`Class.method`) then, or empty for doctests and in_process_tests. If `files` holds `path` itself, with
    the entry point unwritten, the answer is this function, to be put in its place; the prompt shows
    `context`, what matters of the file around it, before the starter code, and no answer can read what is
    installed of this module.

    `setup_code` runs after the answer and before the tests. `preamble` runs before the answer, in the
    same namespace; a program with a preamble may end with a top-level `return` and with any exit status,
    as the judges of contest suites allow. `reference` is a whole program that passes, together with
    `reference_files`, the texts of the other files that it changes or adds, by path. In a repair problem,
    `buggy_code` is the whole program with the bug, and `failing_test` says, if known, what its first failing
    test called, expected and got.

    The first `base_tests` of the tests are those of the original suite, and the others were added (EvalPlus);
    None if there is no such difference. `tests_left_out` counts the tests that nothing could judge.
    `columns` is further data, by name, for reward functions that ask for it.

    Three fields are about CPU time (`grading.judge`): `cpu_seconds` is what an answer needs in total,
    if that is more than the general limit; `test_seconds` is the suite's own limit for each test, 0 for none;
    `reference_seconds` is what the reference takes for each case. What is measured does not count when
    problems are compared.
    """

    task_id: str
    prompt: str
    entry_point: str
    tests: tuple[Test, ...] = ()
    check_setup_code: str = ""
    label: AnyLabel | None = None
    path: str = ""
    files: Mapping[str, str] | None = None
    test_files: Mapping[str, str] | None = None
    context: str = ""
    preamble: str = ""
    setup_code: str = ""
    starter_code: str = ""
    reference: str = ""
    buggy_code: str = ""
    failing_test: str = ""
    comparison: Comparison = Comparison()
    tags: tuple[str, ...] = ()
    base_tests: int | None = None
    tests_left_out: int = 0
    columns: Mapping[str, Any] | None = None
    hidden_cases: tuple[Case, ...] = ()
    reference_files: Mapping[str, str] | None = None
    cpu_seconds: float = field(default=0.0, compare=False)
    test_seconds: float = 0.0
    reference_seconds: tuple[float, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Raises `ProblemError` for text that is no text, and for tests that are none."""
        _demand(self, _TEXTS, str, "text")
        _demand(self, _TUPLES, (tuple, list), "a tuple")
        _demand(
            self,
            ("files", "test_files", "reference_files"),
            (Mapping, type(None)),
            "a mapping of paths to texts",
        )
        for name, (kinds, what) in _TUPLES.items():
            for position, one in enumerate(getattr(self, name)):
                if not isinstance(one, kinds):
                    found = f"expected {what} at position {position}, found {one!r:.200}"
                    raise ProblemError(f"Problem {self.task_id!r}: {name}: {found}.")

    @property
    def cases(self) -> tuple[Case, ...]:
        """The tests that are calls with values."""
        return self.tests_of(Case)

    def tests_of(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        """The tests of one kind."""
        return tuple(test for test in self.tests if isinstance(test, kind))

    def sources(self, kind: type[_SourceTest]) -> tuple[str, ...]:
        """The texts of the tests of one kind."""
        return tuple(test.source for test in self.tests if isinstance(test, kind))

    def error(self, message: str, *, remedy: str | None = None) -> ProblemError:
        """The error of a problem that cannot be used."""
        return ProblemError(f"{self.task_id}: {message}", remedy=remedy)


_TEXTS = (
    "task_id", "prompt", "entry_point", "check_setup_code", "preamble", "setup_code", "starter_code",
    "reference", "buggy_code", "failing_test", "path", "context",
)  # fmt: skip
_TUPLES: dict[str, tuple[Any, str]] = {
    "tests": (TEST_KINDS, f"a test ({', '.join(kind.__name__ for kind in TEST_KINDS)})"),
    "hidden_cases": (Case, "a Case"),
    "tags": (str, "a str"),
}


_FIRST_FIELDS = (
    "task_id", "prompt", "entry_point", "cases", "tests", "checks", "check_setup_code", "stdio_cases",
    "doctests", "in_process_tests",
)  # fmt: skip


def _demand(
    record: Case | _SourceTest | Problem, names: Iterable[str], kind: type | tuple[type, ...], expected: str
) -> None:
    for name in names:
        value = getattr(record, name)
        if not isinstance(value, kind):
            raise ProblemError(f"{type(record).__name__}: {name}: expected {expected}, found {value!r:.200}.")


_SHOWN_ROWS = 3  # of those that were skipped


class ProblemSet(Sequence[Problem]):
    """An immutable, ordered set of problems with unique task ids.

    `skipped` says what is wrong with each row of the file that was left out. Raises `ProblemError`
    that names the first task id that occurs twice.
    """

    def __init__(
        self, problems: Iterable[Problem], *, name: str = "problems", skipped: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.skipped = skipped
        if not isinstance(problems, Iterable):
            raise ProblemError(f"{name}: expected problems, found {problems!r:.200}.")
        self._problems = tuple(problems)
        self._by_id: dict[str, Problem] = {}
        for position, problem in enumerate(self._problems):
            if not isinstance(problem, Problem):
                raise ProblemError(f"{name}: expected a Problem at row {position + 1}, found {problem!r}.")
            if problem.task_id in self._by_id:
                raise ProblemError(
                    f"{name}: task id {problem.task_id!r} occurs twice (again at row {position + 1}).",
                    remedy="Give every problem an id of its own.",
                )
            self._by_id[problem.task_id] = problem

    def __len__(self) -> int:
        return len(self._problems)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return self.with_problems(self._problems[index])
        return self._problems[index]

    def by_id(self, task_id: str) -> Problem:
        """The problem with this id, or the only one with it behind the name of its suite (`SUITE/ID`).

        Raises `ProblemError` naming the nearest ids if there is none.
        """
        if (found := self.find(task_id)) is not None:
            return found
        raise ProblemError(
            f"{self.name}: no problem has the id {task_id!r}.", remedy=self.nearest(task_id) or None
        )

    def find(self, task_id: str) -> Problem | None:
        """As `by_id`; None if there is none."""
        if task_id in self._by_id:
            return self._by_id[task_id]
        found = self._by_plain_id.get(task_id, [])
        return found[0] if len(found) == 1 else None

    def nearest(self, task_id: str) -> str:
        """A sentence that names the nearest ids, empty without any; it takes time to compare them all."""
        names = {name: one.task_id for name, found in self._by_plain_id.items() for one in found[:1]}
        near = [names.get(one, one) for one in get_close_matches(task_id, [*self._by_id, *names], n=3)]
        return f"Nearest: {', '.join(dict.fromkeys(near))}." if near else ""

    @cached_property
    def _by_plain_id(self) -> dict[str, list[Problem]]:
        found = defaultdict(list)
        for problem in self._problems:
            if plain := problem.task_id.partition("/")[2]:
                found[plain].append(problem)
        return dict(found)

    @cached_property
    def data_hash(self) -> str:
        """The `data_hash` of the problems in their order."""
        return data_hash(self._problems)

    @property
    def skipped_note(self) -> str:
        """How many rows were left out, and what is wrong with the first of them."""
        shown = [*self.skipped[:_SHOWN_ROWS], *(["…"] if len(self.skipped) > _SHOWN_ROWS else [])]
        return f"{len(self.skipped)}. {' '.join(shown)}"

    def filter(self, keep: Callable[[Problem], bool]) -> ProblemSet:
        """The problems for which `keep` holds, in order."""
        return self.with_problems(p for p in self._problems if keep(p))

    def with_problems(self, problems: Iterable[Problem], *, name: str | None = None) -> ProblemSet:
        """A set of problems that were chosen from these, or made of them, with the same `skipped`."""
        return ProblemSet(problems, name=name or self.name, skipped=self.skipped)


def original_id(problem: Problem) -> str:
    """The id of the problem whose program was mutated; a problem's own id if it is no mutant."""
    return problem.task_id.rpartition("#")[0] if MUTANT_TAG in problem.tags else problem.task_id


def bug_kind(problem: Problem) -> str:
    """The kind of the bug, a key of `mutation.KINDS`, or the suite's name for it; empty when unknown."""
    return next((tag[len(KIND_TAG) :] for tag in problem.tags if tag.startswith(KIND_TAG)), "")


def first_shared(shared: Mapping[str, str]) -> str:
    """The first pair of `shared_problems`, for a message."""
    name, trained = next(iter(shared.items()))
    return repr(name) if name == trained else f"{name!r}, which is {trained!r} of the training set"


_SUITE_IDS = ("Mbpp/", "HumanEval/")
"""An id that begins so names one problem of a public suite, in whichever words a file puts it."""


def shared_problems(train: Iterable[Problem], others: Iterable[Problem]) -> dict[str, str]:
    """The ids of the problems of `others` that are trained on, each with the id of the one in `train`.

    A mutant counts as the problem that it was made of. Ids that are made of file names, rows or names of
    functions may be alike by chance: then the prompts, the references, the programs with bugs or the tests
    are alike, too, if it is the same problem. Under different ids one of `_contents` is the same then.
    """
    trained = defaultdict(list)
    contents: dict[tuple[str, ...], str] = {}
    for problem in train:
        trained[original_id(problem)].append(problem)
        for content in _contents(problem):
            contents.setdefault(content, original_id(problem))
    shared: dict[str, str] = {}
    for one in others:
        name = original_id(one)
        if name in trained and (
            name.startswith(_SUITE_IDS) or any(_ask_the_same(one, other) for other in trained[name])
        ):
            shared[name] = name
            continue
        same = next((contents[content] for content in _contents(one) if content in contents), None)
        # Public suites hold some problems twice, and their parts are compared as they were published.
        if same is not None and not (name.startswith(_SUITE_IDS) and same.startswith(_SUITE_IDS)):
            shared.setdefault(name, same)
    return dict(sorted(shared.items()))


def repeated_problems(problems: Iterable[Problem]) -> list[tuple[str, str]]:
    """The ids of each problem that asks what an earlier one asks in the same words, and of that one."""
    first: dict[tuple[str, ...], str] = {}
    pairs = ((first.setdefault(_asked(one), one.task_id), one.task_id) for one in problems)
    return [pair for pair in pairs if pair[0] != pair[1]]


def _asked(problem: Problem) -> tuple[str, ...]:
    """All that a prompt may show, without its white space."""
    texts = ("prompt", "starter_code", "buggy_code", "context", "failing_test", "path")
    files = "" if problem.files is None else repr(sorted(problem.files.items()))
    return ("asked", *(" ".join(getattr(problem, name).split()) for name in texts), files)


def _contents(problem: Problem) -> Iterator[tuple[str, ...]]:
    """Yield what no two problems have in common: all that is asked, or the words and the tests or the answer.

    Problems of one file share its tests, and their references are the whole file: there only what is asked
    counts.
    """
    yield _asked(problem)
    words = " ".join(problem.prompt.split())
    if not problem.path and words:
        if problem.tests:
            yield "tested", words, repr(problem.tests)
        if problem.reference:
            yield "answered", words, " ".join(problem.reference.split())


def _ask_the_same(one: Problem, other: Problem) -> bool:
    texts = ("prompt", "reference", "buggy_code")
    words = [[getattr(problem, name).split() for problem in (one, other)] for name in texts]
    return any(a and a == b for a, b in words) or bool(one.tests and one.tests == other.tests)


def data_hash(values: Iterable[Any]) -> str:
    """SHA-256, in hex, of plain data and records in their order; it names the data of a result.

    Equal values of equal types give equal hashes in every process, on every machine.
    """
    text = "".join(f"{_canonical(value)}\n" for value in values)
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def stable_hash(text: str) -> int:
    """64 uniform bits that depend on nothing but `text`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _canonical(value: Any) -> str:
    """A text that distinguishes values and their types; sets are sorted.

    Fields of records are left out if they have their default or do not count when records are compared.
    """
    if type(value) is int:
        return hex(value)  # decimal text has a limit of digits
    if type(value) in (str, float):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        # A field that a later version adds does not change the hashes of existing data.
        counted = [(one, getattr(value, one.name)) for one in fields(value) if one.compare]
        items = {one.name: item for one, item in counted if item != one.default}
        if isinstance(value, Problem):  # each kind of test had a field of its own once
            items.pop("tests", None)
            for kind in filter(value.tests_of, TEST_KINDS):
                items[kind.plural] = tuple(getattr(test, "source", test) for test in value.tests_of(kind))
            items = {name: items[name] for name in (*_FIRST_FIELDS, *items) if name in items}
        contents = (f"{name}={_canonical(item)}" for name, item in items.items())
        return f"{type(value).__name__}({','.join(contents)})"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_canonical(key)}:{_canonical(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ",".join(sorted(map(_canonical, value))) + "}"
    if isinstance(value, (list, tuple)):
        opening, closing = "[]" if isinstance(value, list) else "()"
        return opening + ",".join(map(_canonical, value)) + closing
    return repr(value)


MAX_CHARS = 1 << 17


@dataclass(frozen=True)
class Hole:
    """A file around one function: the text before `def`, the text behind its last line, its indentation."""

    head: str
    tail: str
    indentation: str

    def filled_with(self, function: str) -> str:
        return f"{self.head}{function.rstrip()}\n{self.tail}"

    def content(self, code: str) -> str:
        """The function in a file that was made by `filled_with`; empty for another file."""
        if len(code) < len(self.head) + len(self.tail) or not code.startswith(self.head):
            return ""
        return code[len(self.head) : len(code) - len(self.tail)] if code.endswith(self.tail) else ""


def hole_of(problem: Problem) -> Hole | None:
    """Where the answer's function belongs; None for a problem whose answers are whole programs."""
    text = (problem.files or {}).get(problem.path)
    return _hole(text, problem.entry_point) if text is not None and problem.entry_point else None


def place(answer: str, problem: Problem, hole: Hole, *, continues: bool) -> str | None:
    """The file with the function of an answer in its place; None if the answer does not define it.

    If the answer `continues` the starter code, its function ends where the indentation does. Otherwise the
    last definition of that name counts, on whatever level.
    """
    name = problem.entry_point.rpartition(".")[2]
    answer = answer.replace("\r\n", "\n").replace("\r", "\n")
    if continues:
        begun = begun_function(problem)
        part = begun + _indented_part(answer, len(hole.indentation))
        return hole.filled_with(_definition(part, name) or _definition(begun + answer, name) or part)
    found = _definition(answer, name, hole.indentation)
    return None if found is None else hole.filled_with(found)


def begun_function(problem: Problem) -> str:
    """The starter code from the line of its last `def` on, without decorators."""
    name = problem.entry_point.rpartition(".")[2]
    start = max(problem.starter_code.rfind(f"def {name}"), 0)
    return problem.starter_code[problem.starter_code.rfind("\n", 0, start) + 1 :]


def function_in(problem: Problem, code: str) -> str | None:
    """The function in a file that an answer has become, empty if there is none; None for whole programs."""
    hole = hole_of(problem)
    return None if hole is None else hole.content(code)


@lru_cache(maxsize=1024)
def _hole(text: str, qualified: str) -> Hole | None:
    tree = parse_or_none(text)
    node = dict(qualified_functions(tree)).get(qualified) if tree else None
    if node is None:
        return None
    lines, start = source_lines(text), node.lineno - 1
    return Hole("".join(lines[:start]), "".join(lines[node.end_lineno or 0 :]), _indentation(lines[start]))


def _indented_part(text: str, indentation: int) -> str:
    """The text up to the first line that is indented no more than `indentation`."""
    kept = []
    for position, line in enumerate(source_lines(text)):
        if position and line.strip() and len(_indentation(line)) <= indentation:
            break
        kept.append(line)
    return "".join(kept)


def _definition(code: str, name: str, indentation: str | None = None) -> str | None:
    """The last definition of a function in code, without decorators, at this indentation; None without one.

    Strings over several lines keep theirs. Without `indentation` that of the code stays. Code of more than
    `MAX_CHARS` characters is not looked at, since parsing a megabyte takes seconds.
    """
    if len(code) > MAX_CHARS:
        return None
    opening = "if True:\n" if code.lstrip("\n")[:1] in (" ", "\t") else "\n"
    nodes = ast.walk(parse_or_none(opening + code) or ast.Module([], []))
    found = [one for one in nodes if isinstance(one, FunctionNode) and one.name == name]
    if not found:
        return None
    node = max(found, key=lambda one: one.lineno)
    lines = source_lines(opening + code)[node.lineno - 1 : node.end_lineno]
    if indentation is None:
        return "".join(lines)
    strings = {  # in Python 3.11, each part of an f-string has the place of the whole
        (one.lineno, one.end_lineno or 0)
        for one in ast.walk(node)
        if isinstance(one, (ast.Constant, ast.JoinedStr))
    }
    inside_strings = {line for first, last in strings for line in range(first + 1, last + 1)}
    own = _indentation(lines[0])
    for at, line in enumerate(lines):
        if line.strip() and node.lineno + at not in inside_strings:
            lines[at] = indentation + (line[len(own) :] if line.startswith(own) else line.lstrip(" \t"))
    return "".join(lines)


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
