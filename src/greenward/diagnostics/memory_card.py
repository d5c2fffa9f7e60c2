"""compute_profile: whether memory is given back, and whether the run keeps its speed."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from greenward.diagnostics.advice import make_finding
from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.finding import Card, Check, Gap
from greenward.diagnostics.growth import MemoryGrowth, measure_memory_growth
from greenward.diagnostics.plots import signal_chart, straight_line
from greenward.diagnostics.run_data import RunData, Trend, find_trend
from greenward.reports.document import NOTHING, Chart, Fact, Onset, Table
from greenward.reports.figures import duration, memory

RSS, DEVICE_MEMORY = "perf/rss_mb", "perf/device_memory_mb"
THROUGHPUT = "perf/tokens_per_second"
CRITICAL_GROWTH = 1.5  # of the memory over the run; a smaller leak that meets the limit soon is critical, too
SLOWER = 0.8  # of the throughput before
_LABELS = {RSS: "Resident memory", DEVICE_MEMORY: "Device memory"}


def compute_profile(run: RunData, memory_limit_mb: float | None) -> Card:
    """Memory and throughput. The limit is that of the device where its memory was logged, else of the host.

    Without one, resident memory is measured against the machine's (provenance.json).
    """
    checks: list[Check] = []
    gaps: list[Gap] = []
    rows: list[tuple[str, ...]] = []
    charts = []
    data: dict[str, object] = {}
    logged = [name for name in (DEVICE_MEMORY, RSS) if run.has(name)]
    if not logged:
        gaps.append(run.gap("memory", RSS, "Log perf/rss_mb (resident memory, MiB); greenward train does."))
    for name in logged:
        limit = memory_limit_mb if name == logged[0] else None
        if limit is None and name == RSS:
            limit = run.machine_memory_mb
        growth = measure_memory_growth(*run.series(name), limit=limit, alpha=run.alpha)
        if growth is None:
            gaps.append(run.gap("memory", name))
            continue
        check = _check_leak(run, name, growth)
        checks.append(check)
        rows.append(_row(run, name, growth, limit))
        data[name] = {**asdict(growth), "limit_mb": limit, "seconds_to_limit": _seconds_to_limit(run, growth)}
        charts.append(_chart(run, name, growth))
    speed = _check_throughput(run, checks, gaps)
    if speed is not None:
        data[THROUGHPUT] = asdict(speed)
    charts.append(signal_chart(run, "Tokens per second", ((THROUGHPUT, "", "main"),)))
    tables = [] if not rows else [_memory_table(rows)]
    if speed is not None:
        tables.append(_speed_table(run, speed))
    if data and memory_limit_mb is None and run.machine_memory_mb is None:
        gaps.append(
            Gap(
                "time to out-of-memory",
                "the memory of the machine is not known",
                "Give --memory-limit-mb, or run with a greenward that records it in provenance.json.",
            )
        )
    return Card(
        "compute_profile",
        "Compute profile",
        tuple(checks),
        tuple(gaps),
        _facts(run),
        tuple(tables),
        tuple(chart for chart in charts if chart is not None),
        data=data,
    )


def _check_leak(run: RunData, name: str, growth: MemoryGrowth) -> Check:
    finding = None
    if growth.is_leak:
        soon = growth.steps_to_limit is not None and growth.steps_to_limit <= len(run.signals.steps)
        severe = growth.factor >= CRITICAL_GROWTH or soon
        measured = (
            f"{_LABELS[name]} grew to {growth.factor:.2f} times [{growth.factor_low:.2f}, "
            f"{growth.factor_high:.2f}] over the run, {growth.per_step:.3g} MiB a step"
        )
        if growth.steps_to_limit is not None:
            measured += f"; it ends in {_eta(run, growth)}"
        first = int(run.signals.steps[0])
        finding = make_finding(
            "memory-leak", "critical" if severe else "warning", f"{measured}.", Onset(first, first, first)
        )
    return Check(name, finding, growth.p_value, critical=True)


def _check_throughput(run: RunData, checks: list[Check], gaps: list[Gap]) -> Trend | None:
    trend = find_trend(run, THROUGHPUT)
    if trend is None:
        gaps.append(run.gap("throughput", THROUGHPUT))
        return None
    finding = None
    if trend.is_large and trend.after <= SLOWER * trend.before:
        measured = (
            f"{trend.before:,.0f} tokens per second fell to {trend.after:,.0f} "
            f"({trend.after / trend.before - 1:+.0%})."
        )
        finding = make_finding("throughput-drop", "warning", measured, trend.onset)
    checks.append(Check(THROUGHPUT, finding, trend.p_value))
    return trend


def _seconds_to_limit(run: RunData, growth: MemoryGrowth) -> float | None:
    seconds = run.series("time/step")[1]
    if growth.steps_to_limit is None or not len(seconds):
        return None
    return growth.steps_to_limit * float(np.median(seconds))


def _eta(run: RunData, growth: MemoryGrowth) -> str:
    if growth.steps_to_limit is None:
        return NOTHING
    seconds = _seconds_to_limit(run, growth)
    in_time = "" if seconds is None else f", about {duration(seconds)}"
    return f"{growth.steps_to_limit:,.0f} steps{in_time}"


def _row(run: RunData, name: str, growth: MemoryGrowth, limit: float | None) -> tuple[str, ...]:
    values = run.series(name)[1]
    return (
        _LABELS[name],
        f"{memory(values[0])} → {memory(values[-1])}",
        memory(float(values.max())),
        f"{growth.factor:.2f} × [{growth.factor_low:.2f}, {growth.factor_high:.2f}]",
        f"{growth.per_step:+.3g} MiB",
        f"{growth.p_value:.2g}",
        NOTHING if limit is None else memory(limit),
        _eta(run, growth) if growth.is_leak else NOTHING,
    )


def _memory_table(rows: list[tuple[str, ...]]) -> Table:
    columns = ("Memory", "First → last", "Peak", "Growth", "A step", "p", "Limit", "Full in")
    caption = (
        "Growth: the fitted line through the smallest values (Theil–Sen) at the last step over that at the "
        "first, after a warm-up of a tenth, with its 95 % interval. p: of the trend, AR(1) bootstrap, alone."
    )
    return Table("Memory", columns, tuple(rows), caption)


def _speed_table(run: RunData, speed: Trend) -> Table:
    values = run.series(THROUGHPUT)[1]
    row = (
        "Tokens per second",
        f"{float(np.median(values)):,.0f}",
        f"{speed.before:,.0f}",
        f"{speed.after:,.0f}",
        f"{speed.after / speed.before - 1:+.0%}",
        f"{speed.p_value:.2g}",
        str(speed.onset) if speed.p_value <= run.alpha else NOTHING,
    )
    columns = ("Throughput", "Median", "Before", "After", "Change", "p", "From step")
    return Table(
        "Throughput", columns, (row,), "Before and after the likeliest change; p: of the test alone."
    )


def _facts(run: RunData) -> tuple[Fact, ...]:
    seconds = run.series("time/step")[1]
    if len(seconds) < MIN_POINTS:
        return ()
    return (
        Fact("median step", duration(float(np.median(seconds)))),
        Fact("all steps", duration(float(seconds.sum()))),
    )


def _chart(run: RunData, name: str, growth: MemoryGrowth) -> Chart | None:
    steps, _ = run.series(name)
    first, last = float(steps[0]), float(steps[-1])
    fit = straight_line(
        "fitted",
        "control",
        (first, growth.at_start),
        (last, growth.at_start + growth.per_step * (last - first)),
    )
    title = f"{_LABELS[name]} (MiB)"
    caption = f"Fitted: {growth.factor:.2f} times over the run."
    return signal_chart(run, title, ((name, "", "main"),), caption=caption, fits=(fit,))
