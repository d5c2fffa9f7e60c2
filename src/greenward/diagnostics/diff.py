"""Where two runs part: what was set otherwise, then the first step at which each signal differs.

Runs that begin with equal numbers are compared value by value (a replay: the earliest difference names
the culprit). Others differ in every value by chance, so their paired difference B − A (the logarithm
of B / A for norms, memory and times) is tested for a lasting change; see `change`. Memory also parts
where one run ends with at least 1.25 times the memory of the other, which needs no test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.causes import NOT_REPRODUCIBLE, Cause, likely_cause, stage_index
from greenward.diagnostics.change_points import (
    MIN_EFFECT_SD,
    MIN_POINTS,
    ChangePoint,
    effect_text,
    find_change_point,
    find_offset,
    holm,
)
from greenward.diagnostics.growth import first_memory_difference, first_out_of_scale
from greenward.diagnostics.settings import PROVENANCE, Setting, different_settings
from greenward.diagnostics.signals import (
    Signals,
    is_memory,
    is_norm,
    is_scheduled,
    on_ratio_scale,
    read_signals,
)
from greenward.errors import DiagnosticsError
from greenward.runs.metrics import TIMING_PREFIXES
from greenward.runs.reading import read_config

Floats = npt.NDArray[np.float64]

TOLERANCE = 1e-6  # relative; float32 sums in another order differ by less
ALPHA = 0.05
_ZERO = 1e-12  # smaller differences are rounding of a value that is 0
_DESCRIBED = 0.01  # a change this sure is described as one, even if the mean of the gap is surer not 0

Verdict = Literal["same", "no systematic difference", "diverged", "not reproducible", "cannot tell"]
Found = Literal["first value", "shift", "trend", "offset", "not finite", "nothing"]


@dataclass(frozen=True)
class SignalDifference:
    """One signal in both runs.

    `onset` and its 95 % interval are steps, None where nothing was found. `a` and `b` are the medians
    from the onset on (of all common steps without one). `effect_sd` is the size of the lasting difference
    in standard deviations of the noise, `adjusted_p` its p-value after Holm's correction; both are
    None for fewer than 30 common values. `points` are (step, A, B), for charts.
    """

    signal: str
    found: Found
    onset: int | None
    onset_low: int | None
    onset_high: int | None
    a: float
    b: float
    effect_sd: float | None
    adjusted_p: float | None
    steps: tuple[int, ...]
    values_a: tuple[float, ...]
    values_b: tuple[float, ...]

    @property
    def relative(self) -> float | None:
        """B / A − 1, None where A is 0 or not finite."""
        finite = np.isfinite(self.a) and np.isfinite(self.b) and self.a != 0
        return (self.b - self.a) / abs(self.a) if finite else None


@dataclass(frozen=True)
class RunDiff:
    """Two runs compared; `differences` begins with the signals that part first."""

    a: str
    b: str
    first_step: int
    last_step: int
    common_steps: int
    replay: bool
    settings: tuple[Setting, ...]
    verdict: Verdict
    headline: str
    differences: tuple[SignalDifference, ...]
    cause: Cause | None
    notes: tuple[str, ...]


def diff_runs(a: str | Path, b: str | Path, signals: Sequence[str] = ()) -> RunDiff:
    """Compare two run directories on `signals` (names or aliases); all common ones if none are given.

    Raises:
        DiagnosticsError: no metrics, an unknown signal, or no step or signal in common.
    """
    left, right = read_signals(a), read_signals(b)
    common = np.intersect1d(left.steps, right.steps)
    if not len(common):
        raise DiagnosticsError(
            f"the runs have no common steps: {_span(left)} in A, {_span(right)} in B",
            remedy="Compare runs whose steps overlap.",
        )
    in_a, in_b = np.searchsorted(left.steps, common), np.searchsorted(right.steps, common)
    pairs = {
        name: _Pair(
            left.values[name][in_a],
            right.values[name][in_b],
            left.non_finite(name)[in_a] != right.non_finite(name)[in_b],
            left.comparable(name)[in_a],
            right.comparable(name)[in_b],
        )
        for name in left.values
        if name in right.values
    }
    names = _chosen(left, right, pairs, signals)
    settings, notes = different_settings(Path(a), Path(b))
    notes += [f"A: {note}" for note in left.notes] + [f"B: {note}" for note in right.notes]
    notes += [*_non_finite("A", left, names), *_non_finite("B", right, names)]
    one_sided = sorted(left.values.keys() ^ right.values.keys())
    if one_sided and not signals:
        notes.append(f"logged by one run only, not compared: {', '.join(one_sided)}")
    replay = _is_replay(pairs)
    tested = [_test(name, pairs[name].tested_a, pairs[name].tested_b) for name in names]
    adjusted = iter(holm([test.p_value for test in tested if test is not None]))
    differences = [
        _difference(name, common, pairs[name], test, next(adjusted) if test else None, replay)
        for name, test in zip(names, tested, strict=True)
    ]
    differences.sort(key=_by_onset)
    parted = [difference for difference in differences if difference.onset is not None]
    too_short = not parted and not replay and all(test is None for test in tested)
    verdict: Verdict = (
        "not reproducible"
        if not replay and _same_seed(Path(a), Path(b), settings)
        else "diverged"
        if parted
        else "cannot tell"
        if too_short
        else "same"
        if replay
        else "no systematic difference"
    )
    return RunDiff(
        str(a),
        str(b),
        int(common[0]),
        int(common[-1]),
        len(common),
        replay,
        tuple(settings),
        verdict,
        _headline(verdict, parted, differences, pairs, common),
        tuple(differences),
        NOT_REPRODUCIBLE
        if verdict == "not reproducible"
        else likely_cause([(d.signal, d.onset) for d in parted if d.onset is not None], bool(settings)),
        tuple(notes),
    )


@dataclass(frozen=True)
class _Pair:
    """A signal of both runs at the common steps; `broke` where one of them alone logged NaN or infinity.

    `tested_a` and `tested_b` are what the tests compare; see `Signals.comparable`.
    """

    a: Floats
    b: Floats
    broke: npt.NDArray[np.bool_]
    tested_a: Floats
    tested_b: Floats


@dataclass(frozen=True)
class _Test:
    """The better of the two tests of one paired difference; p-values count both (Bonferroni).

    `onset` is an index into `finite`, the indices of the values that were tested.
    """

    p_value: float
    effect_sd: float
    change: ChangePoint | None  # None: an offset from the first step on
    onset: int
    finite: npt.NDArray[np.intp]


def _test(name: str, a: Floats, b: Floats) -> _Test | None:
    usable = np.isfinite(a) & np.isfinite(b)
    ratio = on_ratio_scale(name)
    if ratio:
        usable &= (a > 0) & (b > 0)
    index = np.flatnonzero(usable)
    gap = np.log(b[index] / a[index]) if ratio else b[index] - a[index]
    gap[_equal(a[index], b[index])] = 0.0
    change, offset = find_change_point(gap), find_offset(gap)
    if change is None or offset is None:
        return None
    p_value = min(1.0, 2 * min(change.p_value, offset[0]))
    if change.is_notable(_DESCRIBED) or change.p_value <= offset[0]:
        onset = change.onset
        if is_norm(name) and change.kind == "shift" and change.effect_sd > 0:
            onset = first_out_of_scale(gap, onset)
        return _Test(p_value, change.effect_sd, change, onset, index)
    return _Test(p_value, offset[1], None, 0, index)


def _difference(
    name: str,
    steps: npt.NDArray[np.int64],
    pair: _Pair,
    test: _Test | None,
    adjusted: float | None,
    replay: bool,
) -> SignalDifference:
    found, place, low, high = _onset(name, pair, test, adjusted, replay)
    since = slice(place or 0, None)

    def at(index: int | None) -> int | None:
        return None if index is None else int(steps[index])

    return SignalDifference(
        name,
        found,
        at(place),
        at(low),
        at(high),
        _median(pair.a[since]),
        _median(pair.b[since]),
        None if test is None else test.effect_sd,
        adjusted,
        tuple(steps.tolist()),
        tuple(pair.a.tolist()),
        tuple(pair.b.tolist()),
    )


def _onset(
    name: str, pair: _Pair, test: _Test | None, adjusted: float | None, replay: bool
) -> tuple[Found, int | None, int | None, int | None]:
    if replay and _is_determined(name):
        unequal = np.flatnonzero(~_equal(pair.a, pair.b))
        if len(unequal):
            first = int(unequal[0])
            return "first value", first, first, first
        return "nothing", None, None, None
    broken = np.flatnonzero(pair.broke)
    notable = (
        test is not None
        and adjusted is not None
        and adjusted <= ALPHA
        and abs(test.effect_sd) >= MIN_EFFECT_SD
    )
    if test is not None and notable:
        if test.change is None:
            first = int(test.finite[test.onset])
            return "offset", first, first, first
        change, first = test.change, test.onset
        places = (min(first, change.onset_low), first, change.onset_high)
        low, place, high = (int(test.finite[i]) for i in places)
        return change.kind, place, low, high
    if len(broken):
        first = int(broken[0])
        return "not finite", first, first, first
    if is_memory(name) and (first_apart := first_memory_difference(pair.a, pair.b)) is not None:
        return "shift", first_apart, first_apart, first_apart
    return "nothing", None, None, None


def _equal(a: Floats, b: Floats) -> npt.NDArray[np.bool_]:
    """Equal up to TOLERANCE; NaN equals NaN."""
    return np.isclose(a, b, rtol=TOLERANCE, atol=_ZERO, equal_nan=True)


def _is_determined(name: str) -> bool:
    """Whether the seed and the settings determine the signal; times and memory depend on the machine."""
    return not name.startswith(TIMING_PREFIXES)


def _same_seed(a: Path, b: Path, settings: Sequence[Setting]) -> bool:
    """Whether both configs name the same seed and differ in nothing that has an effect."""
    if any(not setting.key.startswith(PROVENANCE) for setting in settings):
        return False
    configs = [read_config(run) if (run / "config.yaml").is_file() else {} for run in (a, b)]
    return all("seed" in config for config in configs)


def _is_replay(pairs: dict[str, _Pair]) -> bool:
    """Whether everything that a seed determines is equal at the first common step."""
    repeatable = [pair for name, pair in pairs.items() if _is_determined(name) and not is_scheduled(name)]
    return bool(repeatable) and not any(map(_first_differs, repeatable))


def _first_differs(pair: _Pair) -> bool:
    return not _equal(pair.a[:1], pair.b[:1])[0]


def _chosen(left: Signals, right: Signals, pairs: dict[str, _Pair], wanted: Sequence[str]) -> list[str]:
    """Those asked for, else all common ones but the clock; the learning rate can part only a replay."""
    if wanted:
        names = list(dict.fromkeys(left.resolve(name) for name in wanted))
        for name in names:
            right.resolve(name)
        return names
    replay = _is_replay(pairs)
    names = [name for name in pairs if not is_scheduled(name) or (replay and _is_determined(name))]
    if not names:
        raise DiagnosticsError("the runs have no signal in common")
    return names


def _non_finite(side: str, signals: Signals, names: Sequence[str]) -> list[str]:
    wrong = {name: signals.steps[signals.non_finite(name)] for name in names}
    return [
        f"{side}: {name} is NaN or infinite at {len(steps)} of {len(signals.steps)} steps, from {steps[0]} on"
        for name, steps in wrong.items()
        if len(steps)
    ]


def _by_onset(difference: SignalDifference) -> tuple[float, int, str]:
    onset = np.inf if difference.onset is None else difference.onset
    return onset, stage_index(difference.signal), difference.signal


def _headline(
    verdict: Verdict,
    parted: Sequence[SignalDifference],
    differences: Sequence[SignalDifference],
    pairs: dict[str, _Pair],
    common: npt.NDArray[np.int64],
) -> str:
    if verdict == "not reproducible":
        unequal = sorted(
            (n for n in pairs if _is_determined(n) and _first_differs(pairs[n])), key=stage_index
        )
        first = pairs[unequal[0]]
        text = (
            f"NOT REPRODUCIBLE: the seed and the settings are the same, but {unequal[0]} is {first.a[0]:.4g} "
            f"in A and {first.b[0]:.4g} in B at step {common[0]}"
        )
        return f"{text}. {_parting(parted)}" if parted else text
    if verdict == "cannot tell":
        return f"CANNOT TELL: {len(common)} common steps; a test needs {MIN_POINTS}"
    if verdict == "same":
        determined = [found.signal for found in differences if _is_determined(found.signal)]
        noise = max((_largest_relative(pairs[signal]) for signal in determined), default=0.0)
        steps = f"SAME at {len(common)} common step{'s' if len(common) > 1 else ''}"
        return f"{steps}, up to float noise (largest relative difference {noise:.1g})" if noise else steps
    if verdict == "no systematic difference":
        effects = [d for d in differences if d.effect_sd is not None]
        largest = max(effects, key=lambda d: abs(d.effect_sd or 0.0))
        return (
            f"NO SYSTEMATIC DIFFERENCE (the largest effect is {effect_text(largest.effect_sd or 0.0)} in "
            f"{largest.signal}, adjusted p = {largest.adjusted_p:.2g})"
        )
    return _parting(parted)


def _parting(parted: Sequence[SignalDifference]) -> str:
    """What parts first, by how much, and what parts next."""
    first, *later = parted
    text = f"DIVERGED at step {first.onset} [{first.onset_low}, {first.onset_high}] in {first.signal}"
    sizes = [f"{first.relative:+.0%}"] if first.relative is not None else []
    if first.effect_sd is not None:
        sizes.append(f"{effect_text(first.effect_sd)} of the noise")
    text += f" ({', '.join(sizes)})" if sizes else ""
    then = [f"{difference.signal} from {difference.onset}" for difference in later[:3]]
    return text + (f", then {', '.join(then)}" if then else "")


def _largest_relative(pair: _Pair) -> float:
    """Over the values that differ by more than `_equal` takes for 0."""
    differ = np.isfinite(pair.a) & np.isfinite(pair.b) & ~np.isclose(pair.a, pair.b, rtol=0, atol=_ZERO)
    a, b = pair.a[differ], pair.b[differ]
    scale = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.finfo(float).tiny)
    return float((np.abs(a - b) / scale).max(initial=0.0))


def _median(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def _span(signals: Signals) -> str:
    return f"{signals.steps[0]} to {signals.steps[-1]}"
