"""Tests of the reward: whether it varies, which term drives it, and how many groups it teaches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from greenward.diagnostics.change_points import MIN_POINTS, exactly
from greenward.diagnostics.finding import Gap, gap_of
from greenward.diagnostics.signal_tests import (
    Result,
    Thresholds,
    first_frequent,
    lasting_change,
    late_part,
    not_made,
)
from greenward.diagnostics.signals import REWARD, Floats, RunSignals
from greenward.reports.document import Table

DOMINANT = 0.5  # share of the variance over steps
_UNEXPLAINED = 0.1  # of the variance of the mean reward, by the weighted terms
_HUGE = 1e100  # squares of larger values are no numbers
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
_WITHOUT_SIGNAL = "groups/without_signal"
_lasting_fall = lasting_change(falls=True)


def reward_terms(run: RunSignals) -> list[str]:
    """The terms of the reward that can be tested."""
    names = sorted(s for s in run.values if s.startswith("reward/") and s[7:] not in _NO_TERMS)
    return [name for name in names if not run.too_short(name)]


def tested_rewards(run: RunSignals) -> list[str]:
    """The reward, its terms and the code score."""
    code_score = ["reward/code_score"] if not run.too_short("reward/code_score") else []
    return [REWARD, *reward_terms(run), *code_score]


def reward_drop(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A lasting fall; that of a term counts from a fiftieth of the spread of the rewards in a step on."""
    result = _lasting_fall(run, signal, limits)
    spread = run.series("reward/std")[1]
    if signal == REWARD or result.change is None or not len(spread):
        return result
    is_small = abs(result.change.after - result.change.before) < SMALL_SHARE * float(np.median(spread))
    return replace(result, found=result.found and not is_small)


def constant_reward(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """One mean at all steps, or one reward for all answers of each step late in the run."""
    steps, values = run.series(signal)
    if np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())):
        text = f"{signal} is {values[0]:.4g} at each of {len(values)} steps."
        return Result(True, {"text": text}, onset=exactly(steps[0]))
    spread_steps, spread = run.series("reward/std")
    late = spread[-max(_LATE, len(spread) // 4) :]
    if len(spread) < MIN_POINTS or late.any():
        return Result()
    text = "reward/std is 0 throughout the last quarter: all answers of a step get the same reward."
    since = spread_steps[np.flatnonzero(spread)[-1] + 1 :] if spread.any() else steps
    return Result(True, {"text": text}, onset=exactly(since[0]))


def dead_term(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A term that is 0 throughout although the reward counts it."""
    values = run.series(signal)[1]
    weight = _weights(run.config or {}).get(signal.removeprefix("reward/"), 1.0)
    return Result(bool(weight) and not values.any(), {"signal": signal, "count": len(values)})


def of_tests(term: str) -> bool:
    """Whether a term of the reward grades what an answer does, by the words of its name."""
    name = term.removeprefix("reward/").lower()
    return bool(_OF_TESTS.search(name)) and not _BESIDE_TESTS.search(name)


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
    if known.shape[1] < MIN_POINTS or np.abs(known).max() > _HUGE:
        return {}
    rewards, *columns = known - known.mean(axis=1, keepdims=True)
    found = np.linalg.lstsq(np.stack(columns, 1), rewards, rcond=None)[0]
    left = rewards - np.stack(columns, 1) @ found
    if left.var() > _UNEXPLAINED * rewards.var():
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
    from greenward.grading.reward_terms import CodeScore  # slow to import, and few runs have the term

    given = options if isinstance(options, dict) else {}
    names = ("correctness", "readability")
    parts = {name: given[name] if _is_number(given.get(name)) else getattr(CodeScore, name) for name in names}
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()} if total > 0 else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def group_signals(run: RunSignals) -> list[str]:
    """What says how many groups teach nothing: their counts, or their share."""
    share = not len(run.series("groups/with_signal")[1]) and len(run.series(_WITHOUT_SIGNAL)[1])
    return [_WITHOUT_SIGNAL if share else "groups/with_signal"]


def dead_groups(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Groups without signal late in the run: all of their answers fail, or all pass."""
    if signal == _WITHOUT_SIGNAL:
        steps, shares = run.series(signal)
        dead = float(late_part(shares).mean())
        passed, failed = _passed_and_failed(run, dead)
    else:
        names = (signal, "groups/dead_all_pass", "groups/dead_all_fail")
        missing = np.full(len(run.steps), np.nan)
        counts = np.array([run.values.get(name, missing) for name in names])
        kept = np.isfinite(counts).all(axis=0) & (np.nansum(counts, axis=0) > 0)
        counts = counts[:, kept]
        if counts.shape[1] < MIN_POINTS:
            return not_made(gap_of(run, signal))
        late = late_part(counts.T).sum(axis=0)
        with_signal, passed, failed = (late / late.sum()).tolist()
        dead = 1 - with_signal
        steps, shares = run.steps[kept], 1 - counts[0] / counts.sum(axis=0)
    place = first_frequent(shares > DEAD)
    numbers = {"dead": dead, "passed": passed, "failed": failed}
    return Result(dead > DEAD, numbers, onset=None if place is None else exactly(steps[place]))


def _passed_and_failed(run: RunSignals, dead: float) -> tuple[float, float]:
    """The shares of groups that all pass and that all fail, by the reward where they were not logged."""
    known = [run.series(f"groups/{name}")[1] for name in ("all_pass", "all_fail")]
    if all(map(len, known)):
        passed, failed = (float(late_part(one).mean()) for one in known)
        return passed, failed
    rewards = run.series(REWARD)[1]
    end = float(late_part(rewards).mean())
    return (dead, 0.0) if end > np.median(rewards) + 1e-9 or end > DOMINANT else (0.0, dead)
