"""Writes every chart and table of a report as files for other programs: SVG, PNG, CSV and JSON Lines.

They are made from the blocks that the report shows. A chart is NAME.svg and NAME.csv, which holds each point
that is drawn, and NAME.png where that is asked for; a table is NAME.csv and NAME.jsonl. NAME is made of the
titles of the section and of the block, in letters, digits and hyphens of ASCII only, because titles may hold
names that somebody else chose.

CSV is that of RFC 4180 in UTF-8. Its texts have their hidden characters replaced, as in every other form, and
an apostrophe before one that a spreadsheet would take for a formula; numbers are unrounded. JSON Lines hold
the texts as they are.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import io
import json
import os
import re
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from greenward.common.errors import RunError
from greenward.common.text import visible
from greenward.reports.document import Chart, Charts, Report, Table
from greenward.reports.svg import printed, printed_size
from greenward.runs.files import dump_json, write_atomically
from greenward.runs.output import check_folder, claim_folder

BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)  # fmt: skip
_OPTIONS = ("--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars")
_SCALE = 2  # points of the picture for one of the drawing
_SECONDS = 60.0  # for each answer of the browser
_ABOVE = 10  # those that the browser uses
_MAX_NAME = 100  # characters
_FORMULA = re.compile(
    r"[=@\t\uff1d\uff20\uff0b\uff0d]|[-+](?![-+\u2212\d\s.,%\[\]]*\Z)"  # figures with a sign compute nothing
)


def write_export(report: Report, folder: Path, *, overwrite: bool = False, png: bool = False) -> list[Path]:
    """Writes the charts and tables of a report into `folder`, which is made; returns the paths.

    With `png`, a browser of this machine makes a picture of each chart (`pictures`). Raises `RunError` where
    it does not, for a folder that is not greenward's or is no folder of reports, for a file that is there
    already unless `overwrite` replaces it, and when the file system refused. Nothing is written then but what
    came before the refusal of the file system.
    """
    if check_folder(folder, "report") not in (None, "report"):
        raise RunError(
            f"{folder}: expected a folder of reports, found a run, an evaluation or a model.",
            remedy="Choose an absent or empty folder; nothing in this one was changed.",
        )
    texts = dict(exported(report))
    contents = {folder / name: content.encode() for name, content in texts.items()}
    if png:
        drawings = [Path(name) for name in texts if name.endswith(".svg")]
        drawn = pictures((texts[str(name)] for name in drawings), *printed_size())
        contents |= {
            folder / name.with_suffix(".png"): one for name, one in zip(drawings, drawn, strict=True)
        }
    if not overwrite and (existing := [path for path in contents if path.exists()]):
        raise RunError(
            f"{existing[0]} exists already.", remedy="Choose another folder, or replace it by --overwrite."
        )
    claim_folder(folder, "report")
    for path, content in contents.items():
        write_atomically(path, content, forced=False)
    return list(contents)


def exported(report: Report) -> Iterator[tuple[str, str]]:
    """The name and the text of each file of `write_export`, in the order of the report."""
    names: set[str] = set()
    for section in report.sections:
        for block in section.blocks:
            parts = block.charts if isinstance(block, Charts) else (block,)
            for part in parts:
                if not isinstance(part, Chart | Table):
                    continue
                name = _unused(_slug(section.title, part.title), names)
                if isinstance(part, Chart):
                    yield f"{name}.svg", printed(part)
                    yield f"{name}.csv", _csv(chart_rows(part))
                else:
                    columns, *rows = table_rows(part)
                    yield f"{name}.csv", _csv((columns, *rows))
                    lines = (dump_json(dict(zip(columns, row, strict=True))) for row in rows)
                    yield f"{name}.jsonl", "".join(f"{line}\n" for line in lines)


def chart_rows(chart: Chart) -> Iterator[tuple[str | float, ...]]:
    """A row for each point that a chart shows, after a row of names; the x column has the name of the axis.

    Lines are numbered from 1, because a faint one has no name. Points of a band without one of the line have
    no value, and neither has a marker, whose label stands in the place of the line's name.
    """
    yield "line", "series", "weight", chart.x_label, "value", "low", "high"
    for number, line in enumerate(chart.series, start=1):
        bounds: dict[float, tuple[float, ...]] = {x: (low, high) for x, low, high in line.band}
        for x, y in line.points:
            yield number, line.name, line.weight, x, y, *bounds.pop(x, ("", ""))
        for x, (low, high) in bounds.items():
            yield number, line.name, line.weight, x, "", low, high
    for marker in chart.markers:
        yield "", marker.label, "marker", marker.x, "", "", ""


def table_rows(table: Table) -> Iterator[tuple[str | float, ...]]:
    """The rows of a table after a row of names, each of which is given once.

    A column without a name becomes `column`. Numbers that are drawn beside a table are its last column.
    """
    names: set[str] = set()
    drawn = ("drawn",) if table.shares else ()
    yield tuple(_unused(column or "column", names) for column in (*table.columns, *drawn))
    for index, row in enumerate(table.rows):
        share = table.shares[index] if index < len(table.shares) else ""
        yield (*row, share) if drawn else row


def _slug(*titles: str) -> str:
    text = re.sub(r"[^a-z0-9]+", "-", " ".join(titles).lower())[:_MAX_NAME].strip("-")
    return text or "untitled"


def _unused(name: str, names: set[str]) -> str:
    """The name, numbered if it is one of `names`, to which it is added."""
    number, found = 1, name
    while found in names:
        number += 1
        found = f"{name}-{number}"
    names.add(found)
    return found


def _csv(rows: Iterable[Sequence[str | float]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)  # the usual dialect is that of RFC 4180
    writer.writerows([_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return text.getvalue()


def _cell(text: str) -> str:
    text = visible(text)
    return f"'{text}" if _FORMULA.match(text) else text


def pictures(drawings: Iterable[str], width: int, height: int) -> Iterator[bytes]:
    """A PNG of each SVG of this size, at twice its points.

    Raises `RunError` where there is no browser, or it does not do what it is told.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise RunError(
            "PNG is drawn by a browser of the Chromium family, and none was found.",
            remedy="Install chromium or google-chrome, or leave out --png: SVG has the same charts.",
        )
    with _Browser(browser) as page:
        size = {"width": width, "height": height, "deviceScaleFactor": _SCALE, "mobile": False}
        page.ask("Emulation.setDeviceMetricsOverride", size)
        light = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
        page.ask("Emulation.setEmulatedMedia", light)
        page.ask("Page.enable")
        for drawing in drawings:
            address = "data:image/svg+xml;base64," + base64.b64encode(drawing.encode()).decode()
            page.ask("Page.navigate", {"url": address})
            page.wait_for("Page.loadEventFired")
            yield base64.b64decode(page.ask("Page.captureScreenshot", {"format": "png"})["data"])


