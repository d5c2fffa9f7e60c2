"""Calls sandboxes behind HTTP (`HttpHost`), and serves the sandbox of this machine (`SandboxServer`).

`POST /run_jobs` takes jobs of greenward (`remote`). `POST /run_code` takes a Python program in the form of
SandboxFusion (RunCodeRequest and RunCodeResponse in its `sandbox/server/sandbox_api.py`), without files.
`run_timeout` limits CPU and wall time, `memory_limit_MB` the memory. Other languages, `files` and
`fetch_files` are refused (422). A failure of the sandbox has the status `SandboxError`. A server of
SandboxFusion gets the sandbox itself along with the jobs, and runs it as a program. The reply is a file with
a nonce that the answers have not seen; its worth depends on the layers that hold there.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import io
import json
import math
import re
import secrets
import signal
import socket
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn
from urllib.parse import urlsplit

from greenward.common.errors import ConfigError, SandboxError
from greenward.common.http import JsonClient, RequestFailed, RequestRefused, RetryPolicy, is_loopback
from greenward.common.parsing import parse_json_text
from greenward.sandbox.protocol import Job, Limits, Outcome, RunResult
from greenward.sandbox.remote import Host, JobServer, Json, source_files
from greenward.sandbox.workers import WorkerLost

JOBS_PATH, RUN_CODE_PATH = "/run_jobs", "/run_code"
_COMPILE_SECONDS = 10.0  # SandboxFusion asks for it; Python has nothing to compile
_SPARE_SECONDS = 5.0  # for the way there and back
_PROGRAM = """\
import json, os, sys, zipfile
with open("request.json", encoding="ascii") as file:
    nonce, packages, request = json.load(file)
os.remove("request.json")
zipfile.ZipFile("greenward.zip").extractall(".")
sys.path.insert(0, os.getcwd())
from greenward.sandbox.isolation import Level
from greenward.sandbox.remote import JobServer
with JobServer(1, require=Level.D, packages=packages) as server:
    reply = server.answer(request)
with open("reply.json", "w", encoding="ascii") as file:
    json.dump([nonce, reply], file)
