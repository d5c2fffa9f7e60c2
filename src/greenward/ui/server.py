"""The local server of the pages: routes, files of the page, and the start and end of it.

It reads and never writes below the folders that it shows. Paths of the page are fixed names; runs are looked
up by identifier in the catalog.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from greenward.common.errors import GreenwardError, RunError
from greenward.common.files import UNEXPECTED
from greenward.reports.svg import standalone
from greenward.runs.files import dump_json
from greenward.runs.selection import Selection, parse_query
from greenward.ui import audits, comparing
from greenward.ui.bundle import write_bundle
from greenward.ui.cache import Cache
from greenward.ui.catalog import Catalog, Place
from greenward.ui.data import CHART_SIZE, MAX_ROWS, Pages, tokens_of
from greenward.ui.logs import BesideLogs, LogStore
from greenward.ui.process import WorkerProcess
from greenward.ui.recognized import Recognized
from greenward.ui.security import LOOPBACK, Guard
from greenward.ui.verdicts import Verdicts

PORT = 7117
PORTS_TRIED = 50
MAX_KEYS = 64
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
}
NO_STORE = {"Cache-Control": "no-store"}
VIEW_KEYS = frozenset({"first", "count", "fold"})
"""Parameters of a list of answers that are no conditions."""


def assets() -> dict[str, tuple[bytes, str]]:
    """The files of the page by their path: content and media type."""
    found = {}
    waiting = [(files("greenward.ui") / "static", "")]
    while waiting:
        folder, prefix = waiting.pop()
        for one in folder.iterdir():
            if one.is_dir():
                waiting.append((one, f"{prefix}{one.name}/"))
            elif (kind := TYPES.get(Path(one.name).suffix)) is not None:
                found[f"{prefix}{one.name}"] = (one.read_bytes(), kind)
    return found


class _Asset:
    def __init__(self, content: bytes, kind: str) -> None:
        self.content, self.kind = content, kind
        self.packed = gzip.compress(content, 9, mtime=0)
        self.tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    def response(self, request: Request) -> Response:
        headers = {"ETag": self.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        content = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers["Content-Encoding"] = self.packed, "gzip"
        return Response(content, media_type=self.kind, headers=headers)


def _json(request: Request, value: Any) -> Response:
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a file of a run has NaN, which no browser takes for JSON
        text = dump_json(value)
    content = text.encode()
    headers = dict(NO_STORE)
    if len(content) > 2048 and "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = gzip.compress(content, 3), "gzip"
    return Response(content, media_type="application/json", headers=headers)


def _response(request: Request, found: Any) -> Response:
    return found if isinstance(found, Response) else _json(request, found)


def make_app(
    folders: Sequence[Path],
    *,
    cache: Path | None,
    hosts: Sequence[str] = LOOPBACK,
    token: str = "",
    frame: str | None = None,
) -> tuple[Guard, Pages]:
    """The ASGI application for some folders, and what it shows; close `pages` at the end."""
    pages = _pages(folders, cache)
    page_files = {name: _Asset(*found) for name, found in assets().items()}

    async def page(request: Request) -> Response:
        return page_files["index.html"].response(request)

    async def asset(request: Request) -> Response:
        found = page_files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "There is no such file.")
        return found.response(request)

    def place_of(request: Request) -> Place:
        found = pages.catalog.get(request.path_params["run"])
        if found is None:
            raise HTTPException(404, "There is no such run: it was moved or deleted.")
        return found

    def data(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def route(request: Request) -> Response:
            try:
                found = await run_in_threadpool(lambda: _response(request, answer(request)))
            except (GreenwardError, OSError) as error:
                said = getattr(error, "strerror", None) or str(error)
                return PlainTextResponse(said.partition("\n")[0], 422, headers=NO_STORE)
            except UNEXPECTED as error:
                said = f"A file has another form than a run writes ({type(error).__name__})."
                return PlainTextResponse(said, 422, headers=NO_STORE)
            return found

        return route

    def changes(request: Request) -> Any:
        name = request.query_params.get("run")
        found = pages.catalog.get(name) if name else None
        return (
            {"cursor": "", "running": False, "exists": False} if name and not found else pages.changes(found)
        )

    def series(request: Request) -> Any:
        place, chosen = place_of(request), _Chosen(request)
        content = pages.series(
            place, chosen.keys, low=chosen.low, high=chosen.high, points=chosen.points, window=chosen.window
        )
        return Response(content, media_type="application/octet-stream", headers=NO_STORE)

    def series_csv(request: Request) -> Any:
        place, chosen = place_of(request), _Chosen(request)
        rows = pages.series_rows(place, chosen.keys, chosen.low, chosen.high)
        return _download(rows, "text/csv", f"{place.id}-curves.csv")

    def series_svg(request: Request) -> Any:
        place, chosen = place_of(request), _Chosen(request)
        log = request.query_params.get("log") == "1"
        drawn = standalone(
            pages.chart(place, chosen.keys, low=chosen.low, high=chosen.high, log=log), *CHART_SIZE
        )
        return _download(iter([drawn]), "image/svg+xml", f"{place.id}.svg")

    def rollouts(request: Request) -> Any:
        place = place_of(request)
        selection, view = _query(request)
        return pages.answers(
            place,
            selection,
            first=_whole(view.get("first"), 0, 1 << 40),
            count=min(MAX_ROWS, max(1, _whole(view.get("count"), 60, MAX_ROWS))),
            fold=view.get("fold") == "1",
        )

    def rollout_file(form: str) -> Callable[[Request], Any]:
        def route(request: Request) -> Any:
            place = place_of(request)
            rows = pages.answer_rows(place, _query(request)[0], form)
            kind = "text/csv" if form == "csv" else "application/jsonl"
            return _download(rows, kind, f"{place.id}-rollouts.{form}")

        return route

    def rollout(request: Request) -> Any:
        found = pages.answer(place_of(request), request.path_params["step"], request.path_params["row"])
        if found is None:
            raise HTTPException(404, "There is no such answer: its file was cut or deleted.")
        return found

    def tokens(request: Request) -> Any:
        asked = request.query_params
        step, row = (_whole(asked.get(name), 0, 1 << 60) for name in ("step", "row"))
        return tokens_of(place_of(request), step, row)

    def compare(request: Request) -> Any:
        names = [name for name in request.query_params.get("runs", "").split(",") if name]
        places = [found for name in names if (found := pages.catalog.get(name)) is not None]
        missing = [name for name in names if pages.catalog.get(name) is None]
        if not places:
            raise HTTPException(404, "None of these runs is here.")
        return comparing.compared(pages, places[: comparing.MAX_RUNS], missing)

    def evaluation(request: Request) -> Any:
        asked = request.query_params
        step = _whole(asked.get("step"), -1, 1 << 60)
        place, at, suite = place_of(request), None if step < 0 else step, asked.get("suite") or None
        if (task := asked.get("task")) is not None:
            return comparing.evaluated_answers(place, task, at, suite)
        return comparing.evaluated(place, at, suite)

    def group(request: Request) -> Any:
        asked = request.query_params
        step = _whole(asked.get("step"), 0, 1 << 60)
        return comparing.group(pages, place_of(request), step, asked.get("group", ""))

    def problem(request: Request) -> Any:
        return comparing.problem(pages, place_of(request), request.query_params.get("task", ""))

    def audit(request: Request) -> Any:
        found = pages.catalog.audit(request.path_params["audit"])
        if found is None:
            raise HTTPException(404, "There is no such audit: its file was moved or deleted.")
        named = request.query_params.get("run")
        run = pages.catalog.get(named) if named else None
        return audits.audit(found) if run is None else audits.audit_in(pages.store, run, found)

    run = "/api/v1/runs/{run}"
    routes = {
        "/api/v1/runs": lambda request: pages.runs(),
        "/api/v1/changes": changes,
        run: lambda request: pages.run(place_of(request)),
        f"{run}/marks": lambda request: pages.marks(place_of(request)),
        "/api/v1/compare": compare,
        "/api/v1/audits/{audit}": audit,
        f"{run}/evaluation": evaluation,
        f"{run}/group": group,
        f"{run}/problem": problem,
        f"{run}/tokens": tokens,
        f"{run}/series": series,
        f"{run}/series.csv": series_csv,
        f"{run}/series.svg": series_svg,
        f"{run}/rollouts": rollouts,
        f"{run}/rollouts.csv": rollout_file("csv"),
        f"{run}/rollouts.jsonl": rollout_file("jsonl"),
        f"{run}/rollouts/{{step:int}}/{{row:int}}": rollout,
    }
    shown = ("/", "/r/{run}", "/r/{run}/{rest:path}", "/compare", "/audit/{audit}")
    app = Starlette(
        routes=[
            *(Route(path, data(answer)) for path, answer in routes.items()),
            Route("/static/{name:path}", asset),
            *(Route(path, page) for path in shown),
        ],
        exception_handlers={HTTPException: _refused},
    )
    return Guard(app, hosts, token, frame), pages


def _pages(folders: Sequence[Path], cache: Path | None) -> Pages:
    kept, worker = Cache(cache), WorkerProcess()
    beside, recognized = BesideLogs(kept, worker), Recognized(kept, worker)
    store = LogStore(kept, beside)
    catalog = Catalog(folders, kept, recognized)
    return Pages(catalog, store, Verdicts(kept, store.file, worker), (recognized, beside, worker, kept))


def write_pages(folders: Sequence[Path], out: Path, *, cache: Path | None = None) -> int:
    """Write the pages into the new folder `out`, as files for any static host; returns their number.

    Raises `RunError` as `write_bundle` does.
    """
    pages = _pages(folders, cache)
    try:
        return write_bundle(pages, assets(), out)
    finally:
        pages.close()


class _Chosen:
    """What a request for curves asks for."""

    def __init__(self, request: Request) -> None:
        found = request.query_params
        self.keys = found.getlist("key")[:MAX_KEYS]
        self.low, self.high = _float(found.get("from"), -math.inf), _float(found.get("to"), math.inf)
        self.points = _whole(found.get("px"), 600, 1 << 20)
        self.window = _whole(found.get("smooth"), 1, 1 << 20)


def _whole(text: str | None, usual: int, most: int) -> int:
    return min(int(text), most) if text and text.isascii() and text.isdecimal() and len(text) < 18 else usual


def _float(text: str | None, usual: float) -> float:
    try:
        found = float(text or "")
    except ValueError:
        return usual
    return usual if math.isnan(found) else found


def _query(request: Request) -> tuple[Selection, dict[str, str]]:
    parts = request.url.query.split("&")
    own = [part for part in parts if unquote(part.partition("=")[0]) in VIEW_KEYS]
    return parse_query("&".join(part for part in parts if part not in own)), dict(parse_qsl("&".join(own)))


def _download(rows: Iterator[str], kind: str, name: str) -> Response:
    first = next(rows, "")  # before the status is sent, since what cannot be read raises here
    content = (row.encode("utf-8", "backslashreplace") for row in chain([first], rows))
    headers = {"Content-Disposition": f'attachment; filename="{name}"', **NO_STORE}
    return StreamingResponse(content, media_type=kind, headers=headers)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(error.detail, error.status_code, headers=NO_STORE)


def listen(host: str, port: int) -> socket.socket:
    """A socket at `port`, or at the next one that is free. Raises `RunError` where none is."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = ""
    for number in range(port, min(port + PORTS_TRIED, 1 << 16)):
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(128)
        except OSError as error:
            found.close()
            reason = error.strerror or str(error)
            continue
        return found
    raise RunError(f"no port from {port} on {host} is free: {reason}", remedy="Give another one with --port.")


