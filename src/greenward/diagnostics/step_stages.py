"""The stages of a training step, and what a difference between two runs that begins in each of them means.

A step samples answers, rewards them, computes the loss and its gradient, in this order, and the next
step samples with new weights. So the earliest signal of the earliest step names the part to look at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A likely cause, and what would confirm it."""

    stage: str
    explanation: str
    confirm: str


# Signals -> the cause of a difference that begins with one of them, in the order of a step.
_STAGES = (
    (
        re.compile(r"completion/.*|importance/.*|episodes/.*"),
        Cause(
            "rollout",
            "The sampled answers differed first: other prompts, sampling settings or seed, or other weights "
            "to sample from.",
            "Compare the answers of this step in rollouts/ of both runs.",
        ),
    ),
    (
        re.compile(r"reward.*|status/.*|pass_rate|groups/.*|correctness|readability|.*score"),
        Cause(
            "reward",
            "The rewards differed before the shape of the answers did: other tests, reward weights, reward "
            "model or grading environment.",
            "Grade the rollouts of this step of one run with the grader of the other.",
        ),
    ),
    (
        re.compile(
            r"loss|.*_loss|.*kl|clip/.*|ratio/.*|entropy|advantage.*|value/.*|explained_variance"
            r"|updates/.*|tokens.*"
        ),
        Cause(
            "loss",
            "The objective differed on the same answers and rewards: KL coefficient, clip range, "
            "advantages, or the weights before this step.",
            "Compare the algorithm and training keys of both configs, then the checkpoints before this step.",
        ),
    ),
    (
        re.compile(r".*grad_norm.*|.*gradient.*|learning_rate"),
        Cause(
            "update",
            "The gradient left its scale first: learning rate, gradient clipping or numerical precision.",
            "Go on from the checkpoint before this step with a lower learning rate, clipping on.",
        ),
    ),
    (
        re.compile(r"perf/.*|time/.*"),
        Cause(
            "machine",
            "Memory or speed differed first: a leak, another load or other hardware; the learning itself "
            "need not differ.",
            "Compare provenance.json, and whether memory still grows at the end of the run.",
        ),
    ),
    (
        re.compile(r".*", re.DOTALL),
        Cause(
            "unknown",
            "The first signal that differs belongs to no known stage of a step.",
            "Find where the signal is computed and what goes into it.",
        ),
    ),
)
NOT_REPRODUCIBLE = Cause(
    "reproducibility",
    "One seed and one config must give one run. Something that neither of them fixes differs: the "
    "versions, the processor or the number of threads (see the settings), the data or a prompt file that "
    "was changed, or an operation or reward function that is not deterministic.",
    "Repeat one run twice on one machine. If the two repetitions differ, compare the answers of the first "
    "step in rollouts/; otherwise compare provenance.json of both runs.",
)


def stage_index(signal: str) -> int:
    """The place of a signal in a step: answers, rewards, loss, update, machine, unknown."""
    return next(i for i, (pattern, _) in enumerate(_STAGES) if pattern.fullmatch(signal))


def likely_cause(onsets: Sequence[tuple[str, int]], settings_differ: bool) -> Cause | None:
    """The cause that the earliest of (signal, onset) points to; None if nothing differs."""
    if not onsets:
        return None
    signal, _ = min(onsets, key=lambda found: (found[1], stage_index(found[0])))
    cause = _STAGES[stage_index(signal)][1]
    if not settings_differ:
        return cause
    return Cause(
        cause.stage,
        f"{cause.explanation} The runs have different settings, which may be the whole cause.",
        f"Repeat one run with the settings of the other. {cause.confirm}",
    )
