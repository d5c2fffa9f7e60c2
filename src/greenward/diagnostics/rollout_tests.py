"""Tests of the answers that a run kept: reward by length, one answer for everything, flaky grades."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.change_points import exactly
from greenward.diagnostics.findings import Gap
from greenward.diagnostics.readers.rollouts import Rollout, read_rollouts
from greenward.diagnostics.signal_tests import Result, Thresholds, not_made
from greenward.diagnostics.signals import RunSignals
from greenward.errors import DiagnosticsError
from greenward.reports.document import AnsweredTask, Answers, Fact, ShownAnswer
from greenward.reports.figures import value_text

Integers = npt.NDArray[np.int64]
LENGTH_CORRELATION = 0.3
DOMINANT_ANSWER = 0.5  # of the answers to different tasks
FLAKY = 0.05  # of the answers that were given and graded more than once
_FILES = 12  # that are read for what costs time
_ANSWERS = 256  # of each
_MOST_BYTES = 64 * 2**20  # that are read of all answers
_MOST_ANSWERS = 100_000  # of a file
_FEWEST = 60  # answers
_FLAKY_CASES = 3
_SHOWN_CHARACTERS = 1200

_NO_ROLLOUTS = Gap(
    "the answers themselves",
    "no answers were kept",
    "Keep them: greenward train does; TRL log_completions, verl trainer.rollout_data_dir.",
)


@lru_cache(maxsize=8)
def sampled_rollouts(files: tuple[tuple[int, Path], ...]) -> Mapping[int, tuple[Rollout, ...]]:
    """Step -> answers, of files that are spread evenly over the run."""
    chosen = files[:: max(1, -(-len(files) // _FILES))]
    found = {}
    for step, path in chosen:
        try:
            found[step] = tuple(read_rollouts(path, _ANSWERS))
        except (DiagnosticsError, OSError):
            continue
    return found


@dataclass(frozen=True)
class KeptAnswers:
    """The kept answers of a run, oldest first, by hashes of their task, their text and their status (0 where
    there is none).
    """

    steps_N: Integers
    tasks_N: Integers
    texts_N: Integers
    statuses_N: Integers


@lru_cache(maxsize=2)
def kept_answers(files: tuple[tuple[int, Path], ...]) -> KeptAnswers:
    """All answers of the files, read one by one; of more than 64 MiB, those of files spread evenly."""
    total = sum(path.stat().st_size for _, path in files if path.exists())
    columns = tuple(array("q") for _ in range(4))
    for step, path in files[:: max(1, -(-total // _MOST_BYTES))]:
        try:
            for one in read_rollouts(path, _MOST_ANSWERS):
                text = one.answer.strip()
                hashes = (hash(part) if part else 0 for part in (one.task, text, one.status))
                for column, value in zip(columns, (step, *hashes), strict=True):
                    column.append(value)
        except (DiagnosticsError, OSError):
            continue
    return KeptAnswers(*(np.array(column, np.int64) for column in columns))


def length_bias(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Rewards that follow the length of answers to one task that fare alike.

    Rewards and the logarithms of lengths are compared within groups of one task (and status, where known), so
    that neither the difficulty of tasks nor right and wrong play a part; p by Fisher's z.
    """
    sampled = sampled_rollouts(run.rollouts)
    rewards: list[float] = []
    lengths: list[float] = []
    groups = 0
    for answers in sampled.values():
        by_task = defaultdict(list)
        for answer in answers:
            if answer.reward is not None and answer.length and answer.length > 0:
                by_task[answer.task, answer.status].append((answer.reward, math.log(answer.length)))
        for members in by_task.values():
            if len(members) > 1:
                reward, length = (np.array(column) for column in zip(*members, strict=True))
                rewards += (reward - reward.mean()).tolist()
                lengths += (length - length.mean()).tolist()
                groups += 1
    free = len(rewards) - groups
    if free < _FEWEST:
        return not_made(_NO_ROLLOUTS) if not sampled else Result(made=False)
    x, y = np.array(lengths), np.array(rewards)
    if y.std() < 1e-12 or x.std() < 1e-12:
        return Result(numbers={"correlation": 0.0, "count": len(x)}, p_value=1.0)
    correlation = float((x * y).sum() / math.sqrt((x**2).sum() * (y**2).sum()))
    z = math.atanh(min(max(correlation, -0.999999), 0.999999)) * math.sqrt(max(free - 3, 1))
    direction = "longer" if correlation > 0 else "shorter"
    numbers = {"correlation": correlation, "count": len(x), "direction": direction}
    p_value = math.erfc(abs(z) / math.sqrt(2))
    return Result(
        abs(correlation) > LENGTH_CORRELATION, numbers, p_value=p_value, data={"length_bias": numbers}
    )


