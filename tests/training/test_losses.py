from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from greenward.config.sections import GRPOAlgorithmConfig, KLConfig
from greenward.training.batch import MicroBatch
from greenward.training.losses import KL_ESTIMATORS, LOSSES, LossOutput, value_loss
from learning import UNREAD, LossInputs, loss_of

MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
TOTALS = (3, 9, 10)  # sequences, tokens, and the limit of tokens


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
    config = algorithm(loss, kl={"coefficient": 0.1}, importance={"high": 2.0})
    first, second = (loss_of(inputs, TOTALS, config) for inputs in (absent, present))
    torch.testing.assert_close(gradient(first, absent), gradient(second, absent), rtol=0, atol=0)


def test_clipping_stops_the_gradient_only_where_it_would_push_further_out() -> None:
    """Bounds are 0.8 and 1.28: ratios of 1.25 and 0.75 show that they are apart."""
    ratios = torch.tensor([[0.5, 0.5, 1.5, 1.5, 1.0, 1.25, 0.75]], dtype=torch.float64)
    advantages = torch.tensor([[-1.0, 1.0, 1.0, -1.0, 1.0, 1.0, -1.0]], dtype=torch.float64)
    logprobs = torch.full_like(ratios, -1.0).requires_grad_()
    inputs = LossInputs(
        logprobs, advantages, torch.ones_like(ratios, dtype=torch.bool), logprobs.detach() - ratios.log()
    )
    output = loss_of(inputs, (1, 7, 7), algorithm("dapo", clip_low=0.2, clip_high=0.28))
    moving = (gradient(output, inputs) != 0)[0].tolist()
    assert moving == [False, True, False, True, True, True, False]
    assert float(output.sums["clip/low"]) == 2 and float(output.sums["clip/high"]) == 1
    assert float(output.sums["ratio/mean"]) == pytest.approx(7.0)
    assert float(output.maxima["ratio/max"]) == pytest.approx(1.5)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_the_correction_weighs_each_token_by_its_bounded_ratio(loss: str, mode: str, level: str) -> None:
    """Against the definition, token by token: w = r if low <= r <= high, else the nearer bound or 0."""
    low, high = 0.8, 1.25
    inputs = make_inputs(old=True, ref=False)
    plain = LossInputs(**{**vars(inputs), "sampler_logprobs_BT": None})
    expected = gradient(loss_of(plain, TOTALS, algorithm(loss)), plain)
    assert inputs.old_logprobs_BT is not None and inputs.sampler_logprobs_BT is not None
    log_ratios = inputs.old_logprobs_BT - inputs.sampler_logprobs_BT
    weights = torch.zeros_like(expected)
    outside = 0
    for b, t in MASK.nonzero().tolist():
        ratio = math.exp(
            sum(log_ratios[b, MASK[b]].tolist()) if level == "sequence" else float(log_ratios[b, t])
        )
        inside = low <= ratio <= high
        outside += not inside
        weights[b, t] = ratio if inside else 0.0 if mode == "mask" else min(max(ratio, low), high)
    assert 0 < outside < 9
    correction = {"mode": mode, "level": level, "low": low, "high": high}
    output = loss_of(inputs, TOTALS, algorithm(loss, importance=correction))
    if loss == "gspo":  # its ratio has a gradient on every token of the sequence
        if level == "sequence":
            torch.testing.assert_close(gradient(output, inputs), expected * weights[:, :1])
    else:
        torch.testing.assert_close(gradient(output, inputs), expected * weights)
    sums = {name: float(value) for name, value in output.sums.items()}
    assert sums["importance/outside"] == outside
    assert sums["importance/mean_corrected"] == pytest.approx(float(weights.sum()))


