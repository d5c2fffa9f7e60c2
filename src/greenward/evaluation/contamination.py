"""Finds contamination of an evaluation: what its problems share with training data.

It is measured against the training data that is given: what a model was pre-trained on stays unknown (for the
public suites see Riddell, Ni and Cohan 2024, arXiv:2403.04811).
"""

from __future__ import annotations

import ast
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from greenward.problems.problem import Problem, ProblemSet, function_in
from greenward.problems.python_source import Definition, parse_bounded, qualified_functions

N = 13  # Brown et al. 2020 (arXiv:2005.14165), appendix C
MOST = 0.8  # the share from which Touvron et al. 2023 (arXiv:2307.09288, A.6) call a sample dirty
MIN_NODES = 20  # smaller programs are alike by chance: two parameters and their sum have 12
_CODE_TOKEN = re.compile(r"\w+|[^\w\s]")

# Where names that a program may choose stand in its tree; the fields that make no difference to it.
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
_NAMES: dict[type[ast.AST], str] = {**dict.fromkeys(_NAMED, "name"), ast.arg: "arg", ast.Name: "id"}
_LEFT_OUT = frozenset({"annotation", "returns", "ctx", "kind", "type_comment", "type_ignores"})

Feature = tuple[str, "str | tuple[str, ...]"]  # its kind, and a text, a program or a 13-gram


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
            f"{counts['exact']} exactly, {counts['same_program']} by an equal program, "
            f"{counts['most_13grams']} by most of their 13-grams, {counts['any_13gram']} by any 13-gram"
        )
        return f"contamination: of {self.problems} problems, {self.training_items} training items hold {told}"

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data, with counts and rates."""
        counts = self.counts
        rates = {kind: count / max(1, self.problems) for kind, count in counts.items()}
        return asdict(self) | {"counts": counts, "rates": rates}


def contamination(train: Iterable[Problem | str], evaluation: ProblemSet) -> Contamination:
    """Looks for the problems of `evaluation` in `train`: problems, and texts of a corpus.

    - exact: the same specification or reference program, white space and letter case aside (of a
      text: the whole of it);
    - same program: a function of the same syntax tree, with docstrings, annotations and comments
      dropped and all names that the program binds made alike; not for programs under 20 nodes;
    - 13-grams: of words of the specification, and of code tokens of the reference program.

    Where an evaluation problem asks for one function of a file, this function is the reference program, and
    the rest of the file is given. A training problem shows its whole file, in which it is looked for.

    One pass over `train`, whose memory does not grow with it.
    """
    wanted = {one.task_id: _asked_for(one) for one in evaluation}
    # The training item in which each feature was first seen (None: not yet).
    seen: dict[Feature, str | None] = {one: None for features in wanted.values() for one in features}
    items = 0
    for items, item in enumerate(train, start=1):
        name = f"text {items}" if isinstance(item, str) else item.task_id
        for feature in _shown_by(item):
            if feature in seen and seen[feature] is None:
                seen[feature] = name
    overlaps = [_overlap(task_id, features, seen) for task_id, features in wanted.items()]
    overlaps = [one for one in overlaps if one.exact or one.same_program or one.share > 0]
    overlaps.sort(key=lambda one: (one.exact is None, one.same_program is None, -one.share))
    return Contamination(evaluation.name, len(evaluation), items, tuple(overlaps))


def _asked_for(problem: Problem) -> list[Feature]:
    """The features of the specification and of the program, or the function of a file, that is asked for."""
    tree = parse_bounded(problem.reference)
    function = function_in(problem, problem.reference)
    if not function:
        return _features(_specification(problem), problem.reference, _units(tree))
    functions = qualified_functions(tree) if tree else ()
    units = [node for name, node in functions if name == problem.entry_point]
    return _features(_specification(problem), function, units)


def _shown_by(item: Problem | str) -> list[Feature]:
    """The features of a text, or of a problem and its whole reference; methods count on their own, too."""
    text, code = (item, item) if isinstance(item, str) else (_specification(item), item.reference)
    units = _units(tree := parse_bounded(code))
    units += [node for _, node in qualified_functions(tree or ast.Module([], [])) if node not in units]
    function = None if isinstance(item, str) else function_in(item, code)
    return [*_features(text, code, units), *_exact(function or "")]


def _specification(problem: Problem) -> str:
    # The starter code often repeats the prompt.
    return problem.prompt or problem.starter_code


def _features(text: str, code: str, units: Iterable[ast.AST]) -> list[Feature]:
    """What two items are compared by, in their order; a 13-gram as often as it occurs."""
    words, tokens = text.lower().split(), _CODE_TOKEN.findall(code)
    large = (unit for unit in units if sum(1 for _ in ast.walk(unit)) >= MIN_NODES)
    return [
        *_exact(text),
        *_exact(code),
        *(("program", _normalised(unit)) for unit in large),
        *(("text", tuple(words[start : start + N])) for start in range(len(words) - N + 1)),
        *(("code", tuple(tokens[start : start + N])) for start in range(len(tokens) - N + 1)),
    ]


def _exact(text: str) -> list[Feature]:
    """The text without regard to white space and letter case; nothing for an empty one."""
    words = text.lower().split()
    return [("exact", " ".join(words))] if words else []


def _overlap(task_id: str, features: list[Feature], seen: Mapping[Feature, str | None]) -> Overlap:
    sources: dict[str, list[str | None]] = {"exact": [], "program": [], "text": [], "code": []}
    for feature in features:
        sources[feature[0]].append(seen[feature])
    nearest = Counter(filter(None, (*sources["text"], *sources["code"]))).most_common(1)
    text_share, code_share = (
        sum(source is not None for source in found) / len(found) if found else None
        for found in (sources["text"], sources["code"])
    )
    return Overlap(
        task_id,
        exact=next(filter(None, sources["exact"]), None),
        same_program=next(filter(None, sources["program"]), None),
        text_share=text_share,
        code_share=code_share,
        nearest=nearest[0][0] if nearest else None,
    )


def _units(tree: ast.Module | None) -> list[ast.AST]:
    """The top-level functions and classes, or a script without any as a whole."""
    if tree is None:
        return []
    return [node for node in tree.body if isinstance(node, Definition)] or [tree]


def _normalised(unit: ast.AST) -> str:
    """The tree as text, level by level, independent of names, docstrings and annotations."""
    bound = {
        getattr(node, _NAMES[type(node)])
        for node in ast.walk(unit)
        if type(node) in _NAMES and (not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store))
    }
    number: dict[str, str] = {}
    parts: list[str] = []
    pending: deque[ast.AST] = deque([unit])  # no recursion: code may be nested deeply
    while pending:
        node = pending.popleft()
        parts.append(type(node).__name__)
        for name, value in ast.iter_fields(node):
            if name in _LEFT_OUT:
                continue
            if name == "body" and isinstance(node, Definition) and ast.get_docstring(node) is not None:
                value = value[1:] or value
            if isinstance(value, str) and value in bound and name == _NAMES.get(type(node)):
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
