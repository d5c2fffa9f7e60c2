"""A rollout engine over vLLM (0.32): sampling, and new weights by its interfaces for RL.

All that depends on vLLM's version is here, in `vllm_forms.py` and in `vllm_plugin.py`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from greenward.errors import EngineError
from greenward.policies.engine import Completion, OnGroup, SamplingParams, StopReason
from greenward.policies.policy import Policy
from greenward.policies.sampler import check_prompts, per_prompt, row_keys
from greenward.policies.tokenizer import Tokenizer
from greenward.policies.vllm_forms import VLLM, Choice

_RESENT = 3  # times that a server which lost its weights gets them again within one call


@dataclass(eq=False)
class VLLMEngine:
    """A rollout engine over vLLM.

    Every completion says with which weights it was drawn. If those are not the ones that were sent last,
    because a server has restarted, they are sent again and the completion is drawn anew. Not
    `deterministic`: rounding depends on what else is in the batch. Raises `EngineError` where vLLM fails.
    """

    vllm: VLLM
    tokenizer: Tokenizer
    transfer: FileTransfer | DeviceTransfer
    _: KW_ONLY
    max_positions: int
    patience_seconds: float = 0.0
    deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._session = secrets.token_hex(4)  # tells these weights from those of other trainings
        self._version: int | None = None

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]:
        check_prompts(prompts, params, self.max_positions)
        sizes = per_prompt(group_sizes, len(prompts))
        drawn = [1] * len(prompts) if params.temperature == 0 else sizes  # greedy answers are all the same
        pending: dict[int, dict[str, Any]] = {}
        for n, keys in enumerate(row_keys(prompts, sizes, per_prompt(seed, len(prompts)))):
            # vLLM's own seeds of a group count up from this one.
            sampling = self._sampling_params(params) | {"n": drawn[n], "seed": int(keys[0] >> np.uint64(2))}
            pending[n] = {"token_ids": [int(i) for i in prompts[n]], "sampling_params": sampling}
        groups: list[list[Completion]] = [[] for _ in prompts]
        for _ in range(_RESENT):
            if pending and self.vllm.weight_version() != self._label:
                self._send(self.transfer.again, self.patience_seconds)
            for n, choices in self.vllm.generate(dict(pending)):
                if any(span != self._label for choice in choices for span in choice["weight_versions"]):
                    continue
                if len(choices) != drawn[n]:
                    raise EngineError(f"vLLM gave {len(choices)} answers where {drawn[n]} were asked for.")
                groups[n] = [self._completion(choice, params) for choice in choices] * (sizes[n] // drawn[n])
                del pending[n]
                if on_group is not None:
                    on_group(n, groups[n])
            if not pending:
                return groups
        raise EngineError(f"vLLM lost the weights of the policy {_RESENT} times while it sampled.")

    def sync(self, policy: Policy) -> None:
        """Send the weights of `policy`, unless vLLM has them."""
        if self._version == policy.version:
            return
        first, self._version = self._version is None, policy.version
        self._send(partial(self.transfer, policy), patience_seconds=0.0 if first else self.patience_seconds)

    @property
    def _label(self) -> str:
        return f"greenward-{self._session}/{self._version}"

    def _send(self, transfer: Callable[[VLLM], None], patience_seconds: float) -> None:
        end, wait = time.monotonic() + patience_seconds, 1.0
        while True:
            try:
                self.vllm.pause()
                transfer(self.vllm)
                self.vllm.call("update_weight_version", new_version=self._label)
                self.vllm.resume()
                return
            except EngineError:
                if time.monotonic() + wait > end:
                    raise
                time.sleep(wait)
                wait = min(2 * wait, 30.0)
                with suppress(EngineError):  # an update that was begun would refuse the next one
                    self.vllm.finish_weight_update()

    def _sampling_params(self, params: SamplingParams) -> dict[str, Any]:
        return {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "stop": list(params.stop_strings),
            "stop_token_ids": list(self.tokenizer.eos_ids),
            "ignore_eos": True,  # the ends are those of our tokenizer alone
            "logprobs": 0,  # that of the sampled token
            "skip_special_tokens": False,
        }

    def _completion(self, choice: Choice, params: SamplingParams) -> Completion:
        token_ids, logprobs = np.array(choice["token_ids"]), np.array(choice["logprobs"], dtype=np.float32)
        if choice["finish_reason"] == "length":
            reason = StopReason.LENGTH
        elif isinstance(choice["stop_reason"], str):
            reason = StopReason.STOP_STRING
        elif choice["stop_reason"] in self.tokenizer.eos_ids:
            reason = StopReason.END
        else:
            raise EngineError(f"vLLM ended an answer for the reason {choice['finish_reason']!r}.")
        if not len(token_ids) == len(logprobs) <= params.max_tokens or not np.isfinite(logprobs).all():
            raise EngineError(
                f"vLLM gave {len(token_ids)} tokens with {len(logprobs)} log-probabilities, which must be as "
                "many and finite."
            )
        assert self._version is not None
        return Completion(token_ids, logprobs, reason, self._version)


@dataclass(frozen=True)
class FileTransfer:
    """Weights by a model folder that vLLM's processes read: on every device, and over a shared disk."""

    folder: Path

    def __call__(self, policy: Policy, vllm: VLLM) -> None:
        policy.save(self.folder)
        self.again(vllm)

    def again(self, vllm: VLLM) -> None:
        """Send what was sent last, to a server that has restarted."""
        vllm.start_weight_update()
        vllm.update_weights({"folder": str(self.folder)})
        vllm.finish_weight_update()


class DeviceTransfer:
    """vLLM's own transfers between CUDA devices: "nccl" to other GPUs, "ipc" on the same one."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._sender: Any = None

    def __call__(self, policy: Policy, vllm: VLLM) -> None:
        if self._sender is None:
            self._sender = self._connect(policy, vllm)
        self._sender.send_weights()

    def again(self, vllm: VLLM) -> None:
        """Raises `EngineError`: the connection was made with the server as it was."""
        raise EngineError(f"the server has restarted, which transfer: {self._backend} cannot follow.")

    def _connect(self, policy: Policy, vllm: VLLM) -> Any:
        from vllm.distributed.weight_transfer import base, factory, ipc_engine, nccl_engine
        from vllm.utils.network_utils import get_ip, get_open_port

        class Source(base.WeightSource):
            def metadata(self) -> list[Any]:
                return [base.ParamMeta(name, x.dtype, tuple(x.shape)) for name, x in self]

            def __iter__(self) -> Iterator[tuple[str, Any]]:
                for name, tensor in policy.published_tensors():
                    yield name, tensor.detach().to(policy.dtype)

        info: Any = ipc_engine.IPCTrainerInitInfo(rank=0)
        if self._backend == "nccl":
            info = nccl_engine.NCCLTrainerInitInfo(get_ip(), get_open_port(), vllm.world_size() + 1, rank=0)
        return factory.WeightTransferTrainerFactory.trainer_init(info, client=vllm, source=Source())
