from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from greenward.common.errors import ConfigError
from greenward.config.sections import GRPOAlgorithmConfig, TrainingConfig
from greenward.grading.verdict import Status
from greenward.models.scoring import GroupBatch, TokenScores
from greenward.rollouts.protocols import Episode, StopReason
from greenward.runs.reading import without_timing
from greenward.training.advantages import ESTIMATORS, Advantages
from greenward.training.losses import LOSSES
from greenward.training.trainer import RLTrainer
from learning import judged_episode, make_trainer, make_turn

VOCABULARY = 7
TEMPERATURE = 0.7


class BigramPolicy:
    """A table of logits, one row for each previous token: a policy whose gradient one can check."""

    casting_once = nullcontext

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(
            VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64
        ).requires_grad_()
        self.version = 0
        self.dtype = self.table.dtype
        self.device = torch.device("cpu")

    def parameters(self) -> list[Tensor]:
        return [self.table]

    def check_ids(self, texts: Iterable[Sequence[int]]) -> None:
        """Examples that are counted and never scored may have any tokens."""

    def completion_logprobs(
        self, batch: GroupBatch, *, temperature: float = 1.0, entropy: bool = False, hidden: bool = False
    ) -> TokenScores:
        previous_S = batch.token_ids_M[batch.predicting_U[batch.scored_from_S]]
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
            turn = make_turn(
                prompt,
                rng.integers(1, VOCABULARY, length),
                logprobs_T=-rng.random(length).astype(np.float32) - 1,
                stop_reason=StopReason.LENGTH if truncated and index == 0 else StopReason.END,
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


def entropies(episodes: list[Episode]) -> np.ndarray:
    """Of the first policy at each token of the answers."""
    logprobs = (BigramPolicy().table.detach() / TEMPERATURE).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)[states_of(episodes)].numpy()  # type: ignore[no-any-return]


def surprisals(episodes: list[Episode]) -> np.ndarray:
    """Of each token of the answers when it was sampled."""
    return np.concatenate([-turn.logprobs_T for episode in episodes for turn in episode.turns])


def captured_gradients(trainer: RLTrainer, policy: BigramPolicy) -> list[Tensor]:
    """The gradient at each optimizer step; the step itself is still taken."""
    gradients: list[Tensor] = []
    optimizer = trainer._optimizer
    optimizer.register_step_pre_hook(lambda *_: gradients.append(policy.table.grad.clone()))  # type: ignore[union-attr]
    return gradients


def update(trainer: RLTrainer, episodes: list[Episode], *, step: int = 0) -> dict[str, float]:
    return trainer.update(episodes, ESTIMATORS["grpo"](episodes), step)


def first_update(
    episodes: list[Episode], *, step: int = 0, **settings: Any
) -> tuple[list[Tensor], dict[str, float]]:
    """The gradients and the metrics of the update of a new policy."""
    policy = BigramPolicy()
    trainer = trainer_of(policy, reference=BigramPolicy(seed=1), **settings)
    gradients = captured_gradients(trainer, policy)
    return gradients, update(trainer, episodes, step=step)


def gradient_of_update(episodes: list[Episode], **settings: Any) -> Tensor:
    (only,), _ = first_update(episodes, **settings)
    return only


def plain_grpo_gradient(
    rewards: list[list[float]], episodes: list[Episode], beta: float, bonus: float
) -> Tensor:
    """GRPO with token-level averaging, k3 KL and an entropy bonus, token by token, from the papers."""
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
                logprobs = (table[previous] / TEMPERATURE).log_softmax(-1)
                gap = (reference[previous] / TEMPERATURE).log_softmax(-1)[token] - logprobs[token]
                ratio = torch.exp(logprobs[token] - logprobs[token].detach())
                advantage = (reward - mean) / (deviation + 1e-4)
                entropy = -(logprobs.exp() * logprobs).sum()
                loss = loss - (ratio * advantage - beta * ratio * (gap.exp() - gap - 1) + bonus * entropy)
                tokens += 1
                previous = token
    (gradient,) = torch.autograd.grad(loss / tokens, table)
    return gradient


