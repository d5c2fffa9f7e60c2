"""Losses and advantages of the user's: they train as the built-in ones that they repeat, and mistakes are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from greenward.common.errors import ConfigError
from greenward.config.sections import GRPOAlgorithmConfig, PPOAlgorithmConfig, TrainingConfig
from greenward.grading.verdict import Status
from greenward.models.scoring import TokenScores
from greenward.rollouts.protocols import Episode
from greenward.training.advantages import ESTIMATORS, Advantages
from greenward.training.batch import MicroBatch
from greenward.training.losses import LOSSES, Objective, policy_loss
from greenward.training.own import OwnAdvantage, OwnFunction, OwnLoss, OwnMathematics
from learning import UNREAD, PPOAgent, judged_episode, make_trainer, make_turn, tiny_policy

RATE = 0.002
REWARDS = ((1.0, 0.0, 0.0, 0.5), (0.0, 0.0), (0.0, 1.0, 1.0, 1.0), (0.25, 0.75))


def make_episodes(seed: int) -> list[Episode]:
    """Groups of answers with tokens that others wrote; one group without signal, one episode that was lost."""
    rng = np.random.default_rng(seed)
    episodes = []
    for group, rewards in enumerate(REWARDS):
        prompt = rng.integers(1, 11, 3).tolist()
        for index, reward in enumerate(rewards):
            length = int(rng.integers(2, 8))
            turn = make_turn(
                prompt,
                rng.integers(1, 11, length),
                logprobs_T=-rng.uniform(1.5, 3, length).astype(np.float32),
                policy_wrote_T=np.arange(length) != 1 if index % 2 else np.ones(length, dtype=bool),
            )
            status = Status.INFRASTRUCTURE if (group, index) == (2, 0) else Status.FAILED
            episodes.append(judged_episode((turn,), {"programmer": reward}, group, status))
    return episodes


def surrogate(ratio_BT: Tensor, advantages_BT: Tensor, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio_BT * advantages_BT, ratio_BT.clamp(1 - low, 1 + high) * advantages_BT)


def token_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor) -> Tensor:
    return torch.exp(logprobs_BT - old_logprobs_BT)


def per_sequence(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return values_BT.sum(1) / mask_BT.sum(1).clamp(min=1)


def own_dapo(logprobs_BT, old_logprobs_BT, advantages_BT, total_tokens, clip_low, clip_high):
    ratio_BT = token_ratio(logprobs_BT, old_logprobs_BT)
    return surrogate(ratio_BT, advantages_BT, clip_low, clip_high).sum() / total_tokens


def own_grpo(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, total_sequences, clip_low, clip_high):
    ratio_BT = token_ratio(logprobs_BT, old_logprobs_BT)
    values_BT = surrogate(ratio_BT, advantages_BT, clip_low, clip_high)
    return per_sequence(values_BT, mask_BT).sum() / total_sequences


def own_dr_grpo(logprobs_BT, old_logprobs_BT, advantages_BT, clip_low, clip_high, **rest):
    ratio_BT = token_ratio(logprobs_BT, old_logprobs_BT)
    values_BT = surrogate(ratio_BT, advantages_BT, clip_low, clip_high)
    return values_BT.sum() / (rest["total_sequences"] * rest["max_completion_tokens"])


def own_gspo(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, total_sequences, clip_low, clip_high):
    ratio_B1 = per_sequence(logprobs_BT - old_logprobs_BT, mask_BT).exp()[:, None]
    values_BT = surrogate(ratio_B1.expand_as(mask_BT), advantages_BT, clip_low, clip_high)
    return per_sequence(values_BT * mask_BT, mask_BT).sum() / total_sequences


def own_cispo(logprobs_BT, old_logprobs_BT, advantages_BT, total_tokens, clip_high):
    weight_BT = token_ratio(logprobs_BT, old_logprobs_BT).clamp(max=1 + clip_high).detach()
    return -(weight_BT * advantages_BT * logprobs_BT).sum() / total_tokens


def own_reinforce(logprobs_BT, old_logprobs_BT, advantages_BT, total_sequences):
    return -(token_ratio(logprobs_BT, old_logprobs_BT) * advantages_BT).sum() / total_sequences


OWN_LOSSES: dict[str, Callable[..., Tensor]] = {
    "dapo": own_dapo,
    "ppo": own_dapo,
    "grpo": own_grpo,
    "dr_grpo": own_dr_grpo,
    "gspo": own_gspo,
    "cispo": own_cispo,
    "reinforce": own_reinforce,
}


def find(key: str, function: Callable[..., Any]) -> OwnFunction:
    return OwnFunction.find(f"algorithm.{key}", "mine:f", {"mine:f": function})


def tried_loss(function: Callable[..., Any], **algorithm: Any) -> OwnLoss:
    return OwnLoss(find("loss", function)).tried(GRPOAlgorithmConfig.model_validate(algorithm))


def weights_after(loss: str, own: bool, *, size: int) -> Tensor:
    """The weights (P,) of a tiny decoder after three updates of four optimizer steps each."""
    policy = tiny_policy()
    settings = {"loss": loss, "updates_per_batch": 2, "minibatches": 2}
    trainer = make_trainer(
        policy,
        GRPOAlgorithmConfig.model_validate(settings),
        TrainingConfig(micro_batch_sequences=size, learning_rate=RATE),
        own_loss=tried_loss(OWN_LOSSES[loss], **settings) if own else None,
    )
    for step in range(3):
        episodes = make_episodes(step)
        trainer.update(episodes, ESTIMATORS["grpo"](episodes), step)
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def test_every_built_in_loss_is_repeated():
    assert OWN_LOSSES.keys() == LOSSES.keys()


@pytest.mark.parametrize("size", [2, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loss", OWN_LOSSES)
def test_an_own_loss_trains_to_the_weights_of_the_built_in_one(loss, size):
    found, expected = (weights_after(loss, own, size=size) for own in (True, False))
    start = torch.cat([parameter.detach().flatten() for parameter in tiny_policy().parameters()])
    assert (expected - start).abs().max() > 2 * RATE
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def gradient_of(name: str, own: bool, **terms: Any) -> Tensor:
    """The gradient (B, T) of one micro-batch by the log-probabilities, with a KL and an entropy of them."""
    draw = torch.Generator().manual_seed(0)
    logprobs_BT, *others = (-torch.rand((5, 6), generator=draw) * 2 for _ in range(4))
    old_BT, ref_BT, sampler_BT = (logprobs_BT + 0.3 * other_BT for other_BT in others)
    advantages_BT, mask_BT = torch.randn((5, 6), generator=draw), torch.rand((5, 6), generator=draw) < 0.8
    logprobs_BT.requires_grad_()
    algorithm = GRPOAlgorithmConfig.model_validate({"loss": name, **terms})
    batch = MicroBatch(UNREAD, advantages_BT, mask_BT, 9, 40, 6, sampler_BT, old_BT, ref_BT)
    objective = Objective.of(
        algorithm,
        kl_coefficient=algorithm.kl.coefficient,
        entropy_coefficient=algorithm.entropy_coefficient,
        own=tried_loss(OWN_LOSSES[name], **terms) if own else None,
    )
    scores = TokenScores(logprobs_BT, -logprobs_BT.exp() * logprobs_BT)
    return torch.autograd.grad(policy_loss(scores, batch, objective).loss, logprobs_BT)[0]


@pytest.mark.parametrize(
    "terms",
    [
        {"kl": {"coefficient": 0.1}, "entropy_coefficient": 0.01},
        {"importance": {"high": 1.1}},
        {"importance": {"mode": "mask", "level": "sequence", "low": 0.1, "high": 5.0}},
    ],
)
@pytest.mark.parametrize("name", ["dapo", "cispo"])
def test_the_terms_of_the_recipe_are_added_to_an_own_loss(name, terms):
    found, expected = (gradient_of(name, own, **terms) for own in (True, False))
    assert (expected - gradient_of(name, False)).abs().max() > 1e-4
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-5)


def test_an_own_loss_trains_a_policy_beside_its_critic_as_the_built_in_one():
    found = []
    for own in (True, False):
        policy = tiny_policy()
        algorithm = {"updates_per_batch": 2, "minibatches": 2}
        agent = PPOAgent(policy, algorithm, {"micro_batch_sequences": 3, "learning_rate": RATE})
        if own:
            config = PPOAlgorithmConfig.model_validate(algorithm)
            agent.trainer.own_loss = OwnLoss(find("loss", own_dapo)).tried(config)
        for step in range(3):
            agent.update(make_episodes(step), step)
        parts = (*policy.parameters(), *agent.critic.parameters())
        found.append(torch.cat([parameter.detach().flatten() for parameter in parts]))
    torch.testing.assert_close(*found, atol=1e-6, rtol=0)


def test_groups_without_signal_are_left_out_unless_the_loss_has_a_gradient_there():
    def likelihood(logprobs_BT, total_tokens):
        return -logprobs_BT.sum() / total_tokens

    assert not tried_loss(own_dapo).learns_everywhere
    loss = tried_loss(likelihood)
    assert loss.learns_everywhere
    episodes = make_episodes(0)
    trained = []
    for own in (None, loss):
        trainer = make_trainer(tiny_policy(), None, TrainingConfig(), own_loss=own)
        trained.append(trainer.update(episodes, ESTIMATORS["grpo"](episodes), 0)["groups/trained"])
    assert trained == [2.0, 4.0]  # in two groups all scored rewards are equal


def test_metrics_do_not_claim_to_know_where_an_own_loss_clips():
    episodes = make_episodes(0)
    trainer = make_trainer(tiny_policy(), None, TrainingConfig(), own_loss=tried_loss(own_dapo))
    metrics = trainer.update(episodes, ESTIMATORS["grpo"](episodes), 0)
    assert {"loss", "ratio/mean", "approx_kl", "entropy", "importance/mean"} <= metrics.keys()
    assert not any(name.startswith("clip/") for name in metrics)


def by_group(rewards_N, groups_N, of_group):
    advantages_N = np.zeros(len(rewards_N))
    for group in set(groups_N):
        members = groups_N == group
        if len(set(rewards_N[members])) > 1:
            advantages_N[members] = of_group(rewards_N[members])
    return advantages_N


def own_standardised(rewards_N, groups_N):
    return by_group(rewards_N, groups_N, lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-4))


def own_centred(rewards_N, groups_N):
    return torch.from_numpy(by_group(rewards_N, groups_N, lambda r: r - r.mean()))


def own_rloo(rewards_N, groups_N):
    return list(by_group(rewards_N, groups_N, lambda r: (r - r.mean()) * len(r) / (len(r) - 1)))


def own_batch_mean(rewards_N):
    return rewards_N - rewards_N.mean()


OWN_ADVANTAGES = {
    "grpo": own_standardised,
    "dr_grpo": own_centred,
    "rloo": own_rloo,
    "reinforce": own_batch_mean,
}


def on_trained_tokens(found: Advantages, episodes: list[Episode]) -> list[list[float]]:
    return [
        turns[0][one.turns[0].policy_wrote_T].tolist()
        for turns, one in zip(found.advantages, episodes, strict=True)
    ]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_own_advantage_is_that_of_the_built_in_one(name):
    estimator = OwnAdvantage(find("advantage", OWN_ADVANTAGES[name])).tried()
    for seed in range(3):
        episodes = make_episodes(seed)
        found, expected = (
            on_trained_tokens(each(episodes), episodes) for each in (estimator, ESTIMATORS[name])
        )
        assert found == expected and any(map(any, expected))


def test_arrays_are_advantages_of_single_tokens_in_every_role():
    def last_token(rewards_N, groups_N, lengths_N, episodes_N):
        seen.append((rewards_N.tolist(), groups_N.tolist(), [one.task_id for one in episodes_N]))
        return [
            np.where(np.arange(n) == n - 1, reward, 0.0)
            for n, reward in zip(lengths_N, rewards_N, strict=True)
        ]

    seen: list[Any] = []
    episodes = [
        judged_episode(
            (
                make_turn((1, 2), (3, 4), role="one"),
                make_turn((1, 3), (3, 4, 5), role="two", policy_wrote_T=np.array([True, True, False])),
                make_turn((1, 4), (6,), role="one"),
            ),
            {"one": 2.0, "two": -1.0},
            group,
        )
        for group in (7, 7, 9)
    ]
    episodes[1] = judged_episode(episodes[1].turns, {"one": 1.0, "two": 1.0}, 7, Status.INFRASTRUCTURE)
    found = OwnAdvantage(find("advantage", last_token))(episodes).advantages
    assert [[each_T.tolist() for each_T in turns] for turns in found] == [
        [[0, 0], [0, -1, 0], [2]],
        [[0, 0], [0, 0, 0], [0]],
        [[0, 0], [0, -1, 0], [2]],
    ]
    assert seen == [([2, -1, 2, -1], [0, 1, 2, 3], ["p"] * 4)]
    lost = [judged_episode(episodes[1].turns, {"one": 1.0, "two": 1.0}, 7, Status.INFRASTRUCTURE)]
    assert not any(each_T.any() for each_T in OwnAdvantage(find("advantage", last_token))(lost).advantages[0])
    assert len(seen) == 1


def failing_loss(logprobs_BT, old_logprobs_BT):
    return (logprobs_BT - old_logprobs_BT).sum() * (1 / len([]))


def loss(expression: str) -> Callable[..., Any]:
    """A function with this value, whose source is that of this module."""
    names = "logprobs_BT, old_logprobs_BT, ref_logprobs_BT, advantages_BT, mask_BT, total_tokens"
    function: Callable[..., Any] = eval(
        f"lambda {names}: {expression}", {"torch": torch, "__name__": __name__}
    )
    return function


MEAN = "-(advantages_BT * logprobs_BT).mean()"
WRONG_LOSSES = {
    "an unknown parameter": (lambda logprobs, logprobs_BT: 0, r"its parameter logprobs is not known(.|\n)*old_logp"),
    "an exception": (failing_loss, r"raised ZeroDivisionError(.|\n)*test_own_mathematics\.py\", line \d+, in failing_loss"),
    "a number": (loss("logprobs_BT.sum().item()"), r"expected a floating-point tensor of shape \(\), found float"),
    "values of tokens": (loss("logprobs_BT"), r"found a tensor \(9, 7\) of float32"),
    "whole numbers": (loss("mask_BT.sum()"), r"found a tensor \(\) of int64"),
    "infinity": (loss("(logprobs_BT / 0).sum()"), r"it gave a loss of -?(inf|nan)"),
    "not a number on policy": (
        loss("((logprobs_BT - old_logprobs_BT) / (logprobs_BT - old_logprobs_BT)).sum()"),
        r"it gave a loss of nan",
    ),
    "an infinite gradient": (
        loss("(logprobs_BT - old_logprobs_BT).abs().sqrt().sum() / total_tokens"),
        r"its gradient has an entry of (nan|inf|-inf)",
    ),
    "0/0 where an advantage is 0": (
        loss("-((advantages_BT / advantages_BT.abs())[mask_BT] * logprobs_BT[mask_BT]).sum() / total_tokens"),
        r"with advantages of 0 it gave a loss of nan",
    ),
    "0/0 by its own tokens": (
        loss("-(advantages_BT * logprobs_BT).sum() / mask_BT.sum()"),
        r"in micro-batches, of which one has no token that is trained on, it gave a loss of nan",
    ),
    "detached": (loss("(advantages_BT * logprobs_BT.detach()).sum()"), r"the policy got no gradient(.|\n)*detach"),
    "no gradient": (loss("(logprobs_BT * 0).sum()"), r"the policy got no gradient"),
    "a mean over the micro-batch": (loss(MEAN), r"for the whole and -?[\d.]+ as the sum over micro-batches(.|\n)*total_tokens"),
    "scaled by the rows": (loss("-(advantages_BT * logprobs_BT).sum() / len(mask_BT)"), r"as the sum over micro-batches"),
    "normalised by the batch": (
        loss("-((advantages_BT - advantages_BT.mean()) * logprobs_BT).sum() / total_tokens"),
        r"as the sum over micro-batches",
    ),
    "without a reference": (loss("(logprobs_BT - ref_logprobs_BT).sum() / total_tokens"), r"raised TypeError"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_LOSSES)
def test_a_wrong_loss_is_refused_before_training(case):
    function, message = WRONG_LOSSES[case]
    with pytest.raises(ConfigError, match=rf"algorithm\.loss: mine:f: (.|\n)*{message}"):
        tried_loss(function)


def test_a_loss_of_the_reference_is_tried_with_one_where_there_is_one():
    tried_loss(loss("(logprobs_BT - ref_logprobs_BT).sum() / total_tokens"), kl={"coefficient": 0.1})


def undefined_alone(rewards_N, groups_N):
    return by_group(rewards_N, groups_N, lambda r: r) + [
        rewards_N[groups_N == g].std(ddof=1) if (groups_N == g).sum() > 1 else float("nan") for g in groups_N
    ]


WRONG_ADVANTAGES = {
    "an unknown parameter": (lambda rewards: rewards, r"its parameter rewards is not known(.|\n)*rewards_N"),
    "an exception": (lambda rewards_N: rewards_N[99], r"raised IndexError(.|\n)*test_own_mathematics\.py\", line \d+"),
    "one number": (lambda rewards_N: 0.5, r"expected a list or an array of numbers"),
    "text": (lambda rewards_N: ["good"] * len(rewards_N), r"expected a list or an array of numbers"),
    "too few": (lambda rewards_N: rewards_N[1:], r"expected 9 advantages, found 8"),
    "another shape": (lambda rewards_N: rewards_N[:, None], r"trajectory 0 \(reward 0, \d tokens, in a group of 4\) has the shape \(1,\)"),
    "not a number where one is alone": (undefined_alone, r"trajectory 6 \(reward 0\.5, \d tokens, in a group of 1\) is nan"),
    "nothing": (lambda rewards_N: 0 * rewards_N, r"all advantages are 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_ADVANTAGES)
def test_a_wrong_advantage_is_refused_before_training(case):
    function, message = WRONG_ADVANTAGES[case]
    with pytest.raises(ConfigError, match=rf"algorithm\.advantage: mine:f: (.|\n)*{message}"):
        OwnAdvantage(find("advantage", function)).tried()


def test_what_is_no_function_of_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_module_of_own.py").write_text("1 / 0\n")
    namespace: dict[str, Any] = {"__name__": "nowhere"}
    exec("def f(logprobs_BT): return logprobs_BT.sum()", namespace)
    for name, given, message in (
        ("no_such_module_of_own:f", {}, "ModuleNotFoundError"),
        ("broken_module_of_own:f", {}, "ZeroDivisionError"),
        ("os.path:no_such", {}, "no function 'no_such'"),
        ("torch.nn:Linear", {}, "source is kept with the run; it is a type"),
        ("mine:f", {"mine:f": namespace["f"]}, "source is kept with the run"),
    ):
        with pytest.raises(ConfigError, match=rf"algorithm\.loss: {name}: (.|\n)*{message}"):
            OwnMathematics.of(GRPOAlgorithmConfig(loss=name), given)
