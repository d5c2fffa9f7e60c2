"""Evaluates sampled or given answers: judges each while others are sampled, and computes the figures.

A caller (training, `greenward eval`, `greenward grade`) gives a store of samples and rows (`EvaluationRows`),
a source of samples and a grader. A sample that the store holds already is neither drawn nor judged again.
Figures group rows by problem; arrays have the suffix _P: an entry for each problem. An answer lost by the
infrastructure has not passed: it counts in every denominator, and in no numerator but those of the rates
`infrastructure` and `truncated`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np

from greenward.common.errors import RunError
from greenward.common.statistics import Estimate, pass_at_k, rate
from greenward.evaluation.samples import EvaluationRow, EvaluationRows, Sample
from greenward.grading.answers import explained
from greenward.grading.execution import Answer, ExecutionJudge, Graded
from greenward.grading.style import deviations, score_of
from greenward.grading.verdict import EDIT_ERRORS, Family, Status, Verdict
from greenward.problems.problem import Problem, ProblemSet
from greenward.sandbox.isolation import Layer, level_of

DEFAULT_KS = (1, 5, 10, 100)
_NOT_COMPILED = frozenset({Status.SYNTAX_ERROR, Status.NO_CODE, *EDIT_ERRORS})
_NEVER_RAN = frozenset({Status.NO_CODE, Status.INFRASTRUCTURE, *EDIT_ERRORS})
_RATES: dict[str, Callable[[EvaluationRow], float]] = {
    "compile": lambda row: row.success is not None and row.status not in _NOT_COMPILED,
    "tests_passed": lambda row: row.fraction_passed,
    "timeout": lambda row: row.status is Status.TIMEOUT,
    "cheating": lambda row: row.status is Status.CHEATING,
    "extraction_failure": lambda row: row.code_sha256 is None and row.success is not None,
    "truncated": lambda row: row.truncated,
    "infrastructure": lambda row: row.success is None,
}

Groups = Sequence[Sequence[EvaluationRow]]


def summarise(rows: Iterable[EvaluationRow], ks: Sequence[int], *, problems: int) -> dict[str, Any]:
    """Metrics, rates and counts of an evaluation of a suite of so many `problems`.

    A pass@k that no problem has enough answers for is missing; `problems` beside each says over how
    many it is. `base_pass@k` counts the original tests of a suite with added ones.
    """
    rows = list(rows)
    by_problem: dict[str, list[EvaluationRow]] = {}
    for row in rows:
        by_problem.setdefault(row.task_id, []).append(row)
    groups = list(by_problem.values())
    metrics = _metrics(groups, ks, "", _passed)
    if any(row.base_passed is not None for row in rows):
        metrics |= _metrics(groups, ks, "base_", lambda row: row.base_passed is True)
    return {
        "problems": problems,
        "answered": len(groups),
        "answers": len(rows),
        "most_answers": max(map(len, groups), default=0),
        "problems_passed": sum(any(row.success for row in group) for group in groups),
        "metrics": metrics,
        "rates": {name: estimate.to_json() for name, estimate in rates_of(groups).items()},
        "statuses": _counts(row.status.value for row in rows),
        "errors": _counts(row.error_class for row in rows if not row.success),
        "extraction_failures": _counts(row.extraction_failure for row in rows),
        "extraction": _counts(explained(row.extraction) for row in rows),
        "tags": _by_tag(groups),
        "isolation": _isolation_of(rows),
    }


def usual_ks(most_samples: int) -> tuple[int, ...]:
    """The k of 1, 5, 10 and 100 for which there are enough samples; of 2 to 4 samples 1 and all of them."""
    return tuple(k for k in DEFAULT_KS if k <= most_samples) + (
        (most_samples,) if 1 < most_samples < 5 else ()
    )


def _passed(row: EvaluationRow) -> bool:
    return row.success is True


def mean_pass_at_k(
    groups: Groups, k: int, succeeds: Callable[[EvaluationRow], bool] = _passed
) -> tuple[Estimate, int] | None:
    """Mean pass@k over the problems with at least k answers, and how many these are.

    None when there is no such problem: pass@k is undefined then.
    """
    estimates = (pass_at_k(len(group), sum(map(succeeds, group)), k) for group in groups)
    values = [value for value in estimates if value is not None]
    return (rate(np.array(values)), len(values)) if values else None


def rates_of(groups: Groups) -> dict[str, Estimate]:
    """Rates over all answers; none where there is no answer.

    `compile` (the program is Python), `tests_passed` (mean share of the tests), `timeout`, `cheating`,
    `extraction_failure` (no program in the text), `truncated`, `infrastructure` (lost by us).
    """
    if not groups:
        return {}
    answers_P = np.array([len(group) for group in groups], dtype=float)
    return {
        name: rate(np.array([sum(map(value, group)) for group in groups], dtype=float), answers_P)
        for name, value in _RATES.items()
    }


def _metrics(
    groups: Groups, ks: Sequence[int], prefix: str, succeeds: Callable[[EvaluationRow], bool]
) -> dict[str, dict[str, float]]:
    found = {f"{prefix}pass@{k}": mean_pass_at_k(groups, k, succeeds) for k in ks}
    return {name: {**one[0].to_json(), "problems": one[1]} for name, one in found.items() if one}


def _by_tag(groups: Groups) -> dict[str, dict[str, Any]]:
    """pass@1 of the problems with each tag."""
    tagged: dict[str, list[Sequence[EvaluationRow]]] = {}
    for group in groups:
        for tag in group[0].tags:
            tagged.setdefault(tag, []).append(group)
    estimates = ((tag, mean_pass_at_k(tagged[tag], 1)) for tag in sorted(tagged))
    return {tag: {"problems": one[1], "pass@1": one[0].to_json()} for tag, one in estimates if one}


def _counts(values: Iterable[str | None]) -> dict[str, int]:
    return dict(Counter(value for value in values if value).most_common())


def _isolation_of(rows: Collection[EvaluationRow]) -> dict[str, Any] | None:
    """The layers under which every answer ran, and their level; None when none ran."""
    ran = {row.layers for row in rows if row.status not in _NEVER_RAN}
    if not ran:
        return None
    shared = [layer for layer in Layer if all(layer.value in layers for layers in ran)]
    return {"level": level_of(shared).value, "layers": [layer.value for layer in shared]}


def with_labels(figures: dict[str, Any], samples: Iterable[Sample]) -> dict[str, Any]:
    """The figures of an evaluation with those that labels add, if its problems have labels."""
    labelled = [one for one in samples if one.problem.label is not None and not one.lost]
    if not labelled:
        return figures
    label: Any = labelled[0].problem.label
    added = label.figures([(one.problem, one.code or "") for one in labelled])
    rates = {name: one for name, one in figures["rates"].items() if name in ("truncated", "infrastructure")}
    nothing_ran = {"isolation": None, "rates": rates}
    return figures | nothing_ran | added | {"metrics": figures["metrics"] | added["metrics"]}


def with_style(
    figures: dict[str, Any], rows: Sequence[EvaluationRow], samples: Sequence[Sample]
) -> dict[str, Any]:
    """The figures with the style of right answers that are functions of a file (`grading.style`).

    Among the `metrics`, `contextual_style` is the mean of `style.score_of` over them; `style` counts them,
    and of them those that keep to each rule of those that apply.
    """
    scores: dict[str, list[float]] = {}
    kept: dict[str, list[bool]] = {}
    for row, sample in zip(rows, samples, strict=True):
        found = deviations(sample.problem, sample.code or "") if row.success else None
        if found is not None:
            scores.setdefault(row.task_id, []).append(score_of(found))
            for rule, count in found.items():
                kept.setdefault(rule, []).append(count == 0)
    if not scores:
        return figures
    sums, counts = np.array([[sum(one), len(one)] for one in scores.values()]).T
    metric = {"contextual_style": {**rate(sums, counts).to_json(), "problems": len(scores)}}
    rules = {rule: {"answers": len(one), "kept": sum(one)} for rule, one in sorted(kept.items())}
    style = {"answers": int(counts.sum()), "rules": rules}
    return figures | {"style": style, "metrics": figures["metrics"] | metric}


OnSamples = Callable[[list[Sample]], None]
_MOST_VERDICTS = 50_000


class VerdictMemory:
    """Keeps verdicts on answers to the same problem objects, by one set of limits: equal answers run once.

    A verdict of time, memory or another limit may be caused by the machine: it is not kept, and neither is
    one of the infrastructure. An answer whose verdict depends on chance keeps its first one
    (`ExecutionJudge.flaky` runs answers anew). At most 50,000 verdicts are kept.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, Any], tuple[Problem, Verdict]] = {}

    def grade_stream(self, grader: ExecutionJudge, answers: Sequence[Answer]) -> Iterator[Graded]:
        """As `ExecutionJudge.grade_stream`."""
        new: list[int] = []
        for index, (problem, answer) in enumerate(answers):
            if (known := self._known.get((id(problem), answer))) is None:
                new.append(index)
            else:
                yield index, known[1]
        stream = grader.grade_stream([answers[index] for index in new])
        with closing(stream) as verdicts:  # type: ignore[type-var]
            for position, verdict in verdicts:
                problem, answer = answers[new[position]]
                if verdict.status.family is Family.JUDGED:
                    if len(self._known) >= _MOST_VERDICTS:
                        self._known.clear()
                    self._known[id(problem), answer] = problem, verdict  # holding it keeps its id its own
                yield new[position], verdict


