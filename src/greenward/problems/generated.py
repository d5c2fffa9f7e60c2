"""Generates problems from compositions of operations, as functions or in modules, and splits them in two.

Each operation is a phrase in English, the Python expression that computes it, and plausible wrong
expressions. It is defined on every input: where a list may be empty, the phrase says what comes then. The
same config gives the same problems everywhere: process, platform and `PYTHONHASHSEED` do not matter.
Generated modules are small documented files. A problem of two operations becomes a function of such a file:
a helper of the file does the first operation, the function that is asked for calls it and does the second.
What the helper is called, and whether it is a function or a method, differs from module to module, so an
answer has to read its file. Functions are masked and put as those of mined source (`problems.mining`).
Every held-out problem asks for a function that no training problem computes, and of a module for an answer
that no training problem holds.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import islice, pairwise
from textwrap import indent
from typing import TYPE_CHECKING, Any

from greenward.common.errors import ProblemError
from greenward.problems.mining import LeftOut, SourceFile, SourceTree, masked_functions, masked_problem
from greenward.problems.names import FAMILIES, FAMILY_PREFIX, MODULES
from greenward.problems.problem import Case, Comparison, Doctest, Problem, ProblemSet, stable_hash
from greenward.problems.rows import read_table

if TYPE_CHECKING:
    from greenward.config.section import FamiliesConfig


class Kind(str, Enum):
    """The type of a value between two operations; the member's value names the variable that holds it."""

    NUMBERS = "xs"  # list[int]
    NUMBER = "n"  # int
    TEXT = "s"  # str
    WORDS = "words"  # list[str]


@dataclass(frozen=True)
class Operation:
    """A total function from one kind to another.

    `phrase` says in words what `expression` computes from the variable of kind `takes`. Each of the
    `wrong_expressions` is a mistake that a programmer could make: it differs from `expression` on some value,
    and may raise. `template` is the name without the constant.
    """

    name: str
    template: str
    takes: Kind
    gives: Kind
    phrase: str
    expression: str
    wrong_expressions: tuple[str, ...]


@cache
def compiled(kind: Kind, expression: str) -> Callable[[Any], Any]:
    """The function of one value of `kind` that computes `expression`, which greenward ships."""
    function: Callable[[Any], Any] = eval(f"lambda {kind.value}: {expression}")
    return function


def read_operations() -> Iterator[Operation]:
    """The operations of `data/operations.txt`, in its order; one for each constant of a row that has some.

    A row holds the name and the constants, the phrase, the right expression and wrong ones. `{k}` stands for
    the constant, which is added to the name, `{less}` and `{more}` for the constant minus and plus one.
    """
    for kinds, rows in read_table("operations.txt").items():
        takes, gives = (Kind[kind] for kind in kinds.split(" to "))
        for head, *texts in rows:
            template, *constants = head.split()
            for k in map(int, constants or ["0"]):
                phrase, right, *wrong = (text.format(k=k, less=k - 1, more=k + 1) for text in texts)
                name = f"{template}_{k}" if constants else template
                yield Operation(name, template, takes, gives, phrase, right, tuple(wrong))


OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in read_operations()}

OPERATIONS_TAKING: dict[Kind, tuple[Operation, ...]] = {
    kind: tuple(operation for operation in OPERATIONS.values() if operation.takes is kind) for kind in Kind
}


ENTRY_POINT = "solve"

# What a wrong expression may raise on the values of the generated problems.
_EXCEPTIONS = (TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError)


