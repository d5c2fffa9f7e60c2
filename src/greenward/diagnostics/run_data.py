"""What the checks read of a run, and the few ways in which all of them look at a signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.change_points import MIN_EFFECT_SD, MIN_POINTS, ChangePoint, find_change_point
from greenward.diagnostics.finding import Card, Diagnosis, Gap, corrected
from greenward.diagnostics.signals import Signals, on_ratio_scale, read_signals
from greenward.reports.document import Onset
from greenward.runs.files import read_json
from greenward.runs.reading import read_config

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RunData:
    """A run directory as the checks see it. `alpha` is the chance of a false finding that is accepted."""

    path: Path
    signals: Signals
    config: Mapping[str, Any]
    machine_memory_mb: float | None
    alpha: float

    def has(self, name: str) -> bool:
        """Whether the signal has a finite value at all."""
        return name in self.signals.values and bool(np.isfinite(self.signals.values[name]).any())

    def series(self, name: str) -> tuple[Steps, Floats]:
        """(steps, values) where the signal is finite; empty for a signal that is not there."""
        if name not in self.signals.values:
            return np.array([], np.int64), np.array([])
        return self.signals.finite(name)

    def logged(self, name: str) -> tuple[Steps, Floats]:
        """(steps, values) where the signal was logged, as finite numbers or not."""
        recorded = self.signals.recorded[name]
        return self.signals.steps[recorded], self.signals.values[name][recorded]

    def too_short(self, name: str) -> bool:
        """Whether the signal has too few values to be tested."""
        return len(self.series(name)[1]) < MIN_POINTS

    def gap(self, subject: str, name: str, enable: str = "") -> Gap:
        """Why the signal could not be checked: not logged, or too short."""
        values = len(self.series(name)[1])
        if values:
            reason = f"{name} has {values} value{'s' if values > 1 else ''}, a test needs {MIN_POINTS}"
            return Gap(subject, reason, f"Train at least {MIN_POINTS} steps.")
        near = get_close_matches(name, self.signals.values, n=2, cutoff=0.75)
        similar = f" (there is {' and '.join(near)})" if near else ""
        if name in self.signals.values:
            return Gap(
                subject, f"{name} has no finite value", "See the finding about values that are not finite."
            )
        return Gap(subject, f"{name} is not in metrics.jsonl{similar}", enable or f"Log {name} at each step.")

    def onset(self, name: str, change: ChangePoint) -> Onset:
        """The onset of a change of the signal, as steps."""
        steps, values = self.series(name)
        if on_ratio_scale(name):
            steps = steps[values > 0]
        return Onset(int(steps[change.onset]), int(steps[change.onset_low]), int(steps[change.onset_high]))


@dataclass(frozen=True)
class Trend:
    """A change of a signal in its own unit: levels before and after, the p-value of the test alone."""

    signal: str
    before: float
    after: float
    effect_sd: float
    p_value: float
    onset: Onset

    @property
    def is_large(self) -> bool:
        """At least one standard deviation of the noise."""
        return abs(self.effect_sd) >= MIN_EFFECT_SD


def find_trend(run: RunData, name: str) -> Trend | None:
    """Test a signal for a change; ratios (norms, memory, times) by their logarithm. None: too short."""
    values = run.series(name)[1]
    ratio = on_ratio_scale(name)
    change = find_change_point(np.log(values[values > 0]) if ratio else values)
    if change is None:
        return None
    before, after = np.exp((change.before, change.after)) if ratio else (change.before, change.after)
    return Trend(name, float(before), float(after), change.effect_sd, change.p_value, run.onset(name, change))


def median_of_part(values: Floats, first: float, last: float) -> float:
    """The median of the values between two shares of the series, at least one value."""
    start = min(int(first * len(values)), len(values) - 1)
    return float(np.median(values[start : max(int(np.ceil(last * len(values))), start + 1)]))


def read_run(path: Path, alpha: float) -> RunData:
    """Read a run directory.

    Raises:
        DiagnosticsError: there are no metrics.
        RunError: a file that is there and cannot be read.
    """
    signals = read_signals(path)
    config = read_config(path) if (path / "config.yaml").is_file() else {}
    # Planted faults are the truth that diagnostics are measured against.
    config.pop("faults", None)
    sessions = (read_json(path / "provenance.json") or {}).get("sessions")
    newest = sessions[-1] if isinstance(sessions, list) and sessions else {}
    memory = newest.get("memory_mb") if isinstance(newest, dict) else None
    limit = float(memory) if isinstance(memory, (int, float)) and memory > 0 else None
    return RunData(path, signals, config, limit, alpha)


def diagnosis_of(
    command: str,
    run: RunData,
    cards: Sequence[Card],
    thresholds: Mapping[str, float | None],
    unanswered: str | None,
) -> Diagnosis:
    """The cards of a command put together, findings corrected for the number of tests."""
    signals = run.signals
    return Diagnosis(
        command,
        str(run.path),
        len(signals.steps),
        int(signals.steps[0]),
        int(signals.steps[-1]),
        corrected(cards, run.alpha),
        signals.notes,
        run.alpha,
        dict(thresholds),
        unanswered,
    )
