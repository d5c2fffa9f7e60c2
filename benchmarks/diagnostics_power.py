"""The rates of false findings on healthy series, and the power of the detectors on planted faults.

    .venv/bin/python benchmarks/diagnostics_power.py

Everything is simulated with a fixed seed. A run is 30 signals; it is falsely accused when any of them
is, after Holm's correction and the effect-size gate. About two minutes on one core; `--runs` sets the
number of runs and series of each row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.calibration import WARNING_SCORE, measure_calibration
from greenward.diagnostics.change_points import find_change_point, holm, simulate_autoregression
from greenward.diagnostics.signal_tests import find_explosion, measure_memory_growth

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator

ALPHA = 0.05
SIGNALS = 30
POINTS = 500
STEPS = np.arange(1, POINTS + 1)
ONSET = 300


def autoregression(phi: float) -> Callable[[Rng], Floats]:
    """Draws one series of an AR(1)."""
    return lambda rng: simulate_autoregression(rng, 1, POINTS, phi)[0]


HEALTHY: dict[str, Callable[[Rng], Floats]] = {
    **{f"AR(1), φ = {phi}": autoregression(phi) for phi in (0.0, 0.5, 0.8, 0.95)},
    "random walk": autoregression(1.0),
    "random walk held to its level, φ = 0.99": autoregression(0.99),
    "coarse steps (a rate of 16 answers)": lambda rng: rng.binomial(16, 0.7, POINTS) / 16,
    "heavy tails (Student, 3 degrees)": lambda rng: rng.standard_t(3, POINTS),
}


def share(found: list[bool]) -> float:
    """Of trues."""
    return float(np.mean(found))


def false_accusations(rng: Rng, runs: int) -> dict[str, float]:
    """Kind of healthy series -> share of runs of 30 such signals with any finding."""
    rates = {}
    for name, draw in HEALTHY.items():
        accused = []
        for _ in range(runs):
            changes = [find_change_point(draw(rng)) for _ in range(SIGNALS)]
            adjusted = holm([change.p_value for change in changes if change])
            accused.append(any(c.is_notable(ALPHA, p) for c, p in zip(changes, adjusted, strict=True) if c))
        rates[name] = share(accused)
    return rates


def power(rng: Rng, runs: int) -> dict[str, tuple[float, float]]:
    """Planted change -> share found (alone, as the only one of 30 signals)."""
    ramp, step = np.linspace(0, 1, POINTS), (STEPS >= ONSET).astype(float)
    rates = {}
    for size in (2, 4):
        for kind, shape in (("drift", ramp), ("level shift", step)):
            for phi in (0.0, 0.5, 0.8):
                series = simulate_autoregression(rng, runs, POINTS, phi) + size * shape
                changes = [change for row in series if (change := find_change_point(row))]
                rates[f"{kind} of {size} sd, φ = {phi}"] = (
                    share([change.is_notable(ALPHA) for change in changes]),
                    share([change.is_notable(ALPHA, SIGNALS * change.p_value) for change in changes]),
                )
    return rates


def memory(rng: Rng, runs: int) -> dict[str, object]:
    """Leaks of 2.1 times, and three healthy shapes that look like one."""

    def noise() -> Floats:
        return 4 * simulate_autoregression(rng, 1, POINTS, 0.5)[0] + 150 * (rng.random(POINTS) < 0.3)

    leaks = [measure_memory_growth(STEPS, 700 * np.linspace(1, 2.1, POINTS) + noise()) for _ in range(runs)]
    healthy = {
        "flat": 700.0 * np.ones(POINTS),
        "a cache that fills up": 700 + 900 * (1 - np.exp(-STEPS / 40)),
        "one allocation that stays": 700 + 500.0 * (STEPS >= ONSET),
    }
    return {
        "leak of 2.1 times: found": share([bool(leak and leak.is_leak) for leak in leaks]),
        "leak of 2.1 times: largest error of the factor": max(
            abs(leak.factor - 2.1) for leak in leaks if leak
        ),
        **{
            f"{name}: called a leak": share(
                [
                    bool((growth := measure_memory_growth(STEPS, base + noise())) and growth.is_leak)
                    for _ in range(runs)
                ]
            )
            for name, base in healthy.items()
        },
    }


def explosions(rng: Rng, runs: int) -> dict[str, object]:
    """Norms that explode at step 300 in three ways, and healthy ones."""

    def norms() -> Floats:
        return np.exp(0.3 * simulate_autoregression(rng, 1, POINTS, 0.5)[0])

    ways = {
        "jump, 1 to 50": np.where(STEPS >= ONSET, 50.0, 1.0),
        "10 % a step": np.exp(np.log(1.1) * np.maximum(STEPS - ONSET, 0)),
        "2 % a step": np.exp(np.log(1.02) * np.maximum(STEPS - ONSET, 0)),
    }
    rows: dict[str, object] = {
        "healthy: called exploded": share([find_explosion(STEPS, norms()) is not None for _ in range(runs)])
    }
    for name, growth in ways.items():
        found = [find_explosion(STEPS, norms() * growth) for _ in range(runs)]
        errors = [abs(explosion.onset.step - ONSET) for explosion in found if explosion]
        rows[f"{name}: found"] = share([explosion is not None for explosion in found])
        rows[f"{name}: onset within 5 steps"] = share([error <= 5 for error in errors])
        rows[f"{name}: onset in its 95 % interval"] = share(
            [e.onset.low <= ONSET <= e.onset.high for e in found if e]
        )
    return rows


def calibration(rng: Rng, runs: int) -> dict[str, object]:
    """Forecasts with logits 1 or 4 times as large as the truth."""
    rows: dict[str, object] = {}
    for scale in (1, 4):
        found = []
        for _ in range(runs):
            logit = 1.5 * rng.standard_normal(1000)
            outcomes = rng.random(1000) < 1 / (1 + np.exp(-logit))
            found.append(measure_calibration(1 / (1 + np.exp(-scale * logit)), outcomes))
        low, high = np.quantile([one.score for one in found], (0.025, 0.975))
        rows[f"logits times {scale}: score, 95 % of forecasts"] = f"{low:.3f} to {high:.3f}"
        rows[f"logits times {scale}: warned of"] = share(
            [one.score < WARNING_SCORE and one.ece_p_value <= ALPHA for one in found]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="of each row")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    parts = {
        f"falsely accused runs ({SIGNALS} signals, {POINTS} steps)": false_accusations,
        "power (alone, one of 30 signals)": power,
        "memory": memory,
        "gradient norms": explosions,
        "calibration (1,000 predictions)": calibration,
    }
    numbers = {}
    for title, measure in parts.items():
        numbers[title] = measure(rng, options.runs)
        print(f"\n{title}, {options.runs} of each", flush=True)
        for name, value in numbers[title].items():
            values = value if isinstance(value, tuple) else (value,)
            shown = "  ".join(one if isinstance(one, str) else f"{one:7.3f}" for one in values)
            print(f"  {name:55} {shown}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"runs": options.runs, **numbers}, indent=1) + "\n")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
