"""Sends JSON over HTTP/1.1 with deadlines and retries. It follows no redirects and uses no proxies."""

from __future__ import annotations

import http.client
import ipaddress
import json
import random
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from greenward.common.errors import ConfigError, GreenwardError
from greenward.common.parsing import parse_json_text
from greenward.common.text import MAX_MESSAGE_CHARS, visible

TOO_MANY = 429
_TRANSIENT = frozenset({408, 425, TOO_MANY})  # and all of 5xx
_CONNECT_SECONDS = 10.0
_HIDDEN = "***"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or its number."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def is_on_this_machine(address: str) -> bool:
    """Whether a URL leads to this machine; what is no URL does not."""
    with suppress(ValueError):
        return is_loopback(urlsplit(address).hostname or "")
    return False


class RequestError(GreenwardError):
    """A request without a usable answer. `status` is HTTP's, 0 where none arrived."""

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class RequestRefused(RequestError):
    """The server does not accept this request (3xx, most of 4xx): the same one would be refused again."""


class RequestFailed(RequestError):
    """Infrastructure: no connection, a cut or late answer, 408, 425, 429, 5xx, or not the JSON expected."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long a request is tried, in seconds: one attempt and all of them, from connecting to the last byte.

    The wait after a failed attempt doubles from `first_wait` to at most `longest_wait` and is drawn between
    half and all of that; a Retry-After of the server replaces it. An answer of 429 (too many requests) is no
    attempt, and makes all requests of the client wait.
    """

    attempts: int = 6
    attempt_seconds: float = 120.0
    total_seconds: float = 600.0
    first_wait: float = 0.5
    longest_wait: float = 30.0


class JsonClient:
    """Sends JSON to the paths below `base_url`, from any number of threads over connections that are kept.

    `token` is sent as a bearer token and replaced by *** in whatever the server says, unless it has less than
    eight characters: these are no secrets, and ordinary answers hold them. Requests get a single attempt
    each until one has succeeded, and again when one has failed for good: nobody waits long for a server
    that is not there. Raises `ConfigError` for a URL or a token that cannot be one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        patience: RetryPolicy | None = None,
        max_bytes: int = 64 << 20,
    ) -> None:
        self.url = _checked(base_url)
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise ConfigError("the key of the server holds characters that no key has, such as spaces.")
        self._token = token
        self._secret = token if token and len(token) >= 8 else None
        self._patience = patience or RetryPolicy()
        self._max_bytes = max_bytes
        self._context = ssl.create_default_context() if self.url.startswith("https") else None
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[socket.socket] = set()
        self._closed = threading.Event()
        self._paused_until = 0.0
        self._failing = True

    def request(
        self,
        method: str,
        path: str,
        payload: Any = None,
        *,
        parse: Callable[[Any], Any] = lambda value: value,
        seconds: float | None = None,
    ) -> Any:
        """What `parse` makes of the JSON that the server answers; of an empty answer, it gets None.

        `seconds` is the time of an attempt if it is not that of the client's patience.

        Where `parse` raises `ValueError`, `LookupError` or `TypeError`, the request is repeated as after a
        broken answer. Raises `RequestRefused`, and `RequestFailed` when the patience has ended.
        """
        patience = self._patience if seconds is None else replace(self._patience, attempt_seconds=seconds)
        tries = failures = 0
        last: RequestFailed | None = None
        end = time.monotonic() + patience.total_seconds
        while True:
            if (pause := min(self._paused_until, end) - time.monotonic()) > 0:
                self._closed.wait(pause + random.uniform(0, min(pause, patience.first_wait)))
            try:
                value = self._attempt(method, path, payload, parse, patience.attempt_seconds, end)
            except RequestFailed as error:
                failures += error.status != TOO_MANY
                wait = min(patience.longest_wait, patience.first_wait * 2.0 ** min(tries, 30))
                tries += 1
                wait = wait * random.uniform(0.5, 1) if error.retry_after is None else error.retry_after
                attempts = 1 if self._failing else patience.attempts
                if self._closed.is_set() or failures >= attempts or time.monotonic() + wait >= end:
                    self._failing = True
                    # What was answered before says more than that no time was left for this attempt.
                    raise last if last is not None and time.monotonic() >= end else error from None
                last = error
                if error.status == TOO_MANY:
                    self._paused_until = max(self._paused_until, time.monotonic() + wait)
                else:
                    self._closed.wait(wait)
            else:
                self._failing = False
                return value

    def close(self) -> None:
        """End all connections; requests under way fail."""
        self._closed.set()
        for sock in tuple(self._busy):
            _end(sock)
        while self._idle:
            self._idle.pop().close()

    def _attempt(
        self, method: str, path: str, payload: Any, parse: Callable[[Any], Any], seconds: float, end: float
    ) -> Any:
        place = f"{self.url}{path}"
        seconds = max(min(seconds, end - time.monotonic()), 0.0)
        deadline = time.monotonic() + seconds
        try:
            response, raw = self._exchange(method, path, payload, deadline)
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > deadline - 0.01:
                raise RequestFailed(f"{place}: no answer within {seconds:.3g} seconds.") from None
            why = self._clean(f"{type(error).__name__}: {error}")
            raise RequestFailed(f"{place}: the connection failed ({why}).") from None
        if not 200 <= (status := response.status) < 300:
            said = f"{place} answered {status}: {self._clean(_message(raw[: 1 << 16])) or 'nothing'}"
            if (status < 500 and status not in _TRANSIENT) or b"insufficient_quota" in raw:
                raise RequestRefused(said, status)
            raise RequestFailed(said, status, _seconds(response.headers.get("Retry-After", "")))
        if len(raw) > self._max_bytes:
            raise RequestFailed(f"{place}: the answer has more than {self._max_bytes} bytes.", status)
        raw = raw.replace(self._secret.encode(), _HIDDEN.encode()) if self._secret else raw
        if response.headers.get_content_type() == "text/event-stream" or re.match(rb"\s*data:", raw):
            raise RequestRefused(
                f"{place}: expected JSON, found a stream of parts (text/event-stream)", status
            )
        try:
            return parse(parse_json_text(raw) if raw else None)
        except (ValueError, LookupError, TypeError) as error:
            said = self._clean(_message(raw[: 1 << 16])) or "nothing"
            # Errors of other classes say where the JSON broke or which key is missing, not what was expected.
            why = f" ({self._clean(str(error))})" if type(error) is ValueError else ""
            raise RequestFailed(f"{place}: expected other JSON{why}, found {said}", status) from None

    def _exchange(
        self, method: str, path: str, payload: Any, deadline: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """The response and its body, of which at most one byte too many is read."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection(max(deadline - time.monotonic(), 0.001))
        sock = connection.sock
        self._busy.add(sock)
        if self._closed.is_set():  # by another thread, which may not have seen this connection
            _end(sock)
        # Limits of time in sockets are for each read: a server that sends a byte a second keeps them.
        watchdog = threading.Timer(deadline - time.monotonic(), _end, [sock])
        watchdog.start()
        try:
            body = None if payload is None else json.dumps(payload).encode()
            connection.request(method, urlsplit(self.url).path + path, body, headers)
            response = connection.getresponse()
            raw = response.read(self._max_bytes + 1)
            if response.length and len(raw) <= self._max_bytes:
                raise ConnectionError("the answer was cut short")
        except BaseException:
            connection.close()
            raise
        finally:
            watchdog.cancel()
            self._busy.discard(sock)
        if response.isclosed() and not response.will_close and not self._closed.is_set():
            self._idle.append(connection)
        else:
            connection.close()
        return response, raw

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        """A kept connection that the server has not closed, else a new one."""
        with suppress(IndexError):
            while True:
                kept = self._idle.pop()
                readable = select.poll()
                readable.register(kept.sock, select.POLLIN)
                if not readable.poll(0):
                    kept.sock.settimeout(timeout)
                    return kept
                kept.close()
        host, seconds = urlsplit(self.url).netloc, min(timeout, _CONNECT_SECONDS)
        new = (
            http.client.HTTPSConnection(host, timeout=seconds, context=self._context)
            if self._context
            else http.client.HTTPConnection(host, timeout=seconds)
        )
        new.connect()
        new.sock.settimeout(timeout)
        return new

    def _clean(self, text: str) -> str:
        """Text of the server in one line, without control characters and without the token."""
        text = text.replace(self._secret, _HIDDEN) if self._secret else text
        return visible(" ".join(text.split()), MAX_MESSAGE_CHARS)


