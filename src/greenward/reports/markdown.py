"""The report as a markdown card that fits in a pull request or a model's page."""

from __future__ import annotations

import re

from greenward.reports.answers import Answer, SampleAnswers
from greenward.reports.content import Content
from greenward.reports.tables import Table
from greenward.reports.text import visible


def render_markdown(content: Content) -> str:
    """The whole card."""
    blocks = [
        f"# {_inline(content.title)}",
        f"**{_inline(content.headline)}**",
        " · ".join(f"{_inline(fact.label)}: {_inline(fact.value)}" for fact in content.facts),
        "\n".join(f"- {_inline(note)}" for note in content.notes),
        *(_table(table) for table in (content.before_after, content.seeds)),
        _folded("What became of the answers", _table(content.answers, titled=False)),
        _folded("Sample answers", _samples(content.samples)),
        _folded("Time and memory", _table(content.costs, titled=False)),
        _folded("Settings", _code(content.settings, "yaml") if content.settings else ""),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _inline(text: str) -> str:
    """One line of text in which nothing acts as markdown or HTML. Intervals keep their brackets."""
    line = " ".join(visible(text).split())
    return re.sub(r"([\\`*_{}<>|#]|\](?=[(\[:]))", r"\\\1", line)


def _table(table: Table | None, titled: bool = True) -> str:
    if table is None:
        return ""
    lines = [
        "| " + " | ".join(map(_inline, table.columns)) + " |",
        "|" + " --- |" * len(table.columns),
        *("| " + " | ".join(map(_inline, row)) + " |" for row in table.rows),
    ]
    title = f"## {table.title}\n\n" if titled else ""
    caption = f"\n\n{_inline(table.caption)}" if table.caption else ""
    return f"{title}{chr(10).join(lines)}{caption}"


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{inner}\n\n</details>" if inner else ""


def _samples(samples: SampleAnswers | None) -> str:
    if samples is None:
        return ""
    blocks = [_inline(samples.caption)]
    for problem in samples.problems:
        blocks.append(f"### {_inline(problem.task_id)}: {problem.outcome}")
        blocks.append(_code(problem.prompt.strip()))
        blocks += [_answer("Before", problem.before), _answer("After", problem.after)]
    return "\n\n".join(blocks)


def _answer(when: str, answer: Answer) -> str:
    failure = f"\n\n{_code(answer.first_failure)}" if answer.first_failure else ""
    status = _inline(answer.status.replace("_", " "))
    return (
        f"{when}: {status}; {answer.passed} of {answer.samples} answers pass\n\n"
        f"{_code(answer.code, 'python')}{failure}"
    )


def _code(text: str, language: str = "") -> str:
    """A fenced block whose fence is longer than any run of backticks inside."""
    text = visible(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