@dataclass(frozen=True)
class Composition:
    """Operations applied one after the other; each takes the kind that the one before it gives."""

    operations: tuple[Operation, ...]

    @classmethod
    def of(cls, task_id: str) -> Composition:
        """The composition that a task id such as `families/keep_even+sum` names. Raises `ProblemError`."""
        names = task_id.removeprefix(FAMILY_PREFIX).split("+")
        if not task_id.startswith(FAMILY_PREFIX) or not all(name in OPERATIONS for name in names):
            raise ProblemError(
                f"expected the id of a generated problem ({FAMILY_PREFIX}<operation>+…), found {task_id!r}."
            )
        return cls(tuple(OPERATIONS[name] for name in names))

    @property
    def takes(self) -> Kind:
        return self.operations[0].takes

    @property
    def gives(self) -> Kind:
        return self.operations[-1].gives

    @property
    def task_id(self) -> str:
        return FAMILY_PREFIX + "+".join(operation.name for operation in self.operations)

    @property
    def specification(self) -> str:
        """The phrases as one sentence: `Keep the even numbers, then add up the numbers.`"""
        sentence = ", then ".join(operation.phrase for operation in self.operations)
        return f"{sentence[0].upper()}{sentence[1:]}."

    @property
    def starter_code(self) -> str:
        return f'def {ENTRY_POINT}({self.takes.value}):\n    """{self.specification}"""\n'

    @property
    def expressions(self) -> tuple[str, ...]:
        return tuple(operation.expression for operation in self.operations)

    def wrong_variants(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """(position, expressions) for every wrong expression of one operation; all others are right."""
        right = self.expressions
        for position, operation in enumerate(self.operations):
            for wrong in operation.wrong_expressions:
                yield position, (*right[:position], wrong, *right[position + 1 :])

    def body(self, expressions: tuple[str, ...]) -> str:
        """The function body that assigns each expression but the last, which it returns."""
        targets = [*(f"{operation.gives.value} =" for operation in self.operations[:-1]), "return"]
        return "".join(f"    {target} {value}\n" for target, value in zip(targets, expressions, strict=True))

    def evaluate(self, expressions: tuple[str, ...], value: Any) -> Any:
        """What `body(expressions)` returns for `value`; raises what the body raises."""
        for operation, expression in zip(self.operations, expressions, strict=True):
            value = compiled(operation.takes, expression)(value)
        return value

    def fails(self, expressions: tuple[str, ...], value: Any, expected: Any) -> bool:
        """Whether `body(expressions)` raises for `value` or returns something else than `expected`."""
        try:
            return bool(self.evaluate(expressions, value) != expected)
        except _EXCEPTIONS:
            return True

    def shorter(self) -> Iterator[Composition]:
        """The compositions of some of the operations that take and give the same kinds as this one."""
        for kept in range(1, (1 << len(self.operations)) - 1):
            operations = tuple(op for i, op in enumerate(self.operations) if kept >> i & 1)
            fits = all(a.gives is b.takes for a, b in pairwise(operations))
            if fits and operations[0].takes is self.takes and operations[-1].gives is self.gives:
                yield Composition(operations)


def compositions(depth: int) -> Iterator[Composition]:
    """Every type-correct composition of exactly `depth` operations, in the order of the table."""
    chains: Iterator[tuple[Operation, ...]] = ((operation,) for operation in OPERATIONS.values())
    for _ in range(depth - 1):
        chains = ((*chain, operation) for chain in chains for operation in OPERATIONS_TAKING[chain[-1].gives])
    return map(Composition, chains)


MAX_INTEGER = 100_000
MAX_LENGTH = 64
MAX_SHARE_OF_ONE_OUTPUT = 0.6
MIN_DISTINCT_OUTPUTS = 3
RANDOM_INPUTS = 7  # drawn for each problem from the pool of its kind

# Every problem that takes a kind is tested on these.
EDGE_INPUTS: dict[Kind, tuple[Any, ...]] = {
    Kind.NUMBERS: ([], [0], [4], [-3], [2, 2, 2], [5, 3, 0, -1, 3]),
    Kind.NUMBER: (0, 1, -1, 7, -10),
    Kind.TEXT: ("", " ", "a", "Hi 5", "  two  words "),
    Kind.WORDS: ([], [""], ["ox"], ["fig", "fig"], ["Owl", "ant", "a"]),
}
POOL_SIZE = 60
_VOCABULARY = (
    "Apple", "Bee", "cat", "DoG", "Echo", "Fox", "go", "HAT", "ink", "Jam", "kiwi", "level", "mad2",
    "No", "otter", "pi", "Quiz", "r2d2", "sea", "to", "UP", "vine", "we", "x-ray", "yes", "zoo", "a", "I",
)  # fmt: skip
_CHARACTERS = "aeioubcxzABXEIZ0129 -,.!?  "


def generate(config: FamiliesConfig) -> ProblemSet:
    """Every useful composition of 1 to `config.max_depth` operations as a problem.

    A composition is left out when its outputs are nearly constant or large on its test inputs, or
    when it equals a shorter one on all of them (one of its operations would not be tested). Each problem
    has the edge inputs of its kind, a random draw, and further inputs for wrong expressions that
    would pass otherwise. `config.limit` is the largest number of problems; which ones are generated then
    follows from a stable hash of the composition and the seed.
    """
    chains = [chain for depth in range(1, config.max_depth + 1) for chain in compositions(depth)]
    if config.limit is not None:
        chains.sort(key=lambda chain: stable_hash(f"limit/{config.seed}/{chain.task_id}"))
    return ProblemSet(islice(_useful_problems(chains, config.seed), config.limit), name="families")


def _useful_problems(chains: Sequence[Composition], seed: int) -> Iterator[Problem]:
    pools = {kind: input_pool(kind, seed) for kind in Kind}
    for chain in chains:
        rng = random.Random(stable_hash(f"cases/{seed}/{chain.task_id}"))
        pool = pools[chain.takes]
        inputs = [*EDGE_INPUTS[chain.takes], *rng.sample(pool, RANDOM_INPUTS)]
        pairs = list(zip(inputs, _small_outputs(chain, inputs) or (), strict=False))
        if not _is_useful(chain, pairs):
            continue
        # A wrong variant that would pass gets a further pair, on which it fails.
        for _, expressions in chain.wrong_variants():
            if not any(chain.fails(expressions, *pair) for pair in pairs):
                further = ((one, output) for one in pool for output in _small_outputs(chain, [one]) or ())
                pairs += islice((pair for pair in further if chain.fails(expressions, *pair)), 1)
        yield Problem(
            task_id=chain.task_id,
            prompt=chain.specification,
            entry_point=ENTRY_POINT,
            tests=tuple(Case((value,), expected) for value, expected in pairs),
            starter_code=chain.starter_code,
            reference=chain.starter_code + chain.body(chain.expressions),
            comparison=Comparison(tolerance=0.0),
            tags=("families", f"depth_{len(chain.operations)}"),
        )


def _small_outputs(chain: Composition, inputs: Sequence[Any]) -> list[Any] | None:
    """The output for each input; None if a value on the way is too large."""
    outputs = []
    for value in inputs:
        for operation in chain.operations:
            value = compiled(operation.takes, operation.expression)(value)
            if not _is_small(value):
                return None
        outputs.append(value)
    return outputs


def _is_small(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= MAX_INTEGER
    return len(value) <= MAX_LENGTH and (isinstance(value, str) or all(map(_is_small, value)))


def _is_useful(chain: Composition, pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the outputs vary, and no operation can be left out without a change of the outputs."""
    counts = Counter(repr(output) for _, output in pairs)
    if len(counts) < MIN_DISTINCT_OUTPUTS or max(counts.values()) > MAX_SHARE_OF_ONE_OUTPUT * len(pairs):
        return False
    return any(value != output for value, output in pairs) and not any(
        all(part.evaluate(part.expressions, value) == output for value, output in pairs)
        for part in chain.shorter()
    )


def input_pool(kind: Kind, seed: int, *, uneven: bool = False) -> tuple[Any, ...]:
    """`POOL_SIZE` distinct random values of `kind`, none of them an edge input.

    The values of an `uneven` pool have any length from 0 and a wider range of characters and numbers.
    """
    rng = random.Random(f"{seed}/{kind.value}{'/uneven' if uneven else ''}")
    draw = _draw_uneven if uneven else _draw
    pool: list[Any] = []
    while len(pool) < POOL_SIZE:
        value = draw(kind, rng)
        if value not in pool and value not in EDGE_INPUTS[kind]:
            pool.append(value)
    return tuple(pool)


def _draw(kind: Kind, rng: random.Random) -> Any:
    if kind is Kind.NUMBER:
        return rng.randint(-20, 47)
    if kind is Kind.NUMBERS:
        numbers = [rng.randint(-9, 12) for _ in range(rng.randint(4, 7))]
        return [*numbers, rng.choice(numbers)]
    words = rng.choices(_VOCABULARY, k=rng.randint(2, 4))
    if kind is Kind.WORDS:
        return [*words, rng.choice(words)]
    return " " * rng.choice((0, 0, 1, 2)) + " ".join(words) + rng.choice(("", "", "!", "  "))


def _draw_uneven(kind: Kind, rng: random.Random) -> Any:
    if kind is Kind.NUMBER:
        return rng.randint(-200, 200)
    if kind is Kind.NUMBERS:
        reach = rng.choice((5, 50))
        return [rng.randint(-reach, reach) for _ in range(rng.randint(0, 9))]
    if kind is Kind.WORDS:
        return ["".join(rng.choices(_CHARACTERS, k=rng.randint(0, 7))) for _ in range(rng.randint(0, 6))]
    return "".join(rng.choices(_CHARACTERS, k=rng.randint(0, 14)))


FUNCTIONS_PER_MODULE = 3
CONTEXT_CHARS = 320
# A helper is called by one of these verbs, none of which says what it does.
HELPERS = (
    "prepare", "tidy", "select", "arrange", "collect", "derive", "reduce", "shape", "convert", "trim",
    "adapt", "assemble", "clean", "extract", "gather", "refine", "resolve", "sift", "transform", "compose",
)  # fmt: skip
NEW_HELPERS = 5  # of these, for each form of expression
_VARIABLE = re.compile(rf"\b(?:{'|'.join(kind.value for kind in Kind)}|[a-z])\b")


@dataclass(frozen=True)
class _Module:
    """A file to be generated: `originals` begin with the same operation, that of the helper."""

    name: str
    helper: str
    is_new: bool
    originals: tuple[Problem, ...]


def generated_modules(train: ProblemSet, held_out: ProblemSet) -> tuple[ProblemSet, ProblemSet]:
    """(train, held-out): the problems of two operations as functions of modules, in an order by module.

    Functions of one module begin with the same operation. The task id is `modules/` and the names of both.
    `columns` has as `wrong_bodies` the bodies with a wrong expression for the second operation that fail.

    An answer is a call of the helper and the second operation, whatever the helper does. So each pair of a
    helper's name and a second operation is on one side, too (`new_helpers`): neither the specification nor
    the right body of a held-out problem occurs in a training problem, not even beside the function that is
    asked for or as a wrong body. A held-out problem is left out if no training problem asks for its second
    operation, or has one of the helpers that it may have; there are such where few problems are generated.
    """
    modules = list(_modules(train, HELPERS, is_new=False))
    used = {module.helper for module in modules}
    asked = {_second(one) for module in modules for one in module.originals}
    known = held_out.filter(lambda one: _second(one) in asked)
    new = _modules(known, [helper for helper in HELPERS if helper in used], is_new=True)
    trained, tested = ([one for module in side for one in _problems_of(module)] for side in (modules, new))
    names = [problems.name.replace(FAMILIES, MODULES) for problems in (train, held_out)]
    return ProblemSet(trained, name=names[0]), ProblemSet(tested, name=names[1])


@cache
def new_helpers(expression: str) -> frozenset[str]:
    """The names of helpers with which only held-out functions compute `expression`; the same for any seed.

    Expressions that differ in variables and numbers alone have the same ones: an answer may choose the names
    of its variables, and other numbers alone would hardly make a new function.
    """
    form = re.sub(r"\d+", "0", _VARIABLE.sub("_", expression))
    order = sorted(HELPERS, key=lambda helper: stable_hash(f"asked/{helper}/{form}"))
    return frozenset(order[:NEW_HELPERS])


def _second(problem: Problem) -> Operation:
    return Composition.of(problem.task_id).operations[-1]


def _modules(problems: ProblemSet, helpers: Sequence[str], *, is_new: bool) -> Iterator[_Module]:
    """Modules of up to `FUNCTIONS_PER_MODULE` functions, each with a helper that fits all of them.

    Of the helpers that fit the most of the functions that are left, a stable hash takes one.
    """
    by_first: dict[str, list[Problem]] = defaultdict(list)
    fitting: dict[str, set[str]] = {}
    for problem in problems:
        first, *others = Composition.of(problem.task_id).operations
        if len(others) == 1:
            by_first[first.name].append(problem)
            new = new_helpers(others[0].expression)
            fitting[problem.task_id] = {helper for helper in helpers if (helper in new) == is_new}
    for operation, left in by_first.items():
        left.sort(key=lambda problem: stable_hash(f"module/{problem.task_id}"))
        for number in range(len(left)):
            name = f"{operation}_{number}"
            groups = {
                helper: [one for one in left if helper in fitting[one.task_id]][:FUNCTIONS_PER_MODULE]
                for helper in helpers
            }
            helper = max(helpers, key=lambda one: (len(groups[one]), stable_hash(f"helper/{name}/{one}")))
            if not (chosen := groups[helper]):
                break
            yield _Module(name, helper, is_new, tuple(chosen))
            left = [problem for problem in left if problem not in chosen]


def _problems_of(module: _Module) -> Iterator[Problem]:
    originals = {f"get_{_second(one).name}": one for one in module.originals}
    chains = {function: Composition.of(one.task_id) for function, one in originals.items()}
    name, helper = module.name, module.helper
    is_class = stable_hash(f"class/{name}") % 2 == 0
    first = next(iter(chains.values())).operations[0]  # which all have
    file = SourceFile(f"{name}.py", f"{name}.py", _text(helper, first, chains, is_class), is_test=False)
    tree = SourceTree(MODULES, "", "Apache-2.0", (file,), ())
    for function in masked_functions(file):
        if isinstance(function, LeftOut) or function.name not in originals:
            continue
        original, chain = originals[function.name], chains[function.name]
        call = f"{helper.capitalize()}({{}}).{function.name}()" if is_class else f"{function.name}({{}})"
        examples = (f">>> {call.format(repr(one.args[0]))}\n{one.expected!r}\n" for one in original.cases)
        tests = (Doctest("".join(examples)),)
        made = masked_problem(function, tree, CONTEXT_CHARS, tests=tests, tags=original.tags[2:])
        wrong = [
            function.reference.replace(f"return {chain.expressions[1]}\n", f"return {expressions[1]}\n")
            for position, expressions in chain.wrong_variants()
            if position == 1
            and (helper in new_helpers(expressions[1])) == module.is_new
            and any(chain.fails(expressions, one.args[0], one.expected) for one in original.cases)
        ]
        task_id = f"{MODULES}/{original.task_id.removeprefix(FAMILY_PREFIX)}"
        yield replace(made, task_id=task_id, columns={"wrong_bodies": wrong})


def _text(helper: str, first: Operation, chains: Mapping[str, Composition], is_class: bool) -> str:
    """The file: the helper, and the functions that call it, or a class whose methods they are."""
    value = first.takes.value
    takes, call = ("self", f"self.{helper}()") if is_class else (value, f"{helper}({value})")
    begins = [f"{value} = self.{value}"] if is_class else []

    def function(name: str, said: str, *lines: str) -> str:
        return "\n    ".join((f"def {name}({takes}):", f'"""{said}"""', *lines)) + "\n"

    said = Composition((first,)).specification
    parts = [function(helper, said, *begins, f"return {first.expression}")]
    for name, chain in chains.items():
        second = chain.operations[1]
        lines = f"{second.takes.value} = {call}", f"return {second.expression}"
        parts.append(function(name, f"{helper.capitalize()}, then {second.phrase}.", *lines))
    if not is_class:
        return "\n\n".join(parts)
    head = f"class {helper.capitalize()}:\n    def __init__(self, {value}):\n        self.{value} = {value}\n"
    return "\n".join((head, *(indent(part, "    ") for part in parts)))


NEW_FUNCTION = "function_never_seen"
NEW_SHAPE = "shape_never_seen"

# Which problems ask for the same function must not depend on the seed of a recipe.
_POOL_SEED = 0


def split(problems: ProblemSet, held_out: float, seed: int) -> tuple[ProblemSet, ProblemSet]:
    """(train, held-out): a stable hash of the function that a problem asks for decides its side.

    Problems that compute the same function (`functions_of`), such as two operations in either order,
    are on the same side. About a share `held_out` of the problems is held out. If an operation of a held-out
    problem occurred in no training problem, the function of that problem goes to training instead. Held-out
    problems are tagged NEW_FUNCTION, and also NEW_SHAPE where no training problem has the same templates in
    any order and with any constants. Raises `ProblemError` when a side is empty.
    """
    chains = {problem.task_id: Composition.of(problem.task_id) for problem in problems}
    function_of = dict(zip(chains, functions_of(chains.values()), strict=True))
    operations_of: dict[str, set[str]] = defaultdict(set)
    for task_id, function in function_of.items():
        operations_of[function] |= {operation.name for operation in chains[task_id].operations}
    limit = held_out * 2**64
    new = {function for function in operations_of if stable_hash(f"split/{seed}/{function}") < limit}
    trained = {name for function in operations_of.keys() - new for name in operations_of[function]}
    for function, operations in operations_of.items():
        if function in new and not operations <= trained:
            new.remove(function)
            trained |= operations
    train = [problem for problem in problems if function_of[problem.task_id] not in new]
    if not new or not train:
        raise ProblemError(
            f"expected problems on both sides of the split, found {len(train)} for training "
            f"and {len(problems) - len(train)} held out (held_out {held_out}, seed {seed}).",
            remedy="Raise problems.families.limit or .max_depth, or change problems.families.held_out.",
        )
    shapes = {shape_of(chains[problem.task_id]) for problem in train}
    test = []
    for problem in problems:
        if function_of[problem.task_id] in new:
            new_shape = () if shape_of(chains[problem.task_id]) in shapes else (NEW_SHAPE,)
            test.append(replace(problem, tags=(*problem.tags, NEW_FUNCTION, *new_shape)))
    name = problems.name
    return ProblemSet(train, name=f"{name}/train"), ProblemSet(test, name=f"{name}/held_out")


def functions_of(chains: Iterable[Composition]) -> list[str]:
    """For each composition an identifier of the function that it computes.

    Two compositions count as one function if they agree on all inputs of one of the pools, or if a
    sequence of such pairs connects them. No pool has edge inputs, and none is large, so that functions
    that differ only on rare inputs (to count the words, and to raise that count to at least 2) count as
    one: a held-out problem must be new on common inputs.
    """
    chains = list(chains)
    parent: dict[str, str] = {}

    def root(digest: str) -> str:
        while parent.setdefault(digest, digest) != digest:
            digest = parent[digest]
        return digest

    half, ordinary = POOL_SIZE // 2, {kind: input_pool(kind, _POOL_SEED) for kind in Kind}
    pools = (
        {kind: pool[:half] for kind, pool in ordinary.items()},
        {kind: pool[half:] for kind, pool in ordinary.items()},
        {kind: input_pool(kind, _POOL_SEED, uneven=True)[:half] for kind in Kind},
    )
    by_pool = [_digests(chains, number, pool) for number, pool in enumerate(pools)]
    for first, *others in zip(*by_pool, strict=True):
        for other in others:
            kept, merged = sorted((root(first), root(other)))
            parent[merged] = kept
    return [root(digest) for digest in by_pool[0]]


def shape_of(chain: Composition) -> tuple[str, ...]:
    """The templates of the operations, sorted: neither their order nor their constants matter."""
    return tuple(sorted(operation.template for operation in chain.operations))


def _digests(chains: Sequence[Composition], number: int, pool: Mapping[Kind, Sequence[Any]]) -> list[str]:
    """A digest of each composition's values on a pool. The values of a shared prefix are computed once."""
    known: dict[tuple[str, ...], Sequence[Any]] = {}

    def values(operations: tuple[Operation, ...]) -> Sequence[Any]:
        *before, last = operations
        prefix = tuple(operation.name for operation in before)
        if prefix and prefix not in known:
            known[prefix] = values(tuple(before))
        function = compiled(last.takes, last.expression)
        return [function(value) for value in (known[prefix] if prefix else pool[last.takes])]

    texts = (f"{number}/{chain.takes.value}: {values(chain.operations)!r}" for chain in chains)
    return [hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in texts]
