"""An OpenAI-shaped server on the loopback, for tests and benchmarks, which answers and fails as it is told."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("500", "429", "hang", "cut", "cut_at_once", "not_json", "html", "other_json")
KEY = "sk-planted-0123456789abcdef"


class OpenAIServer:
    """Answers prompt P by `answer(P)`; `fault(P, n)` names what goes wrong at the n-th attempt for P, if anything.

    `delivered` counts the answers that were sent whole, by prompt, and `attempts` all requests for it; `payloads`
    are what was asked. With a `key`, requests without it get 401. The prompt of a chat is its last message; a
    seed that is sent is added to a prompt, as in "prompt#7".
    `seconds` is what an answer takes; hanging answers take `hang_seconds`. A `new` server refuses `max_tokens`.
    `refuses` gives the body of a 400 for each parameter that is refused.
    """

    def __init__(
        self,
        answer: Callable[[str], str] = lambda prompt: f"answer to {prompt}",
        fault: Callable[[str, int], str | None] = lambda prompt, attempt: None,
        *,
        models: tuple[str, ...] = ("tiny",),
        key: str | None = None,
        new: bool = False,
        refuses: dict[str, Any] | None = None,
        context: int = 1 << 20,
        seconds: float = 0.0,
        hang_seconds: float = 30.0,
        retry_after: str | None = "0.05",
        port: int = 0,
    ) -> None:
        self.answer, self.fault, self.models, self.key = answer, fault, models, key
        self.context, self.seconds, self.hang_seconds = context, seconds, hang_seconds
        self.new, self.retry_after, self.refuses = new, retry_after, refuses or {}
        self.attempts: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.payloads: list[dict[str, Any]] = []
        self.completion: Callable[[], Any] | None = None  # instead of a completion
        self.most_at_once = self.running = 0
        self.connections: list[socket.socket] = []
        self.lock = threading.Lock()
        self.leaving = threading.Event()
        server = self

        class Handler(_Handler):
            owner = server

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> OpenAIServer:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leaving.set()
        self._http.shutdown()
        self._http.server_close()
        self.hang_up()

    def hang_up(self) -> None:
        """Close every connection, those that are kept as well."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    owner: OpenAIServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with self.owner.lock:
            self.owner.connections.append(self.connection)
        with suppress(ConnectionError, TimeoutError):  # the client has gone
            super().handle()

    def send(self, status: int, value: Any, content_type: str = "application/json", **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def refused(self) -> bool:
        key = self.owner.key
        given = self.headers.get("Authorization", "")
        if key is None or given == f"Bearer {key}":
            return False
        self.send(
            401, {"error": {"message": f"Incorrect API key provided: {given.removeprefix('Bearer ')}."}}
        )
        return True

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self.send(404, b"<html><title>404: not here</title></html>", "text/html")
        elif not self.refused():
            self.send(200, {"object": "list", "data": [{"id": name} for name in self.owner.models]})

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        owner, chat = self.owner, self.path == "/v1/chat/completions"
        if self.refused():
            return
        if not chat and self.path != "/v1/completions":
            self.send(404, {"detail": "Not Found"})
        elif payload.get("model") not in owner.models:
            message = f"The model `{payload.get('model')}` does not exist."
            self.send(404, {"error": {"message": message, "type": "NotFoundError"}})
        else:
            prompt = payload["messages"][-1]["content"] if chat else payload["prompt"]
            self.complete(payload, f"{prompt}#{payload['seed']}" if "seed" in payload else prompt, chat)

    def complete(self, payload: dict[str, Any], prompt: str, chat: bool) -> None:
        owner = self.owner
        with owner.lock:
            owner.attempts[prompt] += 1
            owner.payloads.append(payload)
            owner.running += 1
            owner.most_at_once = max(owner.most_at_once, owner.running)
            fault = owner.fault(prompt, owner.attempts[prompt])
            if fault:
                owner.faults[fault] += 1
        try:
            if owner.new and "max_tokens" in payload:
                message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
                self.send(400, {"error": {"message": message}})
            elif named := [name for name in owner.refuses if name in payload]:
                self.send(400, owner.refuses[named[0]])
            elif len(prompt) // 4 + payload.get("max_tokens", 0) > owner.context:
                message = f"This model's maximum context length is {owner.context} tokens. However, you requested more."
                self.send(400, {"error": {"message": message}})
            elif fault:
                self.fail(fault, self.completion(payload, prompt, chat))
            else:
                time.sleep(owner.seconds)
                self.send(200, self.completion(payload, prompt, chat))
                with owner.lock:
                    owner.delivered[prompt] += 1
        finally:
            with owner.lock:
                owner.running -= 1

    def completion(self, payload: dict[str, Any], prompt: str, chat: bool) -> Any:
        if self.owner.completion is not None:
            return self.owner.completion()
        words = self.owner.answer(prompt)
        limit = 4 * (payload.get("max_tokens") or payload["max_completion_tokens"])
        text = words[:limit]
        message = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        finish = "length" if len(words) > limit else "stop"
        return {
            "model": payload["model"],
            "choices": [{"index": 0, "finish_reason": finish, **message}],
            "usage": {"prompt_tokens": len(prompt) // 4, "completion_tokens": max(1, len(text) // 4)},
        }

    def fail(self, fault: str, completion: dict[str, Any]) -> None:
        if fault in ("500", "503"):
            self.send(int(fault), {"error": {"message": "overloaded \x1b[31m\u202e"}})
        elif fault == "429":
            headers = {"Retry-After": self.owner.retry_after} if self.owner.retry_after else {}
            self.send(429, {"error": {"message": "rate limit"}}, **headers)
        elif fault == "quota":
            message = "You exceeded your current quota, please check your plan and billing details."
            self.send(429, {"error": {"message": message, "code": "insufficient_quota"}})
        elif fault == "hang":
            self.owner.leaving.wait(self.owner.hang_seconds)
            self.close_connection = True
        elif fault == "drip":  # a byte at a time, for ever
            self.close_connection = True
            while not self.owner.leaving.wait(0.02):
                self.wfile.write(b"H")
        elif fault in ("cut", "cut_at_once"):
            if fault == "cut":
                body = json.dumps(completion).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif fault == "html":
            self.send(200, b"<html><title>Welcome</title></html>", "text/html")
        elif fault == "big":
            self.send(200, b'"' + b"x" * 5_000_000 + b'"')
        elif fault == "stream":
            self.send(
                200,
                b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n',
                "text/event-stream",
            )
        else:
            self.send(200, {"not_json": b'{"choices": [', "other_json": {"choices": []}}[fault])
