"""Whether the steps of a run gave reinforcement learning anything to learn from, by their rows of metrics.

Single groups are judged in `training.advantages` (`group_signal`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from greenward.runs.reading import task_of

MIN_STEPS = 3  # in a row, before anything is said
ALL = 0.995  # of the answers
NO_SPREAD = 1e-9  # of rewards


@dataclass(frozen=True)
class NoSignalCause:
    """Why a step teaches little or nothing: in a few words, in a sentence, and what to do."""

    brief: str
    sentence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}"


@dataclass(frozen=True)
class NoSignalPeriod:
    """Consecutive steps that taught little or nothing, with the most lasting of their causes."""

    cause: NoSignalCause
    first_step: int
    last_step: int

    @property
    def steps(self) -> int:
        return self.last_step - self.first_step + 1

    def to_json(self) -> dict[str, Any]:
        return {"first_step": self.first_step, "last_step": self.last_step, **asdict(self.cause)}


_TRUNCATED = NoSignalCause(
    "every answer truncated",
    "Every answer hit the token limit.",
    "Raise sampling.max_tokens, set sampling.stop_strings, or start from a model that ends its answers.",
)
_STRONGER = "Start from a stronger model or a warm start, or take easier problems"
_ALL_FAIL = NoSignalCause(
    "no answer passes",
    "No answer passed its tests, and the rewards do not differ.",
    f"Read some answers in rollouts/. {_STRONGER}, or pay for partial success (reward term tests).",
)
_ALL_FAIL_BUT_DIFFER = NoSignalCause(
    "no answer passes",
    "No answer passed all its tests; only partial success, or what else is rewarded, differs.",
    f"Read some answers in rollouts/. {_STRONGER}.",
)
_ALL_PASS = NoSignalCause(
    "every answer passes",
    "Every answer passed its tests, and the rewards do not differ.",
    "Nothing is left to learn here: take harder problems, or stop.",
)
_ALL_PASS_BUT_DIFFER = NoSignalCause(
    "every answer passes",
    "Every answer passed its tests; only what else is rewarded differs.",
    "The tests teach no more: take harder problems, or stop.",
)
_CONSTANT = NoSignalCause(
    "constant reward",
    "Every answer got the same reward.",
    "Try the reward function out by `greenward audit`.",
)
_NONE_KEPT = NoSignalCause(
    "no answer kept",
    "Rejection sampling kept no answer.",
    "Lower algorithm.min_reward, raise training.num_generations, or take easier problems.",
)
_NO_GROUP_DIFFERS = NoSignalCause(
    "no group with signal",
    "No two answers to the same prompt got different rewards.",
    "Raise training.num_generations or sampling.temperature, set algorithm.dynamic_sampling, or reward in "
    "finer steps.",
)


def cause_of(
    row: Mapping[str, Any], config: Mapping[str, Any], fewest_illegal: float = 1.0
) -> NoSignalCause | None:
    """Why the step of a row taught little or nothing, None where it did; `config` is that of the run.

    In games the share of illegal moves is compared with `fewest_illegal`, that of an earlier step.
    """
    task = task_of(config)
    return task.no_signal(row, config, fewest_illegal) if task else cause_in_answers(row, config)


def cause_in_answers(row: Mapping[str, Any], config: Mapping[str, Any]) -> NoSignalCause | None:
    """As `cause_of`, where answers are judged.

    Rewards are compared within each group by GRPO, but for the advantage `reinforce`, and over the batch
    otherwise, also by an advantage of the user's. Rejection sampling learns from what it keeps, whatever else
    is rewarded.
    """
    algorithm = config.get("algorithm") or {}
    name, advantage = algorithm.get("name"), algorithm.get("advantage")
    numbers = [row.get(name) for name in ("completion/truncated", "pass_rate", "reward/std")]
    if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
        return None
    truncated, pass_rate, spread = (float(number or 0) for number in numbers)
    differ = spread > NO_SPREAD
    in_groups = name == "grpo" and advantage != "reinforce" and ":" not in str(advantage)
    no_group_differs = in_groups and row.get("groups/with_signal") == 0
    if truncated >= ALL:
        return _TRUNCATED
    kept = row.get("rejection/kept")
    if pass_rate == 0 and not kept:
        return _ALL_FAIL_BUT_DIFFER if differ and not no_group_differs else _ALL_FAIL
    if pass_rate == 1:
        return _ALL_PASS_BUT_DIFFER if differ and not no_group_differs else _ALL_PASS
    if name == "rejection":
        return _NONE_KEPT if kept == 0 else None
    if not differ:
        return _CONSTANT
    return _NO_GROUP_DIFFERS if no_group_differs else None


def no_signal_periods(rows: Iterable[Mapping[str, Any]], config: Mapping[str, Any]) -> list[NoSignalPeriod]:
    """The stretches of at least `MIN_STEPS` steps that taught little or nothing, oldest first.

    Steps with the same cause form one stretch. Causes can alternate, as where all or nearly all answers
    are truncated: a part of fewer than `MIN_STEPS` steps belongs to the part before it.
    """
    found: list[NoSignalPeriod] = []
    for one in _of_one_cause(rows, config):
        last = found[-1] if found and found[-1].last_step == one.first_step - 1 else None
        if last and (last.cause == one.cause or min(last.steps, one.steps) < MIN_STEPS):
            cause = max(last, one, key=lambda part: part.steps).cause
            found[-1] = NoSignalPeriod(cause, last.first_step, one.last_step)
        else:
            found.append(one)
    return [period for period in found if period.steps >= MIN_STEPS]


def _of_one_cause(rows: Iterable[Mapping[str, Any]], config: Mapping[str, Any]) -> list[NoSignalPeriod]:
    found: list[NoSignalPeriod] = []
    fewest_illegal = 1.0
    for row in rows:
        cause = cause_of(row, config, fewest_illegal)
        if (illegal := row.get("games/illegal")) is not None:
            fewest_illegal = min(fewest_illegal, illegal)
        if cause is None:
            continue
        step = int(row["step"])
        if found and found[-1].cause == cause and found[-1].last_step == step - 1:
            found[-1] = NoSignalPeriod(cause, found[-1].first_step, step)
        else:
            found.append(NoSignalPeriod(cause, step, step))
    return found
