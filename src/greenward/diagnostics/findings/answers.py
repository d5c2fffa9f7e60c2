"""Findings of answers: their quality and how they fail, over training, and those that a run kept."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.change_points import exactly
from greenward.diagnostics.finding import (
    WORSE,
    Finding,
    Gap,
    Result,
    SignalChart,
    Thresholds,
    Topic,
    Watched,
    not_made,
)
from greenward.diagnostics.readers.answers import Rollout, read_rollouts
from greenward.diagnostics.signal_tests import find_signal_change, lasting_change, late_mean
from greenward.diagnostics.signals import LENGTH, PASS_RATE, UNIQUE, RunSignals
from greenward.reports.document import AnsweredTask, Answers, Fact, ShownAnswer, value_text

QUALITY = (PASS_RATE, "reward/code_score", "reward/correctness", "reward/readability")
CHEATS = "status/cheating"
# Ways to fail, except failing tests: those are what training is for.
TIMEOUTS = "status/timeout"
_USUAL = frozenset({"status/passed", "status/failed", "status/drawn", CHEATS})
Integers = npt.NDArray[np.int64]
LENGTH_CORRELATION = 0.3
FEW_TOKENS = 8  # by which answers may grow without any cost
DOMINANT_SHARE = 0.5  # of the answers to different tasks
_POOLED_TASKS = 8  # that are looked at together; fewer where few answers were kept
_FEWEST_WINDOWS = 6
_FEWEST_TASKS = 4  # different ones
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


QUALITY_DROP = Finding(
    "quality-drop",
    "A measure of the answers' quality fell and did not recover",
    lasting_change(falls=True),
    QUALITY,
    measured="{signal} went from {before:.3g} to {after:.3g} from step {onset} on.",
    actions=(
        "Go on from the last checkpoint before the onset.",
        "Give the measure a weight in rewards, or a larger one.",
    ),
    confirm="The answers before and after the onset show the difference.",
    selection="step={onset}-&passed=0&sort=reward",
    limit="pass rate, `code_score`, `correctness` or `readability` falls and does not recover",
)


def failures(run: RunSignals) -> list[str]:
    """The statuses of answers that fail otherwise than by their tests, the most frequent first.

    A game that one of the roles won, or that is drawn, is no failure.
    """
    names = sorted(
        name
        for name in run.values
        if name.startswith("status/") and name not in _USUAL and not name.endswith("_won")
    )
    means = {name: float(values.mean()) for name in names if len(values := run.series(name)[1])}
    return sorted(names, key=lambda name: -means.get(name, 0.0))


def worse_answers(run: RunSignals) -> list[str]:
    """The shares of answers that should not rise, but for those that are cut off: a finding of their own."""
    logged = any(name.startswith("status/") for name in run.values)
    return failures(run) if logged else ["status"]


FAILING_ANSWERS_RISE = Finding(
    "failing-answers-rise",
    "One way to fail became more frequent and stayed so",
    lasting_change(rise=0.05),
    worse_answers,
    measured="{signal} went from {before:.3g} to {after:.3g} from step {onset} on.",
    brief="{signal} from {before:.0%} to {after:.0%}",
    actions=(
        "Read answers with this status in rollouts/ after the onset.",
        "Go on from the last checkpoint before the onset.",
    ),
    confirm="Graded again on an idle machine, the answers have the same status.",
    selection="step={onset}-&status={name}",
    limit="syntax errors, runtime errors … rise by over 5 % of the answers and stay so for 12 steps",
    explains=WORSE,
    live=(Watched("status/syntax_error", "difference", 0.15),),
)


SANDBOX_TIMEOUTS = Finding(
    "sandbox-timeouts",
    "More answers run out of time, and go on doing so",
    lasting_change(rise=0.05),
    (TIMEOUTS,),
    optional=True,
    measured="{signal} went from {before:.3g} to {after:.3g} from step {onset} on.",
    brief="Timeouts from {before:.0%} to {after:.0%}",
    actions=(
        "See whether the machine was loaded (time/grading, perf/*) before blaming the policy: lower "
        "sandbox.workers to the number of free cores, or raise the time limit.",
        "If it was not: read answers with this status in rollouts/ after the onset.",
    ),
    confirm="Graded again on an idle machine, the answers pass or fail within the limit.",
    selection="step={onset}-&status=timeout",
    limit="timeouts rise by over 5 % of the answers and stay so for 12 steps",
    explains=(*WORSE, "failing-answers-rise", "throughput-drop", "flaky-grades", "constant-reward"),
    live=(Watched("status/timeout", "difference", 0.1),),
)


LENGTH_COLLAPSE = Finding(
    "length-collapse",
    "Answers became short without becoming better",
    lasting_change(below=0.4, if_passing_more="no finding"),
    (LENGTH,),
    optional=True,
    measured="{signal} went from {before:.3g} to {after:.3g} from step {onset} on.",
    brief="Length of answers from {before:.3g} to {after:.3g}",
    actions=(
        "Go on from the last checkpoint before the onset with a lower training.learning_rate.",
        "In self-play, compare algorithm.advantage=role_baseline: without it reasoning disappears.",
        "Pay for nothing that an empty answer gets, too: a term for brevity or for format alone.",
    ),
    confirm="The newest answers are empty or end at once.",
    selection="step={onset}-&sort=length",
    limit="answers become shorter than 0.4 × and the pass rate does not rise meanwhile",
    explains=(*WORSE, "throughput-drop", "failing-answers-rise", "diversity-loss"),
    live=(Watched(LENGTH, "ratio", 0.4),),
    views=("drift",),
)


def length_grows(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Answers that become longer by what costs something; a few tokens more are nothing."""
    result = lasting_change(above=1.8, if_passing_more="no finding")(run, signal, limits)
    change = result.change
    return replace(
        result, found=result.found and change is not None and change.after - change.before >= FEW_TOKENS
    )