"""


class HttpHost(Host):
    """One server. Which kind it is shows when it is called for the first time.

    `token` is what a server of greenward asks for. `packages` may be imported by answers on a server of
    SandboxFusion; one of greenward has its own.
    """

    def __init__(self, url: str, token: str | None = None, packages: Sequence[str] = ()) -> None:
        patience = RetryPolicy(attempts=1, total_seconds=float("inf"))  # what is lost runs on another server
        self._client = JsonClient(url, token=token, patience=patience, max_bytes=1 << 30)
        super().__init__(self._client.url)
        self._packages, self._is_foreign = list(packages), False

    def call(self, request: Json, seconds: float) -> Any:
        try:
            if not self._is_foreign:
                try:
                    return self._client.request("POST", JOBS_PATH, request, seconds=seconds)
                except RequestRefused as error:
                    if error.status not in (404, 405):
                        raise
                    self._is_foreign = True
            return self._run_code(request, seconds)
        except RequestFailed as error:
            raise WorkerLost(error.message) from None
        except RequestRefused as error:
            remedy = "Set sandbox.http.token_env to the variable that holds the server's token."
            raise SandboxError(error.message, remedy=remedy if error.status in (401, 403) else None) from None

    def close(self) -> None:
        self._client.close()

    def _run_code(self, request: Json, seconds: float) -> Any:
        nonce = secrets.token_hex(16)
        files = {
            "request.json": json.dumps([nonce, self._packages, request]).encode("ascii"),
            "greenward.zip": _archive(),
        }
        payload = {
            "code": _PROGRAM,
            "language": "python",
            "compile_timeout": _COMPILE_SECONDS,
            "run_timeout": seconds,
            "files": {name: base64.b64encode(data).decode("ascii") for name, data in files.items()},
            "fetch_files": ["reply.json"],
        }
        found = self._client.request("POST", RUN_CODE_PATH, payload, seconds=seconds + _SPARE_SECONDS)
        try:
            theirs, reply = json.loads(base64.b64decode(found["files"]["reply.json"]))
        except (ValueError, TypeError, LookupError, RecursionError):
            raise WorkerLost(f"the sandbox did not run as a program there: {str(found)[-500:]}") from None
        if theirs != nonce:
            raise WorkerLost("the reply is not that of the sandbox that was sent there")
        return reply


@cache
def _archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in source_files().items():
            archive.writestr(name, source)
    return file.getvalue()


MAX_BODY_BYTES = 64 << 20
BODIES_HELD = 4  # of the largest size; so many bytes of bodies are in memory at once
MAX_JOBS = 1024  # accepted and not finished
MAX_CONNECTIONS = 256
MAX_RUN_SECONDS = 300.0
OUTPUT_BYTES = 1 << 20
HEAD_SECONDS = 10.0  # from the opening of a connection to the end of its first head, with the token
_IDLE_SECONDS = 60.0  # a connection that sends or takes nothing for so long is closed
_BODY_SECONDS, _BODY_BYTES_PER_SECOND = 30.0, 1 << 18  # a body must come within both together


class _Connections:
    """The open connections, the oldest first, and when each must have gone on.

    There are at most `most`. A client that has given the token, or without one a whole request, is trusted;
    the oldest other one makes room for a new one, so that clients who never say anything keep nobody out.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        self._trusted: set[socket.socket] = set()

    def admit(self, connection: socket.socket, seconds: float) -> bool:
        """Takes in a connection, whose client has so many seconds to be trusted; False where all are."""
        with self._lock:
            if len(self._deadlines) >= self._most:
                oldest = next((one for one in self._deadlines if one not in self._trusted), None)
                if oldest is None:
                    return False
                self._end(oldest)
            self._deadlines[connection] = time.monotonic() + seconds
            return True

    def grant(self, connection: socket.socket, seconds: float = math.inf, *, trusted: bool = True) -> None:
        """Gives a client so many seconds for what it does next; it may be `trusted` from now on."""
        with self._lock:
            if connection in self._deadlines:
                self._trusted.update([connection] if trusted else ())
                self._deadlines[connection] = time.monotonic() + seconds

    def end_late_ones(self) -> None:
        """Ends the connections whose time is over; their threads then see that nothing more comes."""
        now = time.monotonic()
        with self._lock:
            for connection in [one for one, deadline in self._deadlines.items() if deadline < now]:
                self._end(connection)

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._forget(connection)

    def _end(self, connection: socket.socket) -> None:
        self._forget(connection)
        with suppress(OSError):  # it has just been closed
            connection.shutdown(socket.SHUT_RDWR)

    def _forget(self, connection: socket.socket) -> None:
        self._deadlines.pop(connection, None)
        self._trusted.discard(connection)


class _Refused(Exception):
    """A request that is answered by an HTTP status, the first argument, and a reason, the second one."""


class _Quota:
    """What all requests together may use at once; one that alone wants more must be the only one."""

    def __init__(self, most: int, refusal: str) -> None:
        self._most, self._refusal = most, refusal
        self._used, self._lock = 0, threading.Lock()

    @contextmanager
    def use(self, count: int) -> Iterator[None]:
        """Uses so much of it inside. Raises `_Refused` where others leave too little."""
        with self._lock:
            if self._used and self._used + count > self._most:
                raise _Refused(429, self._refusal)
            self._used += count
        try:
            yield
        finally:
            with self._lock:
                self._used -= count


