"""Which device and data type a model computes with, and threads that do not get their cores."""

from __future__ import annotations

import pytest
import torch

from greenward.common.errors import ConfigError
from greenward.models import policy
from greenward.models.policy import resolve_device, resolve_dtype

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


@pytest.fixture
def set_to(monkeypatch):
    """Two threads, and the numbers of threads that are set."""
    numbers = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    yield numbers
    monkeypatch.undo()


def speeds(monkeypatch, *products_per_second):
    found = iter(products_per_second)
    monkeypatch.setattr(policy, "_products_per_second", lambda: next(found))


def test_threads_that_are_slower_than_one_are_said_with_a_remedy(monkeypatch, set_to):
    speeds(monkeypatch, 3.0, 10.0)
    said = policy.contended_threads()
    assert "2 threads compute at 0.30 times the speed of one" in said
    assert "training.threads=1" in said
    assert set_to == [1, 2]


def test_idle_cores_and_a_single_thread_are_not_mentioned(monkeypatch, set_to):
    speeds(monkeypatch, 18.0, 10.0)
    assert policy.contended_threads() is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert policy.contended_threads() is None
