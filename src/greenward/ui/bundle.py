"""The pages as files for any static host: the same scripts, over answers of the server that were kept.

Addresses of pages are behind a `#`, and data is looked up by its address in `data/index.json`. What depends
on a choice without end (other conditions for answers, finer curves, texts to search for) is left to the
server; what the pages of a run lead to is kept, so far as `MAX_…` allows:

- curves of at most 600 points; those that are shown first and those with findings also as SVG and, of runs of
  up to 20,000 steps with all points, CSV;
- the first 5,000 answers of a run, in which the page looks up conditions on steps, statuses, problems,
  rewards and lengths; those behind each finding and of each status (512 of each list, 300 in full), also of
  other trainers' logs;
- the newest evaluation by problem, and comparisons of each two of the first six runs.

Search, other orders, conditions on terms, groups or percentiles, files of answers and PNG need the server,
and the pages say so. So does `--frame`, since who may frame the files is for their host to say.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from itertools import permutations
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import quote, unquote

from greenward.common.errors import GreenwardError, RunError
from greenward.common.files import UNEXPECTED
from greenward.reports.svg import standalone
from greenward.runs.files import dump_json, writing
from greenward.runs.selection import parse_query
from greenward.ui import audits, comparing
from greenward.ui.catalog import Place
from greenward.ui.data import CHART_SIZE, MAX_ROWS, Pages, tokens_of
from greenward.ui.security import HEADERS
from greenward.ui.verdicts import findings_in

MAX_RUNS = 20
MAX_COMPARED = 6  # runs, each pair of which is compared
MAX_KEYS = 400
MAX_POINTS = 600
MAX_FILES = 24  # curves of a run that are saved as CSV and SVG
MAX_ROWS_OF_FILE = 20_000
MAX_LISTED = 5000  # answers of a run that are filtered in the browser
MAX_DETAILS = 300  # answers of a run, with their groups and problems
MAX_PROBLEMS = 200  # of the newest evaluation
MAX_EVALUATIONS = 20
SECONDS_FOR_DIAGNOSIS = 600.0
CHOSEN = ("first", "count", "px", "smooth", "from", "to")
FOLDED = "fold=1"
SELECTIONS = ("", "passed=0", "passed=0&sort=-reward", "sort=-reward", "sort=-tokens", FOLDED)


def write_bundle(pages: Pages, assets: dict[str, tuple[bytes, str]], out: Path) -> int:
    """Write the pages of all runs into the new folder `out`, and return how many files it has.

    Raises `RunError` where `out` exists, lies in a folder that is shown, or there are too many runs.
    """
    if os.path.lexists(out):
        raise RunError(f"{out} exists", remedy="Name a folder that does not exist: nothing is overwritten.")
    real = Path(os.path.realpath(out))
    if any(real.is_relative_to(folder) for folder in pages.catalog.folders):
        raise RunError(f"{out} lies in a folder that is shown", remedy="Name one outside of it.")
    places = _diagnosed(pages)
    if not places and not pages.catalog.audits:
        raise RunError("there is no run below the folders", remedy="Name a folder with runs in it.")
    with writing(str(out)):
        temporary = Path(mkdtemp(prefix=f".{out.name}.", dir=real.parent))
        try:
            _write(pages, places, assets, temporary)
            temporary.chmod(0o755)
            os.rename(temporary, real)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return sum(one.is_file() for one in real.rglob("*"))


def _diagnosed(pages: Pages) -> list[Place]:
    """The runs, once each is diagnosed, as far as that is done in time. Raises `RunError` for too many."""
    until = time.monotonic() + SECONDS_FOR_DIAGNOSIS
    waiting = True
    while waiting and time.monotonic() < until:
        places = list(pages.catalog.places().values())
        if len(places) > MAX_RUNS:
            raise RunError(
                f"{len(places)} runs are below the folders; a bundle has at most {MAX_RUNS}",
                remedy="Name the runs that you mean.",
            )
        found = [pages.verdict(one, first=True) for one in places if not one.parent]
        waiting = pages.catalog.waiting > 0 or any(one is None or one.get("outdated") for one in found)
        inner = sum(len((one or {}).get("inner", ())) for one in found)
        waiting = waiting or inner > sum(one.inner is not None for one in places)
        if waiting:
            time.sleep(0.2)
    return places


def _write(pages: Pages, places: Sequence[Place], assets: dict[str, tuple[bytes, str]], out: Path) -> None:
    for name, (content, _) in assets.items():
        if name == "index.html":
            (out / name).write_bytes(_index(content))
            continue
        file = out / "static" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".js") and not name.startswith("vendor/"):
            content = content.replace(b'"/static/', b'"' + b"../" * name.count("/") + b"./")
        file.write_bytes(content)
    (out / "data").mkdir()
    index: dict[str, str] = {}
    for address, content in _answers(pages, places):
        key = canonical(address)
        if key in index:
            continue
        if isinstance(content, str):
            index[key] = f"{len(index):06}{Path(address.partition('?')[0]).suffix}"
            (out / "data" / index[key]).write_text(content, encoding="utf-8", errors="backslashreplace")
        elif isinstance(content, bytes):
            index[key] = f"{len(index):06}.bin"
            (out / "data" / index[key]).write_bytes(content)
        else:
            index[key] = f"{len(index):06}.json"
            text = _without_places(dump_json(content), pages.catalog.folders)
            (out / "data" / index[key]).write_text(text, encoding="utf-8")
    (out / "data" / "index.json").write_text(dump_json(index), encoding="utf-8")


def _without_places(text: str, folders: Sequence[Path]) -> str:
    """The text with the names of the folders for where they lie, which messages about files say.

    Inner folders come first. Other paths stay: an answer may have them in its program.
    """
    for folder in sorted(folders, key=lambda one: -len(one.parts)):
        if folder.name:
            text = text.replace(dump_json(str(folder))[1:-1], dump_json(folder.name)[1:-1])
    return text


def _index(content: bytes) -> bytes:
    policy = HEADERS["Content-Security-Policy"].replace("frame-ancestors 'none'; ", "")  # of a header only
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
    text = content.decode().replace("/static/", "static/").replace("<html ", "<html data-bundled ", 1)
    return text.replace("<head>\n", f"<head>\n{meta}\n", 1).encode()


def canonical(address: str) -> str:
    """An address without the parts that are chosen by looking on, in the one form that both sides make."""
    path, _, query = address.partition("?")
    parts = sorted(unquote(part) for part in query.split("&") if part)
    kept = [part for part in parts if part.partition("=")[0] not in CHOSEN]
    return "?".join([unquote(path), "&".join(kept)]) if kept else unquote(path)


def _answers(pages: Pages, places: Sequence[Place]) -> Iterator[tuple[str, Any]]:
    """(address, answer) of all that is kept. What cannot be read is left out: the server refuses it, too."""
    listed = pages.runs()
    yield "/api/v1/runs", {**listed, "folders": [folder.name for folder in pages.catalog.folders]}
    for one in pages.catalog.audits.values():
        yield from _kept(f"/api/v1/audits/{_part(one.id)}", audits.audit, one)
    for place in places:
        yield from _of_run(pages, place)
    own = [place for place in places if not place.parent][:MAX_COMPARED]
    for a, b in permutations(own, 2):
        yield from _kept(f"/api/v1/compare?runs={a.id},{b.id}", comparing.compared, pages, [a, b])


def _part(text: str) -> str:
    return quote(text, errors="replace")  # a name may hold what UTF-8 does not have


def _kept(address: str, answer: Callable[..., Any], *asked: Any) -> Iterator[tuple[str, Any]]:
    with suppress(GreenwardError, OSError, *UNEXPECTED):
        yield address, answer(*asked)


def _of_run(pages: Pages, place: Place) -> Iterator[tuple[str, Any]]:
    base = f"/api/v1/runs/{_part(place.id)}"
    run = {**pages.run(place), "root": "", "path": place.name}
    keys = [*run["curated"], *(key for section in run["keys"] for key in section["keys"])]
    chosen = list(dict.fromkeys(keys))[:MAX_KEYS]
    infinite = float("inf")
    yield base, run
    whole = partial(pages.series, low=-infinite, high=infinite, points=MAX_POINTS, window=1)
    yield from _kept(f"{base}/series", whole, place, chosen)
    marked = [key for mark in pages.marks(place) for key in mark["signals"]]
    for key in [one for one in dict.fromkeys([*run["curated"], *marked]) if one in chosen][:MAX_FILES]:
        asked = f"key={_part(key)}"
        yield from _kept(f"{base}/series.svg?{asked}", _drawn, pages, place, key)
        if run["rows"] <= MAX_ROWS_OF_FILE:
            yield from _kept(f"{base}/series.csv?{asked}", _all_points, pages, place, key)
    for one in pages.catalog.audits_of(place):
        address = f"/api/v1/audits/{_part(one.id)}?run={_part(place.id)}"
        yield from _kept(address, audits.audit_in, pages.store, place, one)
    if run["has_answers"]:
        yield from _kept_answers(pages, place, base)
    if not place.logs:
        yield from _evaluations(place, base)


def _all_points(pages: Pages, place: Place, key: str) -> str:
    return "".join(pages.series_rows(place, [key], -float("inf"), float("inf")))


def _drawn(pages: Pages, place: Place, key: str) -> str:
    infinite = float("inf")
    return standalone(pages.chart(place, [key], low=-infinite, high=infinite, log=False), *CHART_SIZE)


def _kept_answers(pages: Pages, place: Place, base: str) -> Iterator[tuple[str, Any]]:
    until = time.monotonic() + SECONDS_FOR_DIAGNOSIS
    try:
        while pages.store.answers(place).share < 1 and time.monotonic() < until:
            if place.logs:
                time.sleep(0.1)  # the worker converts them; of a run's own, each look reads on for a while
    except OSError:  # the folder is a link
        return
    columns = pages.store.answers(place).columns
    findings = [one["selection"] for one in findings_in(pages.linked(place) or {}) if one["selection"]]
    statuses = [f"status={_part(name)}" for name in columns.codes["status"].names[:20]]
    shown: dict[tuple[int, int], dict[str, Any]] = {}
    for selection in dict.fromkeys([*findings, *SELECTIONS, *statuses]):
        conditions = "" if selection == FOLDED else selection
        count = MAX_ROWS if selection else MAX_LISTED
        found = pages.answers(place, parse_query(conditions), first=0, count=count, fold=selection == FOLDED)
        yield f"{base}/rollouts?{selection}", found
        for row in found["rows"][: MAX_DETAILS - len(shown)]:
            shown.setdefault((row["step"], row["row"]), row)
    for step, number in shown:
        yield from _kept(f"{base}/rollouts/{step}/{number}", pages.answer, place, step, number)
        yield from _kept(f"{base}/tokens?step={step}&row={number}", tokens_of, place, step, number)
    for step, group in dict.fromkeys((row["step"], row["group"]) for row in shown.values()):
        address = f"{base}/group?step={step}&group={_part(group)}"
        yield from _kept(address, comparing.group, pages, place, step, group)
    for task in dict.fromkeys(row["task"] for row in shown.values()):
        yield from _kept(f"{base}/problem?task={_part(task)}", comparing.problem, pages, place, task)


def _evaluations(place: Place, base: str) -> Iterator[tuple[str, Any]]:
    try:
        newest = comparing.evaluated(place, None, None)
    except (GreenwardError, OSError, *UNEXPECTED):
        return
    yield f"{base}/evaluation", newest
    for step, suite in newest["steps"][-MAX_EVALUATIONS:]:
        named = f"&suite={_part(suite)}" if suite else ""
        yield from _kept(f"{base}/evaluation?step={step}{named}", comparing.evaluated, place, step, suite)
    for task, *_ in newest["problems"][:MAX_PROBLEMS]:
        yield from _kept(f"{base}/evaluation?task={_part(task)}", comparing.evaluated_answers, place, task)