def test_the_mismatch_is_measured_before_it_is_corrected() -> None:
    """On a categorical distribution, the mean of the estimate over the sampler's draws is the exact KL."""
    trainer, sampler = torch.randn(2, 6, generator=torch.Generator().manual_seed(1)).double().log_softmax(-1)
    for drawn in range(6):
        inputs = LossInputs(
            trainer[None, [drawn]].requires_grad_(),
            torch.ones(1, 1),
            torch.ones(1, 1, dtype=torch.bool),
            None,
            None,
            sampler[None, [drawn]],
        )
        output = loss_of(inputs, (1, 1, 1), algorithm(importance={"high": 1.1}))
        log_ratio = float(trainer[drawn] - sampler[drawn])
        assert float(output.sums["importance/difference"]) == pytest.approx(abs(log_ratio))
        assert float(output.maxima["importance/max_difference"]) == pytest.approx(abs(log_ratio))
        assert float(output.sums["importance/mean"]) == pytest.approx(math.exp(log_ratio))
        trainer = trainer.detach()
    estimates = (trainer - sampler).exp() - 1 - (trainer - sampler)
    exact = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=sampler), torch.distributions.Categorical(logits=trainer)
    )
    assert float((sampler.exp() * estimates).sum()) == pytest.approx(float(exact))


@pytest.mark.parametrize("bounds", [{"low": 2.0}, {"low": 1.5, "high": 3.0}, {"mode": "mask", "high": 0.9}])
def test_bounds_that_would_drop_what_agrees_are_refused(bounds: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be below|exclude 1"):
        algorithm(importance=bounds)


def test_without_a_correction_the_mismatch_is_measured_but_not_corrected() -> None:
    inputs = make_inputs(old=False, ref=False)
    blind = LossInputs(**{**vars(inputs), "sampler_logprobs_BT": None})
    measured, unmeasured = (loss_of(each, TOTALS, algorithm()) for each in (inputs, blind))
    assert measured.loss.item() == unmeasured.loss.item()
    assert float(measured.sums["importance/kl"]) > 0
    assert "importance/mean" not in unmeasured.sums


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_padding_may_hold_anything(loss: str) -> None:
    config = algorithm(
        loss, kl={"coefficient": 0.1}, importance={"low": 0.9, "high": 1.5, "level": "sequence"}
    )
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
    assert (output.loss - without.loss).item() == pytest.approx(0.5 * output.sums["kl"].item() / 9)


OLD = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
RETURNS = torch.tensor([[1.0, 1.0, -1.0], [0.0, 1.0, 9.0]])
VALUE_MASK = torch.tensor([[True, True, True], [True, True, False]])
VALUE_BATCH = MicroBatch(UNREAD, torch.zeros(2, 3), VALUE_MASK, 2, 5, 3, values_BT=OLD, returns_BT=RETURNS)
VALUES = torch.tensor([[0.1, 0.5, 0.5], [0.05, 1.5, 100.0]])


def test_clipped_error_is_the_larger_one_and_stops_the_gradient() -> None:
    """By hand, clip 0.2: tokens 2 and 5 have moved past the clip towards their returns."""
    values = VALUES.clone().requires_grad_()
    output = value_loss(values, VALUE_BATCH, clip=0.2)
    errors = [0.9**2, max(0.5**2, 0.8**2), max(1.5**2, 1.2**2), 0.05**2, max(0.5**2, 0.8**2)]
    assert output.loss.item() == pytest.approx(sum(errors) / 2 / 5)
    assert output.sums["value/loss"].item() == pytest.approx(sum(errors) / 2)
    assert output.sums["value/clipped"].item() == 2
    output.loss.backward()
    expected = torch.tensor([[-0.9, 0.0, 1.5], [0.05, 0.0, 0.0]]) / 5
    torch.testing.assert_close(values.grad, expected)


def test_without_clip_it_is_half_the_mean_squared_error_over_trained_tokens() -> None:
    output = value_loss(VALUES, VALUE_BATCH, clip=None)
    assert output.loss.item() == pytest.approx(((VALUES - RETURNS)[VALUE_MASK] ** 2).mean().item() / 2)
    assert output.sums["value/clipped"].item() == 0