@dataclass
class Seconds:
    """Wall time spent so far. Sampling and grading overlap."""

    sampling: float = 0.0
    grading: float = 0.0


class Source(Protocol):
    """Where the answers of an evaluation come from: a policy, a server, a file, a Q-network."""

    def draw(
        self, store: EvaluationRows, problems: ProblemSet, seconds: Seconds, on_samples: OnSamples
    ) -> None:
        """Adds to `store` the answers that it does not hold yet, and gives them to `on_samples` as they come.

        Those that were lost are given and not added.
        """


def evaluate(
    source: Source,
    problems: ProblemSet,
    store: EvaluationRows,
    grader: ExecutionJudge,
    ks: Sequence[int] = (),
    *,
    seconds: Seconds,
    on_row: Callable[[EvaluationRow], None] = lambda _: None,
    memory: VerdictMemory | None = None,
) -> dict[str, Any]:
    """The figures of the answers of `source` to the problems, judged into `store`.

    What `store` holds already is neither asked nor judged again. Without `ks`, pass@k is for the usual k.
    """
    judge(store, partial(source.draw, store, problems, seconds), grader, seconds, on_row, memory=memory)
    places = {problem.task_id: place for place, problem in enumerate(problems)}
    rows = sorted(store.rows.values(), key=lambda row: (places[row.task_id], row.sample))
    most = max(Counter(row.task_id for row in rows).values(), default=0)
    figures = summarise(rows, ks or usual_ks(most), problems=len(problems))
    samples = [store.samples[row.key] for row in rows]
    return with_style(with_labels(figures, samples), rows, samples)


