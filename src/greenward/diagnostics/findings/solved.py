"""Tells training problems that are solved from a collapse: both leave groups without signal and no entropy.

Where the answers to most problems are all right, what was learned has risen and is at its best, and held-out
results have risen as well, hardly anything is left to explore.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from greenward.common.statistics import Z_95
from greenward.diagnostics.change_points import MIN_POINTS, Floats, Steps, exactly
from greenward.diagnostics.finding import Finding, Result, Thresholds
from greenward.diagnostics.findings.held_out import fall, held_out_points
from greenward.diagnostics.findings.rewards import (
    FEWEST_ROWS,
    LEARNED,
    SATURATED,
    Learning,
    learned,
    rise_between,
)
from greenward.diagnostics.signal_tests import Z_99, first_frequent, late_part
from greenward.diagnostics.signals import (
    GREEDY_PASS_RATE,
    GROUPS,
    HELD_OUT,
    PASS_RATE,
    REWARD,
    WITHOUT_SIGNAL,
    RunSignals,
)

MOST = 0.5  # of the groups, which are all right
UNSOLVED = 0.1  # of the groups, which may be all wrong
_BELOW_BEST = 0.2  # of what was gained
_PARTS = 6  # of a run
_SHARES = ("groups/all_pass", "groups/all_fail")
# What is read of a run.
SIGNALS = frozenset(
    {
        *(REWARD, PASS_RATE, GREEDY_PASS_RATE, HELD_OUT),
        *("reward/std", "reward/max", "reward/min", *GROUPS, *_SHARES, WITHOUT_SIGNAL),
    }
)


@dataclass(frozen=True)
class Solved:
    """Training problems that are solved: what shows it, in full and in short, and from which step on."""

    text: str
    brief: str
    since: int


def solved(run: RunSignals, newest: int | None = None) -> Solved | None:
    """What shows that the training problems are solved; None: they are not, or the log cannot tell.

    What is learned rose by what matters (surely so; of less than 30 values by Kendall's test, 99 %), and its
    last sixth is not below its best by a fifth of what was gained. Held-out results, where there are any,
    rose by 5 points (or began above 90 %) and did not fall. Over half of the groups of the last quarter are
    all right, and a tenth at most all wrong. Where groups are not counted, steps without signal tell the
    same (`_whole_steps`), or the last quarter lacks a tenth at most of what is between the worst and the
    best answer. The last quarter is that of the run, or the `newest` values of one that goes on.
    """
    if run.family.kind == "agent":
        return None
    found = learned(run, FEWEST_ROWS)
    if (
        not _rose(run, found, newest)
        or _is_below_best(run.series(found.signal)[1])
        or not _holds_outside(run)
    ):
        return None
    groups = _groups(run)
    return _by_groups(*groups, newest) if groups is not None else _by_level(run, found, newest)


def _rose(run: RunSignals, found: Learning, newest: int | None) -> bool:
    """Whether what is learned surely rose by what matters. The last third of a short run, or of one that goes
    on, is no level yet.
    """
    values = run.series(found.signal)[1]
    n = len(values)
    if newest is not None and n >= MIN_POINTS:
        rise, error = rise_between(values[: n // _PARTS], values[-newest:])
        return rise >= max(found.enough, Z_95 * error)
    if n >= MIN_POINTS or n < FEWEST_ROWS:
        return found.matters
    order = np.triu(np.sign(values[None] - values[:, None])).sum()
    return bool(found.rise >= found.enough and order > Z_99 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18))


def _late(values: Floats, newest: int | None) -> float:
    return float((late_part(values) if newest is None else values[-newest:]).mean())


def _is_below_best(values: Floats) -> bool:
    parts = np.array_split(values, _PARTS)
    means = [float(part.mean()) for part in parts]
    best = int(np.argmax(means[:-1]))
    moved, error = rise_between(parts[best], parts[-1])
    return -moved > max(Z_95 * error, _BELOW_BEST * (means[best] - means[0]))


def _holds_outside(run: RunSignals) -> bool:
    """Whether held-out results follow the training's, as far as there are any."""
    points = held_out_points(run)
    if not points:
        return True
    first, last = points[0].value, points[-1].value
    return fall(points) is None and (last - first > LEARNED or first > SATURATED)


def _groups(run: RunSignals) -> tuple[Steps, Floats, Floats, Floats] | None:
    """(steps, shares of the groups that are all right, all wrong, without signal); None: not logged."""
    names = [name for name in GROUPS if name in run.values]
    if set(GROUPS[:3]) <= set(names):
        counts = np.nan_to_num(np.array([run.values[name] for name in names]))
        known = counts.sum(axis=0) > 0
        shares = counts[:, known] / counts[:, known].sum(axis=0)
        steps, passed, failed, dead = run.steps[known], shares[1], shares[2], 1 - shares[0]
    elif set(_SHARES) <= run.values.keys():
        right, wrong = (run.values[name] for name in _SHARES)
        known = np.isfinite(right) & np.isfinite(wrong)
        steps, passed, failed = run.steps[known], right[known], wrong[known]
        dead = passed + failed
    elif (whole := _whole_steps(run)) is not None:
        steps, passed, failed = whole
        dead = passed + failed
    else:
        return None
    return (steps, passed, failed, dead) if len(steps) >= FEWEST_ROWS else None


def _whole_steps(run: RunSignals) -> tuple[Steps, Floats, Floats] | None:
    """(steps, 1 where all groups are right, 1 where all are wrong), by the share of groups without signal.

    The answers of a step whose groups all lack a signal are right where they earn the highest mean of the
    run, else wrong. None: such steps are less than half of the last quarter.
    """
    if not {WITHOUT_SIGNAL, REWARD} <= run.values.keys():
        return None
    shares, rewards = run.values[WITHOUT_SIGNAL], run.values[REWARD]
    known = np.isfinite(shares) & np.isfinite(rewards)
    whole, rewards = (shares[known] == 1).astype(float), rewards[known]
    if not len(whole) or late_part(whole).mean() <= MOST:
        return None
    best = np.isclose(rewards, rewards.max())
    return run.steps[known], whole * best, whole * ~best


def _by_groups(
    steps: Steps, passed: Floats, failed: Floats, dead: Floats, newest: int | None
) -> Solved | None:
    right, wrong, silent = (_late(one, newest) for one in (passed, failed, dead))
    if right <= MOST or wrong > UNSOLVED:
        return None
    text = (
        f"In the last quarter of the run the answers of {right:.0%} of the groups are all right, and "
        f"{silent:.0%} of the groups teach nothing."
    )
    brief = f"{silent:.0%} of groups teach nothing"
    return Solved(text, brief, int(steps[first_frequent(passed > MOST) or 0]))


def _by_level(run: RunSignals, found: Learning, newest: int | None) -> Solved | None:
    """By a pass rate, or a reward whose range is known: it is logged, or all means are shares."""
    name = PASS_RATE if len(run.series(PASS_RATE)[1]) >= FEWEST_ROWS else REWARD
    steps, values = run.series(name)
    best, worst = run.series("reward/max")[1], run.series("reward/min")[1]
    if name == REWARD and len(best) and len(worst):
        bottom, top = float(worst.min()), float(best.max())
    elif values.min() >= 0 and values.max() <= 1:
        bottom, top = 0.0, 1.0
    else:
        return None
    limit = bottom + SATURATED * (top - bottom)
    if not found.start < limit <= (late := _late(values, newest)):
        return None
    text = f"{name} is {late:.3g} in the last quarter of the run, of {top:.3g} at best."
    return Solved(text, f"{name} {late:.3g} of {top:.3g}", int(steps[first_frequent(values >= limit) or 0]))


def problems_solved(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Says that nothing much is left to learn from these problems."""
    if (found := solved(run)) is None:
        return Result()
    return Result(True, vars(found), onset=exactly(found.since))


PROBLEMS_SOLVED = Finding(
    "problems-solved",
    "The training problems are solved, and most groups teach nothing more",
    problems_solved,
    severity="info",
    optional=True,
    needs=(REWARD,),
    fewest=FEWEST_ROWS,
    measured="{text}",
    brief="Solved: {brief}; stop or ask harder",
    actions=(
        "Stop here, and compare the last checkpoint with earlier ones on held-out problems.",
        "Or ask harder problems (problems.families.max_depth), or more of them.",
        "Or set algorithm.dynamic_sampling, which draws other groups in place of those that are all right.",
    ),
    confirm="On harder problems groups differ again, and entropy stops falling.",
    limit=(
        "what is learned rose by what [matters](no-learning.md) and is at its best, held-out results (where "
        "there are any) rose by 5 points and did not fall, and over half of the groups of the last quarter "
        "are all right, a tenth at most all wrong; where groups are not counted, most steps of the last "
        "quarter are without signal at the highest reward of the run, or the pass rate, or a reward of known "
        "range, is above 90 % of its range. What then follows is no finding of its own: entropy, "
        "distinct answers, gradients and groups with signal that go"
    ),
    views=("reward",),
)
