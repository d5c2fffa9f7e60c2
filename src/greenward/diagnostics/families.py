"""Says which trainer wrote a log, which findings mean something there, and how it calls its settings.

A family is known by the names in its logs. A log of no known family is read by the shape of its names: an
agent's episodes, or a language model's answers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["language model", "agent", "preferences", "supervised", "unknown"]
Dialect = Literal["greenward", "trl", "verl", "openrlhf", "sb3", ""]

# Findings of answers, their tokens and their groups, which an agent in a simulator has not.
_OF_ANSWERS = frozenset({
    "truncated-answers", "length-growth", "length-collapse", "length-bias", "diversity-loss",
    "dominant-answer", "failing-answers-rise", "sandbox-timeouts", "flaky-grades", "cheating",
    "quality-drop", "dead-groups", "group-signal-fades", "group-of-one", "sampler-mismatch", "kl-runaway",
    "reward-hacking", "train-held-out-gap", "evaluation-contaminated", "auxiliary-reward-dominates",
    "poor-calibration", "calibration-no-discrimination", "entropy-rise",
})  # fmt: skip
# Findings of what is earned by sampling, which training on given texts does not do.
_OF_SAMPLING = _OF_ANSWERS | {
    "constant-reward", "reward-term-dead", "reward-scale-jump", "reward-drop", "entropy-collapse",
    "large-policy-steps", "clip-fraction-high", "value-function-useless", "value-loss-diverges",
    "stale-policy", "throughput-drop",
}  # fmt: skip
_SILENT: Mapping[Kind, frozenset[str]] = {
    "agent": _OF_ANSWERS,
    "preferences": _OF_SAMPLING,
    "supervised": _OF_SAMPLING | {"no-learning"},
    "language model": frozenset(),
    "unknown": frozenset(),
}


@dataclass(frozen=True)
class Family:
    """A trainer, or trainers that log alike.

    Each pattern of `evidence` must match a name of the log, in lower case and without `train/`.
    `logs_gradient` says whether it logs the norm of the gradient unless told otherwise, and `dialect` by
    which names advice speaks of its settings (empty: in words). `window` is over how many episodes a logged
    return is averaged.
    """

    name: str
    kind: Kind
    evidence: tuple[str, ...] = ()
    logs_gradient: bool = False
    dialect: Dialect = ""
    window: int = 1

    @property
    def silent(self) -> frozenset[str]:
        """Names of findings that mean nothing in its logs."""
        return _SILENT[self.kind]


_OWN = Family("greenward", "language model", (r"groups/with_signal|updates/applied",), True, "greenward")
# The first whose evidence is in the log counts, so that the more special ones come first.
FAMILIES: tuple[Family, ...] = (
    _OWN,
    Family("verl", "language model", (r"(actor|critic)/.*", r"critic/(score|rewards|advantages|vf_loss).*|"
           r"response_length/.*|actor/(pg_loss|entropy.*|ppo_kl)"), True, "verl"),
    Family("prime-rl", "language model", (r"(reward|seq_len|is_truncated|off_policy_level)/all/mean",), True),
    Family("prime-rl, the console of its orchestrator", "language model", (r"max\. off-policy level",)),
    Family("slime", "language model", (r"rollout/(raw_reward|response_len/.*|truncated(_ratio)?)",)),
    Family("DeepSpeed-Chat", "language model", (r"ppo_ep", r"act_loss|cri_loss|unsuper_loss")),
    Family("Tinker cookbook", "language model", (r"env/all/.*",)),
    Family("TRL, PPO or RLOO", "language model", (r"objective/(kl|rlhf_reward|scores)", r"policy/.*|loss/.*"),
           dialect="trl"),
    Family("ms-swift, GRPO", "language model", (r"memory\(gib\)|global_step/max_steps|train_speed\(.*\)",
           r"reward|rewards/.*|clip_ratio.*"), True, "trl"),
    Family("LLaMA-Factory, preferences", "preferences", (r"percentage", r"accuracy", r"loss|lr"),
           dialect="trl"),
    Family("TRL, GRPO or RLOO", "language model", (r"frac_reward_zero_std|completion_length|train/reward_std|"
           r"completions?/(mean|max|min|clipped)_.*",), True, "trl"),
    Family("TRL, GRPO or RLOO", "language model", (r"reward_std", r"rewards/.*|grad_norm|epoch"), True,
           "trl"),
    Family("DPO", "preferences", (r"rewards/(chosen|margins|accuracies)|dpo_loss|"
           r"chosen_reward|preference_loss",), True, "trl"),
    Family("RLlib", "agent", (r"(env_runners/)?episode_(reward|return)_mean|episodes_this_iter",),
           window=100),
    Family("OpenRLHF", "language model", (r"policy_loss|act_loss|actor_lr|pg",
           r"response_length|return|kl|glen"), dialect="openrlhf"),
    Family("rsl_rl", "agent", (r"mean[ _](action[ _])?noise[ _]std|policy/mean_noise_std|loss/value_function|"
           r"value function loss|mean value_function loss",), window=100),
    Family("Stable-Baselines3, off-policy", "agent", (r"rollout/ep_rew_mean|ep_rew_mean",
           r"(rollout/)?exploration_rate|(train/)?(actor_loss|critic_loss|ent_coef)"), dialect="sb3",
           window=100),
    Family("Stable-Baselines3, on-policy", "agent", (r"rollout/ep_(rew|len)_mean|ep_?rew_?mean|"
           r"clip_range|policy_gradient_loss", r"(time/)?(total_timesteps|iterations|fps)|n_updates|"
           r"value_loss|approx_kl"), dialect="sb3", window=100),
    Family("ML-Agents", "agent", (r"environment/cumulative reward|policy/extrinsic reward|std of reward",)),
    Family("rl_games", "agent", (r"losses/a_loss", r"losses/c_loss")),
    Family("skrl", "agent", (r"reward/total reward \(mean\)",)),
    Family("Sample Factory", "agent", (r"avg episode reward", r"total num frames|samples")),
    Family("d3rlpy", "agent", (r"time_algorithm_update",)),
    Family("CleanRL", "agent", (r"charts/(episodic_return|episodic_length|sps|learning_rate)",)),
    Family("rllab, garage", "agent", (r"(evaluation/)?(averagediscountedreturn|numtrajs)",)),
    Family("TF-Agents", "agent", (r"average[ _]?return|averageepisodelength|metrics/averagereturn",)),
    Family("Tianshou", "agent", (r"n/ep|n/st",)),
    Family("minimind", "language model", (r"reward", r"(avg_)?(response_)?len.*|advantages?_(mean|std)|"
           r"actor_loss|policy_loss|kl_ref|format|fmt|correct")),
    Family("supervised training", "supervised", (r"(mean_)?token_accuracy|num_tokens",), True, "trl"),
)  # fmt: skip
_OF_AGENTS = Family("an agent's trainer, by the shape of its names", "agent")
_OF_LANGUAGE_MODELS = Family("a language model's trainer, by the shape of its names", "language model")
_SUPERVISED = Family("supervised training, by the shape of its names", "supervised")
_UNKNOWN = Family("an unknown trainer", "unknown")
_AGENT_SHAPE = re.compile(
    r".*(?:ep_?(?:rew|len)|episod|timesteps|env_steps|\bframes?\b|fps|\bsps\b|exploration|epsilon|q_values?).*"
)
_LANGUAGE_SHAPE = re.compile(
    r".*(?:complet|response|token|rollout|generation|group|answer|prompt|format|entropy|\bkl\b|kl_|accuracy|pass).*"
)
# Of steps, as `plain_key` of the readers gives them: those of episodes, and all that only a simulator counts.
COUNTS_OF_EPISODES = frozenset({
    "episode", "episodes", "num_episodes", "episode_num", "time/episodes", "ep", "game", "games"
})  # fmt: skip
EPISODE_KEYS = COUNTS_OF_EPISODES | frozenset({
    *("frame", "frames", "timestep", "timesteps", "total_timesteps", "time/total_timesteps"),
    *("timesteps_total", "num_timesteps", "env_step", "env_steps", "total_env_steps", "totalenvinteracts"),
})  # fmt: skip
_ANSWER_SHAPE = re.compile(
    r".*(?:complet|response|token|group|answer|prompt|format|accuracy|pass|\bkl\b|kl_|(?<!approx)_kl).*"
)  # an agent has an entropy as well, and a KL of its updates
# Elo's rating of a player, in lower case: "self-play/elo", "elo_rating", not "best_elo" or "opponent_elo".
RATING = re.compile(
    r"(?:(?:self[-_ ]?play|train(?:ing)?|agent|learner|policy|current|mean)[-_ /])*elo"
    r"(?:[-_ /](?:rating|score|mean))?"
)
_EPISODE_SHAPE = re.compile(
    r"(?:.*[/_ ])?(?:value|policy gradient|q\w?|qf\d?|critic|alpha)(?:[ _]?\d)?[ _]?loss|"
    r".*(?:num_wins|\bwin[ _]?rate\b).*|"
    r"(?:(?:avg|average|mean|total)[ _]?)?returns?"
)
_REWARD_SHAPE = re.compile(r".*(?:rew|return|score).*")
_HUGGING_FACE = frozenset({"grad_norm", "learning_rate"})  # what transformers' Trainer logs
# Of answers that were sampled, which supervised training has not.
_SAMPLED_SHAPE = re.compile(r".*(?:complet|respon|rollout|generation|truncat|advantage|ratio|trajector).*")
_LOSS_SHAPE = re.compile(r"(?:.*[/_ ])?loss")


def family_of(names: Collection[str], *, is_own: bool = False, counted_by: str = "") -> Family:
    """The family of a log by the names in it, and by what it calls its steps where these tell nothing."""
    if is_own:
        return _OWN
    lower = {name.strip().lower().replace(" / ", "/") for name in names}
    plain = lower | {name.removeprefix("train/") for name in lower}
    for one in FAMILIES:
        if all(any(map(re.compile(pattern).fullmatch, plain)) for pattern in one.evidence):
            return one
    has_reward = any(map(_REWARD_SHAPE.fullmatch, plain))
    if any(map(_AGENT_SHAPE.fullmatch, plain)) or any(map(RATING.fullmatch, plain)):
        return _OF_AGENTS
    found = _UNKNOWN if has_reward or not any(map(_LOSS_SHAPE.fullmatch, plain)) else _SUPERVISED
    has_episodes = counted_by in EPISODE_KEYS or any(map(_EPISODE_SHAPE.fullmatch, plain))
    if has_episodes and not any(map(_ANSWER_SHAPE.fullmatch, plain)):
        return _OF_AGENTS
    is_sampled = any(map(_SAMPLED_SHAPE.fullmatch, plain))
    if (has_reward and any(map(_LANGUAGE_SHAPE.fullmatch, plain))) or (found is _SUPERVISED and is_sampled):
        found = _OF_LANGUAGE_MODELS
    return replace(found, dialect="trl") if plain >= _HUGGING_FACE else found


# greenward's setting -> what it is in words, and what TRL, verl, OpenRLHF and Stable-Baselines3 call it;
# empty where there is no such setting, so that advice about it is left out.
_COLUMNS: tuple[Dialect, ...] = ("", "trl", "verl", "openrlhf", "sb3")
_ACTOR = "actor_rollout_ref.actor"
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "training.learning_rate": ("the learning rate", "learning_rate", f"{_ACTOR}.optim.lr",
                               "--actor_learning_rate", "learning_rate"),
    "training.max_grad_norm": ("the limit of the gradient norm", "max_grad_norm", f"{_ACTOR}.grad_clip",
                               "--max_norm", "max_grad_norm"),
    "training.num_generations": ("the number of answers to a prompt", "num_generations",
                                 "actor_rollout_ref.rollout.n", "--n_samples_per_prompt", ""),
    "training.prompts_per_step": ("the number of prompts of a step", "per_device_train_batch_size",
                                  "data.train_batch_size", "--rollout_batch_size", "n_steps"),
    "training.schedule": ("the schedule of the learning rate", "lr_scheduler_type",
                          f"{_ACTOR}.optim.lr_scheduler_type", "--lr_scheduler", "learning_rate"),
    "training.warmup_steps": ("the warm-up", "warmup_steps", f"{_ACTOR}.optim.lr_warmup_steps",
                              "--lr_warmup_ratio", ""),
    "training.checkpoint_interval_steps": ("the interval of checkpoints", "save_steps", "trainer.save_freq",
                                           "--save_steps", "a CheckpointCallback"),
    "sampling.temperature": ("the temperature", "temperature", "actor_rollout_ref.rollout.temperature",
                             "--temperature", ""),
    "sampling.max_tokens": ("the limit of an answer's tokens", "max_completion_length",
                            "data.max_response_length", "--generate_max_len", ""),
    "algorithm.kl.coefficient": ("the coefficient of the KL", "beta", f"{_ACTOR}.kl_loss_coef",
                                 "--init_kl_coef", ""),
    "algorithm.kl.target": ("a target of the KL", "", "algorithm.kl_ctrl.target_kl", "--kl_target", ""),
    "algorithm.clip_high": ("the upper clip range", "epsilon_high", f"{_ACTOR}.clip_ratio_high",
                            "--eps_clip_low_high", "clip_range"),
    "algorithm.updates_per_batch": ("the updates of a batch", "num_iterations", f"{_ACTOR}.ppo_epochs",
                                    "--max_epochs", "n_epochs"),
    "algorithm.max_step_kl": ("a limit on the KL of a step", "", "", "", "target_kl"),
    "algorithm.overlong.mask_truncated": ("a mask of truncated answers", "mask_truncated_completions",
                                          "reward_model.overlong_buffer.enable", "--overlong_buffer_len", ""),
    "algorithm.overlong.penalty": ("a penalty of overlong answers", "get_soft_overlong_punishment",
                                   "reward_model.overlong_buffer.enable", "--overlong_penalty_factor", ""),
    "algorithm.dynamic_sampling": ("a filter of groups without signal", "",
                                   "algorithm.filter_groups.enable", "--dynamic_filtering", ""),
    "algorithm.loss": ("the normalisation of the loss", "loss_type", f"{_ACTOR}.loss_agg_mode", "", ""),
    "algorithm.advantage": ("the estimator of advantages", "", "algorithm.adv_estimator",
                            "--advantage_estimator", ""),
    "algorithm.entropy_coefficient": ("the coefficient of the entropy", "", f"{_ACTOR}.entropy_coeff",
                                      "--entropy_loss_coef", "ent_coef"),
    "algorithm.critic.learning_rate": ("the learning rate of the critic", "", "critic.optim.lr",
                                       "--critic_learning_rate", ""),
    "algorithm.critic.loss_weight": ("the weight of the value loss", "vf_coef", "critic.ppo_epochs", "",
                                     "vf_coef"),
    "algorithm.critic.trunk": ("", "", "critic.model.path", "--critic_pretrain", "policy_kwargs"),
    "model.dtype": ("the precision", "bf16", "actor_rollout_ref.model.dtype", "--bf16", ""),
    "sandbox.workers": ("the number of graders at once",) * 4 + ("",),
    "sandbox.require": ("the isolation of the grader",) * 4 + ("",),
    "evaluation.enabled": ("evaluations", "eval_strategy", "trainer.test_freq", "--eval_steps",
                           "an EvalCallback"),
    "evaluation.at_start": ("an evaluation before training", "eval_on_start", "trainer.val_before_train", "",
                            ""),
    "evaluation.eval_interval_steps": ("the interval of evaluations", "eval_steps", "trainer.test_freq",
                                       "--eval_steps", "eval_freq"),
    "problems.train": ("", "", "data.train_files", "--prompt_data", ""),
    "problems.families": (),
    "problems.families.limit": (),
    "problems.families.max_depth": (),
    "warm_start.max_steps": (),
}  # fmt: skip


def setting_in(dialect: Dialect, name: str) -> str:
    """What a family calls greenward's setting `name`; empty where it has none."""
    if dialect == "greenward":
        return name
    row = SETTINGS.get(name, ())
    return row[_COLUMNS.index(dialect)] if row else ""
