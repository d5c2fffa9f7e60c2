"""The difference of two runs as the record that reports render."""

from __future__ import annotations

import json
from dataclasses import asdict

from greenward.diagnostics.change_points import effect_text, flat
from greenward.diagnostics.diff import RunDiff, SignalDifference
from greenward.reports.document import NOTHING, Fact, Report, Table, section
from greenward.runs.files import to_json

_MAX_CELL = 60
_ALL_SHOWN = 8  # signals; of more, those that do not differ are counted only


def diff_report(diff: RunDiff) -> Report:
    """The settings that differ, then the signals."""
    way = "value by value (equal at the first step)" if diff.replay else "statistically"
    notes = diff.notes
    if diff.cause is not None:
        cause = f"Likely cause ({diff.cause.stage}): {diff.cause.explanation}"
        notes = (cause, f"To confirm: {diff.cause.confirm}", *notes)
    settings = tuple((setting.key, _plain(setting.a), _plain(setting.b)) for setting in diff.settings)
    data = {
        **vars(diff),
        "settings": [asdict(setting) for setting in diff.settings],
        "differences": [_record(found) for found in diff.differences],
        "cause": None if diff.cause is None else asdict(diff.cause),
    }
    return Report(
        kind="run diff",
        title="Run diff",
        headline=diff.headline,
        facts=(
            Fact("A", diff.a),
            Fact("B", diff.b),
            Fact("common steps", f"{diff.common_steps}, {diff.first_step} to {diff.last_step}"),
            Fact("compared", way),
        ),
        notes=notes,
        sections=(
            section("Settings that differ", Table("", ("Key", "A", "B"), settings) if settings else None),
            section("Signals", _signals_table(diff)),
        ),
        data=to_json(data),
    )


def _record(found: SignalDifference) -> dict[str, object]:
    """The difference without its series, which metrics.jsonl has."""
    record = {key: value for key, value in vars(found).items() if key not in ("onset", "gaps")}
    first = {"signal": found.signal, "found": found.found, **flat(found.onset)}
    return {**first, **record, "relative": found.relative}


def _signals_table(diff: RunDiff) -> Table | None:
    """One row a signal, the first to differ first; of many, only those that differ."""
    differ = [found for found in diff.differences if found.onset is not None]
    shown = diff.differences if len(diff.differences) <= _ALL_SHOWN else differ
    if not shown:
        return None
    others = len(diff.differences) - len(shown)
    caption = (
        "A and B are medians from that step on. Effect: of the lasting difference, in standard deviations "
        "of the noise. p: adjusted by Holm. Brackets: 95 % interval of the step."
    )
    if others:
        caption = f"{others} signals do not differ. {caption}"
    columns = ("Signal", "Differs from step", "A", "B", "Effect", "p", "B − A")
    return Table("", columns, tuple(map(_row, shown)), caption)


def _row(found: SignalDifference) -> tuple[str, ...]:
    from greenward.reports.render_terminal import spark_line

    return (
        found.signal,
        NOTHING if found.onset is None else str(found.onset),
        f"{found.a:.4g}",
        f"{found.b:.4g}",
        NOTHING if found.effect_sd is None else effect_text(found.effect_sd),
        NOTHING if found.adjusted_p is None else f"{found.adjusted_p:.2g}",
        spark_line(found.gaps, width=8) if found.gaps else NOTHING,
    )


def _plain(value: object) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]} …"
