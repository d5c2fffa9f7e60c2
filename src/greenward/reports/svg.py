"""Draws a chart as inline SVG: axes, bands, lines, markers, direct labels. No script, no fonts.

Colours come from the page's style sheet by class names, so one drawing serves light, dark and
print. Long lines are thinned to `MAX_POINTS` by largest triangles (Steinarsson 2013, LTTB).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from greenward.reports.charts import Chart, Marker, Series, Unit

MAX_POINTS = 160
MAX_FAINT_POINTS = 90
_LABEL_HEIGHT = 13.0
_LOG_LIMIT = 700.0  # natural logarithm of about the largest float
_CHARACTER_WIDTH = 6.4

Point = tuple[float, float]


def draw(chart: Chart, width: int = 460, height: int = 260) -> str:
    """The chart as an `<svg>` element that scales to its container."""
    return _Drawing(chart, width, height).svg()


def standalone(chart: Chart, width: int = 560, height: int = 420) -> str:
    """The chart as an SVG file of its own, with the colours of the page inside it."""
    drawing = draw(chart, width, height)
    style = (files("greenward.reports") / "report.css").read_text()
    start, rest = drawing.split(">", 1)
    paper = '<rect class="paper" width="100%" height="100%"/>'
    return f'{start} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{paper}{rest}\n'


def stacked_bar(parts: Sequence[tuple[str, float]], width: int = 960, height: int = 22) -> str:
    """One bar cut into parts by share, coloured by the classes `part-0`, `part-1` …"""
    total = sum(value for _, value in parts)
    x, pieces = 0.0, []
    for index, (name, value) in enumerate(parts):
        share = value / total
        pieces.append(
            f'<rect class="part-{index}" x="{x:.1f}" y="0" width="{max(share * width - 2, 0.5):.1f}" '
            f'height="{height}" rx="3"><title>{escape(name)}: {share:.1%}</title></rect>'
        )
        x += share * width
    return (
        f'<svg class="bar" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="time by part">{"".join(pieces)}</svg>'
    )


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
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the range; where there are fewer than two, 2 and 5 times them as well."""
    powers = [10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    whole = [power for power in powers if low <= power <= high]
    if len(whole) >= 2:
        return whole[:: -(-len(whole) // 6)]
    return [m * power for power in powers for m in (1, 2, 5) if low <= m * power <= high]


def value_text(value: float, unit: Unit) -> str:
    """An axis value: shares in percent, numbers short."""
    if unit == "share":
        return f"{100 * value:.3g} %"
    magnitude = abs(value)
    if magnitude >= 1e6 or 0 < magnitude < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.0f}" if magnitude >= 1000 else f"{value:.4g}"


class _Drawing:
    def __init__(self, chart: Chart, width: int, height: int) -> None:
        self._chart = chart
        self._width, self._height = width, height
        self._x_low, self._x_high = self._x_range()
        self._y_low, self._y_high = self._log_range() if chart.log else self._y_range()
        self._y_ticks = (
            log_ticks(self._y_low, self._y_high) if chart.log else ticks(self._y_low, self._y_high, 5)
        )
        axis_texts = [value_text(tick, chart.unit) for tick in self._y_ticks]
        longest_label = max((len(line.name) for line in chart.series), default=0)
        self._left = 12 + _CHARACTER_WIDTH * max(map(len, axis_texts), default=1)
        self._right = 14 + _CHARACTER_WIDTH * longest_label
        self._top, self._bottom = 10, 34

    def svg(self) -> str:
        series = sorted(self._chart.series, key=lambda line: ("faint", "dashed", "bold").index(line.weight))
        body = [self._axes(), *map(self._band, series), *map(self._line, series)]
        body += [*map(self._marker, self._chart.markers), self._labels(series)]
        return (
            f'<svg class="chart" viewBox="0 0 {self._width} {self._height}" role="img" '
            f'aria-label="{escape(self._chart.title)}">{"".join(body)}</svg>'
        )

    def _x_range(self) -> Point:
        xs = [x for line in self._chart.series for x, _ in line.points]
        low, high = min(xs), max(xs)
        return (low, high) if high > low else (low, low + 1)

    def _y_range(self) -> Point:
        ys = [y for line in self._chart.series for _, y in line.points]
        ys += [y for line in self._chart.series for _, low, high in line.band for y in (low, high)]
        low, high = min(ys), max(ys)
        if low >= 0 and low < 0.5 * high:
            low = 0.0
        if self._chart.unit == "share" and high > 0.6:
            return 0.0 if low < 0.4 else low - 0.02, 1.0
        pad = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        return (low if low == 0 else low - pad), high + pad

    def _log_range(self) -> Point:
        logs = [math.log(y) for line in self._chart.series for _, y in line.points]
        pad = 0.06 * (max(logs) - min(logs)) or 0.4
        return math.exp(max(min(logs) - pad, -_LOG_LIMIT)), math.exp(min(max(logs) + pad, _LOG_LIMIT))

    def _height_share(self, y: float) -> float:
        """How far up the axis a value lies, 0 to 1."""
        if self._chart.log:
            return math.log(y / self._y_low) / math.log(self._y_high / self._y_low)
        return (y - self._y_low) / (self._y_high - self._y_low)

    def _at(self, x: float, y: float) -> Point:
        inner_width = self._width - self._left - self._right
        inner_height = self._height - self._top - self._bottom
        return (
            self._left + inner_width * (x - self._x_low) / (self._x_high - self._x_low),
            self._top + inner_height * (1 - self._height_share(y)),
        )

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (self._at(*point) for point in points))

    def _axes(self) -> str:
        parts = []
        end = self._width - self._right
        for tick in self._y_ticks:
            _, y = self._at(self._x_low, tick)
            parts.append(f'<path class="gridline" d="M{self._left:.1f} {y:.1f}H{end:.1f}"/>')
            text = value_text(tick, self._chart.unit)
            parts.append(f'<text x="{self._left - 6:.1f}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>')
        floor = self._height - self._bottom
        for tick in ticks(self._x_low, self._x_high, max(3, int((end - self._left) / 70))):
            if self._chart.x_label == "step" and tick != round(tick):
                continue
            x, _ = self._at(tick, self._y_low)
            parts.append(
                f'<text x="{x:.1f}" y="{floor + 14}" text-anchor="middle">{value_text(tick, "number")}</text>'
            )
        middle = (self._left + end) / 2
        parts.append(f'<path class="axis" d="M{self._left:.1f} {floor}H{end:.1f}"/>')
        parts.append(
            f'<text x="{middle:.1f}" y="{self._height - 4}" text-anchor="middle">'
            f"{escape(self._chart.x_label)}</text>"
        )
        return "".join(parts)

    def _band(self, line: Series) -> str:
        if len(line.band) < 2:
            return ""
        upper = [(x, high) for x, _, high in line.band]
        lower = [(x, low) for x, low, _ in reversed(line.band)]
        return f'<path class="band {line.role}" d="{self._path([*upper, *lower])}Z"/>'

    def _line(self, line: Series) -> str:
        points = thin(line.points, MAX_FAINT_POINTS if line.weight == "faint" else MAX_POINTS)
        parts = [f'<path class="line {line.role} {line.weight}" d="{self._path(points)}"/>']
        for point, hint in zip(line.points, line.hints, strict=False):
            x, y = self._at(*point)
            parts.append(
                f'<circle class="dot {line.role}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
                f"<title>{escape(hint)}</title></circle>"
            )
        return "".join(parts)

    def _marker(self, marker: Marker) -> str:
        x, _ = self._at(marker.x, self._y_low)
        floor = self._height - self._bottom
        anchor = "end" if marker.x > (self._x_low + self._x_high) / 2 else "start"
        beside = x - 5 if anchor == "end" else x + 5
        return (
            f'<path class="marker" d="M{x:.1f} {self._top}V{floor}"/>'
            f'<text class="label marker" x="{beside:.1f}" y="{self._top + 10}" text-anchor="{anchor}">'
            f"{escape(marker.label)}</text>"
        )

    def _labels(self, series: Sequence[Series]) -> str:
        """Names at the line ends, pushed apart where they would cover each other."""
        ends = sorted(
            ((self._at(*line.points[-1])[1], line) for line in series if line.name), key=lambda end: end[0]
        )
        positions: list[float] = []
        for y, _ in ends:
            positions.append(max(y, positions[-1] + _LABEL_HEIGHT) if positions else y)
        overflow = positions[-1] - (self._height - self._bottom) if positions else 0.0
        if overflow > 0:
            for index in reversed(range(len(positions))):
                below = positions[index + 1] - _LABEL_HEIGHT if index + 1 < len(positions) else math.inf
                positions[index] = min(positions[index], self._height - self._bottom, below)
        x = self._width - self._right + 8
        return "".join(
            f'<text class="label {line.role}" x="{x:.1f}" y="{y + 4:.1f}">{escape(line.name)}</text>'
            for y, (_, line) in zip(positions, ends, strict=True)
        )
