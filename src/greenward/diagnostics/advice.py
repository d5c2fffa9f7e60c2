"""Advice that reads the run: present values of settings, their names in other trainers, and commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from greenward.diagnostics.signals import RunSignals
from greenward.reports.document import Finding
from greenward.text import visible

# greenward's setting -> (TRL's, verl's).
_THEIRS: Mapping[str, tuple[str, str]] = {
    "training.learning_rate": ("learning_rate", "actor_rollout_ref.actor.optim.lr"),
    "training.max_grad_norm": ("max_grad_norm", "actor_rollout_ref.actor.grad_clip"),
    "training.num_generations": ("num_generations", "actor_rollout_ref.rollout.n"),
    "training.prompts_per_step": ("per_device_train_batch_size", "data.train_batch_size"),
    "training.schedule": ("lr_scheduler_type", "actor_rollout_ref.actor.optim.lr_scheduler_type"),
    "training.warmup_steps": ("warmup_steps", "actor_rollout_ref.actor.optim.lr_warmup_steps"),
    "training.checkpoint_interval_steps": ("save_steps", "trainer.save_freq"),
    "sampling.temperature": ("temperature", "actor_rollout_ref.rollout.temperature"),
    "sampling.max_tokens": ("max_completion_length", "data.max_response_length"),
    "algorithm.kl.coefficient": ("beta", "actor_rollout_ref.actor.kl_loss_coef"),
    "algorithm.clip_high": ("epsilon_high", "actor_rollout_ref.actor.clip_ratio_high"),
    "algorithm.updates_per_batch": ("num_iterations", "actor_rollout_ref.actor.ppo_epochs"),
    "algorithm.overlong.mask_truncated": (
        "mask_truncated_completions",
        "reward_model.overlong_buffer.enable",
    ),
    "algorithm.dynamic_sampling": ("a filter of groups in the data", "algorithm.filter_groups.enable"),
    "algorithm.loss": ("loss_type", "actor_rollout_ref.actor.loss_agg_mode"),
    "algorithm.entropy_coefficient": ("an entropy term", "actor_rollout_ref.actor.entropy_coeff"),
    "model.dtype": ("bf16", "actor_rollout_ref.model.dtype"),
    "rewards": ("reward_weights", "custom_reward_function"),
}
_SETTING = re.compile(r"\b(?:training|algorithm|sampling|model|sandbox|evaluation|warm_start)(?:\.[a-z_]+)+")
_VERL = re.compile(r"(critic|actor|response_length|rollout_corr)/")
_GO_ON = re.compile(r"^(Go on from|Use) (the|a) (last )?checkpoint")


def filled_in(finding: Finding, run: RunSignals) -> Finding:
    """The finding with advice for this run."""
    actions = [_with_settings(one, run) for one in finding.actions if _applies(one, finding, run)]
    if any(map(_GO_ON.match, finding.actions)):
        actions += filter(None, [_checkpoint_command(finding, run)])
    return replace(finding, actions=tuple(actions), measured=finding.measured + _rate_there(finding, run))


def _with_settings(action: str, run: RunSignals) -> str:
    """The action with the present value of each setting, under the name that the trainer of the run uses."""
    text = re.sub(r" \(1\.0\)", "", action) if "training.max_grad_norm" in run.settings else action

    def shown(match: re.Match[str]) -> str:
        key = match[0]
        value = run.settings.get(key)
        if run.format == "greenward":
            known = isinstance(value, (int, float, str))
            return f"{key} (now {visible(str(value), 40)})" if known else key
        return _THEIRS.get(key, (key, key))[_is_verl(run)]

    return _SETTING.sub(shown, text)


def _is_verl(run: RunSignals) -> bool:
    return any(map(_VERL.match, run.theirs.values()))


def _applies(action: str, finding: Finding, run: RunSignals) -> bool:
    """Whether the run does not already exclude what the action is about."""
    if "bfloat16" in action and str(run.settings.get("model.dtype", "")) == "float32":
        return False
    lowered = re.match(rf"Lower ({_SETTING.pattern})", action)
    if lowered and run.settings.get(lowered[1]) == 0:
        return False
    changed = _rates_around(finding, run)
    return not ("training.schedule" in action and changed is not None and changed[0] == changed[1])


def _rates_around(finding: Finding, run: RunSignals) -> tuple[float, float] | None:
    """The learning rate before and from the onset on."""
    steps, rates = run.series("learning_rate")
    if finding.onset is None or not len(rates):
        return None
    before, after = rates[steps < finding.onset.step][-3:], rates[steps >= finding.onset.step][:3]
    return (float(before[0]), float(after[-1])) if len(before) and len(after) else None


def _rate_there(finding: Finding, run: RunSignals) -> str:
    around = _rates_around(finding, run)
    if around is None or finding.name not in ("gradient-explosion", "non-finite", "reward-drop"):
        return ""
    before, after = around
    if before > 0 and (after > 1.2 * before or after < before / 1.2):
        return f" The learning rate went from {before:.3g} to {after:.3g} there."
    return f" The learning rate did not change there ({after:.3g})."


def _checkpoint_command(finding: Finding, run: RunSignals) -> str:
    """How to go on from the last checkpoint before the onset."""
    if finding.onset is None or not run.checkpoints:
        return ""
    earlier = [one for one in run.checkpoints if one[0] < finding.onset.low]
    if not earlier:
        oldest = run.checkpoints[0][1].name
        return f"No checkpoint from before step {finding.onset.low} is left: the oldest is {oldest}."
    path = visible(str(earlier[-1][1]), 200)
    if run.format == "greenward":
        rate = run.settings.get("training.learning_rate")
        change = f" training.learning_rate={rate / 3:.3g}" if isinstance(rate, (int, float)) else ""
        command = f"greenward train {run.path}/config.yaml model={path} warm_start=null{change}"
        return f"To paste: {command} --output {run.path}_again"
    if _is_verl(run):
        return f"To paste: trainer.resume_mode=resume_path trainer.resume_from_path={path}"
    return f'To paste: trainer.train(resume_from_checkpoint="{path}")'
