"""Finds where two runs begin to differ, in settings and signals, and names a likely cause.

- `SAME` (exit code 0): equal at every common step, up to 10⁻⁶ relative (10⁻¹² absolute), and no lasting
  difference of memory or times.
- `NO SYSTEMATIC DIFFERENCE` (0): the numbers differ, and chance explains it.
- `DIVERGED at step s [low, high] in …` (1): the first signal, its size, and what followed.
- `NOT REPRODUCIBLE` (1): one seed and one config, and the first common step differs: see the differences of
  versions and machine.
- `CANNOT TELL` (2): fewer than 30 common steps.
- An error (2): no metrics, an unknown signal (the nearest names are listed), no common steps.

Runs that begin with equal numbers are compared value by value (a replay: the earliest difference names the
culprit). Others differ in every value by chance, so their paired difference B − A (the logarithm of B / A
for norms, memory and times) is tested for a lasting change; see `change_points`. Memory also differs where
one run ends with at least 1.25 times the memory of the other, which needs no test. Nor do levels that lie
apart by many times of what either run does (`plain_difference`): a difference that grows smoothly looks like
a random walk, which a test of change takes for chance.
A step samples answers, rewards them, computes the loss and its gradient, in this order, and the next step
samples with new weights. So the earliest signal of the earliest step names the part to look at.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.common.files import expects
from greenward.common.statistics import median, medians
from greenward.diagnostics.change_points import (
    MIN_EFFECT_SD,
    MIN_POINTS,
    effect_text,
    exactly,
    find_change_point,
    find_offset,
    flat,
    holm,
    onset_at,
)
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signal_tests import (
    MIN_GROWTH_FACTOR,
    first_memory_difference,
    first_out_of_scale,
    large_where,
)
from greenward.diagnostics.signals import (
    MEMORY,
    NORM,
    RATIO_SCALE,
    SCHEDULED,
    Bools,
    Floats,
    RunSignals,
    Steps,
)
from greenward.reports.document import NOTHING, Fact, Onset, Report, Table, section
from greenward.runs.files import to_json
from greenward.runs.reading import TIMING_PREFIXES, WITHOUT_EFFECT, flattened

TOLERANCE = 1e-6  # relative; float32 sums in another order differ by less
ALPHA = 0.05
_DIVERGENCES = frozenset({"kl", "approx_kl", "importance/kl"})  # whose noise grows with their size
_FEWEST = 3  # values of a part
_ZERO = 1e-12  # smaller differences are rounding of a value that is 0
_APART = 6.0  # times the drift of a level; two random walks are so in 1.2 % of all cases
_DRIFT_PARTS = 4
_AROUND = 5  # values, of which the median is followed
_DESCRIBED = 0.01  # a change this sure is described as one, even if the mean of the gap is surer not 0

DiffVerdict = Literal["same", "no systematic difference", "diverged", "not reproducible", "cannot tell"]
Found = Literal["first value", "shift", "trend", "offset", "level", "not finite", "nothing"]


@dataclass(frozen=True)
class SignalDifference:
    """One signal in both runs.

    `onset` is None where nothing was found. `a` and `b` are the medians
    from the onset on (of all common steps without one). `effect_sd` is the size of the lasting difference
    in standard deviations of the noise, `adjusted_p` its p-value after Holm's correction; both are
    None for fewer than 30 common values. `gaps` are B − A at the steps at which both are finite.
    """

    signal: str
    found: Found
    onset: Onset | None
    a: float
    b: float
    effect_sd: float | None
    adjusted_p: float | None
    gaps: tuple[float, ...]

    @property
    def relative(self) -> float | None:
        """B / A − 1, None where A is 0 or not finite."""
        finite = np.isfinite(self.a) and np.isfinite(self.b) and self.a != 0
        return (self.b - self.a) / abs(self.a) if finite else None


@dataclass(frozen=True)
class RunDiff:
    """Two runs compared; `differences` begins with the signals that differ first."""

    a: str
    b: str
    first_step: int
    last_step: int
    common_steps: int
    replay: bool
    settings: tuple[SettingDifference, ...]
    verdict: DiffVerdict
    headline: str
    differences: tuple[SignalDifference, ...]
    cause: DifferenceCause | None
    notes: tuple[str, ...]


@expects("the files of a run", DiagnosticsError)
def diff_runs(
    a: str | Path, b: str | Path, signals: Sequence[str] = (), *, mapping: Mapping[str, str] | None = None
) -> RunDiff:
    """Compare two runs or logs on `signals` (names or aliases); all common ones if none are given.

    `mapping` gives greenward's names for names of both logs.

    Raises:
        DiagnosticsError: no metrics, an unknown signal, or no step or signal in common.
        RunError: a file that is there and cannot be read.
    """
    left, right = (read_run_signals(path, mapping=mapping) for path in (a, b))
    common, in_a, in_b = np.intersect1d(left.steps, right.steps, return_indices=True)
    if not len(common):
        raise DiagnosticsError(
            f"the runs have no common steps: {left.steps[0]} to {left.steps[-1]} in A, "
            f"{right.steps[0]} to {right.steps[-1]} in B",
            remedy="Compare runs whose steps overlap.",
        )
    pairs = {
        name: _Pair(
            left.values[name][in_a],
            right.values[name][in_b],
            left.not_finite(name)[in_a],
            right.not_finite(name)[in_b],
        )
        for name in left.values
        if name in right.values
    }
    repeatable = [pair for name, pair in pairs.items() if _is_determined(name) and name not in SCHEDULED]
    replay = bool(repeatable) and all(pair.equal[0] for pair in repeatable)
    names = _chosen(left, right, pairs, signals, replay)
    settings, notes = different_settings(left, right)
    notes += [f"A: {note}" for note in left.notes] + [f"B: {note}" for note in right.notes]
    notes += _not_finite_notes("A", left, names) + _not_finite_notes("B", right, names)
    one_sided = sorted(left.values.keys() ^ right.values.keys())
    if one_sided and not signals:
        notes.append(f"logged by one run only, not compared: {', '.join(one_sided)}")
    tests = {name: _test(name, pairs[name]) for name in names}
    tested = {name: test.p_value for name, test in tests.items() if test is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    differences = sorted(
        (
            _difference(name, common, pairs[name], test, adjusted.get(name), replay)
            for name, test in tests.items()
        ),
        key=lambda found: (
            np.inf if found.onset is None else found.onset.step,
            stage_index(found.signal),
            found.signal,
        ),
    )
    onsets = [(found.signal, found.onset.step) for found in differences if found.onset is not None]
    verdict = _verdict(replay, _same_seed(left, right, settings), bool(onsets), bool(tested))
    return RunDiff(
        str(a),
        str(b),
        int(common[0]),
        int(common[-1]),
        len(common),
        replay,
        tuple(settings),
        verdict,
        _headline(verdict, differences, pairs, int(common[0]), len(common)),
        tuple(differences),
        NOT_REPRODUCIBLE if verdict == "not reproducible" else likely_cause(onsets, bool(settings)),
        tuple(notes),
    )


@dataclass(frozen=True)
class _Pair:
    """A signal of both runs at the common steps; where it was logged as NaN or infinite, it is `wrong`."""

    a: Floats
    b: Floats
    wrong_a: Bools
    wrong_b: Bools

    @property
    def equal(self) -> Bools:
        """Where the values are equal up to TOLERANCE; NaN equals NaN."""
        return _equal(self.a, self.b)


@dataclass(frozen=True)
class _Test:
    """The better of the two tests of one paired difference; p-values count both (Bonferroni). That of a shift
    is not below Welch's (`_apart`).

    `onset` is an index of the common steps.
    """

    p_value: float
    effect_sd: float
    found: Found
    onset: Onset


def _test(name: str, pair: _Pair) -> _Test | None:
    a, b = pair.a, pair.b
    is_norm = NORM.fullmatch(name) is not None
    if is_norm:
        a, b = large_where(pair.wrong_a, a), large_where(pair.wrong_b, b)
    usable = np.isfinite(a) & np.isfinite(b)
    positive = (a > 0) & (b > 0)
    is_ratio = RATIO_SCALE.fullmatch(name) is not None
    is_ratio = is_ratio or (name in _DIVERGENCES and bool(positive[usable].all()))
    index = np.flatnonzero(usable & positive if is_ratio else usable)
    a, b = a[index], b[index]
    same = _equal(a, b)
    if is_ratio:
        a, b = np.log(a), np.log(b)
    gap = np.where(same, 0.0, b - a)
    change, offset = find_change_point(gap), find_offset(gap)
    if change is None or offset is None:
        return None
    of_change = change.p_value
    if change.kind == "shift":
        of_change = max(of_change, _apart(gap, change.onset.step))
    p_value = min(1.0, 2 * min(of_change, offset[0]))
    if not change.is_notable(_DESCRIBED) and change.p_value > offset[0]:
        return _Test(p_value, offset[1], "offset", exactly(index[0]))
    onset = change.onset
    if is_norm and change.kind == "shift" and change.effect_sd > 0:
        onset = first_out_of_scale(gap, onset)
    return _Test(p_value, change.effect_sd, change.kind, onset_at(index, onset))


def _apart(gap: Floats, place: int) -> float:
    """The p-value of a gap that differs from a place on, and may be noisier on one side of it.

    Counts and shares have less noise where they are near 0 or 1. A test that takes all their differences for
    equally sure finds a level in the noisy part. This is Welch's test with as many values as an AR(1)
    holds independent ones.
    """
    parts = gap[:place], gap[place:]
    if min(map(len, parts)) < _FEWEST:
        return 0.0
    spreads = [float(part.std(ddof=1)) for part in parts]
    if min(spreads) == 0:
        spreads = [max(spreads)] * 2
    if max(spreads) == 0:
        return 0.0
    noise = np.concatenate(
        [(part - part.mean()) / spread for part, spread in zip(parts, spreads, strict=True)]
    )
    phi = float(np.mean(noise[1:] * noise[:-1]))
    phi = min(max(phi + (1 + 3 * phi) / len(noise), 0.0), 0.95)  # without its bias, as in `noise_of`
    held = (1 + phi) / (1 - phi)
    errors = [spread**2 * held / len(part) for part, spread in zip(parts, spreads, strict=True)]
    free = sum(errors) ** 2 / sum(
        error**2 / max(len(part) / held - 1, 1.0) for part, error in zip(parts, errors, strict=True)
    )
    moved = abs(float(parts[1].mean() - parts[0].mean()))
    z = (8 * free + 1) / (8 * free + 3) * math.sqrt(free * math.log1p(moved**2 / sum(errors) / free))
    return math.erfc(z / math.sqrt(2))


def _difference(
    name: str, steps: Steps, pair: _Pair, test: _Test | None, adjusted: float | None, replay: bool
) -> SignalDifference:
    found, onset = _onset(name, pair, test, adjusted, replay)
    since = slice(onset.step if onset else 0, None)
    both = np.isfinite(pair.a) & np.isfinite(pair.b)
    return SignalDifference(
        name,
        found,
        onset and onset_at(steps, onset),
        _median(pair.a[since]),
        _median(pair.b[since]),
        None if test is None else test.effect_sd,
        adjusted,
        tuple((pair.b[both] - pair.a[both]).tolist()),
    )


def _onset(
    name: str, pair: _Pair, test: _Test | None, adjusted: float | None, replay: bool
) -> tuple[Found, Onset | None]:
    """What was found, and where: an index of the common steps."""
    if replay and _is_determined(name):
        unequal = np.flatnonzero(~pair.equal)
        return ("first value", exactly(unequal[0])) if len(unequal) else ("nothing", None)
    is_sure = adjusted is not None and adjusted <= ALPHA
    is_memory = MEMORY.fullmatch(name) is not None
    is_small = is_memory and _late_ratio(pair) < MIN_GROWTH_FACTOR
    if test is not None and is_sure and abs(test.effect_sd) >= MIN_EFFECT_SD and not is_small:
        return test.found, test.onset
    if not is_memory and (start := plain_difference(pair.a, pair.b)) is not None:
        return "level", exactly(start)
    broke = pair.wrong_a != pair.wrong_b
    if broke.any():
        return "not finite", exactly(broke.argmax())
    if is_memory and (first := first_memory_difference(pair.a, pair.b)) is not None:
        return "shift", exactly(first)
    return "nothing", None


def _late_ratio(pair: _Pair) -> float:
    """The larger over the smaller median of the last tenth; processes of one kind keep other allocations."""
    late = slice(-max(1, len(pair.a) // 10), None)
    low, high = sorted((_median(pair.a[late]), _median(pair.b[late])))
    return high / low if low > 0 else math.inf


def plain_difference(a: Floats, b: Floats) -> int | None:
    """The place from which on two series lie plainly apart; None: they do not, or are too short.

    In the second half their medians differ by more than the spread of the values of either (5 % to 95 %), and
    by more than 6 times the drift of either: the range of the medians of its four parts. Positive values are
    compared by their ratio. The difference holds from where it reaches half of that to the end.
    """
    known = np.flatnonzero(np.isfinite(a) & np.isfinite(b))
    if len(known) < MIN_POINTS:
        return None
    late = known[len(known) // 2 :]
    is_ratio = min(a[late].min(), b[late].min()) > 0
    if is_ratio:
        known = known[(a[known] > 0) & (b[known] > 0)]
        a, b = np.log(np.where(a > 0, a, 1.0)), np.log(np.where(b > 0, b, 1.0))
    apart = median(b[late]) - median(a[late])
    spread = max(float(np.ptp(np.quantile(one[late], (0.05, 0.95)))) for one in (a, b))
    drift = max(np.ptp([median(part) for part in np.array_split(one[late], _DRIFT_PARTS)]) for one in (a, b))
    rounding = 0.0 if is_ratio else TOLERANCE * float(np.abs(np.concatenate((a[late], b[late]))).max())
    if abs(apart) <= max(spread, _APART * float(drift), rounding, TOLERANCE * is_ratio, _ZERO):
        return None
    gaps = np.pad((b[known] - a[known]) / apart, _AROUND // 2, mode="edge")
    followed = medians(np.lib.stride_tricks.sliding_window_view(gaps, _AROUND))
    since = int(np.flatnonzero(followed < 0.5).max(initial=-1)) + 1
    return int(known[since]) if since < len(known) else None


def _equal(a: Floats, b: Floats) -> Bools:
    return np.isclose(a, b, rtol=TOLERANCE, atol=_ZERO, equal_nan=True)


def _is_determined(name: str) -> bool:
    """Whether the seed and the settings determine the signal; times and memory depend on the machine."""
    return not name.startswith(TIMING_PREFIXES)


def _same_seed(a: RunSignals, b: RunSignals, settings: Sequence[SettingDifference]) -> bool:
    """Whether both configs name the same seed and differ in nothing that has an effect."""
    if any(not setting.key.startswith(PROVENANCE) for setting in settings):
        return False
    return all("seed" in (run.config or {}) for run in (a, b))


def _chosen(
    left: RunSignals, right: RunSignals, pairs: Mapping[str, _Pair], wanted: Sequence[str], replay: bool
) -> list[str]:
    """Those asked for, else all common ones but the clock; the learning rate can only begin a replay's."""
    if wanted:
        names = list(dict.fromkeys(left.resolve(name) for name in wanted))
        for name in names:
            right.resolve(name)
        return names
    names = [name for name in pairs if name not in SCHEDULED or (replay and _is_determined(name))]
    if not names:
        raise DiagnosticsError("the runs have no signal in common")
    return names


