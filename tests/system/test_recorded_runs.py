"""Safety net: short runs of every recipe give the metrics, answers and summaries that were recorded.

Each run starts from `recorded_runs/starter`, a committed model of 20,000 parameters that answers half of
four small problems rightly, and takes two or three steps through the command `greenward train`. So whatever
is between the command line and `metrics.jsonl` may be rearranged, while its numbers may not change. A new
metric is no failure; one that is missing or differs is.

The recorded numbers hold on other processors: arithmetic is float32, steps are few and small, and the
comparison has a tolerance far above rounding and far below any change of an algorithm. To verify:

    ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE \
        pytest tests/system/test_recorded_runs.py

Where numbers are meant to change, record them anew and commit the new files with the reason:

    PYTHONPATH=tests python tests/system/test_recorded_runs.py            # all
    PYTHONPATH=tests python tests/system/test_recorded_runs.py ppo_code_fix resumed_grpo
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from recording import check, to_json, train

from greenward.runs.reading import by_problem
from tiny_model import BUGS, DATA, ON_THE_STARTER, REINFORCED, TINY_MODEL

pytestmark = pytest.mark.usefixtures("kept_sandbox")

NOT_COMPARED = ("time/", "perf/")  # of the clock and the machine
NOT_COMPARED_IN_SUMMARIES = ("wall_seconds", "training_seconds", "peak_rss_mb", "estimated_mb", "model")

UNMEASURED = "evaluation.enabled=false"
BREVITY = "rewards=[{name: tests}, {name: 'brevity_reward:brevity', weight: 0.5}]"
FROM_RANDOM_WEIGHTS = (
    "problems.families={max_depth: 2, limit: 60}",
    "model.dtype=float32",
    "model.device=cpu",
    "model.shape={layers: 1, hidden_size: 32, heads: 2, kv_heads: 2, intermediate_size: 64, max_positions: 128}",
    "warm_start={max_steps: 3, batch_size: 8, warmup_steps: 1}",
    "sampling.max_tokens=12",
    "rewards=[{name: 'brevity_reward:brevity'}, {name: tests}]",
    "training={max_steps: 2, prompts_per_step: 4, num_generations: 4, micro_batch_sequences: 8, threads: 1}",
    "evaluation={num_questions: 2, samples: 2, k: [1], eval_interval_steps: 1}",
    "sandbox={workers: 1, require: D}",
)


SMALL_FAMILIES = "problems.families={max_depth: 2, limit: 60}"
FEW_QUESTIONS = "evaluation={num_questions: 2, samples: 2, k: [1], eval_interval_steps: 1}"
GAMES_OF_A_STEP = (
    "self_play.evaluation_games=8",
    "evaluation.eval_interval_steps=1",
    "training.num_generations=16",
    "training.rollouts_per_step=8",
)
TINY_DQN = (
    "preset=none",
    "problems.generated=20",
    "algorithm={hidden_dim: 16, batch_size: 16, buffer_capacity: 400, learning_starts: 20, pretraining_updates: 20}",
    "training={num_episodes: 24, max_seconds: null, episodes_per_step: 8, updates_per_step: 2, threads: 1, rollouts_per_step: 4}",
    "evaluation={samples: 2, eval_interval_steps: 2}",
)


SLOW = frozenset(
    {
        "code_game",
        "fault_reward_overconfidence_and_memory_leak",
        "kl_k2_target_and_entropy_target",
        "loss_dapo_small_norm",
        "loss_dr_grpo_weight_decay",
        "loss_gspo_narrow_clip",
        "loss_ppo_reinforce",
        "loss_reinforce_rloo",
        "overlong_penalty",
        "all_reward_terms",
        "ppo_repair_with_failing_tests",
        "ppo_shared_critic",
        "resumed_grpo",
        "resumed_ppo",
    }
)
"""Of each kind of runs the one that takes least time stays among the other tests."""
EVALUATED = frozenset(
    {
        "quickstart",
        "repair_by_edits",
        "repair_with_feedback",
        "agent",
        "spec",
        "vulnerability",
        "self_play_tictactoe",
        "self_play_kuhn",
        "dqn",
    }
)
"""Runs that `test_recorded_evaluations` trains, holds to what was recorded of them, and evaluates."""


def slow_ones_marked(names: Iterable[str], slow: Collection[str]) -> list[Any]:
    return [pytest.param(one, marks=pytest.mark.slow) if one in slow else one for one in names]


@dataclass(frozen=True)
class Run:
    """One recorded run: a shipped recipe and overrides of it.

    `first` are overrides of an earlier command on the same directory, which the run then resumes; the
    record is that of the run without interruption.
    """

    recipe: str
    overrides: tuple[str, ...]
    first: tuple[str, ...] = ()


def _beside_brevity(reward: str) -> str:
    """A reward that few answers of a tiny model earn, beside one that tells all answers apart."""
    return f"rewards=[{{name: {reward}}}, {{name: 'brevity_reward:brevity', weight: 0.5}}]"


def _of_kind(recipe: str, *overrides: str, max_tokens: int = 24) -> Run:
    """Two steps of a recipe from random weights, after a short warm start."""
    return Run(
        recipe,
        (
            *TINY_MODEL,
            "model.dtype=float32",
            "model.device=cpu",
            "warm_start={max_steps: 4, batch_size: 16, warmup_steps: 1}",
            f"sampling.max_tokens={max_tokens}",
            "training={max_steps: 2, prompts_per_step: 4, num_generations: 4, micro_batch_sequences: 8, threads: 1}",
            "sandbox={workers: 1, require: D}",
            *overrides,
        ),
    )


def _grpo(*overrides: str) -> Run:
    return Run("quickstart", (*REINFORCED, UNMEASURED, "algorithm.minibatches=1", *overrides))


def _ppo(*overrides: str) -> Run:
    return Run("ppo_code_fix", (*REINFORCED, UNMEASURED, *overrides))


RESUMED_GRPO = (
    *REINFORCED,
    UNMEASURED,
    "training.checkpoint_interval_steps=1",
    "algorithm={minibatches: 2, dynamic_sampling: true, entropy_coefficient: 0.01, entropy_target: 1.0}",
    "algorithm.kl={coefficient: 0.1, target: 0.01, horizon: 100}",
    "reward_model={weight: 0.5, updates_per_step: 2, batch_size: 16}",
)
RESUMED_PPO = (*REINFORCED, UNMEASURED, "training.checkpoint_interval_steps=1", "reward_model=null")
RESUMED_REJECTION = (
    *REINFORCED,
    UNMEASURED,
    "training.checkpoint_interval_steps=1",
    "algorithm.replay_rounds=2",
    "algorithm.epochs=2",
    "algorithm.batch_size=8",
    "algorithm.max_per_prompt=3",
)

RUNS: dict[str, Run] = {
    # the recipes as they are shipped, on the small model and problems
    "quickstart": Run("quickstart", (*REINFORCED, "evaluation.at_start=true")),
    "quickstart_from_random_weights": Run("quickstart", FROM_RANDOM_WEIGHTS),
    "grpo_code_execution": Run("grpo_code_execution", REINFORCED),
    "ppo_code_fix": Run("ppo_code_fix", (*REINFORCED, *BUGS)),
    "rejection_sampling": Run("rejection_sampling", REINFORCED),
    "sft": Run(
        "sft",
        (*ON_THE_STARTER, f"warm_start={{data: {DATA / 'pairs.jsonl'}, max_steps: 3, batch_size: 16, warmup_steps: 1, learning_rate: 1e-3}}"),
    ),
    # each loss and each advantage, with other settings of the update
    "loss_grpo_two_passes": _grpo("algorithm={loss: grpo, updates_per_batch: 2, minibatches: 2}", "training.learning_rate=3e-3"),
    "loss_dr_grpo_weight_decay": _grpo("algorithm={loss: dr_grpo, advantage: dr_grpo, updates_per_batch: 2, clip_low: 0.03}", "training.weight_decay=0.1", "training.schedule=cosine", "training.warmup_steps=1", "training.max_steps=3"),
    "loss_dapo_small_norm": _grpo("algorithm={loss: dapo, updates_per_batch: 3, clip_low: 0.05, clip_high: 0.08}", "training.max_grad_norm=0.01", "training.schedule=linear"),
    "loss_gspo_narrow_clip": _grpo("algorithm={loss: gspo, clip_low: 3e-4, clip_high: 4e-4, minibatches: 4}"),
    "loss_cispo_narrowed_sampling": _grpo("algorithm={loss: cispo, importance: {high: 0.95}, updates_per_batch: 2, clip_high: 0.02}", "sampling={top_p: 0.9, top_k: 8, temperature: 0.8}"),
    "loss_reinforce_rloo": _grpo("algorithm={loss: reinforce, advantage: rloo}"),
    "loss_ppo_reinforce": _grpo("algorithm={loss: ppo, advantage: reinforce, minibatches: 4, max_step_kl: 1e-6}"),
    # terms of the loss, and what is done with groups and lengths
    "kl_k1_and_entropy_bonus": _grpo("algorithm={entropy_coefficient: 0.05}", "algorithm.kl={coefficient: 0.2, estimator: k1}"),
    "kl_k2_target_and_entropy_target": _grpo("algorithm={entropy_coefficient: 0.05, entropy_target: 1.0}", "algorithm.kl={coefficient: 0.2, estimator: k2, target: 0.001, horizon: 64}", "training.max_steps=3"),
    "dynamic_sampling": _grpo("algorithm={dynamic_sampling: true, dynamic_sampling_max_rounds: 3}", "training.num_generations=4", "sampling.temperature=0.3"),
    "overlong_penalty": _grpo("algorithm.overlong={penalty_buffer: 12, penalty: 0.5}"),
    "overlong_masked": _grpo("algorithm.overlong={mask_truncated: true}", "sampling.max_tokens=13", "sampling.stop_strings=['s[0']"),
    "custom_reward": _grpo(BREVITY),
    "all_reward_terms": _grpo("rewards=[{name: all_tests}, {name: execution_ladder, weight: 0.25}, {name: code_quality, weight: 0.1}, {name: format, weight: 0.1}, {name: readability, weight: 0.1}, {name: code_score, weight: 0.5}]"),
    # critics and reward models
    "ppo_shared_critic": _ppo("algorithm={updates_per_batch: 2, minibatches: 2}", "algorithm.critic={trunk: shared, discount: 0.99, gae_lambda: 0.9, value_lambda: 0.95, clip: null, updates_per_batch: 3, whiten_advantages: false}", "algorithm.kl.in_reward=false", "reward_model=null"),
    "ppo_separate_critic_one_answer": _ppo("training.num_generations=1", "training.prompts_per_step=16", "training.micro_batch_sequences=4", "algorithm.kl.target=0.01", "reward_model.weight=0.5"),
    "ppo_repair_with_failing_tests": _ppo(*BUGS, "problems.bugs={show_failing_test: true, per_problem: 2}", "sampling.max_tokens=16"),
    # planted faults
    "fault_gradient_explosion": _grpo("faults.gradient_explosion={after_step: 1, rate_factor: 5}", "training.max_steps=3", "training.max_grad_norm=0.1"),
    "fault_reward_overconfidence_and_memory_leak": _ppo("faults={reward_overconfidence: {}, memory_leak: {}}"),
    # an evaluation on a suite beside the held-out problems
    "suite_evaluation": Run("quickstart", (*REINFORCED, "training.max_steps=1", f"evaluation.suites=[{{name: {DATA / 'held_out.json'}, num_questions: 3}}]")),
    # the other kinds of tasks
    "repair_by_edits": _of_kind("grpo_code_repair", SMALL_FAMILIES, FEW_QUESTIONS, _beside_brevity("all_tests"), max_tokens=48),
    "repair_with_feedback": _of_kind("repair_with_feedback", SMALL_FAMILIES, FEW_QUESTIONS, _beside_brevity("all_tests"), max_tokens=36),
    "agent": _of_kind("grpo_agent_repair", SMALL_FAMILIES, FEW_QUESTIONS, _beside_brevity("all_tests"), max_tokens=48),
    "spec": _of_kind("grpo_spec", SMALL_FAMILIES, FEW_QUESTIONS, "model.shape.max_positions=512", _beside_brevity("tests"), max_tokens=36),
    "vulnerability": _of_kind("grpo_vulnerability", "evaluation={num_questions: 10, eval_interval_steps: 1}", _beside_brevity("detection"), max_tokens=8),
    "code_game": _of_kind("grpo_code_game", "code_game={phases: [1, 1], evaluation_games: 4}", "evaluation.eval_interval_steps=2", "training.rollouts_per_step=8", max_tokens=48),
    "self_play_tictactoe": _of_kind("spiral_self_play", *GAMES_OF_A_STEP, max_tokens=1),
    "self_play_kuhn": _of_kind("kuhn_self_play", *GAMES_OF_A_STEP, "algorithm.kl.refresh_every=1", max_tokens=1),
    "dqn": Run("dqn_code_generation", TINY_DQN),
    # resumed from a checkpoint
    "resumed_grpo": Run("quickstart", (*RESUMED_GRPO, "training.max_steps=3"), (*RESUMED_GRPO, "training.max_steps=1")),
    "resumed_ppo": Run("ppo_code_fix", (*RESUMED_PPO, "training.max_steps=3"), (*RESUMED_PPO, "training.max_steps=2")),
    "resumed_rejection": Run("rejection_sampling", (*RESUMED_REJECTION, "training.max_steps=3"), (*RESUMED_REJECTION, "training.max_steps=2")),
}  # fmt: skip


def carry_out(run: Run, output: Path, *, interrupted: bool) -> dict[str, Any]:
    if interrupted:
        train(run.recipe, output, *run.first)
        train(run.recipe, output, *run.overrides, "--resume")
    else:
        train(run.recipe, output, *run.overrides)
    return _of_output(output)


# ----- the only place that knows the files of a run directory


def _of_output(output: Path) -> dict[str, Any]:
    arms = {path.parent.name: _of_directory(path.parent) for path in sorted(output.glob("*/metrics.jsonl"))}
    return {**_of_directory(output), "arms": arms} if arms else _of_directory(output)


def _of_directory(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"metrics": [], "answers": {}, "evaluations": {}, "predictions": []}
    for row in _rows(run / "metrics.jsonl"):
        found["metrics"].append({k: v for k, v in row.items() if not k.startswith(NOT_COMPARED)})
    for path in sorted((run / "rollouts").glob("*.jsonl")):
        groups: dict[int, int] = {}  # numbered anew in each step, in order of appearance
        found["answers"][path.stem] = [
            _answer(row, groups.setdefault(row["group"], len(groups))) for row in _rows(path)
        ]
    for path in sorted((run / "evaluations").glob("*.json")):
        record = by_problem(json.loads(path.read_text()))
        metrics = {name: _without(metric, ("problems",)) for name, metric in record["metrics"].items()}
        found["evaluations"][path.stem] = {"metrics": metrics, "rows": len(record["rows"])}
    for row in _rows(run / "predictions.jsonl"):
        found["predictions"].append(row)
    summary = json.loads((run / "summary.json").read_text())
    found["summary"] = _without(summary, (*NOT_COMPARED_IN_SUMMARIES, "arms"))
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _answer(row: dict[str, Any], group: int) -> list[Any]:
    rewards = sum(row["rewards"].values())
    return [row["problem"], group, row["status"], row["tokens"], row["stop"], rewards, row["answer"]]


def _without(value: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: _without(part, keys) for key, part in value.items() if key not in keys}
    return [_without(part, keys) for part in value] if isinstance(value, list) else value


def check_run(name: str, output: Path) -> None:
    """Fails where the run in a directory differs from what was recorded of the run `name`."""
    check(json.loads(_expected(name).read_text()), _of_output(output))


@pytest.mark.parametrize("name", slow_ones_marked([name for name in RUNS if name not in EVALUATED], SLOW))
def test_a_run_gives_what_was_recorded(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    carry_out(run, tmp_path / "run", interrupted=bool(run.first))
    check_run(name, tmp_path / "run")


def test_no_recording_is_left_over() -> None:
    assert {path.stem for path in (DATA / "expected").iterdir()} == set(RUNS)


# ----- recording


def _expected(name: str) -> Path:
    return DATA / "expected" / f"{name}.json"


def _record(names: list[str]) -> None:
    for name in names or RUNS:
        with tempfile.TemporaryDirectory() as folder:
            found = carry_out(RUNS[name], Path(folder) / "run", interrupted=False)
        _expected(name).write_text(to_json(found) + "\n")
        print(f"recorded {name}")


if __name__ == "__main__":
    _record(sys.argv[1:])
