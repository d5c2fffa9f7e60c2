"""Provides the tests that findings share; the functions called in a finding's record return its test."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from greenward.common.statistics import Z_95, distinct, median, medians
from greenward.diagnostics.change_points import (
    MIN_POINTS,
    ChangePoint,
    Steps,
    exactly,
    find_change_point,
    median_deviation,
    onset_at,
)
from greenward.diagnostics.finding import Result, Test, Thresholds, gap_of, not_made
from greenward.diagnostics.signals import PASS_RATE, RATIO_SCALE, Bools, Floats, Range, RunSignals
from greenward.reports.document import Onset, Role, Series, Severity, Table

ALPHA = 0.05
LEAST_RISE = 0.08  # of a rate, or of a reward's size, that counts as one
_LATE = 0.75  # from this share of the run on it is late
_NEWEST = 20  # values
_FREQUENT = 15  # values of which most must be bad
_REFERENCE = 60  # values before a change that say what was usual
_MIN_REFERENCE = 8
_FEWEST = 5  # values of which a median is taken
_OUTSIDE = 2.5
_LASTING_STEPS = 12
_LATER_PARTS = (0.33, 0.5, 0.67)
_PLAIN_SD = 8.0  # of the noise between neighbours; a plain change is larger
_PLAIN_FROM = (0.0, 0.25, 0.5)
_AROUND = 20  # steps that are averaged
_PARTS = (1, 2, 4, 8)  # of a run, whose means are tested
_FEWEST_OF_MEAN = 3  # values
_FEWEST_SURE = 8  # values
Z_99 = 2.3263478740408408  # the standard normal's 0.99 quantile
HUGE = 1e100  # squares of larger values are no numbers


def table_of(
    title: str, columns: str, cells: str, records: Iterable[Mapping[str, Any]], caption: str = ""
) -> Table:
    """A row for each record; headings and the formats of the cells are separated by bars."""
    rows = tuple(tuple(cell.format(**record) for cell in cells.split("|")) for record in records)
    return Table(title, tuple(columns.split("|")), rows, caption)


def find_signal_change(run: RunSignals, name: str, since: float = 0.0) -> ChangePoint | None:
    """Test a signal for a change; ratios (norms, memory, times) by their logarithm. None: too short.

    The levels are in the unit of the signal and medians of its values, also those of a trend: a fitted line
    may end where no value is. The onset is a step. `since` is the share of the values that are left out at
    the beginning.
    """
    steps, values = run.testable(name)
    steps, values = steps[int(since * len(steps)) :], values[int(since * len(values)) :]
    if (change := find_change_point(values)) is None:
        return None
    before, after, effect = change.before, change.after, change.effect_sd
    left = departure(values, change.onset)
    if change.kind == "trend":
        fitted = after - before
        before, after = _levels_around(values, left.step)
        effect *= (after - before) / fitted if fitted else 1.0
    if RATIO_SCALE.fullmatch(name):
        before, after = np.exp((before, after)).tolist()
    return replace(change, before=before, after=after, effect_sd=effect, onset=onset_at(steps, left))


def _levels_around(values: Floats, place: int) -> tuple[float, float]:
    """The median of the values before a place, 60 at most, and of those after it, the last tenth at most."""
    since = max(_FEWEST, min(len(values) // 10, len(values) - place))
    reference = values[: max(place, _FEWEST)][-_REFERENCE:]
    return median(reference), median(values[-since:])


def departure(values: Floats, onset: Onset) -> Onset:
    """The place at which the values left what they were before, for a change that was located at `onset`.

    A step or a kinked line is fitted to changes of any shape, and a slow one is placed in its middle. From
    there the values are followed back while they are outside the band of what was before, and on while they
    are inside it: the line through them, and 2.5 robust standard deviations on both sides.
    """
    place = onset.step
    start = max(0, place - 2 * _REFERENCE)
    reference = values[start : place - min(_REFERENCE // 2, max(2, place // 3))]
    if len(reference) < _MIN_REFERENCE:
        return onset
    x = np.arange(-len(reference), 0.0)
    trend = float(np.polyfit(x, reference, 1)[0]) if len(reference) >= MIN_POINTS else 0.0
    middle = median(reference - trend * x)
    spread = median_deviation(reference - trend * x - middle)
    offsets = np.arange(len(values)) - (start + len(reference))
    outside = np.abs(values - middle - trend * offsets) > _OUTSIDE * spread
    first = place
    while first > start and outside[max(first - 2, 0) : first].any():
        first -= 1
    while first < min(place + _REFERENCE, len(values) - 1) and outside[first : first + 3].sum() < 2:
        first += 1
    if first == min(place + _REFERENCE, len(values) - 1):
        return onset  # it never leaves the band: too small to be followed
    return Onset(first, min(first, onset.low), max(first, onset.high))


def late_part(values: Floats) -> Floats:
    """The last quarter of the values."""
    return values[int(_LATE * len(values)) :]


def first_frequent(bad: Bools) -> int | None:
    """The first place from which on most of the next 15 values are bad."""
    frequent = (place for place in np.flatnonzero(bad) if bad[place : place + _FREQUENT].mean() > 0.5)
    return next(map(int, frequent), None)


def most_likely_start(events: Bools) -> int:
    """The event from which on they are more frequent than before, by the largest likelihood of two rates."""
    places = np.flatnonzero(events)
    counts, lengths = np.arange(len(places)), places  # before each event
    later, rest = len(places) - counts, len(events) - lengths

    def log_likelihood(k: Any, n: Any) -> Any:
        rate = np.clip(k / np.maximum(n, 1), 1e-12, 1 - 1e-12)
        return k * np.log(rate) + (n - k) * np.log1p(-rate)

    fit = log_likelihood(counts, lengths) + log_likelihood(later, rest)
    return int(places[np.where(later / rest > counts / np.maximum(lengths, 1), fit, -np.inf).argmax()])


def median_of_part(values: Floats, first: float, last: float) -> float:
    """The median of the values between two shares of the series, at least one value."""
    start = min(int(first * len(values)), len(values) - 1)
    return median(values[start : max(int(np.ceil(last * len(values))), start + 1)])


def lasting_change(
    *,
    falls: bool = False,
    rise: float = np.inf,
    below: float = 0.0,
    above: float = np.inf,
    if_passing_more: Severity | Literal["no finding"] | None = None,
    ruins: float = 0.0,
) -> Test:
    """A change for the worse: a fall (`falls`), or one to `below` or `above` so many times the level
    before. A rise by more than `rise` must have lasted for 12 values: shares of the few answers of a
    step vary. Where the pass rate rose, it may be less severe, or nothing, but for a fall to less than
    `ruins` of the level before. A change beyond these limits that is plain (`plain_change`) needs no test;
    where the pass rate may excuse it, the later parts of the run are looked at as well.
    """

    def judged(run: RunSignals, signal: str, change: ChangePoint, since: int, p: float | None) -> Result:
        moved, level = change.after - change.before, change.after
        lasted = int((run.series(signal)[0] >= change.onset.step).sum())
        worse = (falls and moved < 0) or (moved > rise and lasted >= _LASTING_STEPS)
        if change.before > 0:
            worse = worse or level < below * change.before or level > above * change.before
        found = worse and change.is_large
        severity: Severity | None = None
        excusable = found and if_passing_more and not level < ruins * change.before
        if excusable and rise_since(run, PASS_RATE, since) is not None:
            found = if_passing_more != "no finding"
            severity = None if if_passing_more == "no finding" else if_passing_more
        relative = change.after / change.before - 1 if change.before else np.inf
        numbers = {"signal": signal, **vars(change), "relative": relative}
        return Result(found, numbers, severity, change.onset, p, change=change)

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        if (change := find_signal_change(run, signal)) is None:
            return not_made(gap_of(run, signal))
        if falls:  # a fall after a rise is no change of the whole: the later parts are tested, too
            parts = [change, *(find_signal_change(run, signal, since) for since in _LATER_PARTS)]
            known = [one for one in parts if one and one.after < one.before] or [change]
            change = min(known, key=lambda one: one.p_value)
            change = replace(change, p_value=min(1.0, len(parts) * change.p_value))
        tested = judged(run, signal, change, change.onset.step, change.p_value)
        steps, plainly = run.testable(signal)[0], []
        for since in () if falls else _PLAIN_FROM if if_passing_more else (0.0,):
            if plain := plain_change(run, signal, since):
                start = int(steps[int(since * len(steps))]) if since else plain.onset.step
                plainly.append(judged(run, signal, plain, start, None))
        plainly = [one for one in plainly if one.found]
        plainly.sort(key=lambda one: one.severity is not None)  # what nothing excuses comes first
        if not plainly:
            return tested
        is_known = tested.found and change.p_value <= limits.alpha and tested.severity == plainly[0].severity
        return replace(tested, p_value=None) if is_known else plainly[0]

    return test


def plain_change(run: RunSignals, name: str, since: float = 0.0) -> ChangePoint | None:
    """A change from the first tenth of the values, from the share `since` of them on, to the last tenth, by
    far more than neighbours differ. None: there is none.

    A ramp that levels off is neither a step nor a kinked line, so that a test takes what they leave for a
    random walk; it only dates the change. How large a change is harmful is for limits to say.
    """
    values = run.testable(name)[1]
    part = values[int(since * len(values)) :]
    count = max(_LASTING_STEPS, len(values) // 10)
    change = find_signal_change(run, name, since) if len(part) >= 4 * count else None
    if change is None:
        return None
    before, after = median(part[:count]), median(part[-count:])
    noise = difference_noise(part)
    if (after > before) != (change.after > change.before) or abs(after - before) <= _PLAIN_SD * noise:
        return None
    effect = (after - before) / max(noise, 1e-12)
    if RATIO_SCALE.fullmatch(name):
        before, after = np.exp((before, after)).tolist()
    return replace(change, before=before, after=after, effect_sd=effect)


def rise_since(run: RunSignals, name: str, step: int) -> tuple[float, float] | None:
    """(before, after) where a signal is surely higher at the end than it was around `step`."""
    steps, values = run.series(name)
    around = values[(steps > step - _AROUND) & (steps <= step + _AROUND // 4)]
    last = values[-max(_AROUND, len(values) // 10) :]
    if len(around) < _AROUND // 4 or len(values) < _AROUND:
        return None
    noise = difference_noise(values)
    error = noise * np.sqrt(2 / len(around) + 2 / len(last))  # neighbours resemble each other
    before, after = float(around.mean()), float(last.mean())
    least = LEAST_RISE if name == PASS_RATE else LEAST_RISE * abs(before)
    return (before, after) if after - before > max(3 * error, least, 1e-9) else None


def beyond(*, above: float, off: float | None = None) -> Test:
    """A value above a limit (or farther than `above` from `off`) at more than a fifth of the steps of the
    whole run or of its second half, or at nearly all of the last 20; dated by the first step from which on
    most are.
    """

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        steps, values = run.series(signal)
        bad = (values if off is None else np.abs(values - off)) > above
        share = max(float(bad.mean()), float(bad[len(values) // 2 :].mean()))
        limit = f"{above:g}" if off is None else f"{off:g} ± {above:g}"
        middle = median(values[bad]) if bad.any() else 0.0
        numbers = {"signal": signal, "limit": limit, "share": share, "median": middle}
        onset = exactly(steps[first_frequent(bad) or bad.argmax()]) if bad.any() else None
        at_the_end = len(bad) >= 2 * _NEWEST and bad[-_NEWEST:].mean() >= 0.9
        return Result(share > 0.2 or bool(at_the_end), numbers, onset=onset)

    return test


def surely_above(values: Floats, limit: float) -> bool:
    """Whether the mean of 8 values or more is above a limit, by more than chance explains (Student, 99 %)."""
    if len(values) < _FEWEST_SURE:
        return False
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - student_quantile(Z_99, len(values) - 1) * error > limit


def late_mean(*, above: float) -> Test:
    """A mean over the last quarter of the run above a limit."""

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        late = float(late_part(run.series(signal)[1]).mean())
        return Result(late > above, {"late": late})

    return test


@dataclass(frozen=True)
class Impossible:
    """Values that a signal cannot have: the place of the first, how many, and the one that is farthest off.

    Of an estimate that crosses its bound by noise, `farthest` is the mean that is, `first` the place from
    which on most values are beyond the noise, and `sigmas` by how many standard errors the mean is.
    """

    first: int
    count: int
    farthest: float
    sigmas: float | None = None


def find_impossible(values: Floats, possible: Range, level: float = 0.01) -> Impossible | None:
    """What is outside the range; None: nothing. `level` is the chance of a finding where the true value of an
    estimate is its bound: means of the whole, of halves, quarters and eighths are tested.
    """
    if possible.in_another_unit(values):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        off = np.maximum(possible.low - values, values - possible.high)
        if possible.visible is None or np.abs(values).max(initial=0.0) > HUGE:
            bad = np.flatnonzero(possible.beyond(values))
            return (
                Impossible(int(bad[0]), len(bad), float(values[bad[off[bad].argmax()]])) if len(bad) else None
            )
        if len(values) < _PARTS[-1]:
            return None
        counts = [count for count in _PARTS if len(values) >= count * _FEWEST_OF_MEAN]
        of_value, limit = noise_of(values, -NormalDist().inv_cdf(level / sum(counts)))
        found, start = [], 0
        for part in (part for count in counts for part in np.array_split(values, count)):
            mean, error = float(part.mean()), of_value / math.sqrt(len(part))
            distance = max(possible.low - mean, mean - possible.high)
            if distance > max(possible.visible, limit * error):
                found.append((distance, mean, distance / max(error, 1e-12), start))
            start = (start + len(part)) % len(values)
        if not found:
            return None
        _, mean, sigmas, _ = max(found)
        first = first_frequent(off > max(possible.visible, of_value))
    return Impossible(
        min(start for *_, start in found) if first is None else first, int((off > 0).sum()), mean, sigmas
    )


def noise_of(values: Floats, z: float) -> tuple[float, float]:
    """(standard error that a single value adds to a mean, how many errors of a mean chance explains).

    The noise is an AR(1) around a curve: its size is that of the differences of neighbours, which no drift
    makes larger, and its autocorrelation that around a parabola, without its bias (Marriott & Pope 1954,
    Biometrika 41). The limit is the quantile of Student's distribution that is `z` of the normal one.
    """
    x = np.linspace(-1, 1, len(values))
    around = values - np.polyval(np.polyfit(x, values, 2), x)
    total = float(around @ around)
    phi = float(around[1:] @ around[:-1]) / total if total else 0.0
    phi = min(max(phi + (1 + 3 * phi) / len(values), 0.0), 0.95)
    innovation = difference_noise(values)
    return innovation * math.sqrt(1 + phi) / (1 - phi), student_quantile(z, len(values) / 3)


def difference_noise(values: Floats) -> float:
    """The standard deviation of a series around a smooth curve, by the differences of neighbours."""
    return median_deviation(np.diff(values)) / math.sqrt(2)


def student_quantile(z: float, free: float) -> float:
    """The quantile of Student's distribution with `free` degrees of freedom that is `z` of the normal one
    (Wallace 1959, Annals of Mathematical Statistics 30).
    """
    return math.sqrt(free * math.expm1((z * (8 * free + 3) / (8 * free + 1)) ** 2 / free))


def onset_of(run: RunSignals, signal: str) -> Onset | None:
    """The place of the likeliest change of a signal that is known to have changed."""
    return change.onset if (change := find_signal_change(run, signal)) else None


EXPLOSION_RATIO = 3.0  # to the median before
SPIKE_RATIO = 3.0  # to the median around
SPIKE_SIGMAS = 8.0
SPIKE_LOG_SIGMAS = 4.0  # of the logarithms, which norms of few answers are normal in
MIN_GROWTH_FACTOR = 1.1
MEMORY_RATIO = 1.25  # between two runs; the same run repeated varies by a few percent
_NOT_FINITE_RATIO = 10.0  # how many times the largest finite norm a norm that is not finite counts as
_SPIKE_REACH = 25  # steps on both sides
_WINDOWS_AT_ONCE = 1 << 14  # each is copied
_BEGINNING = 5  # steps
_SUSTAINED_SHARE = 0.5
_LASTING_SHARE = 0.05  # of the steps, for which the memory of two runs must differ up to the end
_WARM_UP = 0.1  # of the run: allocators and caches fill up
MEMORY_POINTS = math.ceil(MIN_POINTS / (1 - _WARM_UP))  # values, with those of the warm-up
_ENVELOPE_POINTS = 60
_QUARTER_SHARE = 0.12  # of the growth, which each quarter after the onset must add to the one before
_MIDWAY = 0.15  # of the run; what begins to grow earlier grows from the start
_BURST_RATIO = 4.0  # to the median of the run
_BURST_STEPS = 5


@dataclass(frozen=True)
class Spike:
    """One value far above its surroundings: how many times their median, how many robust sigmas."""

    step: int
    value: float
    ratio: float
    sigmas: float


@dataclass(frozen=True)
class Explosion:
    """A norm that grew. `ratio` is the median of the last tenth to that before the onset, which may be inf.

    `log_slope` is the growth of the natural logarithm per step from the onset on. `sustained` says
    whether most steps since then are above three times the median before.
    """

    onset: Onset
    ratio: float
    log_slope: float
    sustained: bool
    p_value: float


@dataclass(frozen=True)
class MemoryGrowth:
    """The growth of memory over a run.

    `factor` is the fitted memory at the last step over that at the first one (`at_start`), with its 95 %
    interval; warm-up is not in the fit. `per_step` is the slope in the unit of the series. `steps_to_limit`
    counts from the last step until the line meets the limit, None without one, or without growth. `onset` is
    the first step that grows.
    """

    at_start: float
    factor: float
    factor_low: float
    factor_high: float
    per_step: float
    p_value: float
    steps_to_limit: float | None
    is_leak: bool
    onset: Onset


def large_where(not_finite: npt.NDArray[np.bool_], norms: Floats) -> Floats:
    """`norms` with ten times the largest finite norm where `not_finite`.

    A norm that is NaN or infinite has exploded. If it were left out, too few norms after an explosion
    would remain to date it.
    """
    finite = norms[np.isfinite(norms)]
    return np.where(not_finite, _NOT_FINITE_RATIO * finite.max(), norms) if len(finite) else norms


def find_spikes(steps: Steps, values: Floats) -> list[Spike]:
    """Values above 3 times the median of the 25 steps on both sides, over it by 8 robust sigmas, and by 4 of
    the logarithms.

    The ratio keeps small deviations from surroundings that hardly vary out of the list, the logarithms those
    of a series whose usual values differ by factors. The first 5 values are no spikes, however high: a run
    begins with large gradients, and the median around is of later ones.
    """
    if len(values) < 2 * _SPIKE_REACH + 1:
        return []
    padded = np.pad(values, _SPIKE_REACH, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _SPIKE_REACH + 1)
    parts = range(0, len(windows), _WINDOWS_AT_ONCE)
    around = np.concatenate([medians(windows[first : first + _WINDOWS_AT_ONCE]) for first in parts])
    excess = values - around
    sigma = max(median_deviation(excess), float(np.finfo(float).tiny))
    positive = (around > 0) & (values > 0)
    logs = np.log(np.where(positive, values, 1.0) / np.where(positive, around, 1.0))
    log_sigma = median_deviation(logs[positive]) if positive.any() else 0.0
    found = positive & (values > SPIKE_RATIO * around) & (excess > SPIKE_SIGMAS * sigma)
    found &= logs > SPIKE_LOG_SIGMAS * log_sigma
    found[:_BEGINNING] = False
    with np.errstate(over="ignore"):  # a level that never varies has no sigma
        return [
            Spike(int(steps[i]), float(values[i]), float(values[i] / around[i]), float(excess[i] / sigma))
            for i in np.flatnonzero(found)
        ]


def first_out_of_scale(log_norms: Floats, onset: Onset) -> Onset:
    """The place at which norms left their scale for the change that was found at `onset`.

    A test finds the largest step up. Norms directly before it that are above 3 times the median of all
    before are the beginning of the explosion.
    """
    first = onset.step
    limit = median(log_norms[:first]) + np.log(EXPLOSION_RATIO) if first else np.inf
    while first > 0 and log_norms[first - 1] > limit:
        first -= 1
    return Onset(first, min(first, onset.low), onset.high)


def find_explosion(steps: Steps, norms: Floats, *, alpha: float = 0.05) -> Explosion | None:
    """Test the logarithms of `norms` for a rise to at least 3 times the median before it.

    Norms of 0 (steps without a gradient) say nothing about growth and are left out. One that is not a
    finite number is larger than all that are: it counts as ten times the largest of them. None: no
    explosion, or fewer than MIN_POINTS norms of both kinds.
    """
    finite = np.isfinite(norms)
    counted = ~finite | (norms > 0)
    steps, norms, finite = steps[counted], norms[counted], finite[counted]
    if not finite.any():
        return None
    logs = np.log(large_where(~finite, norms))
    change = find_change_point(logs)
    if change is None or not change.is_notable(alpha) or change.effect_sd < 0 or change.onset.step == 0:
        return None
    before = median(logs[: change.onset.step])
    tenth = slice(-max(1, len(logs) // 10), None)
    last = median(logs[tenth])
    if last - before < np.log(EXPLOSION_RATIO):
        return None
    out_of_scale = logs > before + np.log(EXPLOSION_RATIO)
    onset = first_out_of_scale(logs, change.onset)
    since = slice(onset.step, None)
    return Explosion(
        onset_at(steps, onset),
        float(np.exp(last - before)) if finite[tenth].mean() > 0.5 else math.inf,
        float(np.polyfit(steps[since], logs[since], 1)[0]) if len(logs[since]) > 1 else 0.0,
        bool(out_of_scale[since].mean() >= _SUSTAINED_SHARE),
        change.p_value,
    )


def measure_memory_growth(
    steps: Steps, memory: Floats, *, limit: float | None = None, alpha: float = 0.05
) -> MemoryGrowth | None:
    """Fit a line to the lower envelope of `memory` from where it begins to grow. None: too few values.

    The smallest value of each stretch of steps forgets the peaks of long batches and keeps what is never
    freed. A leak is significant (AR(1) null), grows by a tenth or more, and goes on in each quarter of what
    follows its onset, evenly or in steps: a cache that fills up, or single allocations that are kept, are
    none.
    """
    skipped = int(_WARM_UP * len(memory))
    at, low = lower_envelope(steps[skipped:], memory[skipped:])
    if (change := find_change_point(low)) is None:
        return None
    since = change.onset.step if change.onset.step > _MIDWAY * len(low) else 0
    if _goes_on(low):
        since = 0 if not since or _goes_on(low[:since]) else since
    at, low, before = at[since:], low[since:], low[:since]
    slope, slope_low, slope_high = theil_sen(at, low)
    middle = median(low - slope * (at - median(at)))
    centre = median(at)
    first, last = float(at[0] if since else steps[0]) - centre, float(steps[-1]) - centre
    level = median(before) if since else middle + slope * first

    def factor(rate: float) -> float:
        start = level if since else middle + rate * first
        return (middle + rate * last) / start if start > 0 else np.inf

    remaining = None if limit is None or slope <= 0 else max(0.0, (limit - middle - slope * last) / slope)
    start = middle + slope * first
    # An allocation at the onset that stays is no growth.
    since_then = (middle + slope * last) / start if start > 0 else np.inf
    grows = slope > 0 and min(factor(slope), since_then) >= MIN_GROWTH_FACTOR and _goes_on(low)
    dated = exactly(steps[0])
    if since:
        every = (int(steps[-1]) - int(steps[skipped])) / max(since + len(at) - 1, 1)
        places = (since, min(since, change.onset.low), max(since, change.onset.high))
        dated = Onset(*(int(steps[skipped] + every * place) for place in places))
    return MemoryGrowth(
        level,
        factor(slope),
        factor(slope_low),
        factor(slope_high),
        slope,
        change.p_value,
        remaining,
        bool(grows and change.p_value <= alpha),
        dated,
    )


def _goes_on(low: Floats) -> bool:
    """Whether each quarter adds to the growth."""
    if len(low) < 8:
        return False
    levels = np.array([median(part) for part in np.array_split(low, 4)])
    return bool(
        levels[-1] > levels[0] and (np.diff(levels) >= _QUARTER_SHARE * (levels[-1] - levels[0])).all()
    )


@dataclass(frozen=True)
class Burst:
    """Norms that left their scale for a stretch of steps and came back."""

    onset: Onset
    last: int
    ratio: float
    steps: int


def find_burst(steps: Steps, norms: Floats) -> Burst | None:
    """The longest stretch of norms above 4 times the median of the run: 5 steps or more, under a half."""
    positive = norms > 0
    steps, norms = steps[positive], norms[positive]
    if len(norms) < MIN_POINTS:
        return None
    middle = median(norms)
    # One norm in between may be usual.
    high = np.convolve(norms > _BURST_RATIO * middle, np.ones(3) / 3, "same") > 0.5
    stretches = np.flatnonzero(np.diff(high.astype(int), prepend=0, append=0)).reshape(-1, 2)
    if not len(stretches):
        return None
    first, end = max(stretches.tolist(), key=lambda one: one[1] - one[0])
    before, after = norms[:first], norms[end:]
    if not _BURST_STEPS <= end - first < len(norms) / 2 or min(len(before), len(after)) < _BURST_STEPS:
        return None
    if not 1 / _BURST_RATIO < median(after) / median(before) < _BURST_RATIO:
        return None  # it did not come back
    onset = Onset(int(steps[first]), int(steps[max(first - 1, 0)]), int(steps[min(first + 1, end - 1)]))
    return Burst(onset, int(steps[end - 1]), median(norms[first:end]) / middle, end - first)


def first_memory_difference(a: Floats, b: Floats) -> int | None:
    """The index from which the memory of two runs differs by MEMORY_RATIO up to the end; None: nowhere."""
    known = np.flatnonzero((a > 0) & (b > 0) & np.isfinite(a) & np.isfinite(b))
    if not len(known):
        return None
    close = np.abs(np.log(b[known] / a[known])) < np.log(MEMORY_RATIO)
    first = int(np.flatnonzero(close)[-1]) + 1 if close.any() else 0
    return int(known[first]) if len(known) - first >= max(1, _LASTING_SHARE * len(known)) else None


def lower_envelope(steps: Steps, values: Floats) -> tuple[Floats, Floats]:
    """(middle step, smallest value) of about 60 stretches, fewer for short series but at least 30."""
    if len(values) < MIN_POINTS:
        return steps.astype(float), values
    width = max(1, len(values) // _ENVELOPE_POINTS)
    count = len(values) // width
    newest = slice(len(values) - count * width, None)
    stretches = steps[newest].astype(float).reshape(count, width)
    return stretches.mean(axis=1), values[newest].reshape(count, width).min(axis=1)


def theil_sen(x: Floats, y: Floats) -> tuple[float, float, float]:
    """The median of all pairwise slopes (Theil 1950) with Sen's 95 % interval for independent errors."""
    i, j = np.triu_indices(len(x), 1)
    slopes = np.sort((y[j] - y[i]) / (x[j] - x[i]))
    n = len(x)
    reach = Z_95 * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = (int(np.clip((len(slopes) + side * reach) / 2, 0, len(slopes) - 1)) for side in (-1, 1))
    return median(slopes), float(slopes[low]), float(slopes[high])


