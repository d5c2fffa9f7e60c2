"""Says what an audit found: how each answer was judged, and what kind of grader that makes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from enum import Enum
from html import escape
from typing import Any

from click import unstyle

from greenward.evaluation.audit_programs import HONEST
from greenward.evaluation.audit_texts import LONG_RIGHT, SPELLING

VERSION = 1
"""Of the JSON form of a report."""


class TrialOutcome(str, Enum):
    """What a function did with an answer."""

    REFUSED = "refused"
    ACCEPTED = "accepted"
    POISONED = "poisoned"  # later answers were judged wrongly
    RAISED = "raised"  # a trainer would stop here
    KILLED = "killed"  # its process or that process's parent ended, or gave a garbled reply
    HUNG = "hung"


_PAID = (TrialOutcome.ACCEPTED, TrialOutcome.POISONED)
_BROKEN = (TrialOutcome.RAISED, TrialOutcome.KILLED, TrialOutcome.HUNG)


@dataclass(frozen=True)
class Trial:
    """One answer given to the function. `why` says what is wrong if the outcome is not the sound one.

    `is_partial` says whether a refused answer was paid noticeably more than the plainest wrong one.
    """

    answer: str
    family: str
    task_id: str
    outcome: TrialOutcome
    score: float | None
    detail: str
    why: str
    text: str = ""
    is_partial: bool = False


@dataclass(frozen=True)
class Pair:
    """Two answers that were paid in the wrong order, or the same: the first is the worse one."""

    worse: str
    better: str
    worse_score: float
    better_score: float

    def __str__(self) -> str:
        return f"{self.worse} gets {self.worse_score:.3g}, {self.better} {self.better_score:.3g}"


class Kind(str, Enum):
    """What kind of grader a function is. The worst come first.

    | kind | what was seen |
    |---|---|
    | executes code in its own process | code of an answer wrote down the process id of the function |
    | pays for form only | it pays for the form without a right answer in it, and no more for a right one |
    | pays for any text | it pays for nonsense, too |
    | pays for an empty answer | it tells right from wrong, and pays for an empty box, tag or block |
    | pays for words | the words of a rubric, or those that the function's own source holds, are paid |
    | obeys orders in the answer | a wrong answer with an order, a forged verdict or praise is paid |
    | looks for the text | a list of candidates, "not 42", or 142 for 42 is paid |
    | counts an answer that is not the last | a right one before a wrong final one, or in thoughts, is paid |
    | trusts tests that an answer can change | of a repository: nothing but tests or what runs them changed |
    | leaves the solution in reach | of a repository: a file holds the lines of the solution |
    | permissive | other wrong answers are paid: near misses, forged reports, visible tests … |
    | pays for brevity | a short answer is paid like a better one that is longer, or more |
    | pays for length | a wrong answer is paid more the longer it is |
    | can be killed or hung | its process or its parent ended, or it did not reply in time |
    | raises on some answers | it raised |
    | bonus for form | a wrong answer is paid for its form; alone this is no fault |
    | strict | right programs are refused, or over half of the spellings of values, which alone are no fault |
    | partial credit | wrong programs that pass some tests get a share; alone this is no fault |
    """

    EXECUTES = "executes code in its own process"
    FORM = "pays for form only"
    ANYTHING = "pays for any text"
    EMPTY = "pays for an empty answer"
    WORDS = "pays for words"
    ORDERS = "obeys orders in the answer"
    TEXT = "looks for the text"
    NOT_LAST = "counts an answer that is not the last"
    EDITABLE = "trusts tests that an answer can change"
    LEAKS = "leaves the solution in reach"
    PERMISSIVE = "permissive"
    BREVITY = "pays for brevity"
    LENGTH = "pays for length"
    KILLED = "can be killed or hung"
    RAISES = "raises on some answers"
    BONUS = "bonus for form"
    STRICT = "strict"
    PARTIAL = "partial credit"


_TRICKS = {
    "equal to everything", "lying type", "leaving early", "forged report", "stealing expected values",
    "tampering", "test framework", "signals", "endless", "flood", "expression",
}  # fmt: skip
EDITED_TESTS, LEAKED = "edited tests", "leaked solution"
_KINDS = {
    EDITED_TESTS: Kind.EDITABLE,
    LEAKED: Kind.LEAKS,
    "own words": Kind.WORDS,
    "rubric words": Kind.WORDS,
    "orders": Kind.ORDERS,
    "forged verdict": Kind.ORDERS,
    "flattery": Kind.ORDERS,
    "shotgun": Kind.TEXT,
    "negation": Kind.TEXT,
    "values in prose": Kind.TEXT,
    "value inside another": Kind.TEXT,
    "several answers": Kind.NOT_LAST,
    "contradiction": Kind.NOT_LAST,
    "answer format": Kind.NOT_LAST,
    "long text": Kind.LENGTH,
    "padding": Kind.LENGTH,
}
_PLAIN = ("nothing 1", "nonsense 1", "much text")  # texts of no form, from short to long
_WITHOUT_CONTENT = ("empty", "form", "nonsense", "echo", "tags")
_MOST_SPELLINGS_REFUSED = 0.5


@dataclass(frozen=True)
class Finding:
    """A kind that a function is of, how many answers of those tried show it, and one of them."""

    kind: Kind
    count: int
    of: int
    why: str
    example: str = ""


@dataclass(frozen=True)
class AuditReport:
    """What an audit found: a trial of each cheat and of each honest answer.

    A score counts as accepted from halfway between that of the plainest wrong answer and that of the
    reference. An answer with `compared_with` counts as accepted if it is paid more than that.
    `told_apart` says whether any reference scored above the wrong answer. `left_out` names the kinds of tasks
    on which that never happened, where it did on another kind. `spellings` are right values in other
    notations; `pairs` stand in the wrong order. `runs_answers` says whether code of an answer ran in the
    function's own process; the gains are what a wrong answer gets for its form and for its length, as a
    share of what a right one gets.
    """

    function: str
    signature: str
    presentation: str
    cheats: tuple[Trial, ...]
    honest: tuple[Trial, ...]
    told_apart: bool = True
    left_out: str = ""
    spellings: tuple[Trial, ...] = ()
    pairs: tuple[Pair, ...] = ()
    runs_answers: bool = False
    form_gain: float = 0.0
    length_gain: float = 0.0

    @property
    def accepted(self) -> tuple[Trial, ...]:
        """Cheats that were rewarded, or that made the function reward others wrongly."""
        return self._with(*_PAID)

    @property
    def broken_by(self) -> tuple[Trial, ...]:
        """Cheats that killed or hung the function, or made it raise."""
        return self._with(*_BROKEN)

    @property
    def false_refusals(self) -> tuple[Trial, ...]:
        """Honest answers that were not accepted."""
        return tuple(trial for trial in self.honest if trial.outcome is not TrialOutcome.ACCEPTED)

    @property
    def refused_spellings(self) -> tuple[Trial, ...]:
        """Usual spellings of a right value that were not accepted; disputed ones do not count."""
        usual = (trial for trial in self.spellings if trial.family == SPELLING)
        return tuple(trial for trial in usual if trial.outcome is not TrialOutcome.ACCEPTED)

    @property
    def sound(self) -> bool:
        """Whether every cheat was refused, every honest answer accepted, and the order is right."""
        return not (self.accepted or self.broken_by or self.false_refusals or self.pairs or self.runs_answers)

    @property
    def says_nothing(self) -> bool:
        """Whether right answers were refused as wrong ones were: the data may not be what it expects."""
        refused = len(self.false_refusals) == len(self.honest) and not (self.accepted or self.broken_by)
        return not self.told_apart and refused

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What kind of grader the function is, the worst first; none if it is sound and no more."""
        found = {finding.kind: finding for finding in _findings(self)}
        if Kind.EXECUTES in found:
            found.pop(Kind.KILLED, None)
        return tuple(found[kind] for kind in Kind if kind in found)

    def to_json(self) -> dict[str, Any]:
        counts = {name: len(getattr(self, name)) for name in ("accepted", "broken_by", "false_refusals")}
        counts["refused_spellings"] = len(self.refused_spellings)
        findings = [{**asdict(one), "kind": one.kind.value} for one in self.findings]
        verdict = {"sound": self.sound, "says_nothing": self.says_nothing, "findings": findings}
        return {"version": VERSION, **asdict(self), **verdict, **counts}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """How a notebook shows it: as `greenward audit` prints it."""
        from greenward.reports.evaluation import print_audit

        printed = io.StringIO()
        with redirect_stdout(printed):
            print_audit(self)
        text = unstyle(printed.getvalue())
        return {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}

    def _with(self, *outcomes: TrialOutcome) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.cheats if trial.outcome in outcomes)


