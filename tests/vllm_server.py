"""A server on the loopback with the endpoints of `vllm serve`, which samples by our own decoder and fails as told.

It knows token ids, weights and their versions as vLLM does, so that transfers and faults show in its answers.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from greenward.models.policy import Policy
from greenward.rollouts.protocols import SamplingParams, StopReason

_REASONS = {StopReason.LENGTH: "length", StopReason.END: "stop", StopReason.STOP_STRING: "stop"}


class VLLMServer:
    """Serves the model in `folder`. `fault(path, n)` names what goes wrong at the n-th request of a path, if anything.

    "restart" forgets all weights that were sent and answers the request with those of the folder, "cut" ends the
    connection, "500" and "dev" (no endpoints for reinforcement learning) answer so.
    """

    def __init__(
        self, folder: Path, fault: Callable[[str, int], str | None] = lambda path, n: None, port: int = 0
    ) -> None:
        self.folder, self.fault = folder, fault
        self.model, self.max_model_len = "tiny", 64
        self.raw_logprobs = False
        self.requests: Counter[str] = Counter()
        self.running = self.sampled_while_updating = 0
        self.lock = threading.Lock()
        self.restart()
        server = self

        class Handler(_Handler):
            owner = server

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def restart(self) -> None:
        self.policy = Policy.from_folder(self.folder, device="cpu")
        self.version, self.updating, self.paused = "default", False, False

    def __enter__(self) -> VLLMServer:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def generate(self, payload: dict[str, Any]) -> dict[str, Any]:
        sampling = payload["sampling_params"]
        stops = sampling.get("stop", ())
        params = SamplingParams(
            sampling["max_tokens"],
            sampling.get("temperature", 1.0),
            1.0 if self.raw_logprobs else sampling.get("top_p", 1.0),
            0 if self.raw_logprobs else sampling.get("top_k", 0),
            tuple(stops),
        )
        (group,) = self.policy.sample(
            [payload["token_ids"]], sampling.get("n", 1), params, seed=sampling.get("seed", 0)
        )
        ends = {StopReason.STOP_STRING: stops[0] if stops else None}
        choices = [
            {
                "index": index,
                "token_ids": one.token_ids.tolist(),
                "logprobs": {"content": [{"logprob": float(x)} for x in one.logprobs]},
                "finish_reason": _REASONS[one.stop_reason],
                "stop_reason": int(one.token_ids[-1])
                if one.stop_reason is StopReason.END
                else ends.get(one.stop_reason),
                "weight_versions": [{"version": self.version, "start": 0, "end": len(one.token_ids)}],
            }
            for index, one in enumerate(group)
        ]
        return {"choices": choices[::-1]}


class _Handler(BaseHTTPRequestHandler):
    owner: VLLMServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client has gone
            super().handle()

    def log_message(self, *_: object) -> None:
        pass

    def send(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(json.loads(raw) if raw else {})

    def answer(self, payload: dict[str, Any]) -> None:
        owner, path = self.owner, self.path.partition("?")[0]
        with owner.lock:
            owner.requests[path] += 1
            fault = owner.fault(path, owner.requests[path])
            if fault == "cut":
                self.close_connection = True
            elif fault == "500":
                self.send(500, {"error": {"message": "the worker failed"}})
            elif fault == "dev":
                self.send(404, {"detail": "Not Found"})
            else:
                if fault == "restart":
                    owner.restart()
                self.send(*self.respond(path, payload))

    def respond(self, path: str, payload: dict[str, Any]) -> tuple[int, Any]:
        owner = self.owner
        if path == "/v1/models":
            return 200, {"data": [{"id": owner.model, "max_model_len": owner.max_model_len}]}
        if path == "/tokenize":
            return 200, {"tokens": owner.policy.tokenizer.encode(payload["prompt"])}
        if path == "/weight_info":
            return 200, {"weight_version": owner.version}
        if path in ("/pause", "/resume"):
            owner.paused = path == "/pause"
        elif path == "/start_weight_update":
            if owner.updating:
                return 500, {"error": {"message": "a weight update is already active"}}
            owner.updating = True
        elif path == "/update_weights" and owner.updating:
            owner.policy = Policy.from_folder(payload["update_info"]["folder"], device="cpu")
        elif path == "/finish_weight_update" and owner.updating:
            owner.updating = False
        elif path == "/update_weight_version":
            owner.version = payload["new_version"]
        elif path == "/inference/v1/generate":
            if payload["sampling_params"].get("temperature") == 0 and payload["sampling_params"]["n"] > 1:
                return 400, {"error": {"message": "n must be 1 when using greedy sampling"}}
            owner.sampled_while_updating += owner.updating or owner.paused
            return 200, owner.generate(payload)
        else:
            return 500, {"error": {"message": f"{path} at the wrong time"}}
        return 200, {}