def serve(
    folders: Sequence[Path],
    *,
    host: str = LOOPBACK[0],
    port: int = PORT,
    cache: Path | None = None,
    frame: str | None = None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the pages until Ctrl-C. `ready` is called with the address once connections are accepted.

    On another host than this machine itself each request needs a token, which is part of that address. Pages
    of the origin `frame` may show these in a frame.
    Raises `RunError` when no port is free.
    """
    import uvicorn

    opened = listen(host, port)
    is_local = host in LOOPBACK
    token = "" if is_local else secrets.token_urlsafe(24)
    hosts = LOOPBACK if is_local else (*LOOPBACK, host, socket.gethostname(), socket.getfqdn())
    app, pages = make_app(folders, cache=cache, hosts=hosts, token=token, frame=frame)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{opened.getsockname()[1]}/" + (f"?token={token}" if token else "")
    settings = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=0,
        h11_max_incomplete_event_size=32 << 10,
        http="h11",
        ws="none",
    )
    server = uvicorn.Server(settings)

    def announce() -> None:
        while not server.started and not server.should_exit:
            if finished.wait(0.01):
                return
        if server.started:
            ready(url)

    finished = threading.Event()
    threading.Thread(target=announce, daemon=True).start()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    # The server stops at a signal, and then raises it again for the handlers that were there before it.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[opened])
    except KeyboardInterrupt:
        pass
    finally:
        finished.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        pages.close()
        opened.close()
