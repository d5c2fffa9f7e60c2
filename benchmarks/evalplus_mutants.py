"""Answers that differ from a reference in one respect: its program, or the value that it returns."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from greenward.problems.mutation import mutants
from greenward.problems.problem import stable_hash

Changes = Mapping[str, str]  # kind of change -> an expression of the returned `value`

_OF_ANYTHING: Changes = {
    "None": "None",
    "its text": "str(value)",
    "negated": "not value",
    "within a list": "[value]",
}
_OF_NUMBERS: Changes = {
    "as float": "float(value)",
    "as int": "int(value)",
    "as complex": "complex(value)",
    **{f"plus {step}": f"value + {step}" for step in ("1e-9", "1e-7", "5e-7", "2e-6", "1e-3", "1")},
    **{f"times 1 + {step}": f"value * (1 + {step})" for step in ("5e-8", "2e-7")},
}
_OF_BOOLEANS: Changes = {"as int": "int(value)", "as float": "float(value)", "or None": "value or None"}
_OF_TEXT: Changes = {
    "one character more": "value + ' '",
    "last part missing": "value[:-1]",
    "as list": "list(value)",
    "as bytes": "value.encode()",
}
_OF_COLLECTIONS: Changes = {
    "as list": "list(value)",
    "as tuple": "tuple(value)",
    "as set": "set(value)",
    "as frozenset": "frozenset(value)",
    "as iterator": "iter(value)",
    "as generator": "(element for element in value)",
    "as dict keys": "dict.fromkeys(value).keys()",
    "one element more": "[*value, None]",
    "last part missing": "type(value)([*value][:-1])",
    "reversed": "type(value)([*value][::-1])",
    "every element twice": "type(value)([*value, *value])",
    "elements as lists": "type(value)(list(element) for element in value)",
    "elements as tuples": "type(value)(tuple(element) for element in value)",
    "elements as float": "type(value)(float(element) for element in value)",
    "elements plus 1e-9": "type(value)(element + 1e-9 for element in value)",
    "elements plus 5e-7": "type(value)(element + 5e-7 for element in value)",
    "elements plus 1e-3": "type(value)(element + 1e-3 for element in value)",
}
_OF_DICTS: Changes = {
    "as list of pairs": "list(value.items())",
    "as ordered dict": "__import__('collections').OrderedDict(value)",
    "one element more": "{**value, None: None}",
    "last part missing": "dict([*value.items()][:-1])",
    "keys only": "list(value)",
    "elements as float": "{key: float(element) for key, element in value.items()}",
    "elements plus 5e-7": "{key: element + 5e-7 for key, element in value.items()}",
}


@dataclass(frozen=True)
class Answer:
    """A program for a task; its kind says what it is: "reference", a kind of bug, or "returned: …"."""

    task_id: str
    kind: str
    code: str


def bugs(task_id: str, reference: str, count: int, seed: int) -> list[Answer]:
    """Up to `count` programs with one bug, of kinds drawn before the bugs are."""
    by_kind = defaultdict(list)
    for mutant in mutants(reference):
        by_kind[mutant.kind].append(mutant.code)
    rng = _drawing("bug", task_id, seed)
    kinds = rng.sample(sorted(by_kind), min(count, len(by_kind)))
    return [Answer(task_id, f"bug: {kind}", rng.choice(by_kind[kind])) for kind in kinds]


def other_values(
    task_id: str, reference: str, entry_point: str, returned: Any, count: int, seed: int
) -> list[Answer]:
    """Up to `count` programs that change what the reference returns, which is of the type of `returned`."""
    rng = _drawing("returned", task_id, seed)
    changes = {**_changes_of(returned), **dict([rng.choice(sorted(_OF_ANYTHING.items()))])}
    programs = {kind: with_changed_value(reference, entry_point, change) for kind, change in changes.items()}
    possible = sorted(kind for kind, code in programs.items() if code)
    kinds = rng.sample(possible, min(count, len(possible)))
    return [Answer(task_id, f"returned: {kind}", programs[kind]) for kind in kinds]


def with_changed_value(program: str, entry_point: str, change: str) -> str:
    """The program with every value that the entry point itself returns changed; "" if it returns none."""
    tree = ast.parse(program)
    function = next(
        node for node in reversed(tree.body) if getattr(node, "name", None) == entry_point
    )  # the last definition counts
    changer = _Changer(change)
    function.body = [changer.visit(statement) for statement in function.body]
    return f"{ast.unparse(tree)}\n" if changer.changed else ""


class _Changer(ast.NodeTransformer):
    """Puts an expression around what a function returns, not around what functions inside it do."""

    def __init__(self, change: str) -> None:
        self._change = change
        self.changed = False

    def visit_Return(self, node: ast.Return) -> ast.Return:
        if node.value is None:
            return node
        self.changed = True
        call = ast.parse(f"(lambda value: {self._change})()", mode="eval").body
        call.args = [node.value]
        return ast.Return(call)

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _leave


def _changes_of(value: Any) -> Changes:
    if isinstance(value, bool):
        return _OF_BOOLEANS
    if isinstance(value, (int, float, complex)):
        return _OF_NUMBERS
    if isinstance(value, str):
        return _OF_TEXT
    if isinstance(value, dict):
        return _OF_DICTS
    if isinstance(value, (list, tuple, set, frozenset)):
        return _OF_COLLECTIONS
    return {}


def _drawing(*parts: Any) -> random.Random:
    return random.Random(stable_hash("/".join(map(str, parts))))
