"""The tests that checks of single signals share: lasting changes, shares of steps, levels at the end.

A function that is called in a table of checks takes the thresholds and returns the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.change_points import MIN_POINTS, ChangePoint, exactly, find_change_point, onset_at
from greenward.diagnostics.findings import Gap, gap_of
from greenward.diagnostics.signals import PASS_RATE, RATIO_SCALE, Bools, Floats, RunSignals
from greenward.reports.document import Chart, Fact, Onset, Severity, Table

ALPHA = 0.05
LEAST_RISE = 0.08  # of a rate, or of a reward's size, that counts as one
_LATE = 0.75  # from this share of the run on it is late
_NEWEST = 20  # values
_FREQUENT = 15  # values of which most must be bad
_REFERENCE = 60  # values before a change that say what was usual
_MIN_REFERENCE = 8
_FEWEST = 5  # values of which a median is taken
_OUTSIDE = 2.5
_LASTING = 12
_LATER_PARTS = (0.33, 0.5, 0.67)
_PLAIN_SD = 8.0  # of the noise between neighbours; a plain change is larger
_PLAIN_FROM = (0.0, 0.25, 0.5)
_AROUND = 20  # steps that are averaged


@dataclass(frozen=True)
class Thresholds:
    """What the user may set: the accepted chance of a false finding, and two thresholds."""

    alpha: float = ALPHA
    calibration_score: float = WARNING_SCORE
    memory_mb: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """The two thresholds, by their options."""
        return {"calibration": self.calibration_score, "memory_limit_mb": self.memory_mb}


@dataclass(frozen=True)
class Result:
    """What a test measured. `found` says whether it is a finding, `numbers` fill the sentence of the check.

    `severity` replaces that of the check; `p_value` is that of the test alone. `made` is False where only
    `gaps` came out of it. The other fields are shown in the card, whatever was found.
    """

    found: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity | None = None
    onset: Onset | None = None
    p_value: float | None = None
    made: bool = True
    gaps: tuple[Gap, ...] = ()
    change: ChangePoint | None = None
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def not_made(gap: Gap, **shown: Any) -> Result:
    """A test that could not be made, and why; `shown` are the fields to show nevertheless."""
    return Result(made=False, gaps=(gap,), **shown)


def table_of(
    title: str, columns: str, cells: str, records: Iterable[Mapping[str, Any]], caption: str = ""
) -> Table:
    """A row for each record; headings and the formats of the cells are separated by bars."""
    rows = tuple(tuple(cell.format(**record) for cell in cells.split("|")) for record in records)
    return Table(title, tuple(columns.split("|")), rows, caption)


Test: TypeAlias = Callable[[RunSignals, str, Thresholds], Result]


def find_signal_change(run: RunSignals, name: str, since: float = 0.0) -> ChangePoint | None:
    """Test a signal for a change; ratios (norms, memory, times) by their logarithm. None: too short.

    The levels are in the unit of the signal and medians of its values, also those of a trend: a fitted line
    may end where no value is. The onset is a step. `since` is the share of the values that are left out at
    the beginning.
    """
    steps, values = run.testable(name)
    steps, values = steps[int(since * len(steps)) :], values[int(since * len(values)) :]
    change = find_change_point(values)
    if change is None:
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
    return float(np.median(reference)), float(np.median(values[-since:]))


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
    middle = float(np.median(reference - trend * x))
    spread = 1.4826 * float(np.median(np.abs(reference - trend * x - middle)))
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
    return float(np.median(values[start : max(int(np.ceil(last * len(values))), start + 1)]))


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
        worse = (falls and moved < 0) or (moved > rise and lasted >= _LASTING)
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
        change = find_signal_change(run, signal)
        if change is None:
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
    count = max(_LASTING, len(values) // 10)
    change = find_signal_change(run, name, since) if len(part) >= 4 * count else None
    if change is None:
        return None
    before, after = float(np.median(part[:count])), float(np.median(part[-count:]))
    noise = 1.4826 * float(np.median(np.abs(np.diff(part)))) / np.sqrt(2)
    same_way = (after > before) == (change.after > change.before)
    if not same_way or abs(after - before) <= _PLAIN_SD * noise:
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
    noise = 1.4826 * float(np.median(np.abs(np.diff(values)))) / np.sqrt(2)
    error = noise * np.sqrt(2 / len(around) + 2 / len(last))  # neighbours resemble each other
    before, after = float(around.mean()), float(last.mean())
    least = LEAST_RISE if name == PASS_RATE else LEAST_RISE * abs(before)
    return (before, after) if after - before > max(3 * error, least, 1e-9) else None


def late_share(*, below: float, over: float) -> Test:
    """Values below a limit at more than the share `over` of the steps of the second half."""

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        values = run.series(signal)[1]
        late = values[len(values) // 2 :]
        share = float((late < below).mean())
        return Result(share > over, {"share": share, "median": float(np.median(late))})

    return test


def beyond(*, above: float, off: float | None = None) -> Test:
    """A value above a limit (or farther than `above` from `off`) at more than a fifth of the steps of the
    whole run or of its second half, or at nearly all of the last 20; dated by the first step from which on
    most are.
    """

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        steps, values = run.series(signal)
        bad = (values if off is None else np.abs(values - off)) > above
        half = len(values) // 2
        share = max(float(bad.mean()), float(bad[half:].mean()))
        limit = f"{above:g}" if off is None else f"{off:g} ± {above:g}"
        median = float(np.median(values[bad])) if bad.any() else 0.0
        numbers = {"signal": signal, "limit": limit, "share": share, "median": median}
        onset = exactly(steps[first_frequent(bad) or bad.argmax()]) if bad.any() else None
        at_the_end = len(bad) >= 2 * _NEWEST and bad[-_NEWEST:].mean() >= 0.9
        return Result(share > 0.2 or bool(at_the_end), numbers, onset=onset)

    return test


def late_mean(*, above: float) -> Test:
    """A mean over the last quarter of the run above a limit."""

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        late = float(late_part(run.series(signal)[1]).mean())
        return Result(late > above, {"late": late})

    return test


def moves_to(*, below: float = -np.inf, above: float = np.inf) -> Test:
    """A move from the first to the last tenth, to less than `below` or more than `above` times it. Entropies
    have little noise and look like random walks to a test of change, which only dates the move.
    """

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        values = run.series(signal)[1]
        start, end = median_of_part(values, 0, 0.1), median_of_part(values, 0.9, 1)
        if start <= 0 or below * start <= end <= above * start:
            return Result()
        numbers = {"before": start, "after": end, "ratio": end / start}
        return Result(True, numbers, onset=onset_of(run, signal))

    return test


def onset_of(run: RunSignals, signal: str) -> Onset | None:
    """The place of the likeliest change of a signal that is known to have changed."""
    return change.onset if (change := find_signal_change(run, signal)) else None
