"""Defines the records of a finding and of a diagnosis, and decides which finding explains which.

The findings themselves are in `findings/`.

A finding can explain those that its record names, if they do not begin before it. A finding that nothing
explains is a cause; where several could explain a finding, it is the consequence of the earliest.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.change_points import MIN_POINTS, ChangePoint
from greenward.diagnostics.readers.names import likely_reward
from greenward.diagnostics.signals import HOW_TO_LOG, REWARD, TITLES, RunSignals, short_name
from greenward.reports.document import Chart, Fact, Occurrence, Onset, Severity, Table, Unit

ALPHA = 0.05
_SHOWN = 4  # signals of a finding
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
HealthVerdict = Literal["healthy", "findings", "cannot tell"]
# What happens to a policy that was damaged or taught the wrong thing.
DAMAGE = (
    *("reward-drop", "quality-drop", "failing-answers-rise", "length-growth", "length-collapse"),
    *("truncated-answers", "held-out-regression", "train-held-out-gap", "diversity-loss", "dominant-answer"),
    *("dead-groups", "group-signal-fades", "entropy-collapse", "entropy-rise", "kl-runaway"),
    *("constant-reward", "gradient-vanished", "poor-calibration", "calibration-no-discrimination"),
    *("value-function-useless", "no-learning", "throughput-drop", "sandbox-timeouts", "clip-fraction-high"),
    *("large-policy-steps", "gradient-always-clipped"),
)
UPDATES = (
    *("gradient-explosion", "gradient-spikes", "large-policy-steps", "clip-fraction-high"),
    *("sampler-mismatch", "non-finite", "value-loss-diverges"),
)
WORSE = (
    *("reward-drop", "quality-drop", "held-out-regression", "dead-groups", "group-signal-fades"),
    *("no-learning", "gradient-vanished"),
)


@dataclass(frozen=True)
class Gap:
    """What could not be checked, why, and what to log or to do so that it can be."""

    subject: str
    reason: str
    enable: str


@dataclass(frozen=True)
class Thresholds:
    """What the user may set: the accepted chance of a false finding, and two thresholds."""

    alpha: float = ALPHA
    calibration_score: float = WARNING_SCORE
    memory_mb: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """The two thresholds, by their options."""
        return {"calibration": self.calibration_score, "memory_limit_mb": self.memory_mb}


@dataclass(frozen=True)
class Result:
    """What a test measured. `found` says whether it is a finding, `numbers` fill the sentence of the check.

    `severity`, `actions` and `selection` replace those of the check; `p_value` is that of the test alone.
    `made` is False where only `gaps` came out of it. The other fields are shown in the card, whatever was
    found.
    """

    found: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity | None = None
    onset: Onset | None = None
    p_value: float | None = None
    made: bool = True
    gaps: tuple[Gap, ...] = ()
    change: ChangePoint | None = None
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    selection: str = ""
    actions: tuple[str, ...] = ()


def not_made(gap: Gap, **shown: Any) -> Result:
    """A test that could not be made, and why; `shown` are the fields to show nevertheless."""
    return Result(made=False, gaps=(gap,), **shown)


Test: TypeAlias = Callable[[RunSignals, str, Thresholds], Result]
Signals: TypeAlias = tuple[str, ...] | Callable[[RunSignals], Sequence[str]]


def selected(signals: Signals, run: RunSignals) -> Sequence[str]:
    """The signals of a finding or of a chart in a run."""
    return signals(run) if callable(signals) else signals


@dataclass(frozen=True)
class Watched:
    """A change of a signal that a monitor looks for in the newest steps, with limits of its own.

    It is one by `size` times (ratio), by `size` (difference), or beyond `size` (level). The newest values
    must be `least` or more.
    """

    signal: str
    kind: Literal["ratio", "difference", "level"]
    size: float
    severity: Severity = "warning"
    least: float = 0.0

    def differs(self, before: float, newest: float) -> bool:
        """Whether the newest median differs from the one before by at least `size`."""
        if self.kind == "level":
            return newest > self.size >= before
        if self.kind == "difference":
            return newest - before >= self.size if self.size > 0 else newest - before <= self.size
        if before <= 0 or newest <= 0 or newest < self.least:
            return False
        return newest / before >= self.size if self.size > 1 else newest / before <= self.size


@dataclass(frozen=True)
class Finding:
    """Something that can be wrong with a run: how it is tested, what is said of it, and what it may explain.

    `test` is made of each of `signals`, and each that fails is an occurrence. An `optional` finding is not
    missed where its signal was not logged. Where a signal in `needs`, or the one that is tested, has fewer
    than `fewest` values, the test is left out, which is said. A test of the run as a whole has the signal "".
    `critical` tests are corrected for their number apart from the others.

    `measured` and `brief` (the title where it is empty) are filled with the numbers of the test; `confirm` is
    what would confirm the finding. For its page in docs/findings, `limit` says when it is found, `weight`
    what its severity depends on, and `source` where the limit comes from.

    `selection` is a query for the kept answers behind it (`runs/selection.py`), in which {onset} is its step
    and {name} the last part of its signal; without one those from the onset on are meant.

    `explains` are the findings that may follow from it, `by_success` says that it is a consequence of solved
    training problems, where they are (`findings/solved.py`), `live` are the changes that a monitor looks for,
    `not_for` the algorithms for which it means nothing, `suspects` the settings that a bisection tries
    first, and `views` the commands of `rldk` that show it.
    """

    name: str
    title: str
    test: Test
    signals: Signals = ("",)
    _: KW_ONLY
    severity: Severity = "warning"
    critical: bool = False
    needs: tuple[str, ...] = ()
    optional: bool = False
    fewest: int = MIN_POINTS
    measured: str
    brief: str = ""
    actions: tuple[str, ...]
    confirm: str
    limit: str
    weight: str = ""
    source: str = ""
    explains: tuple[str, ...] = ()
    selection: str = ""
    by_success: bool = False
    live: tuple[Watched, ...] = ()
    not_for: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ("training", "algorithm", "sampling", "rewards", "rollouts", "reward_model")
    views: tuple[str, ...] = ()

    def applies(self, algorithm: str | None, silent: Collection[str]) -> bool:
        """Whether it means something for an algorithm, where the names in `silent` do not."""
        return algorithm not in self.not_for and self.name not in silent

    def occurrence(self, result: Result, signal: str) -> Occurrence:
        """What `result` of the test of a signal means."""
        return Occurrence(
            self.name,
            result.severity or self.severity,
            self.title,
            self.measured.format(**result.numbers),
            result.actions or self.actions,
            self.confirm,
            result.onset,
            result.p_value,
            (self.brief or self.title).format(**result.numbers),
            (signal,) if signal else (),
            result.selection or self.selection,
        )

    def answers_behind(self, found: Occurrence) -> str:
        """The query for the kept answers behind an occurrence; empty where there is no step to begin from."""
        onset = None if found.onset is None else max(0, math.floor(found.onset.step))
        name = (found.signals or ("",))[0].rpartition("/")[2]
        usual = "step={onset}-"
        query = found.selection or self.selection or usual
        if onset is None:
            return query.replace(usual, "").strip("&").format(name=quote(name))
        return query.format(onset=onset, name=quote(name))


@dataclass(frozen=True)
class SignalChart:
    """Signals as lines over the steps; the onset that the test of the finding `marks` measured is marked."""

    title: str
    signals: Signals
    unit: Unit = "number"
    log: bool = False
    marks: str = ""


@dataclass(frozen=True)
class Topic:
    """A subject of a run (its gradients, its memory): the findings and charts that make up one card."""

    name: str
    title: str
    findings: tuple[Finding, ...]
    charts: tuple[SignalChart, ...] = ()
    facts: Callable[[RunSignals], tuple[Fact, ...]] | None = None


@dataclass(frozen=True)
class Card:
    """What the checks of one topic found, and what there is to see. `name` is the stem of its files.

    `checked` names the checks that were made, `data` are the numbers behind the tables, for JSON.
    """

    name: str
    title: str
    checked: tuple[str, ...]
    findings: tuple[Occurrence, ...]
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
    def findings(self) -> tuple[Occurrence, ...]:
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

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """How a notebook shows it."""
        from greenward.reports.page import mime_bundle

        report = import_module("greenward.diagnostics.diagnose").diagnosis_report(self)  # imports this file
        return mime_bundle(report)

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


def gap_of(run: RunSignals, name: str, needed: int = MIN_POINTS) -> Gap:
    """Why the signal could not be checked: not logged, never finite, or at fewer than `needed` steps."""
    subject = TITLES.get(name, short_name(name))
    if name not in run.values:
        if name == REWARD and run.values and not run.is_own:
            likely = likely_reward(map(run.logged_as, run.values)) or "NAME"
            option = f"--map {shlex.quote(f'{likely}={REWARD}')}"
            enable = f"If the log calls it otherwise, say so, such as by {option}."
            return Gap(subject, f"no name in {run.log} is known as that of a reward", enable)
        near = get_close_matches(name, run.values, n=2, cutoff=0.75)
        similar = f" (there is {' and '.join(map(run.logged_as, near))})" if near else ""
        enable = HOW_TO_LOG.get(name, f"Log {name} at each step.")
        return Gap(subject, f"{name} is not in {run.log}{similar}", enable)
    logged, finite, usable = run.logged_as(name), len(run.series(name)[1]), len(run.testable(name)[1])
    if not finite:
        return Gap(subject, f"all values of {logged} are NaN or infinite", "Find the first part that is.")
    kind = "" if usable == finite else " above 0"
    reason = f"{logged} has {usable or 'no'} value{'' if usable == 1 else 's'}{kind}, a test needs {needed}"
    if finite >= needed:
        return Gap(subject, reason, "A change of what is 0 or less cannot be measured as a ratio.")
    if len(run.steps) >= needed:
        return Gap(subject, reason, f"Log it at each step: the log has {len(run.steps)} steps.")
    return Gap(subject, reason, f"Log at least {needed} steps.")


def merged(findings: Iterable[Occurrence]) -> tuple[Occurrence, ...]:
    """Each finding once, the most severe first: of several signals that of the worst, with all evidence."""
    groups: dict[str, list[Occurrence]] = {}
    for one in by_severity(findings):
        groups.setdefault(one.name, []).append(one)
    found = []
    for head, *others in groups.values():
        left = len(others) + 1 - _SHOWN
        more = f" {_count(left, 'more signal')}." if left > 0 else ""
        measured = " ".join(one.measured for one in (head, *others[: _SHOWN - 1])) + more
        signals = tuple(name for one in (head, *others) for name in one.signals)
        found.append(replace(head, measured=measured, signals=signals))
    return tuple(found)


def by_severity(findings: Iterable[Occurrence]) -> tuple[Occurrence, ...]:
    """The most severe first, then the earliest, then as given: cards stand in order of cause and effect."""
    return tuple(
        sorted(findings, key=lambda f: (-SEVERITIES.index(f.severity), f.onset.step if f.onset else -1))
    )


@dataclass(frozen=True)
class Cause:
    """A finding that nothing explains, and what followed from it, the earliest first."""

    finding: Occurrence
    consequences: tuple[Occurrence, ...] = ()

    @property
    def severity(self) -> Severity:
        """That of the worst of them."""
        return max((one.severity for one in (self.finding, *self.consequences)), key=SEVERITIES.index)

    @property
    def headline(self) -> str:
        """The cause with its size and step, and the first things that followed."""
        text = self.finding.brief or self.finding.title
        if (onset := self.finding.onset) is not None:
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


def causes_of(findings: Sequence[Occurrence], steps: int, known: Sequence[Finding]) -> tuple[Cause, ...]:
    """The causes among the findings with their consequences, the most severe first. Remarks stay out.

    `known` are the findings that explain others, from cause to effect: of two that explain each other, or
    that begin at once, the earlier is the cause. A consequence may seem to begin a little earlier than its
    cause: by 10 steps, or 5 % of the run.
    """
    counted = [one for one in findings if one.severity != "info"]
    slack = max(10.0, 0.05 * steps)
    effects_of = {one.name: frozenset(one.explains) for one in known}
    order = {one.name: place for place, one in enumerate(known)}

    def in_time(cause: Occurrence, effect: Occurrence) -> bool:
        if cause.onset is None or effect.onset is None:
            return True
        # An onset is as sure as its interval is short.
        apart = max(2 * slack, effect.onset.high - effect.onset.low)
        return effect.onset.step >= cause.onset.step - apart and effect.onset.high >= cause.onset.low - slack

    def explains(cause: Occurrence, effect: Occurrence) -> bool:
        if cause.name == effect.name or effect.name not in effects_of.get(cause.name, ()):
            return False
        mutual = cause.name in effects_of.get(effect.name, ()) and in_time(effect, cause)
        return in_time(cause, effect) and not (mutual and order[cause.name] > order[effect.name])

    def begin(one: Occurrence) -> tuple[float, int]:
        return (one.onset.step if one.onset else -1.0), order.get(one.name, len(order))

    # The same finding of several signals is one.
    groups: dict[str, list[Occurrence]] = {}
    for one in sorted(counted, key=lambda one: (-SEVERITIES.index(one.severity), begin(one))):
        groups.setdefault(one.name, []).append(one)
    heads = [members[0] for members in groups.values()]
    parent: dict[str, Occurrence] = {}
    for effect in heads:
        if able := [cause for cause in heads if explains(cause, effect)]:
            parent[effect.name] = min(able, key=begin)

    def root(one: Occurrence) -> Occurrence:
        seen = {one.name}
        while one.name in parent and parent[one.name].name not in seen:
            one = parent[one.name]
            seen.add(one.name)
        return one

    below: dict[str, list[Occurrence]] = {}
    for one in heads:
        top = root(one)
        if not in_time(top, one):  # a link without a date may not lead to a cause that began later
            top = one
        below.setdefault(top.name, []).extend(groups[one.name] if top is not one else groups[one.name][1:])

    def in_order(one: Occurrence) -> tuple[bool, tuple[float, int]]:
        return one.onset is None, begin(one)  # what is not dated tells least of what followed

    found = [Cause(groups[name][0], tuple(sorted(effects, key=in_order))) for name, effects in below.items()]

    earliest = min((begin(one.finding)[0] for one in found), default=0.0)

    def rank(one: Cause) -> tuple[int, bool, int, tuple[float, int]]:
        # What was wrong long before all else comes first, whatever else followed later.
        is_late = begin(one.finding)[0] > earliest + 2 * slack
        return -SEVERITIES.index(one.severity), is_late, -len(one.consequences), begin(one.finding)

    return tuple(sorted(found, key=rank))