class SandboxServer(ThreadingHTTPServer):
    """Serves the jobs of `jobs` until `shutdown`. Raises `ConfigError` for an address that cannot be used.

    `token` is asked of every request, as a bearer token or as the password of basic authentication (a
    client that knows only URLs: `http://any:TOKEN@host`); it may be missing on the loopback only. A client
    has `head_seconds` to give it. Where all of `max_connections` are taken, the oldest one without a token is
    closed for a new one.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        jobs: JobServer,
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        token: str | None = None,
        max_jobs: int = MAX_JOBS,
        max_body_bytes: int = MAX_BODY_BYTES,
        memory_bytes: int = 1 << 30,
        max_connections: int = MAX_CONNECTIONS,
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        if not token and not is_loopback(host):
            raise ConfigError(
                f"{host} can be reached from other machines, and there is no token.",
                remedy="Name the environment variable that holds one: --token-env NAME.",
            )
        self.jobs, self.token, self.memory_bytes = jobs, token, memory_bytes
        self.max_body_bytes, self.is_closing = max_body_bytes, False
        self.running = _Quota(max_jobs, f"{max_jobs} jobs are in flight")
        self.bodies = _Quota(
            BODIES_HELD * max_body_bytes, "as many bytes as are accepted at once are being read"
        )
        self.connections, self._head_seconds = _Connections(max_connections), head_seconds
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(f"cannot serve on {host}, port {port}: {error.strerror or error}.") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection in a thread of its own; too many are closed at once."""
        if self.connections.admit(request, self._head_seconds):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """What `serve_forever` does between two connections."""
        self.connections.end_late_ones()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is no event."""


class _Handler(BaseHTTPRequestHandler):
    server: SandboxServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "greenward", ""
    timeout = _IDLE_SECONDS

    def do_POST(self) -> None:
        forms = {JOBS_PATH: self._run_jobs, RUN_CODE_PATH: self._run_code}
        status, headers = 200, {}
        try:
            with ExitStack() as held:
                content = forms.get(self.path, self._unknown)(self._body(held))
        except _Refused as error:
            status, content = error.args[0], {"detail": error.args[1]}
            headers = {"Retry-After": "1"} if status == 429 else {}
            self.close_connection = True  # the body may not have been read
        except OSError:
            raise
        except Exception as error:
            status, content = 500, {"detail": f"{type(error).__name__}: {error}"[:500]}
        if self.server.is_closing:
            status, content = 503, {"detail": "the server is closing"}
        data = json.dumps(content).encode("ascii")
        self.send_response(status)
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        if not self.close_connection:
            self.server.connections.grant(self.connection, _IDLE_SECONDS)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged: paths and names of clients are theirs."""

    def _unknown(self, body: Any) -> NoReturn:
        raise _Refused(404, f"there is {JOBS_PATH} and {RUN_CODE_PATH}, not {self.path[:100]}")

    def _body(self, held: ExitStack) -> Any:
        """The JSON of the request, which is read only if it may come; it counts until `held` ends."""
        if self.server.token and not self._has_token():
            raise _Refused(401, "this server wants its token: Authorization: Bearer TOKEN")
        # A page in a browser on this machine can give a name of its own this machine's address.
        if not self.server.token and not self._names_loopback():
            raise _Refused(403, "without a token, this server is called localhost, 127.0.0.1 or [::1] only")
        # Another type can be sent by any page that is open in a browser on this machine.
        if self.headers.get_content_type() != "application/json":
            raise _Refused(415, "the body must be application/json")
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,18}", length):
            raise _Refused(411, "Content-Length is needed")
        most = self.server.max_body_bytes
        seconds = _BODY_SECONDS + min(int(length), 2 * most) / _BODY_BYTES_PER_SECOND
        self.server.connections.grant(self.connection, seconds, trusted=bool(self.server.token))
        rest = int(length)
        try:
            if rest > most:
                raise _Refused(413, f"the body has {length} bytes; at most {most} are accepted")
            held.enter_context(self.server.bodies.use(rest))
        except _Refused:
            while rest > 0 and (read := self.rfile.read(min(rest, 1 << 20))):
                rest -= len(read)  # a client reads the answer when it has sent everything
            raise
        body = self.rfile.read(rest)
        if len(body) < rest:
            raise ConnectionAbortedError  # it was ended, by the client or for its time
        self.server.connections.grant(self.connection)
        try:
            return parse_json_text(body)
        except ValueError:
            raise _Refused(400, "the body is not JSON") from None

    def _names_loopback(self) -> bool:
        with suppress(ValueError):
            return is_loopback(urlsplit(f"//{self.headers.get('Host')}").hostname or "")
        return False

    def _has_token(self) -> bool:
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            with suppress(binascii.Error, ValueError):
                given = base64.b64decode(given, validate=True).decode("ascii").partition(":")[2]
        return hmac.compare_digest(given.encode(), str(self.server.token).encode())

    def _run_jobs(self, request: Any) -> Any:
        jobs = request.get("jobs") if isinstance(request, dict) else None
        if not isinstance(jobs, list):
            raise _Refused(422, "a request has a list of jobs")
        with self.server.running.use(len(jobs)):
            return self.server.jobs.answer(request)

    def _run_code(self, request: Any) -> Any:
        job = _program(request, self.server.memory_bytes)
        with self.server.running.use(1):
            (result,) = self.server.jobs.run([job])
        return _as_in_sandbox_fusion(result)


