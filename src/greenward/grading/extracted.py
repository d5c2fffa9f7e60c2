"""Records what was taken out of an answer: its code, and the rules by which it was found.

`answers` finds it; its expressions take time to compile, which answers that are programs do not need.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from greenward.grading.verdict import Status
from greenward.problems.python_source import parse_or_none

MOST_PARSED = 1 << 16  # characters of an answer

RULES = {
    "given": "the text as it was given",
    "label": "the answer itself",
    "edits": "the program after the edits",
    "workspace": "the repository as the agent left it",
    "starter": "the starter code with the text that continues it",
    "indented": "with the indentation that it had lost",
    "block": "the last block that defines the entry point",
    "closed": "the text before the fence that closes it",
    "body": "the last block, as the body of the starter code",
    "last_block": "the last Python block, since none defines the entry point",
    "program": "the last block that is a program",
    "text": "the text from its first line of code on",
    "joined": "with what it uses from other blocks",
    "cut": "without what is not Python behind it",
    "tests_dropped": "without the tests behind the entry point",
}
"""The rules by which programs are found, and what was done to them (`Extracted.rule`)."""


@dataclass(frozen=True)
class Extracted:
    """The code of an answer, or None, the reason why there is none, and the status that this is.

    `files` are further files that the answer changes, with their text; None deletes one. `rule` holds the
    names of the `RULES` that led to the code, separated by spaces.
    """

    code: str | None
    reason: str = ""
    status: Status = Status.NO_CODE
    files: tuple[tuple[str, str | None], ...] = ()
    rule: str = ""

    @property
    def answer(self) -> str | Extracted | None:
        """What a grader is given: the code, where that is all."""
        return self if self.files or self.status is not Status.NO_CODE else self.code


def is_prose(text: str | None) -> bool:
    """Whether a text is no Python as it stands; of one that is too long to be parsed it is not known."""
    if text is None or len(text) > MOST_PARSED:
        return False
    tree = parse_or_none(text)
    return tree is None or _returns_outside(tree)


def _returns_outside(tree: ast.Module) -> bool:
    """Whether a `return` stands outside of functions, which the parser lets pass and the compiler refuses."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            blocks = (ast.stmt, ast.excepthandler, ast.match_case)
            pending += [one for one in ast.iter_child_nodes(node) if isinstance(one, blocks)]
    return False


def explained(rule: str) -> str:
    """The `RULES` of an answer in words."""
    return ", ".join(RULES[name] for name in rule.split() if name in RULES)