@pytest.mark.parametrize("dead", [[], [[1.0] * 4]])
@pytest.mark.parametrize(("beta", "bonus"), [(0.0, 0.0), (0.2, 0.0), (0.0, 0.3), (0.2, 0.3)])
def test_gradient_equals_grpo_written_token_by_token(
    beta: float, bonus: float, dead: list[list[float]]
) -> None:
    rewards = [*REWARDS, *dead]
    episodes = make_episodes(rewards)
    algorithm = {"loss": "dapo", "kl": {"coefficient": beta}, "entropy_coefficient": bonus}
    found = gradient_of_update(episodes, algorithm=algorithm)
    expected = plain_grpo_gradient(rewards, episodes, beta, bonus)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_gradient_and_metrics_do_not_depend_on_the_micro_batch_size(loss: str) -> None:
    episodes = make_episodes(REWARDS)
    algorithm = {
        "loss": loss,
        "kl": {"coefficient": 0.1},
        "importance": {"level": "sequence", "mode": "mask"},
    }
    (whole,), metrics = first_update(episodes, algorithm=algorithm, micro_batch_sequences=12)
    for size in range(1, 12):
        (accumulated,), found = first_update(episodes, algorithm=algorithm, micro_batch_sequences=size)
        torch.testing.assert_close(accumulated, whole, atol=1e-6, rtol=0)
        assert without_timing(found) == pytest.approx(without_timing(metrics), abs=1e-6)


def batch_with_dead_groups(dead: int, **changes: Any) -> list[Episode]:
    """Five groups of the same answers; of `dead` of them all rewards are equal."""
    return make_episodes([[1.0] * 4] * dead + [[1.0, 0.0, 0.0, 0.5]] * (5 - dead), seed=3, **changes)


@pytest.mark.parametrize("term", [{"kl": {"coefficient": 0.5}}, {"entropy_coefficient": 0.5}])
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_groups_without_signal_keep_the_gradient_of_every_other_term(loss: str, term: dict[str, Any]) -> None:
    """The gradient of KL and entropy is the same with 0 to 5 dead groups of 5."""
    parts = []
    for dead in range(6):
        episodes = batch_with_dead_groups(dead)
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
        episodes = batch_with_dead_groups(dead)
        found.append((update(trainer, episodes)["kl"], trainer.state_dict()["kl"]["value"]))
    assert found[0] == pytest.approx(found[1])
    assert found[0][1] == pytest.approx(0.5 * (1 + 0.2 * 20 / 100))


def test_kl_is_measured_without_a_coefficient_and_changes_no_gradient() -> None:
    episodes = batch_with_dead_groups(2)
    off_policy = {"updates_per_batch": 2, "minibatches": 2}
    plain, metrics = first_update(episodes, algorithm=off_policy)
    measured, found = first_update(episodes, algorithm={**off_policy, "kl": {"measure": True}})
    assert all(torch.equal(one, other) for one, other in zip(plain, measured, strict=True))
    assert {name: value for name, value in found.items() if name != "kl"} == metrics
    (_,), once = first_update(episodes, algorithm={"kl": {"measure": True}})
    tables = [BigramPolicy().table.detach(), BigramPolicy(seed=1).table]
    of_policy, of_reference = ((table.detach() / TEMPERATURE).log_softmax(-1) for table in tables)
    trained = [one for one in episodes if len({other.rewards["programmer"] for other in episodes
                                               if other.group_id == one.group_id}) > 1]  # fmt: skip
    tokens = [token for one in trained for token in one.turns[0].completion_ids.tolist()]
    states = states_of(trained)
    log_ratio = (of_reference - of_policy)[states, tokens]
    expected = (log_ratio.exp() - log_ratio - 1).mean().item()  # Schulman's k3
    assert once["kl"] == pytest.approx(expected, rel=1e-4)
    assert once["groups/trained"] == len({one.group_id for one in trained}) == 3


class RenewedPolicy(BigramPolicy):
    def sync(self, policy: BigramPolicy) -> None:
        with torch.no_grad():
            self.table.copy_(policy.table)


@pytest.mark.parametrize("averaged", [False, True])
def test_the_reference_becomes_what_it_is_renewed_from(averaged: bool) -> None:
    """Every second step: the policy itself, or another one that was set in its place."""
    policy, reference = BigramPolicy(), RenewedPolicy(seed=1)
    kl = {"coefficient": 0.5, "refresh_every": 2}
    trainer = trainer_of(policy, algorithm={"kl": kl}, reference=reference)
    episodes = make_episodes(REWARDS)
    trainer.collector = SimpleNamespace(sync=lambda _: None, collect=lambda _: (episodes, {}))  # type: ignore[assignment]
    trainer.estimator = ESTIMATORS["grpo"]
    source = trainer.reference_source = BigramPolicy(seed=2) if averaged else policy  # type: ignore[assignment]
    for step in range(2):
        assert not torch.equal(reference.table, source.table)
        trainer.train_step(step)
    assert torch.equal(reference.table, source.table)


