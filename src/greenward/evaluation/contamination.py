"""How much of an evaluation set the training set has already shown: exact, by syntax tree, by 13-grams.

Sees only the training data that it is given: what a model was pre-trained on stays unknown (for the
public suites see Riddell, Ni and Cohan 2024, arXiv:2403.04811).
"""

from __future__ import annotations

import ast
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from greenward.grading.code_quality import parse_bounded
from greenward.problems.problem import Problem, ProblemSet

N = 13  # Brown et al. 2020 (arXiv:2005.14165), appendix C
MOST = 0.8  # the share from which Touvron et al. 2023 (arXiv:2307.09288, A.6) call a sample dirty
MIN_NODES = 20  # smaller programs are alike by chance: two parameters and their sum have 12
_CODE_TOKEN = re.compile(r"\w+|[^\w\s]")

# Where names that a program may choose stand in its tree; the fields that make no difference to it.
_NAMES: dict[type[ast.AST], tuple[str, ...]] = {
    ast.FunctionDef: ("name",),
    ast.AsyncFunctionDef: ("name",),
    ast.ClassDef: ("name",),
    ast.ExceptHandler: ("name",),
    ast.arg: ("arg",),
    ast.Name: ("id",),
}
_LEFT_OUT = frozenset({"annotation", "returns", "ctx", "kind", "type_comment", "type_ignores"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Gram = tuple[str, ...]


@dataclass(frozen=True)
class Overlap:
    """What one evaluation problem shares with the training set; None where nothing, or too short to say.

    `exact` and `same_program` name the training item; shares are of the problem's own 13-grams, in
    [0, 1], and `nearest` is the item that showed most of them first.
    """

    task_id: str
    exact: str | None
    same_program: str | None
    text_share: float | None
    code_share: float | None
    nearest: str | None

    @property
    def share(self) -> float:
        """The larger of the two shares."""
        return max(self.text_share or 0.0, self.code_share or 0.0)


@dataclass(frozen=True)
class Contamination:
    """The evaluation problems that overlap with a training set, the worst first."""

    suite: str
    problems: int
    training_items: int
    overlaps: tuple[Overlap, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Problems by kind of overlap; a problem may have several."""
        return {
            "exact": sum(one.exact is not None for one in self.overlaps),
            "same_program": sum(one.same_program is not None for one in self.overlaps),
            "any_13gram": sum(one.share > 0 for one in self.overlaps),
            "most_13grams": sum(one.share >= MOST for one in self.overlaps),
        }

    @property
    def summary(self) -> str:
        """One line: how many problems overlap, and how."""
        counts = self.counts
        told = (
            f"{counts['exact']} exactly, {counts['same_program']} by syntax tree, "
            f"{counts['most_13grams']} in most 13-grams, {counts['any_13gram']} in any"
        )
        return f"contamination: of {self.problems} problems, {self.training_items} training items show {told}"

    def to_json(self) -> dict[str, Any]:
        """Counts, rates and each overlap, as plain data."""
        counts = self.counts
        return {
            "suite": self.suite,
            "problems": self.problems,
            "training_items": self.training_items,
            "counts": counts,
            "rates": {
                kind: count / self.problems if self.problems else 0.0 for kind, count in counts.items()
            },
            "overlaps": [asdict(overlap) for overlap in self.overlaps],
        }


def contamination(train: Iterable[Problem | str], evaluation: ProblemSet) -> Contamination:
    """Looks for the problems of `evaluation` in `train`: problems, and texts of a corpus.

    - exact: the same specification or reference program, white space and letter case aside (of a
      text: the whole of it);
    - same program: a function of the same syntax tree, with docstrings, annotations and comments
      dropped and all names that the program binds made alike; not for programs under 20 nodes;
    - 13-grams: of words of the specification, and of code tokens of the reference program.

    One pass over `train`, whose memory does not grow with it.
    """
    seen = _Wanted(evaluation)
    items = 0
    for items, item in enumerate(train, start=1):
        if isinstance(item, str):
            seen.look(f"text {items}", item, item)
        else:
            seen.look(item.task_id, _specification(item), item.reference)
    found = [seen.overlap(problem) for problem in evaluation]
    overlaps = [one for one in found if one.exact or one.same_program or one.share > 0]
    overlaps.sort(key=lambda one: (one.exact is None, one.same_program is None, -one.share))
    return Contamination(evaluation.name, len(evaluation), items, tuple(overlaps))


class _Wanted:
    """What is looked for, and the training item in which each was first seen (None: not yet)."""

    def __init__(self, evaluation: ProblemSet) -> None:
        self._exact: dict[str, str | None] = {}
        self._programs: dict[str, str | None] = {}
        self._text_grams: dict[Gram, str | None] = {}
        self._code_grams: dict[Gram, str | None] = {}
        for problem in evaluation:
            self._exact.update(dict.fromkeys(map(_flat, _texts(problem))))
            self._programs.update(dict.fromkeys(_programs(problem.reference)))
            self._text_grams.update(dict.fromkeys(_grams(_words(_specification(problem)))))
            self._code_grams.update(dict.fromkeys(_grams(_code_tokens(problem.reference))))

    def look(self, name: str, text: str, code: str) -> None:
        """Notes what this training item shows."""
        for table, keys in (
            (self._exact, map(_flat, (text, code))),
            (self._programs, _programs(code)),
            (self._text_grams, _grams(_words(text))),
            (self._code_grams, _grams(_code_tokens(code))),
        ):
            for key in keys:
                if key in table and table[key] is None:  # type: ignore[index]
                    table[key] = name  # type: ignore[index]

    def overlap(self, problem: Problem) -> Overlap:
        """What of this problem was seen."""
        text = [self._text_grams[gram] for gram in _grams(_words(_specification(problem)))]
        code = [self._code_grams[gram] for gram in _grams(_code_tokens(problem.reference))]
        sources = Counter(source for source in (*text, *code) if source is not None)
        return Overlap(
            problem.task_id,
            exact=next(filter(None, (self._exact[_flat(text)] for text in _texts(problem))), None),
            same_program=next(filter(None, map(self._programs.get, _programs(problem.reference))), None),
            text_share=_share(text),
            code_share=_share(code),
            nearest=sources.most_common(1)[0][0] if sources else None,
        )


def _share(sources: list[str | None]) -> float | None:
    return sum(source is not None for source in sources) / len(sources) if sources else None


def _specification(problem: Problem) -> str:
    return problem.prompt or problem.starter_code  # which often repeats the prompt


def _texts(problem: Problem) -> list[str]:
    return [text for text in (_specification(problem), problem.reference) if text.strip()]


def _flat(text: str) -> str:
    return " ".join(_words(text))


def _words(text: str) -> list[str]:
    return text.lower().split()


def _code_tokens(code: str) -> list[str]:
    return _CODE_TOKEN.findall(code)


def _grams(tokens: list[str]) -> Iterator[Gram]:
    return (tuple(tokens[start : start + N]) for start in range(len(tokens) - N + 1))


def _programs(code: str) -> list[str]:
    """The normalised syntax tree of each top-level function or class, or of a script without any."""
    tree = parse_bounded(code)
    if tree is None:
        return []
    units: list[ast.AST] = [node for node in tree.body if isinstance(node, _DEFINITIONS)] or [tree]
    return [_normalised(unit) for unit in units if sum(1 for _ in ast.walk(unit)) >= MIN_NODES]


def _normalised(unit: ast.AST) -> str:
    """The tree as text, level by level, independent of names, docstrings and annotations."""
    bound = set(_bound_names(unit))
    number: dict[str, str] = {}
    parts: list[str] = []
    pending: deque[ast.AST] = deque([unit])  # no recursion: code may be nested deeply
    while pending:
        node = pending.popleft()
        parts.append(type(node).__name__)
        for name, value in ast.iter_fields(node):
            if name in _LEFT_OUT:
                continue
            if name == "body" and isinstance(node, _DEFINITIONS):
                value = _without_docstring(value)
            if isinstance(value, str) and value in bound and name in _NAMES.get(type(node), ()):
                value = number.setdefault(value, f"_{len(number)}")
            children = value if isinstance(value, list) else [value]
            parts.append(str(len(children)))
            for child in children:
                if isinstance(child, ast.AST):
                    pending.append(child)
                else:
                    # A long int has no decimal text.
                    parts.append(hex(child) if type(child) is int else repr(child))
    return " ".join(parts)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if is_text and len(body) > 1 else body


def _bound_names(unit: ast.AST) -> Iterator[str]:
    for node in ast.walk(unit):
        if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store):
            yield from (getattr(node, field) or "" for field in _NAMES.get(type(node), ()))
