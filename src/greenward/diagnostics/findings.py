"""The records of a diagnosis: cards with what was found and what could not be checked, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import yaml

from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.signals import HOW_TO_LOG, TITLES, RunSignals, short_name
from greenward.reports.document import Chart, Fact, Finding, Severity, Table

if TYPE_CHECKING:
    from greenward.diagnostics.causes import Cause

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
HealthVerdict = Literal["healthy", "findings", "cannot tell"]


@dataclass(frozen=True)
class Gap:
    """What could not be checked, why, and what to log or to do so that it can be."""

    subject: str
    reason: str
    enable: str


@dataclass(frozen=True)
class Card:
    """What the checks of one topic found, and what there is to see. `name` is the stem of its files.

    `checked` names the checks that were made, `data` are the numbers behind the tables, for JSON.
    """

    name: str
    title: str
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    gaps: tuple[Gap, ...]
    facts: tuple[Fact, ...]
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...]
    data: dict[str, Any]

    @property
    def headline(self) -> str:
        """The card in one sentence."""
        if self.findings:
            first = self.findings[0]
            return f"{first.severity.upper()}: {first.title}. {first.measured}"
        if not self.checked:
            return f"Not checked: {self.gaps[0].reason}." if self.gaps else "Nothing to check."
        if self.gaps:
            return f"Nothing wrong was found; not checked: {', '.join(gap.subject for gap in self.gaps)}."
        return "Nothing wrong was found."


@dataclass(frozen=True)
class Diagnosis:
    """A run diagnosed. `unanswered` says why it cannot be called healthy even without findings.

    `causes` are the findings as causes with their consequences, where those were sought.
    """

    command: str
    run: RunSignals
    cards: tuple[Card, ...]
    alpha: float
    thresholds: dict[str, float | None]
    unanswered: str | None = None
    causes: tuple[Cause, ...] = ()

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
        """The number of checks that were made."""
        return sum(len(card.checked) for card in self.cards)

    @property
    def verdict(self) -> HealthVerdict:
        """A run with an unanswered question is never healthy; a finding counts in any case."""
        if any(finding.severity != "info" for finding in self.findings):
            return "findings"
        return "healthy" if self.unanswered is None else "cannot tell"

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.verdict == "cannot tell":
            return f"CANNOT TELL: {self.unanswered}."
        if self.verdict == "findings":
            if self.causes:
                others = len(self.causes) - 1
                also = f" ({others} other cause{'s' if others > 1 else ''} found)" if others else ""
                return f"{self.causes[0].severity.upper()}: {self.causes[0].headline}{also}."
            severities = [finding.severity for finding in self.findings]
            counts = (f"{severities.count(one)} {one}" for one in dict.fromkeys(severities))
            text = f"{severities[0].upper()}: {', '.join(counts)} in {self.checks} checks"
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


@cache
def finding_texts() -> dict[str, dict[str, Any]]:
    """Name of a finding -> its texts: title, measured, brief (else the title), actions and confirm."""
    text = (files("greenward.diagnostics") / "findings.yaml").read_text(encoding="utf-8")
    # The loader in C takes a fifth of the time; not every build of PyYAML has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    texts: dict[str, dict[str, Any]] = yaml.load(text, Loader=loader)
    return texts


def gap_of(run: RunSignals, name: str) -> Gap:
    """Why the signal could not be checked: not logged, never finite, or too short."""
    subject = TITLES.get(name, short_name(name))
    count = len(run.testable(name)[1])
    if count:
        reason = f"{name} has {count} value{'s' if count > 1 else ''}, a test needs {MIN_POINTS}"
        return Gap(subject, reason, f"Train at least {MIN_POINTS} steps.")
    if name in run.values:
        usable = "positive" if len(run.series(name)[1]) else "finite"
        enable = "See the finding about values that are not finite."
        return Gap(subject, f"{name} has no {usable} value", enable)
    near = get_close_matches(name, run.values, n=2, cutoff=0.75)
    similar = f" (there is {' and '.join(near)})" if near else ""
    enable = HOW_TO_LOG.get(name, f"Log {name} at each step.")
    return Gap(subject, f"{name} is not in metrics.jsonl{similar}", enable)


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The most severe first, then the earliest, then as given: cards stand in order of cause and effect."""
    return tuple(
        sorted(findings, key=lambda f: (-SEVERITIES.index(f.severity), f.onset.step if f.onset else -1))
    )
