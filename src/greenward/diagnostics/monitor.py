"""Watches the metrics of a training, raises alarms by tests of changes and by rules, and acts on them.

Looking again and again finds something by chance at last. The level of a run is therefore spent over its
looks: look k tests at alpha / (k (k + 1)), divided by the number of signals, and these levels add up to
alpha. A test is made only where the newest values differ from those before by enough to matter, and is that
of `change_points` on the last steps, so that neighbouring values count for what they are worth. Such an alarm
is early and provisional: the diagnosis decides, with its own limits, as soon as the rows so far show it, and
of a log that has ended the alarms are the diagnosis. Rules are limits that the user sets for signals, as YAML
(docs/monitor.md).
"""

from __future__ import annotations

import math
import os
import signal
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from greenward.common.errors import DiagnosticsError
from greenward.common.files import read_file
from greenward.common.statistics import median
from greenward.common.terminal import echo
from greenward.common.text import visible
from greenward.common.yaml_text import MAX_YAML_CHARS, parse_yaml_text
from greenward.config.section import ConfigSection
from greenward.diagnostics.alerts import Action, Alerts, Mail, Run, Shell, Webhook, start_command
from greenward.diagnostics.change_points import MIN_POINTS, find_change_point
from greenward.diagnostics.diagnose import diagnose_signals
from greenward.diagnostics.finding import Finding, Thresholds, Watched
from greenward.diagnostics.findings import FINDINGS
from greenward.diagnostics.findings.solved import SIGNALS as OF_SOLVED
from greenward.diagnostics.findings.solved import solved
from greenward.diagnostics.findings.updates import IMPOSSIBLE_VALUE
from greenward.diagnostics.readers.names import renamed
from greenward.diagnostics.readers.rows import as_number
from greenward.diagnostics.signal_tests import find_impossible, measure_memory_growth
from greenward.diagnostics.signals import (
    CPU_SPEED,
    DEVICE_MEMORY,
    GROUPS,
    OWN_SPEED,
    RSS,
    THROUGHPUT,
    Range,
    RunSignals,
    own_speed,
    possible_ranges,
)
from greenward.reports.document import Severity
from greenward.runs.files import append_line, dump_json
from greenward.runs.reading import flattened

WINDOW = 128  # steps that are looked at
EVERY = 3  # logged steps between looks
NEWEST = 8  # values that must differ from those before
_MEMORY_LOOKS = 50  # logged steps between looks at memory, which is tested over the whole run
_MEMORY_POINTS = 400
_COURSE = 1024  # rows of the whole run that are kept, to know whether its problems are solved
_GROWN = 10  # part by which a log grows between two diagnoses
_EDGE = 1e-12
WATCHED = tuple((finding, change) for finding in FINDINGS.values() for change in finding.live)
_SIGNALS = frozenset(change.signal for _, change in WATCHED)
_STATUSES = tuple(name for name in _SIGNALS if name.startswith("status/"))


@dataclass(frozen=True)
class Alarm:
    """Something that was seen at `step`, and began at about `onset`.

    `source` is `test` (of the newest steps), `diagnosis` (of all rows so far) or `rule`. What only a test has
    seen is `provisional`. `value` is the newest value of the signal, `action` what the diagnosis advises.
    """

    step: int
    name: str
    severity: Severity
    text: str
    onset: int
    source: str
    value: float
    provisional: bool = False
    action: str = ""


