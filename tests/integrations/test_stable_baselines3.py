"""A monitor inside Stable-Baselines3's own PPO: it sees what the logger writes, and stops the training."""

from __future__ import annotations

import pytest

from greenward.diagnostics import Monitor

sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed; make test-bridges")


class Recorder(Monitor):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.logged = []

    def log(self, step, metrics):
        self.logged.append((step, dict(metrics)))
        return super().log(step, metrics)


def ppo():
    return sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=1, seed=0, device="cpu")


def test_a_monitor_sees_every_line_that_the_logger_writes_and_not_twice():
    monitor, model = Recorder(), ppo()
    model.learn(256, callback=monitor.sb3_callback())
    assert [step for step, _ in monitor.logged] == [64, 128, 192, 256]
    assert all("rollout/ep_rew_mean" in metrics for _, metrics in monitor.logged)
    assert "train/approx_kl" in monitor.logged[1][1]
    model.learn(64, callback=monitor.sb3_callback(), reset_num_timesteps=False)
    assert [step for step, _ in monitor.logged][4:] == [320]


def test_a_rule_stops_the_training(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "tests: false\nrules:\n- {id: long, signal: rollout/ep_len_mean, above: 1, actions: [warn, stop]}\n"
    )
    said = []
    model = ppo()
    model.learn(10_000, callback=Monitor(str(rules), say=said.append).sb3_callback())
    assert model.num_timesteps <= 128
    assert "rollout/ep_len_mean" in said[0]
