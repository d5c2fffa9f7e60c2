"""Whether a run learned, and what follows where it did not: rates of 256 answers a step."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_runs import healthy, write_run

from greenward.diagnostics.diagnose import diagnose_run


def run_with(folder, rates, *, seed=0, **others):
    """A healthy run whose pass rate and reward are drawn at `rates`."""
    rates = np.asarray(rates)
    passed = np.random.default_rng(seed).binomial(256, rates) / 256
    signals = {
        name: values for name, values in healthy(seed, len(rates)).items() if not name.startswith("reward/")
    }
    signals |= {
        "pass_rate": passed,
        "status/passed": passed,
        "reward/mean": passed,
        "reward/std": np.sqrt(passed * (1 - passed)),
    }
    return write_run(folder, {**signals, **others}, rewards=[{"name": "tests", "weight": 1.0}])


def names(folder):
    return {finding.name for finding in diagnose_run(folder).findings if finding.severity != "info"}


@pytest.mark.parametrize(
    ("steps", "start", "gain", "pace"), [(600, 0.3, 0.3, 8), (300, 0.2, 0.22, 12), (300, 0.4, 0.0, 1)]
)
def test_a_run_that_learned_within_its_first_steps_has_learned(tmp_path, steps, start, gain, pace):
    rates = start + gain * (1 - np.exp(-np.arange(steps) / pace))
    assert ("no-learning" in names(run_with(tmp_path / "run", rates))) is (gain == 0)


LEARNED_EARLY = 0.3 + 0.3 * (1 - np.exp(-np.arange(300) / 15))


@pytest.mark.parametrize(("rates", "found"), [(LEARNED_EARLY, True), (np.linspace(0.3, 0.7, 300), False)])
@pytest.mark.parametrize("name", ["entropy-rise", "kl-runaway"])
def test_what_was_learned_before_does_not_excuse_what_begins_later(tmp_path, name, rates, found):
    rng = np.random.default_rng(1)
    late = np.clip((np.arange(300) - 170) / 50, 0, 1)
    usual, grown = {"entropy-rise": (0.4, 2.3), "kl-runaway": (0.01, 30.0)}[name]
    values = usual * (1 + grown * late) * np.exp(0.03 * rng.standard_normal(300))
    folder = run_with(tmp_path / "run", rates, **{"entropy" if "entropy" in name else "kl": values})
    assert (name in names(folder)) is found
