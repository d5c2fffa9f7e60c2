from __future__ import annotations

import math

import pytest
import torch
from learning import LossInputs, loss_of
from torch import Tensor

from greenward.algorithms.batches import BatchTotals
from greenward.algorithms.losses import KL_ESTIMATORS, LOSSES, LossOutput
from greenward.config.algorithm import GRPOAlgorithmConfig, KLConfig

MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
TOTALS = BatchTotals(sequences=3, tokens=9, max_completion_tokens=10)


def make_inputs(seed: int = 0, *, old: bool = True, ref: bool = True, sampler: bool = True) -> LossInputs:
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(MASK.shape, generator=generator, dtype=torch.float64)

    logprobs = -noise(1).abs()
    return LossInputs(
        logprobs_BT=logprobs.clone().requires_grad_(),
        advantages_BT=noise(1)[:, :1].expand_as(logprobs),
        mask_BT=MASK,
        old_logprobs_BT=logprobs + noise(0.3) if old else None,
        ref_logprobs_BT=logprobs + noise(0.3) if ref else None,
        sampler_logprobs_BT=logprobs + noise(0.3) if sampler else None,
    )


def algorithm(loss: str = "dapo", **changes: object) -> GRPOAlgorithmConfig:
    return GRPOAlgorithmConfig.model_validate({"loss": loss, **changes})


def gradient(output: LossOutput, inputs: LossInputs) -> Tensor:
    return torch.autograd.grad(output.loss, inputs.logprobs_BT)[0]


def rows(inputs: LossInputs, start: int, stop: int) -> LossInputs:
    return LossInputs(**{name: None if v is None else v[start:stop] for name, v in vars(inputs).items()})


def test_each_average_weighs_tokens_as_its_paper_says() -> None:
    inputs = make_inputs(old=False, ref=False, sampler=False)
    advantages = inputs.advantages_BT[:, 0]
    lengths = MASK.sum(-1)
    expected = {
        "grpo": -advantages.mean(),
        "gspo": -advantages.mean(),
        "dr_grpo": -(advantages * lengths).sum() / (3 * 10),
        "dapo": -(advantages * lengths).sum() / 9,
        "ppo": -(advantages * lengths).sum() / 9,
        "reinforce": -(advantages * lengths).sum() / 3,
        "cispo": -(advantages[:, None] * inputs.logprobs_BT.detach() * MASK).sum() / 9,
    }
    assert set(expected) == set(LOSSES)
    for loss, value in expected.items():
        assert loss_of(inputs, TOTALS, algorithm(loss)).loss.item() == pytest.approx(float(value))


