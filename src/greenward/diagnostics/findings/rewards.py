"""Findings of rewards: whether they vary, which term drives them, how many groups teach, what is learned."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from greenward.common.statistics import Z_95, median, medians
from greenward.diagnostics.change_points import MIN_POINTS, exactly, median_deviation
from greenward.diagnostics.finding import (
    UPDATES,
    WORSE,
    Finding,
    Gap,
    Result,
    SignalChart,
    Thresholds,
    Topic,
    Watched,
    gap_of,
    not_made,
)
from greenward.diagnostics.signal_tests import (
    HUGE,
    Z_99,
    difference_noise,
    find_signal_change,
    first_frequent,
    lasting_change,
    late_part,
    median_of_part,
    student_quantile,
    surely_above,
)
from greenward.diagnostics.signals import (
    GREEDY_PASS_RATE,
    GROUPS,
    HELD_OUT,
    PASS_RATE,
    REWARD,
    TITLES,
    WITHOUT_SIGNAL,
    Floats,
    RunSignals,
)
from greenward.reports.document import Severity, Table

DOMINANT = 0.5  # share of the variance over steps
_UNEXPLAINED = 0.1  # of the variance of the mean reward, by the weighted terms
_BALANCE = "balance of the reward terms"
DEAD = 0.75  # share of groups without signal (DAPO, arXiv 2503.14476: they only cost)
# What is said of rewards beside the terms, and terms that are combined of others.
_NO_TERMS = frozenset({"mean", "std", "min", "max", "code_score"})
# Words in the names of terms that grade what an answer does, and of those that grade something beside it.
_OF_TESTS = re.compile(
    r"(?<![a-z])(tests?|correct(ness)?|acc(uracy)?|pass(ed)?|code|execution|verifier|exact|solved)(?![a-z])"
)
_BESIDE_TESTS = re.compile(
    "format|length|style|judge|readab|count|language|lint|penalty|bonus|similarity|quality|repetition"
)
SMALL_SHARE = 0.02  # of the spread of rewards: a fall of a term by less is not said
_LATE = 10  # steps with one reward for all answers, at least
SCALE_JUMP = 1.6  # of the spread of the rewards
LEARNED = 0.05  # of a rate, or 15 % of what is missing to 1; or a tenth of the spread of the rewards
_ROOM = 0.15
_DRAWDOWN = 2.24  # the 95 % quantile of the largest fall of Brownian motion over unit time (Lévy's theorem)
# Points of Elo, by which the former self is beaten in 55 % of the games.
_RATING_LEARNED = 400 * math.log10((0.5 + LEARNED) / (0.5 - LEARNED))
_SPREAD_LEARNED = 0.1
# Of the spread of an agent's episodes. Agents that learned gained 1.7 to 2.5 of it in public logs, once 0.8.
_SPREAD_OF_EPISODES_LEARNED, _SPREAD_OF_EPISODES_SEEN = 0.5, 0.8
_ANSWERS = 32  # whose mean is the reward of a row, where the log does not tell
_RANGE_TO_SPREAD = 0.25
_RANGE_SEEN = 0.1
_NOISE_SEEN = 0.7  # of the noise of a row: of a hundred rows or more a reader sees less than that of one
_SPREAD_SEEN = 0.3  # of the spread of single answers: healthy public runs gained 0.31 of it or more
_LEAST_FREE = 0.2  # of the variance: around their mean, values that resemble each other have less of it
LEARNING_FROM = 100  # steps; a shorter run may not have begun to learn
SATURATED = 0.9
_AROUND = 15  # steps on both sides of a jump
_FEW = 5
FEWEST_ROWS = 8  # rows
FEW_FACTS = 3  # rows: what is exactly so needs no statistics
_LEVELS = 6  # parts of a run
LOST_ERRORS, LOST_SHARE = 3.5, 0.5  # standard errors, and of what was gained
RIPPLE = 0.2  # of the range of an agent's reward
Z_90 = 1.6448536269514722  # the standard normal's 0.95 quantile


def reward_terms(run: RunSignals) -> list[str]:
    """The terms of the reward that can be tested."""
    names = sorted(s for s in run.values if s.startswith("reward/") and s[7:] not in _NO_TERMS)
    return [name for name in names if not run.too_short(name)]


def tested_rewards(run: RunSignals) -> list[str]:
    """The reward, its terms and the code score; a term that is the whole reward is the same signal."""
    code_score = ["reward/code_score"] if not run.too_short("reward/code_score") else []
    others = (*reward_terms(run), *code_score)
    return [REWARD, *(name for name in others if not _is_whole_reward(run, name))]


def _is_whole_reward(run: RunSignals, term: str) -> bool:
    """Whether the reward is the term, times a weight."""
    total, values = run.series(REWARD)[1], run.series(term)[1]
    if len(total) != len(values) or not values.any() or max(np.abs(values).max(), np.abs(total).max()) > HUGE:
        return False
    weight = float(total @ values) / float(values @ values)
    return bool(np.allclose(weight * values, total, atol=1e-6 * np.abs(total).max()))


def constant_reward(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """One mean at all steps, or one reward for all answers of each step late in the run."""
    steps, values = run.series(signal)
    if np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())):
        began = len(steps) > 1 and steps[0] <= 2 * (steps[1] - steps[0])
        is_best = values[0] > 0 or bool(values[0] and not began)  # perhaps, in its first row or before
        if run.family.kind == "agent" and len(values) < MIN_POINTS and is_best:
            return Result()
        text = f"{signal} is {values[0]:.4g} at each of {len(values)} steps."
        return Result(True, {"text": text}, onset=exactly(steps[0]))
    if (froze := _froze(values)) is not None:
        text = (
            f"{signal} is exactly {values[-1]:.4g} at each of the last {len(values) - froze} steps, and was "
            f"{max(part.mean() for part in np.array_split(values[:froze], _LEVELS)):.4g} before at best."
        )
        return Result(True, {"text": text}, onset=exactly(steps[froze]))
    spread_steps, spread = run.series("reward/std")
    if len(spread) < MIN_POINTS or _answers_alone(run) or spread[-max(_LATE, len(spread) // 4) :].any():
        return Result()
    text = "reward/std is 0 throughout the last quarter: the answers to a prompt get equal rewards."
    since = spread_steps[np.flatnonzero(spread)[-1] + 1 :] if spread.any() else steps
    return Result(True, {"text": text}, onset=exactly(since[0]))


def _froze(values: Floats) -> int | None:
    """The place from which on the reward is exactly one value, for a third of 30 values or more, below the
    best that it was before. What has reached its best may stay there.
    """
    place = int(np.flatnonzero(values != values[-1]).max(initial=-1)) + 1
    if len(values) < MIN_POINTS or len(values) - place < len(values) / 3 or place < _LEVELS:
        return None
    best = max(float(part.mean()) for part in np.array_split(values[:place], _LEVELS))
    return place if best - values[-1] > SMALL_SHARE * float(np.ptp(values)) else None


CONSTANT_REWARD = Finding(
    "constant-reward",
    "The reward does not vary, so nothing can be learned from it",
    constant_reward,
    (REWARD,),
    severity="critical",
    fewest=FEW_FACTS,
    measured="{text}",
    actions=(
        "Grade a known right and a known wrong answer: greenward grade.",
        "If every answer fails, begin with a longer warm start or easier problems (problems.families).",
        "If every answer passes, choose harder ones.",
        "See what an episode can earn: that of a hand-written policy, and one of random actions.",
    ),
    confirm="The answers of a step are of different worth with one reward.",
    selection="step={onset}-&groups=constant",
    limit=(
        "the mean never moves, or is one value in the last third, below its best before; or all rewards of a "
        "step are equal throughout the last quarter"
    ),
    explains=(
        *WORSE,
        *("reward-term-dead", "diversity-loss", "failing-answers-rise", "calibration-no-discrimination"),
    ),
    by_success=True,
    views=("reward",),
)


def dead_term(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A term that is 0 throughout although the reward counts it."""
    values = run.series(signal)[1]
    weights = _weights(run.config or {})
    weight = weights.get(signal.removeprefix("reward/"), 1.0)
    severity: Severity | None = "info" if not weights and learned(run).matters else None
    return Result(bool(weight) and not values.any(), {"signal": signal, "count": len(values)}, severity)


