"""Defines the record of a report: sections made of a small closed set of blocks, all of it plain data.

Training, evaluation and diagnostics each build one `Report` and render it in four forms: HTML, terminal,
Markdown and JSON (`render`). A record holds text, numbers and nothing else: no markup, no escapes. Every
renderer escapes every text, so text that a model wrote may stand anywhere. Blocks that are None and sections
without blocks are left out, so a builder may return None for what a run does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, TypeAlias

from greenward.common.statistics import Estimate

PRIMARY = "pass@1"
GREEDY = "greedy_pass@1"
MAX_SHOWN_CHARACTERS, MAX_SETTING_CHARACTERS = 3000, 200


def percent(estimate: Estimate | None) -> str:
    """A rate with its interval, in percent."""
    if estimate is None:
        return NOTHING
    return f"{100 * estimate.value:.1f} % {interval(estimate)}"


def percent_of(record: Mapping[str, Any] | None) -> str:
    """The same of a rate as files hold it."""
    return percent(Estimate.from_json(record) if record else None)


def interval(estimate: Estimate) -> str:
    """The interval of a rate, in percent."""
    return f"[{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def points(estimate: Estimate | None) -> str:
    """A difference with its interval, in percentage points."""
    if estimate is None:
        return NOTHING
    text = f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"
    return text.replace("-", "−")


def seed_range(values: Sequence[float]) -> str:
    """The spread over seeds, in percent."""
    return f"{100 * min(values):.1f} to {100 * max(values):.1f} %" if values else NOTHING


def share(part: float, whole: float) -> str:
    """A part of a whole, in percent."""
    return f"{100 * part / whole:.1f} %" if whole else NOTHING


def duration(seconds: float) -> str:
    """Seconds in the largest unit that fits, and the next smaller one."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def memory(mebibytes: float) -> str:
    """Mebibytes, from 1024 on as gibibytes."""
    return f"{mebibytes / 1024:.2f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def value_text(value: float, unit: Unit) -> str:
    """A value on an axis: shares in percent, numbers short."""
    if unit == "share":
        return f"{100 * value:.3g} %"
    magnitude = abs(value)
    if magnitude >= 1e6 or 0 < magnitude < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.0f}" if magnitude >= 1000 else f"{value:.4g}"


def setting_text(value: Any) -> str:
    """A value of a config or of provenance in a cell of a table."""
    if isinstance(value, list):
        value = ", ".join(map(repr, value)) or "none"
    text = NOTHING if value is None else str(value)
    return text if len(text) <= MAX_SETTING_CHARACTERS else f"{text[:MAX_SETTING_CHARACTERS]} …"


def words(name: str) -> str:
    """An identifier such as `syntax_error` as words."""
    return name.replace("_", " ")


def bounded(text: Any) -> str:
    """A text that somebody wrote, cut to `MAX_SHOWN_CHARACTERS`."""
    text = str(text)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}\n… (cut)"


def shown_answer(status: Any, code: Any, failure: Any, title: str = "", remark: str = "") -> ShownAnswer:
    """An answer as its record has it, which may lack the program or the failure; long texts are cut."""
    tone: Tone = "good" if status == "passed" else "bad"
    return ShownAnswer(bounded(code or ""), words(str(status)), tone, bounded(failure or ""), title, remark)


def metric_label(name: str) -> str:
    """The reader's name of a metric."""
    return {PRIMARY: "sampled pass@1", GREEDY: "greedy pass@1"}.get(name, name.replace("_", " "))


def metric_order(name: str) -> tuple[int, int, str]:
    """Sampled pass@1, greedy pass@1, then pass@k by k, then the rest."""
    if name == PRIMARY:
        return (0, 0, name)
    if name == GREEDY:
        return (1, 0, name)
    k = name.removeprefix("pass@")
    return (2, int(k), name) if k.isdecimal() else (3, 0, name)


def session_table(session: Mapping[str, Any]) -> Table:
    """The versions and the machine of a session."""
    rows = [
        (key, setting_text(value)) for key, value in session.items() if value and not isinstance(value, dict)
    ]
    packages, sandbox, git = (
        found if isinstance(found := session.get(key), dict) else {} for key in ("packages", "sandbox", "git")
    )
    rows += [(name, str(version)) for name, version in packages.items()]
    if sandbox:
        rows.append(("isolation", f"level {sandbox.get('level')}: {', '.join(sandbox.get('layers', []))}"))
    if git:
        rows.append(("git commit", f"{git.get('commit')}{' (modified)' if git.get('modified') else ''}"))
    return Table("", ("", ""), tuple((words(key), value) for key, value in rows))


NOTHING = "–"
FINDING_PAGES = "docs/findings"

Tone = Literal["neutral", "good", "warning", "bad"]
Level = Literal["main", "detail", "appendix"]

_SAFE_TARGET = re.compile(r"https?://[^\s\"'<>]+|#[\w./-]+|(?![/.])[\w./-]+(?:#[\w./-]+)?")


@dataclass(frozen=True)
class Fact:
    """A figure or a name with its label."""

    label: str
    value: str


