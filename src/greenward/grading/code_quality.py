"""Code quality read off the syntax tree, in the trusted process, without running anything.

Each sub-term lies in [0, 1]; the score is their weighted mean; code that does not parse scores 0.

- `length`: 1 up to `max_statements` statements, then max_statements / statements.
- `complexity`: 1 up to cyclomatic complexity `max_complexity` of the worst function, then
  max_complexity / complexity (McCabe 1976: one more than the number of decisions).
- `unused`: 1, halved for each dead statement (`dead_code`): a share could be raised by padding.
- `hygiene`: 1, halved for each bare `except`, mutable default argument, `global` and wildcard import.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from greenward.errors import ConfigError
from greenward.grading.dead_code import remove_dead_code
from greenward.grading.rewards import AnswerTerm, GradedAnswer
from greenward.problems.python_source import parse_or_none

MAX_PARSED_CHARS = 20_000
SUB_TERMS = ("length", "complexity", "unused", "hygiene")

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DECISIONS = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.Assert,
)  # fmt: skip


@dataclass(frozen=True)
class CodeQuality(AnswerTerm, name="code_quality"):
    """The weighted mean of the sub-terms above. `weights` names the ones that count.

    Raises `ConfigError` for an unknown sub-term or weights that do not sum to more than 0.
    """

    weights: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUB_TERMS, 1.0))
    max_statements: int = 30
    max_complexity: int = 10

    def __post_init__(self) -> None:
        unknown = [name for name in self.weights if name not in SUB_TERMS]
        if unknown:
            raise ConfigError(
                f"code_quality has no sub-term {unknown[0]!r}.", remedy=f"Sub-terms: {', '.join(SUB_TERMS)}."
            )
        if not sum(self.weights.values()) > 0 or min(self.weights.values()) < 0:
            raise ConfigError("the weights of code_quality must not be negative and must sum to more than 0.")

    def of_answer(self, answer: GradedAnswer) -> float:
        return self.of_code(answer.code or "", answer.problem.entry_point)

    def of_code(self, code: str, entry_point: str = "") -> float:
        """The score of one program. Without an entry point every function of the top level counts as live."""
        tree = parse_bounded(code)
        if tree is None or not tree.body:
            return 0.0
        dead = remove_dead_code(tree, code.splitlines(), entry_point).dead
        nodes = list(ast.walk(tree))
        parts = {
            "length": min(1.0, self.max_statements / max(1, sum(isinstance(n, ast.stmt) for n in nodes))),
            "complexity": min(1.0, self.max_complexity / worst_complexity(tree)),
            "unused": 0.5**dead,
            "hygiene": 0.5 ** sum(map(_offences, nodes)),
        }
        return sum(weight * parts[name] for name, weight in self.weights.items()) / sum(self.weights.values())


def parse_bounded(code: str) -> ast.Module | None:
    """The syntax tree of hostile code; None if it does not parse or is too long to be looked at."""
    return parse_or_none(code) if len(code) <= MAX_PARSED_CHARS else None


def worst_complexity(tree: ast.Module) -> int:
    """The largest cyclomatic complexity of a function or the top level, inner functions not counted in."""
    worst = 1
    pending: list[Sequence[ast.AST]] = [tree.body]
    while pending:
        decisions, inside = 0, list[ast.AST](pending.pop())
        while inside:
            node = inside.pop()
            if isinstance(node, _FUNCTIONS):
                pending.append(node.body if isinstance(node.body, list) else [node.body])
                continue
            if isinstance(node, ast.BoolOp):
                decisions += len(node.values) - 1
            elif isinstance(node, _DECISIONS):
                decisions += 1
            inside.extend(ast.iter_child_nodes(node))
        worst = max(worst, 1 + decisions)
    return worst


def _offences(node: ast.AST) -> int:
    match node:
        case ast.ExceptHandler(type=None) | ast.Global():
            return 1
        case ast.arguments(defaults=defaults, kw_defaults=named):
            return sum(isinstance(default, (ast.List, ast.Dict, ast.Set)) for default in (*defaults, *named))
        case ast.ImportFrom(names=names):
            return sum(alias.name == "*" for alias in names)
    return 0