class _Browser:
    """A browser of the Chromium family with one page, without a window, from entering until leaving.

    It is told what to do through two pipes (its DevTools protocol), gets each drawing as a `data:` address,
    and touches no network. greenward depends on nothing else that could make pictures of drawings.
    """

    def __init__(self, program: str) -> None:
        self._program, self._session, self._number = program, "", 0
        self._received, self._events = b"", list[str]()

    def __enter__(self) -> _Browser:
        with ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="greenward-", ignore_cleanup_errors=True)
            profile = stack.enter_context(folder)
            read_by_it, self._commands = _pipe()
            self._replies, written_by_it = _pipe()
            for one in (self._commands, self._replies):
                stack.callback(os.close, one)
            as_root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # it refuses to run with its own one
            command = (self._program, *_OPTIONS, *as_root, f"--user-data-dir={profile}", "about:blank")
            nothing = [(os.POSIX_SPAWN_OPEN, one, os.devnull, os.O_RDWR, 0) for one in range(3)]
            pipes = [(os.POSIX_SPAWN_DUP2, read_by_it, 3), (os.POSIX_SPAWN_DUP2, written_by_it, 4)]
            process = os.posix_spawn(self._program, command, os.environ, file_actions=[*nothing, *pipes])
            stack.callback(os.waitpid, process, 0)
            stack.callback(os.kill, process, signal.SIGKILL)
            for one in (read_by_it, written_by_it):
                os.close(one)
            target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
            attached = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})
            self._session = attached["sessionId"]
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def ask(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters or {}}
        if self._session:
            command["sessionId"] = self._session
        self._events.clear()
        message = json.dumps(command).encode() + b"\0"
        try:
            while message:
                message = message[os.write(self._commands, message) :]
        except OSError:
            raise self._failure("it ended") from None
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "result" not in answer:
                    raise self._failure(f"{method}: {answer.get('error', {}).get('message', '')}")
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer.get("method", ""))

    def wait_for(self, event: str) -> None:
        """Until an event that came with the last command, or comes after it."""
        while event not in self._events:
            self._events.append(self._next().get("method", ""))

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                raise self._failure(f"it did not answer within {_SECONDS:g} s")
            block = os.read(self._replies, 1 << 20)
            if not block:
                raise self._failure("it ended")
            self._received += block
        message, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _failure(self, why: str) -> RunError:
        return RunError(
            f"{self._program} drew no PNG: {why}.", remedy="Leave out --png, and use the SVG files."
        )


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, above the descriptors that the browser expects them as."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for one in ends)
    for one in ends:
        os.close(one)
    return read, write