def _not_finite_notes(side: str, run: RunSignals, names: Sequence[str]) -> list[str]:
    wrong = {name: run.steps[run.not_finite(name)] for name in names}
    return [
        f"{side}: {name} is NaN or infinite at {len(steps)} of {len(run.steps)} steps, from {steps[0]} on"
        for name, steps in wrong.items()
        if len(steps)
    ]


def _verdict(replay: bool, same_seed: bool, differ: bool, tested: bool) -> DiffVerdict:
    if not replay and same_seed:
        return "not reproducible"
    if differ:
        return "diverged"
    if replay:
        return "same"
    return "no systematic difference" if tested else "cannot tell"


def _headline(
    verdict: DiffVerdict,
    differences: Sequence[SignalDifference],
    pairs: Mapping[str, _Pair],
    first: int,
    count: int,
) -> str:
    if verdict == "not reproducible":
        unequal = (name for name in pairs if _is_determined(name) and not pairs[name].equal[0])
        name = min(unequal, key=stage_index)
        text = (
            f"NOT REPRODUCIBLE: the seed and the settings are the same, but {name} is {pairs[name].a[0]:.4g} "
            f"in A and {pairs[name].b[0]:.4g} in B at step {first}"
        )
        return f"{text}. {_divergence(differences)}" if differences[0].onset is not None else text
    if verdict == "cannot tell":
        return f"CANNOT TELL: {count} common steps; a test needs {MIN_POINTS}"
    if verdict == "same":
        determined = [found.signal for found in differences if _is_determined(found.signal)]
        noise = max((_largest_relative(pairs[signal]) for signal in determined), default=0.0)
        steps = f"SAME at {count} common step{'s' if count > 1 else ''}"
        return f"{steps}, up to float noise (largest relative difference {noise:.1g})" if noise else steps
    if verdict == "no systematic difference":
        tested = [found for found in differences if found.effect_sd is not None]
        largest = max(tested, key=lambda found: abs(found.effect_sd or 0.0))
        return (
            f"NO SYSTEMATIC DIFFERENCE (the largest effect is {effect_text(largest.effect_sd or 0.0)} in "
            f"{largest.signal}, adjusted p = {largest.adjusted_p:.2g})"
        )
    return _divergence(differences)


