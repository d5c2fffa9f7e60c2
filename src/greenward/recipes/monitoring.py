"""The monitor of a training: its alarms in the run directory, and the checkpoint before a fault pinned."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from greenward.algorithms.callbacks import Callback
from greenward.config.recipe import ReinforcementRecipe
from greenward.diagnostics.monitor import Alarm, Monitor
from greenward.diagnostics.signals import CPU_SECONDS
from greenward.environments.episode import Episode
from greenward.runs.checkpoints import pin_checkpoint_before
from greenward.runs.directory import RunDirectory
from greenward.runs.files import JsonRows, write_rows

ALARMS = "alarms.jsonl"


class MonitorCallback(Callback):
    """Shows the metrics of each step to the monitor.

    An alarm is said, appended to alarms.jsonl, and pins the last checkpoint from before its onset.
    """

    name = "monitor"

    def __init__(self, recipe: ReinforcementRecipe, run: RunDirectory, say: Callable[[str], None]) -> None:
        self._run, self._stop_on_critical = run, recipe.monitor.stop_on_critical
        self._samples_here = recipe.rollouts.engine == "native"
        alarms = run.path / ALARMS
        self._monitor = Monitor(
            recipe.monitor.rules,
            say=say,
            alarms=alarms,
            stop=_stop,
            on_alarm=self._on_alarm,
            kind=recipe.kind,
        )
        self._step = 0

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        self._step = step
        if not self._samples_here:  # it waits for its engine, whose throughput is that of the clock
            metrics = {name: value for name, value in metrics.items() if name != CPU_SECONDS}
        self._monitor.log(step, metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "tests": self._monitor.tests.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; alarms of steps that are repeated are removed."""
        self._step = state.get("step", 0)
        self._monitor.tests.load_state_dict(state.get("tests", {}))
        file = self._run.path / ALARMS
        if file.is_file():
            rows = JsonRows(file, lenient=True)
            write_rows(file, [row for row in rows if row.get("step", 0) <= self._step])

    def _on_alarm(self, alarm: Alarm) -> None:
        pin_checkpoint_before(self._run, alarm.onset)
        if alarm.severity == "critical" and self._stop_on_critical:
            _stop()


def _stop() -> None:
    """Ask the training loop for a clean stop after the step."""
    os.kill(os.getpid(), signal.SIGTERM)
