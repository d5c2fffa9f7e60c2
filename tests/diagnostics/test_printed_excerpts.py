"""Printed logs of trainers of which few paste the whole: miniature logs in their forms, with other numbers."""

from __future__ import annotations

import pytest

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.readers.rows import evaluated
from greenward.diagnostics.signals import HELD_OUT, REWARD


def signals(folder, text, *, name="train.log", run=""):
    (folder / name).write_text(text)
    return read_run_signals(folder / name, run_name=run) if run else read_run_signals(folder / name)


def test_a_line_that_begins_with_a_step_may_list_names_without_signs(tmp_path):
    lines = ["Traceback (most recent call last):", '  File "train.py", line 12, in <module>']
    lines += [
        f"EP:{i} | TD Error [12.5, 9.25] | ALoss [3.5, 2.5] | ep_r {-90 + i} | idu {i / 2:.2f} | N_D 8 | CS [2. 3.]"
        for i in range(4)
    ]
    run = signals(tmp_path, "\n".join(lines))
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert run.values[REWARD].tolist() == [-90, -89, -88, -87]
    assert run.values["idu"].tolist() == [0, 0.5, 1, 1.5]
    assert run.family.kind == "agent"


def test_a_box_of_names_and_numbers_with_signs_is_read(tmp_path):
    lines = []
    for step in (24, 25, 26):
        lines += [
            "╭──────────────────────────────────────────────────────╮",
            "├──────────────────── Metric Table ────────────────────┤",
            f"│ Global Step:   {step}/1000 │ Progress: ░░░░░░░░ │   2.4%   │",
            "├──────────────────────── Time ────────────────────────┤",
            "│actor/run_training=413.3   │generate_rollouts=428.0    │",
            "├─────────────────────── Rollout ──────────────────────┤",
            f"│rollout/rewards=0.{step}      │rollout/returns=1.5        │",
            "╰──────────────────────────────────────────────────────╯",
        ]
    run = signals(tmp_path, "\n".join(lines))
    assert run.steps.tolist() == [24, 25, 26]
    assert run.values[REWARD].tolist() == [0.24, 0.25, 0.26]
    assert run.values["actor/run_training"].tolist() == [413.3] * 3


def test_the_results_of_rllib_are_one_row_each_with_texts_between_numbers(tmp_path):
    result = (
        "custom_metrics: {{}}\ndone: false\nepisode_len_mean: 52.0\nepisode_reward_mean: {reward}\n"
        "experiment_id: 3bc0c9eb\nhostname: a-host-689d\ninfo:\n  default:\n    entropy: 2.4\n    kl: 0.012\n"
        "    policy_loss: -0.017\nnode_ip: 192.168.1.1\ntimesteps_total: {steps}\ntraining_iteration: {i}\n\n"
    )
    text = "".join(result.format(reward=-800.0 + 10 * i, steps=4000 * i, i=i) for i in (1, 2, 3))
    run = signals(tmp_path, text)
    assert run.steps.tolist() == [1, 2, 3]
    assert run.values[REWARD].tolist() == [-790, -780, -770]
    assert run.values["policy_loss" if "policy_loss" in run.values else "loss"].tolist() == [-0.017] * 3
    assert run.family.name == "RLlib"


TRIALS = """
Trial name                    status      iter    total time (s)     ts    reward
----------------------------  --------  ------  ----------------  -----  --------
APPO_CartPole-v1_29_00000     RUNNING        {i}           30.3035  46550  {a}
APPO_CartPole-v1_29_00001     RUNNING        {i}           10.1083  15850   25.9
"""


def test_the_trials_of_ray_tune_are_runs(tmp_path):
    text = "".join(TRIALS.format(i=i, a=100.0 + i) for i in (1, 2, 3))
    with pytest.raises(DiagnosticsError, match="2 runs"):
        signals(tmp_path, text)
    run = signals(tmp_path, text, run="APPO_CartPole-v1_29_00000")
    assert run.steps.tolist() == [1, 2, 3] and run.values[REWARD].tolist() == [101, 102, 103]


