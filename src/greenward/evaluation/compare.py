"""Compares two evaluations.

A comparison is paired by problem. Differences are B's rate less A's, as fractions. Stored evaluations are
read from the files of ours, old and new, and from EvalPlus's; their statuses are taken as they were written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from greenward.common.errors import RunError
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
from greenward.grading.verdict import Status
from greenward.runs.files import read_json
from greenward.runs.reading import by_problem, counts_answers, read_evaluations

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
    difference that these problems show with power 80 % at alpha 5 %, None if they are too few for any.
    `unpaired_a` and `unpaired_b` were evaluated on one side only; `too_few` have
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
    seen: defaultdict[str, set[int]] = defaultdict(set)
    for task_id, number, new in rows:
        if number in seen[task_id]:
            raise RunError(f"{path}: answer {number} to {task_id} occurs twice.")
        seen[task_id].add(number)
        found[task_id] = AnswerCounts(*map(sum, zip(found.get(task_id, AnswerCounts()), new, strict=True)))
    return found
