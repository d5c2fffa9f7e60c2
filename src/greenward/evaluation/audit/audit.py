"""Throws cheating answers at a reward function or grader and says which it accepts.

The function runs in a process of its own with a deadline, since answers that a grader does not contain
kill or hang it; that, too, is a finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Literal

from greenward.errors import RewardError
from greenward.evaluation.audit.answer import Answer
from greenward.evaluation.audit.calls import (
    PRESENTATIONS,
    Signature,
    accepted_arguments,
    signature_of,
    trl_call,
    verl_call,
)
from greenward.evaluation.audit.cheats import CHEATS
from greenward.evaluation.audit.tasks import HONEST_ANSWERS, PROBLEMS, REFERENCES, nothing
from greenward.grading.extraction import extract_code
from greenward.grading.function_process import FunctionEnded, FunctionHung, FunctionProcess
from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.grader import Grader
from greenward.grading.plain_answers import answers_to_plain
from greenward.grading.text import sanitise
from greenward.problems.problem import Problem
from greenward.sandbox.codec import encode
from greenward.sandbox.protocol import Limits

_SERVER = "greenward.evaluation.audit.process"
_LIMITS = Limits(cpu_seconds=1.0, wall_seconds=3.0)
_ROUNDING = 1e-9
_ENDLESS_FACTOR = 3  # an endless answer outlasts the deadline by this


class Outcome(str, Enum):
    """What a function did with an answer."""

    REFUSED = "refused"
    ACCEPTED = "accepted"
    POISONED = "poisoned"  # later answers were judged wrongly
    RAISED = "raised"  # a trainer would stop here
    KILLED = "killed"  # its process or that process's parent ended, or gave a garbled reply
    HUNG = "hung"


@dataclass(frozen=True)
class Trial:
    """One answer thrown at the function. `why` says what is wrong if the outcome is not the sound one."""

    answer: str
    family: str
    task_id: str
    outcome: Outcome
    score: float | None
    detail: str
    why: str


@dataclass(frozen=True)
class AuditReport:
    """What an audit found: a trial of each cheat and of each honest answer.

    A score counts as accepted from halfway between that of `return None` and that of the reference; that
    of an answer with a `rival` if it is higher, and of a wrong one if it is as high.
    """

    function: str
    signature: Signature
    presentation: str
    cheats: tuple[Trial, ...]
    honest: tuple[Trial, ...]

    @property
    def accepted(self) -> tuple[Trial, ...]:
        """Cheats that were rewarded, or that made the function reward others wrongly."""
        return self._with(Outcome.ACCEPTED, Outcome.POISONED)

    @property
    def broken_by(self) -> tuple[Trial, ...]:
        """Cheats that killed or hung the function, or made it raise."""
        return self._with(Outcome.RAISED, Outcome.KILLED, Outcome.HUNG)

    @property
    def false_refusals(self) -> tuple[Trial, ...]:
        """Honest answers that were not accepted."""
        return tuple(trial for trial in self.honest if trial.outcome is not Outcome.ACCEPTED)

    @property
    def sound(self) -> bool:
        """Whether every cheat was refused and every honest answer accepted."""
        return not (self.accepted or self.broken_by or self.false_refusals)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            **asdict(self),
            "sound": self.sound,
            "accepted": len(self.accepted),
            "broken_by": len(self.broken_by),
            "false_refusals": len(self.false_refusals),
        }

    def _with(self, *outcomes: Outcome) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.cheats if trial.outcome in outcomes)


def audit(
    function: str,
    *,
    signature: Signature | Literal["auto"] = "auto",
    timeout_seconds: float = 10.0,
    cheats: Sequence[Answer] = CHEATS,
    progress: Callable[[int, int], None] = lambda done, total: None,
    options: Mapping[str, Any] | None = None,
) -> AuditReport:
    """Audits `module:function`, which takes answers as our reward functions do, or as TRL's or verl's.

    Answers and tests are handed over in the shape in which the function tells references from wrong
    answers; it works in an empty temporary folder and has `timeout_seconds` for each answer.
    `progress` gets the number of answers tried and of all, `function` the `options` by keyword.

    Raises `RewardError` when the function cannot be imported or called, or raises on every reference.
    """
    with _Examination(function, signature, timeout_seconds, options or {}) as examination:
        examination.choose_shape()
        answers = [
            answer
            for answer in (*HONEST_ANSWERS, *sorted(cheats, key=lambda one: one.lasting))
            if examination.shape.fenced or not answer.in_text  # bare code is no text with blocks in it
        ]
        honest: list[Trial] = []
        cheating: list[Trial] = []
        for done, answer in enumerate(answers):
            progress(done, len(answers))
            (honest if answer.is_honest else cheating).append(examination.try_answer(answer))
        return AuditReport(
            function, examination.signature, str(examination.shape), tuple(cheating), tuple(honest)
        )


@dataclass(frozen=True)
class _Reply:
    """A score, or the outcome that took its place."""

    score: float | None = None
    outcome: Outcome | None = None
    detail: str = ""


class _Examination:
    """One function under audit: asks it for scores, starting it anew when an answer has broken it."""

    def __init__(
        self,
        function: str,
        signature: Signature | Literal["auto"],
        timeout_seconds: float,
        options: Mapping[str, Any],
    ) -> None:
        self._function = function
        self._options = options
        self._rivals: dict[tuple[int, str], float] = {}
        self._timeout_seconds = timeout_seconds
        self._process = self._start()
        self._described = self._process.described
        self.signature = signature_of(self._described["parameters"]) if signature == "auto" else signature
        self.shape = PRESENTATIONS[self.signature][0]
        self._right: dict[str, float] = {}
        self._wrong: dict[str, float] = {}
        self._grader = Grader(_LIMITS) if self.signature == "ours" else None

    def __enter__(self) -> _Examination:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()
        if self._grader is not None:
            self._grader.close()

    def choose_shape(self) -> None:
        """Takes the first shape of data in which most references score above `return None`."""
        told_apart, raised = -1, ""
        for shape in PRESENTATIONS[self.signature]:
            self.shape = shape
            right = {one.problem.task_id: self._ask(one.problem, shape.text(one.code)) for one in REFERENCES}
            failed = [reply for reply in right.values() if reply.outcome is not None]
            if failed:
                raised = raised or failed[0].detail
                if failed[0].outcome is not Outcome.RAISED:
                    break
                continue
            wrong = {one.task_id: self._ask(one, shape.text(nothing(one))) for one in PROBLEMS}
            better = sum(_number(right[task_id]) > _number(wrong[task_id]) for task_id in right)
            if better > told_apart:
                told_apart, best = better, shape
                self._right = {task_id: _number(reply) for task_id, reply in right.items()}
                self._wrong = {task_id: _number(reply) for task_id, reply in wrong.items()}
            if better == len(PROBLEMS):
                return
        if told_apart < 0:
            raise RewardError(
                f"{self._function} gave no score to right answers, as its {self.signature} signature is "
                f"understood here: {sanitise(raised)}.",
                remedy="docs/audit.md says what data it gets; --signature names another signature.",
            )
        self.shape = best

    def try_answer(self, answer: Answer) -> Trial:
        """What the function does with one answer."""
        code = answer.code.replace("@SECONDS@", str(_ENDLESS_FACTOR * self._timeout_seconds))
        reply = self._ask(answer.problem, code if answer.in_text else self.shape.text(code))
        outcome = reply.outcome or self._judge(answer, reply)
        aftermath = self._aftermath() if answer.lasting else None
        if aftermath is not None and outcome in (Outcome.REFUSED, Outcome.RAISED):
            outcome = aftermath
        return Trial(
            answer.name,
            answer.family,
            answer.problem.task_id,
            outcome,
            reply.score,
            reply.detail,
            answer.why,
        )

    def _aftermath(self) -> Outcome | None:
        """What plain answers show of the one before: judged otherwise than at first, or nobody to judge.

        The function starts anew then.
        """
        if not self._process.alive:  # its parent may end a moment after the reply
            return Outcome.KILLED
        right = REFERENCES[0]
        task_id = right.problem.task_id
        for code, first in ((nothing(right.problem), self._wrong), (right.code, self._right)):
            reply = self._ask(right.problem, self.shape.text(code))
            before = self._verdict(right.problem, _Reply(first[task_id]))
            found = reply.outcome or self._verdict(right.problem, reply)
            if found is not before:
                self._process.close()
                return Outcome.KILLED if found is Outcome.KILLED else Outcome.POISONED
        return None

    def _judge(self, answer: Answer, reply: _Reply) -> Outcome:
        if not answer.rival or not self._right[answer.problem.task_id] > self._wrong[answer.problem.task_id]:
            return self._verdict(answer.problem, reply)
        key = (id(answer.problem), answer.rival)
        if key not in self._rivals:
            self._rivals[key] = _number(self._ask(answer.problem, self.shape.text(answer.rival)))
        lead = _number(reply) - self._rivals[key]
        is_wrong = answer.family == "leaving the bug in"
        return Outcome.ACCEPTED if lead > (-_ROUNDING if is_wrong else _ROUNDING) else Outcome.REFUSED

    def _verdict(self, problem: Problem, reply: _Reply) -> Outcome:
        right, wrong = self._right[problem.task_id], self._wrong[problem.task_id]
        score = _number(reply)
        if right > wrong:
            return Outcome.ACCEPTED if score >= (right + wrong) / 2 else Outcome.REFUSED
        return Outcome.ACCEPTED if score > 0 and score >= right else Outcome.REFUSED

    def _ask(self, problem: Problem, completion: str) -> _Reply:
        if not self._process.alive:
            self._process.close()
            self._process = self._start()
        blob = encode(self._request(problem, completion)).encode("ascii")
        try:
            reply = self._process.ask({}, blob, self._timeout_seconds)
        except FunctionHung:
            return _Reply(outcome=Outcome.HUNG, detail=f"no reply within {self._timeout_seconds:g} s")
        except (FunctionEnded, ValueError) as error:
            self._process.close()
            return _Reply(outcome=Outcome.KILLED, detail=sanitise(str(error).splitlines()[0]))
        if not self._process.alive:
            return _Reply(outcome=Outcome.KILLED, detail="the parent of its process was killed")
        if "raised" in reply:
            return _Reply(outcome=Outcome.RAISED, detail=sanitise(str(reply["raised"])))
        score = reply.get("score", math.nan)
        if score is not None and not (isinstance(score, (int, float)) and math.isfinite(score)):
            self._process.close()
            return _Reply(outcome=Outcome.KILLED, detail="its process gave a garbled reply")
        return _Reply(score)

    def _request(self, problem: Problem, completion: str) -> list[Any]:
        """[keyword arguments, None], or for our signature [None, answers]."""
        if self._grader is not None:
            code = extract_code(completion, problem, "chat").code
            (verdict,) = self._grader.grade([(problem, code)])
            graded = GradedAnswer(problem, problem.prompt, completion, code, verdict)
            return [None, answers_to_plain([graded])]
        build = trl_call if self.signature == "trl" else verl_call
        return [accepted_arguments(build(problem, completion, self.shape), **self._described), None]

    def _start(self) -> FunctionProcess:
        return FunctionProcess(self._function, _SERVER, {"options": dict(self._options)}, hostile_input=True)


def _number(reply: _Reply) -> float:
    return 0.0 if reply.score is None else reply.score
