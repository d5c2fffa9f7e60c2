"""Writes a diagnosis into a folder: the page, the whole as markdown and JSON, and each card."""

from __future__ import annotations

from pathlib import Path

from greenward.diagnostics.finding import Diagnosis
from greenward.diagnostics.run_data import RunData
from greenward.diagnostics.signals import Signals
from greenward.diagnostics.views import (
    DIAGRAM,
    card_json,
    card_markdown,
    diagnosis_html,
    diagnosis_json,
    diagnosis_markdown,
    has_diagram,
)
from greenward.reports.svg import standalone
from greenward.runs.files import dump_json, write_atomically, writing

METRICS = "training_metrics.jsonl"


def write_diagnosis(diagnosis: Diagnosis, folder: Path, stem: str) -> list[Path]:
    """Write STEM.html, STEM.md and STEM.json into `folder`, which is made; older ones are replaced.

    Raises:
        RunError: the file system refused.
    """
    views = {"html": diagnosis_html, "md": diagnosis_markdown, "json": diagnosis_json}
    return _write(folder, {f"{stem}.{suffix}": render(diagnosis) for suffix, render in views.items()})


def write_cards(diagnosis: Diagnosis, folder: Path) -> list[Path]:
    """Write NAME.md and NAME.json of each card, and the reliability diagram if there is one.

    Raises:
        RunError: the file system refused.
    """
    texts: dict[str, str] = {}
    for card in diagnosis.cards:
        texts[f"{card.name}.md"] = card_markdown(card, diagnosis)
        texts[f"{card.name}.json"] = card_json(card)
        if has_diagram(card):
            texts[DIAGRAM] = standalone(card.charts[0])
    with writing(str(folder)):
        (folder / DIAGRAM).unlink(missing_ok=True)
    return _write(folder, texts)


def write_metrics(run: RunData, folder: Path) -> Path:
    """Write the metrics as they were analysed: one row a step, in order, no torn line.

    Raises:
        RunError: the file system refused.
    """
    signals = run.signals
    source = run.path / "metrics.jsonl"
    # Without notes nothing was sorted, merged or left out.
    content = _rows(signals) if signals.notes or not source.is_file() else source.read_bytes()
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / METRICS, content)
    return folder / METRICS


def _rows(signals: Signals) -> bytes:
    columns = {name: signals.values[name].tolist() for name in signals.values}
    rows = (
        {"step": int(step), **{name: columns[name][i] for name in columns if signals.recorded[name][i]}}
        for i, step in enumerate(signals.steps)
    )
    return "".join(dump_json(row) + "\n" for row in rows).encode()


def _write(folder: Path, texts: dict[str, str]) -> list[Path]:
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]