def test_gspo_ratio_is_the_geometric_mean_of_the_tokens() -> None:
    """arXiv 2507.18071, eq. 5-7, written out by hand for one sequence inside the clipping bounds."""
    inputs = make_inputs(ref=False, sampler=False)
    assert inputs.old_logprobs_BT is not None
    log_ratio = (inputs.logprobs_BT - inputs.old_logprobs_BT).detach()
    ratios = [
        math.exp(sum(row[keep].tolist()) / int(keep.sum())) for row, keep in zip(log_ratio, MASK, strict=True)
    ]
    clipped = [min(max(s, 1 - 0.2), 1 + 0.2) for s in ratios]
    advantages = inputs.advantages_BT[:, 0].tolist()
    objective = sum(min(s * a, c * a) for s, c, a in zip(ratios, clipped, advantages, strict=True)) / 3
    assert loss_of(inputs, TOTALS, algorithm("gspo")).loss.item() == pytest.approx(-objective)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_on_policy_gradient_is_that_of_the_policy_gradient_theorem(loss: str) -> None:
    """With old = current every loss has the gradient -A grad log p, up to its averaging weights."""
    inputs = make_inputs(old=False, ref=False, sampler=False)
    grad = gradient(loss_of(inputs, TOTALS, algorithm(loss)), inputs)
    per_sequence = (1 / MASK.sum(-1, keepdim=True)).expand(MASK.shape) / 3
    constant = {"dapo": 1 / 9, "ppo": 1 / 9, "cispo": 1 / 9, "dr_grpo": 1 / 30, "reinforce": 1 / 3}
    weight = per_sequence if loss in ("grpo", "gspo") else constant[loss]
    torch.testing.assert_close(grad, (-inputs.advantages_BT * weight * MASK).double(), check_dtype=False)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_first_update_without_old_logprobs_equals_old_equal_to_current(loss: str) -> None:
    absent = make_inputs(old=False)
    present = LossInputs(**{**vars(absent), "old_logprobs_BT": absent.logprobs_BT.detach()})
    config = algorithm(loss, kl={"coefficient": 0.1}, importance_cap=2.0)
    first, second = (loss_of(inputs, TOTALS, config) for inputs in (absent, present))
    torch.testing.assert_close(gradient(first, absent), gradient(second, absent), rtol=0, atol=0)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_micro_batch_losses_add_up_to_the_batch_loss(loss: str) -> None:
    inputs = make_inputs()
    config = algorithm(loss, kl={"coefficient": 0.1}, importance_cap=1.1)
    whole = loss_of(inputs, TOTALS, config)
    parts = [loss_of(rows(inputs, *cut), TOTALS, config) for cut in ((0, 1), (1, 3))]
    torch.testing.assert_close(sum(part.loss for part in parts), whole.loss)
    for name, value in whole.sums.items():
        torch.testing.assert_close(sum(part.sums[name] for part in parts), value)


def test_clipping_stops_the_gradient_only_where_it_would_push_further_out() -> None:
    ratios = torch.tensor([[0.5, 0.5, 1.5, 1.5, 1.0]], dtype=torch.float64)
    advantages = torch.tensor([[-1.0, 1.0, 1.0, -1.0, 1.0]], dtype=torch.float64)
    logprobs = torch.full_like(ratios, -1.0).requires_grad_()
    inputs = LossInputs(
        logprobs, advantages, torch.ones(1, 5, dtype=torch.bool), logprobs.detach() - ratios.log()
    )
    output = loss_of(inputs, BatchTotals(1, 5, 5), algorithm("dapo", clip_low=0.2, clip_high=0.28))
    moving = (gradient(output, inputs) != 0)[0].tolist()
    assert moving == [False, True, False, True, True]
    assert float(output.sums["clip/low"]) == 1 and float(output.sums["clip/high"]) == 1
    assert float(output.sums["ratio/mean"]) == pytest.approx(5.0)
    assert float(output.maxima["ratio/max"]) == pytest.approx(1.5)


def test_upper_bound_is_apart_from_the_lower_one() -> None:
    logprobs = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    old = -torch.tensor([[1.25, 0.75]], dtype=torch.float64).log()
    inputs = LossInputs(logprobs, torch.tensor([[1.0, -1.0]]), torch.ones(1, 2, dtype=torch.bool), old)
    output = loss_of(inputs, BatchTotals(1, 2, 2), algorithm("dapo", clip_low=0.2, clip_high=0.28))
    assert (gradient(output, inputs) != 0)[0].tolist() == [True, False]


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    logprobs = torch.full((1, 2), -0.5, dtype=torch.float64, requires_grad=True)
    old = logprobs.detach() - torch.tensor([[3.0, 0.1]], dtype=torch.float64).log()
    inputs = LossInputs(logprobs, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), old)
    output = loss_of(inputs, BatchTotals(1, 2, 2), algorithm("cispo", clip_high=0.5))
    torch.testing.assert_close(
        gradient(output, inputs), torch.tensor([[-1.5 / 2, -0.1 / 2]], dtype=torch.float64)
    )


