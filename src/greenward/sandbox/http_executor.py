"""The sandbox behind HTTP servers: those of `greenward sandbox serve`, and SandboxFusion's.

SandboxFusion gets the sandbox itself along with the jobs, and runs it as a program. The reply is a file with
a nonce that the answers have not seen; what that is worth depends on the layers that hold on the server.
"""

from __future__ import annotations

import base64
import io
import json
import secrets
import zipfile
from collections.abc import Sequence
from functools import cache
from typing import Any

from greenward.errors import SandboxError
from greenward.http_client import JsonClient, Patience, RequestFailed, RequestRefused
from greenward.sandbox import wire
from greenward.sandbox.remote import HostLost, RemoteExecutor

JOBS_PATH, RUN_CODE_PATH = "/run_jobs", "/run_code"
_MAX_REPLY_BYTES = 1 << 30
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
from greenward.sandbox.job_server import JobServer
with JobServer(1, require=Level.D, packages=packages) as server:
    reply = server.answer(request)
with open("reply.json", "w", encoding="ascii") as file:
    json.dump([nonce, reply], file)
"""


class HttpExecutor(RemoteExecutor):
    """Runs jobs on the servers at `urls`, which get the jobs in turn.

    `token` is what the servers of greenward ask for. `packages` may be imported by answers on servers of
    SandboxFusion; those of greenward have their own. `others` are those of `RemoteExecutor`.
    """

    def __init__(
        self, urls: Sequence[str], token: str | None = None, packages: Sequence[str] = (), **others: Any
    ) -> None:
        super().__init__([HttpHost(url, token, packages) for url in urls], **others)


class HttpHost:
    """One server. Which kind it is shows when it is called for the first time."""

    def __init__(self, url: str, token: str | None = None, packages: Sequence[str] = ()) -> None:
        patience = Patience(attempts=1, total_seconds=float("inf"))  # what is lost runs on another server
        self._client = JsonClient(url, token=token, patience=patience, max_bytes=_MAX_REPLY_BYTES)
        self.name, self._packages, self._is_foreign = self._client.url, list(packages), False

    def call(self, request: wire.Json, seconds: float) -> Any:
        """The server's reply. Raises `HostLost`, and `SandboxError` where it refuses the request."""
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
            raise HostLost(error.message) from None
        except RequestRefused as error:
            remedy = "Set sandbox.http.token_env to the variable that holds the server's token."
            raise SandboxError(error.message, remedy=remedy if error.status in (401, 403) else None) from None

    def close(self) -> None:
        self._client.close()

    def _run_code(self, request: wire.Json, seconds: float) -> Any:
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
            raise HostLost(f"the sandbox did not run as a program there: {str(found)[-500:]}") from None
        if theirs != nonce:
            raise HostLost("the reply is not that of the sandbox that was sent there")
        return reply


@cache
def _archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in wire.source_files().items():
            archive.writestr(name, source)
    return file.getvalue()
