"""How readable code is, by ruff's linter and formatter. The formula is in docs/rewards.md."""

from __future__ import annotations

import ast
import math
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

VIOLATION_COST = 2.0  # a violation on every line leaves exp(-2), 0.14
_MAX_KNOWN = 5_000
_NEWLINE = re.compile(r"\r\n|\r|\n")
_SWITCHES_FORMATTING_OFF = re.compile(r"#\s*(?:fmt|yapf)\s*:")
# Complexity (C901) is reported on the line of `def`, even where the prompt wrote that line.
_COUNTS_ANYWHERE = ("C901", lint.INVALID_SYNTAX)


@dataclass(frozen=True)
class Readability:
    """exp(-2 · violations per line) for the linter × (1 + share of lines well formatted) / 2.

    Only lines of code that the answer added to the starter code count: no comments, no blank lines. Code
    that does not parse, is too long to be looked at, adds nothing or switches the formatter off gets 0.
    Equal answers are examined once. Raises `RewardError` where ruff is missing.
    """

    name: str = "readability"
    weight: float = 1.0
    _known: dict[tuple[str, str], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lint.check_ruff()

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        keys = [(answer.code or "", answer.problem.starter_code) for answer in answers]
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        new = {key: _Judged.of(*key) for key in keys if key not in self._known}
        self._known.update(dict.fromkeys(new, 0.0))
        judged = {key: program for key, program in new.items() if program is not None}
        # What follows the last line of code is no matter of style: an answer may end without a newline.
        found = lint.examine([code.rstrip() + "\n" for code, _ in judged])
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
    """The part of a program that its author is judged by: all after the first `given` lines.

    `lines` are those of them on which code begins.
    """

    given: int
    lines: tuple[str, ...]

    @classmethod
    def of(cls, code: str, starter_code: str) -> _Judged | None:
        """None for code that gets 0 unseen."""
        tree = parse_bounded(code)
        if tree is None or _SWITCHES_FORMATTING_OFF.search(code):
            return None
        given = len(_NEWLINE.findall(starter_code)) if code.startswith(starter_code) else 0
        lines = _NEWLINE.split(code)
        begun = {node.lineno for node in ast.walk(tree) if isinstance(node, (ast.stmt, ast.expr))}
        own = tuple(lines[number - 1] for number in sorted(begun) if given < number <= len(lines))
        return cls(given, own) if own else None

    def score(self, findings: lint.Findings) -> float:
        rules = [
            one.rule for one in findings.violations if one.line > self.given or one.rule in _COUNTS_ANYWHERE
        ]
        if lint.INVALID_SYNTAX in rules:
            return 0.0
        count = len(self.lines)
        kept = Counter(self.lines) & Counter(_NEWLINE.split(findings.formatted))
        return math.exp(-VIOLATION_COST * len(rules) / count) * (1 + kept.total() / count) / 2
