"""Families of trainers: what their logs hold, and rates that were measured on 36 public logs.

The numbers summarise those logs (TRL, verl, Stable-Baselines3, own formats; a few are excerpts of issues); no
series of them is kept. `origin` says how many logs a family's rates rest on. Families of which there was no
log, or only an excerpt of a few rows, borrow the rates of the nearest one, and say so.

| measured | value | on |
|---|---|---|
| noise of the mean reward of a step of 4 answers, rewards 0, 0.5 and 1 | 0.20 to 0.22 | 6 TRL logs |
| the same, logged as a mean over ten large batches | 0.006 | 1 TRL log |
| autocorrelation of that noise between steps | -0.2 to 0.1 | 13 TRL logs |
| steps at which the deviation of rewards is 0 | 30 to 45 % by 4 answers, 0 to 10 % by 8 | 12 TRL logs |
| reward of healthy runs, first fifth to last | 0.28 to 0.68, 0.36 to 0.53, 0.38 to 0.52 | 3 TRL logs |
| step of the largest reward in healthy runs | 2 to 85 % of the run | 6 TRL logs |
| gradient norm: standard deviation of its logarithm | 0.5 to 1.5 | 13 TRL and verl logs |
| gradient norm: largest over median, healthy | 2.8 to 4.3 in 3 runs, one step of 12 to 57 in 3 | 6 TRL logs |
| KL: rises from 0 to its level within | 5 to 20 % of the run | 10 TRL logs |
| KL: level | 0.02 to 0.09, small models with high rates 0.4 to 1.2 | 13 TRL logs |
| KL: largest over median, healthy | 1.8 to 3.6 in 4 runs, one step of 19 and of 55 in 2 | 6 TRL logs |
| entropy while the reward rises | 1.28 to 0.77, 0.84 to 0.50, 1.05 to 1.17; noise 0.05 to 0.11 | 3 TRL logs |
| length of answers: noise over mean; autocorrelation | 0.02 to 0.4; -0.2 to 0.85 | 15 logs |
| warm-up of the learning rate | none, or 5 to 10 % of the run, then to 0 | TRL, verl |
| time of a step: noise over mean; stalls | 0.02 to 0.1; a step of 9 and of 830 times | 8 TRL logs |
| episodes behind a point of `ep_rew_mean` | the last 100; 4 to 40 are new in a row | 4 SB3 logs |
| return of an episode (from differences): deviation over the gain | 0.4 to 0.6, once 1.2 | 4 SB3 logs |
| autocorrelation of `ep_rew_mean` between rows | 0.96 to 1.00 | 4 SB3 logs |
| entropy of a healthy agent | 0.68 to 0.06 while the return rises from 140 to 650 | 1 SB3 log |
| explained variance, healthy | 0.47 to 0.9, single rows down to -0.2 | 2 SB3 logs |
| explained variance of values that are not trained yet | 0.000 to 0.003 | 1 SB3 log |
| value loss, healthy: noise over mean; its root over the gain | 0.3 to 0.4; 0.06 to 0.2 | 2 SB3 logs |
| loss of a diverging value function: its root over the largest return | 10 to 26 | 1 excerpt |
| `time/fps`, cumulative, healthy | falls from 1850 to 620 (PPO), from 19000 to 2150 (DQN) | 2 SB3 logs |
| rows of a log | 20 to 636 (language models), 25 to 8538 (agents) | 27 logs |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Span = tuple[float, float]


@dataclass(frozen=True)
class Answers:
    """Rates of a trainer of language models; a batch is (prompts, answers to each)."""

    batches: tuple[tuple[int, int], ...] = ((4, 2), (2, 4), (1, 8), (4, 4))
    noisy_batch: tuple[int, int] = (1, 4)
    start: Span = (0.2, 0.4)
    rewards: tuple[Span, ...] = ((0, 1), (0, 2.5), (-0.5, 1.5))  # of a wrong and of a right answer
    gradient: Span = (0.1, 4)
    gradient_noise: Span = (0.5, 1.2)
    kl: Span = (0.05, 0.5)
    entropy: Span = (0.5, 1.2)
    length: Span = (60, 300)
    length_noise: Span = (0.06, 0.2)
    seconds: Span = (3, 130)


@dataclass(frozen=True)
class Episodes:
    """Rates of a trainer of agents; `window` is over how many episodes a logged return is averaged."""

    window: int = 100
    fresh: tuple[int, ...] = (4, 8, 14, 40)
    start: Span = (-80, 90)
    gain: Span = (80, 500)
    spread: Span = (0.4, 0.6)
    entropy: Span = (0.6, 1.4)
    explained: Span = (0.5, 0.9)
    value_error: Span = (0.06, 0.2)  # the root of the value loss, over the gain
    speed: Span = (100, 2000)


@dataclass(frozen=True)
class Family:
    """A trainer: the form of its logs, its key for each signal, its rates and on how many logs they rest."""

    form: str
    names: Mapping[str, str]
    rows: tuple[int, ...]
    rates: Answers | Episodes
    origin: str


_TRL_OLD = {
    "loss": "loss", "gradient": "grad_norm", "rate": "learning_rate", "length": "completion_length",
    "reward_term": "rewards/reward_fn", "reward": "reward", "reward_std": "reward_std", "kl": "kl",
    "epoch": "epoch",
}  # fmt: skip
_TRL = {
    "loss": "loss", "gradient": "grad_norm", "rate": "learning_rate", "tokens": "num_tokens",
    "length": "completions/mean_length", "length_max": "completions/max_length",
    "truncated": "completions/clipped_ratio", "reward_term": "rewards/reward_fn/mean",
    "reward": "reward", "reward_std": "reward_std", "dead": "frac_reward_zero_std", "kl": "kl",
    "entropy": "entropy", "clip": "clip_ratio/region_mean", "seconds": "step_time", "epoch": "epoch",
}  # fmt: skip
_VERL = {
    "entropy": "actor/entropy", "clip": "actor/pg_clipfrac", "policy_kl": "actor/ppo_kl",
    "kl": "actor/kl_loss", "loss": "actor/pg_loss", "gradient": "actor/grad_norm", "rate": "actor/lr",
    "device_memory": "perf/max_memory_allocated_gb", "memory": "perf/cpu_memory_used_gb",
    "reward": "critic/score/mean", "reward_max": "critic/score/max", "reward_min": "critic/score/min",
    "reward_kl": "critic/rewards/mean", "advantage": "critic/advantages/mean",
    "advantage_max": "critic/advantages/max", "advantage_min": "critic/advantages/min",
    "length": "response_length/mean", "length_max": "response_length/max",
    "truncated": "response_length/clip_ratio", "seconds": "perf/time_per_step",
    "throughput": "perf/throughput",
}  # fmt: skip
_SB3 = {
    "return": "rollout/ep_rew_mean", "episode_length": "rollout/ep_len_mean", "iterations": "time/iterations",
    "elapsed": "time/time_elapsed", "timesteps": "time/total_timesteps", "fps": "time/fps",
    "updates": "train/n_updates", "rate": "train/learning_rate", "loss": "train/loss",
}  # fmt: skip
_ON_POLICY = {
    "value_loss": "train/value_loss", "explained": "train/explained_variance",
    "entropy_loss": "train/entropy_loss", "clip": "train/clip_fraction", "policy_kl": "train/approx_kl",
    "policy_loss": "train/policy_gradient_loss", "clip_range": "train/clip_range",
}  # fmt: skip
_LANGUAGE_ROWS = (60, 100, 200, 200, 300, 500)
FAMILIES: dict[str, Family] = {
    "TRL GRPO, printed": Family("printed", _TRL_OLD, _LANGUAGE_ROWS,
        Answers(batches=((2, 2), (2, 2), (4, 2), (40, 8)), kl=(0.05, 0.12)), "8 logs"),
    "TRL GRPO, state": Family("state", _TRL, _LANGUAGE_ROWS, Answers(), "9 logs"),
    "verl": Family(
        "verl", _VERL, (54, 100, 200), Answers(batches=((8, 4), (16, 8)), noisy_batch=(2, 4)),
        "1 log; rates of TRL's with larger batches"),
    "verl with a critic": Family(
        "verl", {**_VERL, "value_loss": "critic/vf_loss", "explained": "critic/vf_explained_var",
                 "value_gradient": "critic/grad_norm"}, (54, 100, 200),
        Answers(batches=((32, 1), (64, 1)), noisy_batch=(16, 1)), "an excerpt of 1 step; rates of verl's"),
    "OpenRLHF": Family(
        "lines", {"loss": "policy_loss", "rate": "actor_lr", "kl": "kl", "reward": "reward",
                  "reward_return": "return", "length": "response_length", "total_length": "total_length",
                  "value_loss": "critic_loss", "values": "values"},
        (100, 200, 400), Answers(batches=((8, 4), (16, 8)), noisy_batch=(4, 2)), "no log; rates of verl's"),
    "minimind": Family(
        "minimind", {"reward": "Reward", "kl": "KL_ref", "advantage_std": "Adv Std", "loss": "Actor Loss",
                     "length": "Avg Len", "rate": "LR"},
        (200, 500), Answers(kl=(0.02, 0.08), length=(100, 200), length_noise=(0.2, 0.25)), "1 log"),
    "own, answers": Family(
        "lines", {"reward": "reward", "reward_std": "reward_std", "loss": "loss", "kl": "kl",
                  "entropy": "entropy", "length": "mean_length"},
        (60, 150, 200), Answers(batches=((4, 4), (8, 2)), noisy_batch=(2, 4)), "3 logs, other names"),
    "SB3 on-policy": Family("table", _SB3 | _ON_POLICY, (100, 400, 1000), Episodes(), "2 logs"),
    "SB3 on-policy, printed": Family("boxes", _SB3 | _ON_POLICY, (50, 100), Episodes(), "1 log"),
    "SB3 off-policy": Family(
        "table", {**_SB3, "exploration": "rollout/exploration_rate"}, (400, 1500),
        Episodes(fresh=(4,)), "1 log"),
    "CleanRL": Family(
        "table", {"return": "charts/episodic_return", "episode_length": "charts/episodic_length",
                  "fps": "charts/SPS", "rate": "charts/learning_rate", "value_loss": "losses/value_loss",
                  "policy_loss": "losses/policy_loss", "entropy": "losses/entropy",
                  "policy_kl": "losses/approx_kl", "clip": "losses/clipfrac",
                  "explained": "losses/explained_variance", "timesteps": "global_step"},
        (200, 500), Episodes(window=1, fresh=(1, 4)), "no log; rates of SB3's, one episode a point"),
    "rsl_rl": Family(
        "blocks", {"return": "Mean reward", "episode_length": "Mean episode length",
                   "value_loss": "Mean value_function loss", "policy_loss": "Mean surrogate loss",
                   "noise_std": "Mean action noise std"},
        (200, 500), Episodes(fresh=(40,), start=(-5, 2), gain=(10, 30)),
        "an excerpt of 1 block; rates of SB3's"),
    "own, episodes": Family(
        "table", {"return": "episode_reward", "timesteps": "frame", "value": "value",
                  "value_loss": "value_loss"},
        (100, 400, 1000), Episodes(window=10, fresh=(4, 10)), "2 logs"),
}  # fmt: skip
