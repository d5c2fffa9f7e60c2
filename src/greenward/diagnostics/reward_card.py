"""reward_card: whether the reward varies, which term drives it, and whether it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from greenward.diagnostics.advice import make_finding
from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.finding import Card, Check, Gap
from greenward.diagnostics.plots import signal_chart
from greenward.diagnostics.run_data import RunData, Trend, find_trend, median_of_part
from greenward.reports.document import Onset, Role, Table

REWARD = "reward/mean"
# What is said of rewards beside the terms, and terms that are combined of others.
_NO_TERMS = frozenset({"mean", "std", "min", "max", "code_score"})
_OF_TESTS = frozenset({"tests", "all_tests", "correctness", "execution_ladder"})
DOMINANT = 0.5  # share of the variance over steps
DEAD = 0.75  # share of groups without signal (DAPO, arXiv 2503.14476: they only cost)
_LATE = 0.75  # the share of the run after which it counts as late
_ROLES: tuple[Role, ...] = ("main", "second", "third", "control")


def reward_card(run: RunData) -> Card:
    """The reward, its terms and the groups that it separates."""
    name, title = "reward_card", "Rewards"
    if run.too_short(REWARD):
        enable = "Log reward/mean, and reward/NAME for each term; greenward train does."
        return Card(name, title, gaps=(run.gap("reward", REWARD, enable),))
    checks, gaps = [_check_constant(run)], []
    terms = sorted(s for s in run.signals.values if s.startswith("reward/") and s[7:] not in _NO_TERMS)
    tested = [REWARD, *(s for s in (*terms, "reward/code_score") if not run.too_short(s))]
    trends = [trend for signal in tested if (trend := find_trend(run, signal)) is not None]
    checks += [_check_drop(run, trend) for trend in trends]
    shares = variance_shares(run, [term for term in terms if not run.too_short(term)])
    if shares:
        checks.append(_check_dominance(run, shares))
    else:
        reason = "the run logged fewer than two terms of the reward"
        gaps.append(
            Gap("balance of the reward terms", reason, "Log each as reward/NAME; one term needs no balance.")
        )
    dead = _check_dead_groups(run)
    if dead is None:
        enable = "Log groups/with_signal, groups/dead_all_pass and groups/dead_all_fail."
        gaps.append(run.gap("groups without signal", "groups/with_signal", enable))
    else:
        checks.append(dead)
    lines = [
        (signal, signal.removeprefix("reward/"), role) for signal, role in zip(tested, _ROLES, strict=False)
    ]
    groups: list[tuple[str, str, Role]] = [
        ("groups/with_signal", "with signal", "main"),
        ("groups/dead_all_pass", "all pass", "second"),
        ("groups/dead_all_fail", "all fail", "control"),
    ]
    charts = (
        signal_chart(run, "Rewards", lines),
        signal_chart(run, "Pass rate on training problems", (("pass_rate", "", "main"),), unit="share"),
        signal_chart(run, "Groups per step", groups),
    )
    return Card(
        name,
        title,
        tuple(checks),
        tuple(gaps),
        tables=(_table(run, trends, shares),),
        charts=tuple(chart for chart in charts if chart is not None),
        data={"trends": [asdict(trend) for trend in trends], "variance_shares": shares},
    )


def variance_shares(run: RunData, terms: list[str]) -> dict[str, float]:
    """Term -> share of the variance over steps, each times its weight in the config (1 if unknown).

    Empty for fewer than two terms, or if none varies.
    """
    weights = _weights(run.config)
    variances = {
        term: float((weights.get(term.removeprefix("reward/"), 1.0) * run.series(term)[1]).var())
        for term in terms
    }
    total = sum(variances.values())
    if len(variances) < 2 or total <= 0:
        return {}
    return {term: variance / total for term, variance in variances.items()}


def _weights(config: Mapping[str, object]) -> dict[str, float]:
    """Term -> its weight in the sum of rewards; a part of code_score has its share of that term's weight."""
    terms = config.get("rewards")
    weights: dict[str, float] = {}
    for term in terms if isinstance(terms, list) else ():
        if not isinstance(term, dict) or "name" not in term:
            continue
        weight, options = term.get("weight", 1.0), term.get("options")
        if not isinstance(weight, (int, float)):
            continue
        shares = {str(term["name"]): 1.0}
        if term["name"] == "code_score":
            shares |= _code_score_parts(options if isinstance(options, dict) else {})
        for name, share in shares.items():
            weights[name] = weights.get(name, 0.0) + weight * share
    model = config.get("reward_model")
    if isinstance(model, dict) and isinstance(model.get("weight"), (int, float)):
        weights["reward_model"] = float(model["weight"])
    return weights


