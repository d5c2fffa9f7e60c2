"""How readable code is, by ruff's linter and formatter. The formula is in docs/rewards.md.

Everything is counted absolutely and on used code alone: a share could be raised by padding.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from greenward.errors import ConfigError
from greenward.grading import lint
from greenward.grading.code_quality import parse_bounded
from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.grader import Grader
from greenward.grading.reward_terms import Tests
from greenward.grading.used_code import UsedCode, used_code

_MAX_KNOWN = 5_000
_NEWLINE = re.compile(r"\r\n|\r|\n")
_RUNS_TEXT = frozenset({"exec", "eval"})
_SWITCHES_FORMATTING_OFF = re.compile(r"#\s*(?:fmt|yapf)\s*:")
# Complexity (C901) is reported on the line of `def`, even where the prompt wrote that line.
_COUNTS_ANYWHERE = ("C901", lint.INVALID_SYNTAX)


@dataclass(frozen=True)
class Readability:
    """s(violations + unused statements) × (1 + s(badly formatted lines)) / 2 with s(x) = 1 / (1 + x).

    Only code that the answer added to the starter code counts, and unused code (`used_code`) is cut out
    before the linter and the formatter look at it. Code that does not parse, is too long to be looked at,
    adds nothing that is used, runs code from text (`exec`, `eval`), which neither tool can see, or switches
    the formatter off gets 0.
    Equal answers are examined once. Raises `RewardError` where ruff is missing.
    """

    name: str = "readability"
    weight: float = 1.0
    _known: dict[tuple[str, str, str], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        lint.check_ruff()

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        keys = [
            (answer.code or "", answer.problem.starter_code, answer.problem.entry_point) for answer in answers
        ]
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        new = {key: _Judged.of(*key) for key in keys if key not in self._known}
        self._known.update(dict.fromkeys(new, 0.0))
        judged = {key: program for key, program in new.items() if program is not None}
        found = lint.examine([program.used.code for program in judged.values()])
        for (key, program), findings in zip(judged.items(), found, strict=True):
            if findings is not None:
                self._known[key] = program.score(findings)
        return [self._known[key] for key in keys]


@dataclass(frozen=True)
class CodeScore:
    """The mean of correctness (share of tests passed, 0 for cheating) and readability, by their weights.

    Its parts are reported beside it. Raises `ConfigError` for weights that are negative or all 0.
    """

    name: str = "code_score"
    weight: float = 1.0
    correctness: float = 0.8
    readability: float = 0.2
    _parts: tuple[Tests, Readability] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if min(self.correctness, self.readability) < 0 or self.correctness + self.readability <= 0:
            raise ConfigError(
                "the weights of code_score must not be negative and must sum to more than 0, "
                f"found correctness {self.correctness} and readability {self.readability}."
            )
        object.__setattr__(self, "_parts", (Tests("correctness", bonus=0.0), Readability()))

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        return self.score_by_name(answers, grader)[self.name]

    def score_by_name(
        self, answers: Sequence[GradedAnswer], grader: Grader
    ) -> Mapping[str, list[float | None]]:
        """The scores of the term, and of its parts, under their names."""
        parts = {part.name: part.score(answers, grader) for part in self._parts}
        return {self.name: [self._mean(*both) for both in zip(*parts.values(), strict=True)], **parts}

    def _mean(self, correctness: float | None, readability: float | None) -> float:
        assert correctness is not None and readability is not None  # both parts apply to every answer
        weighted = self.correctness * correctness + self.readability * readability
        return weighted / (self.correctness + self.readability)


@dataclass(frozen=True)
class _Judged:
    """The used part of a program. `given` lines of the prompt stand before what its author is judged by.

    `lines` are those of the author's on which code begins.
    """

    used: UsedCode
    given: int
    lines: tuple[str, ...]

    @classmethod
    def of(cls, code: str, starter_code: str, entry_point: str) -> _Judged | None:
        """None for code that gets 0 unseen."""
        tree = parse_bounded(code)
        if tree is None or _SWITCHES_FORMATTING_OFF.search(code) or _runs_text(tree):
            return None
        lines = _NEWLINE.split(code)
        starts = code.startswith(starter_code)
        given = min(len(_NEWLINE.findall(starter_code)), len(lines)) if starts else 0
        try:
            used = used_code(tree, lines, entry_point, given)
        except RecursionError:
            return None
        own = tuple(line for number, line in _begun(used.code) if number > given)
        return cls(used, given, own) if own else None

    def score(self, findings: lint.Findings) -> float:
        rules = [
            one.rule for one in findings.violations if one.line > self.given or one.rule in _COUNTS_ANYWHERE
        ]
        if lint.INVALID_SYNTAX in rules:
            return 0.0
        kept = Counter(self.lines) & Counter(line for _, line in _begun(findings.formatted))
        badly_formatted = len(self.lines) - kept.total()
        return _saturating(len(rules) + self.used.unused) * (1 + _saturating(badly_formatted)) / 2


def _begun(code: str) -> list[tuple[int, str]]:
    """(number, text) of the lines on which code begins; none for code that does not parse."""
    tree = parse_bounded(code)
    lines = _NEWLINE.split(code)
    nodes = ast.walk(tree) if tree is not None else ()
    begun = {node.lineno for node in nodes if isinstance(node, (ast.stmt, ast.expr))}
    return [(number, lines[number - 1]) for number in sorted(begun) if number <= len(lines)]


def _runs_text(tree: ast.Module) -> bool:
    """Whether code names a built-in function that runs text."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and "builtins" in ast.unparse(node.value):
            found.add(node.attr)
    return not _RUNS_TEXT.isdisjoint(found)


def _saturating(count: int) -> float:
    """1 for none, then less with each, ever more slowly: 1/2, 1/3, 1/4 …"""
    return 1 / (1 + count)
