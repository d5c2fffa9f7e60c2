"""The views of an evaluation's report, made of the same parts as those of a run."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console

from greenward.reports import html, markdown, terminal
from greenward.reports.evaluation import EvaluationContent, FailedAnswer

_EXAMPLES = "Failing answers: the first of each of the first problems"


def render_evaluation_html(content: EvaluationContent) -> str:
    """The whole page."""
    return html.page(
        content.title,
        (
            html.head("evaluation", content.title, content.headline, content.facts, content.notes),
            html.section("Result", html.card(content.metrics)),
            *(html.section(table.title, html.card(table)) for table in content.tables),
            html.section(_EXAMPLES, "".join(map(_article, content.failed))),
            html.section("Settings", html.card(content.settings)),
        ),
        "Written by greenward from the files of the evaluation. Intervals are 95 %.",
    )


def render_evaluation_markdown(content: EvaluationContent) -> str:
    """The whole card."""
    examples = "\n\n".join(
        f"### {markdown.inline(f'{answer.task_id}, answer {answer.sample}: {_status(answer)}')}\n\n"
        f"{markdown.code_block(answer.code, 'python')}\n\n{markdown.code_block(answer.first_failure)}"
        for answer in content.failed
    )
    blocks = (
        markdown.head(content.title, content.headline, content.facts, content.notes),
        markdown.table_of(content.metrics, titled=False),
        *(markdown.folded(table.title, markdown.table_of(table, titled=False)) for table in content.tables),
        markdown.folded(_EXAMPLES, examples),
        markdown.folded("Settings", markdown.table_of(content.settings, titled=False)),
    )
    return "\n\n".join(block for block in blocks if block) + "\n"


def render_evaluation_json(content: EvaluationContent) -> str:
    """The report as one JSON object; summary.json has the numbers."""
    return json.dumps(asdict(content), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def print_evaluation(content: EvaluationContent, console: Console | None = None) -> None:
    """Print the report."""
    console = console or Console()
    terminal.print_head(console, content.title, content.headline, content.facts, content.notes)
    for table in (content.metrics, *content.tables):
        terminal.print_table(console, table)


def _article(answer: FailedAnswer) -> str:
    failure = f'<p class="failure">{html.escaped(answer.first_failure)}</p>' if answer.first_failure else ""
    return (
        f'<article class="card problem"><header><code>{html.escaped(answer.task_id)}</code>'
        f'<span class="pill bad">{html.escaped(_status(answer))}</span></header>'
        f'<pre class="prompt">{html.escaped(answer.prompt.strip())}</pre>'
        f"<pre>{html.escaped(answer.code) or ' '}</pre>{failure}</article>"
    )


def _status(answer: FailedAnswer) -> str:
    return answer.status.replace("_", " ")
