"""What a check found, its topic, and which finding explains which.

The records of a diagnosis: cards with what was found and what could not be checked, and the verdict.

Which finding is the cause, and which are its consequences.

A finding can explain those that its row names, if they do not begin before it. A cause is what nothing
explains; where several could explain a finding, it is the consequence of the earliest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.signals import HOW_TO_LOG, TITLES, RunSignals, short_name
from greenward.reports.document import Chart, Fact, Finding, Severity, Table

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


# What happens to a policy that was damaged or taught the wrong thing.
_DAMAGE = (
    "reward-drop quality-drop failing-answers-rise length-growth length-collapse truncated-answers "
    "held-out-regression train-held-out-gap diversity-loss dominant-answer dead-groups group-signal-fades "
    "entropy-collapse entropy-rise kl-runaway constant-reward gradient-vanished poor-calibration "
    "calibration-no-discrimination value-function-useless no-learning throughput-drop sandbox-timeouts "
    "clip-fraction-high large-policy-steps gradient-always-clipped"
)
_UPDATES = (
    "gradient-explosion gradient-spikes large-policy-steps clip-fraction-high sampler-mismatch non-finite"
)
_WORSE = (
    "reward-drop quality-drop held-out-regression dead-groups group-signal-fades no-learning "
    "gradient-vanished"
)
# From cause to effect: an earlier row is never explained by a later one that it explains.
EXPLAINS: Mapping[str, frozenset[str]] = {
    cause: frozenset(effects.split())
    for cause, effects in {
        "learning-rate-jump": f"{_UPDATES} {_DAMAGE}",
        "reward-scale-jump": f"{_UPDATES} {_WORSE} auxiliary-reward-dominates kl-runaway "
        "entropy-collapse entropy-rise",
        "stale-policy": f"{_UPDATES} {_DAMAGE}",
        "sampler-mismatch": f"gradient-explosion gradient-spikes large-policy-steps {_DAMAGE}",
        "constant-reward": f"{_WORSE} reward-term-dead diversity-loss failing-answers-rise "
        "calibration-no-discrimination",
        "non-finite": f"gradient-explosion gradient-spikes {_DAMAGE}",
        "gradient-explosion": f"gradient-spikes non-finite {_DAMAGE}",
        "sandbox-timeouts": f"{_WORSE} failing-answers-rise throughput-drop flaky-grades constant-reward",
        "truncated-answers": f"{_WORSE} failing-answers-rise constant-reward",
        "cheating": f"reward-hacking train-held-out-gap {_WORSE} failing-answers-rise diversity-loss "
        "poor-calibration",
        "reward-hacking": f"{_WORSE} train-held-out-gap length-growth kl-runaway diversity-loss "
        "entropy-collapse length-bias poor-calibration cheating group-signal-fades truncated-answers "
        "calibration-no-discrimination",
        "large-policy-steps": f"{_DAMAGE} gradient-spikes",
        "clip-fraction-high": f"{_WORSE} large-policy-steps kl-runaway",
        "length-growth": "truncated-answers throughput-drop sandbox-timeouts",
        "length-collapse": f"{_WORSE} throughput-drop failing-answers-rise diversity-loss",
        "entropy-collapse": f"{_WORSE} diversity-loss dominant-answer length-collapse poor-calibration",
        "entropy-rise": f"{_WORSE} failing-answers-rise length-growth truncated-answers kl-runaway",
        "kl-runaway": f"{_WORSE} entropy-collapse entropy-rise diversity-loss length-growth",
        "dominant-answer": f"{_WORSE} diversity-loss",
        "diversity-loss": "dead-groups group-signal-fades gradient-vanished dominant-answer",
        "failing-answers-rise": _WORSE,
        "reward-drop": "quality-drop held-out-regression dead-groups group-signal-fades poor-calibration "
        "failing-answers-rise gradient-vanished train-held-out-gap",
        "dead-groups": "gradient-vanished no-learning group-signal-fades reward-term-dead diversity-loss "
        "auxiliary-reward-dominates",
        "group-signal-fades": "gradient-vanished dead-groups",
        "gradient-vanished": "no-learning",
        "held-out-regression": "train-held-out-gap quality-drop",
        "memory-leak": "throughput-drop",
        "gradient-spikes": "reward-drop quality-drop",
        "evaluation-contaminated": "train-held-out-gap",
        "length-bias": "length-growth truncated-answers",
        "auxiliary-reward-dominates": "no-learning quality-drop",
        "gradient-always-clipped": "no-learning gradient-spikes",
        "calibration-no-discrimination": "poor-calibration",
    }.items()
}
_ORDER = {name: place for place, name in enumerate(EXPLAINS)}


@dataclass(frozen=True)
class Cause:
    """A finding that nothing explains, and what followed from it, the earliest first."""

    finding: Finding
    consequences: tuple[Finding, ...] = ()

    @property
    def severity(self) -> Severity:
        """That of the worst of them."""
        found = (self.finding, *self.consequences)
        return max((one.severity for one in found), key=SEVERITIES.index)

    @property
    def headline(self) -> str:
        """The cause with its size and step, and the first things that followed."""
        text = self.finding.brief or self.finding.title
        onset = self.finding.onset
        if onset is not None:
            text += f" from step {onset.step}"
        first_of = {one.name: one for one in reversed(self.consequences) if one.name != self.finding.name}
        later = [one for one in self.consequences if first_of.get(one.name) is one]
        for one in later[:2]:
            brief = one.brief or one.title
            is_word = brief[1:2].islower()  # not an abbreviation such as KL
            text += f"; {brief[:1].lower() if is_word else brief[:1]}{brief[1:]}"
            if onset is not None and one.onset is not None and one.onset.step > onset.step:
                text += f" {_count(one.onset.step - onset.step, 'step')} later"
        return text + (f"; {_count(len(later) - 2, 'more consequence')}" if len(later) > 2 else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def causes_of(findings: Sequence[Finding], steps: int) -> tuple[Cause, ...]:
    """The causes among the findings with their consequences, the most severe first. Remarks stay out.

    A consequence may seem to begin a little earlier than its cause: by 10 steps, or 5 % of the run.
    """
    counted = [one for one in findings if one.severity != "info"]
    slack = max(10.0, 0.05 * steps)

    def in_time(cause: Finding, effect: Finding) -> bool:
        if cause.onset is None or effect.onset is None:
            return True
        # An onset is as sure as its interval is short.
        apart = max(2 * slack, effect.onset.high - effect.onset.low)
        late_enough = effect.onset.step >= cause.onset.step - apart
        return late_enough and effect.onset.high >= cause.onset.low - slack

    def explains(cause: Finding, effect: Finding) -> bool:
        if cause.name == effect.name or effect.name not in EXPLAINS.get(cause.name, ()):
            return False
        mutual = cause.name in EXPLAINS.get(effect.name, ()) and in_time(effect, cause)
        return in_time(cause, effect) and not (mutual and _ORDER[cause.name] > _ORDER[effect.name])

    def begin(one: Finding) -> tuple[float, int]:
        return (one.onset.step if one.onset else -1.0), _ORDER.get(one.name, len(_ORDER))

    # The same finding of several signals is one.
    groups: dict[str, list[Finding]] = {}
    for one in sorted(counted, key=lambda one: (-SEVERITIES.index(one.severity), begin(one))):
        groups.setdefault(one.name, []).append(one)
    heads = [members[0] for members in groups.values()]
    parent: dict[str, Finding] = {}
    for effect in heads:
        able = [cause for cause in heads if explains(cause, effect)]
        if able:
            parent[effect.name] = min(able, key=begin)

    def root(one: Finding) -> Finding:
        seen = {one.name}
        while one.name in parent and parent[one.name].name not in seen:
            one = parent[one.name]
            seen.add(one.name)
        return one

    below: dict[str, list[Finding]] = {}
    for one in heads:
        top = root(one)
        others = groups[one.name] if top is not one else groups[one.name][1:]
        below.setdefault(top.name, []).extend(others)
    found = [Cause(groups[name][0], tuple(sorted(effects, key=begin))) for name, effects in below.items()]

    def rank(one: Cause) -> tuple[int, int, tuple[float, int]]:
        return -SEVERITIES.index(one.severity), -len(one.consequences), begin(one.finding)

    return tuple(sorted(found, key=rank))