def test_what_an_evaluator_says_is_no_reward_of_training(tmp_path):
    stamp = "I0925 18:52:{:02}.416487 140563283464576 terminal.py:91] "
    lines = []
    for i in range(4):
        steps = f"Actor Episodes = {i} | Actor Steps = {800 * (i + 1)}"
        lines += [
            f"{stamp.format(i)}[Learner] {steps} | Evaluator Steps = 1530 | Learner Steps = {i} | Loss = -0.25",
            f"{stamp.format(i)}[Actor] {steps} | Episode Return = {-21.0 + i} | Learner Steps = {i}",
            f"{stamp.format(i)}[Evaluator] {steps} | Episode Return = {5.0 + i} | Learner Steps = {i}",
        ]
    run = signals(tmp_path, "\n".join(lines))
    assert run.steps.tolist() == [800, 1600, 2400, 3200]
    assert run.values[REWARD].tolist() == [-21, -20, -19, -18]
    assert run.values[HELD_OUT].tolist() == [5, 6, 7, 8]
    assert run.values["loss"].tolist() == [-0.25] * 4


def test_returns_that_tf_agents_prints_apart_from_the_loss_belong_to_the_step_before(tmp_path):
    lines = []
    for i in (1, 2, 3):
        lines += [f"INFO:absl:step = {1000 * i}, loss = {2.5 * i}", "INFO:absl:403.487 steps/sec"]
        lines += [
            "INFO:absl: ",
            f"\t\t AverageReturn = {100.0 * i}",
            f"\t\t AverageEpisodeLength = {100.0 * i}",
        ]
    run = signals(tmp_path, "\n".join(lines))
    assert run.steps.tolist() == [1000, 2000, 3000]
    assert run.values[REWARD].tolist() == [100, 200, 300]
    assert run.values["loss"].tolist() == [2.5, 5, 7.5]
    assert run.family.name == "TF-Agents"


def test_lines_that_count_epochs_below_an_iteration_belong_to_it(tmp_path):
    lines = []
    for i in (9, 10, 11, 12):
        lines += [
            f"2019-02-03 08:03:{i} INFO     iteration {i}/10000",
            *(f"2019-02-03 08:03:{i} INFO      epoch {epoch}/4" for epoch in (1, 2, 3, 4)),
            f"2019-02-03 08:03:{i} INFO     steps_per_s=443.4, reward_per_sec=-0.{i}, loss=0.2, entropy=7.5",
        ]
    run = signals(tmp_path, "\n".join(lines))
    assert run.steps.tolist() == [9, 10, 11, 12]
    assert run.values[REWARD].tolist() == [-0.9, -0.1, -0.11, -0.12]


def test_one_row_of_a_trainer_in_a_pasted_terminal_is_read(tmp_path):
    text = "(base) root@host:/home# ./run_grpo.sh\n"
    text += "2026-01-18 16:31 | INFO | main:175 - Process rank: 0, device: cuda:0, n_gpu: 1\n"
    text += "{'min_num_params': 0}\n{'llm_int8_threshold': 6.0}\nanswer_parsed: [], reward: 0.0\n" * 3
    text += (
        "{'loss': 0.0479, 'grad_norm': 2.25, 'learning_rate': 1.6e-07, 'reward': 0.15, 'reward_std': 0.2}\n"
    )
    text += "{'train_runtime': 133.8, 'train_loss': 0.03, 'reward': 0.1, 'reward_std': 0.1, 'kl': 0.0}\n"
    run = signals(tmp_path, text)
    assert run.values[REWARD].tolist() == [0.15] and run.values["grad_norm"].tolist() == [2.25]


@pytest.mark.parametrize(
    "text",
    [
        "dataset len: 7473\nSize of train dataloader: 29\nTotal training steps: 29\nkl_coef: 0.001\nlr: 1e-06\n",
        "NUM_ACTIONS_CHUNK = 8\nACTION_DIM = 7\n\nRollout temperature: 1.6\nKL coefficient: 0.0\n",
    ],
)
def test_settings_and_sizes_are_no_log(tmp_path, text):
    with pytest.raises(DiagnosticsError, match="no row with the name of a signal"):
        signals(tmp_path, text)


def test_a_table_of_runs_is_refused_with_what_to_export(tmp_path):
    text = '"Name","State","Notes","Created","Runtime","lr","reward"\n"a","finished","-","2026","12","0.1","0.5"\n'
    with pytest.raises(DiagnosticsError, match="table of runs"):
        signals(tmp_path, text, name="wandb_export.csv")


