"""A diff of two runs on the terminal, as a markdown card and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from greenward.diagnostics.change_points import effect_text
from greenward.diagnostics.diff import RunDiff, SignalDifference
from greenward.reports import markdown
from greenward.reports.document import NOTHING, Fact, Table
from greenward.runs.files import dump_json, write_atomically, writing

_MAX_CELL = 60
_ALL_SHOWN = 8  # signals; of more, those that do not part are counted only


def render_diff_json(diff: RunDiff) -> str:
    """The whole diff but for the series, which metrics.jsonl has."""
    record = asdict(diff)
    for difference, found in zip(record["differences"], diff.differences, strict=True):
        for key in ("steps", "values_a", "values_b"):
            del difference[key]
        difference["relative"] = found.relative
    return dump_json(record, indent=1) + "\n"


def render_diff_markdown(diff: RunDiff) -> str:
    """A card that fits in a pull request."""
    blocks = (
        markdown.head("Run diff", diff.headline, _facts(diff), _notes(diff)),
        markdown.table_of(settings_table(diff)),
        markdown.table_of(signals_table(diff)),
    )
    return "\n\n".join(block for block in blocks if block) + "\n"


def print_diff(diff: RunDiff) -> None:
    """Print the diff: the settings that differ first."""
    from rich.console import Console

    from greenward.reports.terminal import print_head, print_table

    console = Console()
    print_table(console, settings_table(diff))
    print_head(console, "Run diff", diff.headline, _facts(diff), _notes(diff))
    print_table(console, signals_table(diff))


def write_diff(diff: RunDiff, folder: Path) -> list[Path]:
    """Write diff_report.json and diff_report.md into `folder`, which is made if need be.

    Raises:
        RunError: the file system refused.
    """
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in (
        ("diff_report.json", render_diff_json(diff)),
        ("diff_report.md", render_diff_markdown(diff)),
    ):
        write_atomically(folder / name, content.encode())
        written.append(folder / name)
    return written


def settings_table(diff: RunDiff) -> Table | None:
    """The settings that differ; None where none do."""
    if not diff.settings:
        return None
    rows = tuple((setting.key, _plain(setting.a), _plain(setting.b)) for setting in diff.settings)
    return Table("Settings that differ", ("Key", "A", "B"), rows)


def signals_table(diff: RunDiff) -> Table | None:
    """One row a signal, in the order in which they part; of many, only those that part (or None)."""
    parted = [found for found in diff.differences if found.onset is not None]
    shown = diff.differences if len(diff.differences) <= _ALL_SHOWN else parted
    others = len(diff.differences) - len(shown)
    caption = (
        "A and B are medians from the parting on. Effect: of the lasting difference, in standard deviations "
        "of the noise. p: adjusted by Holm. Brackets: 95 % interval of the step."
    )
    if others:
        caption = f"{others} signals do not part. {caption}"
    if not shown:
        return None
    columns = ("Signal", "Parts at", "A", "B", "Effect", "p", "B − A")
    return Table("Signals", columns, tuple(map(_row, shown)), caption)


def _row(found: SignalDifference) -> tuple[str, ...]:
    from greenward.reports.render_terminal import spark_line

    parts_at = NOTHING
    if found.onset is not None:
        interval = f" [{found.onset_low}, {found.onset_high}]" if found.onset_low != found.onset_high else ""
        parts_at = f"{found.onset}{interval}"
    effect = NOTHING if found.effect_sd is None else effect_text(found.effect_sd)
    a, b = np.array(found.values_a), np.array(found.values_b)
    both = np.isfinite(a) & np.isfinite(b)
    gap = b[both] - a[both]
    return (
        found.signal,
        parts_at,
        f"{found.a:.4g}",
        f"{found.b:.4g}",
        effect,
        NOTHING if found.adjusted_p is None else f"{found.adjusted_p:.2g}",
        spark_line(gap.tolist(), width=8) if len(gap) else NOTHING,
    )


def _facts(diff: RunDiff) -> tuple[Fact, ...]:
    way = "value by value (equal at the first step)" if diff.replay else "statistically"
    return (
        Fact("A", diff.a),
        Fact("B", diff.b),
        Fact("common steps", f"{diff.common_steps}, {diff.first_step} to {diff.last_step}"),
        Fact("compared", way),
    )


def _notes(diff: RunDiff) -> tuple[str, ...]:
    if diff.cause is None:
        return diff.notes
    guess = f"Likely cause ({diff.cause.stage}): {diff.cause.explanation}"
    return (guess, f"To confirm: {diff.cause.confirm}", *diff.notes)


def _plain(value: object) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]} …"
