"""KL and entropy terms of every loss against the exact gradients of an autoregressive table of 3 tokens."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from greenward.config.sections import GRPOAlgorithmConfig
from greenward.training.losses import KL_ESTIMATORS, LOSSES
from learning import LossInputs, loss_of

VOCABULARY = LENGTH = 3
ANSWERS = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
PREFIXES = [answer for n in range(LENGTH) for answer in itertools.product(range(VOCABULARY), repeat=n)]
TOTALS = (1, LENGTH, LENGTH)

Table = dict[tuple[int, ...], Tensor]


def table(seed: int) -> Table:
    """Log-probabilities (V,) of the next token after each prefix."""
    generator = torch.Generator().manual_seed(seed)
    return {
        prefix: torch.randn(VOCABULARY, generator=generator, dtype=torch.float64).log_softmax(-1)
        for prefix in PREFIXES
    }


def trainable(seed: int) -> tuple[Table, list[Tensor]]:
    logits = {prefix: values.clone().requires_grad_() for prefix, values in table(seed).items()}
    return {prefix: values.log_softmax(-1) for prefix, values in logits.items()}, list(logits.values())


def logprobs_of(answer: tuple[int, ...], policy: Table) -> Tensor:
    return torch.stack([policy[answer[:t]][token] for t, token in enumerate(answer)])


def visits(policy: Table) -> dict[tuple[int, ...], float]:
    """How often sampling from the policy reaches each prefix."""
    return {
        prefix: math.exp(sum(policy[prefix[:t]][token].item() for t, token in enumerate(prefix)))
        for prefix in PREFIXES
    }


def expected_gradient(policy: Table, parameters: list[Tensor], sampler: Table, **settings: object) -> Tensor:
    """Of the loss without advantages, over all answers that `sampler` may give."""
    algorithm = GRPOAlgorithmConfig.model_validate(settings)
    reference = table(9)
    expectation = torch.zeros((), dtype=torch.float64)
    for answer in ANSWERS:
        prefixes = [answer[:t] for t in range(LENGTH)]
        old = logprobs_of(answer, sampler).detach()
        inputs = LossInputs(
            logprobs_BT=logprobs_of(answer, policy)[None],
            advantages_BT=torch.zeros(1, LENGTH, dtype=torch.float64),
            mask_BT=torch.ones(1, LENGTH, dtype=torch.bool),
            old_logprobs_BT=None if sampler is policy else old[None],
            ref_logprobs_BT=logprobs_of(answer, reference)[None],
            entropy_BT=torch.stack([-(policy[p].exp() * policy[p]).sum() for p in prefixes])[None],
        )
        expectation = expectation + old.sum().exp() * loss_of(inputs, TOTALS, algorithm).loss
    return torch.stack(torch.autograd.grad(expectation, parameters))


def exact_gradient(policy: Table, parameters: list[Tensor], sampler: Table, term: str, loss: str) -> Tensor:
    """Of the expected term at the prefixes that `sampler` visits, with the loss's average."""
    reference, frequency = table(9), visits(sampler)
    total = torch.zeros((), dtype=torch.float64)
    for prefix in PREFIXES:
        against = torch.zeros_like(reference[prefix]) if term == "entropy" else reference[prefix]
        total = total + frequency[prefix] * (policy[prefix].exp() * (policy[prefix] - against)).sum()
    scale = 1.0 if loss == "reinforce" else 1 / LENGTH
    return scale * torch.stack(torch.autograd.grad(total, parameters))


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("term", [*sorted(KL_ESTIMATORS), "entropy"])
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_kl_term_and_entropy_bonus_have_the_exact_gradient_in_every_loss(
    loss: str, term: str, off_policy: bool
) -> None:
    """The loss falls by 0.7 of the entropy; p (log p) summed over tokens is the negative entropy."""
    settings: dict[str, object] = {"kl": {"coefficient": 0.7, "estimator": term}}
    if term == "entropy":
        settings = {"entropy_coefficient": 0.7}
    policy, parameters = trainable(0)
    sampler = table(5) if off_policy else policy
    found = expected_gradient(policy, parameters, sampler, loss=loss, **settings)
    policy, parameters = trainable(0)
    exact = exact_gradient(policy, parameters, sampler if off_policy else policy, term, loss)
    assert exact.abs().max() > 1e-2
    torch.testing.assert_close(found, 0.7 * exact, atol=1e-12, rtol=0)


def test_entropy_of_padding_does_not_count() -> None:
    mask = torch.tensor([[True, True, False]])
    zeros = torch.zeros(1, 3, dtype=torch.float64)
    inputs = LossInputs(zeros, zeros, mask, entropy_BT=torch.tensor([[1.0, 2.0, math.nan]]))
    output = loss_of(inputs, (1, 2, 3), GRPOAlgorithmConfig(loss="dapo", entropy_coefficient=0.1))
    assert float(output.loss) == pytest.approx(-0.1 * 1.5)