def test_entropy_is_steered_to_its_target_and_resumes_bit_for_bit() -> None:
    section = {"entropy_coefficient": 0.01, "entropy_target": 1.8}

    def run(trainer: RLTrainer, steps: range) -> list[dict[str, float]]:
        return [update(trainer, make_episodes(REWARDS, seed=step), step=step) for step in steps]

    trainer = trainer_of(policy := BigramPolicy(), algorithm=section)
    rows = run(trainer, range(4))
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
    assert run(resumed, range(4, 7)) == run(trainer, range(4, 7))
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


def test_infrastructure_failures_leave_the_loss_and_its_average() -> None:
    with_failure = make_episodes([[1.0, 0.0, 0.0, 0.5, 0.0]], failed=(0, 4))
    without = with_failure[:4]
    torch.testing.assert_close(gradient_of_update(with_failure), gradient_of_update(without), rtol=0, atol=0)


def test_truncated_answers_leave_the_loss_but_not_the_baseline() -> None:
    episodes = make_episodes([[1.0, 0.0, 0.0, 0.5]], truncated=True)
    advantages = ESTIMATORS["grpo"](episodes)
    gradients, metrics = first_update(episodes, algorithm={"overlong": {"mask_truncated": True}})
    trainer = trainer_of(policy := BigramPolicy())
    expected = captured_gradients(trainer, policy)
    trainer.update(episodes[1:], Advantages(advantages.advantages[1:]), 0)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=0)
    assert metrics["tokens/trained"] == sum(len(e.turns[0].completion_ids) for e in episodes[1:])


def test_tokens_of_others_are_not_trained_on() -> None:
    (episode, *rest) = make_episodes([[1.0, 0.0]], seed=5)
    (turn,) = episode.turns
    wrote = np.arange(len(turn.completion_ids)) % 2 == 0
    masked = replace(episode, turns=(replace(turn, policy_wrote_T=wrote),))
    _, metrics = first_update([masked, *rest])
    assert metrics["tokens/trained"] == wrote.sum() + len(rest[0].turns[0].completion_ids)


def test_minibatches_take_whole_groups_in_turn_on_every_pass() -> None:
    episodes = make_episodes(REWARDS)
    gradients, metrics = first_update(episodes, algorithm={"updates_per_batch": 2, "minibatches": 3})
    torch.testing.assert_close(gradients[0], gradient_of_update(episodes[:4]), atol=1e-6, rtol=0)
    assert metrics["updates/applied"] == len(gradients) == 6
    assert metrics["approx_kl"] > 0 and metrics["ratio/max"] > 1


def test_later_passes_measure_the_ratio_from_the_policy_before_the_first() -> None:
    """Two passes over one batch equal PPO by hand: step, then a step with old = initial log-probs."""
    episodes = make_episodes(REWARDS)
    algorithm = {"updates_per_batch": 2, "loss": "reinforce"}
    gradients, _ = first_update(episodes, algorithm=algorithm, learning_rate=0.3)

    moved = BigramPolicy()
    first = trainer_of(moved, algorithm={"loss": "reinforce"}, learning_rate=0.3)
    update(first, episodes)
    table, initial = moved.table, BigramPolicy().table.detach()
    states, tokens = states_of(episodes), np.concatenate([e.turns[0].completion_ids for e in episodes])
    new, old = ((each / TEMPERATURE).softmax(-1)[states, tokens] for each in (table, initial))
    advantages = np.concatenate([turn for (turn,) in ESTIMATORS["grpo"](episodes).advantages])
    objective = (new / old * torch.from_numpy(advantages)).sum()
    (expected,) = torch.autograd.grad(-objective / len(episodes), table)
    torch.testing.assert_close(gradients[1], expected, atol=1e-5, rtol=1e-5)


def test_gradient_norm_is_reported_before_clipping() -> None:
    episodes = make_episodes(REWARDS)
    norm = float(gradient_of_update(episodes).norm())
    (clipped,), metrics = first_update(episodes, max_grad_norm=norm / 10)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert float(clipped.norm()) == pytest.approx(norm / 10, rel=1e-4)


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
    assert update(trainer, episodes)["updates/applied"] == policy.version == 1


def test_entropy_and_ratio_metrics_are_means_over_trained_tokens() -> None:
    episodes = make_episodes(REWARDS)
    _, metrics = first_update(episodes, micro_batch_sequences=5)
    assert metrics["entropy"] == pytest.approx(entropies(episodes).mean())
    assert metrics["ratio/mean"] == pytest.approx(1.0)
    assert metrics["clip/low"] == metrics["clip/high"] == metrics["approx_kl"] == 0
    assert metrics["groups/trained"] == 3