@pytest.mark.parametrize(
    ("names", "reward"),
    [
        ("avg_reward avg_ep_reward loss", "avg_ep_reward"),
        ("mean_reward collection/reward/episode_reward_mean eval/reward/episode_reward_mean",
         "collection/reward/episode_reward_mean"),
        ("train-metrics/reward train-metrics/success loss", "train-metrics/reward"),
        ("WinRate loss", "WinRate"),
        ("win_rate reward", "reward"),
        ("success_rate loss", "success_rate"),
    ],
)  # fmt: skip
def test_the_reward_is_that_of_episodes_and_else_the_rate_of_success(tmp_path, names, reward):
    columns = names.split()
    rows = [[str(i), *(f"{place + i / 10}" for place in range(len(columns)))] for i in range(4)]
    text = "\n".join(",".join(cells) for cells in [["step", *columns], *rows])
    assert signals(tmp_path, text, name="log.csv").logged_as(REWARD) == reward


def test_a_list_of_rewards_counts_by_its_mean(tmp_path):
    run = signals(tmp_path, "\n".join(f"Step {i}: Rewards: [{i}.0, -1.0] (1/2 rendered)" for i in range(4)))
    assert run.values[REWARD].tolist() == [-0.5, 0, 0.5, 1]


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("eval/reward", "reward"),
        ("val-core/gsm8k/acc", "gsm8k/acc"),
        ("Avg test return", "Avg return"),
        ("Validation", ""),
        ("heldout/acc", "acc"),
        ("value_loss", None),
        ("tests", None),
        ("rewards/test_passed/mean", None),
    ],
)
def test_what_an_evaluation_measured_is_told_by_its_name(name, measured):
    assert evaluated(name) == measured


def test_the_bars_of_openrlhf_are_read_by_their_short_names(tmp_path):
    text = "(ActorModelRayActor pid=59532) \n"
    for episode in range(3):
        text += f"Episode [1/30]:   3%|3         | {episode}/31 [05:00<2:00:00, 300.1s/it]\n"
        for batch in (1, 2):
            values = (
                f"pg=-0.3, rm=0.{episode}{batch}, ret=0.18, glen=64{batch}, tlen=885, kl=0.01, act_lr=5e-7"
            )
            text += f"Train epoch [1/1]:  50%|###   | {batch}/2 [00:10<00:10, 10.3s/it, {values}, cri=0.3]\n"
    run = signals(tmp_path, text)
    assert run.family.name == "OpenRLHF"
    assert run.values[REWARD].tolist() == [0.01, 0.02, 0.11, 0.12, 0.21, 0.22]
    assert run.values["completion/mean_length"].tolist() == [641, 642] * 3
    assert run.values["value/loss"].tolist() == [0.3] * 6


def test_a_line_with_a_step_alone_above_a_mapping_is_its_step(tmp_path):
    mapping = '{{\n  "actor": {{\n    "pg_loss": 0.01,\n    "grad_norm": 0.5\n  }},\n  "reward": {{\n    "overall": 0.{0}\n  }}\n}}'
    prefix = "(Runner pid=104449) "
    text = "\n".join(f"Step {step}\n{mapping.format(step)}" for step in (3, 5, 7))
    run = signals(tmp_path, "\n".join(f"{prefix}{line}" for line in text.splitlines()))
    assert run.steps.tolist() == [3, 5, 7] and run.values[REWARD].tolist() == [0.3, 0.5, 0.7]


def test_lines_that_count_now_and_then_between_mappings_are_no_steps_of_theirs(tmp_path):
    lines = [f"{{'loss': 0.5, 'reward': {i / 10}}}" for i in range(9)]
    run = signals(tmp_path, "\n".join(["Step 1", *lines[:6], "Step 2", *lines[6:]]))
    assert run.values[REWARD].tolist() == [i / 10 for i in range(9)]


def test_values_in_front_of_a_bar_are_read(tmp_path):
    bars = (
        f"[losses/total_loss: 0.2{i} | losses/policy_loss: 0.0{i}]:   {i}%|   | {10 * i}/1000 [00:10<16:30,  1.0s/it]"
        for i in (1, 2, 3)
    )
    run = signals(tmp_path, "\n".join(bars))
    assert run.steps.tolist() == [10, 20, 30] and run.values["loss"].tolist() == [0.01, 0.02, 0.03]
