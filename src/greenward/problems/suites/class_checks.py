"""Problems that ask for a method of a class, in the form of LeetCodeDataset (arXiv:2504.14655).

Rows hold `task_id`, `entry_point` (`Solution().twoSum`), `prompt` (imports and helper classes that stand
before every answer), `test` (defines `check(candidate)`) and, as far as known, `starter_code`, `completion`
(a class that passes) and `problem_description` or `query`. As in the original harness, one instance serves
all calls of a check.

The check runs in a process of its own, which gets plain data only. Instances of the classes that `prompt`
defines (linked lists, trees) cross as tables of their attributes and are built again on the other side
from that side's own class, so that no code of an answer comes with them.
"""

from __future__ import annotations

import ast
import re

from greenward.problems.json_rows import Row
from greenward.problems.problem import Problem
from greenward.problems.python_source import parse

METHOD = re.compile(r"([A-Za-z_]\w*)\(\)\.([A-Za-z_]\w*)")

# Source for both processes. Shared and circular references survive; objects within objects are not
# recursed into, because a linked list may be long.
_CROSSING = """
class _Crossing:
    def __init__(self, classes):
        self.classes = {known.__name__: known for known in classes}

    def pack(self, value):
        table, places, waiting = [], {}, []

        def plain(value):
            if type(value).__name__ in self.classes and hasattr(value, "__dict__"):
                if id(value) not in places:
                    places[id(value)] = len(table)
                    table.append(None)
                    waiting.append(value)
                return {"object": places[id(value)]}
            if type(value) in (list, tuple):
                return type(value)([plain(item) for item in value])
            if type(value) is dict:
                return {"dict": [(plain(key), plain(item)) for key, item in value.items()]}
            return value

        root = plain(value)
        while waiting:
            value = waiting.pop()
            attributes = [(name, plain(item)) for name, item in vars(value).items()]
            table[places[id(value)]] = (type(value).__name__, attributes)
        return [root, table]

    def unpack(self, packed):
        root, table = packed
        made = [self.classes[name].__new__(self.classes[name]) for name, _ in table]

        def build(value):
            if type(value) is dict:
                ((kind, content),) = value.items()
                if kind == "object":
                    return made[content]
                return {build(key): build(item) for key, item in content}
            if type(value) in (list, tuple):
                return type(value)([build(item) for item in value])
            return value

        for instance, (_, attributes) in zip(made, table):
            for name, item in attributes:
                instance.__dict__[name] = build(item)
        return build(root)
"""
_ANSWER_SIDE = """
def {method}(packed, _method={cls}().{method}, _crossing=_Crossing([{classes}])):
    arguments, named = _crossing.unpack(packed)
    return _crossing.pack(_method(*arguments, **named))
"""
_CHECK_SIDE = """
def _candidate(*arguments, _crossing=_Crossing([{classes}]), **named):
    return _crossing.unpack({method}(_crossing.pack([arguments, named])))
"""


def class_problem(row: Row) -> Problem:
    """The problem of a row whose `entry_point` is like `Solution().twoSum`. Raises `BadRow`."""
    match = METHOD.fullmatch(row.text("entry_point"))
    if match is None:
        raise row.error("entry_point", f"must be like Solution().twoSum, found {row.text('entry_point')!r}")
    cls, method = match.groups()
    preamble = row.text("prompt", default="")
    try:
        defined = [node.name for node in parse(preamble).body if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError) as error:
        raise row.error("prompt", f"is not Python: {error}") from None
    names = {"cls": cls, "method": method, "classes": ", ".join(defined)}
    solution = next((name for name in ("completion", "canonical_solution") if row.values.get(name)), None)
    words = next((name for name in ("problem_description", "query") if row.values.get(name)), None)
    difficulty = row.values.get("difficulty")
    return Problem(
        task_id=row.text("task_id"),
        prompt=row.text(words).strip() if words else "",
        entry_point=method,
        checks=(check_program(row, "test", "_candidate" if defined else method),),
        check_setup_code=preamble + _CROSSING + _CHECK_SIDE.format(**names) if defined else preamble,
        preamble=preamble,
        setup_code=_CROSSING + _ANSWER_SIDE.format(**names) if defined else f"{method} = {cls}().{method}",
        starter_code=row.text("starter_code") if row.values.get("starter_code") else "",
        reference=row.text(solution) if solution else "",
        tags=(difficulty,) if isinstance(difficulty, str) and difficulty else (),
    )


def check_program(row: Row, field: str, candidate: str) -> str:
    """The test program of a row, which defines `check(candidate)`, with one call of it at the end.

    A call that the program makes itself at its top level, of whatever, is replaced. Raises `BadRow`.
    """
    source = row.text(field)
    try:
        body = parse(source).body
    except (SyntaxError, ValueError) as error:
        raise row.error(field, f"is not Python: {error}") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in body):
        raise row.error(field, "does not define check(candidate)")
    kept = [node for node in body if not _calls_check(node)]
    if len(kept) < len(body):
        source = ast.unparse(ast.Module(kept, []))
    return f"{source}\n\ncheck({candidate})\n"


def _calls_check(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check"