@pytest.mark.parametrize("dead", range(6))
@pytest.mark.parametrize(
    "algorithm", [{}, {"kl": {"coefficient": 0.1}}, {"overlong": {"mask_truncated": True}}]
)
def test_entropy_is_that_of_all_scored_answers(dead: int, algorithm: dict[str, Any]) -> None:
    """Groups without signal and truncated answers count; those that infrastructure failed do not.

    Of answers without a gradient the sampler's surprisal is the estimate.
    """
    episodes = batch_with_dead_groups(dead, failed=(4, 1), truncated=True)
    scored = [episode for episode in episodes if episode.scored]
    masked = algorithm.get("overlong") is not None
    with_gradient = {
        group
        for group in {episode.group_id for episode in scored}
        if "kl" in algorithm or len({e.rewards["programmer"] for e in scored if e.group_id == group}) > 1
    }
    of_each = [
        entropies([episode])
        if episode.group_id in with_gradient and not (masked and episode.truncated)
        else surprisals([episode])
        for episode in scored
    ]
    _, metrics = first_update(episodes, algorithm=algorithm)
    assert metrics["entropy"] == pytest.approx(np.concatenate(of_each).mean())


@pytest.mark.parametrize("seed", range(5))
def test_the_estimate_of_the_entropy_of_what_has_no_gradient_is_unbiased(seed: int) -> None:
    """Of 6,000 tokens that the policy sampled: within four standard errors of the exact value."""
    rng = np.random.default_rng(seed)
    logprobs = (BigramPolicy().table.detach() / TEMPERATURE).log_softmax(-1).double().numpy()
    episodes = []
    for group in range(300):
        state, tokens, found = 1, [], []
        for _ in range(20):
            chances = np.exp(logprobs[state])
            token = int(rng.choice(len(chances), p=chances / chances.sum()))
            tokens.append(token)
            found.append(logprobs[state, token])
            state = token
        turn = make_turn((1,), np.array(tokens), logprobs_T=np.float32(found), temperature=TEMPERATURE)
        episodes.append(judged_episode((turn,), {"programmer": 0.0}, group, Status.FAILED))
    _, metrics = first_update(episodes)
    error = (surprisals(episodes) - entropies(episodes)).std() / np.sqrt(6000)
    assert "loss" not in metrics and 0 < error < 0.02
    assert metrics["entropy"] == pytest.approx(entropies(episodes).mean(), abs=4 * error)


def test_entropy_is_that_of_all_answers_where_the_update_ends_early() -> None:
    """The step on the first of eight minibatches is small, but larger than `max_step_kl` allows."""
    episodes = make_episodes([[1.0, 0.0]] * 8)
    algorithm = {"minibatches": 8, "max_step_kl": 1e-9, "loss": "ppo"}
    _, metrics = first_update(episodes, algorithm=algorithm, learning_rate=1e-3)
    assert metrics["updates/stopped_early"] == 1 and metrics["updates/applied"] == 1
    # The second minibatch is looked at, after the step on the first; the others have no forward pass.
    of_each = [
        entropies([episode]) if episode.group_id in (0, 1) else surprisals([episode]) for episode in episodes
    ]
    assert metrics["entropy"] == pytest.approx(np.concatenate(of_each).mean(), rel=5e-3)


def test_minibatches_are_shuffled_anew_between_passes_by_seed_and_step() -> None:
    """Every pass takes every group once; which of them share a step changes, and only with the seed."""
    episodes = make_episodes([[1.0, 0.0, 0.5]] * 8, seed=1)

    def gradients(seed: int, step: int) -> list[Tensor]:
        algorithm = {"updates_per_batch": 4, "minibatches": 4, "loss": "reinforce"}
        return first_update(episodes, step=step, algorithm=algorithm, seed=seed, learning_rate=1e-9)[0]

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


def test_learning_rate_ends_at_the_final_rate() -> None:
    trainer = trainer_of(BigramPolicy(), schedule="linear", max_steps=10, learning_rate=0.1, final_rate=0.5)
    dead = make_episodes([[0.0, 0.0]])
    assert update(trainer, dead, step=6)["learning_rate"] == pytest.approx(0.1 * (1 - 0.5 * 0.6))


def test_kl_without_a_reference_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="reference"):
        trainer_of(BigramPolicy(), algorithm={"kl": {"coefficient": 0.1}})
