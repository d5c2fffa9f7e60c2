"""Gives greenward's names and scales to what other trainers log.

The names are those of TRL (`GRPOTrainer`, transformers' Trainer), verl (`metric_utils.py`, `rollout_corr`),
OpenRLHF, prime-rl, Tinker cookbook, Stable-Baselines3, ML-Agents and CleanRL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.families import RATING
from greenward.diagnostics.readers.rows import (
    STEP_KEYS,
    evaluated,
    plain_key,
)
from greenward.diagnostics.signals import HELD_OUT, Floats

# greenward's name -> those of others, the best first where a log has several.
_THEIRS: Mapping[str, str] = {
    "reward/mean": "reward critic/score/mean critic/rewards/mean reward/all/mean env/all/reward/total "
    "reward_mean rewards/mean objective/scores rollout/ep_rew_mean episode_reward_mean return "
    "train/avg_reward episode_reward mean_reward avg_reward reward/env env_reward mean_episode_reward "
    "episode_return_mean env_runners/episode_return_mean charts/episodic_return episodic_return "
    "ep_rew_mean rollout/return train/mean_reward rewards/margins averagereturn metrics/averagereturn "
    "average_return mean_100_episode_reward mean_return episode_return return_mean "
    "episodic_reward/episode average_episode_return ep_rewmean eprewmean averageepret "
    "average_reward_score mean_total_reward total_rewards_mean total_reward_mean rewards_mean "
    "grouped_rewards_mean rewards/accuracies rollout/raw_reward rollout/rewards ep_r ep_ret eprew "
    "reward/overall reward/total rewards/total rm trueaveragereturn "
    "environment/cumulative_reward policy/extrinsic_reward rewards/step rewards/frame rewards/iter "
    "environment",
    "reward/std": "reward_std std_of_reward critic/score/std critic/rewards/std reward/all/std rewards/std "
    "total_rewards_std total_reward_std rewards_std",
    "pass_rate": "pass_rate accuracy acc env/all/correct critic/acc/mean train/accuracy solve_rate pass@1",
    "loss": "loss actor/loss policy_loss actor/pg_loss loss/mean train/loss training_loss avg_loss loss_pg "
    "pg_loss actor_loss act_loss loss/surrogate policy_gradient_loss surrogate_loss losses/policy_loss "
    "train_loss pg learner/policy_loss loss/policy_loss losses/a_loss",
    "entropy": "entropy actor/entropy entropy/mean losses/entropy loss/entropy mean_entropy_loss "
    "entropy/all/mean optim/entropy policy/entropy_avg entropy_mean actor/entropy_loss train/entropy_loss "
    "entropy_loss objective/entropy policy_entropy policy/entropy loss/ent learner/entropy",
    "kl": "kl objective/kl actor/kl_loss critic/kl kl_policy_base kl_mean kl_divergence kl_to_ref "
    "actor/reward_kl_penalty kl_ref mean_kl kl_loss",
    "kl/coefficient": "kl_coef kl_coeff actor/reward_kl_penalty_coeff actor/kl_coef",
    "approx_kl": "approx_kl actor/ppo_kl ppo_kl policy/approxkl_avg train/approx_kl losses/approx_kl "
    "approxkl learner/mean_kl_loss learner/kl info/kl",
    "grad_norm": "grad_norm actor/grad_norm optim/grad_norm train/grad_norm gradient_norm actor_grad_norm "
    "grad._norm learner/gradients_default_optimizer_global_norm learner/grad_gnorm",
    "learning_rate": "learning_rate lr actor/lr optim/lr actor_lr act_lr train/learning_rate "
    "charts/learning_rate loss/learning_rate policy/learning_rate learning/learning_rate info/last_lr "
    "learner/default_optimizer_learning_rate learner/cur_lr",
    "clip/fraction": "clip_ratio/region_mean clip_ratio actor/pg_clipfrac clip_fraction "
    "policy/clipfrac_avg clip_frac ppo_clip_ratio train/clip_fraction losses/clipfrac clipfrac pg_clipfrac",
    "clip/low": "clip_ratio/low_mean actor/pg_clipfrac_lower",
    "clip/high": "clip_ratio/high_mean",
    "explained_variance": "critic/vf_explained_var explained_variance explained_var train/explained_variance "
    "losses/explained_variance learner/vf_explained_var",
    "value/loss": "critic/vf_loss critic_loss value_loss train/value_loss loss/value_avg "
    "losses/value_loss loss/value_function value_function_loss mean_value_function_loss train/critic_loss "
    "vf_loss v_loss loss/vf cri_loss mean_value_loss cri learner/vf_loss loss/value_loss losses/c_loss",
    "completion/mean_length": "completions/mean_length response_length/mean response_length "
    "completion_length env/all/ac_tokens_per_turn seq_len/all/mean num_total_tokens/mean mean_length "
    "avg_response_len response_len avg_len mean_response_length rollout/response_len/mean seq._length "
    "mean_generation_length glen response_length_mean mean_completion_length completion_len",
    "completion/max_length": "completions/max_length response_length/max",
    "completion/truncated": "completions/clipped_ratio response_length/clip_ratio truncated "
    "is_truncated/all/mean is_truncated/mean truncation_rate rollout/truncated_ratio rollout/truncated",
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
    "advantage/max": "critic/advantages/max advantages/max advantages_max",
    "advantage/min": "critic/advantages/min advantages/min advantages_min",
    "reward/max": "critic/score/max critic/rewards/max reward_max",
    "reward/min": "critic/score/min critic/rewards/min reward_min",
    "advantage/std": "critic/advantages/std advantages/std advantages_std adv_std",
    "rollouts/staleness": "off_policy_level/all/mean rollout/staleness_steps staleness policy_lag "
    "max._off_policy_level",
    "perf/tokens_per_second": "perf/throughput throughput tokens_per_second perf/tokens_per_sec tokens/sec",
    "perf/device_memory_mb": "perf/max_memory_allocated_gb gpu_mem_gb perf/max_memory_reserved_gb "
    "perf/peak_memory gpu_memory_gb memory/max_alloc memory(gib) gpu_memory_used gpu_memory_allocated "
    "gpu_memory_usage memory_usage",
    "perf/rss_mb": "perf/cpu_memory_used_gb rss_mb memory_usage_mb rss_gb cpu_memory_used",
    "reward/code_score": "code_score",
    "time/step": "step_time perf/time_per_step timing_s/step time/total time/per_step train_step_time "
    "time_this_iter_s",
}
# Names that do not tell their unit, while their values do: devices have more than 1 MiB, and under 1,024 GiB.
IN_GIGABYTES_IF_SMALL = frozenset({
    "memory_usage", "gpu_memory_usage", "gpu_memory_used", "gpu_memory_allocated", "cpu_memory_used",
})  # fmt: skip
GIGABYTE = 1024
_IN_GIGABYTES = (
    "perf/max_memory_allocated_gb perf/max_memory_reserved_gb gpu_mem_gb gpu_memory_gb memory/max_alloc "
    "perf/peak_memory perf/cpu_memory_used_gb rss_gb memory(gib)"
)
# Of a name of others: greenward's value is scale · value + shift.
_SCALES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(_IN_GIGABYTES.split(), (GIGABYTE, 0)),
    "env/all/by_group/frac_mixed": (-1, 1),
    "train/entropy_loss": (-1, 0),
    "entropy_loss": (-1, 0),
}
_OURS = {
    theirs: (ours, place) for ours, names in _THEIRS.items() for place, theirs in enumerate(names.split())
}
_KEPT = re.compile(
    r"(reward|status|time|timing_s|perf|episodes|updates|groups|importance|ratio|advantage|value|rejection|"
    r"games|clip|kl|entropy|tokens|reward_model|rollouts|completion|evaluation)/[^/]+"
)
_TERM = re.compile(r"(?:rewards|reward|env/all/reward)/(?:func_)?([^/]+)(?:/mean)?")
_TERM_MEAN = re.compile(r"([\w.-]+_reward(?:_func(?:tion)?)?)_mean")  # mlx-lm-lora: accuracy_reward_func mean
_OF_REWARD = frozenset({"reward/std", "reward/max", "reward/min"})  # none of those of a rating
# Where no reward was logged, the share of episodes that ended well is what was learned.
_RATES = re.compile(r"(?:.*/)?(?:avg_|mean_)?(?:win|success|correct)_?rate|(?:.*/)?success")
# What people call the reward where they write the loop themselves: a noun, and words that say of what it is
# the mean or the sum. Those of single episodes come before means over many, which hide how much they vary.
_NOUNS = frozenset({
    *("reward", "rewards", "return", "returns", "score", "scores", "rew", "utility", "fitness"),
})  # fmt: skip
_OF_ONE = frozenset({
    *("episode", "episodes", "episodic", "ep", "eps", "total", "sum", "cumulative", "cum", "current", "last"),
    *("finished", "with", "of", "the", "per", "in", "for", "agent", "agents", "train", "training", "raw"),
    *("collection", "collect", "metrics", "rollout", "rollouts", "sec", "second", "step", "timestep"),
})  # fmt: skip
_OF_MANY = frozenset({
    *("avg", "average", "averaged", "ave", "mean", "running", "moving", "rolling", "recent", "smoothed"),
    *("ma", "over", "past", "previous", "batch", "epoch", "iteration"),
})  # fmt: skip
_OF_EPISODES = frozenset({"episode", "episodes", "episodic", "ep", "eps"})
_WORD = re.compile(r"[a-z]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Parts of names that may be those of a reward, where no name is known as one; a headless table has columns.
_LIKELY = re.compile("|".join((*sorted(_NOUNS), "success", "win", "total", r"column \d")), re.IGNORECASE)
# RLlib's, of a policy: "learners/default_policy/vf_loss", "info/learner/default_policy/learner_stats/kl"
_LEARNER = re.compile(r"(?:learners|info/learner)/[^/]+/(?:learner_stats/)?")
_BY_WORDS = 1000  # ranks behind all names of the table
_NO_TERMS = frozenset({"mean", "std", "max", "min", "all", "total"})
_NO_SCORE = re.compile(
    r"(^|[/_@])(std|min|max|worst|loss|runtime|per_second|length|tokens|kl|entropy)([/_@]|$)"
)
# The best first.
_SCORES = ("acc", "pass", "correct", "solve", "success", "score", "avg@", "reward", "return")
_FEW = 4  # times as many values has another name of the same meaning
_COUNTERS = frozenset({"epoch", "num_tokens", "num_input_tokens_seen", "total_flos", "progress/done_frac"})
# Names that every log of their trainer has, and that no check needs: they are no news.
_NO_NEWS = re.compile(
    r"rewards?/.+/(?:std|min|max)|.+_reward(?:_func(?:tion)?)?_(?:std|min|max|cov)|grouped_rewards_std|"
    r"clip_ratio/.+_(?:min|max)|completions?/(?:min|max|mean)_.*|"
    r"(?:train|eval)_(?:runtime|samples_per_second|steps_per_second)|(?:logps|logits)/.*|"
    r"(?:.*/)?(?:time_elapsed|iterations|total_timesteps|n_updates|episodes|global_step|epoch|num_tokens|"
    r"exploration_rate|clip_range(?:_vf)?|std|ent_coef(?:_loss)?|mean_ep_length|episode_length|"
    r"it/sec|trained_tokens|peak_mem|val_took|ep_?len_?mean|percentage|fps|elapsed_time|remaining_time|"
    r"train_speed\((?:iter/s|s/it)\)|total_steps|time|n/ep|n/st|epsilon|eps|beta|ep_len|episode_len(?:gth)?s?|"
    r".*_value_estimate|is_training|(?:timers|config|fault_tolerance|env_runner_group)/.*|pid|done|timestamp|"
    r"time_(?:total_s|since_restore|step|sample_batch|algorithm_update|environment_step|inference)|"
    r"iterations_since_restore|(?:.*/)?num_(?:env|module|agent|training)_\w+)"
)


def renamed(
    names: Iterable[str], mapping: Mapping[str, str], sizes: Mapping[str, int] = MappingProxyType({})
) -> tuple[dict[str, tuple[str, float, float]], tuple[str, ...]]:
    """({name: (greenward's name, scale, shift)}, the names that are not recognised).

    `mapping` (theirs to greenward's) comes first. Of several names that mean the same, the best is taken and
    the others keep their own; `sizes` says how many values they have: one with far fewer than another is of
    single answers, or of evaluations between the steps. Where no reward of training was logged, the score of
    code is taken, or the reward of evaluations.

    Raises:
        DiagnosticsError: `mapping` has a name that the log has not.
    """
    names = list(names)
    for theirs in mapping:
        if theirs not in names:
            near = get_close_matches(theirs, names, n=3, cutoff=0.4) or names[:5]
            raise DiagnosticsError(f"the log has no {theirs!r} to map", remedy=f"It has {', '.join(near)} …")
    matches = {name: _ours(name, mapping) for name in names}
    if all(ours != "reward/mean" for ours, _ in matches.values()):
        matches |= {
            name: ("reward/mean", rank)
            for name, (ours, rank) in matches.items()
            if ours == "reward/code_score" and name not in mapping
        } or {
            name: ("reward/mean", rank)
            for name, (ours, rank) in matches.items()
            if ours == HELD_OUT and _reward_by_words(evaluated(name) or "") is not None
        }
    if all(ours != "reward/mean" for ours, _ in matches.values()):
        matches |= {
            name: ("reward/mean", rank)
            for rank, name in enumerate(names)
            if matches[name][0] is None and _RATES.fullmatch(_forms(name)[0]) and evaluated(name) is None
        }
    best: dict[str, str] = {}
    most: dict[str | None, int] = {}
    for name, (ours, _) in matches.items():
        most[ours] = max(most.get(ours, 0), sizes.get(name, 0))

    def goodness(name: str) -> tuple[bool, bool, float]:
        ours, rank = matches[name]
        return name not in mapping, _FEW * sizes.get(name, 0) < most[ours], rank

    for name in sorted(names, key=goodness):
        if (ours := matches[name][0]) is not None:
            best.setdefault(ours, name)
    if RATING.fullmatch(best.get("reward/mean", "").strip().lower()):
        best = {ours: name for ours, name in best.items() if ours not in _OF_REWARD}
    unknown = [name for name, (ours, _) in matches.items() if ours is None]
    found = {name: (name, 1.0, 0.0) for name in unknown}
    for name, (ours, _) in matches.items():
        if ours is not None:
            chosen = best.get(ours) == name
            forms = _forms(name) if chosen and name not in mapping else ()
            scale, shift = next((_SCALES[form] for form in forms if form in _SCALES), (1.0, 0.0))
            found[name] = (ours if chosen else name), scale, shift
    news = (
        name
        for name in unknown
        if name not in _COUNTERS
        and plain_key(name) not in STEP_KEYS
        and not _NO_NEWS.fullmatch(_forms(name)[1])
    )
    return found, tuple(news)


def translated(
    columns: Mapping[str, Floats], mapping: Mapping[str, str]
) -> tuple[dict[str, Floats], dict[str, str], tuple[str, ...]]:
    """(the columns of a log by greenward's names and in its units, the log's name of each, unknown names).

    Raises `DiagnosticsError` as `renamed` does.
    """
    sizes = {name: int(np.isfinite(column).sum()) for name, column in columns.items()}
    names, unknown = renamed(columns, mapping, sizes)
    values, theirs = {}, {}
    for name, (ours, scale, shift) in names.items():
        column = columns[name]
        if ours == "entropy" and scale < 0 and np.nanmin(column, initial=np.inf) >= 0:
            scale = 1.0  # a loss is the negative of an entropy, and some call the entropy itself a loss
        if has_no_unit(name) and ours != name and np.nanmax(column, initial=0.0) < GIGABYTE:
            scale = GIGABYTE
        values[ours] = column if (scale, shift) == (1, 0) else scale * column + shift
        theirs[ours] = name
    return values, theirs, unknown


def known_name(name: str) -> str | None:
    """greenward's name for one that other tools use; "step" for one of the step, None for an unknown one."""
    if plain_key(name) in STEP_KEYS:
        return "step"
    return _ours(name, {})[0]


def has_no_unit(name: str) -> bool:
    """Whether the values of a memory, and not its name, tell its unit."""
    return not IN_GIGABYTES_IF_SMALL.isdisjoint(_forms(name))


def _forms(name: str) -> tuple[str, ...]:
    """The forms in which a name may stand in the table."""
    apart = _CAMEL.sub("_", name.strip())  # PolicyLoss
    plain, words = (
        one.lower().replace(" / ", "/").replace(" ", "_").replace("-", "_") for one in (name.strip(), apart)
    )
    of_learner = _LEARNER.sub("learner/", plain)
    return plain, plain.removeprefix("train/"), plain.removeprefix("training/"), words, of_learner


def is_known(name: str) -> bool:
    """Whether a name of a log means something that is known without a mapping."""
    return _ours(name, {})[0] is not None


def likely_reward(names: Iterable[str]) -> str | None:
    """The name that most likely is that of a reward, where none is known as one; None: none may be.

    A mean comes before a spread or an extreme, a noun such as "reward" before a part of a word, and few
    words before many.
    """
    likely = [name for name in names if _LIKELY.search(name) and not _NO_NEWS.fullmatch(_forms(name)[1])]
    return min(likely, key=_unlikeliness, default=None)


def _unlikeliness(name: str) -> tuple[bool, bool, int]:
    words = _WORD.findall(name.lower())
    return bool(_NO_SCORE.search(name.lower())), _NOUNS.isdisjoint(words), len(words)


def _ours(name: str, mapping: Mapping[str, str]) -> tuple[str | None, float]:
    """(greenward's name, how good the match is: less is better); None: not recognised."""
    if name in mapping:
        return mapping[name], -2
    if name in _THEIRS or name in _COUNTERS:
        return name, -1
    if RATING.fullmatch(name.strip().lower()):  # of games, whose rewards have a mean of 0
        return "reward/mean", -0.5
    for place, form in enumerate(_forms(name)):
        if form in _OURS:
            ours, rank = _OURS[form]
            return ours, rank + place / 10
    if inner := (evaluated(name) or "").lower():
        kind = next((place for place, word in enumerate(_SCORES) if word in inner), None)
        return (None, 0) if kind is None or _NO_SCORE.search(inner) else (HELD_OUT, kind + len(inner) / 1000)
    term = _TERM.fullmatch(name.strip().replace(" / ", "/").removeprefix("train/"))
    if term and term[1] not in _NO_TERMS:
        return f"reward/{term[1]}", 0
    if match := _TERM_MEAN.fullmatch(_forms(name)[1]):
        return f"reward/{match[1]}", 0
    if _KEPT.fullmatch(name):
        return name, 0
    by_words = _reward_by_words(name)
    return (None, 0) if by_words is None else ("reward/mean", by_words)


def _reward_by_words(name: str) -> float | None:
    """The rank of a name as one of the reward; None: it has other words, as "best" or "format"."""
    words = _WORD.findall(name.lower())
    nouns = _NOUNS.intersection(words)
    rest = [word for word in words if word not in nouns and not word.isdecimal()]
    if not nouns or not all(word in _OF_ONE or word in _OF_MANY for word in rest):
        return None
    many = any(word in _OF_MANY or word.isdecimal() for word in words)
    # Beside the return of episodes, a mean reward is that of a step.
    before = _OURS["episode_reward"][1] if _OF_EPISODES.intersection(words) else _BY_WORDS
    return before + (0.5 if many else 0.0) + len(words) / 100
