"""Samples by vLLM 0.32; all that depends on its version is here and in `vllm_plugin.py`.

After each update vLLM pauses, receives the weights (an adapter merged) as `rollouts.transfer` says, forgets
cached prefixes and goes on. A completion that other weights drew is not used.

A server that does not answer, answers 5xx or cuts connections is infrastructure, never a reward. Requests
are repeated with growing waits for `rollouts.server.patience_seconds`; a server that restarted gets the
weights again. When the patience ends, the run stops at a checkpoint with exit code 75.

vLLM's CPU build takes a minute to start, has a cache of 1 GiB unless `VLLM_CPU_KVCACHE_SPACE` says
otherwise, needs heads of 32 elements or more, and is slower than native sampling for small models. With
`VLLM_ENABLE_V1_MULTIPROCESSING=0` in the environment and
`'rollouts.vllm.options={distributed_executor_backend: uni}'` it shares the training's process, which takes
1.8 GiB. Of vllm-cpu 0.32, `vllm serve` fails on its own package's name: start `python -m
vllm.entrypoints.openai.api_server --model FOLDER` with the same options and `--no-enable-chunked-prefill`,
without which it ends with "CPU Generator does not use offset".
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from greenward.common.errors import ConfigError, EngineError
from greenward.common.http import JsonClient, RequestError, RequestRefused, RetryPolicy
from greenward.config.sections import ServerConfig, VLLMConfig
from greenward.models.policy import Policy
from greenward.models.sampler import check_prompts, row_keys
from greenward.models.tokenizer import Tokenizer
from greenward.rollouts.protocols import Completion, OnGroup, OnTokens, SamplingParams, StopReason, per_prompt

Choice = Mapping[str, Any]
"""A completion as vLLM gives it: token_ids, logprobs (T,), finish_reason, stop_reason, weight_versions."""

PROBE = "def probe(x):\n    return {'é': x[0] != 17}  # ∑\n"
SERVE = (
    "Start it, with greenward installed beside vLLM: VLLM_SERVER_DEV_MODE=1 vllm serve MODEL "
    "--enable-scale-out --logprobs-mode processed_logprobs "
    '--weight-transfer-config \'{"backend": "greenward_file"}\''
)
_ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # torch has started threads, which a fork does not survive
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, on machines without a GPU
}


class VLLM(Protocol):
    """What both forms of vLLM offer. The methods on weights are those of vLLM's `VLLMWeightSyncClient`.

    All raise `EngineError` where vLLM fails.
    """

    def generate(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, list[Choice]]]:
        """The choices of each request of token ids and sampling parameters, as they finish."""

    def call(self, method: str, **values: Any) -> None:
        """Call one of vLLM's methods for reinforcement learning."""

    def pause(self) -> None:
        """Prepare for new weights: nothing is kept of what was computed with the old ones."""

    def resume(self) -> None:
        """Go on with the new weights."""
        return

    def weight_version(self) -> str:
        """The name of the present weights."""

    def world_size(self) -> int:
        """The number of processes that hold weights."""

    def close(self) -> None:
        """End what was started here."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.call("init_weight_transfer_engine", init_info=init_info)

    def start_weight_update(self) -> None:
        self.call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self.call("update_weights", update_info=update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.call("finish_weight_update")


class Colocated(VLLM):
    """vLLM in processes of its own on this machine, which end with this one."""

    def __init__(
        self, folder: Path, config: VLLMConfig, *, dtype: str, max_model_len: int, backend: str
    ) -> None:
        """Start it with the model in `folder`. Raises `ConfigError` where vLLM cannot run it."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from vllm import LLM
        from vllm import SamplingParams as Parameters
        from vllm.platforms import current_platform

        settings = config.model_dump(exclude={"sleep", "options", "max_model_len"})
        if current_platform.is_cpu():  # where a seeded request whose prompt is split ends the engine
            settings["enable_chunked_prefill"] = False
        try:
            self._llm: Any = LLM(
                str(folder),
                dtype=dtype,
                max_model_len=max_model_len,
                enable_sleep_mode=config.sleep,
                logprobs_mode="processed_logprobs",
                weight_transfer_config={"backend": backend},
                use_tqdm_on_load=False,
                **settings | config.options,
            )
        except Exception as error:  # of its own processes, of every kind
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ConfigError(f"vLLM cannot run this model here: {reason}") from error
        self._parameters: Any = Parameters
        self._asleep = False

    def generate(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, list[Choice]]]:
        self._wake()
        engine = self._llm.llm_engine
        with _engine_errors():
            prompts = [{"prompt_token_ids": request["token_ids"]} for request in requests.values()]
            params = [self._parameters(**request["sampling_params"]) for request in requests.values()]
            names = self._llm.enqueue(prompts, params, use_tqdm=False)
        numbers = {name.partition("-")[0]: n for name, n in zip(names, requests, strict=True)}
        while engine.has_unfinished_requests():
            with _engine_errors():
                finished = [output for output in engine.step() if output.finished]
            for output in finished:
                yield numbers[output.request_id], list(map(_choice, output.outputs))

    def call(self, method: str, **values: Any) -> None:
        with _engine_errors():
            named = method == "update_weight_version"
            getattr(self._llm, method)(*(values.values() if named else [values] if values else []))

    def pause(self) -> None:
        self._wake()
        self.call("reset_prefix_cache")

    def weight_version(self) -> str:
        with _engine_errors():
            return str(self._llm.get_weight_version())

    def world_size(self) -> int:
        return int(self._llm.llm_engine.vllm_config.parallel_config.world_size)

    def sleep(self) -> None:
        """Give the GPU's memory back until vLLM is used again."""
        with _engine_errors():
            self._llm.sleep(level=1)
        self._asleep = True

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()

    def _wake(self) -> None:
        if self._asleep:
            with _engine_errors():
                self._llm.wake_up()
            self._asleep = False


