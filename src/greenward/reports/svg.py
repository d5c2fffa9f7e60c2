"""Draws charts as inline SVG: axes, bands, lines, markers, labels, values on hovering. There is no script.

Colours come from the page's style sheet by class names, so one drawing serves light, dark and print. Long
lines are thinned to `MAX_POINTS` by largest triangles (Steinarsson 2013, LTTB). `_element` escapes every
text.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from operator import itemgetter
from statistics import fmean

from markupsafe import Markup, escape

from greenward.common.text import REPLACEMENT, visible
from greenward.reports.document import Chart, Marker, Series, value_text

MAX_POINTS = 160
MAX_FAINT_POINTS = 90
MAX_HOVER_COLUMNS = 48
_LABEL_HEIGHT = 13.0
_LOG_LIMIT = 700.0  # natural logarithm of about the largest float
_CHARACTER_WIDTH = 6.4
_MAX_LABEL_CHARACTERS = 24
_MARGIN, _MARGIN_OF_LABELS = 10, 48

Point = tuple[float, float]


def draw(chart: Chart, width: int = 460, height: int = 260) -> Markup:
    """The chart as an `<svg>` element that scales to its container."""
    return _Drawing(chart, width, height).svg()


def standalone(chart: Chart, width: int = 560, height: int = 420) -> str:
    """The chart as an SVG file of its own, with the colours of the page inside it."""
    start, rest = str(draw(chart, width, height)).split(">", 1)
    paper = '<rect class="paper" width="100%" height="100%"/>'
    drawing = f'{start} xmlns="http://www.w3.org/2000/svg"><style>{style_sheet()}</style>{paper}{rest}\n'
    return re.sub("[\ufffe\uffff]", REPLACEMENT, drawing)  # which XML cannot hold


def printed(chart: Chart, width: int = 560, height: int = 420) -> str:
    """As `standalone`, for paper and programs that know no page: its light colours, and a size.

    A margin holds what a wider font than that of the page needs. The size is that of `printed_size`.
    """
    start, rest = str(draw(chart, width, height)).split(">", 1)
    whole = printed_size(width, height)
    size = f'width="{whole[0]}" height="{whole[1]}"'
    box = f'viewBox="-{_MARGIN} -{_MARGIN} {whole[0]} {whole[1]}" {size} xmlns="http://www.w3.org/2000/svg"'
    start = start.replace(f'viewBox="0 0 {width} {height}"', box, 1)
    paper = f'<rect class="paper" x="-{_MARGIN}" y="-{_MARGIN}" {size}/>'
    drawing = f"{start}><style>{_printed_style()}</style>{paper}{rest}\n"
    return re.sub("[\ufffe\uffff]", REPLACEMENT, drawing)


def printed_size(width: int = 560, height: int = 420) -> tuple[int, int]:
    """The size of what `printed` makes of a chart of this size."""
    return width + _MARGIN + _MARGIN_OF_LABELS, height + 2 * _MARGIN


def _printed_style() -> str:
    """The rules of charts, each a line of the style sheet, with the values of its light colours."""
    style = style_sheet()
    light = dict(re.findall(r"(--[\w-]+): ([^;]+);", style.partition("@media")[0]))
    of_charts = (".chart ", ".line", ".band", ".dot", ".hover", ".marker", ".paper")
    rules = (line for line in style.splitlines() if line.startswith(of_charts) and "display:" not in line)
    return re.sub(r"var\((--[\w-]+)\)", lambda name: light[name[1]], "\n".join(rules))


def style_sheet() -> str:
    """The style sheet of the page and of the SVG files."""
    return (files("greenward.reports") / "report.css").read_text()


def stacked_bar(parts: Sequence[tuple[str, float]]) -> Markup:
    """One bar cut into parts by share, coloured by the classes `part-0`, `part-1` …"""
    width, height = 960, 22
    total = sum(value for _, value in parts)
    x, pieces = 0.0, []
    for index, (name, value) in enumerate(parts):
        title = _element("title", f"{name}: {value / total:.1%}")
        length = value / total * width
        shape = {"x": x, "y": 0, "width": max(length - 2, 0.5), "height": height, "rx": 3}
        pieces.append(_element("rect", title, class_=f"part-{index}", **shape))
        x += length
    box = {"viewBox": f"0 0 {width} {height}", "preserveAspectRatio": "none"}
    return _element("svg", *pieces, class_="bar", **box, role="img", aria_label="shares by part")


def colour_key(index: int) -> Markup:
    """The colour of a part of a stacked bar, for the row of a table."""
    square = _element("rect", class_=f"part-{index}", width=10, height=10, rx=2)
    return _element("svg", square, class_="key", viewBox="0 0 10 10")


def _element(tag: str, *content: str, **attributes: str | float) -> Markup:
    """An element of SVG. Text and attributes are made visible and escaped; Markup is taken as it is.

    Attributes are named as in Python: `class_` is class and `text_anchor` text-anchor.
    """
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for name, value in attributes.items()
    )
    inside = "".join(part if isinstance(part, Markup) else escape(visible(part)) for part in content)
    return Markup(f"<{tag}{shown}>{inside}</{tag}>" if content else f"<{tag}{shown}/>")


def _text(value: str | float) -> str:
    return f"{value:.1f}" if isinstance(value, float) else visible(str(value))


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """At most `limit` points that keep the shape of the line: largest triangle of each bucket."""
    if len(points) <= limit:
        return list(points)
    bucket = (len(points) - 2) / (limit - 2)
    kept = [points[0]]
    for index in range(limit - 2):
        start, end = int(index * bucket) + 1, int((index + 1) * bucket) + 1
        following = points[end : max(int((index + 2) * bucket) + 1, end + 1)]
        next_x = sum(x for x, _ in following) / len(following)
        next_y = sum(y for _, y in following) / len(following)
        last_x, last_y = kept[-1]
        kept.append(
            max(
                points[start:end],
                key=lambda p: abs((last_x - next_x) * (p[1] - last_y) - (last_x - p[0]) * (next_y - last_y)),
            )
        )
    return [*kept, points[-1]]


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2, 2.5 or 5 times a power of ten) within the range."""
    if high <= low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.75)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the range; where there are fewer than two, 2 and 5 times them as well."""
    powers = [10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    whole = [power for power in powers if low <= power <= high]
    if len(whole) >= 2:
        return whole[:: -(-len(whole) // 6)]
    return [m * power for power in powers for m in (1, 2, 5) if low <= m * power <= high]


class _Drawing:
    def __init__(self, chart: Chart, width: int, height: int) -> None:
        self._chart = chart
        self._width, self._height = width, height
        self._scale: Callable[[float], float] = math.log if chart.log else float
        xs = [x for line in chart.series for x, _ in line.points]
        self._x_low, self._x_high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
        self._y_low, self._y_high = self._y_range()
        if chart.log:
            self._y_ticks = log_ticks(math.exp(self._y_low), math.exp(self._y_high))
        else:
            self._y_ticks = ticks(self._y_low, self._y_high, 5)
        axis_texts = [value_text(tick, chart.unit) for tick in self._y_ticks]
        longest_label = max((len(_label(line.name)) for line in chart.series), default=0)
        self._left = 12 + _CHARACTER_WIDTH * max(map(len, axis_texts), default=1)
        self._right = 14 + _CHARACTER_WIDTH * longest_label
        self._top, self._bottom = 10, 34
        self._end, self._floor = width - self._right, height - self._bottom

    def svg(self) -> Markup:
        series = sorted(self._chart.series, key=lambda line: ("faint", "dashed", "bold").index(line.weight))
        body = [*self._axes(), *map(self._band, series), *map(self._line, series), *self._hover_columns()]
        for line in series:
            body += self._dots(line)
        for marker in self._chart.markers:
            body += self._marker(marker)
        box = f"0 0 {self._width} {self._height}"
        body += self._labels(series)
        return _element("svg", *body, class_="chart", viewBox=box, role="img", aria_label=self._chart.title)

    def _y_range(self) -> Point:
        """The ends of the y axis; of a logarithmic one, their logarithms."""
        ys = [self._scale(y) for line in self._chart.series for _, y in line.points]
        if self._chart.log:
            pad = 0.06 * (max(ys) - min(ys)) or 0.4
            return max(min(ys) - pad, -_LOG_LIMIT), min(max(ys) + pad, _LOG_LIMIT)
        ys += [y for line in self._chart.series for _, low, high in line.band for y in (low, high)]
        low, high = min(ys), max(ys)
        if low >= 0 and low < 0.5 * high:
            low = 0.0
        if self._chart.unit == "share" and high > 0.6:
            return 0.0 if low < 0.4 else low - 0.02, 1.0
        pad = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        return (low if low == 0 else low - pad), high + pad

    def _x(self, x: float) -> float:
        return self._left + (self._end - self._left) * (x - self._x_low) / (self._x_high - self._x_low)

    def _y(self, y: float) -> float:
        share = (self._scale(y) - self._y_low) / (self._y_high - self._y_low)
        return self._top + (self._floor - self._top) * (1 - share)

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)

    def _axes(self) -> Iterator[Markup]:
        for tick in self._y_ticks:
            y = self._y(tick)
            yield _element("path", class_="gridline", d=f"M{self._left:.1f} {y:.1f}H{self._end:.1f}")
            text = value_text(tick, self._chart.unit)
            yield _element("text", text, x=self._left - 6, y=y + 3.5, text_anchor="end")
        for tick in ticks(self._x_low, self._x_high, max(3, int((self._end - self._left) / 70))):
            if self._chart.x_label != "step" or tick == round(tick):
                place = {"x": self._x(tick), "y": self._floor + 14}
                yield _element("text", value_text(tick, "number"), **place, text_anchor="middle")
        yield _element("path", class_="axis", d=f"M{self._left:.1f} {self._floor}H{self._end:.1f}")
        middle = (self._left + self._end) / 2
        yield _element("text", self._chart.x_label, x=middle, y=self._height - 4, text_anchor="middle")

    def _band(self, line: Series) -> Markup:
        if len(line.band) < 2:
            return Markup("")
        upper = [(x, high) for x, _, high in line.band]
        lower = [(x, low) for x, low, _ in reversed(line.band)]
        return _element("path", class_=f"band {line.role}", d=f"{self._path([*upper, *lower])}Z")

    def _line(self, line: Series) -> Markup:
        points = thin(line.points, MAX_FAINT_POINTS if line.weight == "faint" else MAX_POINTS)
        return _element("path", class_=f"line {line.role} {line.weight}", d=self._path(points))

    def _dots(self, line: Series) -> Iterator[Markup]:
        for (x, y), hint in zip(line.points, line.hints, strict=False):
            place = {"cx": self._x(x), "cy": self._y(y)}
            yield _element("circle", _element("title", hint), class_=f"dot {line.role}", **place, r=3)

    def _hover_columns(self) -> Iterator[Markup]:
        """Invisible columns that show the values of the lines at their place; lines with hints have dots."""
        lines = [line for line in self._chart.series if line.weight == "bold" and not line.hints]
        places = sorted({x for line in lines for x, _ in line.points})
        places = places[:: -(-len(places) // MAX_HOVER_COLUMNS) or 1]
        positions = list(map(self._x, places))
        borders = [*positions[:1], *map(fmean, pairwise(positions)), *positions[-1:]]
        for x, start, end in zip(places, borders, borders[1:], strict=False):
            texts = [f"{self._chart.x_label} {value_text(x, 'number')}"]
            for line in lines:
                if line.points[0][0] <= x <= line.points[-1][0]:
                    _, y = line.points[bisect_left(line.points, x, key=itemgetter(0))]
                    texts.append(f"{line.name} {value_text(y, self._chart.unit)}".strip())
            shape = {"x": start, "y": self._top, "width": max(end - start, 1.0)}
            title = _element("title", "\n".join(texts))
            yield _element("rect", title, class_="hover", **shape, height=self._floor - self._top)

    def _marker(self, marker: Marker) -> Iterator[Markup]:
        x = self._x(marker.x)
        anchor = "end" if marker.x > (self._x_low + self._x_high) / 2 else "start"
        beside = x - 5 if anchor == "end" else x + 5
        yield _element("path", class_="marker", d=f"M{x:.1f} {self._top}V{self._floor}")
        yield _element(
            "text", marker.label, class_="label marker", x=beside, y=self._top + 10, text_anchor=anchor
        )

    def _labels(self, series: Sequence[Series]) -> Iterator[Markup]:
        """Names at the line ends, pushed apart where they would cover each other."""
        ends = sorted(
            ((self._y(line.points[-1][1]), line) for line in series if line.name), key=itemgetter(0)
        )
        positions: list[float] = []
        for y, _ in ends:
            positions.append(max(y, positions[-1] + _LABEL_HEIGHT) if positions else y)
        limit = float(self._floor)
        for index in reversed(range(len(positions))):
            positions[index] = min(positions[index], limit)
            limit = positions[index] - _LABEL_HEIGHT
        for y, (_, line) in zip(positions, ends, strict=True):
            yield _element("text", _label(line.name), class_=f"label {line.role}", x=self._end + 8, y=y + 4)


def _label(name: str) -> str:
    return name if len(name) <= _MAX_LABEL_CHARACTERS else f"{name[: _MAX_LABEL_CHARACTERS - 1]}…"
