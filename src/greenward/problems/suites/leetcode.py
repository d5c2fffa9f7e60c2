"""LeetCodeDataset (arXiv:2504.14655): problems that ask for a method of a class.

Rows hold `task_id`, `entry_point` (`Solution().twoSum`), `prompt` (imports and helper classes that stand
before every answer), `test` (defines `check(candidate)`) and, if known, `starter_code`, `completion`
(a class that passes) and `problem_description` or `query`. As in the original harness, one instance serves
all calls of a check.

The check runs in a process of its own, which gets plain data only. Instances of the classes that `prompt`
defines (linked lists, trees) are sent as tables of their attributes, and the receiving process builds them
again from its own class, so that no code of an answer comes with them.
"""

from __future__ import annotations

import ast
import re

from greenward.problems.json_rows import Row
from greenward.problems.problem import Problem

METHOD = re.compile(r"([A-Za-z_]\w*)\(\)\.([A-Za-z_]\w*)")

# Source for both processes. Shared and circular references survive; objects within objects are not
# recursed into, because a linked list may be long.
_TRANSFER = """
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


def method_problem(row: Row, cls: str, method: str) -> Problem:
    """The problem of a row whose `entry_point` is this method of this class. Raises `BadRow`."""
    preamble = row.text("prompt", default="")
    classes = [node.name for node in row.python("prompt", preamble).body if isinstance(node, ast.ClassDef)]
    names = {"cls": cls, "method": method, "classes": ", ".join(classes)}
    difficulty = row.values.get("difficulty")
    return Problem(
        task_id=row.text("task_id"),
        prompt=row.first_text("problem_description", "query").strip(),
        entry_point=method,
        checks=(check_program(row, "_candidate" if classes else method),),
        check_setup_code=preamble + _TRANSFER + _CHECK_SIDE.format(**names) if classes else preamble,
        preamble=preamble,
        setup_code=_TRANSFER + _ANSWER_SIDE.format(**names) if classes else f"{method} = {cls}().{method}",
        starter_code=row.first_text("starter_code"),
        reference=row.first_text("completion", "canonical_solution"),
        tags=(difficulty,) if isinstance(difficulty, str) and difficulty else (),
    )


def check_program(row: Row, candidate: str, *, keep_call: bool = False) -> str:
    """The program `test` of a row, which defines `check(candidate)`, with one call of it at the end.

    A call that the program makes itself at its top level is replaced or, with `keep_call`, kept. Raises
    `BadRow`.
    """
    source = row.text("test")
    body = row.python("test").body
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in body):
        raise row.error("test", "does not define check(candidate)")
    kept = [node for node in body if not _calls_check(node)]
    if len(kept) < len(body):
        if keep_call:
            return source
        source = ast.unparse(ast.Module(kept, []))
    return f"{source}\n\ncheck({candidate})\n"


def _calls_check(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check"
