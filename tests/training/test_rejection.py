"""Rejection sampling: what is kept, what is trained on, and that the rest leaves no trace."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_trainer import BigramPolicy, make_episodes

from greenward.config.sections import RejectionAlgorithmConfig, TrainingConfig
from greenward.grading.verdict import Status, Verdict
from greenward.rollouts.protocols import StopReason
from greenward.training.protocols import Example
from greenward.training.sft import AcceptedAnswers, RejectionTrainer, SupervisedOptimizer
from learning import NoCollector

PASSED, FAILED, LOST = (Verdict(s) for s in (Status.PASSED, Status.FAILED, Status.INFRASTRUCTURE))


def episodes_of(verdicts, *, seed=0, answers=None):
    """One group for each list of verdicts; every answer has a text of its own unless `answers` are given."""
    made = make_episodes([[float(v is PASSED) for v in group] for group in verdicts], seed=seed)
    flat = [verdict for group in verdicts for verdict in group]
    texts = answers or [f"answer {seed}.{index}" for index in range(len(flat))]
    return [
        replace(e, verdict=v, success=v is PASSED, scored=v is not LOST, outcome=v.status.value, answer=text)
        for e, v, text in zip(made, flat, texts, strict=True)
    ]


def trainer_of(policy, *, seed=3, training=None, mask_truncated=False, **config):
    training = TrainingConfig(**{"learning_rate": 0.05, "max_grad_norm": 1e9, **(training or {})})
    answers = AcceptedAnswers(
        policy, RejectionAlgorithmConfig(**config), training, seed=seed, mask_truncated=mask_truncated
    )
    return RejectionTrainer(policy, NoCollector(), training, answers)


def one_round(episodes, *, policy=None, **config):
    """The metrics of a round of a new trainer."""
    return trainer_of(policy or BigramPolicy(), **config).update(episodes, 0)


def is_kept(episodes, **criterion):
    """Whether each episode alone is kept."""
    return [one_round([episode], **criterion)["rejection/kept"] == 1 for episode in episodes]


def token_loss(policy, episodes):
    """The mean negative log-likelihood of the tokens of `episodes`, one token at a time."""
    table = policy.table.log_softmax(-1)
    terms = [
        -table[previous, token]
        for episode in episodes
        for turn in episode.turns
        for previous, token, wrote in zip(
            [turn.prompt_ids[-1], *turn.completion_ids[:-1]],
            turn.completion_ids,
            turn.policy_wrote_T,
            strict=True,
        )
        if wrote
    ]
    return torch.stack(terms).mean()


@pytest.mark.filterwarnings("ignore:A round of rejection")
def test_answers_that_pass_are_kept_and_those_of_a_failed_infrastructure_never():
    episodes = episodes_of([[PASSED, FAILED, LOST]])
    assert is_kept(episodes) == [True, False, False]
    rewarded = [replace(e, rewards={"programmer": r}) for e, r in zip(episodes, (0.2, 0.7, 9.0), strict=True)]
    assert is_kept(rewarded, min_reward=0.7) == [False, True, False]


@pytest.mark.filterwarnings("ignore:A round of rejection")
def test_an_episode_in_which_the_policy_wrote_nothing_is_not_kept():
    (episode,) = episodes_of([[PASSED]])
    by_another = replace(episode, turns=(replace(episode.turns[0], player="opponent"),))
    assert is_kept([episode, by_another]) == [True, False]
    assert is_kept([episode, by_another], min_reward=0.0) == [True, False]


def test_truncated_answers_are_left_out_where_the_recipe_masks_them():
    (episode,) = episodes_of([[PASSED]])
    cut = replace(episode, turns=(replace(episode.turns[0], stop_reason=StopReason.LENGTH),))
    assert is_kept([cut]) == [True] and is_kept([cut], mask_truncated=True) == [False]


@pytest.mark.parametrize("micro_batch", [1, 2, 64])
def test_the_gradient_is_that_of_the_likelihood_of_the_kept_tokens(micro_batch):
    policy = BigramPolicy()
    episodes = episodes_of([[PASSED, FAILED, PASSED], [FAILED, LOST, FAILED], [PASSED, PASSED, FAILED]])
    turn = episodes[0].turns[0]
    wrote = np.arange(len(turn.completion_ids)) % 2 == 0  # every second token came from elsewhere
    episodes[0] = replace(episodes[0], turns=(replace(turn, policy_wrote_T=wrote),))
    kept = [episode for episode in episodes if episode.verdict.passed]
    expected = torch.autograd.grad(token_loss(policy, kept), policy.table)[0]
    trainer = trainer_of(
        policy, training={"micro_batch_sequences": micro_batch, "num_generations": 1}, batch_size=100
    )
    found = []
    trainer.answers._optimizer.adamw.register_step_pre_hook(
        lambda *_: found.append(policy.table.grad.clone())
    )
    metrics = trainer.update(episodes, 0)
    assert len(found) == 1
    torch.testing.assert_close(found[0], expected)
    assert metrics["grad_norm"] == pytest.approx(float(expected.norm()))
    assert metrics["tokens/trained"] == sum(int(e.turns[0].policy_wrote_T.sum()) for e in kept)


def test_equal_answers_to_a_prompt_count_once_and_a_prompt_only_so_often():
    answers = ["a", "a", "b", "c", "a", "b"]
    episodes = episodes_of([[PASSED] * 4, [PASSED] * 2], answers=answers)
    first, second = [[e for e in episodes if e.group_id == group] for group in (0, 1)]
    unlimited = one_round(episodes)
    assert unlimited["rejection/kept"] == 6 and unlimited["rejection/prompts"] == 2
    assert unlimited["rejection/pool"] == 5  # a, b, c to the first prompt and a, b to the second
    expected = float(token_loss(BigramPolicy(), [first[0], second[0]]))
    capped = one_round(episodes, max_per_prompt=1)
    assert capped["rejection/pool"] == 2 and capped["loss"] == pytest.approx(expected)


def test_of_too_many_answers_those_with_the_highest_reward_are_trained_on():
    episodes = [
        replace(e, rewards={"programmer": reward})
        for e, reward in zip(episodes_of([[PASSED] * 3]), (0.5, 1.0, 0.8), strict=True)
    ]
    expected = float(token_loss(BigramPolicy(), [episodes[1]]))
    assert one_round(episodes, max_per_prompt=1)["loss"] == pytest.approx(expected)


def test_answers_without_code_are_told_apart_by_their_tokens():
    episodes = episodes_of([[FAILED] * 3], answers=["", "", ""])
    ids = {tuple(e.turns[0].completion_ids) for e in episodes}
    assert one_round(episodes, min_reward=0.0)["rejection/pool"] == len(ids) > 1


@pytest.mark.parametrize(
    ("replay_rounds", "pools"), [(0, [2, 2, 0, 2]), (1, [2, 4, 2, 2]), (9, [2, 4, 4, 6])]
)
def test_earlier_rounds_are_trained_on_again_as_far_as_the_recipe_says(replay_rounds, pools):
    trainer = trainer_of(BigramPolicy(), replay_rounds=replay_rounds)
    rounds = [[PASSED, PASSED], [PASSED, PASSED], [FAILED, FAILED], [PASSED, PASSED]]
    with pytest.warns(UserWarning, match="kept no answer"):
        metrics = [
            trainer.update(episodes_of([verdicts], seed=step), step) for step, verdicts in enumerate(rounds)
        ]
    assert [row["rejection/pool"] for row in metrics] == pools


def test_an_empty_round_is_counted_warned_about_and_changes_nothing():
    policy = BigramPolicy()
    trainer = trainer_of(policy)
    before = policy.table.detach().clone()
    with pytest.warns(UserWarning, match="rejection/empty_rounds"):
        metrics = trainer.update(episodes_of([[FAILED, FAILED, LOST]]), 0)
    assert metrics["rejection/empty_rounds"] == 1 and metrics["rejection/kept"] == 0
    assert metrics["updates/applied"] == 0 and "loss" not in metrics
    assert torch.equal(policy.table, before) and policy.version == 0
    with pytest.warns(UserWarning):
        assert trainer.update(episodes_of([[FAILED]]), 1)["rejection/empty_rounds"] == 2


def test_a_round_that_the_infrastructure_lost_is_not_an_empty_one(recwarn):
    metrics = one_round(episodes_of([[LOST, LOST]]))
    assert metrics["rejection/empty_rounds"] == 0 and not recwarn.list


def test_passes_and_batches_give_the_number_of_optimizer_steps():
    policy = BigramPolicy()
    metrics = one_round(
        policy=policy, epochs=3, batch_size=2, episodes=episodes_of([[PASSED] * 3, [PASSED] * 2])
    )
    assert metrics["updates/applied"] == policy.version == 3 * 3


def test_a_batch_without_a_token_to_train_on_is_an_error():
    optimizer = SupervisedOptimizer(
        BigramPolicy(), betas=(0.9, 0.98), weight_decay=0.0, max_grad_norm=1.0, examples_at_once=1
    )
    with pytest.raises(ValueError, match="none of the 1 examples of a batch has a token"):
        optimizer.update([Example((1,), (2,), (False,))], 1e-3)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted():
    policy = BigramPolicy()
    with torch.no_grad():
        policy.table[1] = float("nan")
    before = policy.table.detach().clone()
    metrics = one_round(policy=policy, episodes=episodes_of([[PASSED] * 4] * 4))
    assert metrics["updates/non_finite"] == 1 and metrics["updates/applied"] == 0
    torch.testing.assert_close(policy.table, before, equal_nan=True)


def test_resuming_from_the_state_repeats_the_rounds_bit_for_bit(tmp_path):
    def rounds(trainer, steps):
        return [
            trainer.update(episodes_of([[PASSED, PASSED, FAILED]] * 3, seed=step), step) for step in steps
        ]

    whole, cut = BigramPolicy(), BigramPolicy()
    settings = {"replay_rounds": 2, "epochs": 2, "batch_size": 2, "max_per_prompt": 1}
    trainer = trainer_of(whole, **settings)
    rows = rounds(trainer, range(6))
    first = trainer_of(cut, **settings)
    rounds(first, range(3))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    resumed = copy.deepcopy(cut)
    resumed.table = cut.table.detach().clone().requires_grad_()
    second = trainer_of(resumed, **settings)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert rounds(second, range(3, 6)) == rows[3:]
    assert torch.equal(resumed.table, whole.table)


def test_the_learning_rate_ends_at_the_final_rate() -> None:
    training = {"schedule": "linear", "max_steps": 10, "final_rate": 0.5}
    trainer = trainer_of(BigramPolicy(), training=training)
    metrics = trainer.update(episodes_of([[PASSED, FAILED]]), 5)
    assert metrics["learning_rate"] == pytest.approx(0.05 * 0.75)
