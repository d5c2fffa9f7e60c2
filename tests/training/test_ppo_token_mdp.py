"""PPO on a token MDP small enough to enumerate: 2 prompts, 3 tokens (0 ends), at most 3 of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_loss_terms import logprobs_of, trainable
from torch import Tensor

from greenward.config.sections import GRPOAlgorithmConfig, PPOAlgorithmConfig, ShapeConfig
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import Episode, SamplingParams
from greenward.training.ppo import generalised_advantages
from learning import LossInputs, PPOAgent, judged_episode, loss_of, make_turn

END, VOCABULARY, LIMIT = 0, 3, 3
PROMPTS = ((1, 2), (2, 1))
TOKENIZER: Any = SimpleNamespace(vocab_size=VOCABULARY, pad_id=END, eos_ids=[END])
SHAPE = ShapeConfig(layers=1, hidden_size=32, heads=2, kv_heads=2, intermediate_size=64, max_positions=16)

Answer = tuple[int, ...]


def answers(start: Answer = ()) -> list[Answer]:
    """Every answer that begins with `start`."""
    if len(start) == LIMIT or (start and start[-1] == END):
        return [start]
    return [answer for token in range(VOCABULARY) for answer in answers((*start, token))]


_rng = np.random.default_rng(4)
REWARD = {(prompt, answer): float(_rng.random()) for prompt in PROMPTS for answer in answers()}
OPTIMUM = np.mean([max(REWARD[prompt, answer] for answer in answers()) for prompt in PROMPTS])


def exact_value(prompt: Answer, state: Answer, probability: Any) -> Any:
    """E[reward | state] by enumeration; `probability(prompt, state)` gives (V,) of the next token."""
    if len(state) == LIMIT or (state and state[-1] == END):
        return REWARD[prompt, state]
    chances = probability(prompt, state)
    return sum(
        chances[token] * exact_value(prompt, (*state, token), probability) for token in range(VOCABULARY)
    )


@pytest.mark.parametrize("gae_lambda", [0.0, 0.6, 1.0])
def test_with_exact_values_the_expected_ppo_gradient_is_that_of_the_expected_reward(
    gae_lambda: float,
) -> None:
    """For any lambda: E over all answers of the loss's gradient equals -grad E[reward]."""
    tables = {prompt: trainable(seed) for seed, prompt in enumerate(PROMPTS)}
    parameters = [logits for _, of_prompt in tables.values() for logits in of_prompt]

    def probability(prompt: Answer, state: Answer) -> Tensor:
        return tables[prompt][0][state].exp()

    objective = sum(exact_value(prompt, (), probability) for prompt in PROMPTS)
    exact = torch.autograd.grad(objective, parameters, allow_unused=True, retain_graph=True)

    def detached(prompt: Answer, state: Answer) -> np.ndarray:
        return probability(prompt, state).detach().numpy()

    expectation = torch.zeros((), dtype=torch.float64)
    for prompt in PROMPTS:
        for answer in answers():
            logprobs = logprobs_of(answer, tables[prompt][0])
            rewards = np.append(np.zeros(len(answer) - 1), REWARD[prompt, answer])
            values = np.array([exact_value(prompt, answer[:t], detached) for t in range(len(answer))])
            advantages = generalised_advantages(rewards, values, discount=1.0, gae_lambda=gae_lambda)
            inputs = LossInputs(
                logprobs_BT=logprobs[None],
                advantages_BT=torch.from_numpy(advantages)[None],
                mask_BT=torch.ones(1, len(answer), dtype=torch.bool),
            )
            loss = loss_of(inputs, (1, 1, LIMIT), GRPOAlgorithmConfig(loss="ppo")).loss
            expectation = expectation + logprobs.detach().sum().exp() * loss
    found = torch.autograd.grad(expectation, parameters, allow_unused=True)
    for expected, gradient in zip(exact, found, strict=True):
        if expected is not None and gradient is not None:
            torch.testing.assert_close(gradient, -expected, atol=1e-9, rtol=0)
    assert max(float(gradient.abs().max()) for gradient in exact if gradient is not None) > 1e-3


