"""Which device and data type a model computes with."""

from __future__ import annotations

import pytest
import torch

from greenward.common.errors import ConfigError
from greenward.models.devices import check_training_dtype, resolve_device, resolve_dtype
from greenward.models.memory import free_bytes, peak_mb

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["auto", "cpu", torch.device("cpu")])
def test_the_processor_is_always_there(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(name) == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "gpu", "cpu:7", ""])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"model.device is .*finds cpu here"):
        resolve_device(name)


def test_an_index_beyond_the_last_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="finds cpu, cuda:0, cuda:1 here"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("feature", ["avx512_bf16", "amx_bf16"])
@pytest.mark.parametrize("there", [True, False])
def test_auto_is_bfloat16_where_the_processor_multiplies_it(monkeypatch, feature, there):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {feature: there}, raising=False)
    assert resolve_dtype("auto", CPU) is (torch.bfloat16 if there else torch.float32)


def test_auto_is_float32_with_a_torch_that_cannot_tell(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert resolve_dtype("auto", CPU) is torch.float32


def test_apples_gpu_is_taken_by_name_only_and_computes_in_float32(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto") == CPU
    mps = resolve_device("mps")
    assert mps == torch.device("mps")
    assert resolve_dtype("auto", mps) is torch.float32
    check_training_dtype("auto", mps)
    check_training_dtype("float32", mps)
    for dtype in ("bfloat16", "float16"):
        with pytest.raises(ConfigError, match="mps"):
            check_training_dtype(dtype, mps)
    with pytest.raises(ConfigError, match="finds cpu, mps here"):
        resolve_device("cuda")


def test_memory_of_apples_gpu_is_that_of_the_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: pytest.fail("CUDA was asked"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: pytest.fail("CUDA was asked"))
    mps = torch.device("mps")
    assert free_bytes(mps) == pytest.approx(free_bytes(CPU), rel=0.5)
    assert peak_mb(mps) == pytest.approx(peak_mb(CPU), rel=0.5)
