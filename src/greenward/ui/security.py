"""Refuses what a foreign page could ask of a local server, and says what our own page may do.

The host of a request must be one that the server was started for: a name that a foreign page has rebound to
this machine is another one. Data is given to pages of the same origin and to programs, never to other sites.
Only GET and HEAD exist. The headers let a page load its own files only and run no text as a program.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from greenward.common.errors import ConfigError

COOKIE = "greenward_ui"
MAX_TARGET_BYTES = 8192
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types lit-html"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def host_name(value: str) -> str:
    """The host of a `Host` header or an origin without scheme: no port, no brackets, in small letters."""
    if value.startswith("["):
        name, closed, rest = value[1:].partition("]")
        return name.lower() if closed and (not rest or rest[0] == ":") else ""
    name, _, port = value.partition(":")
    return name.lower() if not port or (port.isascii() and port.isdecimal()) else ""


_ORIGIN = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?")


def _cookie_name(scope: Scope) -> str:
    """With the port in it, since browsers keep one set of cookies for all ports of a host."""
    _, port = scope.get("server") or (None, None)
    return f"{COOKIE}_{port}"


def _framed(origin: str) -> dict[str, str]:
    if not _ORIGIN.fullmatch(origin):
        raise ConfigError(f"{origin!r} is no origin", remedy="Give that of the notebook: http://HOST:PORT.")
    headers = {name: value for name, value in HEADERS.items() if name != "X-Frame-Options"}
    policy = headers["Content-Security-Policy"]
    headers["Content-Security-Policy"] = policy.replace("frame-ancestors 'none'", f"frame-ancestors {origin}")
    return headers


class Guard:
    """An ASGI middleware around `app` for requests to `hosts`; with a `token`, for those that have it.

    Pages of the origin `frame`, a notebook's, may show ours in a frame; no others may. Raises `ConfigError`
    for what is no origin.
    """

    def __init__(
        self, app: App, hosts: Iterable[str] = LOOPBACK, token: str = "", frame: str | None = None
    ) -> None:
        self._app, self._hosts, self._token = app, frozenset(map(str.lower, hosts)), token
        self._headers = HEADERS if frame is None else _framed(frame)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket, which nothing here opens
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope)
        cookie = b""
        if refusal is None and self._token:
            given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
            if given and hmac.compare_digest(given.encode(), self._token.encode()):
                cookie = f"{_cookie_name(scope)}={self._token}; HttpOnly; SameSite=Strict; Path=/".encode()
            elif not self._has_cookie(scope):
                refusal = (403, "This server asks for the token that stands in the address it printed.")

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                found = [(k, v) for k, v in message.get("headers", []) if k.lower() != b"server"]
                found += [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
                if cookie:
                    found.append((b"set-cookie", cookie))
                message["headers"] = found
            await send(message)

        if refusal is not None:
            status, text = refusal
            body = text.encode()
            start = {"type": "http.response.start", "status": status}
            headers = [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", b"%d" % len(body)),
            ]
            await with_headers({**start, "headers": [*headers, (b"cache-control", b"no-store")]})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
            return
        await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1"))
        hosts = headers.get(b"host", [])
        # By the address that the connection came to, too: no foreign page has a number as its name.
        own, _ = scope.get("server") or (None, None)
        if len(hosts) != 1 or host_name(hosts[0]) not in {*self._hosts, own}:
            return 421, "This server does not answer for that host."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "Only GET and HEAD: this server changes nothing."
        if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > MAX_TARGET_BYTES:
            return 414, "That address is too long."
        if scope["path"].startswith("/api/"):
            site = headers.get(b"sec-fetch-site", ["none"])
            origin = headers.get(b"origin", [])
            if site[-1] not in ("same-origin", "none") or len(site) > 1:
                return 403, "Data is given to pages of this server only."
            if origin and (len(origin) > 1 or origin[0].partition("://")[2] != hosts[0]):
                return 403, "Data is given to pages of this server only."
        return None

    def _has_cookie(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name.lower() == b"cookie":
                try:
                    found = SimpleCookie(value.decode("latin-1")).get(_cookie_name(scope))
                except CookieError:
                    continue
                if found is not None and hmac.compare_digest(found.value.encode(), self._token.encode()):
                    return True
        return False
