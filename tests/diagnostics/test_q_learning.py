"""The checks of Q-learning on series with each fault, and on a healthy one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from greenward.diagnostics.diagnose import diagnose_run

STEPS = 120
HEALTHY = {
    "q/overestimation": (0.2, 0.1),
    "replay/staleness": (300.0, 20.0),
    "epsilon": (0.1, 0.0),
    "pass_rate/greedy": (0.7, 0.1),
    "programs/most_common": (0.05, 0.02),
    "reward/mean": (8.0, 1.0),
}
FAULTS = {
    "q-overestimation": {"q/overestimation": (1.6, 0.3)},
    "stale-replay": {"replay/staleness": (9000.0, 100.0)},
    "dead-epsilon": {"epsilon": (0.01, 0.0), "pass_rate/greedy": (0.2, 0.05)},
    "program-collapse": {"programs/most_common": (0.7, 0.05)},
}


def run(folder: Path, signals) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    (folder / "config.yaml").write_text("kind: dqn\n")
    rows = [
        {"step": step, **{name: mean + spread * rng.normal() for name, (mean, spread) in signals.items()}}
        for step in range(1, STEPS + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def found(folder: Path) -> set[str]:
    return {finding.name for finding in diagnose_run(folder).findings} & FAULTS.keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_its_name_alone(tmp_path, fault) -> None:
    assert found(run(tmp_path / "run", HEALTHY | FAULTS[fault])) == {fault}


def test_a_healthy_run_has_none(tmp_path) -> None:
    assert found(run(tmp_path / "run", HEALTHY)) == set()
    solved = HEALTHY | {"epsilon": (0.01, 0.0), "pass_rate/greedy": (0.9, 0.05)}
    assert found(run(tmp_path / "solved", solved)) == set()


@pytest.mark.parametrize(("last", "named"), [(0.95, False), (0.4, True)])
def test_greedy_programs_tell_whether_anything_was_learned(tmp_path, last, named) -> None:
    """Those of exploration fail as often at the end, since it turns to problems that are not solved."""
    folder, rng = tmp_path / "run", np.random.default_rng(1)
    folder.mkdir()
    (folder / "config.yaml").write_text("kind: dqn\n")
    rows = [
        {
            "step": step,
            "reward/mean": 8 + rng.normal(),
            "pass_rate": 0.15 + 0.05 * rng.random(),
            "pass_rate/greedy": float(np.clip(0.4 + (last - 0.4) * step / STEPS + 0.1 * rng.normal(), 0, 1)),
        }
        for step in range(1, STEPS + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert ("no-learning" in {finding.name for finding in diagnose_run(folder).findings}) is named
