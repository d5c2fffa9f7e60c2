"""Compares two evaluations, chooses the best of several answers, and finds contamination of an evaluation.

A comparison is paired by problem. Differences are B's rate less A's, as fractions. Stored evaluations are
read from the files of ours, old and new, and from EvalPlus's; their statuses are taken as they were written.
Contamination is measured against the training data that is given: what a model was pre-trained on stays
unknown (for the public suites see Riddell, Ni and Cohan 2024, arXiv:2403.04811).
"""

from __future__ import annotations

import ast
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from greenward.common.errors import ConfigError, ProblemError, RunError
from greenward.common.files import expecting
from greenward.common.statistics import (
    ALPHA,
    Estimate,
    detectable_mean_difference,
    detectable_rate_difference,
    mcnemar_exact,
    mcnemar_mid_p,
    paired_difference,
    pass_at_k,
    rate,
    sign_flip_p_value,
)
from greenward.evaluation.store import EVALPLUS_RESULTS, RESULTS, SETTINGS, read_rows
from greenward.grading.answers import Extracted
from greenward.grading.changes import changed_lines
from greenward.grading.compare import matches, same_output
from greenward.grading.judge import Grader
from greenward.grading.quality import parse_bounded
from greenward.grading.verdict import Family, Status, Verdict
from greenward.problems.problem import Assertion, Case, Problem, ProblemSet, StdioCase, function_in
from greenward.problems.python_source import Definition, qualified_functions
from greenward.runs.files import read_json
from greenward.runs.reading import by_problem, counts_answers, read_evaluations
from greenward.sandbox.protocol import Outcome, RunResult

MCNEMAR, SIGN_FLIP = "exact McNemar", "paired randomisation"
# Settings that do not change the expected score.
_PROMPT_SETTINGS = ("prompt", "style", "prompt_hash")
_NO_INFLUENCE = frozenset({"model", "weights", "command", "seed", "workers", "out", "output", "device"})


class AnswerCounts(NamedTuple):
    """The answers to one problem: how many there are, how many passed, how many the infrastructure lost."""

    answers: int = 0
    passed: int = 0
    infrastructure: int = 0


