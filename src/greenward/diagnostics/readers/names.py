"""Gives greenward's names and scales to what other trainers log, and aligns their series by step.

The names are those of TRL (`GRPOTrainer`, transformers' Trainer), verl (`metric_utils.py`, `rollout_corr`),
OpenRLHF, prime-rl, Tinker cookbook, Stable-Baselines3 and CleanRL.
"""

from __future__ import annotations

import itertools
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.readers.formats import MAX_NAME, Row
from greenward.diagnostics.signals import HELD_OUT, Bools, Floats, Steps
from greenward.runs.files import OVERFLOWED, from_json_number

# greenward's name -> those of others, the best first where a log has several.
_THEIRS: Mapping[str, str] = {
    "reward/mean": "reward critic/score/mean critic/rewards/mean reward/all/mean env/all/reward/total "
    "reward_mean rewards/mean objective/scores rollout/ep_rew_mean episode_reward_mean return "
    "train/avg_reward mean_reward avg_reward reward/env env_reward episode_reward mean_episode_reward "
    "episode_return_mean env_runners/episode_return_mean charts/episodic_return episodic_return "
    "ep_rew_mean rollout/return train/mean_reward rewards/margins averagereturn metrics/averagereturn "
    "average_return mean_100_episode_reward mean_return episode_return return_mean",
    "reward/std": "reward_std critic/score/std critic/rewards/std reward/all/std rewards/std",
    "pass_rate": "pass_rate accuracy env/all/correct critic/acc/mean train/accuracy solve_rate pass@1",
    "loss": "loss actor/loss policy_loss actor/pg_loss loss/mean train/loss avg_loss loss_pg actor_loss "
    "act_loss loss/surrogate policy_gradient_loss surrogate_loss losses/policy_loss",
    "entropy": "entropy actor/entropy entropy/mean losses/entropy loss/entropy mean_entropy_loss "
    "entropy/all/mean optim/entropy policy/entropy_avg entropy_mean actor/entropy_loss train/entropy_loss "
    "entropy_loss objective/entropy",
    "kl": "kl objective/kl actor/kl_loss critic/kl kl_policy_base kl_mean kl_divergence kl_to_ref "
    "actor/reward_kl_penalty kl_ref mean_kl",
    "kl/coefficient": "kl_coef kl_coeff actor/reward_kl_penalty_coeff actor/kl_coef",
    "approx_kl": "approx_kl actor/ppo_kl ppo_kl policy/approxkl_avg train/approx_kl losses/approx_kl",
    "grad_norm": "grad_norm actor/grad_norm optim/grad_norm train/grad_norm gradient_norm actor_grad_norm",
    "learning_rate": "learning_rate lr actor/lr optim/lr actor_lr train/learning_rate charts/learning_rate "
    "loss/learning_rate",
    "clip/fraction": "clip_ratio/region_mean clip_ratio actor/pg_clipfrac clip_fraction "
    "policy/clipfrac_avg clip_frac ppo_clip_ratio train/clip_fraction losses/clipfrac",
    "clip/low": "clip_ratio/low_mean actor/pg_clipfrac_lower",
    "clip/high": "clip_ratio/high_mean",
    "explained_variance": "critic/vf_explained_var explained_variance train/explained_variance "
    "losses/explained_variance",
    "value/loss": "critic/vf_loss critic_loss value_loss train/value_loss loss/value_avg "
    "losses/value_loss loss/value_function value_function_loss mean_value_function_loss train/critic_loss "
    "vf_loss",
    "completion/mean_length": "completions/mean_length response_length/mean response_length "
    "completion_length env/all/ac_tokens_per_turn seq_len/all/mean num_total_tokens/mean mean_length "
    "avg_response_len response_len avg_len mean_response_length",
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
    "advantage/max": "critic/advantages/max advantages/max advantages_max",
    "advantage/min": "critic/advantages/min advantages/min advantages_min",
    "reward/max": "critic/score/max critic/rewards/max reward_max",
    "reward/min": "critic/score/min critic/rewards/min reward_min",
    "advantage/std": "critic/advantages/std advantages/std advantages_std",
    "rollouts/staleness": "off_policy_level/all/mean rollout/staleness_steps staleness policy_lag",
    "perf/tokens_per_second": "perf/throughput throughput tokens_per_second perf/tokens_per_sec",
    "perf/device_memory_mb": "perf/max_memory_allocated_gb gpu_mem_gb perf/max_memory_reserved_gb "
    "perf/peak_memory gpu_memory_gb memory/max_alloc memory(gib)",
    "perf/rss_mb": "perf/cpu_memory_used_gb rss_mb memory_usage_mb rss_gb",
    "time/step": "step_time perf/time_per_step timing_s/step time/total time/per_step train_step_time",
}
_IN_GIGABYTES = (
    "perf/max_memory_allocated_gb perf/max_memory_reserved_gb gpu_mem_gb gpu_memory_gb memory/max_alloc "
    "perf/peak_memory perf/cpu_memory_used_gb rss_gb memory(gib)"
)
# Of a name of others: greenward's value is scale · value + shift.
_SCALES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(_IN_GIGABYTES.split(), (1024, 0)),
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
            forms = _forms(name) if chosen and name not in mapping else ()
            scale, shift = next((_SCALES[form] for form in forms if form in _SCALES), (1.0, 0.0))
            found[name] = (ours if chosen else name), scale, shift
    return found, tuple(name for name in unknown if name not in _COUNTERS)


