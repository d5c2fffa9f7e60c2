"""policy_card: whether the policy explores, stays near its reference, and gets whole answers out."""

from __future__ import annotations

import numpy as np

from greenward.diagnostics.advice import make_finding
from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.finding import Card, Check, Gap
from greenward.diagnostics.plots import signal_chart
from greenward.diagnostics.run_data import RunData, find_trend, median_of_part
from greenward.reports.document import Chart, Onset, Table

COLLAPSED = 0.1  # of the entropy at the start; no absolute limit, small models begin low
LARGE_STEP_KL = 0.03  # approx_kl of one batch; Spinning Up stops at 0.015
OFTEN = 0.2  # of the steps
KL_GROWTH = 3.0  # of its last tenth over its first half
FASTER = 2.0  # growth of KL in the second half over that in the first
TRUNCATED = 0.2  # of the answers
LATE = 0.75  # from this share of the run on it is late
_WATCHED = {
    "entropy": "entropy",
    "kl": "KL to the reference",
    "approx_kl": "size of policy steps",
    "completion/truncated": "truncated answers",
    "explained_variance": "value function",
}
_ENABLE = {
    "kl": "Log kl; greenward does with algorithm.kl.coefficient above 0.",
    "explained_variance": "Only PPO with a critic (kind ppo) has one.",
}


def policy_card(run: RunData) -> Card:
    """Entropy, KL, step sizes, truncation and the value function."""
    made = {
        "entropy": _check_entropy,
        "kl": _check_kl,
        "approx_kl": _check_step_kl,
        "completion/truncated": _check_truncation,
        "explained_variance": _check_value_function,
    }
    checks: list[Check] = []
    gaps: list[Gap] = []
    for signal, check in made.items():
        if run.too_short(signal):
            gaps.append(run.gap(_WATCHED[signal], signal, _ENABLE.get(signal, "")))
        else:
            checks.append(check(run))
    rows = tuple(_row(run, signal, name) for signal, name in _WATCHED.items() if not run.too_short(signal))
    columns = ("Signal", "First tenth", "Median", "Last tenth")
    table = Table("Policy", columns, rows, "Medians.") if rows else None
    return Card(
        "policy_card",
        "Policy",
        tuple(checks),
        tuple(gaps),
        tables=() if table is None else (table,),
        charts=_charts(run),
    )


def _charts(run: RunData) -> tuple[Chart, ...]:
    charts = (
        signal_chart(run, "Entropy (nats per token)", (("entropy", "", "main"),)),
        signal_chart(run, "KL to the reference", (("kl", "", "main"),)),
        signal_chart(
            run, "Answers cut off at the limit", (("completion/truncated", "", "main"),), unit="share"
        ),
        signal_chart(run, "Explained variance of the value function", (("explained_variance", "", "main"),)),
    )
    return tuple(chart for chart in charts if chart is not None)


def _row(run: RunData, signal: str, name: str) -> tuple[str, ...]:
    values = run.series(signal)[1]
    parts = (median_of_part(values, 0, 0.1), float(np.median(values)), median_of_part(values, 0.9, 1))
    return (f"{name} ({signal})", *(f"{part:.3g}" for part in parts))


def _check_entropy(run: RunData) -> Check:
    """A fall to a tenth needs no test: smooth curves, which entropies are, look like random walks to one."""
    values = run.series("entropy")[1]
    start, end = median_of_part(values, 0, 0.1), median_of_part(values, 0.9, 1)
    finding = None
    if start > 0 and end < COLLAPSED * start:
        measured = f"Entropy fell from {start:.3g} to {end:.3g} nats a token, {end / start:.0%} of its start."
        finding = make_finding("entropy-collapse", "warning", measured, _onset(run, "entropy"))
    return Check(_WATCHED["entropy"], finding)


def _check_kl(run: RunData) -> Check:
    """Accelerating KL, unless the reward earned in the second half pays for it."""
    steps, values = run.series("kl")
    half = len(values) // 2
    slopes = [float(np.polyfit(steps[part], values[part], 1)[0]) for part in (slice(half), slice(half, None))]
    start, end = median_of_part(values, 0, 0.5), median_of_part(values, 0.9, 1)
    finding = None
    runs_away = slopes[1] > FASTER * max(slopes[0], 0.0) and start > 0 and end > KL_GROWTH * start
    if runs_away and not _still_earns(run):
        measured = (
            f"KL rose from {start:.3g} (first half) to {end:.3g} (last tenth), {slopes[1]:.2g} a step in the "
            f"second half and {slopes[0]:.2g} in the first, while the reward did not rise."
        )
        finding = make_finding("kl-runaway", "warning", measured, _onset(run, "kl"))
    return Check(_WATCHED["kl"], finding)


def _onset(run: RunData, signal: str) -> Onset | None:
    trend = find_trend(run, signal)
    return None if trend is None else trend.onset


def _still_earns(run: RunData) -> bool:
    reward = run.series("reward/mean")[1]
    if len(reward) < MIN_POINTS:
        return False
    half = reward[len(reward) // 2 :]
    noise = float(np.std(np.diff(half))) / np.sqrt(2) / np.sqrt(max(1, len(half) // 5))
    return median_of_part(half, 0.8, 1) - median_of_part(half, 0, 0.2) > 2 * noise


def _check_step_kl(run: RunData) -> Check:
    values = run.series("approx_kl")[1]
    share = float((values > LARGE_STEP_KL).mean())
    finding = None
    if share > OFTEN:
        middle = float(np.median(values))
        measured = f"approx_kl is above {LARGE_STEP_KL} in {share:.0%} of the steps (median {middle:.3g})."
        finding = make_finding("large-policy-steps", "warning", measured)
    return Check(_WATCHED["approx_kl"], finding)


def _check_truncation(run: RunData) -> Check:
    steps, values = run.series("completion/truncated")
    late = float(values[int(LATE * len(values)) :].mean())
    finding = None
    if late > TRUNCATED:
        measured = f"In the last quarter of the run {late:.0%} of the answers are cut off at the limit."
        first = int(steps[values > TRUNCATED][0]) if (values > TRUNCATED).any() else int(steps[0])
        finding = make_finding("truncated-answers", "warning", measured, Onset(first, first, first))
    return Check(_WATCHED["completion/truncated"], finding)


def _check_value_function(run: RunData) -> Check:
    """Below 0 in three quarters of the second half: the mean return would predict better."""
    values = run.series("explained_variance")[1]
    late = values[len(values) // 2 :]
    negative = float((late < 0).mean())
    finding = None
    if negative >= LATE:
        middle = float(np.median(late))
        measured = (
            f"explained_variance is below 0 in {negative:.0%} of the second half (median {middle:.2f})."
        )
        finding = make_finding("value-function-useless", "warning", measured)
    return Check(_WATCHED["explained_variance"], finding)
