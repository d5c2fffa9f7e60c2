"""Lasting changes of single signals: what is said of ramps that level off, in numbers that the log holds."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_runs import healthy, write_run

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signal_tests import find_signal_change

STEPS = 400
T = np.arange(STEPS)


def noisy(level, spread=0.03, seed=1):
    return level * np.exp(spread * np.random.default_rng(seed).standard_normal(len(level)))


def findings(folder, changed, steps=STEPS):
    write_run(folder, healthy(3, steps) | changed)
    return {one.name: one for one in diagnose_run(folder).findings}


@pytest.mark.parametrize(
    ("begins", "ends", "last"), [(160, 320, 300.0), (STEPS - 12, STEPS - 11, 20.0)], ids=["ramp", "last 12"]
)
def test_levels_are_medians_of_the_log(tmp_path, begins, ends, last):
    """A line through a ramp that levels off ends beyond all values."""
    level = np.interp(T, (begins, ends), (100.0, last))
    write_run(tmp_path, healthy(3, STEPS) | {"completion/mean_length": noisy(level)})
    change = find_signal_change(read_run_signals(tmp_path), "completion/mean_length")
    assert change.before == pytest.approx(100, rel=0.05)
    assert change.after == pytest.approx(last, rel=0.05)


@pytest.mark.parametrize(
    ("signal", "level", "found"),
    [
        ("completion/mean_length", np.interp(T, (140, 280), (100.0, 300.0)), "length-growth"),
        ("completion/mean_length", np.interp(T, (140, 280), (100.0, 25.0)), "length-collapse"),
        ("completion/unique", np.interp(T, (140, 280), (0.9, 0.27)), "diversity-loss"),
        ("completion/mean_length", np.interp(T, (140, 280), (100.0, 140.0)), None),
        ("completion/mean_length", np.interp(T, (0, STEPS), (100.0, 300.0)), "length-growth"),
    ],
    ids=["growth", "collapse", "copies", "less than the limit", "growth over the whole run"],
)
def test_long_ramps_that_level_off_are_found(tmp_path, signal, level, found):
    """Also one over the whole run, if the pass rate rises in its first quarter alone."""
    passing = noisy(0.4 + 0.2 * (1 - np.exp(-T / 30)), 0.02, seed=2)
    said = findings(tmp_path, {signal: noisy(level, 0.02), "pass_rate": passing})
    about = {"length-growth", "length-collapse", "diversity-loss"} & said.keys()
    assert about == ({found} if found else set())


def test_a_length_that_grows_with_the_pass_rate_is_no_fault(tmp_path):
    passing = noisy(np.linspace(0.2, 0.6, STEPS), 0.02, seed=2)
    length = noisy(np.interp(T, (140, 380), (100.0, 250.0)), 0.02)
    assert "length-growth" not in findings(tmp_path, {"completion/mean_length": length, "pass_rate": passing})


CYCLES = {
    "two cosines": 0.1 + 0.45 * (1 + np.cos(np.pi * (2 * T / STEPS % 1))),
    "four cosines to 0": 0.5 * (1 + np.cos(np.pi * (4 * T / STEPS % 1))),
    "falling peaks": 0.5 ** np.floor(4 * T / STEPS) * (0.1 + 0.45 * (1 + np.cos(np.pi * (4 * T / STEPS % 1)))),
    "triangles": 1 + 4 * (1 - np.abs(2 * (4 * T / STEPS % 1) - 1)),
    "twice as long each": np.concatenate([0.5 * (1 + np.cos(np.pi * np.arange(n) / n)) for n in (40, 80, 160, 320)])[:STEPS],
}  # fmt: skip


@pytest.mark.parametrize("name", CYCLES)
@pytest.mark.parametrize("warm_up", [0, 10])
def test_a_periodic_schedule_is_no_jump(tmp_path, name, warm_up):
    rates = 1e-5 * CYCLES[name] * np.minimum((T + 1) / max(warm_up, 1), 1)
    assert "learning-rate-jump" not in findings(tmp_path, {"learning_rate": rates})


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (np.where(T < 200, 1.0, np.minimum((T - 199) / 10, 1)), "1e-05, then 1e-06, and rose to 1e-05."),
        (0.5 * (1 + np.cos(np.pi * (T % 200) / STEPS)), "5.04e-06 and jumped to 1e-05."),
        (CYCLES["four cosines to 0"] * np.where(T < 300, 1, 3), "rose to 3e-05."),
    ],
    ids=["warm-up anew", "schedule anew", "a higher peak"],
)
def test_a_restart_or_a_higher_peak_is_a_jump(tmp_path, rates, said):
    assert said in findings(tmp_path, {"learning_rate": 1e-5 * rates})["learning-rate-jump"].measured