REWARD_TERM_DEAD = Finding(
    "reward-term-dead",
    "A term of the reward is 0 for every answer",
    dead_term,
    reward_terms,
    needs=(REWARD,),
    measured="{signal} is 0 at each of {count} steps.",
    actions=(
        "Call the reward function on a known good answer: it returns 0, raises, or never finds its input.",
        "Remove it from rewards if it is not meant to count.",
    ),
    confirm="The function returns more than 0 for a hand-written answer of the best kind.",
    selection="sort=-term.{name}",
    limit="a term with a weight is 0 at every step",
    weight="warning, info where the weights are not known and the reward rises",
    views=("reward",),
)


def scale_jumps(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Rewards whose size changes at once by a factor, while as many answers pass as before."""
    logged_steps, values = run.series(signal)
    has_size = values > 0  # rewards that do not vary have none
    steps, logs = logged_steps[has_size], np.log(values[has_size])
    if len(logs) < 2 * _AROUND:
        return Result()
    # All windows of a short series are looked at, about 2,000 of a long one.
    stride = min(max(1, len(logs) // 2000), _AROUND)
    middles = medians(np.lib.stride_tricks.sliding_window_view(logs, _AROUND)[::stride])
    apart = max(_AROUND // stride, 1)
    moves = middles[apart:] - middles[:-apart]
    place = int(np.abs(moves).argmax())
    best, place = float(moves[place]), (place + apart) * stride
    if abs(best) < math.log(SCALE_JUMP) or min(len(logs) - place, place) < _AROUND:
        return Result()
    spread = median_deviation(np.diff(logs)) or 1e-9
    window = logs[place - _AROUND : place + _AROUND]  # the best fit of two levels to it
    counts, sums = np.arange(1, len(window)), (window - window.mean()).cumsum()[:-1]
    at = place - _AROUND + 1 + int((sums**2 / (counts * counts[::-1])).argmax())
    later, earlier = logs[at:], logs[max(0, at - 4 * _AROUND) : at]
    stays = np.sign(best) * (median(later) - median(earlier)) > 0.6 * abs(best)
    before, after = _beside(run, PASS_RATE, int(steps[at]))
    shift = abs(median(after) - median(before)) if len(before) and len(after) else 0.0
    sizes = [
        max(float(np.abs(np.mean(one))), 1e-12) for one in _beside(run, REWARD, int(steps[at])) if len(one)
    ]
    # A spread that shrinks because all answers pass leaves the mean as it is.
    grew = math.log(sizes[1] / sizes[0]) if len(sizes) == 2 else best
    stays = stays and np.sign(best) * grew > 0.5 * abs(best)
    fades = (values[logged_steps >= steps[at]] == 0).mean() > 0.1  # what is left of rewards is their end
    found = bool(stays and abs(best) > 6 * spread and shift < 0.1 and not fades)
    numbers = {"signal": signal, "factor": math.exp(best), "passing": shift}
    return Result(found, numbers, onset=exactly(steps[at]))


def _beside(run: RunSignals, name: str, step: int) -> tuple[Floats, Floats]:
    """The values of a signal directly before a step, and from it on."""
    steps, values = run.series(name)
    place = int(np.searchsorted(steps, step))
    return values[max(0, place - _AROUND) : place], values[place : place + _AROUND]


REWARD_SCALE_JUMP = Finding(
    "reward-scale-jump",
    "The size of the reward changed at once, not what answers earn",
    scale_jumps,
    ("reward/std",),
    needs=(REWARD,),
    measured=(
        "{signal} became {factor:.2g} times as large from one step to the next, while the pass rate moved "
        "by {passing:.1%}."
    ),
    brief="Reward scale ×{factor:.2g}",
    actions=(
        "Compare the configs and the code of rewards before and after: a weight, a normalisation or a reward"
        " model was changed, or the run was resumed with other settings.",
        "Advantages that are not divided by the spread of a group (dr_grpo, ppo) grow as well: lower "
        "training.learning_rate by the same factor.",
    ),
    confirm="Rewards of the answers before the onset, computed with the present code, have the new size.",
    limit="spread and mean of the reward change by 1.6 × at once, the pass rate by less than 10 points",
    explains=(
        *UPDATES,
        *WORSE,
        *("auxiliary-reward-dominates", "kl-runaway", "entropy-collapse", "entropy-rise"),
    ),
    live=(Watched("reward/std", "ratio", 1.8),),
    views=("reward",),
)


@dataclass(frozen=True)
class Learning:
    """What was learned: the rise of `signal` from its `start`, with the bounds of its 90 % interval.

    `enough` is a rise that matters: of a rate 5 points or 15 % of what is missing to 1, of a reward a tenth
    of the spread of single answers, of an agent's half of that of its episodes, of a rating 35 points, by
    which the former self is beaten in 55 % of the games. `visible` is one that a
    reader would see in the curve: 0.7 of the noise of a row (without evaluations at most 0.3 of the spread of
    single answers), or a tenth of the range of the answers; of an agent 0.8 of the spread of its episodes.
    `sign` is 1 where it rose (one-sided, 95 %), -1 where it fell, else 0. `is_full` says that nothing was
    left to learn, or that held-out results rose.
    """

    signal: str
    count: int
    sign: int = 0
    start: float = 0.0
    rise: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    enough: float = 0.0
    visible: float = 0.0
    is_full: bool = False

    @property
    def is_shown(self) -> bool:
        return self.sign == 1 or self.is_full

    @property
    def matters(self) -> bool:
        """Whether it surely rose, and by what matters."""
        return self.sign == 1 and self.rise >= self.enough


def learned(run: RunSignals, fewest: int = MIN_POINTS) -> Learning:
    """What was learned in a run. The rise is from the mean of the first sixth, or of the first 5 values where
    these are surely lower by what matters, to that of the last third; its error is that of an AR(1). Of a
    signal with less than `fewest` values nothing is known.
    """
    name = _what_is_learned(run)
    values = run.series(name)[1]
    if len(values) < fewest:
        return Learning(name, len(values))
    unit, visible = _rises_that_count(run, name)
    first, last = values[: max(len(values) // 6, _FEW)], values[-(len(values) // 3) :]
    start = float(first.mean())
    if name != REWARD:
        unit = max(unit, _ROOM * (1 - start))
    rise, error = rise_between(first, last)
    at_once, its_error = rise_between(first[:_FEW], last)
    if at_once > max(3 * its_error, unit):  # a sixth of a run is enough to learn in
        start, rise, error = float(first[:_FEW].mean()), at_once, its_error
    if name == REWARD and run.is_rated:
        start, rise, error = float(values[0]), *_rise_of_rating(values)
    low, high = rise - Z_90 * error, rise + Z_90 * error
    is_full = _rose_elsewhere(run) or (name != REWARD and start > SATURATED)
    return Learning(
        name, len(values), (low > 0) - (high < 0), start, rise, low, high, unit, visible, is_full
    )  # fmt: skip


def _rises_that_count(run: RunSignals, name: str) -> tuple[float, float]:
    """(a rise that matters, one that a reader would see), but for the room that a rate leaves.

    Where the spread of the answers was not logged, a row is the mean of 32 of them: their spread follows
    from its noise. The rows of a step that were averaged have less of it together.
    """
    if name == REWARD and run.is_rated:
        return _RATING_LEARNED, _RATING_LEARNED
    noise = _noise_of_rows(run.series(name)[1])
    if run.family.kind == "agent":
        spread = _spread_of_episodes(run, noise)
        # A reader sees a rise by the noise of a row, however many episodes it averages.
        return min(_SPREAD_OF_EPISODES_LEARNED * spread, noise), _SPREAD_OF_EPISODES_SEEN * spread
    if name != REWARD:
        return LEARNED, _NOISE_SEEN * noise
    spreads = run.series("reward/std")[1]
    if (spreads > 0).any():
        spread, seen = median(spreads[spreads > 0]), _NOISE_SEEN * noise
        # The mean of a few answers is so noisy that what a run may gain is less than its noise.
        is_evaluated = len(run.series(HELD_OUT)[1]) >= _FEW  # and did not rise there either
        return _SPREAD_LEARNED * spread, seen if is_evaluated else min(seen, _SPREAD_SEEN * spread)
    averaged = run.reading.averaged if run.reading else 0
    noise *= math.sqrt(max(averaged / len(run.steps), 1.0))
    top, bottom = (run.series(f"reward/{end}")[1] for end in ("max", "min"))
    reach = median(top) - median(bottom) if len(top) and len(bottom) else 0.0
    spread = max(noise * math.sqrt(_ANSWERS), _RANGE_TO_SPREAD * reach)
    return _SPREAD_LEARNED * spread, max(_NOISE_SEEN * noise, _RANGE_SEEN * reach)


def _rise_of_rating(values: Floats) -> tuple[float, float]:
    """(the rise of a rating, its error).

    A rating is a sum of results beyond what was expected. Without progress its changes have a mean of 0 and
    do not depend on each other, however smooth the sum looks; those of means over many games resemble their
    neighbours. Variances from differences of changes leave out a progress that becomes slower.
    """
    changes = np.diff(values)
    near, apart = (float(np.mean((changes[lag:] - changes[:-lag]) ** 2)) / 2 for lag in (1, 2))
    variance = apart + 2 * max(0.0, apart - near)
    return float(values[-1] - values[0]), math.sqrt(variance * len(changes))


def _noise_of_rows(values: Floats) -> float:
    """The standard deviation of values around the means of six parts."""
    return math.sqrt(float(np.mean([part.var() for part in np.array_split(values, _LEVELS)])))


_EPISODE_LENGTH = re.compile(r"(?:.*/)?ep_?len_?mean")


def _new_episodes(run: RunSignals) -> float | None:
    """How many episodes are new in a row, from their length, where steps are those of the environment and
    the logged return is a moving mean; None where this is not known.
    """
    name = next(filter(_EPISODE_LENGTH.fullmatch, run.values), None)
    if run.family.window == 1 or name is None or not len(lengths := run.series(name)[1]):
        return None
    new = median(np.diff(run.series(REWARD)[0])) / max(median(lengths), 1.0)
    return max(new, 1.0)


def _spread_of_episodes(run: RunSignals, noise: float) -> float:
    """The standard deviation of an agent's episodes, from that of the means that are logged.

    A policy that wanders, or learns, moves these means as well. The differences of rows tell where it is
    known how many episodes are new in a row.
    """
    window = run.family.window
    if (new := _new_episodes(run)) is not None:
        shocks = difference_noise(run.series(REWARD)[1])
        noise = min(noise, shocks * math.sqrt(window / min(new, window)))
    return noise * math.sqrt(window)


def _rose_elsewhere(run: RunSignals) -> bool:
    """Whether evaluations rose: rates by 5 points, scores of another kind by more than their noise."""
    values = run.series(HELD_OUT)[1]
    if len(values) >= 2 and values.min() >= 0 and values.max() <= 1:
        return bool(values[-1] - values[0] > LEARNED)
    if len(values) < 2 * _FEW:
        return False
    third = len(values) // 3
    rise, error = rise_between(values[:third], values[-third:])
    return rise > student_quantile(Z_99, 2 * third - 2) * error


def no_learning(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A run that shows no rise, although it would show one that matters, or one that a reader would see."""
    found = learned(run)
    steps, values = run.series(found.signal)
    if found.count < MIN_POINTS or steps[-1] - steps[0] + 1 < LEARNING_FROM or found.is_full:
        return Result()
    peak = max(float(part.mean()) for part in np.array_split(values, _LEVELS))
    start, error = float(values[:_FEW].mean()), rise_between(values[:_FEW], values[-(len(values) // 3) :])[1]
    is_small = found.sign >= 0 and found.high < found.enough
    is_small = is_small and peak - min(found.start, start + error) < found.enough
    is_flat = found.sign != 1 and found.high < found.visible
    is_flat = is_flat and peak - min(found.start, start) < max(found.visible, _noise_of_rows(values))
    if is_flat and found.sign == -1 and found.rise <= -found.visible:
        fall = reward_drop(run, REWARD, limits)  # which then is the finding
        is_flat = not fall.found or (fall.p_value or 0.0) > limits.alpha
    unit = found.enough if is_small else found.visible
    what = "a tenth of the spread of single answers" if is_small else "0.7 of the noise of a row"
    if not is_small and unit < 0.99 * _NOISE_SEEN * _noise_of_rows(values):
        what = "0.3 of the spread of single answers"
    if run.family.kind == "agent":
        what = f"{'half' if is_small else '0.8'} of the spread of its episodes"
    elif is_small and found.signal != REWARD:
        what = "15 % of what is missing"
    size = f"{unit:.3g} ({what})"
    said, seen = "No learning shown", f"a rise of {size} would have been seen"
    if found.sign == 1:
        said, seen = "Hardly any learning", f"that is surely less than {size}"
    numbers = {**vars(found), "said": said, "seen": seen}
    return Result(is_small or is_flat, numbers, onset=exactly(steps[0]))


def rise_between(first: Floats, last: Floats, *, is_unbiased: bool = True) -> tuple[float, float]:
    """(the rise from the mean of some values to that of others, its error).

    Values that resemble each other are near their own mean; `is_unbiased` says that the error counts it.
    """
    rise = float(last.mean() - first.mean())
    residual = np.concatenate((first - first.mean(), last - last.mean()))
    variance = float(residual.var())
    phi = float(np.clip((residual[1:] * residual[:-1]).mean() / variance, 0, 0.95)) if variance else 0.0
    phi += (1 - phi) * 0.1  # the plain estimate is too small
    held = (1 + phi) / (1 - phi)  # values that hold as much as one independent value
    if is_unbiased:
        variance /= max(1 - 2 * held / len(residual), _LEAST_FREE)
    return rise, math.sqrt(variance * held * (1 / len(first) + 1 / len(last)))


def _what_is_learned(run: RunSignals) -> str:
    """The signal that tells what was learned."""
    # Exploration of Q-learning turns to what is unsolved, so that greedy programs tell what was learned.
    return next((rate for rate in (GREEDY_PASS_RATE, PASS_RATE) if not run.too_short(rate)), REWARD)


def rises_from(run: RunSignals, step: int) -> bool:
    """Whether the learned quantity rises significantly from around `step` to the last third after it."""
    steps, values = run.series(_what_is_learned(run))
    around = values[(steps > step - _AROUND) & (steps <= step + _AROUND // 2)]
    since = values[steps > step]
    if len(around) < _FEW or len(since) < _FEW:
        return False
    rise, error = rise_between(around, since[-max(len(since) // 3, _FEW) :])
    return rise > max(Z_95 * error, learned(run).enough)


NO_LEARNING = Finding(
    "no-learning",
    "Learning is not shown",
    no_learning,
    needs=(REWARD,),
    measured=(
        "{signal} moved by {rise:+.3g} [{low:+.3g}, {high:+.3g}] from {start:.3g} over {count} rows; {seen}."
    ),
    brief="{said} in {count} rows",
    actions=(
        "See whether weights move at all: learning_rate above 0 (and updates/applied).",
        "Compare the first and the last checkpoint: greenward diff-ckpt.",
        "Grade a known right and a known wrong answer: greenward grade.",
        "Choose easier problems, or more answers per problem (training.num_generations), so that groups "
        "differ.",
        "Raise training.learning_rate threefold for fifty steps.",
    ),
    confirm="The pass rate of a few training problems alone, trained on for fifty steps, rises.",
    limit=(
        "100 steps or more, no rise that is sure (one-sided, 95 %), and its upper bound is below 0.7 of the "
        "noise of a row (and, without evaluations, 0.3 of the spread of single answers), or a tenth of the "
        "range of the rewards (of an agent, 0.8 of the spread of its "
        "episodes: the noise of a row times the root of the episodes behind it); or a rise whose bound is "
        "below 5 points (15 % of what is missing to 1), or below a tenth of the spread of single answers (an "
        "agent's: half of that of its episodes). The rise is that from the first sixth, or from the first 5 "
        "rows where it is sure and large enough from there; of a rating of games (Elo) 35 points matter, and "
        "its error is that of a sum of independent changes. Where a log cannot exclude such a rise, and "
        "shows none, the verdict is CANNOT TELL"
    ),
)


def reward_drop(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Tests for a lasting fall; a term must fall by a fiftieth of the standard deviation of the rewards.

    A term that fell while their sum rose was traded for others, unless it is one of what is wanted itself.
    """
    result = lasting_change(falls=True)(run, signal, limits)
    spread = run.series("reward/std")[1]
    if signal == REWARD:
        if run.is_rated and not _rating_fell(run.series(REWARD)[1]):
            return replace(result, found=False)
        lost = _lost(run)
        if lost.found:
            is_known = result.found and (result.p_value or 0.0) <= limits.alpha
            return replace(result, p_value=None) if is_known else lost
        return replace(result, found=result.found and not _is_ripple(run, result))
    if learned(run).matters and not of_tests(signal) and not _lost(run).found:
        result = replace(result, severity="info")
    if result.change is None or not (spread > 0).any():
        return result
    is_small = abs(result.change.after - result.change.before) < SMALL_SHARE * median(spread[spread > 0])
    return replace(result, found=result.found and not is_small)


def _rating_fell(values: Floats) -> bool:
    """Whether a rating ends below its best by what matters, and further than one without progress does."""
    error = _rise_of_rating(values)[1]
    return bool(values.max() - values[-1] > max(_RATING_LEARNED, _DRAWDOWN * error))


def _is_ripple(run: RunSignals, result: Result) -> bool:
    """Whether a fall is small beside what the reward moved. Where all answers are right, what is left of its
    noise makes the least fall a sure one; an agent's episodes are logged as moving means, whose noise looks
    like changes.
    """
    if result.change is None:
        return False
    means = [float(part.mean()) for part in np.array_split(run.series(REWARD)[1], _LEVELS)]
    least = RIPPLE if run.family.kind == "agent" else SMALL_SHARE
    return result.change.before - result.change.after < least * (max(means) - min(means))


def _lost(run: RunSignals) -> Result:
    """A reward whose last sixth is below its best one by more than half of what was gained until then, and by
    far more than the error of an AR(1): a moving mean leaves a test of change without power. Its last rows
    alone are means over many episodes, and tell a fall as well.
    """
    steps, values = run.series(REWARD)
    parts = np.array_split(values, _LEVELS)
    means = [float(part.mean()) for part in parts]
    best = int(np.argmax(means[:-1]))
    end = means[-1]
    moved, error = rise_between(parts[best], parts[-1], is_unbiased=False)  # 3.5 errors are far
    new, window = _new_episodes(run), run.family.window
    spread = _spread_of_episodes(run, _noise_of_rows(values))
    if best == 0 and new is not None:  # it ended below its beginning
        episodes = new * np.array([len(parts[0]), len(parts[-1])])
        error = min(error, spread * math.sqrt((1 / episodes).sum()))
    start = means[0]
    gained = means[best] - start
    lost = -moved > max(LOST_ERRORS * error, LOST_SHARE * gained)
    if not lost and new is not None and len(values) >= _FEW * _LEVELS**2:
        parts = np.array_split(values, _LEVELS**2)
        means = [float(part.mean()) for part in parts]
        best = int(np.argmax(means))
        gained = means[best] - start
        end = float(values[-_FEW:].mean())
        moved, error = end - means[best], spread * math.sqrt(2 / window)
        lost = gained > LOST_ERRORS * error and -moved > max(LOST_ERRORS * error, LOST_SHARE * gained)
    if len(values) < MIN_POINTS or not lost:
        return Result()
    since = sum(map(len, parts[:best]))
    low = values[since:] < (means[best] + end) / 2
    place = since + (first_frequent(low) or int(low.argmax()))
    noise = _noise_of_rows(values)
    numbers = {
        "signal": REWARD,
        "before": means[best],
        "after": end,
        "effect_sd": moved / max(noise, 1e-12),
        "onset": int(steps[place]),
    }
    return Result(True, numbers, onset=exactly(steps[place]))


REWARD_DROP = Finding(
    "reward-drop",
    "A reward fell and did not recover",
    reward_drop,
    tested_rewards,
    needs=(REWARD,),
    measured=(
        "{signal} fell from {before:.3g} to {after:.3g} ({effect_sd:+.1f} sd of its noise) from step "
        "{onset} on."
    ),
    brief="{signal} fell from {before:.3g} to {after:.3g}",
    actions=(
        "Go on from the last checkpoint before the onset with a lower training.learning_rate.",
        "Compare grad_norm: a fall of the reward after a jump of the norm is its consequence.",
        "If one term fell while the total rose, change their weights in rewards.",
    ),
    confirm="Held-out evaluations before and after the onset fall, too.",
    selection="step={onset}-&sort=reward",
    limit=(
        "the reward or a term of it falls and does not recover (change test; the reward by a fiftieth of its "
        "range at least, an agent's by a fifth); or the mean of the last sixth "
        "of the rewards is below that of the best by over half of what was gained until then, and by over "
        "3.5 standard errors of an AR(1) (of moving means that end below their beginning, and of their last "
        "5 rows against the best 36th of the run: of the episodes behind them). A rating of games must end "
        "below its best by 35 points, and by 2.24 errors of a sum of as many independent changes, the 95 % "
        "quantile of such a fall without progress"
    ),
    weight="warning, info of a term (but one of tests) where the reward as a whole rose and kept it",
    source="change test",
    explains=(
        *("quality-drop", "held-out-regression", "dead-groups", "group-signal-fades", "poor-calibration"),
        *("failing-answers-rise", "gradient-vanished", "train-held-out-gap"),
    ),
    live=(Watched(PASS_RATE, "difference", -0.1, "critical"), Watched(REWARD, "ratio", 0.7, "critical")),
    views=("drift", "reward"),
)


def dominance(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A term other than the tests that owns most of the variance of the weighted terms over steps: of all,
    and of the second half. What is learned early and then constant, as a format is, teaches nothing later.
    """
    terms = reward_terms(run)
    weights = _weights(run.config or {}) or _fitted_weights(run, terms)  # 1 where it is unknown
    weighted = {term: weights.get(term.removeprefix("reward/"), 1.0) * run.series(term)[1] for term in terms}
    shares = _shares(weighted)
    if len(shares) < 2:
        reason = "the run logged fewer than two terms of the reward"
        enable = "Log each as reward/NAME; one term needs no balance."
        return not_made(Gap(_BALANCE, reason, enable), data={"variance_shares": {}})
    later = _shares({term: values[len(values) // 2 :] for term, values in weighted.items()})
    term, share = max(shares.items(), key=lambda item: item[1])
    found = not of_tests(term) and min(share, later.get(term, 0.0)) > DOMINANT
    rows = tuple((name, f"{part:.0%}") for name, part in shares.items())
    table = Table("Share of the variance of the weighted terms over steps", ("Term", "Share"), rows)
    shown: dict[str, Any] = {"tables": (table,), "data": {"variance_shares": shares}}
    if not any(map(of_tests, terms)):
        reason = "none of the terms is known to be that of the tests"
        return not_made(Gap(_BALANCE, reason, "Name it tests, accuracy or correctness."), **shown)
    return Result(found, {"term": term, "share": share}, **shown)


def of_tests(term: str) -> bool:
    """Whether a term of the reward grades what an answer does, by the words of its name."""
    name = term.removeprefix("reward/").lower()
    return bool(_OF_TESTS.search(name)) and not _BESIDE_TESTS.search(name)


def _shares(weighted: Mapping[str, Floats]) -> dict[str, float]:
    """The share of each term in the variance of all; empty where none varies."""
    variances = {term: float(values.var()) for term, values in weighted.items()}
    total = sum(variances.values())
    return {term: variance / total for term, variance in variances.items()} if total > 0 else {}


def _fitted_weights(run: RunSignals, terms: list[str]) -> dict[str, float]:
    """The weights by which the terms add up to the mean reward (least squares); empty where they do not."""
    if not terms or run.too_short(REWARD):
        return {}
    known = np.array([run.values[name] for name in (REWARD, *terms)])
    known = known[:, np.isfinite(known).all(axis=0)]
    if known.shape[1] < MIN_POINTS or np.abs(known).max() > HUGE:
        return {}
    rewards, *columns = known - known.mean(axis=1, keepdims=True)
    found = np.linalg.lstsq(np.stack(columns, 1), rewards, rcond=None)[0]
    if (rewards - np.stack(columns, 1) @ found).var() > _UNEXPLAINED * rewards.var():
        return {}
    return {term.removeprefix("reward/"): float(one) for term, one in zip(terms, found, strict=True)}


def _weights(config: Mapping[str, Any]) -> dict[str, float]:
    """Term -> its weight in the sum of rewards; a part of code_score has its share of that term's weight."""
    terms = config.get("rewards")
    weights: defaultdict[str, float] = defaultdict(float)
    for term in terms if isinstance(terms, list) else ():
        if isinstance(term, dict) and "name" in term and _is_number(weight := term.get("weight", 1.0)):
            weights[str(term["name"])] += weight
            if term["name"] == "code_score":
                for part, share in _code_score_parts(term.get("options")).items():
                    weights[part] += weight * share
    model = config.get("reward_model")
    if isinstance(model, dict) and _is_number(model.get("weight")):
        weights["reward_model"] = model["weight"]
    return dict(weights)


def _code_score_parts(options: Any) -> dict[str, float]:
    from greenward.grading.reward_terms import code_score  # slow to import, and few runs have the term

    given = options if isinstance(options, dict) else {}
    parts = {name: one for name, one in given.items() if _is_number(one)}
    parts = {name: parts.get(name, usual) for name, usual in (code_score.__kwdefaults__ or {}).items()}
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()} if total > 0 else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


AUXILIARY_REWARD_DOMINATES = Finding(
    "auxiliary-reward-dominates",
    "An auxiliary reward term varies more than the tests' does",
    dominance,
    needs=(REWARD,),
    measured="{term} owns {share:.0%} of the variance of the weighted terms over steps.",
    actions=(
        "Lower its weight in rewards until the tests own most of the variance.",
        "Give it only to answers that pass, if it is about style.",
    ),
    confirm="With its weight at 0, the pass rate rises faster.",
    selection="passed=0&sort=-reward",
    limit=(
        "a term other than the tests owns over half of the variance of the weighted terms over steps, of "
        "all and of the second half. Without a config the weights are those by which the terms add up to "
        "the mean reward (least squares), 1 where they explain less than 90 % of it; a part of `code_score`"
        " has its share of that term's weight. The term of the tests is known by a word of its name (tests,"
        " accuracy, correct, pass, code …)"
    ),
    explains=("no-learning", "quality-drop"),
    views=("reward",),
)


def dead_groups(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Groups without signal late in the run: all of their answers fail, or all pass."""
    what = "groups"
    if signal in (WITHOUT_SIGNAL, "reward/std"):
        steps, shares = run.series(signal)
        if signal == "reward/std":
            shares, what = (shares == 0).astype(float), f"steps ({run.logged_as(signal)} is 0)"
        if len(shares) < MIN_POINTS and not ((shares >= 1).all() or surely_above(shares, DEAD)):
            return not_made(gap_of(run, signal))
        dead = float(late_part(shares).mean())
        passed, failed = _passed_and_failed(run, dead)
    else:
        names = (signal, "groups/dead_all_pass", "groups/dead_all_fail")
        missing = np.full(len(run.steps), np.nan)
        counts = np.array([run.values.get(name, missing) for name in names])
        kept = np.isfinite(counts).all(axis=0) & (np.nansum(counts, axis=0) > 0)
        counts = counts[:, kept]
        if counts.shape[1] < MIN_POINTS:
            # Counts that were not logged at the same steps, or that are 0 together, say nothing of shares.
            lacking = min(names, key=lambda name: len(run.series(name)[1]))
            if run.too_short(lacking):
                return not_made(gap_of(run, lacking))
            reason = (
                f"{', '.join(names)} count groups at {counts.shape[1]} of the same steps, a test needs "
                f"{MIN_POINTS}"
            )
            return not_made(Gap(TITLES[signal], reason, "Log all of them at each step."))
        late = late_part(counts.T).sum(axis=0)
        with_signal, passed, failed = (late / late.sum()).tolist()
        dead = 1 - with_signal
        steps, shares = run.steps[kept], 1 - counts[0] / counts.sum(axis=0)
    place = first_frequent(shares > DEAD)
    numbers = {"dead": dead, "passed": passed, "failed": failed, "what": what}
    actions = (_ALL_PASS, _ALL_FAIL, _EITHER) if passed > failed else ()
    onset = None if place is None else exactly(steps[place])
    return Result(dead > DEAD, numbers, onset=onset, actions=actions)


_ALL_FAIL = (
    "All fail: a longer warm start (warm_start.max_steps) or easier problems (problems.families.max_depth)."
)
_ALL_PASS = "All pass: harder problems."
_EITHER = (
    "Either: algorithm.dynamic_sampling, more training.num_generations, or a higher sampling.temperature."
)


def _passed_and_failed(run: RunSignals, dead: float) -> tuple[float, float]:
    """The shares of groups that all pass and that all fail, by the reward where they were not logged."""
    logged = [run.series(f"groups/{name}")[1] for name in ("all_pass", "all_fail")]
    if all(map(len, logged)):
        passed, failed = (float(late_part(one).mean()) for one in logged)
        return passed, failed
    name, without = (WITHOUT_SIGNAL, 1.0) if WITHOUT_SIGNAL in run.values else ("reward/std", 0.0)
    known = np.isfinite(run.values[name]) & np.isfinite(run.values[REWARD])
    signal, rewards = run.values[name][known], run.values[REWARD][known]
    silent, telling = rewards[signal == without], rewards[signal != without]
    if len(silent) and len(telling):  # the answers of a group with a signal are right and wrong
        right = float((late_part(silent) > telling.mean()).mean())
        return right * dead, (1 - right) * dead
    rewards = run.series(REWARD)[1]
    end = float(late_part(rewards).mean())
    return (dead, 0.0) if end > median(rewards) + 1e-9 or end > DOMINANT else (0.0, dead)


def group_signals(run: RunSignals) -> list[str]:
    """The signal that says how many groups have no signal: their counts, their share, or a spread of the
    rewards of 0, which says that no group of the step has one.
    """
    known = (name for name in (GROUPS[0], WITHOUT_SIGNAL, "reward/std") if len(run.series(name)[1]))
    return [next(known, GROUPS[0])]


DEAD_GROUPS = Finding(
    "dead-groups",
    "Most groups teach nothing",
    dead_groups,
    group_signals,
    fewest=FEW_FACTS,
    needs=(REWARD,),
    measured=(
        "In the last quarter of the run {dead:.0%} of the {what} teach nothing: {passed:.0%} all pass, "
        "{failed:.0%} all fail."
    ),
    brief="{dead:.0%} of the {what} teach nothing",
    actions=(_ALL_FAIL, _ALL_PASS, _EITHER),
    confirm="The share of groups that teach nothing falls with the change in the next twenty steps.",
    selection="step={onset}-&groups=constant",
    limit=(
        "over 75 % of the groups in the last quarter (where groups are not counted, steps at which the "
        "rewards of a prompt have a spread of exactly 0); from the third step on all of them, from the "
        "eighth on a mean above 75 % by more than chance explains (99 %)"
    ),
    source="DAPO (2503.14476)",
    explains=(
        *("gradient-vanished", "no-learning", "group-signal-fades", "reward-term-dead", "diversity-loss"),
        "auxiliary-reward-dominates",
    ),
    by_success=True,
    not_for=("rejection",),
    views=("reward",),
)


_GROUP_SIZES = (
    "training.num_generations", "num_generations", "actor_rollout_ref.rollout.n", "n_samples_per_prompt",
    "rollout.n",
)  # fmt: skip
_GROUPED = frozenset({"grpo", "dr_grpo", "rloo", "grpo_passk", "reinforce_plus_plus_baseline", "group_norm"})


def group_of_one(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Advantages of groups of one answer: the settings say so, or they are the rewards themselves."""
    keys = ("algorithm.advantage", "algorithm.adv_estimator", "advantage_estimator", "algorithm.name")
    estimator = str(next((run.settings[key] for key in keys if key in run.settings), ""))
    size = next((run.settings[key] for key in _GROUP_SIZES if key in run.settings), None)
    if size == 1 and estimator in _GROUPED:
        text = f"The settings ask for 1 answer to a prompt, with {estimator}."
        return Result(True, {"text": text}, onset=exactly(run.steps[0]))
    if _answers_alone(run):
        steps, rewards = run.series(REWARD)
        text = (
            f"{run.logged_as('reward/std')} is 0 at each of {len(steps)} steps, while "
            f"{run.logged_as(REWARD)} varies from {rewards.min():.3g} to {rewards.max():.3g}: there is one "
            f"answer to a prompt, or all are copies."
        )
        return Result(True, {"text": text}, onset=exactly(steps[0]))
    # Means over tokens differ from means over answers, the extremes do not.
    pairs = [(f"advantage/{kind}", f"reward/{kind}") for kind in ("max", "min")]
    if not all(name in run.values for pair in pairs for name in pair) or "value/loss" in run.values:
        return Result()
    values = np.array([[run.values[name] for name in pair] for pair in pairs])  # extremes, kinds, steps
    values = values[:, :, np.isfinite(values).all(axis=(0, 1))]
    is_same = np.allclose(values[:, 0], values[:, 1], rtol=1e-4, atol=1e-6)
    if values.shape[2] < FEW_FACTS or not is_same or not values.any():
        return Result()
    names = run.logged_as("advantage/max"), run.logged_as("reward/max")
    text = f"{names[0]} equals {names[1]}, and so do the minima, at each of {values.shape[2]} steps."
    return Result(True, {"text": text}, onset=exactly(run.steps[0]))


def _answers_alone(run: RunSignals) -> bool:
    """Whether the rewards of a prompt never differ, while those of steps do at most of them."""
    rewards, spread = run.series(REWARD)[1], run.series("reward/std")[1]
    if len(spread) < FEWEST_ROWS or spread.any() or len(rewards) < FEWEST_ROWS:
        return False
    usual = int(np.unique(rewards, return_counts=True)[1].max())
    return 2 * usual < len(rewards)


GROUP_OF_ONE = Finding(
    "group-of-one",
    "A group has one answer, so that its advantage is the reward itself",
    group_of_one,
    measured="{text} Without other answers to the same prompt there is no baseline.",
    brief="Groups of one answer",
    actions=(
        "Set training.num_generations to 4 or more: a group is compared with its own mean.",
        "Or take an estimator with a baseline of its own (a critic, or the mean of the batch).",
    ),
    confirm="With more answers to a prompt, the mean of the advantages is 0, that of the rewards is not.",
    limit=(
        "the settings ask for 1 answer with advantages of groups, or the largest and the smallest advantage "
        "are those of the rewards at every step, without a critic; or the spread of the rewards of a prompt "
        "is exactly 0 at each of 8 steps or more, while their mean varies"
    ),
    source="Shao et al. (2402.03300), eq. 3",
    explains=(
        *("no-learning", "reward-drop", "gradient-spikes", "gradient-explosion", "dead-groups"),
        *("constant-reward", "gradient-vanished"),
    ),
    not_for=("rejection", "ppo"),
    suspects=("training.num_generations", "algorithm.advantage"),
    views=("reward",),
)


def group_signal_fades(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Groups that can teach, whose share falls to less than half."""
    if (change := find_signal_change(run, signal)) is None:
        return not_made(gap_of(run, signal))
    last = median_of_part(run.series(signal)[1], 0.85, 1)
    found = change.is_large and change.after < change.before and last < 0.5 * change.before
    ratio = last / change.before if change.before else 0.0
    numbers = {"before": change.before, "after": last, "ratio": ratio}
    return Result(found, numbers, onset=change.onset, p_value=change.p_value, change=change)


GROUP_SIGNAL_FADES = Finding(
    "group-signal-fades",
    "Fewer and fewer groups can teach",
    group_signal_fades,
    ("groups/with_signal",),
    needs=(REWARD,),
    optional=True,
    measured="Groups with signal fell from {before:.3g} to {after:.3g} a step ({ratio:.0%}).",
    actions=(
        "Set algorithm.dynamic_sampling, which draws other groups in place of dead ones.",
        "Mix in harder problems as these are solved.",
    ),
    confirm="groups/dead_all_pass grows as groups/with_signal falls.",
    selection="step={onset}-&groups=constant",
    limit="groups with signal fall to less than half",
    weight="warning, not with a critic",
    by_success=True,
    source="change test",
    explains=("gradient-vanished", "dead-groups"),
    live=(Watched("groups/with_signal", "ratio", 0.4),),
    not_for=("rejection", "ppo"),
)


REWARDS = Topic(
    "reward_card",
    "Rewards",
    (
        CONSTANT_REWARD,
        REWARD_TERM_DEAD,
        REWARD_SCALE_JUMP,
        NO_LEARNING,
        REWARD_DROP,
        AUXILIARY_REWARD_DOMINATES,
        DEAD_GROUPS,
        GROUP_OF_ONE,
        GROUP_SIGNAL_FADES,
    ),
    (
        SignalChart("Rewards", tested_rewards),
        SignalChart("Pass rate on training problems", (PASS_RATE,), "share"),
        SignalChart(
            "Groups per step", ("groups/with_signal", "groups/dead_all_pass", "groups/dead_all_fail")
        ),
    ),
)
