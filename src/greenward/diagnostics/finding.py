"""The records of a diagnosis: checks and their findings, cards that group them, and the verdict.

Plain data that no view has laid out yet. A card is one subject of a run (its memory, its gradients …).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from greenward.diagnostics.change_points import holm
from greenward.reports.document import Chart, Fact, Finding, Severity, Table

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
Verdict = Literal["healthy", "findings", "cannot tell"]


@dataclass(frozen=True)
class Check:
    """One question that was asked of a run; `finding` is None where the answer was no.

    `p_value` is that of the test alone, None for a check without chance in it. Tests that can ruin a
    verdict (`critical`) and the others are corrected apart.
    """

    subject: str
    finding: Finding | None = None
    p_value: float | None = None
    critical: bool = False


@dataclass(frozen=True)
class Gap:
    """What could not be checked, why, and what to log or to do so that it can be."""

    subject: str
    reason: str
    enable: str


@dataclass(frozen=True)
class Card:
    """One subject: its checks and what there is to see. `name` is the stem of its files.

    `data` are the numbers behind the tables, for JSON.
    """

    name: str
    title: str
    checks: tuple[Check, ...] = ()
    gaps: tuple[Gap, ...] = ()
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The most severe first."""
        return by_severity(check.finding for check in self.checks if check.finding is not None)

    @property
    def headline(self) -> str:
        """The card in one sentence."""
        if self.findings:
            first = self.findings[0]
            return f"{first.severity.upper()}: {first.title}. {first.measured}"
        if not self.checks:
            return f"Not checked: {self.gaps[0].reason}." if self.gaps else "Nothing to check."
        if self.gaps:
            return f"Nothing wrong was found; not checked: {', '.join(gap.subject for gap in self.gaps)}."
        return "Nothing wrong was found."


@dataclass(frozen=True)
class Diagnosis:
    """A run diagnosed. `unanswered` says why it cannot be called healthy even without findings."""

    command: str
    run: str
    steps: int
    first_step: int
    last_step: int
    cards: tuple[Card, ...]
    notes: tuple[str, ...]
    alpha: float
    thresholds: dict[str, float | None]
    unanswered: str | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all cards, the most severe first."""
        return by_severity(finding for card in self.cards for finding in card.findings)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Of all cards."""
        return tuple(gap for card in self.cards for gap in card.gaps)

    @property
    def checks(self) -> int:
        """How many questions were asked."""
        return sum(len(card.checks) for card in self.cards)

    @property
    def verdict(self) -> Verdict:
        """Findings of any weight come first; without them, an unanswered question is no health."""
        if any(finding.severity != "info" for finding in self.findings):
            return "findings"
        return "healthy" if self.unanswered is None else "cannot tell"

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        counts = {severity: sum(f.severity == severity for f in self.findings) for severity in SEVERITIES}
        if self.verdict == "cannot tell":
            return f"CANNOT TELL: {self.unanswered}."
        if self.verdict == "findings":
            found = [
                f"{counts[severity]} {severity}" for severity in reversed(SEVERITIES) if counts[severity]
            ]
            text = f"{self.findings[0].severity.upper()}: {', '.join(found)} in {self.checks} checks"
        else:
            text = f"HEALTHY: nothing wrong in {self.checks} checks"
        if self.gaps:
            text += f"; {len(self.gaps)} could not be made"
        return f"{text}." if self.unanswered is None else f"{text}; {self.unanswered}."

    def exit_code(self, fail_on: Severity) -> int:
        """1 for findings at or above `fail_on`, 2 where too little is known to tell, else 0."""
        if any(SEVERITIES.index(f.severity) >= SEVERITIES.index(fail_on) for f in self.findings):
            return 1
        return 0 if self.unanswered is None else 2


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The most severe first, then the earliest, then as given: cards stand in order of cause and effect."""
    return tuple(
        sorted(findings, key=lambda f: (-SEVERITIES.index(f.severity), f.onset.step if f.onset else -1))
    )


def corrected(cards: Sequence[Card], alpha: float) -> tuple[Card, ...]:
    """The cards without the findings that chance explains, after Holm's correction.

    The critical tests of a run are one family and the others another, so that a run has a critical
    finding by chance in a share `alpha` of all healthy runs at most, whatever else is tested.
    """
    adjusted: dict[int, float] = {}
    for critical in (True, False):
        family = [
            check
            for card in cards
            for check in card.checks
            if check.p_value is not None and check.critical is critical
        ]
        p_values = holm([check.p_value for check in family if check.p_value is not None])
        adjusted |= {id(check): p for check, p in zip(family, p_values, strict=True)}

    def of(check: Check) -> Check:
        if check.finding is None or check.p_value is None:
            return check
        p = adjusted[id(check)]
        return replace(check, finding=replace(check.finding, p_value=p) if p <= alpha else None)

    return tuple(replace(card, checks=tuple(map(of, card.checks))) for card in cards)
