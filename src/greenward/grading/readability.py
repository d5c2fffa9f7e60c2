"""How readable code is, by ruff's linter and formatter. The formula is in docs/rewards.md.

Everything is counted absolutely and on live code alone: a share could be raised by padding.

The programs are hostile text. They lie under names of ours in a private folder, ruff reads no
configuration but ours, comments that switch its rules off are ignored, and both processes (one `ruff
check` and one `ruff format` for all programs) are bounded in time. A program on which ruff crashes (it
does when code is nested too deeply) is found by halving the batch, and takes nothing else with it.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from greenward.errors import RewardError
from greenward.grading.code_quality import parse_bounded
from greenward.grading.dead_code import LiveCode, remove_dead_code
from greenward.grading.grader import Grader
from greenward.grading.hidden_code import hides_code
from greenward.grading.rewards import GradedAnswer, ShippedTerm

# Style, not types: pycodestyle, pyflakes, names, likely bugs, comprehensions, complexity, simpler
# statements, returns, needless code, modern syntax.
RULES = ("E", "F", "W", "N", "B", "C4", "C90", "SIM", "RET", "PIE", "UP")
INVALID_SYNTAX = "invalid-syntax"
# Complexity (C901) is reported on the line of `def`, even where the prompt wrote that line.
_COUNTS_ANYWHERE = ("C901", INVALID_SYNTAX)
_SHARED = ("--isolated", "--no-cache", "--quiet", "--target-version", "py310")
_CHECK = ("check", *_SHARED, "--ignore-noqa", "--exit-zero", "--output-format", "json", "--select")
_FORMAT = ("format", *_SHARED)
_SECONDS, _SECONDS_PER_PROGRAM = 10.0, 1.0
MAX_NESTED, MAX_NESTED_NODES = 30, 20_000
"""Of calls and comprehensions in one another, which ruff parses anew at each level: real files have up to 18
levels, and 12,000 nodes, each counted once for every call or comprehension around it."""
_NESTED = (ast.Call, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_UNFORMATTED = 2  # ruff format could not parse some file; the others are done
_MAX_KNOWN = 5_000
_NEWLINE = re.compile(r"\r\n|\r|\n")
_SWITCHES_FORMATTING_OFF = re.compile(r"#\s*(?:fmt|yapf)\s*:")


@dataclass(frozen=True)
class Readability(ShippedTerm, name="readability"):
    """s(violations + dead statements) × (1 + s(badly formatted lines)) / 2 with s(x) = 1 / (1 + x).

    Only code that the answer added to the starter code counts, and dead code (`dead_code`) is cut out
    before the linter and the formatter look at it. Code that does not parse, is too long or too nested,
    adds nothing that is live, hides code in text (`hidden_code`), which neither tool can see, or switches the
    formatter off gets 0.
    Equal answers are examined once. Raises `RewardError` where ruff is missing.
    """

    _known: dict[tuple[str, str, str], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_ruff()

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        keys = [
            (answer.code or "", answer.problem.starter_code, answer.problem.entry_point) for answer in answers
        ]
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        new = {key: _own_code(*key) for key in keys if key not in self._known}
        self._known.update(dict.fromkeys(new, 0.0))
        judged = {key: own for key, own in new.items() if own is not None}
        findings = lint([live.code for live, _, _ in judged.values()])
        for (key, own), found in zip(judged.items(), findings, strict=True):
            if found is not None:
                self._known[key] = _score(*own, found)
        return [self._known[key] for key in keys]


def _own_code(code: str, starter_code: str, entry_point: str) -> tuple[LiveCode, int, list[str]] | None:
    """The live part of a program, how many lines of the prompt stand before what its author is judged by, and
    those of the author's lines on which code begins. None for code that gets 0 unseen.
    """
    tree = parse_bounded(code)
    if tree is None or _SWITCHES_FORMATTING_OFF.search(code) or hides_code(tree) or _is_too_nested(tree):
        return None
    lines = _NEWLINE.split(code)
    starts = code.startswith(starter_code)
    given = min(len(_NEWLINE.findall(starter_code)), len(lines)) if starts else 0
    live = remove_dead_code(tree, lines, entry_point, given)
    own = [line for number, line in _lines_of_code(live.code) if number > given]
    return (live, given, own) if own else None


def _is_too_nested(tree: ast.Module) -> bool:
    total, pending = 0, list[tuple[ast.AST, int]]([(tree, 0)])
    while pending:
        node, around = pending.pop()
        around += isinstance(node, _NESTED)
        total += around
        if around > MAX_NESTED or total > MAX_NESTED_NODES:
            return True
        pending += ((one, around) for one in ast.iter_child_nodes(node))
    return False


def _score(live: LiveCode, given: int, own: Sequence[str], findings: LintResult) -> float:
    rules = [one.rule for one in findings.violations if one.line > given or one.rule in _COUNTS_ANYWHERE]
    if INVALID_SYNTAX in rules:
        return 0.0
    kept = Counter(own) & Counter(line for _, line in _lines_of_code(findings.formatted))
    badly_formatted = len(own) - kept.total()
    return 1 / (1 + len(rules) + live.dead) * (1 + 1 / (1 + badly_formatted)) / 2


def _lines_of_code(code: str) -> list[tuple[int, str]]:
    """(number, text) of the lines on which code begins; none for code that does not parse."""
    tree = parse_bounded(code)
    lines = _NEWLINE.split(code)
    nodes = ast.walk(tree) if tree is not None else ()
    begun = {node.lineno for node in nodes if isinstance(node, (ast.stmt, ast.expr))}
    return [(number, lines[number - 1]) for number in sorted(begun) if number <= len(lines)]


@dataclass(frozen=True)
class Violation:
    """A rule that a line (from 1) breaks; the rule is INVALID_SYNTAX where ruff cannot read it."""

    rule: str
    line: int


@dataclass(frozen=True)
class LintResult:
    """What ruff check found in a program, and the program as ruff format writes it."""

    violations: tuple[Violation, ...]
    formatted: str


class _RuffFailure(Exception):
    """Ruff crashed or took too long over some program of a batch."""


def lint(programs: Sequence[str]) -> list[LintResult | None]:
    """The findings on each program; None for one that makes ruff crash or takes it too long.

    Programs must be encodable as UTF-8. Raises `RewardError` when ruff is missing or does not work.
    """
    if not programs:
        return []
    try:
        return list(_lint_together(programs))
    except _RuffFailure:
        if len(programs) == 1:
            check_ruff()
            return [None]
        middle = len(programs) // 2
        return lint(programs[:middle]) + lint(programs[middle:])


def check_ruff() -> None:
    """Lints a line with known findings. Raises `RewardError`, naming the remedy, unless ruff works."""
    try:
        (findings,) = _lint_together(["import os\nx=1\n"])
    except _RuffFailure as error:
        raise RewardError(f"ruff does not work: {error}.", remedy="pip install --upgrade ruff") from None
    if findings != LintResult((Violation("F401", 1),), "import os\n\nx = 1\n"):
        raise RewardError(
            f"ruff answers otherwise than expected: {findings}.", remedy="pip install --upgrade ruff"
        )


def _lint_together(programs: Sequence[str]) -> list[LintResult]:
    with tempfile.TemporaryDirectory(prefix="greenward-ruff-") as name:
        folder = Path(name)
        paths = [folder / f"{index}.py" for index in range(len(programs))]
        for path, program in zip(paths, programs, strict=True):
            path.write_bytes(program.encode())
        violations: list[list[Violation]] = [[] for _ in programs]
        seconds = _SECONDS + _SECONDS_PER_PROGRAM * len(programs)
        for found in json.loads(_run((*_CHECK, ",".join(RULES), "."), folder, seconds, accepted=(0,))):
            index = int(Path(found["filename"]).stem)
            violations[index].append(Violation(found["code"] or INVALID_SYNTAX, found["location"]["row"]))
        _run((*_FORMAT, "."), folder, seconds, accepted=(0, _UNFORMATTED))
        return [
            LintResult(tuple(of_one), path.read_bytes().decode())
            for of_one, path in zip(violations, paths, strict=True)
        ]


def _run(arguments: Sequence[str], folder: Path, seconds: float, *, accepted: Sequence[int]) -> bytes:
    try:
        done = subprocess.run(
            [_binary(), *arguments],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _RuffFailure(f"ruff {arguments[0]} took longer than {seconds:.0f} seconds") from None
    if done.returncode not in accepted:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise _RuffFailure(f"ruff {arguments[0]} ended with {done.returncode}: {said}")
    return done.stdout


@lru_cache(maxsize=1)
def _binary() -> str:
    try:
        from ruff import find_ruff_bin

        return find_ruff_bin()
    except (ImportError, FileNotFoundError):
        raise RewardError(
            "the reward terms readability and code_score need ruff, which is not installed.",
            remedy="pip install ruff",
        ) from None