def judge(
    store: EvaluationRows,
    draw: Callable[[OnSamples], None],
    grader: ExecutionJudge,
    seconds: Seconds,
    on_row: Callable[[EvaluationRow], None] = lambda _: None,
    *,
    memory: VerdictMemory | None = None,
) -> None:
    """Judge the samples of `store` that have no row yet, and those that `draw` gives to its argument.

    They are graded in a thread while the next are drawn. A row is added as soon as its verdict exists, always
    by one thread; a lost sample becomes a row of status `INFRASTRUCTURE`. When `draw` ends early, by an error
    or Ctrl-C, grading ends at its next verdict.
    """
    leaving, memory = threading.Event(), memory or VerdictMemory()
    arrived: SimpleQueue[list[Sample] | None] = SimpleQueue()  # None is the end

    def grade(samples: list[Sample]) -> None:
        began = time.perf_counter()
        for sample in (sample for sample in samples if sample.lost):
            store.samples[sample.key] = sample
            row = EvaluationRow.of(sample, Verdict(Status.INFRASTRUCTURE, error_message=sample.lost))
            store.add_row(row)
            on_row(row)
        judged = [sample for sample in samples if not sample.lost]
        stream = memory.grade_stream(grader, [(one.problem, one.extracted.answer) for one in judged])
        with closing(stream) as verdicts:  # type: ignore[type-var]
            for index, verdict in verdicts:
                row = EvaluationRow.of(judged[index], verdict)
                store.add_row(row)
                on_row(row)
                if leaving.is_set():
                    return
        seconds.grading += time.perf_counter() - began

    def grade_all() -> None:
        while not leaving.is_set():
            parts = [arrived.get()]
            with suppress(Empty):
                while True:
                    parts.append(arrived.get_nowait())
            grade([sample for part in parts for sample in part or ()])
            if None in parts:
                return

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="grading") as background:
        grading = background.submit(grade_all)

        def hand_over(samples: list[Sample]) -> None:
            if grading.done():
                grading.result()  # raises what ended it
            arrived.put(samples)

        try:
            hand_over([sample for key, sample in store.samples.items() if key not in store.rows])
            draw(hand_over)
            arrived.put(None)
            grading.result()
        except BaseException:
            leaving.set()
            arrived.put(None)
            raise


def add_given(found: EvaluationRows, samples: Sequence[Sample]) -> list[Sample]:
    """Adds answers from elsewhere to `found`, and gives those that are new.

    Raises `RunError` when it holds another answer under the same number.
    """
    for sample in samples:
        known = found.samples.get(sample.key)
        if known is not None and known.code != sample.code:
            raise RunError(
                f"{found.place} holds another answer {sample.number} to {sample.problem.task_id}.",
                remedy="These are other samples than were graded there before: choose another --out.",
            )
    return found.add_new(samples)


def flaky_samples(samples: Iterable[Sample], grader: ExecutionJudge, repeats: int) -> list[dict[str, object]]:
    """The samples whose verdict differs from run to run, each judged `repeats` times, as plain data."""
    judged = list(samples)
    return [
        {
            "task_id": judged[flaky.index].problem.task_id,
            "sample": judged[flaky.index].number,
            "statuses": [verdict.status.value for verdict in flaky.verdicts],
        }
        for flaky in grader.flaky([(sample.problem, sample.extracted.answer) for sample in judged], repeats)
    ]
