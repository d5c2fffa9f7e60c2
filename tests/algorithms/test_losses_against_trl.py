from __future__ import annotations

import importlib.util
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
    make_trainer,
    tensors,
    trl_loss,
)

from greenward.algorithms.losses import BatchTotals, LossInputs, policy_loss
from greenward.config.algorithm import AlgorithmConfig, KLConfig


def our_loss(case: dict[str, Any], given: dict[str, Any]) -> tuple[float, torch.Tensor]:
    tensor = {name: torch.tensor(value) for name, value in given.items()}
    logprobs_BT = tensor["logprobs"].requires_grad_()
    mask_BT = tensor["mask"]
    output = policy_loss(
        LossInputs(
            logprobs_BT=logprobs_BT,
            advantages_BT=tensor["advantages"][:, None].expand_as(logprobs_BT),
            mask_BT=mask_BT,
            old_logprobs_BT=tensor["old_logprobs"] if case["off_policy"] else None,
            ref_logprobs_BT=tensor["ref_logprobs"] if case["beta"] else None,
            sampler_logprobs_BT=tensor["sampler_logprobs"] if case["importance"] else None,
        ),
        BatchTotals(len(mask_BT), int(mask_BT.sum()), MAX_COMPLETION_TOKENS),
        AlgorithmConfig(
            loss=case["loss"],
            clip_low=CLIP_LOW,
            clip_high=CLIP_HIGH,
            kl=KLConfig(coefficient=case["beta"], estimator="k3"),
            importance_cap=IMPORTANCE_CAP if case["importance"] else None,
        ),
    )
    (gradient_BT,) = torch.autograd.grad(output.loss, logprobs_BT)
    return float(output.loss.detach()), gradient_BT


def name_of(case: dict[str, Any]) -> str:
    parts = [case["loss"], "off_policy" if case["off_policy"] else "on_policy"]
    return "-".join(parts + ["kl"] * bool(case["beta"]) + ["importance"] * case["importance"])


recorded = json.loads(RECORD.read_text())


@pytest.mark.parametrize("case", recorded["cases"], ids=name_of)
def test_loss_and_gradient_equal_those_recorded_from_trl(case: dict[str, Any]) -> None:
    value, gradient_BT = our_loss(case, recorded["tensors"][str(case["seed"])])
    assert value == pytest.approx(case["value"], abs=1e-6)
    torch.testing.assert_close(gradient_BT, torch.tensor(case["gradient"]), atol=1e-6, rtol=0)


def test_every_case_is_recorded_from_the_stated_trl() -> None:
    assert recorded["trl"] == "1.16.0"
    assert [name_of(case) for case in recorded["cases"]] == [name_of(case) for case in cases()]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if importlib.util.find_spec("trl") is None:
        pytest.skip("TRL is not installed (benchmarks/requirements-trl.txt)")
    return make_trainer(str(tmp_path_factory.mktemp("trl")))


@pytest.mark.parametrize("case", cases(), ids=name_of)
def test_loss_and_gradient_equal_those_of_the_installed_trl(trainer: Any, case: dict[str, Any]) -> None:
    value, gradient_BT = our_loss(case, tensors(case["seed"]))
    their_value, their_gradient = trl_loss(trainer, case)
    assert value == pytest.approx(their_value, abs=1e-6)
    torch.testing.assert_close(gradient_BT, torch.tensor(their_gradient), atol=1e-6, rtol=0)