def _divergence(differences: Sequence[SignalDifference]) -> str:
    """What differs first, by how much, and what differs next."""
    (signal, onset), *later = [(found.signal, found.onset) for found in differences if found.onset]
    first = differences[0]
    text = f"DIVERGED at step {onset.step} [{onset.low}, {onset.high}] in {signal}"
    sizes = [f"{first.relative:+.0%}"] if first.relative is not None else []
    if first.found == "level":
        sizes = [f"{first.a:.3g} in A, {first.b:.3g} in B"]
    elif first.effect_sd is not None:
        sizes.append(f"{effect_text(first.effect_sd)} of the noise")
    text += f" ({', '.join(sizes)})" if sizes else ""
    then = [f"{name} from {start.step}" for name, start in later[:3]]
    return text + (f", then {', '.join(then)}" if then else "")


def _largest_relative(pair: _Pair) -> float:
    """Over the values that differ by more than rounding of 0."""
    differ = np.isfinite(pair.a) & np.isfinite(pair.b) & ~np.isclose(pair.a, pair.b, rtol=0, atol=_ZERO)
    a, b = pair.a[differ], pair.b[differ]
    scale = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.finfo(float).tiny)
    return float((np.abs(a - b) / scale).max(initial=0.0))


def _median(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return median(finite) if len(finite) else float("nan")


PROVENANCE = "provenance."  # begins the keys of what a run was made with, as its config does not say


@dataclass(frozen=True)
class SettingDifference:
    """A key with two values, as JSON data; None where a run does not have it."""

    key: str
    a: Any
    b: Any


@dataclass(frozen=True)
class DifferenceCause:
    """A likely cause, and what would confirm it."""

    stage: str
    explanation: str
    confirm: str


# Patterns of signals -> the cause of a difference that begins with one of them, in the order of a step.
_STAGES = {
    r"completion/.*|importance/.*|episodes/.*": DifferenceCause(
        "rollout",
        "The sampled answers differed first: other prompts, sampling settings or seed, or other weights to "
        "sample from.",
        "Compare the answers of this step in rollouts/ of both runs.",
    ),
    r"reward.*|status/.*|pass_rate|groups/.*|correctness|readability|.*score": DifferenceCause(
        "reward",
        "The rewards differed before the shape of the answers did: other tests, reward weights, reward model "
        "or grading environment.",
        "Grade the rollouts of this step of one run with the grader of the other.",
    ),
    r"loss|.*_loss|.*kl|clip/.*|ratio/.*|entropy|advantage.*|value/.*|explained_variance|updates/.*"
    r"|tokens.*": DifferenceCause(
        "loss",
        "The objective differed on the same answers and rewards: KL coefficient, clip range, advantages, or "
        "the weights before this step.",
        "Compare the algorithm and training keys of both configs, then the checkpoints before this step.",
    ),
    r".*grad_norm.*|.*gradient.*|learning_rate": DifferenceCause(
        "update",
        "The gradient left its scale first: learning rate, gradient clipping or numerical precision.",
        "Go on from the checkpoint before this step with a lower learning rate, clipping on.",
    ),
    r"perf/.*|time/.*": DifferenceCause(
        "machine",
        "Memory or speed differed first: a leak, another load or other hardware; the learning itself need "
        "not differ.",
        "Compare provenance.json, and whether memory still grows at the end of the run.",
    ),
    r"[\s\S]*": DifferenceCause(
        "unknown",
        "The first signal that differs belongs to no known stage of a step.",
        "Find where the signal is computed and what goes into it.",
    ),
}
NOT_REPRODUCIBLE = DifferenceCause(
    "reproducibility",
    "One seed and one config must give one run. Something that neither of them fixes differs: the "
    "versions, the processor or the number of threads (see the settings), the data or a prompt file that "
    "was changed, or an operation or reward function that is not deterministic.",
    "Repeat one run twice on one machine. If the two repetitions differ, compare the answers of the first "
    "step in rollouts/; otherwise compare provenance.json of both runs.",
)


def stage_index(signal: str) -> int:
    """The place of a signal in a step: answers, rewards, loss, update, machine, unknown."""
    return next(i for i, pattern in enumerate(_STAGES) if re.fullmatch(pattern, signal))


def likely_cause(onsets: Sequence[tuple[str, int]], settings_differ: bool) -> DifferenceCause | None:
    """The cause that the earliest of (signal, onset) points to; None if nothing differs."""
    if not onsets:
        return None
    _, stage = min((onset, stage_index(signal)) for signal, onset in onsets)
    cause = list(_STAGES.values())[stage]
    if not settings_differ:
        return cause
    return DifferenceCause(
        cause.stage,
        f"{cause.explanation} The runs have different settings, which may be the whole cause.",
        f"Repeat one run with the settings of the other. {cause.confirm}",
    )


def different_settings(a: RunSignals, b: RunSignals) -> tuple[list[SettingDifference], list[str]]:
    """(settings that differ, notes on what could not be compared) of two runs."""
    notes: list[str] = []
    settings: list[SettingDifference] = []
    if a.config is None or b.config is None:
        notes.append("the configs were not compared: config.yaml is missing")
    else:
        settings += setting_differences(a.config, b.config)
    if a.session and b.session:
        settings += setting_differences(a.session, b.session, PROVENANCE)
    else:
        notes.append("the versions were not compared: provenance.json is missing")
    return settings, notes


def setting_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = ""
) -> list[SettingDifference]:
    """The dotted keys of two configs or sessions whose values differ, each after `prefix`."""
    before, after = dict(flattened(a)), dict(flattened(b))
    return [
        SettingDifference(f"{prefix}{key}", before.get(key), after.get(key))
        for key in {**before, **after}
        if before.get(key) != after.get(key) and key not in (*WITHOUT_EFFECT, "started_at")
    ]


