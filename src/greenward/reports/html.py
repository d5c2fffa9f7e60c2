"""The report as one HTML file: no network, no script, no foreign markup.

Everything that is not written here is escaped; the content security policy allows nothing but the
one style sheet of this page, by its hash, so even markup that slipped through could not act.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib.resources import files

from greenward.intervals import Estimate
from greenward.reports.answers import Answer, SampleAnswers, SampleProblem
from greenward.reports.content import Content
from greenward.reports.document import Chart, Fact, Table
from greenward.reports.results import metric_label
from greenward.reports.svg import draw, stacked_bar
from greenward.text import visible

WIDE, SMALL = (520, 290), (340, 190)


def render_html(content: Content) -> str:
    """The whole page."""
    return page(
        content.title,
        (
            head(
                "run report", content.title, content.headline, content.facts, content.notes, _tiles(content)
            ),
            section("Learning", charts((*content.held_out_charts, *content.suite_charts), "wide", WIDE)),
            section(
                "Before and after",
                card(content.before_after)
                + card(content.seeds, titled=True)
                + card(content.suites, titled=True)
                + card(content.tags, titled=True),
            ),
            section("Sample answers", _samples(content.samples)),
            section("What became of the answers", card(content.answers)),
            section("Training, step by step", charts(content.training_charts, "small", SMALL)),
            section("Warm start", charts(content.warm_start_charts, "small", SMALL)),
            section("Time and memory", _costs(content)),
            section("Settings", _settings(content)),
        ),
        "Written by greenward from the files of the run. Intervals are 95 %.",
    )


def page(title: str, sections: Iterable[str], footer: str) -> str:
    """A page of sections that are HTML already."""
    style = (files("greenward.reports") / "report.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="'
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)} · greenward</title><style>{style}</style></head>\n"
        f"<body><main>{''.join(sections)}<footer>{escaped(footer)}</footer></main></body></html>\n"
    )


def escaped(text: str) -> str:
    """Foreign text, harmless in HTML."""
    return escape(visible(text))


def head(
    kind: str,
    title: str,
    headline: str,
    facts: Iterable[Fact],
    notes: Iterable[str],
    tiles: Iterable[str] = (),
) -> str:
    """What stands above the sections."""
    shown_facts = "".join(
        f"<div><dt>{escaped(fact.label)}</dt><dd>{escaped(fact.value)}</dd></div>" for fact in facts
    )
    shown_tiles = "".join(tiles)
    shown_notes = "".join(f"<li>{escaped(note)}</li>" for note in notes)
    return (
        f'<div class="brand">greenward <b>· {escaped(kind)}</b></div><h1>{escaped(title)}</h1>'
        f'<p class="headline">{escaped(headline)}</p><dl class="facts">{shown_facts}</dl>'
        + (f'<div class="tiles">{shown_tiles}</div>' if shown_tiles else "")
        + (f'<ul class="notes card">{shown_notes}</ul>' if shown_notes else "")
    )


def _tiles(content: Content) -> Iterable[str]:
    for metric in content.results.metrics:
        if metric.before is not None and metric.after is not None:
            title = f"{content.main_label}, {metric_label(metric.name)}"
            yield _tile(title, metric.before, metric.after, metric.gain)
    primary = content.results.primary
    for arm in content.results.arms if primary is not None else ():
        if primary is not None and primary.before is not None and arm.label in primary.beside:
            title = f"{arm.label}, {metric_label(primary.name)}"
            yield _tile(title, primary.before, primary.beside[arm.label], arm.change)


def _tile(title: str, before: Estimate, after: Estimate, change: Estimate | None) -> str:
    """Coloured only where the paired interval of the change excludes 0."""
    kind = {1: " good", -1: " bad"}.get(change.sign, "") if change is not None else ""
    return (
        f'<div class="card tile"><h3>{escaped(title)}</h3>'
        f'<p><span class="from">{100 * before.value:.1f}</span>'
        f'<span class="arrow">→</span><span class="to{kind}">{100 * after.value:.1f} %</span></p>'
        f'<p class="soft">[{100 * before.low:.1f}, {100 * before.high:.1f}] → '
        f"[{100 * after.low:.1f}, {100 * after.high:.1f}]</p></div>"
    )


def section(title: str, inner: str) -> str:
    """A section of the page; nothing if it would be empty."""
    return f"<section><h2>{escaped(title)}</h2>{inner}</section>" if inner else ""


def charts(shown: Iterable[Chart], size: str, shape: tuple[int, int] = SMALL) -> str:
    """Charts side by side; nothing without any."""
    figures = "".join(
        f'<figure class="card"><h3>{escaped(chart.title)}</h3>{draw(chart, *shape)}'
        + (f"<figcaption>{escaped(chart.caption)}</figcaption>" if chart.caption else "")
        + "</figure>"
        for chart in shown
    )
    return f'<div class="grid {size}">{figures}</div>' if figures else ""


def card(table: Table | None, titled: bool = False) -> str:
    """A table on a card."""
    if table is None:
        return ""
    title = f"<h3>{escaped(table.title)}</h3>" if titled else ""
    caption = f'<p class="soft">{escaped(table.caption)}</p>' if table.caption else ""
    return f'<div class="card grid">{title}<div class="scroll">{_table(table)}</div>{caption}</div>'


def _table(table: Table, keys: int = 0) -> str:
    """The table; the first `keys` rows get the colour key of the time bar."""
    head = "".join(f"<th>{escaped(column)}</th>" for column in table.columns)
    rows = []
    for index, row in enumerate(table.rows):
        first = (_colour_key(index) if index < keys else "") + escaped(row[0].strip())
        sub = ' class="sub"' if row[0].startswith(" ") else ""
        rows.append(
            f"<tr{sub}><td>{first}</td>{''.join(f'<td>{escaped(cell)}</td>' for cell in row[1:])}</tr>"
        )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _colour_key(index: int) -> str:
    square = f'<rect class="part-{index}" width="10" height="10" rx="2"/>'
    return f'<svg class="key" viewBox="0 0 10 10">{square}</svg>'


def _costs(content: Content) -> str:
    if content.costs is None:
        return ""
    table = _table(content.costs, keys=len(content.time_parts))
    caption = f'<p class="soft">{escaped(content.costs.caption)}</p>'
    bar = stacked_bar(content.time_parts)
    return f'<div class="card grid">{bar}<div class="scroll">{table}</div>{caption}</div>'


def _samples(samples: SampleAnswers | None) -> str:
    if samples is None:
        return ""
    problems = "".join(_problem(problem) for problem in samples.problems)
    return f'<p class="soft">{escaped(samples.caption)}</p>{problems}'


def _problem(problem: SampleProblem) -> str:
    kind = {"fixed": "good", "broken": "bad"}.get(problem.outcome, "plain")
    return (
        f'<article class="card problem"><header><code>{escaped(problem.task_id)}</code>'
        f'<span class="pill {kind}">{escaped(problem.outcome)}</span></header>'
        f'<pre class="prompt">{escaped(problem.prompt.strip())}</pre><div class="grid wide">'
        f"{_answer('Before', problem.before)}{_answer('After', problem.after)}</div></article>"
    )


def _answer(when: str, answer: Answer) -> str:
    kind = "good" if answer.status == "passed" else "bad"
    failure = f'<p class="failure">{escaped(answer.first_failure)}</p>' if answer.first_failure else ""
    return (
        f'<div><header><h3>{when} <span class="soft">{answer.passed} of {answer.samples} answers pass'
        f'</span></h3><span class="pill {kind}">{escaped(answer.status.replace("_", " "))}</span></header>'
        f"<pre>{escaped(answer.code) or ' '}</pre>{failure}</div>"
    )


def _settings(content: Content) -> str:
    parts = []
    if content.settings:
        recipe = f"<summary>The resolved recipe</summary><pre>{escaped(content.settings)}</pre>"
        parts.append(f'<details class="card">{recipe}</details>')
    if content.made_with is not None:
        parts.append(f'<div class="card grid"><div class="scroll">{_table(content.made_with)}</div></div>')
    return "".join(parts)
