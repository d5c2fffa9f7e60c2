"""A monitor of a training that runs: alarms by tests of changes and by rules, and what is done about them.

monitor = Monitor()
for step, metrics in enumerate(training, start=1):
    monitor.log(step, metrics)          # any loop; names of other trainers are understood

trainer.add_callback(Monitor().hf_callback())           # TRL, transformers
model.learn(100_000, callback=Monitor().sb3_callback())  # Stable-Baselines3
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from greenward.diagnostics.live import Alarm, LiveTests
from greenward.diagnostics.readers.columns import as_number
from greenward.diagnostics.readers.names import renamed
from greenward.diagnostics.rules import Action, Rule, Rules, Run, Webhook, load_rules
from greenward.runs.files import append_line, dump_json
from greenward.text import visible

_REQUEST_SECONDS = 5.0


class Monitor:
    """Watches the metrics of a training.

    `rules` is a preset, a YAML file or `Rules`. `say` gets each alarm as a line of text, `alarms` is a file
    to which each is appended as JSON. `stop` is what the action `stop` does, `pid` the process that it ends
    otherwise; `stopped` says that a rule asked for it. `kind` is that of the training, as recipes name it
    (`self_play`, `sft`, …): some changes mean nothing then. A value that is NaN counts as one.
    """

    def __init__(
        self,
        rules: str | Path | Rules = "default",
        *,
        say: Callable[[str], object] = lambda text: print(text, file=sys.stderr),
        alarms: str | Path | None = None,
        stop: Callable[[], object] | None = None,
        pid: int | None = None,
        on_alarm: Callable[[Alarm], object] = lambda alarm: None,
        kind: str | None = None,
    ) -> None:
        self.rules = rules if isinstance(rules, Rules) else load_rules(str(rules))
        self.tests = LiveTests(self.rules.alpha, kind)
        self.stopped = False
        self.found: list[Alarm] = []
        self._say, self._stop, self._pid, self._on_alarm = say, stop, pid, on_alarm
        self._file = None if alarms is None else Path(alarms)
        self._names: dict[str, tuple[str, float, float]] = {}
        self._windows = {rule.id: deque[float](maxlen=rule.window) for rule in self.rules.rules}
        self._last: dict[str, int] = {}

    def log(self, step: int, metrics: Mapping[str, Any]) -> list[Alarm]:
        """Look at the metrics of a step; returns new alarms, after acting.

        Numbers of Python, NumPy and torch count, also in an array of one; the rest is ignored.
        """
        step = int(step)
        found = {str(name): _number(value) for name, value in metrics.items()}
        numbers = {name: value for name, value in found.items() if value is not None}
        if not numbers.keys() <= self._names.keys():
            self._names = renamed([*self._names, *(numbers.keys() - self._names.keys())], {})[0]
        ours = {}
        for name, number in numbers.items():
            known, scale, shift = self._names[name]
            ours[known] = scale * number + shift
        seen = self.tests.add(step, ours) if self.rules.tests else []
        alarms = [(alarm, self.rules.actions) for alarm in seen]
        for rule in self.rules.rules:
            value = ours.get(rule.signal, numbers.get(rule.signal))
            if value is not None and (alarm_of_rule := self._judge(rule, step, value)) is not None:
                alarms.append((alarm_of_rule, rule.actions))
        for alarm, actions in alarms:
            self._act(alarm, actions)
        return [alarm for alarm, _ in alarms]

    def silent_rules(self) -> list[str]:
        """A line for each rule whose signal was not logged so far."""
        names = {*self._names, *(known for known, _, _ in self._names.values())}
        lines = []
        for rule in (one for one in self.rules.rules if not self._windows[one.id]):
            near = get_close_matches(rule.signal, names, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else "."
            lines.append(visible(f"Rule {rule.id}: {rule.signal} was never logged{hint}", 300))
        return lines

    def _judge(self, rule: Rule, step: int, value: float) -> Alarm | None:
        window = self._windows[rule.id]
        window.append(value)
        if (
            len(window) < rule.window
            or step <= rule.grace
            or step - self._last.get(rule.id, -(10**9)) <= rule.cooldown
        ):
            return None
        broken = rule.broken_by(list(window))
        if broken is None:
            return None
        self._last[rule.id] = step
        limit = f"above {rule.above:g}" if rule.above is not None else f"below {rule.below:g}"
        text = f"rule {rule.id}: {rule.signal} is {broken:.4g}, {limit} over {rule.window} step(s)"
        return Alarm(step, rule.id, rule.severity, text, step - rule.window + 1, "rule", broken)

    def _act(self, alarm: Alarm, actions: tuple[Action, ...]) -> None:
        self.found.append(alarm)
        self._on_alarm(alarm)
        record = dump_json(asdict(alarm))
        written = () if self._file is None else (self._file,)
        for action in (*written, *actions):
            try:
                if isinstance(action, Path):
                    append_line(action, record)
                elif action == "warn":
                    self._say(visible(f"Step {alarm.step}: {alarm.severity}: {alarm.text}", 300))
                elif action == "stop":
                    self.stopped = True
                    if self._stop is not None:
                        self._stop()
                    elif self._pid is not None:
                        os.kill(self._pid, signal.SIGTERM)
                elif isinstance(action, Webhook):
                    _post(action.webhook, record)
                elif isinstance(action, Run):
                    environment = {**os.environ, "GREENWARD_ALARM": record}
                    subprocess.Popen(shlex.split(action.run), env=environment, stdin=subprocess.DEVNULL)
            except Exception as error:  # a training must not die of its monitor
                what = "writing the alarm" if isinstance(action, Path) else f"the action {action!r}"
                self._say(visible(f"Step {alarm.step}: {what} failed: {error}", 300))

    def hf_callback(self) -> Any:
        """A `TrainerCallback` for TRL and transformers; a rule with `stop` ends the training."""
        from transformers import TrainerCallback

        monitor = self

        class MonitorCallback(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if logs and "train_runtime" not in logs:
                    monitor.log(int(state.global_step), logs)
                    control.should_training_stop = control.should_training_stop or monitor.stopped

        return MonitorCallback()

    def sb3_callback(self) -> Any:
        """A callback for Stable-Baselines3: it reads what the logger writes, by environment steps."""
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.logger import KVWriter

        monitor = self

        class MonitorWriter(KVWriter):
            def write(
                self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
            ) -> None:
                monitor.log(step, key_values)

            def close(self) -> None:
                """Nothing is open."""

        class MonitorCallback(BaseCallback):
            def _on_training_start(self) -> None:
                self._writer = MonitorWriter()
                self.logger.output_formats.append(self._writer)

            def _on_step(self) -> bool:
                return not monitor.stopped

            def _on_training_end(self) -> None:
                self.logger.output_formats.remove(self._writer)

        return MonitorCallback()


def _post(url: str, record: str) -> None:
    from urllib.request import Request, urlopen

    request = Request(url, record.encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=_REQUEST_SECONDS):
        pass


def _number(value: Any) -> float | None:
    if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1:
        value = value.item()
    return None if isinstance(value, (bool, str)) else as_number(value)