def serve(server: SandboxServer) -> None:
    """Serves until SIGINT or SIGTERM."""

    def stop(*_: Any) -> None:
        server.is_closing = True
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        server.serve_forever()
    finally:
        server.server_close()


def _program(request: Any, memory_bytes: int) -> Job:
    """The job of a RunCodeRequest."""
    if not isinstance(request, dict) or not isinstance(request.get("code"), str):
        raise _Refused(422, "code: a text is expected")
    if request.get("language") != "python":
        raise _Refused(422, f"language: only python runs here, not {str(request.get('language'))[:100]!r}")
    if request.get("files") or request.get("fetch_files"):
        raise _Refused(422, "files, fetch_files: a program has no files here")
    stdin = request.get("stdin")
    if not isinstance(stdin, str | None):
        raise _Refused(422, f"stdin: a text is expected, not {str(stdin)[:100]}")
    try:
        seconds = min(float(request.get("run_timeout", 10)), MAX_RUN_SECONDS)
        if (megabytes := int(request.get("memory_limit_MB", -1))) > 0:
            memory_bytes = min(megabytes << 20, memory_bytes)
        limits = Limits(seconds, seconds, memory_bytes, OUTPUT_BYTES)
        return Job(request["code"], stdins=("" if stdin is None else stdin,), limits=limits)
    except (TypeError, ValueError, OverflowError, SandboxError) as error:
        raise _Refused(422, f"run_timeout, memory_limit_MB: {error}") from None


def _as_in_sandbox_fusion(result: RunResult) -> Json:
    outcome, code = result.outcome, _return_code(result)
    others = {Outcome.TIMEOUT: "TimeLimitExceeded", Outcome.INFRASTRUCTURE: "Error"}
    run_status = others.get(outcome, "Finished")
    status = "SandboxError" if run_status == "Error" else "Success" if code == 0 else "Failed"
    reason = f"{result.error_class or outcome.value}: {result.error_message}\n" if code else ""
    return {
        "status": status,
        "message": result.error_message if status == "SandboxError" else "",
        "compile_result": None,
        "run_result": {
            "status": run_status,
            "execution_time": result.wall_seconds,
            "return_code": code,
            "stdout": result.stdout,
            "stderr": result.stderr or reason,
        },
        "executor_pod_name": None,
        "files": {},
    }


def _return_code(result: RunResult) -> int | None:
    """The exit status that the program would have had by itself; None where it was stopped for its time."""
    if result.outcome in (Outcome.COMPLETED, Outcome.TIMEOUT, Outcome.INFRASTRUCTURE):
        return 0 if result.outcome is Outcome.COMPLETED else None
    if result.outcome in (Outcome.OUTPUT_LIMIT, Outcome.CHEATING):
        return -signal.SIGKILL
    if result.outcome is Outcome.EXITED and (number := getattr(signal, str(result.error_class), None)):
        return -number
    said = re.fullmatch(r"(?:left with status )?(-?\d+)(?: before .*)?", result.error_message)
    return int(said[1]) & 0xFF if said and result.outcome is Outcome.EXITED else 1
