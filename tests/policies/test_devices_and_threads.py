"""A device that is not there, and threads that do not get their cores."""

from __future__ import annotations

import pytest
import torch

from greenward.errors import ConfigError
from greenward.policies import threads
from greenward.policies.policy import resolve_device


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


def test_threads_that_are_slower_than_one_are_said_with_a_remedy(monkeypatch):
    speeds = iter([3.0, 10.0])
    monkeypatch.setattr(threads, "_products_per_second", lambda: next(speeds))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    said = threads.contended_threads()
    assert "2 threads compute at 0.30 times the speed of one" in said
    assert "training.threads=1" in said
    assert set_to == [1, 2]


def test_idle_cores_and_a_single_thread_are_not_mentioned(monkeypatch):
    assert threads.contention_advice(2, 1.8) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert threads.contended_threads() is None