_RAW_BLOCKS = 120  # two points each
_SMOOTH_BLOCKS = 60
_SMOOTH_FROM = 120  # values; shorter series are shown as they are


def lines_of(name: str, role: Role, steps: Steps, values: Floats) -> list[Series]:
    """A signal as a line; of many values the extremes as a faint line and the means over it."""
    if not len(values):
        return []
    if len(values) < _SMOOTH_FROM:
        return [Series(name, role, _points(steps, values))]
    starts, sizes = _blocks(len(values), min(_RAW_BLOCKS, len(values) // 2))
    ends = []
    for extreme in (np.minimum, np.maximum):
        places = np.flatnonzero(values == np.repeat(extreme.reduceat(values, starts), sizes))
        blocks = np.searchsorted(starts, places, side="right")
        ends.append(places[np.flatnonzero(np.diff(blocks, prepend=0))])  # the first of each block
    at = distinct(np.concatenate(ends))
    starts, sizes = _blocks(len(values), _SMOOTH_BLOCKS)
    means = (np.add.reduceat(np.asarray(line, float), starts) / sizes for line in (steps, values))
    return [Series("", role, _points(steps[at], values[at]), "faint"), Series(name, role, _points(*means))]


def _blocks(length: int, number: int) -> tuple[Steps, Steps]:
    """(starts, sizes) of so many blocks of a series, the first of which may be longer by one."""
    sizes = length // number + (np.arange(number) < length % number)
    return np.cumsum(sizes) - sizes, sizes


def _points(steps: npt.ArrayLike, values: npt.ArrayLike) -> tuple[tuple[float, float], ...]:
    return tuple(zip(np.asarray(steps, float).tolist(), np.asarray(values, float).tolist(), strict=True))
