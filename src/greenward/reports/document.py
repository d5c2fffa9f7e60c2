"""The record of a report: sections made of a small closed set of blocks, all of it plain data.

Training, evaluation and diagnostics each build one `Report` and render it in four forms: an HTML page
(`render_html`), the terminal (`render_terminal`), Markdown and JSON (`render_text`). A record holds text,
numbers and nothing else: no markup, no escapes. Every renderer escapes every text, so text that a model
wrote may stand anywhere.

    Report(
        kind="run report",
        title="quickstart",
        headline="GRPO: held-out pass@1 rose from 30.0 % [26.8, 33.2] to 81.4 % [78.8, 84.1].",
        facts=(Fact("steps", "80"),),
        sections=(
            section("Before and after", table, seeds_table),
            section("What became of the answers", statuses, level="detail"),
            section("Settings", Code(config, "yaml", "The resolved recipe"), level="appendix"),
        ),
    )

Blocks that are None and sections without blocks are left out, so a builder may return None for what a
run does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

NOTHING = "–"
DOCS, FINDING_PAGES = "docs/diagnostics.md", "docs/findings"

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
class Finding:
    """Something wrong, with the evidence and what to do about it.

    `name` is the kind of the finding and that of its page in docs/findings, `measured` the evidence in
    a sentence, `brief` the same in a few words. `p_value` is adjusted for the number of tests; None where
    there is nothing random about it.
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
    """Findings, the most severe first. The terminal shows the first action of each, the others show all."""

    findings: tuple[Finding, ...]


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


def section(title: str, *blocks: Block | None, level: Level = "main") -> Section:
    """A section of those blocks that are not None."""
    return Section(title, tuple(block for block in blocks if block is not None), level)


def charts(found: Iterable[Chart], size: Size = "wide", *, in_json: bool = True) -> Charts | None:
    """A block of charts, None when there is none."""
    shown = tuple(found)
    return Charts(shown, size, in_json) if shown else None
