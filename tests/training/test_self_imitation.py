"""Self-imitation: which answers it learns from, beside which policy gradient, and that it can be resumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_rejection import FAILED, LOST, PASSED, episodes_of, token_loss
from test_trainer import BigramPolicy, captured_gradients

from greenward.config.sections import GRPOAlgorithmConfig, TrainingConfig
from greenward.training.advantages import ESTIMATORS, Advantages
from greenward.training.sft import AcceptedAnswers
from learning import make_trainer

# The first group is all right and the third all wrong: neither has an answer above its baseline.
VERDICTS = [[PASSED, PASSED], [PASSED, FAILED, LOST], [FAILED, FAILED], [FAILED, PASSED, PASSED]]


def trainer_of(policy, *, rate=None, **algorithm):
    """A trainer whose policy gradient takes no step of its own, so that imitation can be seen alone."""
    settings = {"learning_rate": rate, "batch_size": 100, **algorithm.pop("self_imitation", {})}
    config = GRPOAlgorithmConfig.model_validate({"self_imitation": settings, **algorithm})
    training = TrainingConfig(learning_rate=0.05, max_grad_norm=1e9)
    trainer = make_trainer(policy, config, training)
    trainer.imitation = AcceptedAnswers(policy, config.self_imitation, training, seed=3)
    return trainer


def imitate(trainer, episodes, step=0):
    return trainer._imitate(trainer.imitation, episodes, ESTIMATORS["grpo"](episodes), step)


def test_the_gradient_is_that_of_the_likelihood_of_right_answers_above_their_baseline():
    policy = BigramPolicy()
    episodes = episodes_of(VERDICTS)
    wanted = [e for e in episodes if e.verdict.passed and e.group_id in {1, 3}]
    expected = torch.autograd.grad(token_loss(policy, wanted), policy.table)[0]
    trainer, found = trainer_of(policy), []
    trainer.imitation._optimizer.adamw.register_step_pre_hook(
        lambda *_: found.append(policy.table.grad.clone())
    )
    metrics = imitate(trainer, episodes)
    assert metrics["imitation/kept"] == len(wanted) == 3
    torch.testing.assert_close(found, [expected])


def test_answers_of_earlier_steps_are_imitated_again():
    trainer = trainer_of(BigramPolicy(), self_imitation={"replay_rounds": 1})
    pools = [
        imitate(trainer, episodes_of([[PASSED, FAILED]], seed=step), step)["imitation/pool"]
        for step in range(3)
    ]
    assert pools == [1, 2, 2]


@pytest.mark.parametrize(("rate", "expected"), [(None, 0.05), (0.002, 0.002)])
def test_its_learning_rate_is_its_own_or_that_of_the_training(rate, expected):
    policy = BigramPolicy()
    before = policy.table.detach().clone()
    trainer = trainer_of(policy, rate=rate)
    imitate(trainer, episodes_of([[PASSED, FAILED]]))
    # Adam's first step moves every entry that has a gradient by the learning rate.
    assert float((policy.table - before).abs().max()) == pytest.approx(expected, rel=1e-3)


def test_a_resumed_training_has_the_answers_and_the_moments_of_the_interrupted_one(tmp_path):
    steps = [episodes_of(VERDICTS, seed=step) for step in range(4)]
    whole = BigramPolicy()
    trainer = trainer_of(whole)
    rows = []
    for step, episodes in enumerate(steps):
        rows.append(imitate(trainer, episodes, step))
        if step == 1:
            torch.save(trainer.state_dict(), tmp_path / "state.pt")
            table = whole.table.detach().clone()
    cut = BigramPolicy()
    cut.table = table.requires_grad_()
    resumed = trainer_of(cut)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert [imitate(resumed, steps[step], step) for step in (2, 3)] == rows[2:]
    assert torch.equal(cut.table, whole.table)


def test_both_optimizers_hold_two_moments_of_each_weight():
    """What `greenward.models.memory` counts for self-imitation."""
    policy = BigramPolicy()
    trainer, episodes = trainer_of(policy), episodes_of(VERDICTS)
    trainer.update(episodes, ESTIMATORS["grpo"](episodes), 0)
    imitate(trainer, episodes)
    states = [*trainer._optimizer.state.values(), *trainer.imitation._optimizer.adamw.state.values()]
    moments = [value for state in states for value in state.values() if value.shape == policy.table.shape]
    assert len(moments) == 2 * 2


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_negative_advantages_count_as_much_as_the_weight_says(weight):
    episodes = episodes_of(VERDICTS)
    plain = ESTIMATORS["grpo"](episodes)
    by_hand = Advantages(
        [tuple(np.maximum(a, 0) + weight * np.minimum(a, 0) for a in turns) for turns in plain.advantages]
    )
    gradients = []
    for weight_of_recipe, advantages in ((weight, plain), (1.0, by_hand)):
        policy = BigramPolicy()
        trainer = trainer_of(policy, negative_weight=weight_of_recipe)
        found = captured_gradients(trainer, policy)
        trainer.update([replace(e) for e in episodes], advantages, 0)
        gradients.append(found)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert len(gradients[0]) == 1
