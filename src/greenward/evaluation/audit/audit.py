"""Throws cheating answers at a reward function or grader and says which it accepts.

The function runs in a process of its own with a deadline, since answers that a grader does not contain
kill or hang it; that, too, is a finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from greenward.errors import RewardError
from greenward.evaluation.audit.answer import Answer
from greenward.evaluation.audit.calls import (
    DATA_SOURCE,
    Presentation,
    Signature,
    presentations,
    verl_call,
)
from greenward.evaluation.audit.cheats import CHEATS
from greenward.evaluation.audit.report import AuditReport, Outcome, Trial
from greenward.evaluation.audit.stdin_tasks import NOTHING_PRINTED, STDIN_HONEST, STDIN_REFERENCES
from greenward.evaluation.audit.tasks import HONEST_ANSWERS, REFERENCES, nothing
from greenward.grading.extraction import extract_code
from greenward.grading.function_process import FunctionEnded, FunctionHung, FunctionProcess
from greenward.grading.grader import Grader
from greenward.grading.problem_columns import GroundTruth
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Limits
from greenward.text import MAX_MESSAGE_CHARS, visible

_SERVER = "greenward.evaluation.audit.process"
_LIMITS = Limits(cpu_seconds=1.0, wall_seconds=3.0)
_ROUNDING = 1e-9
_ENDLESS_FACTOR = 3  # an endless answer outlasts the deadline by this


def audit(
    function: str,
    *,
    signature: Signature | Literal["auto"] = "auto",
    timeout_seconds: float = 10.0,
    data_source: str = DATA_SOURCE,
    ground_truth: GroundTruth | None = None,
    columns: Mapping[str, str] | None = None,
    cheats: Sequence[Answer] = CHEATS,
    progress: Callable[[int, int], None] = lambda done, total: None,
    options: Mapping[str, Any] | None = None,
) -> AuditReport:
    """Audits `module:function`, which takes answers as our reward functions do, or as TRL's or verl's.

    Answers and tests are handed over in the shape in which the function tells references from wrong
    answers, with the ground truth in the form `ground_truth` if that is given. Functions to write and
    programs that read standard input are tried apart; of these two kinds of tasks, one on which the
    function tells nothing apart is left out if it does on the other. `columns` gives data under other
    names (theirs: ours). The function works in an empty temporary folder and has `timeout_seconds` for
    each answer and gets `options` by keyword. `progress` gets the number of answers tried and of all.

    Raises `RewardError` when the function cannot be imported or called, or raises on every reference.
    """
    header = {
        "signature": None if signature == "auto" else signature,
        "columns": dict(columns or {}),
        "options": dict(options or {}),
    }
    with _Examination(function, header, timeout_seconds, data_source, ground_truth) as examination:
        examination.choose_shapes()
        right = list(filter(examination.takes, (*HONEST_ANSWERS, *STDIN_HONEST)))
        wrong = sorted(filter(examination.takes, cheats), key=lambda one: one.lasting)
        honest: list[Trial] = []
        cheating: list[Trial] = []
        for done, answer in enumerate((*right, *wrong)):
            progress(done, len(right) + len(wrong))
            (honest if answer.is_honest else cheating).append(examination.try_answer(answer))
        return AuditReport(
            function,
            examination.signature,
            examination.presentation,
            tuple(cheating),
            tuple(honest),
            examination.told_apart,
            examination.left_out,
        )


@dataclass(frozen=True)
class _Standard:
    """How a function is asked about one kind of tasks, and what references and wrong answers scored."""

    shape: Presentation
    right: Mapping[str, float]
    wrong: Mapping[str, float]

    @property
    def told_apart(self) -> int:
        """The number of tasks whose reference scored above the wrong answer."""
        return sum(self.right[task_id] > self.wrong[task_id] for task_id in self.right)


@dataclass(frozen=True)
class _Reply:
    """A score, or the outcome that took its place."""

    score: float | None = None
    outcome: Outcome | None = None
    detail: str = ""


_REFERENCES = {"functions": REFERENCES, "standard input": STDIN_REFERENCES}


def _kind(problem: Problem) -> str:
    return "functions" if problem.entry_point else "standard input"


def _plainly_wrong(problem: Problem) -> str:
    return nothing(problem) if problem.entry_point else NOTHING_PRINTED


class _Examination:
    """One function under audit: asks it for scores, starting it anew when an answer has broken it."""

    def __init__(
        self,
        function: str,
        header: Mapping[str, Any],
        timeout_seconds: float,
        data_source: str,
        ground_truth: GroundTruth | None,
    ) -> None:
        self._function = function
        self._header = header
        self._rivals: dict[tuple[int, str], float] = {}
        self._timeout_seconds = timeout_seconds
        self._data_source = data_source
        self._ground_truth = ground_truth
        self._process = self._start()
        self.signature: Signature = self._process.described["signature"]
        self._standards: dict[str, _Standard] = {}
        self.left_out = ""
        graded = self.signature == "ours" or (
            self.signature == "trl" and self._process.described["takes_verdicts"]
        )
        self._grader = Grader(_LIMITS) if graded else None

    def __enter__(self) -> _Examination:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()
        if self._grader is not None:
            self._grader.close()

    def choose_shapes(self) -> None:
        """Takes, for each kind of tasks, the first shape of data in which most references score best.

        A kind on which nothing is told apart is left out, unless that holds for both: then functions stay.
        """
        raised = []
        for kind, references in _REFERENCES.items():
            try:
                self._standards[kind] = self._standard(kind, references)
            except RewardError as error:
                raised.append(error)
        telling = [kind for kind, standard in self._standards.items() if standard.told_apart]
        if raised and not telling:
            raise raised[0]
        if telling:
            self.left_out = ", ".join(kind for kind in _REFERENCES if kind not in telling)
        chosen = telling or list(self._standards)[:1]
        self._standards = {kind: self._standards[kind] for kind in chosen}

    @property
    def told_apart(self) -> bool:
        return any(standard.told_apart for standard in self._standards.values())

    @property
    def presentation(self) -> str:
        shapes = {kind: str(standard.shape) for kind, standard in self._standards.items()}
        if len(set(shapes.values())) == 1:
            return next(iter(shapes.values()))
        return "; ".join(f"{kind}: {shape}" for kind, shape in shapes.items())

    def takes(self, answer: Answer) -> bool:
        """Whether the function is asked about the answer's kind of task. Bare code has no text around it."""
        standard = self._standards.get(_kind(answer.problem))
        return standard is not None and (standard.shape.fenced or not answer.in_text)

    def _standard(self, kind: str, references: Sequence[Answer]) -> _Standard:
        best: _Standard | None = None
        raised = ""
        for shape in presentations(self.signature, self._ground_truth, reads_stdin=kind == "standard input"):
            right = {one.problem.task_id: self._ask(one.problem, one.code, shape) for one in references}
            failed = [reply for reply in right.values() if reply.outcome is not None]
            if failed:
                raised = raised or failed[0].detail
                if failed[0].outcome is not Outcome.RAISED:
                    break
                continue
            wrong = {
                one.problem.task_id: self._ask(one.problem, _plainly_wrong(one.problem), shape)
                for one in references
            }
            standard = _Standard(
                shape,
                {task_id: _number(reply) for task_id, reply in right.items()},
                {task_id: _number(reply) for task_id, reply in wrong.items()},
            )
            if best is None or standard.told_apart > best.told_apart:
                best = standard
            if best.told_apart == len(references):
                break
        if best is None:
            raise RewardError(
                f"{self._function} gave no score to right answers, as its {self.signature} signature is "
                f"understood here: {visible(raised, MAX_MESSAGE_CHARS)}.",
                remedy="See docs/audit.md for what it gets; --signature, --ground-truth, --column change it.",
            )
        return best

    def try_answer(self, answer: Answer) -> Trial:
        """What the function does with one answer."""
        code = answer.code.replace("@SECONDS@", str(_ENDLESS_FACTOR * self._timeout_seconds))
        reply = self._ask(answer.problem, code, None, in_text=answer.in_text)
        outcome = reply.outcome or self._judge(answer, reply)
        aftermath = self._aftermath(answer.problem) if answer.lasting else None
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

    def _aftermath(self, problem: Problem) -> Outcome | None:
        """What plain answers show of the one before: judged otherwise than at first, or nobody to judge.

        The function starts anew then.
        """
        if not self._process.alive:  # its parent may end a moment after the reply
            return Outcome.KILLED
        standard = self._standards[_kind(problem)]
        for code, first in ((_plainly_wrong(problem), standard.wrong), (problem.reference, standard.right)):
            reply = self._ask(problem, code, None)
            before = self._verdict(problem, _Reply(first[problem.task_id]))
            found = reply.outcome or self._verdict(problem, reply)
            if found is not before:
                self._process.close()
                return Outcome.KILLED if found is Outcome.KILLED else Outcome.POISONED
        return None

    def _judge(self, answer: Answer, reply: _Reply) -> Outcome:
        standard, task_id = self._standards[_kind(answer.problem)], answer.problem.task_id
        if not answer.rival or not standard.right[task_id] > standard.wrong[task_id]:
            return self._verdict(answer.problem, reply)
        key = (id(answer.problem), answer.rival)
        if key not in self._rivals:
            self._rivals[key] = _number(self._ask(answer.problem, answer.rival, None))
        lead = _number(reply) - self._rivals[key]
        is_wrong = answer.family == "leaving the bug in"
        return Outcome.ACCEPTED if lead > (-_ROUNDING if is_wrong else _ROUNDING) else Outcome.REFUSED

    def _verdict(self, problem: Problem, reply: _Reply) -> Outcome:
        standard = self._standards[_kind(problem)]
        right, wrong = standard.right[problem.task_id], standard.wrong[problem.task_id]
        score = _number(reply)
        if right > wrong:
            return Outcome.ACCEPTED if score >= (right + wrong) / 2 else Outcome.REFUSED
        return Outcome.ACCEPTED if score > 0 and score >= right else Outcome.REFUSED

    def _ask(
        self, problem: Problem, code: str, shape: Presentation | None, *, in_text: bool = False
    ) -> _Reply:
        """The reply to a program in `shape`, the chosen one by default, or `in_text` to a completion."""
        shape = shape or self._standards[_kind(problem)].shape
        completion = code if in_text else shape.text(code)
        if not self._process.alive:
            self._process.close()
            self._process = self._start()
        request = self._request(problem, completion, shape)
        try:
            reply = self._process.ask(request, self._timeout_seconds)
        except FunctionHung:
            return _Reply(outcome=Outcome.HUNG, detail=f"no reply within {self._timeout_seconds:g} s")
        except (FunctionEnded, ValueError) as error:
            self._process.close()
            return _Reply(
                outcome=Outcome.KILLED, detail=visible(str(error).splitlines()[0], MAX_MESSAGE_CHARS)
            )
        if not self._process.alive:
            return _Reply(outcome=Outcome.KILLED, detail="the parent of its process was killed")
        if "raised" in reply:
            return _Reply(outcome=Outcome.RAISED, detail=visible(str(reply["raised"]), MAX_MESSAGE_CHARS))
        score = reply.get("score", math.nan)
        if score is not None and not (isinstance(score, (int, float)) and math.isfinite(score)):
            self._process.close()
            return _Reply(outcome=Outcome.KILLED, detail="its process gave a garbled reply")
        return _Reply(score)

    def _request(self, problem: Problem, completion: str, shape: Presentation) -> dict[str, Any]:
        if self.signature == "verl":
            columns = self._header["columns"]
            return {"arguments": verl_call(problem, completion, shape, self._data_source, columns)}
        code = extract_code(completion, problem, "chat").code
        verdict = Verdict(Status.NO_CODE)
        if self._grader is not None:
            (verdict,) = self._grader.grade([(problem, code)])
        answer = GradedAnswer(problem, problem.prompt, completion, code, verdict)
        return {
            "answers": [answer],
            "form": shape.form,
            "ground_truth": shape.ground_truth,
        }

    def _start(self) -> FunctionProcess:
        return FunctionProcess(self._function, _SERVER, self._header, hostile_input=True)


def _number(reply: _Reply) -> float:
    return 0.0 if reply.score is None else reply.score