class LiveTests:
    """The newest values of the watched signals, and the level that is left for looks at them.

    Some changes mean nothing for the `algorithm` of the training, and none that are `silent` for its task.
    `possible` are the ranges of the signals.
    """

    def __init__(
        self, alpha: float = 0.05, *, algorithm: str | None = None, silent: Collection[str] = ()
    ) -> None:
        self.alpha, self.algorithm, self.silent = alpha, algorithm, silent
        self.possible: Mapping[str, Range] = {}
        self.looks = 0
        self._step, self._logged = -1, 0  # the newest step, and how many there were
        self._values: dict[str, deque[tuple[int, float]]] = {}
        self._memory: dict[str, list[tuple[int, float]]] = {}
        self._course: list[tuple[int, dict[str, float]]] = []
        self._every = 1  # logged steps from one row of the course to the next
        self._told: set[str] = set()

    def add(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """The values of a step; returns new alarms. Each name is told once."""
        found = []
        if metrics.keys() >= set(OWN_SPEED):
            metrics = {**metrics, CPU_SPEED: float(own_speed(metrics))}
            del metrics[THROUGHPUT]
        if any(name.startswith("status/") for name in metrics):  # those that no answer has are not logged
            metrics = dict.fromkeys(_STATUSES, 0.0) | dict(metrics)
        for name, value in metrics.items():
            if not math.isfinite(value):
                text = f"non-finite: {name} is {value} at step {step}"
                found.append(Alarm(step, "non-finite", "critical", text, step, "test", value))
                continue
            if name in _SIGNALS or name in self.possible:
                self._values.setdefault(name, deque(maxlen=WINDOW)).append((step, value))
            if name in (RSS, DEVICE_MEMORY):
                self._memory.setdefault(name, []).append((step, value))
            possible = self.possible.get(name)
            if possible and possible.visible is None and possible.beyond(np.array(value)):
                found += self._impossible(step, name, self.alpha)
        self._keep(step, {name: metrics[name] for name in OF_SOLVED & metrics.keys()})
        if step == self._step:
            return self._untold(found)
        self._step, self._logged = step, self._logged + 1
        if self._logged % EVERY == 0:
            self.looks += 1
            estimates = [name for name, one in self.possible.items() if one.visible is not None]
            tests = len(WATCHED) + len(estimates)
            level = self.alpha / (self.looks * (self.looks + 1)) / tests
            told = [one for one in WATCHED if one[0].applies(self.algorithm, self.silent)]
            found += [seen for one in told if (seen := self._look(*one, level))]
            found += [seen for name in estimates for seen in self._impossible(step, name, level)]
        if self._logged % _MEMORY_LOOKS == 0:
            found += self._memory_leaks()
        return self._untold(found)

    def _keep(self, step: int, row: dict[str, float]) -> None:
        """Keep a row of the course, which is thinned evenly where it grows long."""
        if step == self._step and self._course and self._course[-1][0] == step:
            self._course[-1][1].update(row)
        elif step != self._step and self._logged % self._every == 0:
            self._course.append((step, row))
            if len(self._course) > _COURSE:
                self._course, self._every = self._course[::2], 2 * self._every

    def _is_solved(self) -> bool:
        """Whether the training problems are solved by what was logged so far."""
        steps = np.array([step for step, _ in self._course])
        names = sorted({name for _, row in self._course for name in row})
        values = {name: np.array([row.get(name, np.nan) for _, row in self._course]) for name in names}
        recorded = {name: ~np.isnan(one) for name, one in values.items()}
        run = RunSignals(Path(os.devnull), steps, values, recorded)
        return solved(run, NEWEST) is not None

    def _impossible(self, step: int, signal: str, level: float) -> list[Alarm]:
        """An alarm where the newest values are outside of the range of a signal."""
        held = self._values.get(signal, ())
        seen = find_impossible(np.array([value for _, value in held]), self.possible[signal], level)
        if seen is None:
            return []
        onset, far = held[seen.first][0], seen.farthest
        text = f"{IMPOSSIBLE_VALUE.name}: {signal} is {far:.4g}, which can be {self.possible[signal]} only"
        severity: Severity = "critical" if signal == "kl" else "warning"
        return [Alarm(step, IMPOSSIBLE_VALUE.name, severity, text, onset, "test", far)]

    def _untold(self, found: list[Alarm]) -> list[Alarm]:
        new = [one for one in found if one.name not in self._told]
        self._told |= {one.name for one in new}
        return [replace(one, provisional=True) for one in {one.name: one for one in reversed(new)}.values()]

    def _alarm(
        self, name: str, severity: Severity, signal: str, onset: int, before: float, after: float
    ) -> Alarm:
        text = f"{name}: {signal} went from {before:.4g} to {after:.4g} at about step {onset}"
        return Alarm(self._step, name, severity, text, onset, "test", after)

    def _look(self, finding: Finding, watched: Watched, level: float) -> Alarm | None:
        held = self._values.get(watched.signal)
        if finding.name in self._told or held is None or len(held) < MIN_POINTS + NEWEST:
            return None
        steps, values = (np.array(column) for column in zip(*held, strict=True))
        newest, before = median(values[-NEWEST:]), median(values[:-NEWEST])
        if not watched.differs(before, newest):
            return None
        tested = np.log(np.maximum(values, _EDGE)) if watched.kind == "ratio" else values.astype(float)
        change = find_change_point(tested)
        if change is None or change.p_value > level or not change.is_large:
            return None
        if finding.by_success and self._is_solved():
            return None
        onset = int(steps[change.onset.step])
        return self._alarm(finding.name, watched.severity, watched.signal, onset, before, newest)

    def _memory_leaks(self) -> list[Alarm]:
        found = []
        for name, held in self._memory.items():
            thinned = held[:: -(-len(held) // _MEMORY_POINTS)]
            steps, values = (np.array(column) for column in zip(*thinned, strict=True))
            looks = self._logged // _MEMORY_LOOKS
            level = self.alpha / (looks * (looks + 1))
            growth = measure_memory_growth(steps, values.astype(float), alpha=level)
            if growth is not None and growth.is_leak and len(values) >= 2 * MIN_POINTS:
                start, last = growth.at_start, growth.at_start * growth.factor
                found.append(self._alarm("memory-leak", "warning", name, growth.onset.step, start, last))
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state as plain data, for an exact resume."""
        return {
            "looks": self.looks,
            "step": self._step,
            "logged": self._logged,
            "values": {name: list(held) for name, held in self._values.items()},
            "memory": {name: list(held) for name, held in self._memory.items()},
            "course": [[step, dict(row)] for step, row in self._course],
            "every": self._every,
            "told": sorted(self._told),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`, which is empty for a run of a version that did not save it."""
        self.looks = state.get("looks", 0)
        self._step, self._logged = state.get("step", -1), state.get("logged", EVERY * self.looks)
        values, self._memory = (
            {name: [(int(step), float(value)) for step, value in one] for name, one in held.items()}
            for held in (state.get("values", {}), state.get("memory", {}))
        )
        self._values = {name: deque(one, maxlen=WINDOW) for name, one in values.items()}
        self._course = [(int(step), dict(row)) for step, row in state.get("course", ())]
        self._every = state.get("every", 1)
        self._told = set(state.get("told", ()))


class Rule(ConfigSection):
    """An alarm when a signal is above or below a limit over a window of steps."""

    id: str = Field(description="a name of its own, which alarms have")
    signal: str = Field(description="greenward's name, or the log's own")
    above: float | None = Field(None, description="the limit; or below")
    below: float | None = None
    window: PositiveInt = Field(1, le=1_000_000, description="newest values that count")
    aggregate: Literal["all", "mean", "last", "min", "max", "range"] = Field(
        "all", description="all: each value of the window is beyond the limit"
    )
    grace: NonNegativeInt = Field(0, description="steps at the beginning without alarms")
    cooldown: NonNegativeInt = Field(50, description="steps after an alarm without another of this rule")
    severity: Literal["warning", "critical"] = "warning"
    actions: tuple[Action, ...] = Field(
        ("warn",),
        description="warn prints, stop ends the training cleanly (--pid gets SIGTERM), and mappings with "
        "webhook, mail, shell or run. An action that fails is said once and never ends the training",
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Rule:
        if (self.above is None) == (self.below is None):
            raise ValueError("give one of above and below")
        return self

    def broken_by(self, values: list[float]) -> float | None:
        """The value that breaks the rule, of a full window; None: it holds."""
        beyond = (lambda v: v > self.above) if self.above is not None else (lambda v: v < self.below)
        if self.aggregate == "all":
            return values[-1] if all(map(beyond, values)) else None
        made = {
            "mean": lambda: sum(values) / len(values),
            "last": lambda: values[-1],
            "min": lambda: min(values),
            "max": lambda: max(values),
            "range": lambda: max(values) - min(values),
        }[self.aggregate]()
        return made if beyond(made) else None


class Rules(ConfigSection):
    """A file of rules, and what the tests of changes do."""

    rules: tuple[Rule, ...] = ()
    tests: bool = Field(True, description="alarms by tests of changes as well")
    alpha: float = Field(0.05, gt=0, lt=1, description="level of the tests over a whole run")
    actions: tuple[Action, ...] = Field(("warn",), description="of an alarm by a test")

    @model_validator(mode="after")
    def _has_different_ids(self) -> Rules:
        ids = [rule.id for rule in self.rules]
        if twice := sorted({one for one in ids if ids.count(one) > 1}):
            raise ValueError(f"each rule needs an id of its own, {twice[0]!r} occurs twice")
        return self


_KL = Rule(id="kl", signal="kl", above=0.3, window=3, grace=10)
_DEAD = Rule(id="dead groups", signal="groups/without_signal", above=0.9, window=10, grace=10)
_CUT = Rule(id="truncation", signal="completion/truncated", above=0.5, window=5, grace=10)
_STEP = Rule(id="step KL", signal="approx_kl", above=0.05, window=3, severity="critical")
_VALUE = Rule(
    id="value function", signal="explained_variance", below=0.0, window=30, aggregate="mean", grace=100
)
_MISMATCH = Rule(id="mismatch", signal="importance/difference", above=0.05, window=5)
_GRPO, _PPO = (_KL, _DEAD, _CUT, _MISMATCH), (_KL, _STEP, _VALUE, _CUT)


def _stopping(rules: tuple[Rule, ...]) -> Rules:
    return Rules(rules=tuple(rule.model_copy(update={"actions": ("warn", "stop")}) for rule in rules))


PRESETS = {
    "default": Rules(),
    "grpo_safe": Rules(rules=_GRPO),
    "grpo_strict": _stopping(_GRPO),
    "ppo_safe": Rules(rules=_PPO),
    "ppo_strict": _stopping(_PPO),
}


def load_rules(name: str) -> Rules:
    """A preset by its name, or a YAML file.

    Raises:
        DiagnosticsError: neither, or a file whose rules cannot be right.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if not path.is_file():
        raise DiagnosticsError(
            f"there are no rules {name!r}", remedy=f"Presets: {', '.join(PRESETS)}; or a YAML file."
        )
    try:
        found = parse_yaml_text(read_file(path, 4 * MAX_YAML_CHARS).decode("utf-8", "replace"))
        return Rules.model_validate(found or {})
    except yaml.YAMLError as error:
        raise DiagnosticsError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        told = {
            "missing": "it is missing",
            "extra_forbidden": "there is no such key",
            "model_type": "expected keys with values",
            "tuple_type": "expected a list",
        }
        faults = (
            f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {told.get(fault['type'], fault['msg'])}"
            for fault in error.errors()[:4]
        )
        raise DiagnosticsError(f"{path}: {'; '.join(faults)}") from None


class Monitor:
    """Watches the metrics of a training.

    `rules` is a preset, a YAML file or `Rules`. `say` gets each alarm as a line of text, `alarms` is a file
    to which each is appended as JSON. `stop` is what the action `stop` does, `pid` the process that it ends
    otherwise; `stopped` says that a rule asked for it. `algorithm` is that of the training (`ppo`, `sft`, …),
    for which some changes mean nothing, and so do findings whose names are `silent`. `config` is that of a
    run of our trainer. The attribute `ranges` has those of signals of which more than the name is known. A
    value that is NaN counts as one. `webhook`, one or its address, gets the alarms of all tests and rules;
    `run` is the name by which it calls the training.
    """

    def __init__(
        self,
        rules: str | Path | Rules = "default",
        *,
        say: Callable[[str], object] = lambda text: echo(text, err=True),
        alarms: str | Path | None = None,
        stop: Callable[[], object] | None = None,
        pid: int | None = None,
        on_alarm: Callable[[Alarm], object] = lambda alarm: None,
        algorithm: str | None = None,
        silent: Collection[str] = (),
        config: Mapping[str, Any] | None = None,
        webhook: Webhook | str | None = None,
        run: str = "",
    ) -> None:
        self.run = run
        self.ranges: Mapping[str, Range] | None = None
        self._config = config
        self.rules = rules if isinstance(rules, Rules) else load_rules(str(rules))
        self.tests = LiveTests(self.rules.alpha, algorithm=algorithm, silent=silent)
        self.stopped = False
        self.found: list[Alarm] = []
        self._say, self._stop, self._pid, self._on_alarm = say, stop, pid, on_alarm
        self._file = None if alarms is None else Path(alarms)
        if isinstance(webhook, str):
            webhook = Webhook(webhook=webhook)
        self._for_all: tuple[Action, ...] = () if webhook is None else (webhook,)
        every = (*self._for_all, *self.rules.actions, *(a for rule in self.rules.rules for a in rule.actions))
        self._alerts = {one: Alerts(one) for one in every if isinstance(one, Webhook | Mail)}
        self._names: dict[str, tuple[str, float, float]] = {}
        self._windows = {rule.id: deque[float](maxlen=rule.window) for rule in self.rules.rules}
        self._last: dict[str, int] = {}
        self._seen, self._next = -1, 0  # the newest step of `follow`, and the rows at which to diagnose again
        self._confirmed: dict[str, Severity] = {}
        self._advice = ""  # of alarms of tests; the settings of a finding's own are greenward's

    def follow(self, run: RunSignals, *, ended: bool = False) -> None:
        """Look at the steps of a log that are new, and at all of it where it has `ended`.

        The diagnosis of the rows so far confirms provisional alarms; it is made again whenever the log has
        grown by a tenth. Of a log that has ended each finding at warning or above is an alarm, and nothing
        else but rules. One that has another severity than before is told again.
        """
        self.tests.algorithm, self.tests.silent = run.algorithm, run.silent
        self.ranges = run.possible_ranges
        if run.family.dialect != "greenward":
            self._advice = f"greenward diagnose {self.run or 'RUN'}"
        for place in (run.steps > self._seen).nonzero()[0].tolist():
            self.log(int(run.steps[place]), run.row(place), tests=not ended)
        self._seen = int(run.steps[-1])
        early = {one.name for one in self.found if one.provisional}
        is_open = not early <= self._confirmed.keys()
        if not self.rules.tests or not (ended or (is_open and len(run.steps) >= self._next)):
            return
        self._next = len(run.steps) + len(run.steps) // _GROWN + 1
        diagnosis = diagnose_signals(run, Thresholds(self.rules.alpha))
        findings = [one for one in diagnosis.findings if one.severity != "info"]
        for one in findings:
            if self._confirmed.get(one.name) == one.severity or not (ended or one.name in early):
                continue
            values = run.series(one.signals[0])[1].tolist() if one.signals else []
            onset = self._seen if one.onset is None else one.onset.step
            value, text = values[-1] if values else 0.0, f"{one.name}: {one.measured}"
            self._confirmed[one.name] = one.severity
            first = next(iter(one.actions), "")
            alarm = Alarm(self._seen, one.name, one.severity, text, onset, "diagnosis", value, action=first)
            self._act(alarm, tuple(dict.fromkeys((*self.rules.actions, *self._for_all))))
        if ended and (others := (early | self._confirmed.keys()) - {one.name for one in findings}):
            self._say(f"The diagnosis of the whole log does not find: {', '.join(sorted(others))}.")

    def log(self, step: int, metrics: Mapping[str, Any], *, tests: bool = True) -> list[Alarm]:
        """Look at the metrics of a step, by rules alone without `tests`; returns new alarms, after acting.

        Numbers of Python, NumPy and torch count, also in an array of one; the rest is ignored.
        """
        step = int(step)
        found = {str(name): logged_number(value) for name, value in metrics.items()}
        numbers = {name: value for name, value in found.items() if value is not None}
        if not numbers.keys() <= self._names.keys():
            self._names = renamed([*self._names, *(numbers.keys() - self._names.keys())], {})[0]
            theirs = {ours: name for name, (ours, _, _) in self._names.items()}
            settings, is_own = dict(flattened(self._config or {})), self._config is not None
            self.tests.possible = possible_ranges(theirs, settings, is_own=is_own)
        if self.ranges is not None:
            self.tests.possible = self.ranges
        ours = {}
        for name, number in numbers.items():
            known, scale, shift = self._names[name]
            ours[known] = scale * number + shift
        if groups := sum(ours.get(name, 0.0) for name in GROUPS):  # greenward counts, others log the share
            ours.setdefault("groups/without_signal", 1 - ours.get(GROUPS[0], 0.0) / groups)
        seen = self.tests.add(step, ours) if tests and self.rules.tests else []
        alarms = [(replace(alarm, action=self._advice), self.rules.actions) for alarm in seen]
        for rule in self.rules.rules:
            value = ours.get(rule.signal, numbers.get(rule.signal))
            if value is not None and (alarm_of_rule := self._judge(rule, step, value)) is not None:
                alarms.append((alarm_of_rule, rule.actions))
        for alarm, actions in alarms:
            self._act(alarm, tuple(dict.fromkeys((*actions, *self._for_all))))
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
        if (broken := rule.broken_by(list(window))) is None:
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
                    weight = f"{alarm.severity}, provisional" if alarm.provisional else alarm.severity
                    self._say(visible(f"Step {alarm.step}: {weight}: {alarm.text}", 300))
                elif action == "stop":
                    self.stopped = True
                    if self._stop is not None:
                        self._stop()
                    elif self._pid is not None:
                        os.kill(self._pid, signal.SIGTERM)
                elif isinstance(action, Webhook | Mail):
                    self._alerts[action].send(alarm, self.run, self._say)
                elif isinstance(action, Run | Shell):
                    start_command(action, record)
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
                    monitor.run = monitor.run or str(getattr(args, "output_dir", ""))
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


def logged_number(value: Any) -> float | None:
    """The number that a trainer logs, of Python, NumPy or torch, also in an array of one; None for others."""
    if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1:
        value = value.item()
    return None if isinstance(value, (bool, str)) else as_number(value)