@dataclass(frozen=True)
class StoredEvaluation:
    """One evaluation: where it lies, its suite and settings as far as known, its counts by task id."""

    name: str
    suite: str | None
    problems: Mapping[str, AnswerCounts]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PairedComparison:
    """What `compare` found. `a` and `b` are the pass@k on the `problems` that both answered.

    `test` is exact McNemar (`mid_p` beside it) for one answer per problem on both sides, else a paired
    randomisation test; intervals are those of `intervals`. `won` are the problems that only B solved, `lost`
    those that only A solved; a problem is solved if any answer passes. `detectable` is the least true
    difference that these problems show with power 80 % at alpha 5 %, None if there is none or nothing
    to estimate it from. `unpaired_a` and `unpaired_b` were evaluated on one side only; `too_few` have
    fewer than k answers on a side. `infrastructure` answers were lost and count as not passed.
    """

    name_a: str
    name_b: str
    k: int
    problems: int
    a: Estimate
    b: Estimate
    difference: Estimate
    test: str
    p_value: float
    mid_p: float | None
    detectable: float | None
    won: tuple[str, ...]
    lost: tuple[str, ...]
    unpaired_a: tuple[str, ...]
    unpaired_b: tuple[str, ...]
    too_few: tuple[str, ...]
    infrastructure: int
    other_settings: Mapping[str, tuple[Any, Any]]

    @property
    def significant(self) -> bool:
        """Whether p <= 5 %."""
        return self.p_value <= ALPHA

    @property
    def claim(self) -> str:
        """One sentence: both scores, the p-value, and what may be said."""
        if self.test == MCNEMAR:
            solved = (f"{round(side.value * self.problems)}/{self.problems}" for side in (self.a, self.b))
            scores = " → ".join(solved)
        else:
            scores = f"pass@{self.k} {self.a.value:.1%} → {self.b.value:.1%} on {self.problems} problems"
        if not self.significant:
            meaning = "cannot be told from chance"
        else:
            meaning = "B is better" if self.difference.value > 0 else "A is better"
        return f"{scores}: p = {self.p_value:.2g} ({self.test}); {meaning}"

    @property
    def prompts(self) -> str:
        """A sentence that says how the prompts of both sides differ; empty where they do not."""
        differ = self.other_settings
        for key, what in (
            ("prompt", "A was asked by the prompt {!r}, B by {!r}"),
            ("style", "A in style {}, B in {}"),
        ):
            if key in differ:
                return f"The prompts differ: {what.format(*differ[key])}. So may the scores for that alone."
        if "prompt_hash" in differ and not (self.unpaired_a or self.unpaired_b):
            return "The prompts differ in their chat template, system prompt or wording. So may the scores."
        return ""

    @property
    def differences(self) -> list[str]:
        """What else differs between both sides, besides what is compared."""
        others = (item for item in self.other_settings.items() if item[0] not in _PROMPT_SETTINGS)
        return [
            *filter(None, [self.prompts]),
            *(f"{name} differs: {x} in A, {y} in B" for name, (x, y) in others),
        ]

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data, with `significant`, `claim` and `prompts`."""
        said = {"significant": self.significant, "claim": self.claim, "prompts": self.prompts}
        return {**asdict(self), **said}


def compare(a: StoredEvaluation, b: StoredEvaluation, *, k: int = 1, seed: int = 0) -> PairedComparison:
    """Compares two evaluations on the problems that both answered.

    Raises `RunError` when they have no problem in common, or none with k answers on both sides.
    """
    common = [task_id for task_id in a.problems if task_id in b.problems]
    if not common:
        first = (f"{next(iter(one.problems))!r} …" if one.problems else "empty" for one in (a, b))
        raise RunError(
            f"{a.name} and {b.name} have no problem in common ({' and '.join(first)}).",
            remedy="Evaluate both on the same suite: greenward eval RUN --suite SUITE --out FOLDER.",
        )
    counts = {i: min(a.problems[i].answers, b.problems[i].answers) for i in common}
    if not (answered := [i for i in common if counts[i] >= k]):
        most_a, most_b = (max(one.problems[task_id].answers for task_id in common) for one in (a, b))
        raise RunError(
            f"pass@{k} needs {k} answers per problem; {a.name} has at most {most_a}, "
            f"{b.name} at most {most_b}.",
            remedy="Choose a smaller --k, or draw more answers.",
        )
    pairs = [(a.problems[task_id], b.problems[task_id]) for task_id in answered]
    won = tuple(i for i, (x, y) in zip(answered, pairs, strict=True) if y.passed and not x.passed)
    lost = tuple(i for i, (x, y) in zip(answered, pairs, strict=True) if x.passed and not y.passed)
    scores = [[pass_at_k(side.answers, side.passed, k) for side in pair] for pair in pairs]
    a_P, b_P = np.array(scores, dtype=float).T
    told = {"suite": (a.suite, b.suite)}
    told |= {name: (a.settings[name], b.settings[name]) for name in a.settings if name in b.settings}
    size = len(answered)
    mid_p = None
    if all(x.answers == y.answers == 1 for x, y in pairs):
        test, p_value = MCNEMAR, mcnemar_exact(len(won), len(lost))
        mid_p = mcnemar_mid_p(len(won), len(lost))
        detectable = detectable_rate_difference(size, (len(won) + len(lost)) / size)
    else:
        test, p_value = SIGN_FLIP, sign_flip_p_value(b_P - a_P, seed=seed)
        detectable = detectable_mean_difference(b_P - a_P)
    return PairedComparison(
        name_a=a.name,
        name_b=b.name,
        k=k,
        problems=size,
        a=rate(a_P),
        b=rate(b_P),
        difference=paired_difference(b_P - a_P),
        test=test,
        p_value=p_value,
        mid_p=mid_p,
        detectable=detectable,
        won=won,
        lost=lost,
        unpaired_a=tuple(i for i in a.problems if i not in b.problems),
        unpaired_b=tuple(i for i in b.problems if i not in a.problems),
        too_few=tuple(i for i in common if counts[i] < k),
        infrastructure=sum(side.problems[i].infrastructure for side in (a, b) for i in common),
        other_settings={  # what one side does not tell is no difference
            name: (x, y)
            for name, (x, y) in told.items()
            if x != y and x is not None and y is not None and name not in _NO_INFLUENCE
        },
    )


def read_evaluation(path: Path) -> StoredEvaluation:
    """The evaluation at `path`.

    `path` is an evaluation's folder (or its results.jsonl), a run directory (its last evaluation), a
    run's evaluation record, or EvalPlus's eval_results.json (or a folder that holds one; with added
    tests an answer passes if it passes those, too). A torn last line is left out.

    Raises `RunError` for a path that is none of these, a row of another form, and an answer that occurs
    twice.
    """
    with expecting("of the form of an evaluation", path, RunError):
        if path.is_dir():
            for name in (RESULTS, EVALPLUS_RESULTS):
                if (path / name).is_file():
                    return _of_file(path / name)
            if not (evaluations := read_evaluations(path)):
                raise RunError(
                    f"{path}: there is no evaluation in this folder.",
                    remedy=f"Expected {RESULTS}, {EVALPLUS_RESULTS}, or the evaluations of a run on "
                    "problems; runs on games are shown side by side by `greenward report RUN RUN`.",
                )
            return _of_record(path, evaluations[-1])
        if not path.is_file():
            raise RunError(f"{path}: there is no such file or folder.")
        return _of_file(path.resolve())  # a link that the user named may lead anywhere


def _of_file(path: Path) -> StoredEvaluation:
    if path.suffix == ".jsonl":
        settings = read_json(path.parent / SETTINGS) or {}
        rows = ((row.task_id, row.sample, _counts(row.success)) for row in read_rows(path))
        return StoredEvaluation(str(path.parent), settings.get("suite"), _by_task(path, rows), settings)
    record = read_json(path) or {}
    if isinstance(record.get("eval"), dict):
        rows = (
            # There is no status of added tests when only the original ones were run.
            (task_id, number, _counts({one["base_status"], one.get("plus_status") or "pass"} == {"pass"}))
            for task_id, answers in record["eval"].items()
            for number, one in enumerate(answers)
        )
        return StoredEvaluation(str(path), None, _by_task(path, rows))
    if isinstance(record.get("rows"), list):
        return _of_record(path, by_problem(record))
    raise RunError(
        f"{path}: neither an evaluation of ours nor one of EvalPlus's (no 'rows' and no 'eval').",
        remedy=f"Give a folder that `greenward eval` has written, or an {EVALPLUS_RESULTS}.",
    )


def _of_record(path: Path, record: Mapping[str, Any]) -> StoredEvaluation:
    rows = []
    for row in record["rows"]:
        if not counts_answers(row):
            raise RunError(f"{path}: this row does not count the answers to a problem: {str(row)[:80]}")
        lost = sum(one["status"] == Status.INFRASTRUCTURE.value for one in row["answers"])
        # Earlier versions did not count the lost ones; a record may keep fewer answers than it counts.
        answers = max(row["samples"], len(row["answers"]))
        rows.append((row["task_id"], 0, AnswerCounts(answers, row["passed"], lost)))
    told = ("samples", "temperature", *_PROMPT_SETTINGS)
    settings = {name: record[name] for name in told if name in record}
    return StoredEvaluation(str(path), record.get("suite"), _by_task(path, rows), settings)


def _counts(success: bool | None) -> AnswerCounts:
    return AnswerCounts(answers=1, passed=int(success is True), infrastructure=int(success is None))


def _by_task(path: Path, rows: Iterable[tuple[str, int, AnswerCounts]]) -> dict[str, AnswerCounts]:
    found: dict[str, AnswerCounts] = {}
    seen: set[tuple[str, int]] = set()
    for task_id, number, new in rows:
        if (task_id, number) in seen:
            raise RunError(f"{path}: answer {number} to {task_id} occurs twice.")
        seen.add((task_id, number))
        found[task_id] = AnswerCounts(*map(sum, zip(found.get(task_id, AnswerCounts()), new, strict=True)))
    return found


@dataclass(frozen=True)
class Selection:
    """The answers to one problem and the position of the best one, None where no answer can be chosen.

    `verdicts` are those of `by` "tests". `votes` are those of "votes": how many answers returned the same as
    each answer, itself included; 0 for one that did not return.
    """

    answers: tuple[str | Extracted | None, ...]
    best: int | None
    verdicts: tuple[Verdict, ...] = ()
    votes: tuple[int, ...] = ()

    @property
    def answer(self) -> str | Extracted | None:
        return None if self.best is None else self.answers[self.best]

    @property
    def verdict(self) -> Verdict | None:
        return self.verdicts[self.best] if self.best is not None and self.verdicts else None


def best_of_n(
    problem: Problem,
    answers: Sequence[str | Extracted | None],
    grader: Grader,
    *,
    by: Literal["tests", "votes"] = "tests",
) -> Selection:
    """Runs the answers (programs, or what was extracted of texts; None without one) and chooses the best.

    By "tests", as `best_by_tests` has it. By "votes": the answer whose results on the inputs of the problem
    most answers share (self-consistency, arXiv 2203.11171); expected values are not read, so that the tests
    may be those that the choice is measured on. Only answers that end all calls vote, an exception being a
    result like others.

    Raises `ConfigError` for another `by`, and `ProblemError` where nothing returned can be compared.
    """
    if isinstance(answers, str | Extracted):
        raise ConfigError("answers: expected a list, found one answer.", remedy="Put it into a list.")
    given = tuple(answers)
    if by == "tests":
        return best_by_tests(problem, given, grader.grade([(problem, code) for code in given]))
    if by == "votes":
        if not any(map(problem.tests_of, (Case, Assertion, StdioCase))):
            raise ProblemError(
                f"{problem.task_id}: answers vote with what they return, and its tests are programs.",
                remedy="Choose by tests.",
            )
        votes = _votes(problem, grader.run_on_inputs([(problem, code) for code in given]))
        best = max(range(len(votes)), key=lambda position: (votes[position], -position), default=None)
        return Selection(given, best if best is not None and votes[best] else None, votes=votes)
    raise ConfigError(f"by: expected 'tests' or 'votes', found {by!r}.")


def best_by_tests(
    problem: Problem, answers: Sequence[str | Extracted | None], verdicts: Sequence[Verdict]
) -> Selection:
    """The answer that passes, else the one that passes the largest share of the tests.

    Among equals the one that changes the fewest lines of a program that is to be repaired, then the shortest,
    then the first.
    """
    known = {problem.path: problem.buggy_code, **(problem.files or {})}
    judged = [
        position
        for position, verdict in enumerate(verdicts)
        if answers[position] is not None and verdict.status.family is not Family.INFRASTRUCTURE
    ]

    def quality(position: int) -> tuple[bool, float, int, int, int]:
        verdict, answer = verdicts[position], answers[position]
        found = answer if isinstance(answer, Extracted) else Extracted(answer)
        texts = {problem.path: found.code, **dict(found.files)} if problem.buggy_code else {}
        changed = sum(changed_lines(known.get(path), text) for path, text in texts.items())
        return verdict.passed, verdict.fraction_passed, -changed, -len(found.code or ""), -position

    return Selection(tuple(answers), max(judged, key=quality, default=None), verdicts=tuple(verdicts))


def _votes(problem: Problem, runs: Sequence[RunResult | None]) -> tuple[int, ...]:
    """For each answer how many returned the same; an answer joins the first that it agrees with."""
    groups: list[list[int]] = []
    for position, run in enumerate(runs):
        if run is None or run.outcome is not Outcome.COMPLETED:
            continue
        joined = next((group for group in groups if _agree(runs[group[0]], run, problem)), None)
        groups.append([position]) if joined is None else joined.append(position)
    counts = {position: len(group) for group in groups for position in group}
    return tuple(counts.get(position, 0) for position in range(len(runs)))


def _agree(one: RunResult | None, other: RunResult, problem: Problem) -> bool:
    """Whether a judge would take each of the results for the other one."""
    assert one is not None

    def same(a: Any, b: Any) -> bool:
        if problem.tests_of(StdioCase):
            return same_output(a, b)
        return matches(a, b, problem.comparison) or matches(b, a, problem.comparison)

    return len(one.results) == len(other.results) and all(
        (a.returned, a.plain, a.error_class) == (b.returned, b.plain, b.error_class)
        and (not a.returned or (a.plain and same(a.value, b.value)))
        for a, b in zip(one.results, other.results, strict=True)
    )


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