def _end(sock: socket.socket) -> None:
    """Let whoever waits for this socket see the end of the connection."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of a TLS socket is not made for other threads


def _checked(url: str) -> str:
    """The URL without a last slash. Messages do not repeat what may hold a key."""
    url = url.strip().rstrip("/")
    if any(character in url for character in "@?#"):
        raise ConfigError(
            "the URL of a server has no user, no query and no fragment.",
            remedy="URLs are recorded; keys come from the environment only.",
        )
    with suppress(ValueError):
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_server and re.fullmatch(r"[!-~]+", url):
            return url
    raise ConfigError(
        f"expected the URL of a server, found {visible(url, 100)!r}.",
        remedy="Give one such as http://localhost:8000/v1.",
    )


def _message(raw: bytes) -> str:
    """What a server says, in the usual forms of JSON, as the title of a page, or as text."""
    if raw.lstrip()[:1] == b"<":
        title = re.search(rb"<title[^>]*>([^<]*)", raw, re.IGNORECASE)
        return f"an HTML page ({title[1].decode(errors='replace') if title else 'without title'})"
    try:
        found = parse_json_text(raw)
    except ValueError:
        return raw.decode(errors="replace")
    parameter = None
    for key in ("error", "message", "detail"):
        if isinstance(found, dict):
            parameter, found = found.get("param", parameter), found.get(key, found)
    said = found if isinstance(found, str) else json.dumps(found)
    return f"{said} ({parameter})" if isinstance(parameter, str) and parameter not in said else said


def _seconds(retry_after: str) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or a date; None for anything else."""
    if re.fullmatch(r"\s*\d{1,9}(\.\d+)?\s*", retry_after):
        return float(retry_after)
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    return None