_MAX_CELL = 60
_ALL_SHOWN = 8  # signals; of more, those that do not differ are counted only


def diff_report(diff: RunDiff) -> Report:
    """The settings that differ, then the signals."""
    way = "value by value (equal at the first step)" if diff.replay else "statistically"
    notes = diff.notes
    if diff.cause is not None:
        cause = f"Likely cause ({diff.cause.stage}): {diff.cause.explanation}"
        notes = (cause, f"To confirm: {diff.cause.confirm}", *notes)
    settings = tuple((setting.key, _plain(setting.a), _plain(setting.b)) for setting in diff.settings)
    data = {
        **vars(diff),
        "settings": [asdict(setting) for setting in diff.settings],
        "differences": [_record(found) for found in diff.differences],
        "cause": None if diff.cause is None else asdict(diff.cause),
    }
    return Report(
        kind="run diff",
        title="Run diff",
        headline=diff.headline,
        facts=(
            Fact("A", diff.a),
            Fact("B", diff.b),
            Fact("common steps", f"{diff.common_steps}, {diff.first_step} to {diff.last_step}"),
            Fact("compared", way),
        ),
        notes=notes,
        sections=(
            section("Settings that differ", Table("", ("Key", "A", "B"), settings) if settings else None),
            section("Signals", _signals_table(diff)),
        ),
        data=to_json(data),
    )