LENGTH_GROWTH = Finding(
    "length-growth",
    "Answers become longer without becoming better",
    length_grows,
    (LENGTH,),
    measured="{signal} went from {before:.3g} to {after:.3g} from step {onset} on.",
    actions=(
        "Use a loss that does not favour length (algorithm.loss dr_grpo or dapo).",
        "Set algorithm.overlong.penalty.",
    ),
    confirm="The longest of the newest answers repeat themselves.",
    selection="step={onset}-&sort=-length",
    limit="answers become 1.8 × as long, by 8 tokens or more, and the pass rate does not rise meanwhile",
    explains=("truncated-answers", "throughput-drop", "sandbox-timeouts"),
    live=(Watched(LENGTH, "ratio", 2.0),),
    views=("drift", "length-bias"),
)


DIVERSITY_LOSS = Finding(
    "diversity-loss",
    "Answers to one problem became copies of each other",
    lasting_change(below=0.5, if_passing_more="info", ruins=0.3),
    (UNIQUE,),
    measured="{signal} went from {before:.3g} to {after:.3g} from step {onset} on.",
    actions=(
        "Raise sampling.temperature or algorithm.clip_high.",
        "Stop earlier, if pass@k for k > 1 matters.",
    ),
    confirm="pass@8 falls towards pass@1 in the evaluations.",
    selection="step={onset}-&sort=-times",
    limit="the share of distinct answers halves",
    weight="warning, info while the pass rate rises",
    explains=("dead-groups", "group-signal-fades", "gradient-vanished", "dominant-answer"),
    by_success=True,
    live=(Watched("completion/unique", "ratio", 0.4),),
)


