from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from learning import judged_episode, make_trainer
from torch import Tensor

from greenward.algorithms.advantages import ESTIMATORS, AdvantageBatch
from greenward.algorithms.trainer import RLTrainer
from greenward.config.algorithm import GRPOAlgorithmConfig
from greenward.config.sections import TrainingConfig
from greenward.environments.episode import Episode, Turn
from greenward.errors import ConfigError
from greenward.grading.verdict import Status
from greenward.policies.engine import StopReason
from greenward.policies.group_batch import GroupBatch
from greenward.policies.scoring import TokenScores

VOCABULARY = 7
TEMPERATURE = 0.7


class BigramPolicy:
    """A table of logits, one row for each previous token: a policy whose gradient one can check."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(
            VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64
        ).requires_grad_()
        self.version = 0
        self.device = torch.device("cpu")
        self.tokenizer = SimpleNamespace(pad_id=0)

    def parameters(self) -> list[Tensor]:
        return [self.table]

    def completion_logprobs(
        self, batch: GroupBatch, *, temperature: float = 1.0, entropy: bool = False, hidden: bool = False
    ) -> TokenScores:
        previous_S = batch.token_ids_M[batch.scored_from_S]
        logprobs_SV = (self.table[previous_S] / temperature).log_softmax(-1)
        mask_BT = batch.completion_mask_BT
        chosen_S = logprobs_SV.gather(1, batch.completion_ids_BT[mask_BT][:, None])[:, 0]
        entropy_S = -(logprobs_SV.exp() * logprobs_SV).sum(-1)

        def spread(values_S: Tensor) -> Tensor:
            return torch.zeros(mask_BT.shape, dtype=values_S.dtype).masked_scatter(mask_BT, values_S)

        return TokenScores(spread(chosen_S), spread(entropy_S) if entropy else None)


def make_episodes(
    rewards: list[list[float]],
    *,
    seed: int = 0,
    failed: tuple[int, int] | None = None,
    truncated: bool = False,
) -> list[Episode]:
    """Groups with prompts and answers of random tokens; `failed` names one whose infrastructure failed."""
    rng = np.random.default_rng(seed)
    episodes = []
    for group, group_rewards in enumerate(rewards):
        prompt = tuple(rng.integers(1, VOCABULARY, rng.integers(2, 6)).tolist())
        for index, reward in enumerate(group_rewards):
            length = int(rng.integers(1, 6))
            turn = Turn(
                role="programmer",
                prompt_ids=prompt,
                completion_ids=rng.integers(1, VOCABULARY, length),
                logprobs_T=-rng.random(length).astype(np.float32) - 1,
                policy_wrote_T=np.ones(length, dtype=bool),
                stop_reason=StopReason.LENGTH if truncated and index == 0 else StopReason.END,
                policy_version=0,
                temperature=TEMPERATURE,
            )
            status = Status.INFRASTRUCTURE if (group, index) == failed else Status.FAILED
            episodes.append(judged_episode((turn,), {"programmer": reward}, group, status))
    return episodes


REWARDS = [[1.0, 0.0, 0.0, 0.5], [0.0, 0.0, 1.0, 1.0], [0.25, 0.0, 0.0, 0.0]]


def trainer_of(
    policy: Any,
    *,
    algorithm: dict[str, Any] | None = None,
    reference: Any = None,
    seed: int = 0,
    **training: Any,
) -> RLTrainer:
    training = {"max_grad_norm": 1e9, "learning_rate": 0.1, **training}
    return make_trainer(
        policy,
        GRPOAlgorithmConfig.model_validate(algorithm or {}),
        TrainingConfig.model_validate(training),
        reference=reference if (algorithm or {}).get("kl") else None,
        seed=seed,
    )


def states_of(episodes: list[Episode]) -> list[int]:
    """The token before each token of the answers, which is all that a bigram policy sees."""
    return [
        token
        for episode in episodes
        for token in (episode.turns[0].prompt_ids[-1], *episode.turns[0].completion_ids[:-1].tolist())
    ]


def captured_gradients(trainer: RLTrainer, policy: BigramPolicy) -> list[Tensor]:
    """The gradient at each optimizer step; the step itself is still taken."""
    gradients: list[Tensor] = []
    optimizer = trainer._optimizer
    optimizer.register_step_pre_hook(lambda *_: gradients.append(policy.table.grad.clone()))  # type: ignore[union-attr]
    return gradients


def update(
    trainer: RLTrainer, episodes: list[Episode], *, estimator: str = "grpo", step: int = 0
) -> dict[str, float]:
    return trainer.update(episodes, ESTIMATORS[estimator](episodes), step)


def gradient_of_update(episodes: list[Episode], **settings: Any) -> Tensor:
    policy = BigramPolicy()
    reference = BigramPolicy(seed=1)
    trainer = trainer_of(policy, reference=reference, **settings)
    gradients = captured_gradients(trainer, policy)
    update(trainer, episodes)
    (only,) = gradients
    return only


def plain_grpo_gradient(rewards: list[list[float]], episodes: list[Episode], beta: float) -> Tensor:
    """GRPO with token-level averaging and k3 KL, token by token, straight from the papers."""
    table = BigramPolicy().table
    reference = BigramPolicy(seed=1).table.detach()
    answers = iter(episodes)
    loss = torch.zeros((), dtype=torch.float64)
    tokens = 0
    for group in rewards:
        mean = sum(group) / len(group)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1))
        for reward in group:
            (turn,) = next(answers).turns
            previous = turn.prompt_ids[-1]
            for token in turn.completion_ids.tolist():
                logprob = (table[previous] / TEMPERATURE).log_softmax(-1)[token]
                gap = (reference[previous] / TEMPERATURE).log_softmax(-1)[token] - logprob
                ratio = torch.exp(logprob - logprob.detach())
                advantage = (reward - mean) / (deviation + 1e-4)
                loss = loss - (ratio * advantage - beta * ratio * (gap.exp() - gap - 1))
                tokens += 1
                previous = token
    (gradient,) = torch.autograd.grad(loss / tokens, table)
    return gradient


@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_gradient_equals_grpo_written_token_by_token(beta: float) -> None:
    episodes = make_episodes(REWARDS)
    found = gradient_of_update(episodes, algorithm={"loss": "dapo", "kl": {"coefficient": beta}})
    torch.testing.assert_close(found, plain_grpo_gradient(REWARDS, episodes, beta), atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce"])
def test_gradient_does_not_depend_on_the_micro_batch_size(loss: str) -> None:
    episodes = make_episodes(REWARDS)
    algorithm = {"loss": loss, "kl": {"coefficient": 0.1}, "importance_cap": 2.0}
    whole = gradient_of_update(episodes, algorithm=algorithm, micro_batch_sequences=12)
    for size in range(1, 12):
        accumulated = gradient_of_update(episodes, algorithm=algorithm, micro_batch_sequences=size)
        torch.testing.assert_close(accumulated, whole, atol=1e-6, rtol=0)


def batch_with_dead_groups(dead: int) -> tuple[list[list[float]], list[Episode]]:
    """Five groups of the same answers; of `dead` of them all rewards are equal."""
    rewards = [[1.0] * 4] * dead + [[1.0, 0.0, 0.0, 0.5]] * (5 - dead)
    return rewards, make_episodes(rewards, seed=3)


@pytest.mark.parametrize("term", [{"kl": {"coefficient": 0.5}}, {"entropy_coefficient": 0.5}])
@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce"])
def test_groups_without_signal_keep_the_gradient_of_every_other_term(loss: str, term: dict[str, Any]) -> None:
    """The gradient of KL and entropy is the same with 0 to 5 dead groups of 5."""
    parts = []
    for dead in range(6):
        _, episodes = batch_with_dead_groups(dead)
        whole = gradient_of_update(episodes, algorithm={"loss": loss, **term})
        surrogate = torch.zeros_like(whole)
        if dead < 5:
            surrogate = gradient_of_update(episodes, algorithm={"loss": loss})
        parts.append(whole - surrogate)
    assert parts[0].norm() > 1e-2
    for part in parts[1:]:
        torch.testing.assert_close(part, parts[0], atol=1e-6, rtol=0)


def test_kl_of_all_scored_groups_is_measured_and_steers_the_coefficient() -> None:
    found = []
    for dead in (0, 5):
        kl = {"coefficient": 0.5, "target": 1e-3, "horizon": 100}
        trainer = trainer_of(BigramPolicy(), algorithm={"kl": kl}, reference=BigramPolicy(seed=1))
        _, episodes = batch_with_dead_groups(dead)
        found.append((update(trainer, episodes)["kl"], trainer.state_dict()["kl"]["value"]))
    assert found[0] == pytest.approx(found[1])
    assert found[0][1] == pytest.approx(0.5 * (1 + 0.2 * 20 / 100))


def test_entropy_bonus_has_the_gradient_of_the_closed_form() -> None:
    """d entropy / d logit_i = -p_i (log p_i + entropy) / temperature, at the state of each token."""
    episodes = make_episodes([[1.0] * 4, [0.0] * 4], seed=2)
    found = gradient_of_update(episodes, algorithm={"entropy_coefficient": 0.3})
    logprobs = (BigramPolicy().table.detach() / TEMPERATURE).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1, keepdim=True)
    slope = -logprobs.exp() * (logprobs + entropy) / TEMPERATURE
    previous = states_of(episodes)
    expected = torch.zeros_like(slope)
    for state in previous:
        expected[state] -= 0.3 * slope[state] / len(previous)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_entropy_is_steered_to_its_target_and_resumes_bit_for_bit() -> None:
    section = {"entropy_coefficient": 0.01, "entropy_target": 1.8}
    episodes = make_episodes(REWARDS)

    def run(steps: int, trainer: RLTrainer, start: int = 0) -> list[dict[str, float]]:
        return [update(trainer, episodes, step=start + n) for n in range(steps)]

    policy = BigramPolicy()
    trainer = trainer_of(policy, algorithm=section)
    rows = run(4, trainer)
    coefficients = [row["entropy/coefficient"] for row in rows]
    assert coefficients[0] == 0.01
    for row, before, after in zip(rows, coefficients, coefficients[1:], strict=False):
        assert after == pytest.approx(before * math.exp(0.05 * max(-1, min(1, 1 - row["entropy"] / 1.8))))
    saved = copy.deepcopy((trainer.state_dict(), policy.table.detach()))
    resumed_policy = BigramPolicy(seed=9)
    with torch.no_grad():
        resumed_policy.table.copy_(saved[1])
    resumed = trainer_of(resumed_policy, algorithm=section)
    resumed.load_state_dict(saved[0])
    assert run(3, resumed, start=4) == run(3, trainer, start=4)
    assert torch.equal(resumed_policy.table, policy.table)


def test_dead_groups_are_not_trained_on_where_nothing_gives_them_a_gradient() -> None:
    policy = BigramPolicy()
    trainer = trainer_of(policy)
    before = policy.table.detach().clone()
    metrics = update(trainer, make_episodes([[1.0] * 4, [0.0] * 4]))
    torch.testing.assert_close(policy.table.detach(), before, rtol=0, atol=0)
    assert policy.version == 0
    assert metrics["groups/trained"] == metrics["tokens/trained"] == metrics["updates/applied"] == 0
    assert metrics["learning_rate"] == pytest.approx(0.1)
    assert all(math.isfinite(value) for value in metrics.values())


def test_dropping_dead_groups_leaves_the_gradient_as_it_was() -> None:
    rewards = [*REWARDS, [1.0] * 4]
    episodes = make_episodes(rewards)
    found = gradient_of_update(episodes)
    torch.testing.assert_close(found, plain_grpo_gradient(rewards, episodes, 0.0), atol=1e-6, rtol=0)


def test_infrastructure_failures_leave_the_loss_and_its_average() -> None:
    with_failure = make_episodes([[1.0, 0.0, 0.0, 0.5, 0.0]], failed=(0, 4))
    without = with_failure[:4]
    torch.testing.assert_close(gradient_of_update(with_failure), gradient_of_update(without), rtol=0, atol=0)


def test_truncated_answers_leave_the_loss_but_not_the_baseline() -> None:
    episodes = make_episodes([[1.0, 0.0, 0.0, 0.5]], truncated=True)
    advantages = ESTIMATORS["grpo"](episodes)
    policy = BigramPolicy()
    trainer = trainer_of(policy, algorithm={"overlong": {"mask_truncated": True}})
    gradients = captured_gradients(trainer, policy)
    metrics = trainer.update(episodes, advantages, 0)
    expected = BigramPolicy()
    other = trainer_of(expected)
    expected_gradients = captured_gradients(other, expected)
    other.update(episodes[1:], AdvantageBatch(advantages.advantages[1:]), 0)
    torch.testing.assert_close(gradients[0], expected_gradients[0], rtol=0, atol=0)
    assert metrics["tokens/trained"] == sum(len(e.turns[0].completion_ids) for e in episodes[1:])


def test_tokens_of_others_are_not_trained_on() -> None:
    (episode, *rest) = make_episodes([[1.0, 0.0]], seed=5)
    turn = episode.turns[0]
    wrote = np.arange(len(turn.completion_ids)) % 2 == 0
    masked = Episode(
        (Turn(**{**vars(turn), "policy_wrote_T": wrote}),),
        **{name: value for name, value in vars(episode).items() if name != "turns"},
    )
    metrics = update(trainer_of(BigramPolicy()), [masked, *rest])
    assert metrics["tokens/trained"] == wrote.sum() + len(rest[0].turns[0].completion_ids)


def test_minibatches_take_whole_groups_in_turn_on_every_pass() -> None:
    episodes = make_episodes(REWARDS)
    policy = BigramPolicy()
    trainer = trainer_of(policy, algorithm={"updates_per_batch": 2, "minibatches": 3})
    gradients = captured_gradients(trainer, policy)
    metrics = update(trainer, episodes)
    assert len(gradients) == 6
    assert policy.version == 1
    alone = gradient_of_update(episodes[:4])
    torch.testing.assert_close(gradients[0], alone, atol=1e-6, rtol=0)
    assert metrics["updates/applied"] == 6
    assert metrics["approx_kl"] > 0 and metrics["ratio/max"] > 1


def test_later_passes_measure_the_ratio_from_the_policy_before_the_first() -> None:
    """Two passes over one batch equal PPO by hand: step, then a step with old = initial log-probs."""
    episodes = make_episodes(REWARDS)
    policy = BigramPolicy()
    trainer = trainer_of(policy, algorithm={"updates_per_batch": 2, "loss": "reinforce"}, learning_rate=0.3)
    gradients = captured_gradients(trainer, policy)
    update(trainer, episodes)

    moved = BigramPolicy()
    first = trainer_of(moved, algorithm={"loss": "reinforce"}, learning_rate=0.3)
    update(first, episodes)
    table, initial = moved.table, BigramPolicy().table.detach()
    objective = torch.zeros((), dtype=torch.float64)
    for episode, (advantages_T,) in zip(episodes, ESTIMATORS["grpo"](episodes).advantages, strict=True):
        previous = episode.turns[0].prompt_ids[-1]
        for token, advantage in zip(
            episode.turns[0].completion_ids.tolist(), advantages_T.tolist(), strict=True
        ):
            new, old = ((t[previous] / TEMPERATURE).softmax(-1)[token] for t in (table, initial))
            objective = objective + new / old * advantage
            previous = token
    (expected,) = torch.autograd.grad(-objective / len(episodes), table)
    torch.testing.assert_close(gradients[1], expected, atol=1e-5, rtol=1e-5)


def test_gradient_norm_is_reported_before_clipping() -> None:
    episodes = make_episodes(REWARDS)
    norm = float(gradient_of_update(episodes).norm())
    policy = BigramPolicy()
    trainer = trainer_of(policy, max_grad_norm=norm / 10)
    gradients = captured_gradients(trainer, policy)
    assert update(trainer, episodes)["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert float(gradients[0].norm()) == pytest.approx(norm / 10, rel=1e-4)


def test_non_finite_gradient_skips_the_step_and_is_counted() -> None:
    policy = BigramPolicy()
    trainer = trainer_of(policy)
    episodes = make_episodes(REWARDS)
    advantages = ESTIMATORS["grpo"](episodes)
    advantages.advantages[0][0][:] = np.inf
    before = policy.table.detach().clone()
    metrics = trainer.update(episodes, advantages, 0)
    assert metrics["updates/non_finite"] == 1 and metrics["updates/applied"] == 0
    torch.testing.assert_close(policy.table.detach(), before, rtol=0, atol=0)
    assert policy.version == 0
    assert update(trainer, episodes)["updates/applied"] == 1


def test_entropy_and_ratio_metrics_are_means_over_trained_tokens() -> None:
    episodes = make_episodes(REWARDS)
    policy = BigramPolicy()
    logprobs = (policy.table.detach() / TEMPERATURE).log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    metrics = update(trainer_of(policy, micro_batch_sequences=5), episodes)
    assert metrics["entropy"] == pytest.approx(float(entropies[states_of(episodes)].mean()))
    assert metrics["ratio/mean"] == pytest.approx(1.0)
    assert metrics["clip/low"] == metrics["clip/high"] == metrics["approx_kl"] == 0
    assert metrics["groups/trained"] == 3


@pytest.mark.parametrize("dead", range(6))
@pytest.mark.parametrize(
    "algorithm", [{}, {"kl": {"coefficient": 0.1}}, {"overlong": {"mask_truncated": True}}]
)
def test_entropy_is_that_of_all_scored_answers(dead: int, algorithm: dict[str, Any]) -> None:
    """Groups without signal and truncated answers count; those that infrastructure failed do not."""
    rewards, _ = batch_with_dead_groups(dead)
    episodes = make_episodes(rewards, seed=3, failed=(4, 1), truncated=True)
    scored = [episode for episode in episodes if episode.scored]
    policy = BigramPolicy()
    logprobs = (policy.table.detach() / TEMPERATURE).log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    metrics = update(trainer_of(policy, algorithm=algorithm, reference=BigramPolicy(seed=1)), episodes)
    assert metrics["entropy"] == pytest.approx(float(entropies[states_of(scored)].mean()))


def test_entropy_is_that_of_all_answers_where_the_update_ends_early() -> None:
    """The step on the first of eight minibatches is small, but larger than `max_step_kl` allows."""
    policy, episodes = BigramPolicy(), make_episodes([[1.0, 0.0]] * 8)
    trainer = trainer_of(
        policy, algorithm={"minibatches": 8, "max_step_kl": 1e-9, "loss": "ppo"}, learning_rate=1e-3
    )
    metrics = update(trainer, episodes)
    assert metrics["updates/stopped_early"] == 1 and metrics["updates/applied"] == 1
    logprobs = (BigramPolicy().table.detach() / TEMPERATURE).log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    assert metrics["entropy"] == pytest.approx(float(entropies[states_of(episodes)].mean()), rel=5e-3)


def test_minibatches_are_shuffled_anew_between_passes_by_seed_and_step() -> None:
    """Every pass takes every group once; which of them share a step changes, and only with the seed."""
    episodes = make_episodes([[1.0, 0.0, 0.5]] * 8, seed=1)

    def gradients(seed: int, step: int) -> list[Tensor]:
        policy = BigramPolicy()
        algorithm = {"updates_per_batch": 4, "minibatches": 4, "loss": "reinforce"}
        trainer = trainer_of(policy, algorithm=algorithm, seed=seed, learning_rate=1e-9)
        found = captured_gradients(trainer, policy)
        update(trainer, episodes, step=step)
        return found

    first = gradients(0, 0)
    passes = [torch.stack(first[start : start + 4]) for start in range(0, 16, 4)]
    for one in passes[1:]:  # the policy stays where it is, so each pass has the same sum
        torch.testing.assert_close(one.sum(0), passes[0].sum(0), atol=1e-6, rtol=0)
        assert not any(torch.allclose(one[0], each, atol=1e-6) for each in passes[0])
    assert all(torch.equal(a, b) for a, b in zip(first, gradients(0, 0), strict=True))
    for other in (gradients(1, 0), gradients(0, 1)):
        assert all(torch.equal(a, b) for a, b in zip(first[:4], other[:4], strict=True))
        assert not all(torch.allclose(a, b, atol=1e-6) for a, b in zip(first[4:], other[4:], strict=True))


def test_learning_rate_follows_its_schedule_by_step() -> None:
    trainer = trainer_of(BigramPolicy(), schedule="linear", max_steps=10, warmup_steps=2, learning_rate=0.1)
    dead = make_episodes([[1.0, 1.0]])
    rates = [update(trainer, dead, step=step)["learning_rate"] for step in (0, 1, 2, 6)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.05])


def test_resumed_learner_goes_on_bit_for_bit() -> None:
    batches = [make_episodes(REWARDS, seed=seed) for seed in range(4)]
    straight_policy = BigramPolicy()
    straight = trainer_of(straight_policy)
    for step, episodes in enumerate(batches):
        if step == 2:
            saved = copy.deepcopy((straight.state_dict(), straight_policy.table.detach()))
        update(straight, episodes, step=step)
    resumed_policy = BigramPolicy(seed=9)
    with torch.no_grad():
        resumed_policy.table.copy_(saved[1])
    resumed = trainer_of(resumed_policy)
    resumed.load_state_dict(saved[0])
    for step in (2, 3):
        update(resumed, batches[step], step=step)
    assert torch.equal(resumed_policy.table, straight_policy.table)


def test_kl_without_a_reference_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="reference"):
        trainer_of(BigramPolicy(), algorithm={"kl": {"coefficient": 0.1}})
