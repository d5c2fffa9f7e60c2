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
