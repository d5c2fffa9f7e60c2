"""Why two runs may differ: their settings, and the stage of a training step in which the difference begins.

A step samples answers, rewards them, computes the loss and its gradient, in this order, and the next
step samples with new weights. So the earliest signal of the earliest step names the part to look at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from greenward.diagnostics.signals import RunSignals
from greenward.runs.reading import WITHOUT_EFFECT, flattened

PROVENANCE = "provenance."  # begins the keys of what a run was made with, as its config does not say


@dataclass(frozen=True)
class SettingDifference:
    """A key with two values, as JSON data; None where a run does not have it."""

    key: str
    a: Any
    b: Any


@dataclass(frozen=True)
class DifferenceCause:
    """A likely cause, and what would confirm it."""

    stage: str
    explanation: str
    confirm: str


# Patterns of signals -> the cause of a difference that begins with one of them, in the order of a step.
_STAGES = {
    r"completion/.*|importance/.*|episodes/.*": DifferenceCause(
        "rollout",
        "The sampled answers differed first: other prompts, sampling settings or seed, or other weights to "
        "sample from.",
        "Compare the answers of this step in rollouts/ of both runs.",
    ),
    r"reward.*|status/.*|pass_rate|groups/.*|correctness|readability|.*score": DifferenceCause(
        "reward",
        "The rewards differed before the shape of the answers did: other tests, reward weights, reward model "
        "or grading environment.",
        "Grade the rollouts of this step of one run with the grader of the other.",
    ),
    r"loss|.*_loss|.*kl|clip/.*|ratio/.*|entropy|advantage.*|value/.*|explained_variance|updates/.*"
    r"|tokens.*": DifferenceCause(
        "loss",
        "The objective differed on the same answers and rewards: KL coefficient, clip range, advantages, or "
        "the weights before this step.",
        "Compare the algorithm and training keys of both configs, then the checkpoints before this step.",
    ),
    r".*grad_norm.*|.*gradient.*|learning_rate": DifferenceCause(
        "update",
        "The gradient left its scale first: learning rate, gradient clipping or numerical precision.",
        "Go on from the checkpoint before this step with a lower learning rate, clipping on.",
    ),
    r"perf/.*|time/.*": DifferenceCause(
        "machine",
        "Memory or speed differed first: a leak, another load or other hardware; the learning itself need "
        "not differ.",
        "Compare provenance.json, and whether memory still grows at the end of the run.",
    ),
    r"[\s\S]*": DifferenceCause(
        "unknown",
        "The first signal that differs belongs to no known stage of a step.",
        "Find where the signal is computed and what goes into it.",
    ),
}
NOT_REPRODUCIBLE = DifferenceCause(
    "reproducibility",
    "One seed and one config must give one run. Something that neither of them fixes differs: the "
    "versions, the processor or the number of threads (see the settings), the data or a prompt file that "
    "was changed, or an operation or reward function that is not deterministic.",
    "Repeat one run twice on one machine. If the two repetitions differ, compare the answers of the first "
    "step in rollouts/; otherwise compare provenance.json of both runs.",
)


def stage_index(signal: str) -> int:
    """The place of a signal in a step: answers, rewards, loss, update, machine, unknown."""
    return next(i for i, pattern in enumerate(_STAGES) if re.fullmatch(pattern, signal))


def likely_cause(onsets: Sequence[tuple[str, int]], settings_differ: bool) -> DifferenceCause | None:
    """The cause that the earliest of (signal, onset) points to; None if nothing differs."""
    if not onsets:
        return None
    _, stage = min((onset, stage_index(signal)) for signal, onset in onsets)
    cause = list(_STAGES.values())[stage]
    if not settings_differ:
        return cause
    return DifferenceCause(
        cause.stage,
        f"{cause.explanation} The runs have different settings, which may be the whole cause.",
        f"Repeat one run with the settings of the other. {cause.confirm}",
    )


def different_settings(a: RunSignals, b: RunSignals) -> tuple[list[SettingDifference], list[str]]:
    """(settings that differ, notes on what could not be compared) of two runs."""
    notes: list[str] = []
    settings: list[SettingDifference] = []
    if a.config is None or b.config is None:
        notes.append("the configs were not compared: config.yaml is missing")
    else:
        settings += setting_differences(a.config, b.config)
    if a.session and b.session:
        settings += setting_differences(a.session, b.session, PROVENANCE)
    else:
        notes.append("the versions were not compared: provenance.json is missing")
    return settings, notes


def setting_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = ""
) -> list[SettingDifference]:
    """The dotted keys of two configs or sessions whose values differ, each after `prefix`."""
    before, after = dict(flattened(a)), dict(flattened(b))
    return [
        SettingDifference(f"{prefix}{key}", before.get(key), after.get(key))
        for key in {**before, **after}
        if before.get(key) != after.get(key) and key not in (*WITHOUT_EFFECT, "started_at")
    ]
