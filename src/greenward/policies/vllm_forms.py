"""vLLM in processes of its own beside the training, or as a server of `vllm serve`, behind one interface."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from greenward.config.rollouts import ServerConfig, VLLMConfig
from greenward.errors import ConfigError, EngineError
from greenward.http_client import JsonClient, Patience, RequestError, RequestRefused
from greenward.policies.tokenizer import Tokenizer

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
        patience = Patience(attempts, attempt_seconds=longest, total_seconds=longest + seconds)
        self._client = self._client_with(patience)
        self._once = self._client_with(replace(patience, attempts=1))

    def check(self, model: str | None, tokenizer: Tokenizer | None = None) -> int:
        """The most tokens of prompt and answer that it serves.

        Raises `EngineError` for a server that does not answer, and `ConfigError` for one that serves another
        model, has other tokens than `tokenizer`, or takes no part in reinforcement learning.
        """
        ask = partial(_ask, self._client_with(Patience(attempts=3, attempt_seconds=30.0, total_seconds=60.0)))
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

    def _client_with(self, patience: Patience) -> JsonClient:
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
