"""All findings but those of one task, which its folder has.

A new one is a record beside its test in one of these files, and a name in a topic there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from greenward.diagnostics.finding import Finding, Topic
from greenward.diagnostics.findings import answers, held_out, reward_model, rewards, solved, updates
from greenward.reports.document import Occurrence
from greenward.tasks import shipped_task

REWARD_HEALTH = (
    updates.VALUES,
    updates.GRADIENTS,
    reward_model.CALIBRATION,
    replace(rewards.REWARDS, findings=(*rewards.REWARDS.findings, solved.PROBLEMS_SOLVED)),
    updates.POLICY,
    updates.COMPUTE,
)


def topics_of(suites: Iterable[str], task: object = None) -> list[Topic]:
    """Everything that is tested of a run which was evaluated on `suites`, and was trained on a task."""
    evaluations = map(held_out.evaluation_topic, (None, *suites))
    found = shipped_task(task)
    own = found.findings() if found else ()
    return [*REWARD_HEALTH, *evaluations, answers.ANSWERS, *own, answers.ROLLOUTS]


FINDINGS: dict[str, Finding] = {one.name: one for topic in topics_of([]) for one in topic.findings}


def answers_behind(found: Occurrence, task: object = None) -> str:
    """The query for the kept answers behind an occurrence in a run of a task; empty where there is none."""
    own = {one.name: one for topic in topics_of([], task) for one in topic.findings}
    return own[found.name].answers_behind(found) if found.name in own else ""


# Those that explain others, from cause to effect: of two that explain each other, or that begin at once, the
# earlier is the cause.
CAUSES: tuple[Finding, ...] = (
    updates.LEARNING_RATE_JUMP,
    rewards.REWARD_SCALE_JUMP,
    updates.STALE_POLICY,
    updates.SAMPLER_MISMATCH,
    rewards.GROUP_OF_ONE,
    rewards.CONSTANT_REWARD,
    updates.NON_FINITE,
    updates.VALUE_LOSS_DIVERGES,
    updates.GRADIENT_EXPLOSION,
    answers.SANDBOX_TIMEOUTS,
    updates.TRUNCATED_ANSWERS,
    answers.CHEATING,
    held_out.REWARD_HACKING,
    updates.LARGE_POLICY_STEPS,
    updates.CLIP_FRACTION_HIGH,
    answers.LENGTH_GROWTH,
    answers.LENGTH_COLLAPSE,
    updates.ENTROPY_COLLAPSE,
    updates.ENTROPY_RISE,
    updates.KL_RUNAWAY,
    answers.DOMINANT_ANSWER,
    answers.DIVERSITY_LOSS,
    answers.FAILING_ANSWERS_RISE,
    rewards.REWARD_DROP,
    rewards.DEAD_GROUPS,
    rewards.GROUP_SIGNAL_FADES,
    updates.GRADIENT_VANISHED,
    held_out.HELD_OUT_REGRESSION,
    updates.MEMORY_LEAK,
    updates.GRADIENT_SPIKES,
    held_out.EVALUATION_CONTAMINATED,
    answers.LENGTH_BIAS,
    rewards.AUXILIARY_REWARD_DOMINATES,
    updates.GRADIENT_ALWAYS_CLIPPED,
    reward_model.CALIBRATION_NO_DISCRIMINATION,
)