class Training(PPOAgent):
    """The real policy, critic, estimator and trainer, and episodes without a sandbox.

    `seed` decides the weights at the start and every sample.
    """

    def __init__(self, *, seed: int = 0, algorithm: dict[str, Any] | None = None, **training: Any) -> None:
        self.seed = seed
        section = {**(algorithm or {}), "critic": {"clip": None, **(algorithm or {}).get("critic", {})}}
        policy = Policy.random(SHAPE, TOKENIZER, seed=seed, device="cpu")
        settings = {"micro_batch_sequences": 256, **training}
        super().__init__(policy, section, settings, max_completion_tokens=LIMIT)

    def episodes(self, seed: int, size: int = 48) -> list[Episode]:
        groups = self.policy.sample(PROMPTS, size, SamplingParams(max_tokens=LIMIT), seed=seed)
        return [
            judged_episode(
                (make_turn(prompt, completion.token_ids, logprobs_T=completion.logprobs),),
                {"programmer": REWARD[prompt, tuple(completion.token_ids.tolist())]},
                number,
            )
            for number, (prompt, group) in enumerate(zip(PROMPTS, groups, strict=True))
            for completion in group
        ]

    def step(self, step: int) -> dict[str, float]:
        return self.update(self.episodes(seed=1000 * self.seed + step), step)

    @torch.no_grad()
    def probability(self, prompt: Answer, state: Answer) -> np.ndarray:
        continuations = [[(*state, token) for token in range(VOCABULARY)]]
        batch = GroupBatch.build([prompt], continuations)
        return self.policy.completion_logprobs(batch).logprobs_BT[:, len(state)].exp().numpy()

    @torch.no_grad()
    def values(self, prompt: Answer, answer: Sequence[int]) -> np.ndarray:
        batch = GroupBatch.build([prompt], [[answer]])
        return self.critic(batch, self.policy.completion_hidden(batch))[0].numpy()


def expected_reward(training: Training) -> float:
    """By enumeration, as a share of the best policy's."""
    exact = [exact_value(prompt, (), training.probability) for prompt in PROMPTS]
    return float(np.mean(exact) / OPTIMUM)


@pytest.mark.slow
@pytest.mark.parametrize("trunk", ["shared", "separate"])
def test_ppo_comes_within_5_percent_of_the_best_policy(trunk: str) -> None:
    """From 20 initialisations with the defaults of kind: ppo.

    At a rate of 2e-3 up to 3 of 20 collapse late, by the rounding of the processor. At 1e-3 none of
    60 did; still the two worst may be anywhere, and the third worst may not.
    """
    started, reached = [], []
    section = {"updates_per_batch": 3, "minibatches": 2, "critic": {"trunk": trunk, "clip": None}}
    algorithm = PPOAlgorithmConfig.model_validate(section).model_dump()
    for seed in range(20):
        training = Training(seed=seed, algorithm=algorithm, learning_rate=1e-3)
        started.append(expected_reward(training))
        for step in range(60):
            training.step(step)
        reached.append(expected_reward(training))
    assert max(started) < 0.8
    assert np.median(reached) >= 0.965
    assert np.mean(reached) >= 0.92
    assert sorted(reached)[2] >= 0.9, sorted(reached)


@pytest.mark.slow
def test_critic_of_a_resting_policy_learns_the_enumerated_values() -> None:
    results = [error_and_explained_variance(seed) for seed in range(5)]
    errors, explained = np.array(results).T
    assert np.median(errors) < 0.3 and max(errors) < 0.6  # a constant leaves 1
    assert np.median(explained) > 0.1 and min(explained) > 0.0


def error_and_explained_variance(seed: int) -> tuple[float, float]:
    """The squared error of the values of a policy that does not move, as a share of their variance.

    States weigh as often as the policy visits them. The second number is the metric, over the last steps.
    """
    training = Training(
        seed=seed,
        algorithm={
            "updates_per_batch": 5,
            "critic": {"trunk": "separate", "learning_rate": 3e-3, "gae_lambda": 1.0},
        },
        learning_rate=1e-12,
        schedule="linear",
        max_steps=40,
    )
    explained = [training.step(step).get("explained_variance", 0.0) for step in range(40)]
    found, exact, chance = [], [], []
    for prompt in PROMPTS:
        states = {answer[:t]: answer for answer in answers() for t in range(len(answer))}
        for state, answer in states.items():
            found.append(training.values(prompt, answer)[len(state)])
            exact.append(exact_value(prompt, state, training.probability))
            chance.append(
                np.prod([training.probability(prompt, state[:t])[token] for t, token in enumerate(state)])
            )
    spread = np.average((exact - np.average(exact, weights=chance)) ** 2, weights=chance)
    error = np.average((np.array(found) - exact) ** 2, weights=chance)
    assert explained[0] == pytest.approx(0.0, abs=1e-6)
    return float(error / spread), float(np.mean(explained[-5:]))