@contextmanager
def _engine_errors() -> Iterator[None]:
    """What vLLM raises, of its own classes and of those of its workers, as `EngineError`."""
    try:
        yield
    except Exception as error:
        raise EngineError(
            f"vLLM failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error


def _choice(output: Any) -> Choice:
    tokens = zip(output.logprobs, output.token_ids, strict=True)
    return {
        "token_ids": output.token_ids,
        "logprobs": [of_token[token_id].logprob for of_token, token_id in tokens],
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "weight_versions": [span.version for span in output.weight_versions or ()],
    }


class Server(VLLM):
    """A server of `vllm serve` with its endpoints for reinforcement learning."""

    def __init__(self, config: ServerConfig) -> None:
        assert config.base_url is not None
        self._url = config.base_url.rstrip("/").removesuffix("/v1")
        self._concurrency = config.concurrency
        seconds, longest = config.patience_seconds, config.request_seconds
        # As many attempts as have waits of about `seconds` between them.
        attempts = 2 + int(math.log2(1 + min(seconds, 60.0))) + int(seconds / 30.0)
        patience = RetryPolicy(attempts, attempt_seconds=longest, total_seconds=longest + seconds)
        self._client = self._client_with(patience)
        self._once = self._client_with(replace(patience, attempts=1))

    def check(self, model: str | None, tokenizer: Tokenizer | None = None) -> int:
        """The most tokens of prompt and answer that it serves.

        Raises `EngineError` for a server that does not answer, and `ConfigError` for one that serves another
        model, has other tokens than `tokenizer`, or takes no part in reinforcement learning.
        """
        ask = partial(
            _ask, self._client_with(RetryPolicy(attempts=3, attempt_seconds=30.0, total_seconds=60.0))
        )
        try:
            served = {one["id"]: one["max_model_len"] for one in ask("GET", "/v1/models")["data"]}
            name = model or (next(iter(served)) if len(served) == 1 else None)
            if name not in served:
                expected = f"expected one of {', '.join(served)}, found {model or 'none'}"
                raise ConfigError(f"rollouts.server.model: {expected}.")
            if tokenizer is not None:
                probe = {"model": name, "prompt": PROBE, "add_special_tokens": False}
                if ask("POST", "/tokenize", probe)["tokens"] != tokenizer.encode(PROBE):
                    raise ConfigError(f"{self._url} serves {name}, whose tokens are not those of the policy.")
                ask("POST", "/resume")  # an earlier training may have ended while it sent weights
                sampling = {"max_tokens": 1, "temperature": 1.0, "top_k": 1, "logprobs": 0}
                request = {"token_ids": tokenizer.encode(PROBE), "sampling_params": sampling}
                (choice,) = ask("POST", "/inference/v1/generate", request, parse=_choices)
                if choice["logprobs"][0] < -1e-3:  # of the only token that top_k leaves
                    raise ConfigError(
                        f"{self._url} gives log-probabilities from before top_k and temperature."
                    )
            return int(served[name])
        except EngineError as error:
            kind = ConfigError if isinstance(error.__cause__, RequestRefused) else EngineError
            raise kind(error.message, remedy=SERVE) from error
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{self._url} does not answer as vLLM does.", remedy=SERVE) from error

    def generate(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, list[Choice]]]:
        with ThreadPoolExecutor(min(self._concurrency, max(len(requests), 1))) as threads:
            ask = partial(_ask, self._client, "POST", "/inference/v1/generate", parse=_choices)
            asked = {threads.submit(ask, request): n for n, request in requests.items()}
            try:
                for answer in as_completed(asked):
                    yield asked[answer], answer.result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def call(self, method: str, **values: Any) -> None:
        _ask(self._once, "POST", f"/{method}", values or None)

    def pause(self) -> None:
        self.call("pause?mode=wait")

    def resume(self) -> None:
        self.call("resume")

    def weight_version(self) -> str:
        return str(_ask(self._client, "GET", "/weight_info")["weight_version"])

    def world_size(self) -> int:
        return int(_ask(self._client, "GET", "/get_world_size")["world_size"])

    def close(self) -> None:
        self._client.close()
        self._once.close()

    def _client_with(self, patience: RetryPolicy) -> JsonClient:
        return JsonClient(self._url, token=os.environ.get("VLLM_API_KEY"), patience=patience)


def _ask(client: JsonClient, method: str, path: str, payload: Any = None, **options: Any) -> Any:
    try:
        return client.request(method, path, payload, **options)
    except RequestError as error:
        raise EngineError(error.message) from error


def _choices(answer: Any) -> list[Choice]:
    return [
        {
            "token_ids": choice["token_ids"],
            "logprobs": [float(token["logprob"]) for token in choice["logprobs"]["content"]],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
            "weight_versions": [span["version"] for span in choice["weight_versions"]],
        }
        for choice in sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    ]


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
    on_tokens: OnTokens | None = field(default=None, init=False)
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
            sampling = {
                "max_tokens": params.max_tokens,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": params.top_k,
                "stop": list(params.stop_strings),
                "stop_token_ids": list(self.tokenizer.eos_ids),
                "ignore_eos": True,  # the ends are those of our tokenizer alone
                "logprobs": 0,  # that of the sampled token
                "skip_special_tokens": False,
            } | {"n": drawn[n], "seed": int(keys[0] >> np.uint64(2))}
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
                if self.on_tokens is not None:
                    self.on_tokens(sum(len(choice["token_ids"]) for choice in choices))
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