def _forms(name: str) -> tuple[str, ...]:
    """The forms in which a name may stand in the table."""
    plain = name.strip().lower().replace(" ", "_")
    return plain, plain.removeprefix("train/"), plain.removeprefix("training/")


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


_STEP_LIMIT = 2**62
_MOST_NAMES = 4000
_MOST_CELLS = 1 << 24  # of steps and names together, unless most of them have a value
_LONG = 4  # values of a row, from which on rows are taken as a whole
_PEEKED = 200  # rows, by which the key of the step is chosen


class Columns(NamedTuple):
    """Series by name. Arrays of numbers hold 16 bytes a value, where lists of them would hold 56."""

    steps: Steps
    values: dict[str, Floats]
    recorded: dict[str, Bools]
    notes: list[str]

    @classmethod
    def of(cls, rows: Iterable[Row], step_keys: Sequence[str]) -> Columns:
        """Align the rows. Of several values of a step and a name the last one counts."""
        written = array("q")
        columns: dict[str, tuple[array[int], array[float]]] = {}
        whole = _WholeRows()
        left_out = counted = dropped = 0
        rows, key = _step_key(iter(rows), step_keys)
        for row in rows:
            if key is None:
                counted += 1
                step: Any = counted
            else:
                step = _of_all(row.pop(key, None))
                if not _is_step(step):
                    left_out += 1
                    continue
            if not whole.take(row, len(written)):
                for name, cell in row.items():
                    number = cell if type(cell) is float else as_number(cell)
                    if number is None:
                        continue
                    if (column := columns.get(name)) is None:
                        if len(name) > MAX_NAME or len(columns) >= _MOST_NAMES:
                            dropped += 1
                            continue
                        column = columns[name] = array("q"), array("d")
                    column[0].append(len(written))
                    column[1].append(number)
            written.append(int(step))
        found = {name: (np.array(rows), np.array(numbers)) for name, (rows, numbers) in columns.items()}
        for name, taken, numbers in whole.columns():
            if name in found:
                taken, numbers = (
                    np.concatenate(pair) for pair in zip(found[name], (taken, numbers), strict=True)
                )
                order = np.argsort(taken, kind="stable")
                taken, numbers = taken[order], numbers[order]
            found[name] = taken, numbers
        in_order = np.array(written, np.int64)
        steps, places = np.unique(in_order, return_inverse=True)
        found, too_sparse = _dense_enough(found, len(steps))
        values, recorded, repeated = _aligned(len(steps), places, found)
        notes = {
            f"{too_sparse} name(s) with the fewest values were left out: the log has {len(steps)} steps": (
                too_sparse
            ),
            f"{left_out} row(s) without a step were left out": left_out,
            "no row has a step; rows are counted": counted,
            f"{dropped} value(s) whose name is longer than {MAX_NAME} characters, or beyond the first "
            f"{_MOST_NAMES} names, were left out": dropped,
            f"{repeated} step(s) were written again; the last value counts": repeated,
            "the steps were not in order and were sorted": bool(np.any(np.diff(in_order) < 0)),
        }
        return cls(steps, values, recorded, [note for note, applies in notes.items() if applies])


