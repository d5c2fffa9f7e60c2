"""The data type that `auto` means."""

import pytest
import torch

from greenward.policies.policy import resolve_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize("feature", ["avx512_bf16", "amx_bf16"])
@pytest.mark.parametrize("there", [True, False])
def test_auto_is_bfloat16_where_the_processor_multiplies_it(monkeypatch, feature, there):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {feature: there}, raising=False)
    assert resolve_dtype("auto", CPU) is (torch.bfloat16 if there else torch.float32)


def test_auto_is_float32_with_a_torch_that_cannot_tell(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert resolve_dtype("auto", CPU) is torch.float32
