"""What probably made two runs part, from which of their signals parted first.

A step samples answers, rewards them, computes the loss and its gradient, in this order, and the next
step samples with new weights. So the earliest signal of the earliest step names the part to look at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A guess, and what would confirm it."""

    stage: str
    explanation: str
    confirm: str


@dataclass(frozen=True)
class _Stage:
    pattern: re.Pattern[str]
    cause: Cause


_STAGES = (
    _Stage(
        re.compile(r"completion/.*|importance/.*|episodes/.*"),
        Cause(
            "rollout",
            "The sampled answers differed first: other prompts, sampling settings or seed, or other weights "
            "to sample from.",
            "Compare the answers of this step in rollouts/ of both runs.",
        ),
    ),
    _Stage(
        re.compile(r"reward.*|status/.*|pass_rate|groups/.*|correctness|readability|.*score"),
        Cause(
            "reward",
            "The rewards differed before the answers' shape did: other tests, reward weights, reward model "
            "or grading environment.",
            "Grade the rollouts of this step of one run with the grader of the other.",
        ),
    ),
    _Stage(
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
    _Stage(
        re.compile(r".*grad_norm.*|.*gradient.*|learning_rate"),
        Cause(
            "update",
            "The gradient left its scale first: learning rate, gradient clipping or numerical precision.",
            "Go on from the checkpoint before this step with a lower learning rate, clipping on.",
        ),
    ),
    _Stage(
        re.compile(r"perf/.*|time/.*"),
        Cause(
            "machine",
            "Memory or speed differed first: a leak, another load or other hardware; the learning itself "
            "need not differ.",
            "Compare provenance.json, and whether memory still grows at the end of the run.",
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
_UNKNOWN = Cause(
    "unknown",
    "The first signal to part belongs to no known stage of a step.",
    "Find where the signal is computed and what goes into it.",
)


def stage_index(signal: str) -> int:
    """The place of a signal in a step: answers, rewards, loss, update, machine, unknown."""
    matches = (i for i, stage in enumerate(_STAGES) if stage.pattern.fullmatch(signal))
    return next(matches, len(_STAGES))


def likely_cause(parted: Sequence[tuple[str, int]], settings_differ: bool) -> Cause | None:
    """The cause that the earliest of (signal, onset) hints at; None if nothing parted."""
    if not parted:
        return None
    signal, _ = min(parted, key=lambda found: (found[1], stage_index(found[0])))
    index = stage_index(signal)
    cause = _STAGES[index].cause if index < len(_STAGES) else _UNKNOWN
    if not settings_differ:
        return cause
    return Cause(
        cause.stage,
        f"{cause.explanation} The runs have different settings, which may be all there is to it.",
        f"Repeat one run with the settings of the other. {cause.confirm}",
    )
