"""The record of a report: every renderer shows every block, and nothing in it acts."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from greenward.reports.document import (
    AnsweredTask,
    Answers,
    Chart,
    Charts,
    Code,
    Fact,
    Facts,
    Findings,
    KeyFigure,
    Link,
    Links,
    Marker,
    Occurrence,
    Onset,
    Paragraph,
    Report,
    Series,
    ShownAnswer,
    Table,
    section,
)
from greenward.reports.page import render_html
from greenward.reports.render import (
    inline,
    print_report,
    render_json,
    render_markdown,
    spark_line,
)

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e```\n| x | [a](http://b)"


class Page(HTMLParser):
    """Checks nesting and collects tags, attributes and text."""

    VOID = frozenset({"meta"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def report_of(text: str) -> Report:
    """A report with every kind of block, in which every text begins with `text`."""
    line = Series(f"{text} line", "main", ((0.0, 1.0), (1.0, 2.0), (2.0, 4.0)))
    dots = replace(
        line, name=f"{text} dots", role="second", hints=tuple(f"{text} hint {i}" for i in range(3))
    )
    chart = Chart(f"{text} chart", f"{text} x", (line, dots), caption=f"{text} caption")
    chart = replace(chart, markers=(Marker(1.0, f"{text} marker"),))
    answer = ShownAnswer(
        f"{text} code", f"{text} status", "bad", f"{text} failure", f"{text} stage", "remark"
    )
    task = AnsweredTask(
        f"{text} task", f"{text} prompt", (answer, replace(answer, title="")), f"{text} fixed"
    )
    actions = (f"{text} action one", f"{text} action two")
    finding = Occurrence(
        "memory-leak", "critical", f"{text} finding", f"{text} measured", actions, f"{text} confirm",
        Onset(12, 10, 14), 0.01,
    )  # fmt: skip
    rows = ((f"{text} row", "80.1 % [77.0, 83.2]"), (f"  {text} sub", "2"))
    return Report(
        kind=f"{text} kind",
        title=f"{text} title",
        headline=f"{text} headline",
        facts=(Fact(f"{text} label", f"{text} value"),),
        figures=(KeyFigure(f"{text} figure", "81 %", "30 %", "[79, 84]", "good"),),
        notes=(f"{text} note",),
        sections=(
            section(
                f"{text} section",
                Paragraph(f"{text} paragraph"),
                Facts((Fact(f"{text} inner", "1"),)),
                Table(f"{text} table", (f"{text} column", "b"), rows, f"{text} remark", shares=(1.0, 3.0)),
                Charts((chart,)),
                None,
            ),
            section(f"{text} findings", Findings((finding,))),
            section(f"{text} answers", Answers((task,)), level="detail"),
            section("Links", Links((Link(f"{text} link", "page-2.html#top"),))),
            section(
                f"{text} settings", Code(f"{text} yaml", "yaml", f"{text} recipe", True), level="appendix"
            ),
            section("Nothing", None),
        ),
        footer=f"{text} footer",
        data={"answer": 42},
    )


def terminal(report: Report, width: int = 110) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=width, force_terminal=True, color_system=None))
    return out.getvalue()


COMMON = [
    "title",
    "headline",
    "label",
    "value",
    "note",
    "section",
    "paragraph",
    "table",
    "column",
    "row",
    "sub",
]
COMMON += [
    "remark",
    "finding",
    "measured",
    "action one",
    *["task", "prompt", "code", "status", "failure", "fixed"],
]


def test_every_form_shows_every_block():
    report = report_of("the")
    forms = {
        "html": Page(render_html(report)).text,
        "markdown": render_markdown(report),
        "json": render_json(report),
        "terminal": terminal(report),
    }
    for name, text in forms.items():
        assert [word for word in COMMON if f"the {word}" not in text] == [], name
    for word in ("chart", "x", "caption", "marker", "dots", "hint 2", "recipe", "yaml", "link", "action two"):
        assert f"the {word}" in forms["html"], word
    assert "the settings" not in forms["terminal"] and "Nothing" not in forms["html"]
    assert "<details><summary>the answers</summary>" in forms["markdown"]
    assert "[the link](page-2.html#top)" in forms["markdown"]


def test_hostile_text_is_shown_and_never_acts():
    report = report_of(HOSTILE)
    html = render_html(report)
    page = Page(html)
    assert not {tag for tag, _ in page.tags} & {"script", "img", "link", "iframe", "form", "base", "object"}
    assert not [a for _, a in page.tags if {"src", "style", "onclick", "onerror", "onload"} & a.keys()]
    assert "<script>alert(1)</script>" in page.text
    shown = terminal(report)
    for text in (html, shown, render_markdown(report)):
        assert "\x1b[2J" not in text and "\u202e" not in text
    outside_fences = re.sub(r"^(`{3,})[a-z]*\n.*?^\1$", "", render_markdown(report), flags=re.DOTALL | re.M)
    assert not re.search(r"(?<!\\)<(?!/?details>|/?summary>)", outside_fences)
    assert "](http" not in outside_fences.replace("\\](http", "")
    json.loads(render_json(report))


def test_the_policy_of_the_page_allows_exactly_its_style_sheet():
    html = render_html(report_of("the"))
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policies = [a["content"] for t, a in Page(html).tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    ]
    assert "url(" not in html and "@import" not in html


def test_json_has_the_data_and_leaves_out_charts_that_a_file_of_the_run_has():
    report = report_of("the")
    record = json.loads(render_json(report))
    assert record["answer"] == 42 and record["title"] == "the title"
    types = [block["type"] for block in record["sections"][0]["blocks"]]
    assert types == ["paragraph", "facts", "table", "charts"]
    charts = replace(report.sections[0].blocks[-1], in_json=False)
    without = replace(report, sections=(section("Training", charts),))
    assert json.loads(render_json(without))["sections"] == [{"title": "Training", "blocks": []}]


def test_a_chart_shows_the_values_of_its_lines_on_hovering():
    html = render_html(report_of("the"))
    titles = re.findall(r"<title>([^<]*)</title></rect>", html)
    assert "the x 1\nthe line 2" in titles


@pytest.mark.parametrize(
    "target",
    ["javascript:alert(1)", "/etc/passwd", "../up.html", "//host/x", "data:text/html,x", "a b", 'x"y', ""],
)
def test_a_link_that_could_act_or_leave_the_folder_is_refused(target):
    with pytest.raises(ValueError, match="a link leads to"):
        Link("text", target)


def test_spark_lines_rise_with_their_values():
    assert spark_line([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert spark_line([5.0, 5.0]) == "▁▁"
    assert len(spark_line(list(range(1000)))) == 26


def test_a_table_too_wide_for_the_terminal_loses_no_figure():
    cell = "81.4 % [78.8, 84.1]"
    wide = Table("", ("Held-out", *("sampled pass@1",) * 6), (("Before", *(cell,) * 6),))
    shown = terminal(Report("kind", "title", "headline", sections=(section("Wide", wide),)), width=80)
    assert "…" not in shown and shown.count("81.4%") == 6


def test_curves_with_long_names_lose_no_figure_in_a_narrow_terminal():
    line = Series("a run with a long name", "main", ((0.0, 0.104), (1.0, 0.952)))
    title = "tictactoe: not lost against random play as second player"
    curve = Chart(title, "step", (line,), "share")
    report = Report("kind", "title", "headline", sections=(section("s", Charts((curve,))),))
    shown = terminal(report, width=80)
    assert "10.4 %" in shown and "95.2 %" in shown and "▁█" in shown and "…" not in shown


def test_a_long_cell_of_a_table_is_wrapped_and_a_short_one_is_not():
    table = Table("", ("a", "b"), (("x", "word " * 20), ("y", "short")))
    report = Report("kind", "title", "headline", sections=(section("s", table),))
    cells = [attrs for tag, attrs in Page(render_html(report)).tags if tag == "td"]
    assert [cell.get("class") for cell in cells] == [None, "long", None, None]


def test_markup_and_escapes_in_any_text_of_a_table_are_shown_as_they_are():
    hostile = "[link=https://evil.example][red]x[/red]\x1b[31m"
    table = Table(hostile, (hostile, hostile), ((hostile, hostile),), hostile)
    report = Report(kind="k", title=hostile, headline=hostile, sections=(section(hostile, table),))
    console = Console(file=io.StringIO(), width=400, force_terminal=True)
    print_report(report, console)
    shown = console.file.getvalue()
    assert shown.count("[link=https://evil.example][red]x[/red]") >= 7
    assert "\x1b]8;" not in shown
    assert "\x1b[31m" not in shown


def test_tildes_open_no_block_of_code():
    assert inline("~~~ text") == r"\~\~\~ text"
