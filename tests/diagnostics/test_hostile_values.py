"""Runs full of NaN, infinities and extreme numbers: a verdict with exit code, never a traceback."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_runs import healthy, predictions, write_run

from greenward.cli.rldk import rldk
from greenward.reports.document import Chart, Marker, Series
from greenward.reports.svg import draw, log_ticks

NASTY = (0.0, -1.0, 1e99, -1e99, 1e-300, float("nan"), float("inf"), 5.0, 1e308)


@pytest.mark.parametrize("seed", range(8))
def test_extreme_values_get_a_verdict(tmp_path, seed):
    rng = np.random.default_rng(seed)
    count = (1, 31, 60)[seed % 3]
    signals = {name: values[:count].copy() for name, values in healthy(seed, 60).items()}
    for name in signals:
        kind = rng.random()
        if kind < 0.4:
            signals[name] = rng.choice(NASTY, count)
        elif kind < 0.6:
            signals[name][:] = rng.choice(NASTY)
        elif kind < 0.7:
            signals[name] = np.exp(rng.normal(0, 50, count))
    run = write_run(tmp_path / "run", signals, predictions(seed, steps=count))
    for command in ("reward-health", "evals"):
        done = CliRunner().invoke(rldk, [command, "--run", str(run), "--output-dir", str(tmp_path / "out")])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code in (1, 2)


def test_a_logarithmic_axis_has_its_powers_of_ten_at_equal_distances():
    assert sorted(log_ticks(0.5, 200)) == [1, 10, 100]
    assert log_ticks(1.5, 7) == [2, 5]
    chart = Chart(
        "t",
        "step",
        (Series("", "main", ((0, 1), (1, 10), (2, 100))),),
        log=True,
        markers=(Marker(1, "here <"),),
    )
    drawing = draw(chart)
    heights = [
        float(part.split()[1])
        for part in drawing.split('class="line main bold" d="M')[1].split('"')[0].split("L")
    ]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    assert "here &lt;" in drawing