def _dense_enough(
    columns: dict[str, tuple[Steps, Floats]], steps: int
) -> tuple[dict[str, tuple[Steps, Floats]], int]:
    """The fullest columns, as many as can be aligned without more empty cells than `_MOST_CELLS`, and how
    many are left out. A small log could else ask for any memory, by names that each have a step of their own.
    """
    by_size = sorted(columns, key=lambda name: -len(columns[name][0]))
    cells = values = 0
    kept = set()
    for name in by_size:
        cells, values = cells + steps, values + len(columns[name][0])
        if cells - values > _MOST_CELLS:
            break
        kept.add(name)
    return {name: columns[name] for name in columns if name in kept}, len(columns) - len(kept)


def _aligned(
    steps: int, places: Steps, columns: Mapping[str, tuple[Steps, Floats]]
) -> tuple[dict[str, Floats], dict[str, Bools], int]:
    """(values, recorded, how many steps were written again) of columns whose rows belong to `places`."""
    values, recorded, repeated = {}, {}, np.zeros(steps, bool)
    for name, (rows, found) in columns.items():
        known = places[rows]
        values[name], recorded[name] = np.full(steps, np.nan), np.zeros(steps, bool)
        # numpy assigns in order, so that the last value of a step counts.
        values[name][known] = np.where(np.abs(found) > OVERFLOWED, np.copysign(np.inf, found), found)
        recorded[name][known] = True
        if len(known) > recorded[name].sum():
            repeated |= np.bincount(known, minlength=steps) > 1
    return values, recorded, int(repeated.sum())


class _WholeRows:
    """Rows with the names of the first long one, in its order, and nothing but numbers: as a block."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._rows, self._numbers = array("q"), array("d")

    def take(self, row: Row, place: int) -> bool:
        """Whether the row fits, and was taken."""
        names = tuple(row)
        if not self._names and _LONG <= len(names) < _MOST_NAMES and max(map(len, names)) <= MAX_NAME:
            self._names = names
        if not names or names != self._names:
            return False
        before = len(self._numbers)
        try:
            self._numbers.extend(row.values())
        except (TypeError, OverflowError):
            del self._numbers[before:]
            return False
        self._rows.append(place)
        return True

    def columns(self) -> Iterator[tuple[str, Steps, Floats]]:
        """(name, places of the rows, values) of each name."""
        table = np.array(self._numbers).reshape(len(self._rows), -1) if self._rows else np.zeros((0, 0))
        rows = np.array(self._rows)
        for index, name in enumerate(self._names if len(rows) else ()):
            yield name, rows, table[:, index]


def _step_key(rows: Iterator[Row], keys: Sequence[str]) -> tuple[Iterator[Row], str | None]:
    """The rows, and the first of the keys under which the most of the first rows have a step."""
    first = list(itertools.islice(rows, _PEEKED))
    counts = [sum(_is_step(_of_all(row.get(key))) for row in first) for key in keys]
    best = max(counts, default=0)
    return itertools.chain(first, rows), keys[counts.index(best)] if best else None


_OF_ALL = re.compile(r"\s*(\d{1,18})\s*/\s*\d+\s*(?:\[.*)?")


def _of_all(step: Any) -> Any:
    """The step of a text such as "17/124", with a bar's times behind it or not; anything else as it is."""
    found = _OF_ALL.fullmatch(step) if isinstance(step, str) and len(step) <= MAX_NAME else None
    return int(found[1]) if found else step


def as_number(value: Any) -> float | None:
    """The number that a cell of a log means, None where it is none; one beyond a float is infinite."""
    value = from_json_number(value)
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_step(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) >= _STEP_LIMIT:
        return False
    return float(value).is_integer()