def _code_score_parts(options: Mapping[str, object]) -> dict[str, float]:
    from greenward.grading.reward_terms import CodeScore  # slow to import, and few runs have the term

    given = {name: float(v) for name, v in options.items() if isinstance(v, (int, float))}
    parts = {name: given.get(name, getattr(CodeScore, name)) for name in ("correctness", "readability")}
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()} if total > 0 else {}


def _check_constant(run: RunData) -> Check:
    steps, values = run.series(REWARD)
    spread = run.series("reward/std")[1]
    still = bool(np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())))
    same_answers = len(spread) >= MIN_POINTS and bool(
        (spread[-max(MIN_POINTS, len(spread) // 4) :] == 0).all()
    )
    finding = None
    if still or same_answers:
        measured = (
            f"reward/mean is {values[0]:.4g} at each of {len(values)} steps."
            if still
            else "reward/std is 0 throughout the last quarter: all answers of a step get the same reward."
        )
        first = (
            int(steps[0])
            if still
            else int(run.series("reward/std")[0][np.flatnonzero(spread)[-1] + 1 :][0])
            if (spread.any())
            else int(steps[0])
        )
        finding = make_finding("constant-reward", "critical", measured, Onset(first, first, first))
    return Check("constant reward", finding)


def _check_drop(run: RunData, trend: Trend) -> Check:
    finding = None
    if trend.is_large and trend.after < trend.before:
        measured = (
            f"{trend.signal} fell from {trend.before:.3g} to {trend.after:.3g} "
            f"({trend.effect_sd:+.1f} sd of its noise) from step {trend.onset} on."
        )
        finding = make_finding("reward-drop", "warning", measured, trend.onset)
    return Check(f"{trend.signal} holds", finding, trend.p_value)


def _check_dominance(run: RunData, shares: dict[str, float]) -> Check:
    term, share = max(shares.items(), key=lambda item: item[1])
    finding = None
    has_tests = any(name.removeprefix("reward/") in _OF_TESTS for name in shares)
    if has_tests and term.removeprefix("reward/") not in _OF_TESTS and share > DOMINANT:
        measured = f"{term} owns {share:.0%} of the variance of the weighted terms over steps."
        finding = make_finding("auxiliary-reward-dominates", "warning", measured)
    return Check("balance of the reward terms", finding)


def _check_dead_groups(run: RunData) -> Check | None:
    parts = [
        run.signals.values.get(f"groups/{name}") for name in ("with_signal", "dead_all_pass", "dead_all_fail")
    ]
    if any(part is None for part in parts):
        return None
    counts = np.array([part for part in parts if part is not None])
    counts = counts[:, np.isfinite(counts).all(axis=0)]
    totals = counts.sum(axis=0)
    counts = counts[:, totals > 0]
    if counts.shape[1] < MIN_POINTS:
        return None
    late = counts[:, int(_LATE * counts.shape[1]) :].sum(axis=1)
    signal, passed, failed = (late / late.sum()).tolist()
    finding = None
    if 1 - signal > DEAD:
        measured = (
            f"In the last quarter of the run {1 - signal:.0%} of the groups teach nothing: "
            f"{passed:.0%} all pass, {failed:.0%} all fail."
        )
        finding = make_finding("dead-groups", "warning" if failed > passed else "info", measured)
    return Check("groups without signal", finding)


def _table(run: RunData, trends: list[Trend], shares: dict[str, float]) -> Table:
    rows = []
    for trend in trends:
        values = run.series(trend.signal)[1]
        changed = trend.p_value <= run.alpha and trend.is_large
        rows.append(
            (
                trend.signal,
                f"{median_of_part(values, 0, 0.1):.3g}",
                f"{median_of_part(values, 0.9, 1):.3g}",
                f"{values.std():.3g}",
                f"{shares[trend.signal]:.0%}" if trend.signal in shares else "",
                f"from step {trend.onset}" if changed else "no",
                f"{trend.p_value:.2g}",
            )
        )
    columns = ("Signal", "First tenth", "Last tenth", "Sd", "Share of variance", "Changes", "p")
    caption = "Medians. Share of variance: of the weighted terms, over steps. p: of a change, alone."
    return Table("Rewards", columns, tuple(rows), caption)
