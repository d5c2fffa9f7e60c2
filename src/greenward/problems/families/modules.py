"""Generated modules: small documented files whose functions build on a helper of the file.

A problem of two operations of the families becomes a function of such a file: the helper does the first
operation, the function that is asked for calls it and does the second. What the helper is called, and whether
it is a function or a method, differs from module to module, so an answer has to read its file. Functions are
masked and put as those of mined source (`problems.mining`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from textwrap import indent

from greenward.problems.families.composition import ID_PREFIX, Composition
from greenward.problems.families.operations import Operation
from greenward.problems.mining.assemble import masked_problem
from greenward.problems.mining.functions import masked_functions
from greenward.problems.mining.tree import LeftOut, SourceFile, SourceTree
from greenward.problems.problem import Problem, ProblemSet, stable_hash

MODULES = "modules"
FUNCTIONS_PER_MODULE = 3
CONTEXT_CHARS = 320
_HELPERS = ("prepare", "tidy", "select", "arrange", "collect", "derive", "reduce", "shape", "convert", "trim")


def generated_modules(problems: ProblemSet) -> ProblemSet:
    """The problems of two operations in `problems` as functions of modules, in an order by module.

    Functions of one module begin with the same operation. The task id is `modules/` and the names of both.
    `columns` has as `wrong_bodies` the bodies with a wrong expression for the second operation that fail.
    """
    by_first: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        chain = Composition.of(problem.task_id)
        if len(chain.operations) == 2:
            by_first[chain.operations[0].name].append(problem)
    found: list[Problem] = []
    for first, members in by_first.items():
        members.sort(key=lambda problem: stable_hash(f"module/{problem.task_id}"))
        for number, start in enumerate(range(0, len(members), FUNCTIONS_PER_MODULE)):
            found += _module(f"{first}_{number}", members[start : start + FUNCTIONS_PER_MODULE])
    return ProblemSet(found, name=problems.name.replace("families", MODULES))


def _module(name: str, members: Iterable[Problem]) -> Iterator[Problem]:
    originals = {f"get_{Composition.of(one.task_id).operations[1].name}": one for one in members}
    chains = {function: Composition.of(one.task_id) for function, one in originals.items()}
    helper = _HELPERS[stable_hash(f"helper/{name}") % len(_HELPERS)]
    is_class = stable_hash(f"class/{name}") % 2 == 0
    first = next(iter(chains.values())).operations[0]  # which all have
    text = _text(helper, first, chains, is_class)
    file = SourceFile(f"{name}.py", f"{name}.py", text, is_test=False)
    tree = SourceTree(MODULES, "", "Apache-2.0", (file,), ())
    for function in masked_functions(file):
        if isinstance(function, LeftOut) or function.name not in originals:
            continue
        original, chain = originals[function.name], chains[function.name]
        call = f"{helper.capitalize()}({{}}).{function.name}()" if is_class else f"{function.name}({{}})"
        examples = (f">>> {call.format(repr(one.args[0]))}\n{one.expected!r}\n" for one in original.cases)
        made = masked_problem(
            function, tree, CONTEXT_CHARS, doctests=("".join(examples),), tags=original.tags[2:]
        )
        wrong = [
            function.reference.replace(f"return {chain.expressions[1]}\n", f"return {expressions[1]}\n")
            for position, expressions in chain.wrong_variants()
            if position == 1
            and any(chain.fails(expressions, one.args[0], one.expected) for one in original.cases)
        ]
        task_id = f"{MODULES}/{original.task_id.removeprefix(ID_PREFIX)}"
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
