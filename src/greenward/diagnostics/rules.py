"""Rules of a monitor: limits that the user sets for signals, as YAML, and the presets that are shipped.

rules:
  - {id: kl, signal: kl, above: 0.3, window: 5, actions: [warn, stop]}
  - {id: length, signal: completion/mean_length, below: 5, grace: 50, actions: [{run: "./notify.sh"}]}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from greenward.config.sections import ConfigSection
from greenward.errors import DiagnosticsError
from greenward.user_files import read_file
from greenward.user_text import MAX_YAML_CHARS, parse_yaml_text


class Webhook(ConfigSection):
    """Send the alarm as JSON by a POST request."""

    webhook: str = Field(pattern=r"https?://.+")


class Run(ConfigSection):
    """Run a command, split as a shell would, with the alarm as JSON in the variable GREENWARD_ALARM."""

    run: str = Field(pattern=r"\S")


Action = Literal["warn", "stop"] | Webhook | Run


class Rule(ConfigSection):
    """An alarm when a signal is above or below a limit over a window of steps."""

    id: str
    signal: str = Field(description="greenward's name, or the log's own")
    above: float | None = None
    below: float | None = None
    window: PositiveInt = Field(1, le=1_000_000, description="newest values that count")
    aggregate: Literal["all", "mean", "last", "min", "max", "range"] = Field(
        "all", description="all: each value of the window is beyond the limit"
    )
    grace: NonNegativeInt = Field(0, description="steps at the beginning without alarms")
    cooldown: NonNegativeInt = Field(50, description="steps after an alarm without another of this rule")
    severity: Literal["warning", "critical"] = "warning"
    actions: tuple[Action, ...] = ("warn",)

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
    """A file of rules. `tests` turns the tests of changes on; `alpha` is their level for a run."""

    rules: tuple[Rule, ...] = ()
    tests: bool = True
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
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
