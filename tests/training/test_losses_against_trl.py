from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from record_trl_losses import (
    CLIP_HIGH,
    CLIP_LOW,
    IMPORTANCE_CAP,
    MAX_COMPLETION_TOKENS,
    RECORD,
    cases,
    tensors,
)

from greenward.config.sections import GRPOAlgorithmConfig, ImportanceConfig, KLConfig
from learning import LossInputs, loss_of


def our_loss(case: dict[str, Any], given: dict[str, Any]) -> tuple[float, torch.Tensor]:
    tensor = {name: torch.tensor(value) for name, value in given.items()}
    logprobs_BT = tensor["logprobs"].requires_grad_()
    mask_BT = tensor["mask"]
    output = loss_of(
        LossInputs(
            logprobs_BT=logprobs_BT,
            advantages_BT=tensor["advantages"][:, None].expand_as(logprobs_BT),
            mask_BT=mask_BT,
            old_logprobs_BT=tensor["old_logprobs"] if case["off_policy"] else None,
            ref_logprobs_BT=tensor["ref_logprobs"] if case["beta"] else None,
            sampler_logprobs_BT=tensor["sampler_logprobs"] if case["importance"] else None,
        ),
        (len(mask_BT), int(mask_BT.sum()), MAX_COMPLETION_TOKENS),
        GRPOAlgorithmConfig(
            loss=case["loss"],
            clip_low=CLIP_LOW,
            clip_high=CLIP_HIGH,
            kl=KLConfig(coefficient=case["beta"], estimator="k3"),
            importance=ImportanceConfig(high=IMPORTANCE_CAP) if case["importance"] else None,
        ),
    )
    (gradient_BT,) = torch.autograd.grad(output.loss, logprobs_BT)
    return float(output.loss.detach()), gradient_BT


def sequence_weighted_kl(case: dict[str, Any], given: dict[str, Any]) -> tuple[float, torch.Tensor]:
    """How TRL's KL term of GSPO differs from ours: it is weighted by the ratio of the sequence."""
    tensor = {name: torch.tensor(value) for name, value in given.items()}
    logprobs_BT = tensor["logprobs"].requires_grad_()
    old_BT = tensor["old_logprobs"] if case["off_policy"] else logprobs_BT.detach()
    mask_BT = tensor["mask"]
    lengths_B1 = mask_BT.sum(-1, keepdim=True)
    log_ratio_BT = (logprobs_BT - old_BT) * mask_BT
    sequence_BT = (log_ratio_BT.sum(-1, keepdim=True) / lengths_B1).exp()
    gap_BT = tensor["ref_logprobs"] - logprobs_BT
    k3_BT = gap_BT.exp() - gap_BT - 1
    difference_BT = (sequence_BT - log_ratio_BT.exp()) * k3_BT * mask_BT / lengths_B1
    value = case["beta"] * difference_BT.sum(-1).mean()
    (gradient_BT,) = torch.autograd.grad(value, logprobs_BT)
    return float(value.detach()), gradient_BT


def name_of(case: dict[str, Any]) -> str:
    parts = [case["loss"], "off_policy" if case["off_policy"] else "on_policy"]
    return "-".join(parts + ["kl"] * bool(case["beta"]) + ["importance"] * case["importance"])


recorded = json.loads(RECORD.read_text())


@pytest.mark.parametrize("case", recorded["cases"], ids=name_of)
def test_loss_and_gradient_equal_those_recorded_from_trl(case: dict[str, Any]) -> None:
    """But for the KL of GSPO: `test_loss_terms.py` shows that ours is exact."""
    given = recorded["tensors"][str(case["seed"])]
    value, gradient_BT = our_loss(case, given)
    if case["loss"] == "gspo" and case["beta"]:
        more, more_BT = sequence_weighted_kl(case, given)
        value, gradient_BT = value + more, gradient_BT + more_BT
    assert value == pytest.approx(case["value"], abs=1e-6)
    torch.testing.assert_close(gradient_BT, torch.tensor(case["gradient"]), atol=1e-6, rtol=0)


def test_every_case_is_recorded_from_the_stated_trl() -> None:
    assert recorded["trl"] == "1.16.0"
    assert [name_of(case) for case in recorded["cases"]] == [name_of(case) for case in cases()]
    assert recorded["tensors"] == {str(case["seed"]): tensors(case["seed"]) for case in cases()}
