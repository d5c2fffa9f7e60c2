"""Evaluates sampled or given answers: judges each while others are sampled.

A caller (training, `greenward eval`, `greenward grade`) gives a store of samples and rows (`EvaluationRows`),
a source of samples and a grader. A sample that the store holds already is neither drawn nor judged again.
`figures` computes what the rows say.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from greenward.common.errors import RunError
from greenward.evaluation.samples import EvaluationRow, EvaluationRows, Sample
from greenward.grading.execution import Answer, ExecutionJudge, Graded
from greenward.grading.verdict import Family, Status, Verdict
from greenward.problems.problem import Problem, ProblemSet

DEFAULT_KS = (1, 5, 10, 100)


def usual_ks(most_samples: int) -> tuple[int, ...]:
    """The k of 1, 5, 10 and 100 for which there are enough samples; of 2 to 4 samples 1 and all of them."""
    return tuple(k for k in DEFAULT_KS if k <= most_samples) + (
        (most_samples,) if 1 < most_samples < 5 else ()
    )


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
    from greenward.evaluation.figures import summarise, with_labels, with_style  # load numpy

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
