"""Logs whose rows count different things (episodes, updates, steps of the environment) are read as one run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signals import HELD_OUT, REWARD, Reading

UPDATES, EPISODES = 600, 120
RETURNS = np.round(0.5 * np.arange(EPISODES) + np.random.default_rng(0).standard_normal(EPISODES), 3)
LOSSES = np.round(np.random.default_rng(1).exponential(size=UPDATES), 4)


def interleaved(update, episode):
    """Lines of updates, with those of an episode behind each fifth of them."""
    lines = []
    for i in range(UPDATES):
        lines.append(update.format(step=128 * (i + 1), loss=LOSSES[i], fps=900 + 50 * (i * 7 % 5)))
        if i % 5 == 4:
            lines += episode.format(number=i // 5 + 1, reward=RETURNS[i // 5]).split("\n")
    return lines


def read(folder, lines, name="train.log"):
    (folder / name).write_text("\n".join(lines) + "\n")
    return read_run_signals(folder / name)


def recorded(run, name):
    return run.steps[run.recorded[name]].tolist(), run.values[name][run.recorded[name]].tolist()


@pytest.mark.parametrize(
    ("update", "episode"),
    [
        ("steps={step} fps={fps}", "Episode {number} reward={reward}"),
        ("[INFO] steps={step} loss={loss}", "[INFO] Episode {number}: return={reward}"),
        ("steps={step} loss={loss}", "| ep_rew_mean | {reward} |\n| episodes | {number} |\n----------"),
        ("{{'step': {step}, 'loss': {loss}}}", "Episode {number}, score: {reward}"),
        ("{{'steps': {step}, 'loss': {loss}}}", "{{'reward': {reward}, 'length': 20}}"),
    ],
)
def test_a_frequent_counter_hides_no_rows_with_the_reward(tmp_path, update, episode):
    run = read(tmp_path, interleaved(update, episode))
    assert recorded(run, REWARD) == ([640 * (i + 1) for i in range(EPISODES)], RETURNS.tolist())
    if "loss" in update:
        assert recorded(run, "loss") == ([128 * (i + 1) for i in range(UPDATES)], LOSSES.tolist())
    assert diagnose_run(tmp_path / "train.log").verdict == "healthy"


@pytest.mark.parametrize("longest", [5, 40])
@pytest.mark.parametrize(
    ("step", "episode"),
    [
        ("step={step} loss={loss}", "Episode {number} finished, total reward={reward}, length={step}"),
        ('{{"step": {step}, "loss": {loss}}}', '{{"episode": {number}, "reward": {reward}}}'),
    ],
)
def test_steps_that_begin_anew_in_each_episode_are_rows_of_the_episodes(tmp_path, step, episode, longest):
    lengths = np.random.default_rng(2).integers(3, longest + 1, EPISODES)
    lines = []
    for number, (length, reward) in enumerate(zip(lengths, RETURNS, strict=True), 1):
        lines += [step.format(step=10 * i, loss=0.5) for i in range(1, length + 1)]
        lines.append(episode.format(number=number, reward=reward, step=10 * length))
    run = read(tmp_path, lines)
    assert recorded(run, REWARD) == ([*range(1, EPISODES + 1)], RETURNS.tolist())
    assert recorded(run, "loss")[0] == [*range(1, EPISODES)]  # those of the first are before any episode


def test_rows_of_which_the_first_comes_late_are_read(tmp_path):
    lines = [f"steps={i}, eps=0.1" if i % 300 else f"Episode {i // 300}: score {i}.5" for i in range(1, 9000)]
    assert recorded(read(tmp_path, lines), REWARD)[1] == [i + 0.5 for i in range(300, 9000, 300)]


def test_of_what_repeats_a_signal_the_usual_rows_count(tmp_path):
    lines = []
    for i, loss in enumerate(LOSSES[:60], 1):
        lines += [json.dumps({"step": i, "loss": loss})]
        lines += [json.dumps({"epoch": i // 10, "loss": 9.0, "reward": i / 60})] if i % 10 == 0 else []
    run = read(tmp_path, lines, "log.jsonl")
    assert run.values["loss"].tolist() == LOSSES[:60].tolist()
    assert recorded(run, REWARD) == ([*range(10, 61, 10)], [i / 60 for i in range(10, 61, 10)])


def test_a_phase_or_a_summary_with_another_counter_is_set_aside(tmp_path):
    rows = [{"step": i + 1, "reward": one} for i, one in enumerate(RETURNS[:40])]
    phase = [{"epoch": i, "loss": 0.5} for i in range(20)]
    for name, others in (("phase", phase), ("summary", [{"total_steps": 40, "reward": 99.0}])):
        run = read(tmp_path, map(json.dumps, [*rows, *others]), f"{name}.jsonl")
        assert run.values.keys() == {REWARD} and run.values[REWARD].tolist() == RETURNS[:40].tolist()
        assert run.reading == Reading(40 + len(others), set_aside=len(others))


def events(folder, episodes, of_episode):
    """Events in the order of time; `of_episode` gives the steps of the return from episode and frame."""
    lines, frame = [], 0
    for number, reward in enumerate(RETURNS[:episodes], 1):
        for _ in range(20 + number % 7):
            frame += 1
            if frame % 10 == 0:
                lines.append({"step": frame, "name": "train/loss", "value": LOSSES[frame // 10 % UPDATES]})
        for step in of_episode(number, frame):
            lines.append({"step": step, "name": "episode_reward", "value": reward})
    return read(folder, map(json.dumps, lines), "events.jsonl")


def test_tags_that_count_episodes_stand_on_the_axis_of_the_environment(tmp_path):
    by_frame = events(tmp_path, EPISODES, lambda number, frame: [frame])
    by_episode = events(tmp_path, EPISODES, lambda number, frame: [number])
    twice = events(tmp_path, EPISODES, lambda number, frame: [number, frame])
    assert not any("count" in note for note in by_frame.notes)
    assert recorded(twice, REWARD) == recorded(by_frame, REWARD)
    steps, values = recorded(by_episode, REWARD)
    assert values == RETURNS.tolist()
    assert steps == [frame // 10 * 10 for frame in recorded(by_frame, REWARD)[0]]  # of the loss before
    assert recorded(by_episode, "loss") == recorded(by_frame, "loss")
    assert any("count other steps than the rest (episode_reward)" in note for note in by_episode.notes)


def test_what_seldom_alternates_keeps_its_steps(tmp_path):
    """Curves one after the other, an evaluation now and then, and runs of different speeds beside each other."""
    after = [{"step": i, "name": "loss", "value": 1.0} for i in range(1000, 4000, 10)]
    after += [{"step": i, "name": "reward", "value": one} for i, one in enumerate(RETURNS, 1)]
    run = read(tmp_path, map(json.dumps, after), "after.jsonl")
    assert recorded(run, REWARD)[0] == [*range(1, EPISODES + 1)]
    now_and_then = []
    for i in range(1, 401):
        now_and_then.append({"step": i, "name": "reward", "value": float(i)})
        if i % 100 == 2 and i > 50:  # of step 100, written two steps later
            now_and_then.append({"step": i - 2, "name": "eval/reward", "value": 0.5})
    run = read(tmp_path, map(json.dumps, now_and_then), "eval.jsonl")
    assert run.steps[run.recorded[HELD_OUT]].tolist() == [100, 200, 300]
    named = []
    for i in range(1, 61):
        named += [{"run": "slow", "step": i, "reward": 1.0}, {"run": "fast", "step": 50 * i, "reward": 2.0}]
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, named)))
    with pytest.raises(DiagnosticsError, match="2 runs"):
        read_run_signals(tmp_path / "runs.jsonl")
    fast = read_run_signals(tmp_path / "runs.jsonl", run_name="fast")
    assert fast.steps.tolist() == [*range(50, 3001, 50)]


@pytest.mark.parametrize("slower", [False, True])
def test_frames_per_second_of_the_moment_are_no_mean_since_the_start(tmp_path, slower):
    rng = np.random.default_rng(2)
    lines = []
    for i in range(300):
        fps = (1000 if i < 150 or not slower else 400) * rng.uniform(0.9, 1.1)
        lines.append(f"steps={128 * (i + 1)} fps={fps:.0f} episode_reward={i + rng.standard_normal():.2f}")
    read(tmp_path, lines)
    found = {one.name for one in diagnose_run(tmp_path / "train.log").findings}
    assert ("throughput-drop" in found) is slower
