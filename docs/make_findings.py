"""Writes a page for each finding, and the table of all: .venv/bin/python docs/make_findings.py"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

from greenward.diagnostics.finding import Finding, Topic
from greenward.diagnostics.findings import FINDINGS, topics_of
from greenward.diagnostics.findings.updates import IMPOSSIBLE_VALUE
from greenward.diagnostics.signals import RANGES
from greenward.tasks import TASKS, find_task

FOLDER = Path(__file__).parent / "findings"
TABLE = "README"
CONDITIONS = """\
- `kl`, `approx_kl` and `importance/kl` by the estimator k1 (the mean of log ratios, as TRL's PPO logs it in
  `objective/kl`) cross 0 by noise. Their mean may be below 0 by 0.01 nats a token, by 0.02 between two
  versions of the policy, and by 0.05 for the sum over an answer.
- `entropy` is at most ln V where the config has the size V of the vocabulary. That of an agent, whose
  actions may be continuous, can be anything.
- A share that is in per cent or a count throughout is none.
- A number is whole only in runs of greenward's own trainer, whose counts are of one step.
- `advantage/mean` is 0 on average only where advantages are less the mean of their group (GRPO; not verl's,
  which is weighted by lengths).
- `reward/mean` can be what the config declares (`reward_range` or `reward_clip_range`), else anything.
"""


def pages() -> dict[str, str]:
    """Name of a page -> its text."""
    topics = topics_of([])
    topics[-1:-1] = [topic for name in TASKS for topic in find_task(name).findings()]
    return {TABLE: table(topics)} | {one.name: page(one) for topic in topics for one in topic.findings}


def table(topics: list[Topic]) -> str:
    """The page with all findings, by topic."""
    lines = ["# Findings", "", "Each is explained in [Diagnosing a run](../diagnostics.md#findings)."]
    for topic in topics:
        lines += ["", f"## {topic.title}", "", "| finding | severity | limit | source |", "|---|---|---|---|"]
        lines += map(row, topic.findings)
    return "\n".join(lines) + "\n"


def row(one: Finding) -> str:
    """The finding in the table."""
    cells = (f"[`{one.name}`]({one.name}.md)", one.weight or one.severity, one.limit, source(one))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def source(one: Finding) -> str:
    """Where the limit comes from; links to sections of diagnostics.md as seen from the pages."""
    return one.source.replace("(#", "(../diagnostics.md#")


def page(one: Finding) -> str:
    """The page of a finding."""
    lines = [f"# {one.title}", "", f"`{one.name}` · {one.weight or one.severity}", ""]
    if not callable(one.signals) and any(one.signals):
        lines += [f"Read from {', '.join(f'`{signal}`' for signal in sorted(one.signals))}.", ""]
    lines += ["## When it is found", "", f"{one.limit[:1].upper()}{one.limit[1:]}.", ""]
    if one.live:
        lines += ["A [monitor](../monitor.md) raises an alarm of this name while the training runs.", ""]
    if one.measured != "{text}":
        shown = re.sub(r"\{[^}]*\}", "…", one.measured)
        lines += ["The report says:", "", f"> {shown}", ""]
    lines += ["## What to do", "", *(f"{i}. {action}" for i, action in enumerate(one.actions, start=1)), ""]
    lines += ["## What confirms it", "", one.confirm, ""]
    if one is IMPOSSIBLE_VALUE:
        lines += possible_values()
    causes = (name for name, cause in FINDINGS.items() if one.name in cause.explains)
    lines += [*links("Often follows from it", one.explains), *links("Often a consequence of", causes)]
    return "\n".join((*lines, "[All findings](README.md)")) + "\n"


def possible_values() -> list[str]:
    """The section with the range of each signal; signals with one range share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, one in RANGES.items():
        shown = "as below" if math.isinf(one.low) and math.isinf(one.high) else str(one)
        rows.setdefault((shown, one.reason), []).append(f"`{name}*`" if name.endswith("/") else f"`{name}`")
    lines = ["## Possible values", "", "| signal | can be | because |", "|---|---|---|"]
    lines += [f"| {', '.join(names)} | {shown} | {reason} |" for (shown, reason), names in rows.items()]
    return [*lines, "", CONDITIONS]


def links(heading: str, names: Iterable[str]) -> list[str]:
    """A section with links to other findings; none without names."""
    shown = ", ".join(f"[{name}]({name}.md)" for name in sorted(set(names)))
    return [f"## {heading}", "", shown, ""] if shown else []


if __name__ == "__main__":
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")