def cheating_late(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Answers that try to fool the tests, late in the run, dated by where they became many."""
    found = late_mean(above=0.01)(run, signal, limits)
    if not found.found:
        return found
    change = find_signal_change(run, signal)
    grew = change is not None and change.p_value <= limits.alpha and change.after > change.before
    steps, values = run.series(signal)
    return replace(found, onset=change.onset if change and grew else exactly(steps[values > 0][0]))


CHEATING = Finding(
    "cheating",
    "Answers try to fool the tests",
    cheating_late,
    (CHEATS,),
    measured="In the last quarter of the run {late:.1%} of the answers try to fool the tests.",
    brief="{late:.0%} of the answers try to fool the tests",
    actions=(
        "Read these answers in rollouts/; the grader gives them no reward.",
        "Strengthen the tests of the problems where they occur; greenward audit helps.",
        "Keep sandbox.require at the strictest level that the machine has.",
    ),
    confirm="Their share falls when the problems they exploit leave the training set.",
    selection="step={onset}-&status=cheating",
    limit="over 1 % of the answers in the last quarter",
    explains=(
        *WORSE,
        *("reward-hacking", "train-held-out-gap", "failing-answers-rise", "diversity-loss"),
        "poor-calibration",
    ),
    live=(Watched("status/cheating", "difference", 0.05, "critical"),),
)


ANSWERS = Topic(
    "answers",
    "Answers in training",
    (
        QUALITY_DROP,
        FAILING_ANSWERS_RISE,
        SANDBOX_TIMEOUTS,
        LENGTH_COLLAPSE,
        LENGTH_GROWTH,
        DIVERSITY_LOSS,
        CHEATING,
    ),
    (
        SignalChart("Quality of the answers in training", QUALITY, "share"),
        SignalChart("Answer length (tokens)", (LENGTH,)),
        SignalChart("Distinct answers", (UNIQUE,), "share"),
        SignalChart("How answers fail", failures, "share"),
    ),
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
                hashes = (hash(part) if part else 0 for part in (one.task, one.answer.strip(), one.status))
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
    direction, paid_first = ("longer", "sort=-length") if correlation > 0 else ("shorter", "sort=length")
    numbers = {"correlation": correlation, "count": len(x), "direction": direction}
    return Result(
        abs(correlation) > LENGTH_CORRELATION,
        numbers,
        selection=paid_first,
        p_value=math.erfc(abs(z) / math.sqrt(2)),
        data={"length_bias": numbers},
    )


LENGTH_BIAS = Finding(
    "length-bias",
    "The reward follows the length of answers",
    length_bias,
    measured=(
        "Among answers to one task that fare alike, {direction} ones earn more: a correlation of "
        "{correlation:+.2f} over {count} answers."
    ),
    brief="Reward and length correlate by {correlation:+.2f}",
    actions=(
        "Look for a term that counts characters, lines or steps, or a judge that prefers length.",
        "Divide by length, or pay for it only where the answer passes.",
    ),
    confirm="The same answers with padding earn more.",
    selection="sort=-length",
    limit=(
        "reward and log length of answers to one task that fare alike correlate by more than 0.3 (Fisher's z)"
    ),
    explains=("length-growth", "truncated-answers"),
    views=("drift", "length-bias"),
)


def dominant_answer(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """One text that answers most tasks, late in the run. Steps are pooled until they hold enough tasks."""
    windows = list(_commonest_texts(kept_answers(run.rollouts)))
    if len(windows) < 3:
        return Result(made=False)
    late = windows[-max(2, len(windows) // 4) :]
    share = sum(one.given for one in late) / sum(one.tasks for one in late)
    dominated = [2 * one.given > one.tasks for one in windows]
    frequent = (k for k, found in enumerate(dominated) if found and np.mean(dominated[k : k + 3]) > 0.5)
    first = windows[next(frequent, -1)]
    numbers = {"share": share, "answer": _shown(run, late[-1])}
    return Result(share > DOMINANT_SHARE, numbers, onset=exactly(first.onset))


@dataclass(frozen=True)
class _Window:
    """Neighbouring steps whose answers are looked at together: how many tasks they were given (one counts at
    each step), to how many of them the commonest text (its hash) was an answer, and the first step at which
    its share is as large.
    """

    tasks: int
    given: int
    text: int
    onset: int


def _commonest_texts(kept: KeptAnswers) -> Iterator[_Window]:
    """The windows of a run; without those of fewer than 4 different tasks."""
    rows = zip(kept.steps_N.tolist(), kept.tasks_N.tolist(), kept.texts_N.tolist(), strict=True)
    all_tasks = len(set(zip(kept.steps_N.tolist(), kept.tasks_N.tolist(), strict=True)))
    enough = max(_FEWEST_TASKS, min(_POOLED_TASKS, all_tasks // _FEWEST_WINDOWS))
    pairs: set[tuple[int, int, int]] = set()  # (step, task, text)
    for _step, of_step in groupby(rows, key=itemgetter(0)):
        pairs |= {row for row in of_step if row[2]}
        tasks = {(at, task) for at, task, _ in pairs}
        if len(tasks) < enough:
            continue
        if len({task for _, task in tasks}) >= _FEWEST_TASKS:
            ((text, given),) = Counter(text for *_, text in pairs).most_common(1)
            given_at = Counter(at for at, _, one in pairs if one == text)
            tasks_at = Counter(at for at, _ in tasks)
            onset = min(at for at, count in given_at.items() if count / tasks_at[at] >= given / len(tasks))
            yield _Window(len(tasks), given, text, onset)
        pairs = set()


def _shown(run: RunSignals, window: _Window) -> str:
    """The beginning of the commonest text of a window, in one line."""
    files = (path for step, path in run.rollouts if step == window.onset)
    texts = (one.answer.strip() for path in files for one in read_rollouts(path, _MOST_ANSWERS))
    return " ".join(next((text for text in texts if hash(text) == window.text), "").split())[:60]


DOMINANT_ANSWER = Finding(
    "dominant-answer",
    "One answer is given to most tasks",
    dominant_answer,
    severity="critical",
    measured="{share:.0%} of the tasks of the last steps were answered by the same text: {answer!r}",
    brief="One answer to {share:.0%} of the tasks",
    actions=(
        "Go on from the last checkpoint before the onset with a higher algorithm.clip_high or "
        "sampling.temperature.",
        "See what the text earns: a partial reward for nothing is easily found.",
    ),
    confirm="greenward rollouts shows it under most problems.",
    selection="step={onset}-&sort=-times",
    limit=(
        "one text answers over half of the tasks in the last quarter of the kept steps; steps of fewer than"
        " 8 tasks are pooled"
    ),
    explains=(*WORSE, "diversity-loss"),
)


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


FLAKY_GRADES = Finding(
    "flaky-grades",
    "Equal answers are graded differently",
    flaky_grades,
    measured=(
        "{differ:,} of {repeated:,} answers that had been graded before got another grade; {compared:,} "
        "answers were compared."
    ),
    brief="{differ:,} equal answers graded differently",
    actions=(
        "Grade one answer a hundred times: greenward grade. Tests that depend on time, order or chance are "
        "to be repaired or left out.",
        "On a loaded machine, lower sandbox.workers or raise the time limit.",
    ),
    confirm="The same answers are graded alike on an idle machine.",
    selection="mixed=1&sort=-times",
    limit=(
        "over 5 % of the answers that were given twice, at whatever step, got two grades, 3 or more; all "
        "kept answers are compared, of more than 64 MiB those of files spread evenly"
    ),
)


ROLLOUTS = Topic("rollouts", "Kept answers", (LENGTH_BIAS, DOMINANT_ANSWER, FLAKY_GRADES))


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
