"""Is the training of a run sound, and its reward? All checks of `greenward reward-health`."""

from __future__ import annotations

from pathlib import Path

from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.calibration_card import calibration_report
from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.finding import Diagnosis
from greenward.diagnostics.gradient_card import GRADIENT, gradient_drift_card
from greenward.diagnostics.memory_card import compute_profile
from greenward.diagnostics.policy_card import policy_card
from greenward.diagnostics.reward_card import REWARD, reward_card
from greenward.diagnostics.run_data import RunData, diagnosis_of, read_run

ALPHA = 0.05


def diagnose_reward_health(
    path: Path,
    *,
    calibration_threshold: float = WARNING_SCORE,
    memory_limit_mb: float | None = None,
    alpha: float = ALPHA,
) -> tuple[Diagnosis, RunData]:
    """Diagnose the run directory at `path`; the run as it was read comes back as well.

    Raises:
        DiagnosticsError: there are no metrics.
        RunError: a file that is there and cannot be read.
    """
    run = read_run(path, alpha)
    cards = (
        gradient_drift_card(run),
        calibration_report(run, calibration_threshold),
        reward_card(run),
        policy_card(run),
        compute_profile(run, memory_limit_mb),
    )
    return diagnosis_of(
        "reward-health",
        run,
        cards,
        {"calibration": calibration_threshold, "memory_limit_mb": memory_limit_mb},
        _unanswered(run),
    ), run


def _unanswered(run: RunData) -> str | None:
    """Why nothing may be called healthy: it takes the reward and the gradient for that."""
    if len(run.signals.steps) < MIN_POINTS:
        return f"the run has {len(run.signals.steps)} step(s), a test needs {MIN_POINTS}"
    missing = [name for name in (REWARD, GRADIENT) if run.too_short(name)]
    return f"{' and '.join(missing)} could not be tested" if missing else None