@dataclass(frozen=True)
class KeyFigure:
    """A large figure at the head of an HTML page, with the value before and a line of detail below.

    `tone` colours the value; use it for a change only where its interval excludes zero.
    """

    label: str
    value: str
    previous: str = ""
    detail: str = ""
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph. A quiet one is a remark in smaller type."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Facts:
    """Facts in one line."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first column names the row. A title is needed beside another table only.

    A row whose first cell begins with a space belongs to the row above it and is shown in smaller type.
    `shares` are numbers for the first rows: HTML draws them as the parts of one bar with the rows as its key.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    shares: tuple[float, ...] = ()


Role = Literal["main", "control", "second", "third", "fourth", "fifth"]
Weight = Literal["bold", "faint", "dashed"]
Unit = Literal["share", "number"]
Size = Literal["wide", "small"]


@dataclass(frozen=True)
class Series:
    """One line of a chart; its role is its colour. `band` has (x, low, high) rows.

    `hints`, one for each point, are shown on hovering and make the points visible as dots. A faint series has
    no name of its own: it is what a mean was taken of.
    """

    name: str
    role: Role
    points: tuple[tuple[float, float], ...]
    weight: Weight = "bold"
    band: tuple[tuple[float, float, float], ...] = ()
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Marker:
    """A place on the x axis where something happened, such as the onset of a finding."""

    x: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Lines over one axis. `log` asks for a logarithmic y axis; all values must be positive then.

    `file` is the name of an SVG file with this chart that lies beside the Markdown form, which shows it.
    """

    title: str
    x_label: str
    series: tuple[Series, ...]
    unit: Unit = "number"
    caption: str = ""
    log: bool = False
    markers: tuple[Marker, ...] = ()
    file: str = ""


@dataclass(frozen=True)
class Charts:
    """Charts side by side; the terminal shows each line as a spark line.

    `in_json` is False for series that a file of the run holds already (metrics.jsonl).
    """

    charts: tuple[Chart, ...]
    size: Size = "wide"
    in_json: bool = True


@dataclass(frozen=True)
class Code:
    """A listing. HTML folds it under its title where `folded`."""

    text: str
    language: str = ""
    title: str = ""
    folded: bool = False


@dataclass(frozen=True)
class ShownAnswer:
    """An answer to a task: its code, its status, and the first failure if there is one."""

    code: str
    status: str
    tone: Tone = "neutral"
    failure: str = ""
    title: str = ""
    remark: str = ""


@dataclass(frozen=True)
class AnsweredTask:
    """A task with one or more answers, which are shown side by side. `label` is why it is shown."""

    task_id: str
    prompt: str
    answers: tuple[ShownAnswer, ...]
    label: str = ""
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Answers:
    """A listing of tasks with their answers."""

    tasks: tuple[AnsweredTask, ...]


Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True)
class Onset:
    """The step at which something began, with its 95 % interval."""

    step: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.step} [{self.low}, {self.high}]" if self.low != self.high else str(self.step)


@dataclass(frozen=True)
class Occurrence:
    """Something that was found wrong, with the evidence and what to do about it.

    `name` is the kind of the finding and that of its page in docs/findings, `measured` the evidence in
    a sentence, `brief` the same in a few words. `signals` are those that show it. `p_value` is adjusted for
    the number of tests; None where there is nothing random about it. `selection` is a pattern of the query
    for the kept answers behind it, where that depends on what was measured.
    """

    name: str
    severity: Severity
    title: str
    measured: str
    actions: tuple[str, ...]
    confirm: str
    onset: Onset | None = None
    p_value: float | None = None
    brief: str = ""
    signals: tuple[str, ...] = ()
    selection: str = ""

    @property
    def docs(self) -> str:
        """Where the documentation explains the finding."""
        return f"{FINDING_PAGES}/{self.name}.md"

    @property
    def evidence(self) -> str:
        """Onset, p-value and place in the documentation, in one line."""
        onset = [] if self.onset is None else [f"from step {self.onset}"]
        p_value = [] if self.p_value is None else [f"adjusted p {self.p_value:.2g}"]
        return " · ".join((*onset, *p_value, self.docs))


@dataclass(frozen=True)
class Findings:
    """Findings, the most severe first. The terminal shows the first action of each, and all where `in_full`;
    the other forms show all.
    """

    findings: tuple[Occurrence, ...]
    in_full: bool = False


@dataclass(frozen=True)
class Link:
    """A link to a web page, to a place on this page (`#name`) or to a file beside it.

    Raises `ValueError` for every other target, such as `javascript:` or an absolute path.
    """

    text: str
    target: str

    def __post_init__(self) -> None:
        if not _SAFE_TARGET.fullmatch(self.target) or ".." in self.target:
            raise ValueError(
                f"a link leads to https://…, #name or a file beside the page, not {self.target!r}"
            )


@dataclass(frozen=True)
class Links:
    """Links in one line."""

    links: tuple[Link, ...]


Block: TypeAlias = Paragraph | Facts | Table | Charts | Code | Answers | Findings | Links


@dataclass(frozen=True)
class Section:
    """A heading and its blocks.

    `level` is how much detail it holds: `main` for every reader, `detail` for more (Markdown folds it), and
    `appendix` for checking and reproducing (Markdown folds it and the terminal leaves it out).
    """

    title: str
    blocks: tuple[Block, ...]
    level: Level = "main"


@dataclass(frozen=True)
class Report:
    """A report. `kind` is its subject in a word or two; the headline is the result or the verdict.

    `notes` are what a reader must know first: what is missing, was lost or cannot be said. `data` are the
    numbers behind the report, for JSON only, where its keys stand beside `title` and `headline`.
    """

    kind: str
    title: str
    headline: str
    facts: tuple[Fact, ...] = ()
    figures: tuple[KeyFigure, ...] = ()
    notes: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    footer: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """How a notebook shows it."""
        page = import_module("greenward.reports.page")  # which imports this file
        found: dict[str, str] = page.mime_bundle(self)
        return found


def section(title: str, *blocks: Block | None, level: Level = "main") -> Section:
    """A section of those blocks that are not None."""
    return Section(title, tuple(block for block in blocks if block is not None), level)


def charts(found: Iterable[Chart], size: Size = "wide", *, in_json: bool = True) -> Charts | None:
    """A block of charts, None when there is none."""
    shown = tuple(found)
    return Charts(shown, size, in_json) if shown else None
