"""Kinds of printed logs that people paste: loops that they wrote themselves, and trainers beside samples."""

from __future__ import annotations

import numpy as np
import pytest

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.diagnose import cost_of, diagnose_run
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signal_tests import measure_memory_growth
from greenward.diagnostics.signals import HELD_OUT, REWARD

REWARDS = np.round(10 + 0.5 * np.arange(40) + np.random.default_rng(0).standard_normal(40), 3)


def signals(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    return read_run_signals(folder / "train.log")


LOOPS = {
    "Average Score": "Episode {step}\tAverage Score: {reward}",
    "Average100 Score": "Episode {step}\tFrame {frames} \tAverage100 Score: {reward}",
    "Score": "Ep. {step}, Ep.Timesteps 100, Score: {reward}, Avg.Score: 3.5, Time: 00:00:10 ",
    "Avg Reward": "INFO:root:Episode {step} | Avg Reward: {reward} | Epsilon: 0.990 | Best Reward: 99",
    "episodic returns": "2024-11-28 20:07:12,{step:03} DQN INFO episodic returns: {reward}, episode: {step}",
    "Average reward": "Game number: {step:06}  Average reward: {reward}  Time taken: 69.4s",
    "Score.Agents": "Ep. {step}, Timesteps 1600, Score.Agents: {reward}, Max.Score: 99, Time: 00:01:06",
    "episode reward": "{frames}/50000: episode: {step}, duration: 0.930s, episode reward: {reward}, "
    "mean reward: 1.000 [1.000, 1.000], mean_q: 64.8",
    "finished with reward": "('Episode #', {step}, '\\tfinished with reward', {reward}, '\\tNoise', 0.02)",
    "rew": "Epoch #{step}: 50001it [00:40, 1244.54it/s, len=200, loss=0.1, n/ep=7, n/st=2000, rew={reward}]",
    "avg(utility)": "after cycle={step} avg(utility)={reward} avg(num_wins)=0.35",
    "Reward": "| Reward: {reward}  | Episode {step} | Qmax: 1.9359",
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_reward_of_a_loop_that_someone_wrote_is_found(tmp_path, name):
    lines = [
        LOOPS[name].format(step=10 * (i + 1), reward=reward, frames=100 * (i + 1))
        for i, reward in enumerate(REWARDS)
    ]
    run = signals(tmp_path, lines)
    assert run.logged_as(REWARD) == name
    assert run.values[REWARD].tolist() == REWARDS.tolist()
    if name not in ("Average100 Score", "episode reward"):  # frames count their steps
        assert run.steps.tolist() == [10 * (i + 1) for i in range(len(REWARDS))]
    assert run.family.kind == "agent"


@pytest.mark.parametrize("name", ["Best Score", "Format score", "Max reward", "Score difference"])
def test_what_is_beside_the_reward_is_none(tmp_path, name):
    run = signals(tmp_path, [f"Episode {i} | {name}: {i}.5" for i in range(5)])
    assert REWARD not in run.values


def test_the_steps_of_a_trainer_count_however_much_else_is_printed(tmp_path):
    settings = [f"(main_task pid=12)  'setting_{i}': {i}.0," for i in range(50)]
    samples = [f"Question {i}: what is {i} + {i}? Format score: 1 Answer score: {i % 3}" for i in range(500)]
    metrics = "actor/grad_norm:0.3 - actor/pg_loss:0.1 - response_length/mean:300.0 - critic/score/mean"
    steps = [f"(main_task pid=12) step:{i} - {metrics}:{reward}" for i, reward in enumerate(REWARDS[:8])]
    rows = [
        f"{{'loss': 0.1, 'grad_norm': 0.3, 'learning_rate': 1e-6, 'reward': {one}}}" for one in REWARDS[:8]
    ]
    for name, printed in (("verl", steps), ("trl", rows)):
        lines = [*settings, *(line for one in printed for line in (*samples, one))]
        assert signals(tmp_path / name, lines).values[REWARD].tolist() == REWARDS[:8].tolist()


def test_evaluations_between_steps_belong_to_the_step_before(tmp_path):
    lines = []
    for i in range(40):
        lines += [f"Epoch: {i + 1}, global_step={100 * i}", "SPS: 900, pg_loss=-0.1, v_loss=0.2"]
        if i % 4 == 0:
            lines += ["Evaluating", "one", "two", "three", "four", f"eval_return_mean={i}.5"]
    run = signals(tmp_path, lines)
    kept = np.isfinite(run.values[REWARD])
    assert run.logged_as(REWARD) == "eval_return_mean"  # the only reward that was printed
    assert run.values[REWARD][kept].tolist() == [i + 0.5 for i in range(0, 40, 4)]
    assert len(run.steps) == 40


def test_rows_that_are_left_out_are_said(tmp_path):
    samples = ("sample reward: 3.0", "sample reward: 4.0", "sample reward: 5.0")
    lines = [line for i in range(20) for line in (f"step {i} loss: 0.5", *samples)]
    run = signals(tmp_path, lines)
    assert run.reading.set_aside == 40 and any("printed without a step" in note for note in run.notes)


def test_a_mean_over_no_episode_at_the_beginning_is_no_fault(tmp_path):
    first = ["Episode 0       Average reward: nan"]
    lines = [f"Episode {10 * i}  Average reward: {reward}" for i, reward in enumerate(REWARDS, 1)]
    later = ["Episode 405      Average reward: nan"]
    for name, one, named in (("first", first + lines, False), ("later", lines + later, True)):
        signals(tmp_path / name, one)
        found = diagnose_run(tmp_path / name / "train.log").findings
        assert ("non-finite" in {finding.name for finding in found}) is named


def test_a_score_that_is_no_share_is_told_in_its_own_unit(tmp_path):
    rng = np.random.default_rng(1)
    scores = np.where(np.arange(60) < 30, 300.0, 120.0) + rng.standard_normal(60)
    run = signals(
        tmp_path, [f"Episode {i} | reward: {5 + i} | Eval score: {one:.2f}" for i, one in enumerate(scores)]
    )
    assert run.logged_as(HELD_OUT) == "Eval score"
    (found,) = (
        one for one in diagnose_run(tmp_path / "train.log").findings if one.name == "held-out-regression"
    )
    assert "pass@1" not in found.measured and "paired" not in found.measured
    assert "Eval score changed by -18" in found.measured and found.severity == "critical"


def test_evaluations_on_few_episodes_of_which_most_end_alike_are_no_fall(tmp_path):
    false = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rates = rng.binomial(8, 0.03, 60) / 8
        signals(
            tmp_path / str(seed), [f"step {i} loss: 0.5 eval_success: {one}" for i, one in enumerate(rates)]
        )
        found = diagnose_run(tmp_path / str(seed) / "train.log").findings
        false += "held-out-regression" in {one.name for one in found}
    assert false <= 1


def test_an_allocation_that_creeps_on_is_no_leak_and_growth_from_a_step_on_is():
    steps = np.arange(300)
    for seed in range(5):
        noise = np.random.default_rng(seed).standard_normal(300)
        kept = np.where(steps < 80, 150.0, 300 + 0.02 * (steps - 80)) * 1024 + 100 * noise
        leak = (150.0 + np.maximum(steps - 80, 0)) * 1024 + 100 * noise
        assert not measure_memory_growth(steps, kept).is_leak
        assert measure_memory_growth(steps, leak).is_leak


@pytest.mark.parametrize(("sign", "entropy"), [(-1, 0.5), (1, 0.5)])
def test_an_entropy_that_is_called_a_loss_has_either_sign(tmp_path, sign, entropy):
    lines = [f"step {i} train/entropy_loss: {sign * entropy} train/kl_loss: 0.1" for i in range(5)]
    assert signals(tmp_path, lines).values["entropy"].tolist() == [entropy] * 5


def test_runs_of_which_one_alone_logged_its_first_policy_are_told_apart(tmp_path):
    first, second = range(0, 400, 10), range(10, 400, 10)
    lines = [f"Episode {step} | Avg Reward: {step}.5" for step in (*first, *second)]
    last = signals(tmp_path, lines)
    assert last.reading.runs == 2 and last.steps.tolist() == [*second]


def test_names_with_a_gap_and_a_number_are_read(tmp_path):
    block = [
        "trainer/QF1 Loss            {:.5e}",
        "trainer/Log Pis Mean            -0.98",
        "wandb: actor/lr 0.1",
    ]
    lines = [line.format(10.0**i) for i in range(4) for line in [*block, "-" * 30]]
    run = signals(tmp_path, lines)
    assert run.values["trainer/QF1 Loss"].tolist() == [1, 10, 100, 1000]
    assert run.logged_as("learning_rate") == "actor/lr"


def test_steps_of_a_simulator_so_far_are_not_those_that_were_planned(tmp_path):
    block = [
        "Learning iteration {}/10",
        "Total steps: {}",
        "Mean reward: 3.5",
        "Mean value_function loss: 0.1",
    ]
    lines = [line.format(i if "iter" in line else 512 * i) for i in range(1, 5) for line in block]
    run = signals(tmp_path, lines)
    assert run.steps.tolist() == [1, 2, 3, 4]
    assert cost_of(run).max_steps is None


@pytest.mark.parametrize(("reward", "named"), [(200, False), (-21, True), (0, True)])
def test_an_agent_at_its_best_from_the_first_row_on_is_not_called_constant(tmp_path, reward, named):
    signals(tmp_path, [f"Episode {10 * i}  Score: {reward}" for i in range(1, 9)])
    found = diagnose_run(tmp_path / "train.log").findings
    assert ("constant-reward" in {one.name for one in found}) is named


def test_an_agents_findings_are_confirmed_without_answers(tmp_path):
    rng = np.random.default_rng(2)
    signals(tmp_path, [f"Episode {i}  Score: {one:.2f}" for i, one in enumerate(rng.standard_normal(300))])
    (found,) = (one for one in diagnose_run(tmp_path / "train.log").findings if one.name == "no-learning")
    assert not any(word in found.confirm for word in ("problem", "answer", "pass rate"))


def test_answers_that_are_printed_between_the_steps_are_no_rows(tmp_path):
    answer = [f"Step {i}: {i} hours = {60 * i} minutes, so the total is {i}.0" for i in (1, 2, 3)]
    steps = [f"[step {10 * i}] avg_loss={reward} acc=0.5" for i, reward in enumerate(REWARDS, 1)]
    run = signals(tmp_path, [line for step in steps for line in (*answer, step)])
    assert run.steps.tolist() == [10 * i for i in range(1, 41)]
    assert run.values["loss"].tolist() == REWARDS.tolist()
    assert not any("hours" in name for name in run.values)


def test_signals_in_sentences_are_read(tmp_path):
    lines = [f"step {i}: grpo_loss is {reward} and kl is 0.{i}" for i, reward in enumerate(REWARDS[:9], 1)]
    run = signals(tmp_path, lines)
    assert run.values["grpo_loss"].tolist() == REWARDS[:9].tolist()
    assert run.values["kl"].tolist() == [float(f"0.{i}") for i in range(1, 10)]


def test_a_mapping_below_a_line_with_a_step_is_of_that_step(tmp_path):
    lines = [
        line
        for i in range(4)
        for line in (f"Step {8 * i} | Loss: 0.{i} | Val: 0.2", f"{{'policy_loss': {i}.5, 'value_loss': 0.1}}")
    ]
    run = signals(tmp_path, lines)
    assert run.steps.tolist() == [0, 8, 16, 24]
    assert run.values["loss"].tolist() == [0.5, 1.5, 2.5, 3.5]


def test_what_loguru_says_of_the_code_is_no_step(tmp_path):
    where = "2025-11-23 17:18:48.481 | INFO     | env.simulator:step:159 - "
    moves = [where + f"parsed_action {{'left': {i}.0, 'right': 1.0}}" for i in range(100)]
    rows = [
        f"2025-11-23 17:19:0{i}.000 | INFO     | __main__:_log:146 - iter={i:04} reward={reward} entropy=2.4"
        for i, reward in enumerate(REWARDS[:8])
    ]
    run = signals(tmp_path, [line for row in rows for line in (*moves, row)])
    assert run.steps.tolist() == [*range(8)]
    assert run.values[REWARD].tolist() == REWARDS[:8].tolist()


def test_running_means_in_the_bar_of_an_evaluation_are_one_result(tmp_path):
    def bar(accuracies):
        return "\r".join(
            f"GSM8K eval: {i}%| | {i}/40 [00:0{i % 6}<00:09, 2.46s/q, correct={i}/{i}, accuracy={one}]"
            for i, one in enumerate(accuracies, 1)
        )

    falling = np.round(np.linspace(1, 0.5, 40), 3)
    (tmp_path / "eval.log").write_text(bar(falling) + "\n")
    diagnosis = diagnose_run(tmp_path / "eval.log")
    assert (diagnosis.verdict, diagnosis.findings) == ("cannot tell", ())
    (tmp_path / "two.log").write_text(bar(falling) + "\n" + bar(falling + 0.1) + "\n")
    run = read_run_signals(tmp_path / "two.log")
    (name,) = (one for one in run.values if one.endswith("accuracy") or one == HELD_OUT)
    assert run.values[name].tolist() == [0.5, 0.6]


def test_settings_that_a_program_prints_at_each_start_are_no_rows(tmp_path):
    start = "2025-06-24 13:58:35,983 - __main__ - INFO - Configuration: {'num_iterations': 3, 'learning_rate': 1e-06}"
    with pytest.raises(DiagnosticsError, match="no row with the name of a signal"):
        signals(tmp_path, [start, "Started."] * 4)


def test_rewards_of_single_moves_are_not_those_of_the_episodes(tmp_path):
    rng = np.random.default_rng(1)
    lines = []
    for i, reward in enumerate(REWARDS):
        lines += [f"2025-04-12 15:03:45,068 - INFO - Move: c8 | Reward: {one:.3f}" for one in rng.random(200)]
        lines.append(f"2025-04-12 15:18:04,569 - INFO - Episode {i} ended: Draw, Total reward: {reward}")
    run = signals(tmp_path, lines)
    assert run.values[REWARD].tolist() == REWARDS.tolist()


def test_the_length_of_an_episode_is_not_its_number(tmp_path):
    rng = np.random.default_rng(3)
    lengths = np.where(rng.random(40) < 0.2, rng.integers(40, 290, 40), 300)
    lines = [
        f"Episode {50 * i}, Total Reward: {reward}, Epsilon: 0.97, Steps: {length}"
        for i, (reward, length) in enumerate(zip(REWARDS, lengths, strict=True))
    ]
    run = signals(tmp_path, lines)
    assert run.steps.tolist() == [50 * i for i in range(40)]
    assert run.values[REWARD].tolist() == REWARDS.tolist()


def test_the_boxes_of_the_tinker_cookbook_are_read_between_its_samples(tmp_path):
    sample = [f"****** trajectory idx={i}, reward=0.471 ******" for i in range(30)]
    names = ("env/all/reward/total", "env/all/total_episodes", "env/all/turns_per_episode", "optim/lr")
    box = [f"│\x1b[36m {name:30}\x1b[0m│\x1b[32m {{}}   \x1b[0m│" for name in names]
    lines = []
    for i in range(3):
        lines += [*sample, f"Step {i}", "┏━━━━━━━━━━━┳━━━━━━━┓"]
        lines += [box[0].format(0.5 + i / 10), box[1].format(512), box[2].format(1), box[3].format("4e-05")]
        lines += ["└───────────┴───────┘"]
    run = signals(tmp_path, lines)
    assert run.family.name == "Tinker cookbook"
    assert run.values[REWARD].tolist() == [0.5, 0.6, 0.7]


def grpo(i, epoch=None, norm="0.5"):
    """A step as TRL prints it: it names no step."""
    return (
        f"{{'loss': 0.01, 'grad_norm': {norm}, 'learning_rate': 1e-06, 'reward': {REWARDS[i]}, "
        f"'reward_std': 0.5, 'kl': 0.001, 'epoch': {i / 40 if epoch is None else epoch}}}"
    )


CLOSING = "{'train_runtime': 600.0, 'train_samples_per_second': 1.0, 'train_loss': 0.01, 'epoch': 0.1}"


def test_behind_the_summary_of_a_training_another_one_begins(tmp_path):
    """Epochs need not go back: the second training may have other data."""
    first = [grpo(i, i / 1000, "nan") for i in range(30)]
    second = [grpo(i, 0.1 + i / 40) for i in range(40)]
    run = signals(tmp_path, [*first, CLOSING, *second, CLOSING])
    assert run.steps.tolist() == list(range(1, 41)) and np.isfinite(run.values["grad_norm"]).all()
    assert any("the last of 2 runs is judged" in note for note in run.notes)


def test_an_evaluation_behind_the_summary_belongs_to_the_training_before(tmp_path):
    evaluated = "{'eval_loss': 0.4, 'eval_reward': 3.5, 'epoch': 1.0}"
    run = signals(tmp_path, [*(grpo(i) for i in range(40)), CLOSING, evaluated])
    assert run.steps.tolist() == list(range(1, 41))
    assert run.values[HELD_OUT][-1] == 3.5


def test_epochs_that_are_rounded_to_one_number_are_no_steps(tmp_path):
    """Of much data, a few steps are 0.00 epochs."""
    run = signals(tmp_path, [grpo(i, 0.0) for i in range(40)])
    assert run.steps.tolist() == list(range(1, 41))
    assert run.values[REWARD].tolist() == REWARDS.tolist()


def test_signals_before_a_mapping_in_a_line_are_of_its_step_and_answers_have_no_mean(tmp_path):
    lines = []
    for i, reward in enumerate(REWARDS):
        head = f"2025-09-23 09:{i:02}:00,984 - train - INFO -"
        lines.append(
            f"{head} rl_loss: 0.{i + 1:03}, time: 109.1, token_entropy: {1 - i / 100}, "
            f"reward_data: {{'total_num': 256, 'total_reward': {reward}, 'total_format_reward': 241.0}}"
        )
        if i % 10 == 0:  # one answer
            lines.append(f"{head} reward: {{'format_reward': 1.0, 'answer_reward': 0.0, 'reward': 0.0}}")
    run = signals(tmp_path, lines)
    assert run.logged_as(REWARD) == "total_reward"
    told = np.isfinite(run.values[REWARD])
    assert run.values[REWARD][told].tolist() == REWARDS.tolist()
    assert run.values["token_entropy" if "token_entropy" in run.values else "entropy"][told][-1] == 0.61
