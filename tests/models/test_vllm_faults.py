"""A server that restarts, fails, dies, or is another one than the training needs."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from engines import engine_over, make_policy

from greenward.common.errors import ConfigError, EngineError
from greenward.config.sections import LoraConfig, ServerConfig
from greenward.models.tokenizer import train_tokenizer
from greenward.models.vllm import Server
from greenward.rollouts.protocols import SamplingParams
from vllm_server import VLLMServer

PROMPTS = [[5, 6, 7], [9] * 12, [4, 8, 15, 16, 23, 42], [30, 31]]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
GENERATE = "/inference/v1/generate"


@pytest.fixture(scope="module")
def start(tokenizer, tmp_path_factory) -> Path:
    """A folder of other weights than those that are trained."""
    folder = tmp_path_factory.mktemp("served") / "start"
    make_policy(tokenizer, seed=7).save(folder)
    return folder


def server_of(fake: VLLMServer, seconds: float = 20.0) -> Server:
    return Server(ServerConfig(base_url=f"{fake.url}/v1", patience_seconds=seconds))


def at(place: str, numbers: set[int], fault: str) -> Callable[[str, int], str | None]:
    return lambda path, n: fault if path == place and n in numbers else None


@pytest.mark.parametrize("numbers", [{1}, {3}, {2, 6}])
def test_a_server_that_restarted_gets_the_weights_again_and_no_answer_is_from_its_own(
    start, tokenizer, tmp_path, numbers
) -> None:
    policy = make_policy(tokenizer)
    policy.version = 4
    handed: list[int] = []
    with (
        VLLMServer(start, at(GENERATE, numbers, "restart")) as fake,
        engine_over(server_of(fake), policy, tmp_path / "sent", patience_seconds=20.0) as engine,
    ):
        groups = engine.sample(PROMPTS, 2, GREEDY, seed=0, on_group=lambda n, _: handed.append(n))
        assert fake.requests["/update_weights"] == 1 + len(numbers)
        assert fake.sampled_while_updating == 0
    expected = policy.sample(PROMPTS, 2, GREEDY, seed=0)
    for one, other in zip(chain(*groups), chain(*expected), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist() and one.policy_version == 4
    assert sorted(handed) == [0, 1, 2, 3]


def test_a_server_that_restarts_again_and_again_ends_in_an_error(start, tokenizer, tmp_path) -> None:
    policy = make_policy(tokenizer)
    with (
        VLLMServer(start, at(GENERATE, set(range(100)), "restart")) as fake,
        engine_over(server_of(fake), policy, tmp_path / "sent", patience_seconds=5.0) as engine,
        pytest.raises(EngineError, match="lost the weights of the policy 3 times"),
    ):
        engine.sample(PROMPTS, 2, GREEDY, seed=0)


@pytest.mark.parametrize("fault", ["cut", "500"])
def test_requests_that_fail_are_repeated(start, tokenizer, tmp_path, fault) -> None:
    policy = make_policy(tokenizer)
    with (
        VLLMServer(start, at(GENERATE, {1, 3}, fault)) as fake,
        engine_over(server_of(fake), policy, tmp_path / "sent") as engine,
    ):
        assert list(map(len, engine.sample(PROMPTS, 2, GREEDY, seed=0))) == [2, 2, 2, 2]
        assert fake.requests[GENERATE] == 6


@pytest.mark.parametrize(
    "place",
    [
        *("/pause", "/update_weights"),
        *(pytest.param(f"/{one}_weight_update", marks=pytest.mark.slow) for one in ("start", "finish")),
    ],
)
def test_an_update_of_weights_that_fails_is_repeated_as_a_whole(start, tokenizer, tmp_path, place) -> None:
    policy = make_policy(tokenizer)
    with (
        VLLMServer(start, at(place, {2}, "500")) as fake,
        engine_over(server_of(fake), policy, tmp_path / "sent", patience_seconds=20.0) as engine,
    ):
        policy.model.embedding.data.mul_(0.5)
        policy.version = 1
        engine.sync(policy)
        groups = engine.sample(PROMPTS, 1, GREEDY, seed=0)
        assert not fake.updating and not fake.paused
    expected = policy.sample(PROMPTS, 1, GREEDY, seed=0)
    for one, other in zip(chain(*groups), chain(*expected), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist() and one.policy_version == 1


def test_an_adapter_is_sent_merged_into_the_weights(start, tokenizer, tmp_path) -> None:
    pytest.importorskip("peft", reason="needs the extra peft")
    policy = make_policy(tokenizer)
    policy.add_adapter(LoraConfig(r=4), seed=0)
    with VLLMServer(start) as fake, engine_over(server_of(fake), policy, tmp_path / "sent") as engine:
        before = engine.sample(PROMPTS, 1, GREEDY, seed=0)
        with torch.no_grad():
            for parameter in policy.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.3)
        policy.version += 1
        engine.sync(policy)
        after = engine.sample(PROMPTS, 1, GREEDY, seed=0)
    expected = policy.sample(PROMPTS, 1, GREEDY, seed=0)
    for one, other, old in zip(chain(*after), chain(*expected), chain(*before), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist() != old.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-3)


def test_a_server_that_has_died_is_an_engine_error(start, tokenizer, tmp_path) -> None:
    policy = make_policy(tokenizer)
    with (
        VLLMServer(start, at(GENERATE, set(range(100)), "cut")) as fake,
        engine_over(server_of(fake, 0.5), policy, tmp_path / "sent") as engine,
        pytest.raises(EngineError, match=r"127\.0\.0\.1.*connection failed"),
    ):
        engine.sample(PROMPTS, 2, GREEDY, seed=0)


def refusal(fake: VLLMServer, tokenizer, model: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        server_of(fake).check(model, tokenizer)
    return str(caught.value)


def test_a_server_that_cannot_take_part_is_refused(start, tokenizer) -> None:
    with VLLMServer(start) as fake:
        assert server_of(fake).check("tiny", tokenizer) == fake.max_model_len
        assert "expected one of tiny, found big" in refusal(fake, tokenizer, "big")
        assert "whose tokens are not those of the policy" in refusal(
            fake, train_tokenizer(["x = 1\n", "class A: pass\n"] * 5, 280)
        )
        fake.raw_logprobs = True
        assert "before top_k and temperature" in refusal(fake, tokenizer)
    with VLLMServer(start, at("/resume", {1}, "dev")) as fake:
        assert "VLLM_SERVER_DEV_MODE=1 vllm serve" in refusal(fake, tokenizer)


def test_a_server_that_does_not_answer_is_refused_before_the_training() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EngineError, match="connection failed") as caught:
        Server(ServerConfig(base_url=url)).check(None)
    assert "vllm serve MODEL" in str(caught.value)