def _record(found: SignalDifference) -> dict[str, object]:
    """The difference without its series, which metrics.jsonl has."""
    record = {key: value for key, value in vars(found).items() if key not in ("onset", "gaps")}
    first = {"signal": found.signal, "found": found.found, **flat(found.onset)}
    return {**first, **record, "relative": found.relative}


def _signals_table(diff: RunDiff) -> Table | None:
    """One row a signal, the first to differ first; of many, only those that differ."""
    differ = [found for found in diff.differences if found.onset is not None]
    shown = diff.differences if len(diff.differences) <= _ALL_SHOWN else differ
    if not shown:
        return None
    others = len(diff.differences) - len(shown)
    caption = (
        "A and B are medians from that step on. Effect: of the lasting difference, in standard deviations "
        "of the noise. p: adjusted by Holm; levels that lie plainly apart differ whatever it is. Brackets: "
        "95 % interval of the step."
    )
    if others:
        caption = f"{others} signals do not differ. {caption}"
    columns = ("Signal", "Differs from step", "A", "B", "Effect", "p", "B − A")
    return Table("", columns, tuple(map(_row, shown)), caption)


def _row(found: SignalDifference) -> tuple[str, ...]:
    from greenward.reports.render import spark_line

    return (
        found.signal,
        NOTHING if found.onset is None else str(found.onset),
        f"{found.a:.4g}",
        f"{found.b:.4g}",
        NOTHING if found.effect_sd is None else effect_text(found.effect_sd),
        NOTHING if found.adjusted_p is None else f"{found.adjusted_p:.2g}",
        spark_line(found.gaps, width=8) if found.gaps else NOTHING,
    )


def _plain(value: object) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]} …"
