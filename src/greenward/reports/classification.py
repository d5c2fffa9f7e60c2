"""The figures of a classifier of vulnerable functions as tables (`evaluation.classification`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from greenward.reports.document import Table
from greenward.reports.figures import percent_of

_OUTCOMES = (
    ("correct", "both versions right (P-C)"),
    ("vulnerable", "both said to be vulnerable (P-V)"),
    ("benign", "both said to be safe (P-B)"),
    ("reversed", "both wrong (P-R)"),
    ("undecided", "an abstention, or no label"),
)
_SHOWN_STEPS = 10


def classification_tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """Detection, pairs, and where there are several answers their vote with its risk and coverage."""
    rows = [
        ("accuracy", percent_of(found["accuracy"])),
        ("vulnerable functions whose weakness is named", percent_of(found.get("weakness"))),
        ("precision", _number(found["precision"])),
        ("recall", _number(found["recall"])),
        ("F1", _number(found["f1"])),
        ("area under the ROC curve", _number(found["auc"])),
        ("vulnerable functions missed at 0.5 % false alarms (VD-S)", _number(found["vd_s"])),
        ("abstentions", str(found["abstained"])),
        ("answers without a label", str(found["no_label"])),
    ]
    if calibration := found["calibration"]:
        rows += [
            ("answers that state their confidence", f"{calibration['stated']:.0f}"),
            ("their mean confidence", _number(calibration["mean_confidence"])),
            ("their accuracy", _number(calibration["accuracy"])),
            ("expected calibration error", _number(calibration["ece"])),
            ("Brier score", _number(calibration["brier"])),
        ]
    caption = f"{found['functions']} functions. VD-S takes at least 200 benign ones."
    yield Table("Detection", ("Figure", ""), tuple(rows), caption)
    majority = found.get("majority")
    pairs = [found["pairs"], *([majority["pairs"]] if majority else [])]
    columns = ("Of the pairs", "first answer", *(["majority"] if majority else []))
    outcomes = tuple((said, *(percent_of(one.get(key)) for one in pairs)) for key, said in _OUTCOMES)
    yield Table("Pairs", columns, outcomes, f"{found['pairs']['whole']} pairs of a function and its fix.")
    if majority:
        curve = majority["risk_coverage"]
        shown = curve[:: max(1, len(curve) // _SHOWN_STEPS)]
        yield Table(
            "Majority: risk and coverage",
            ("Share of the answers that agree, at least", "Functions", "Wrong"),
            tuple(
                tuple(f"{100 * one[key]:.1f} %" for key in ("least_share", "coverage", "risk"))
                for one in shown
            ),
            f"{majority['answers']} answers each; accuracy of their vote {percent_of(majority['accuracy'])}.",
        )


def _number(value: float | None) -> str:
    return "not estimable" if value is None else f"{value:.3f}"