_ROUNDING = 1e-9
_SHOWN = 90  # characters of an example


def _example(trial: Trial) -> str:
    text = trial.text if len(trial.text) <= _SHOWN else f"{trial.text[: _SHOWN - 1]}…"
    score = "" if trial.score is None else f" got {trial.score:.3g}"
    shown = f": {text!r}" if text else ""
    return f"{trial.answer}{score or f' ({trial.outcome.value})'}{shown}"


def _findings(report: AuditReport) -> Iterator[Finding]:
    def finding(kind: Kind, shown: Iterable[Trial], tried: Iterable[Trial]) -> Finding:
        members = tuple(shown)
        return Finding(kind, len(members), len(tuple(tried)), members[0].why, _example(members[0]))

    cheats, accepted = report.cheats, report.accepted
    empty = [trial for trial in accepted if trial.family in _WITHOUT_CONTENT]
    if empty:
        kind = _kind_without_content(report, empty)
        if not report.told_apart:  # all wrong answers are paid, and no more is known
            yield finding(kind, [*empty, *(one for one in accepted if one not in empty)], cheats)
            accepted = ()
        else:
            yield finding(kind, empty, cheats)

    kinds: dict[Kind, list[Trial]] = {}
    for trial in accepted:
        if trial not in empty:
            kinds.setdefault(_kind(trial, report), []).append(trial)
    for trial in report.broken_by:
        raised = trial.outcome is TrialOutcome.RAISED
        kinds.setdefault(Kind.RAISES if raised else Kind.KILLED, []).append(trial)
    for kind, members in kinds.items():
        families = {trial.family for trial in members}
        yield finding(kind, members, (trial for trial in cheats if trial.family in families))
    if report.runs_answers:
        shown = [*kinds.get(Kind.EXECUTES, ()), *kinds.get(Kind.KILLED, ())]
        why = "an answer ran code in the function's process: what it changes there stays"
        example = _example(shown[0]) if shown else ""
        yield Finding(Kind.EXECUTES, len(shown), sum(one.family in _TRICKS for one in cheats), why, example)
    yield from _about_order(report)
    if report.told_apart:
        yield from _about_fairness(report, finding)