def dominant_answer(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """One text that answers most tasks, late in the run and more than at its beginning."""
    shares: list[tuple[int, float, str]] = []
    for step, answers in sampled_rollouts(run.rollouts).items():
        texts = {(one.task, one.answer.strip()) for one in answers if one.answer.strip()}
        tasks = {task for task, _ in texts}
        if len(tasks) >= 4:
            ((text, count),) = Counter(text for _, text in texts).most_common(1)
            shares.append((step, count / len(tasks), text))
    if len(shares) < 3:
        return Result(made=False)
    late = shares[-max(2, len(shares) // 4) :]
    share = float(np.mean([one[1] for one in late]))
    first = next((step for step, one, _ in shares if one > DOMINANT_ANSWER), shares[-1][0])
    numbers = {"share": share, "answer": " ".join(late[-1][2].split())[:60]}
    return Result(share > DOMINANT_ANSWER, numbers, onset=exactly(first))


def flaky_grades(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Equal answers to one task that were graded differently, at whatever step."""
    kept = kept_answers(run.rollouts)
    known = (kept.texts_N != 0) & (kept.statuses_N != 0)
    grades_N = np.stack((kept.tasks_N ^ kept.texts_N, kept.statuses_N), 1)[known]
    grades_N = grades_N[np.lexsort(grades_N.T[::-1])]
    starts = np.flatnonzero(np.append(True, (np.diff(grades_N, axis=0) != 0).any(axis=1))[: len(grades_N)])
    counts = np.diff(np.append(starts, len(grades_N)))  # of each grade of each answer
    firsts = np.flatnonzero(np.append(True, np.diff(grades_N[starts, 0]) != 0)[: len(starts)])
    repeated = len(grades_N) - len(firsts)
    if repeated < _FEWEST // 4:
        return Result(made=False)
    differ = len(grades_N) - int(np.maximum.reduceat(counts, firsts).sum())
    is_flaky = differ >= _FLAKY_CASES and differ > FLAKY * repeated
    numbers = {"differ": differ, "repeated": repeated, "compared": len(grades_N)}
    facts = (Fact("answers that were graded again", f"{repeated:,} of {len(grades_N):,}"),)
    return Result(is_flaky, numbers, facts=facts)


def answers_around(run: RunSignals, step: int) -> Answers | None:
    """The best and the worst answer kept before and after a step, as plain text."""
    before = [one for one in run.rollouts if one[0] < step][-1:]
    after = [one for one in run.rollouts if one[0] >= step][:1]
    tasks = []
    for label, found in (("before", before), ("from the onset on", after)):
        for at, path in found:
            try:
                answers = [one for one in read_rollouts(path, _ANSWERS) if one.answer]
            except (DiagnosticsError, OSError):
                continue
            ordered = sorted(answers, key=lambda one: -(one.reward or 0.0))
            for one in dict.fromkeys((*ordered[:1], *ordered[-1:])):
                reward = "" if one.reward is None else f"reward {value_text(one.reward, 'number')}"
                shown = ShownAnswer(one.answer[:_SHOWN_CHARACTERS], one.status or "kept", remark=reward)
                tasks.append(AnsweredTask(one.task[:80], "", (shown,), f"step {at}, {label}"))
    return Answers(tuple(tasks)) if tasks else None
