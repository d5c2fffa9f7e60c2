"""The Q-learning agent against hand-computed targets, and in an environment whose values are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from greenward.common.errors import CheckpointError, GreenwardError
from greenward.tasks.token_mdp import features
from greenward.tasks.token_mdp.dqn import (
    DQNAgent,
    QNetwork,
    Transition,
    learn_environment,
    margin_loss,
    q_targets,
)
from greenward.tasks.token_mdp.task import DQNAlgorithmConfig

ONLINE = torch.tensor([[1.0, 5.0, 3.0], [2.0, 1.0, 9.0]])
TARGET = torch.tensor([[10.0, 20.0, 30.0], [7.0, 8.0, 6.0]])
LEGAL = torch.tensor([[True, True, True], [True, True, False]])
REWARDS, DISCOUNTS = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.1])


def settings(**changes) -> DQNAlgorithmConfig:
    usual = {"hidden_dim": 16, "batch_size": 8, "learning_starts": 8, "buffer_capacity": 64}
    return DQNAlgorithmConfig(**(usual | changes))


def filled(agent: DQNAgent, number: int = 16) -> DQNAgent:
    rng = np.random.default_rng(0)
    agent.memory.extend(
        [
            Transition(
                rng.random(3, np.float32), int(rng.integers(4)), float(rng.normal()),
                rng.random(3, np.float32), np.ones(4, bool), 0.9,
            )
            for _ in range(number)
        ]
    )  # fmt: skip
    return agent


def test_the_plain_target_is_the_largest_legal_value_of_the_target_network() -> None:
    found = q_targets(REWARDS, DISCOUNTS, ONLINE, TARGET, LEGAL, double=False)
    assert found.tolist() == pytest.approx([1 + 0.5 * 30, 2 + 0.1 * 8])


def test_the_double_target_is_the_target_value_of_the_online_networks_choice() -> None:
    found = q_targets(REWARDS, DISCOUNTS, ONLINE, TARGET, LEGAL, double=True)
    # Online prefers action 1 in the first row; in the second action 2 is illegal, so action 0.
    assert found.tolist() == pytest.approx([1 + 0.5 * 20, 2 + 0.1 * 7])


def test_words_are_hidden_in_a_share_of_the_rows_of_an_update_and_nowhere_else() -> None:
    """The first layer sees zeros in place of words, and everything else as it was."""
    size = features.WORDS + 5
    agent = DQNAgent(size, 4, settings(word_dropout=0.25, batch_size=2000), seed=0)
    seen = []
    agent.online.encoder.register_forward_hook(lambda module, inputs, _: seen.append(inputs[0].clone()))
    rng = np.random.default_rng(0)
    ones = np.ones(size, np.float32)
    agent.memory.extend([Transition(ones, 0, 0.0, ones, np.ones(4, bool), 0.9)] * 64)
    agent.learn(rng)
    learned, following = seen
    hidden = (learned[:, : features.WORDS] == 0).all(dim=1)
    assert ((learned[:, : features.WORDS] == 1).all(dim=1) | hidden).all()
    assert float(hidden.float().mean()) == pytest.approx(0.25, abs=0.05)  # five standard deviations
    assert (learned[:, features.WORDS :] == 1).all()
    assert (following == 1).all()
    agent.act(ones[None], np.ones((1, 4), bool))
    assert (seen[-1] == 1).all()


@pytest.mark.parametrize("double", [True, False])
def test_an_ended_episode_and_a_state_without_legal_actions_have_no_future(double: bool) -> None:
    legal = torch.tensor([[True, True, True], [False, False, False]])
    found = q_targets(REWARDS, torch.tensor([0.0, 0.9]), ONLINE, TARGET, legal, double=double)
    assert found.tolist() == [1.0, 2.0]


def test_dueling_streams_add_up_as_computed_by_hand() -> None:
    network = QNetwork(1, 3, settings(hidden_dim=1))
    with torch.no_grad():
        for layer in (network.body[0], network.body[3]):
            layer.weight.fill_(1.0)
            layer.bias.zero_()
        network.value.weight.fill_(10.0)
        network.value.bias.zero_()
        network.advantage.weight.copy_(torch.tensor([[1.0], [2.0], [6.0]]))
        network.advantage.bias.zero_()
    # Hidden value 2: V = 20; advantages 2, 4, 12 with mean 6.
    assert network(torch.tensor([[2.0]])).tolist() == [[16.0, 18.0, 26.0]]


def test_one_update_descends_the_weighted_huber_loss() -> None:
    """The gradient equals the one that autograd gives for the loss written out as in the papers."""
    agent = filled(DQNAgent(3, 4, settings(double=True, max_grad_norm=1e9), seed=1))
    batch = agent.memory.sample(8, 0.5, np.random.default_rng(3))
    rows = torch.arange(8)
    with torch.no_grad():
        best = agent.online(batch.next_observations_BD).argmax(1)
        y = batch.rewards_B + batch.discounts_B * agent.target(batch.next_observations_BD)[rows, best]
    error = y - agent.online(batch.observations_BD)[rows, batch.actions_B]
    huber = torch.where(error.abs() <= 1, error**2 / 2, error.abs() - 0.5)
    expected = torch.autograd.grad((batch.weights_B * huber).mean(), list(agent.online.parameters()))
    measured = agent.learn(np.random.default_rng(0), batch)
    for parameter, gradient in zip(agent.online.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert measured["td_error"] == pytest.approx(float(error.detach().abs().mean()))
    assert set(agent.layer_gradients()) == {
        f"grad_norm/{name}" for name, _ in agent.online.named_parameters()
    }


def test_gradients_are_clipped_to_the_norm() -> None:
    agent = filled(DQNAgent(3, 4, settings(max_grad_norm=1e-3)))
    measured = agent.learn(np.random.default_rng(0))
    norm = torch.stack([one.grad.norm() for one in agent.online.parameters()]).norm()
    assert measured["grad_norm"] > 1e-3
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("reward", [np.inf, np.nan, 1e300])
def test_a_loss_that_is_not_finite_ends_before_the_weights_are_lost(reward: float) -> None:
    agent = filled(DQNAgent(3, 4, settings()))
    lost = Transition(np.zeros(3), 0, reward, np.zeros(3), np.ones(4, bool), 0.9)
    with np.errstate(over="ignore"):
        agent.remember([lost] * agent.memory.capacity)
    with pytest.raises(GreenwardError, match="the values diverged"):
        agent.learn(np.random.default_rng(0))
    assert all(torch.isfinite(weights).all() for weights in agent.online.parameters()) and agent.version == 0


def test_hard_copies_of_the_target_come_at_their_interval() -> None:
    agent = filled(DQNAgent(3, 4, settings(target_update_interval=3)))
    start = [one.clone() for one in agent.target.parameters()]
    for update in range(1, 4):
        agent.learn(np.random.default_rng(update))
        online, target = (list(net.parameters()) for net in (agent.online, agent.target))
        expected = online if update == 3 else start
        assert all(torch.equal(a, b) for a, b in zip(target, expected, strict=True))


def test_a_soft_update_moves_the_target_by_tau() -> None:
    agent = filled(DQNAgent(3, 4, settings(target_update_interval=0, tau=0.25)))
    start = [one.clone() for one in agent.target.parameters()]
    agent.learn(np.random.default_rng(0))
    for before, new, after in zip(start, agent.online.parameters(), agent.target.parameters(), strict=True):
        torch.testing.assert_close(after, 0.75 * before + 0.25 * new)


def test_random_actions_are_legal_uniform_and_as_many_as_epsilon_says() -> None:
    agent = DQNAgent(3, 4, settings())
    observations, legal = np.zeros((8000, 3), np.float32), np.tile([True, True, False, True], (8000, 1))
    greedy = agent.act(observations, legal)
    assert len(set(greedy.tolist())) == 1
    assert greedy[0] != 2
    chosen = agent.act(observations, legal, 0.3, np.random.default_rng(0))
    assert np.mean(chosen != greedy[0]) == pytest.approx(0.3 * 2 / 3, abs=0.02)
    counts = np.bincount(chosen, minlength=4)
    assert counts[2] == 0
    assert sorted(counts)[1] == pytest.approx(800, abs=120)


def test_epsilon_decays_per_episode_down_to_its_end() -> None:
    config = settings(epsilon_start=0.8, epsilon_decay=0.5, epsilon_end=0.1)
    assert [config.epsilon(episode) for episode in range(5)] == pytest.approx([0.8, 0.4, 0.2, 0.1, 0.1])


def test_importance_weights_are_annealed_to_one() -> None:
    config = settings(importance_start=0.4, importance_updates=100)
    assert [config.importance(update) for update in (0, 50, 100, 900)] == pytest.approx([0.4, 0.7, 1.0, 1.0])


def test_a_restored_agent_goes_on_exactly() -> None:
    def learned(agent: DQNAgent, updates: range) -> DQNAgent:
        for update in updates:
            torch.manual_seed(update)
            agent.learn(np.random.default_rng(update))
        return agent

    config = settings(dropout=0.2, target_update_interval=4)
    whole = learned(filled(DQNAgent(3, 4, config)), range(12))
    half, resumed = learned(filled(DQNAgent(3, 4, config)), range(6)), DQNAgent(3, 4, config, seed=9)
    resumed.load_state_dict(half.state_dict())
    resumed.load_training_state(half.training_state())
    learned(resumed, range(6, 12))
    for a, b in zip(whole.online.parameters(), resumed.online.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_shape_of_network_is_refused_by_layer(tmp_path) -> None:
    DQNAgent(3, 4, settings()).save(tmp_path)
    for other in (DQNAgent(3, 5, settings()), DQNAgent(3, 4, settings(hidden_dim=8))):
        with pytest.raises(CheckpointError, match="does not fit"):
            other.load_weights(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint of a Q-network"):
        DQNAgent(3, 4, settings()).load_weights(tmp_path / "none")
    same = DQNAgent(3, 4, settings(), seed=5)
    same.load_weights(tmp_path)
    assert torch.equal(same.online.advantage.weight, DQNAgent(3, 4, settings()).online.advantage.weight)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tau": 0.1}, "either target_update_interval"),
        ({"target_update_interval": 0}, "either target_update_interval"),
        ({"epsilon_start": 0.1, "epsilon_end": 0.5}, "must not be above"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(keys, message) -> None:
    with pytest.raises(ValueError, match=message):
        DQNAlgorithmConfig(**keys)


class Corridor:
    """Five cells in a row; the last one pays 1 and ends. Action 2 is illegal in all and ends with -1."""

    def reset(self, *, seed=None):
        self.cell = 0
        return self._seen(), {"action_mask": [1, 1, 0]}

    def step(self, action):
        assert action != 2
        self.cell = max(0, self.cell + (1 if action else -1))
        over = self.cell == 4
        return self._seen(), float(over), over, False, {"action_mask": [1, 1, 0]}

    def _seen(self):
        return np.eye(5, dtype=np.float32)[self.cell]


PLAIN = {"double": False, "dueling": False, "prioritized": False}


@pytest.mark.parametrize("keys", [{}, pytest.param(PLAIN, marks=pytest.mark.slow)])
def test_the_values_of_a_corridor_are_learned(keys) -> None:
    config = settings(
        learning_rate=5e-3, gamma=0.8, epsilon_decay=0.99, epsilon_end=0.3, buffer_capacity=2000, batch_size=32,
        target_update_interval=25, importance_updates=300, **keys,
    )  # fmt: skip
    errors = []
    for seed in range(2):
        agent = DQNAgent(5, 3, config, seed=seed)
        returns = learn_environment(agent, Corridor(), steps=700, seed=seed, train_every=2)
        assert set(returns) == {1.0}
        values = agent.q_values(np.eye(5, dtype=np.float32)[:4])[:, 1]
        errors.append(np.abs(values - 0.8 ** np.arange(3, -1, -1)).max())
    assert min(errors) < 0.15
    assert max(errors) < 0.3


def test_each_batch_holds_its_share_of_demonstrations_which_stay_when_the_memory_has_moved_on() -> None:
    agent = DQNAgent(1, 4, settings(demonstration_share=0.25, success_share=0.25, buffer_capacity=20))

    def step(value: float) -> Transition:
        return Transition(
            np.full(1, value, np.float32), 0, 0.0, np.zeros(1, np.float32), np.ones(4, bool), 0.9
        )

    agent.demonstrate([step(7.0)] * 3)
    assert len(agent.memory) == 3
    agent.remember([step(1.0)] * 30)
    agent.remember([step(2.0)], success=True)
    batch = agent.draw(np.random.default_rng(0))
    assert batch.successes == 4
    assert batch.observations_BD[-4:, 0].tolist() == [2.0, 2.0, 7.0, 7.0]
    assert 7.0 not in batch.observations_BD[:-4]
    assert len(batch.indices) == 4
    alone = agent.demonstrated(np.random.default_rng(0))
    assert set(alone.observations_BD[:, 0].tolist()) == {7.0}
    assert alone.successes == len(alone.actions_B) == agent.config.batch_size
    memory = agent.memory.state_dict()["priorities"]
    agent.learn(np.random.default_rng(0), alone)
    assert agent.memory.state_dict()["priorities"].equal(memory)  # what it learned from is not in the memory


def test_the_margin_of_successes_equals_the_one_computed_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 0.0], [1.0, 0.9, 5.0]])
    # In the first row action 1 leads by 1; in the second one action 2 plus the margin leads it by 4.6.
    assert float(margin_loss(values, torch.tensor([1, 1]), 0.5)) == pytest.approx((0 + (5.5 - 0.9)) / 2)
    assert float(margin_loss(values, torch.tensor([1, 2]), 0.5)) == 0.0


def test_a_share_of_each_batch_comes_from_successes() -> None:
    agent = filled(DQNAgent(3, 4, settings(success_share=0.25)))
    assert agent.draw(np.random.default_rng(0)).successes == 0
    won = Transition(np.ones(3, np.float32), 1, 99.0, np.ones(3, np.float32), np.ones(4, bool), 0.0)
    agent.remember([won], success=True)
    batch = agent.draw(np.random.default_rng(0))
    assert batch.successes == 2
    assert len(batch.actions_B) == 8
    assert batch.rewards_B[-2:].tolist() == [99.0, 99.0]
    assert len(batch.indices) == 6