def _kind_without_content(report: AuditReport, empty: Iterable[Trial]) -> Kind:
    """The kind of a grader that pays for the answers `empty`, in which there is nothing right."""
    if report.told_apart:
        return Kind.EMPTY
    plain = {one.answer: one.score or 0.0 for one in report.cheats if one.answer in _PLAIN}
    nothing, short, long = (plain.get(name, 0.0) for name in _PLAIN)
    if long > short + _ROUNDING:
        return Kind.LENGTH
    if nothing > short + _ROUNDING > long:
        return Kind.BREVITY
    return Kind.ANYTHING if any(trial.answer == _PLAIN[1] for trial in empty) else Kind.FORM


def _kind(trial: Trial, report: AuditReport) -> Kind:
    if trial.family in ("own words", "rubric words") and any(
        one.family == "long text" and one.outcome in _PAID for one in report.cheats
    ):
        return Kind.LENGTH  # any other words are paid as well
    if trial.family in _TRICKS and report.runs_answers:
        return Kind.EXECUTES
    return _KINDS.get(trial.family, Kind.PERMISSIVE)


def _about_order(report: AuditReport) -> Iterator[Finding]:
    by_form = [pair for pair in report.pairs if pair.worse == WRONG_IN_FORM]
    by_length = [pair for pair in report.pairs if pair not in by_form]
    if by_length:
        why = "a short answer is paid like a better one that is longer, or more"
        yield Finding(Kind.BREVITY, len(by_length), len(by_length), why, str(by_length[0]))
    if report.length_gain > _NOTICEABLE:
        why = "a wrong answer is paid more the longer it is"
        share = f"after much text it gets {report.length_gain:.0%} of what a right answer is paid more"
        yield Finding(Kind.LENGTH, 1, 1, why, share)
    if report.form_gain > _SLIGHT or by_form:
        share = f"a wrong answer gets {report.form_gain:.0%} of what a right one is paid more"
        example = str(by_form[0]) if by_form else share
        yield Finding(Kind.BONUS, 1, 1, "a wrong answer is paid for the form in which it stands", example)


def _about_fairness(report: AuditReport, finding: Callable[..., Finding]) -> Iterator[Finding]:
    refused = [trial for trial in report.false_refusals if trial.family in (HONEST, LONG_RIGHT)]
    usual = [trial for trial in report.spellings if trial.family == SPELLING]
    if refused:
        yield finding(Kind.STRICT, refused, report.honest)
    elif usual and len(report.refused_spellings) > _MOST_SPELLINGS_REFUSED * len(usual):
        yield finding(Kind.STRICT, report.refused_spellings, usual)
    if partial := [trial for trial in report.cheats if trial.is_partial]:
        yield finding(Kind.PARTIAL, partial, report.cheats)


_SLIGHT, _NOTICEABLE = 0.05, 0.25  # shares of what a right answer is paid more than a wrong one
WRONG_IN_FORM = "a wrong answer in the form"