def test_importance_of_the_sampler_is_truncated_at_the_cap() -> None:
    logprobs = torch.full((1, 2), -1.0, dtype=torch.float64, requires_grad=True)
    sampler = logprobs.detach() - torch.tensor([[3.0, 0.5]], dtype=torch.float64).log()
    inputs = LossInputs(logprobs, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), None, None, sampler)
    output = loss_of(inputs, BatchTotals(1, 2, 2), algorithm(importance_cap=2.0))
    assert gradient(output, inputs)[0].tolist() == pytest.approx([-2.0 / 2, -0.5 / 2])
    sums = {name: float(value) for name, value in output.sums.items()}
    assert sums["importance/mean"] == pytest.approx(3.5)
    assert sums["importance/mean_capped"] == pytest.approx(2.5)
    assert sums["importance/capped"] == 1


def test_without_a_cap_the_mismatch_is_measured_but_not_corrected() -> None:
    inputs = make_inputs(old=False, ref=False)
    blind = LossInputs(**{**vars(inputs), "sampler_logprobs_BT": None})
    measured, unmeasured = (loss_of(each, TOTALS, algorithm()) for each in (inputs, blind))
    assert float(measured.loss) == float(unmeasured.loss)
    assert float(measured.sums["importance/kl"]) > 0
    assert "importance/mean" not in unmeasured.sums


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_padding_may_hold_anything(loss: str) -> None:
    config = algorithm(loss, kl={"coefficient": 0.1}, importance_cap=1.5)
    clean = make_inputs()
    dirty = LossInputs(
        logprobs_BT=clean.logprobs_BT.detach().masked_fill(~MASK, float("-inf")).requires_grad_(),
        advantages_BT=clean.advantages_BT,
        mask_BT=MASK,
        old_logprobs_BT=clean.old_logprobs_BT.masked_fill(~MASK, float("nan")),  # type: ignore[union-attr]
        ref_logprobs_BT=clean.ref_logprobs_BT.masked_fill(~MASK, float("inf")),  # type: ignore[union-attr]
        sampler_logprobs_BT=clean.sampler_logprobs_BT.masked_fill(~MASK, float("-inf")),  # type: ignore[union-attr]
    )
    expected, found = loss_of(clean, TOTALS, config), loss_of(dirty, TOTALS, config)
    torch.testing.assert_close(gradient(found, dirty), gradient(expected, clean))
    torch.testing.assert_close(found.sums, expected.sums)


@pytest.mark.parametrize("estimator", sorted(KL_ESTIMATORS))
def test_kl_gradient_is_unbiased_on_and_off_policy(estimator: str) -> None:
    """Summed over a whole vocabulary of 5, weighted by the old policy, against autograd on the true KL."""
    generator = torch.Generator().manual_seed(3)
    logits, old, reference = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    logprobs, old_logprobs = logits.log_softmax(-1), old.log_softmax(-1)
    log_ratio = logprobs - reference.log_softmax(-1)
    (true_gradient,) = torch.autograd.grad((logprobs.exp() * log_ratio).sum(), logits, retain_graph=True)
    estimate = KL_ESTIMATORS[estimator](log_ratio, (logprobs - old_logprobs).exp())
    (estimated,) = torch.autograd.grad((old_logprobs.exp() * estimate).sum(), logits)
    torch.testing.assert_close(estimated, true_gradient)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_value_is_unbiased(estimator: str) -> None:
    logits, reference = torch.randn(2, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    logprobs, ref_logprobs = logits.log_softmax(-1), reference.log_softmax(-1)
    exact = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=logits), torch.distributions.Categorical(logits=reference)
    )
    estimate = KL_ESTIMATORS[estimator](logprobs - ref_logprobs, torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close((logprobs.exp() * estimate).sum(), exact)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_is_reported_and_scaled_by_its_coefficient(estimator: str) -> None:
    inputs = make_inputs(old=False, sampler=False)
    without = loss_of(inputs, TOTALS, algorithm())
    config = GRPOAlgorithmConfig(kl=KLConfig(coefficient=0.5, estimator=estimator))  # type: ignore[arg-type]
    output = loss_of(inputs, TOTALS, config)
    assert float(output.loss - without.loss) == pytest.approx(0.5 * float(output.sums["kl"]) / 9)
