"""greenward's names for what other trainers log, each with its scale.

Names are those of TRL (`GRPOTrainer`, transformers' Trainer), verl (`metric_utils.py`, `rollout_corr`),
OpenRLHF, prime-rl, Tinker cookbook and Stable-Baselines3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from greenward.diagnostics.signals import HELD_OUT
from greenward.errors import DiagnosticsError

# greenward's name -> those of others, the best first where a log has several.
_THEIRS: Mapping[str, str] = {
    "reward/mean": "reward critic/score/mean critic/rewards/mean reward/all/mean env/all/reward/total "
    "reward_mean rewards/mean objective/scores rollout/ep_rew_mean episode_reward_mean return "
    "train/avg_reward mean_reward",
    "reward/std": "reward_std critic/score/std critic/rewards/std reward/all/std rewards/std",
    "pass_rate": "pass_rate accuracy env/all/correct critic/acc/mean train/accuracy solve_rate pass@1",
    "loss": "loss actor/loss policy_loss actor/pg_loss loss/mean train/loss",
    "entropy": "entropy actor/entropy entropy/all/mean optim/entropy policy/entropy_avg entropy_mean "
    "actor/entropy_loss train/entropy_loss objective/entropy",
    "kl": "kl objective/kl actor/kl_loss critic/kl kl_policy_base kl_mean kl_divergence kl_to_ref "
    "actor/reward_kl_penalty",
    "kl/coefficient": "kl_coef kl_coeff actor/reward_kl_penalty_coeff actor/kl_coef",
    "approx_kl": "approx_kl actor/ppo_kl ppo_kl policy/approxkl_avg train/approx_kl",
    "grad_norm": "grad_norm actor/grad_norm optim/grad_norm train/grad_norm gradient_norm actor_grad_norm",
    "learning_rate": "learning_rate lr actor/lr optim/lr actor_lr train/learning_rate",
    "clip/fraction": "clip_ratio/region_mean clip_ratio actor/pg_clipfrac clip_fraction "
    "policy/clipfrac_avg clip_frac ppo_clip_ratio train/clip_fraction",
    "clip/low": "clip_ratio/low_mean actor/pg_clipfrac_lower",
    "clip/high": "clip_ratio/high_mean",
    "explained_variance": "critic/vf_explained_var explained_variance train/explained_variance",
    "value/loss": "critic/vf_loss critic_loss value_loss train/value_loss loss/value_avg",
    "completion/mean_length": "completions/mean_length response_length/mean response_length "
    "completion_length env/all/ac_tokens_per_turn seq_len/all/mean rollout/ep_len_mean num_total_tokens/mean",
    "completion/max_length": "completions/max_length response_length/max",
    "completion/truncated": "completions/clipped_ratio response_length/clip_ratio truncated "
    "is_truncated/all/mean is_truncated/mean truncation_rate",
    "completion/unique": "unique_ratio diversity/unique distinct",
    "groups/without_signal": "frac_reward_zero_std env/all/by_group/frac_mixed zero_var_group_frac",
    "groups/all_fail": "env/all/by_group/frac_all_bad batch/solve_none critic/solve_none solve_none",
    "groups/all_pass": "env/all/by_group/frac_all_good batch/solve_all critic/solve_all solve_all",
    "importance/mean": "sampling/importance_sampling_ratio/mean rollout_corr/rollout_is_mean",
    "importance/difference": "sampling/sampling_logp_difference/mean rollout_corr/log_ppl_abs_diff "
    "training/rollout_probs_diff_mean",
    "importance/kl": "rollout_corr/k3_kl rollout_corr/kl mismatch_kl/all/mean mismatch_kl/mean "
    "kl_sample_train_v2 optim/kl_sample_train_v2 kl_sample_train_v1 optim/kl_sample_train_v1 vllm_kl",
    "ratio/mean": "policy/ratio importance_ratio",
    "advantage/mean": "critic/advantages/mean advantages/mean advantages_mean",
    "advantage/std": "critic/advantages/std advantages/std advantages_std",
    "rollouts/staleness": "off_policy_level/all/mean rollout/staleness_steps staleness policy_lag",
    "perf/tokens_per_second": "perf/throughput throughput tokens_per_second perf/tokens_per_sec time/fps",
    "perf/device_memory_mb": "perf/max_memory_allocated_gb gpu_mem_gb perf/max_memory_reserved_gb "
    "perf/peak_memory gpu_memory_gb memory/max_alloc",
    "perf/rss_mb": "perf/cpu_memory_used_gb rss_mb memory_usage_mb rss_gb",
    "time/step": "step_time perf/time_per_step timing_s/step time/total time/per_step train_step_time",
}
_IN_GIGABYTES = (
    "perf/max_memory_allocated_gb perf/max_memory_reserved_gb gpu_mem_gb gpu_memory_gb memory/max_alloc "
    "perf/peak_memory perf/cpu_memory_used_gb rss_gb"
)
# Of a name of others: greenward's value is scale · value + shift.
_SCALES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(_IN_GIGABYTES.split(), (1024, 0)),
    "env/all/by_group/frac_mixed": (-1, 1),
    "train/entropy_loss": (-1, 0),
}
_OURS = {
    theirs: (ours, place) for ours, names in _THEIRS.items() for place, theirs in enumerate(names.split())
}
_KEPT = re.compile(
    r"(reward|status|time|timing_s|perf|episodes|updates|groups|importance|ratio|advantage|value|rejection|"
    r"games|clip|kl|entropy|tokens|reward_model|rollouts|completion|evaluation)/[^/]+"
)
_TERM = re.compile(r"(?:rewards|reward|env/all/reward)/(?:func_)?([^/]+)(?:/mean)?")
_NO_TERMS = frozenset({"mean", "std", "max", "min", "all", "total"})
_EVALUATION = re.compile(r"(?:eval|val|val-core|val-aux|test|validation|evaluation)[/_](.+)")
_NO_SCORE = re.compile(
    r"(^|[/_@])(std|min|max|worst|loss|runtime|per_second|length|tokens|kl|entropy)([/_@]|$)"
)
_SCORES = ("acc", "pass", "correct", "solve", "score", "avg@", "reward")  # the best first
_COUNTERS = frozenset({"epoch", "num_tokens", "num_input_tokens_seen", "total_flos", "progress/done_frac"})


def renamed(
    names: Iterable[str], mapping: Mapping[str, str]
) -> tuple[dict[str, tuple[str, float, float]], tuple[str, ...]]:
    """({name: (greenward's name, scale, shift)}, the names that are not recognised).

    `mapping` (theirs to greenward's) comes first. Of several names that mean the same, the best is taken and
    the others keep their own.

    Raises:
        DiagnosticsError: `mapping` has a name that the log has not.
    """
    names = list(names)
    for theirs in mapping:
        if theirs not in names:
            near = get_close_matches(theirs, names, n=3, cutoff=0.4) or names[:5]
            raise DiagnosticsError(f"the log has no {theirs!r} to map", remedy=f"It has {', '.join(near)} …")
    matches = {name: _ours(name, mapping) for name in names}
    best: dict[str, str] = {}
    for name, (ours, rank) in matches.items():
        if ours is not None and (ours not in best or rank < matches[best[ours]][1]):
            best[ours] = name
    unknown = [name for name, (ours, _) in matches.items() if ours is None]
    found = {name: (name, 1.0, 0.0) for name in unknown}
    for name, (ours, _) in matches.items():
        if ours is not None:
            chosen = best[ours] == name
            scale, shift = _scale(name) if chosen and name not in mapping else (1.0, 0.0)
            found[name] = (ours if chosen else name), scale, shift
    return found, tuple(name for name in unknown if name not in _COUNTERS)


def _forms(name: str) -> tuple[str, ...]:
    """The forms in which a name may stand in the table."""
    plain = name.strip().lower()
    return plain, plain.removeprefix("train/"), plain.removeprefix("training/")


def _scale(name: str) -> tuple[float, float]:
    return next((_SCALES[form] for form in _forms(name) if form in _SCALES), (1.0, 0.0))


def _ours(name: str, mapping: Mapping[str, str]) -> tuple[str | None, float]:
    """(greenward's name, how good the match is: less is better); None: not recognised."""
    if name in mapping:
        return mapping[name], -2
    if name in _THEIRS or name in _COUNTERS:
        return name, -1
    for place, form in enumerate(_forms(name)):
        if form in _OURS:
            ours, rank = _OURS[form]
            return ours, rank + place / 10
    if match := _EVALUATION.fullmatch(_forms(name)[1]):
        inner = match[1]
        kind = next((place for place, word in enumerate(_SCORES) if word in inner), None)
        return (None, 0) if kind is None or _NO_SCORE.search(inner) else (HELD_OUT, kind + len(inner) / 1000)
    term = _TERM.fullmatch(name.strip().removeprefix("train/"))
    if term and term[1] not in _NO_TERMS:
        return f"reward/{term[1]}", 0
    if _KEPT.fullmatch(name):
        return name, 0
    return None, 0
