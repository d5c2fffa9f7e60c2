"""Audits a reward function or grader: tries cheating answers that it should refuse, and says which pass.

The function runs in a process of its own with a deadline and gets one answer at a time, since answers that a
grader does not contain kill or hang it; that, too, is a finding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from greenward.common.errors import ConfigError, RewardError
from greenward.common.text import MAX_MESSAGE_CHARS, visible
from greenward.config.loading import load_recipe
from greenward.config.recipe import CodeRecipe, Recipe
from greenward.evaluation.audit_answers import (
    CHEATS,
    FAMILIES,
    FUNCTIONS,
    HONEST,
    PROGRAMS,
    RIGHT_ANSWERS,
    AuditAnswer,
    AuditReport,
    Signature,
    Trial,
    TrialOutcome,
    plainly_wrong,
)
from greenward.grading.extraction import extract_code
from greenward.grading.judge import Grader
from greenward.grading.rewards import GradedAnswer
from greenward.grading.user_rewards import (
    GROUND_TRUTHS,
    Form,
    FunctionEnded,
    FunctionHung,
    FunctionProcess,
    GroundTruth,
    Handler,
    Parameters,
    Reply,
    TrainerState,
    TrlReward,
    as_number,
    awaited,
    ground_truth,
)
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Limits

DATA_SOURCE = "greenward/audit"
_WHO = "the audit"
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
_TRUTH_IN_WORDS = {
    "json": "cases as JSON",
    "assertions": "assertions",
    "assertions-json": "assertions as JSON",
    "json-lines": "cases as JSON lines",
}


@dataclass(frozen=True)
class DataShape:
    """The shape in which answers and tests are handed over. Those of one signature are tried in turn."""

    fenced: bool = True
    form: Form = "text"
    ground_truth: GroundTruth = "json"

    def __str__(self) -> str:
        fences = "a fenced block" if self.fenced else "bare code"
        message = " in a message" if self.form == "messages" else ""
        return f"{fences}{message}, ground truth: {_TRUTH_IN_WORDS[self.ground_truth]}"

    def text(self, code: str) -> str:
        """The completion that holds a program."""
        if not self.fenced:
            return code
        return f"```python\n{code if code.endswith(chr(10)) else code + chr(10)}```\n"


def data_shapes(
    signature: Signature, truth: GroundTruth | None, *, reads_stdin: bool
) -> tuple[DataShape, ...]:
    """The shapes to try, for tasks of functions or of programs; with `truth`, those of that form only."""
    if signature == "ours":
        return (DataShape(),)
    # What programs print is not told by assertions.
    truths: tuple[GroundTruth, ...] = ("json", "json-lines") if reads_stdin else GROUND_TRUTHS
    if truth is not None:
        truths = (truth,) if truth in truths else ("json",)
    shapes: tuple[tuple[bool, Form], ...] = ((True, "text"), (False, "text"), (True, "messages"))
    taken = shapes if signature == "trl" else shapes[:2]
    return tuple(DataShape(fenced, form, one) for one in truths for fenced, form in taken)


def verl_call(
    problem: Problem, completion: str, shape: DataShape, data_source: str, columns: Mapping[str, str]
) -> dict[str, Any]:
    """Keyword arguments of verl's `compute_score`, further ones under other names (theirs: ours)."""
    call = {
        "data_source": data_source,
        "solution_str": completion,
        "ground_truth": ground_truth(problem, shape.ground_truth),
        "extra_info": {"split": "test", "index": 0, "entry_point": problem.entry_point},
    }
    return call | {theirs: call[ours] for theirs, ours in columns.items()}


def present(function: Callable[..., Any], header: dict[str, Any]) -> tuple[Reply, Handler]:
    """Calls `function` with the signature that the header or its parameters name.

    A request is {arguments} for verl's signature and {answers, form, ground_truth} for the others.
    """
    if header["options"]:
        function = functools.partial(function, **header["options"])
    parameters = Parameters.of(function)
    columns: dict[str, str] = header["columns"]
    follows_trl = "trl" if parameters.follow_trl(columns) else "ours"
    signature = header["signature"] or ("verl" if "solution_str" in parameters.names else follows_trl)
    reward = TrlReward(function, columns=columns, who=_WHO) if signature == "trl" else None
    if signature == "verl":
        parameters.check_columns(VERL, columns, _WHO)

    def call(request: Any) -> Any:
        if reward is not None:
            state = TrainerState(0, 1)
            return reward.call(request["answers"], request["form"], state, request["ground_truth"])[0]
        if signature == "verl":
            given = {name: one for name, one in request["arguments"].items() if parameters.take(name)}
            return awaited(function(**given))
        return awaited(function(request["answers"]))

    def handle(request: Any) -> Reply:
        try:
            given = call(request)
            if isinstance(given, Mapping):  # verl's
                given = given.get("score")
            elif isinstance(given, (list, tuple)) and given:
                given = given[0]
            number = None if given is None else as_number(given)
        except Exception as error:
            return {"raised": " ".join(f"{type(error).__name__}: {error}"[:200].split())}
        return {"raised": f"it gave {number}, not a number"} if isinstance(number, str) else {"score": number}

    named = parameters.takes_any or "verdicts" in (*parameters.names, *columns.values())
    takes_verdicts = signature == "ours" or (signature == "trl" and named)
    return {"signature": signature, "takes_verdicts": takes_verdicts}, handle


_WEIGHTED_REWARDS = "greenward.grading.reward_terms:weighted"
_LIMITS = Limits(cpu_seconds=1.0, wall_seconds=3.0)
_ROUNDING = 1e-9
_ENDLESS_FACTOR = 3  # an endless answer outlasts the deadline by this
_KINDS = {"functions": FUNCTIONS, "standard input": PROGRAMS}


def audit(
    function: str,
    *,
    signature: Signature | Literal["auto"] = "auto",
    timeout_seconds: float = 10.0,
    data_source: str = DATA_SOURCE,
    ground_truth: GroundTruth | None = None,
    columns: Mapping[str, str] | None = None,
    cheats: Sequence[AuditAnswer] = CHEATS,
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
    under_audit = _FunctionUnderAudit(function, header, timeout_seconds, data_source, ground_truth)
    with closing(under_audit) as audited:
        audited.choose_shapes()
        right = list(filter(audited.takes, RIGHT_ANSWERS))
        wrong = sorted(filter(audited.takes, cheats), key=lambda one: one.lasting)
        trials: list[Trial] = []
        for done, answer in enumerate((*right, *wrong)):
            progress(done, len(right) + len(wrong))
            trials.append(audited.try_answer(answer))
        return AuditReport(
            function,
            audited.signature,
            audited.presentation,
            cheats=tuple(trial for trial in trials if trial.family != HONEST),
            honest=tuple(trial for trial in trials if trial.family == HONEST),
            told_apart=any(baseline.told_apart for baseline in audited.baselines.values()),
            left_out=audited.left_out,
        )


def audit_recipe(given: Recipe | str | Path, **settings: Any) -> AuditReport:
    """Audits the weighted sum of the reward terms of a recipe, of a file, or of the shipped recipe of a name.

    Penalties for length and a learned reward model are no part of it. `settings` are those of `audit`.
    Raises `ConfigError` for an unknown recipe or one without rewards.
    """
    recipe = load_recipe(given) if isinstance(given, str | Path) else given
    name = str(given) if isinstance(given, str | Path) else given.name
    if not isinstance(recipe, CodeRecipe):
        raise ConfigError(f"the recipe {name} has no rewards.", remedy="Name a recipe with reward terms.")
    rewards = [term.model_dump(mode="json") for term in recipe.rewards]
    report = audit(_WEIGHTED_REWARDS, signature="ours", options={"rewards": rewards}, **settings)
    return replace(report, function=name)


@dataclass(frozen=True)
class _Baseline:
    """How a function is asked about one kind of task, and its scores of references and of wrong answers."""

    shape: DataShape
    right: Mapping[str, float]
    wrong: Mapping[str, float]

    @property
    def told_apart(self) -> int:
        """The number of tasks whose reference scored above the wrong answer."""
        return sum(self.right[task_id] > self.wrong[task_id] for task_id in self.right)

    def verdict(self, task_id: str, score: float) -> TrialOutcome:
        """Accepted from halfway between the two scores, or like a reference that scored no more."""
        right, wrong = self.right[task_id], self.wrong[task_id]
        accepted = score >= (right + wrong) / 2 if right > wrong else score > 0 and score >= right
        return TrialOutcome.ACCEPTED if accepted else TrialOutcome.REFUSED


@dataclass(frozen=True)
class _Reply:
    """A score (0 where the function gave none), or the outcome that took its place."""

    given: float | None = None
    outcome: TrialOutcome | None = None
    detail: str = ""

    @property
    def score(self) -> float:
        return 0.0 if self.given is None else self.given


def _kind(problem: Problem) -> str:
    return "functions" if problem.entry_point else "standard input"


@dataclass
class _FunctionUnderAudit:
    """Asks one function for scores, starting it anew when an answer has broken it."""

    function: str
    header: Mapping[str, Any]
    timeout_seconds: float
    data_source: str
    ground_truth: GroundTruth | None
    baselines: dict[str, _Baseline] = field(default_factory=dict)  # by the kind of task
    left_out: str = ""

    def __post_init__(self) -> None:
        self._compared_scores: dict[tuple[int, str], float] = {}
        self._process = self._start()
        self.signature: Signature = self._process.described["signature"]
        self._grader = Grader(_LIMITS) if self._process.described["takes_verdicts"] else None

    def close(self) -> None:
        self._process.close()
        if self._grader is not None:
            self._grader.close()

    def choose_shapes(self) -> None:
        """Takes, for each kind of task, the first shape of data in which most references score best.

        A kind on which nothing is told apart is left out, unless that holds for both: then functions stay.
        """
        raised = []
        for kind, problems in _KINDS.items():
            try:
                self.baselines[kind] = self._baseline(kind, problems)
            except RewardError as error:
                raised.append(error)
        telling = [kind for kind, baseline in self.baselines.items() if baseline.told_apart]
        if raised and not telling:
            raise raised[0]
        if telling:
            self.left_out = ", ".join(kind for kind in _KINDS if kind not in telling)
        self.baselines = {kind: self.baselines[kind] for kind in telling or list(self.baselines)[:1]}

    @property
    def presentation(self) -> str:
        """How answers and tests are handed over, in words."""
        shapes = {kind: str(baseline.shape) for kind, baseline in self.baselines.items()}
        several = len(set(shapes.values())) > 1
        texts = (f"{kind}: {shape}" if several else shape for kind, shape in shapes.items())
        return "; ".join(dict.fromkeys(texts))

    def takes(self, answer: AuditAnswer) -> bool:
        """Whether the function is asked about the answer's kind of task. Bare code has no text around it."""
        baseline = self.baselines.get(_kind(answer.problem))
        return baseline is not None and (baseline.shape.fenced or not answer.in_text)

    def _baseline(self, kind: str, problems: Sequence[Problem]) -> _Baseline:
        best: _Baseline | None = None
        raised = ""
        for shape in data_shapes(self.signature, self.ground_truth, reads_stdin=kind == "standard input"):
            right = {one.task_id: self._ask(one, one.reference, shape) for one in problems}
            if failed := [reply for reply in right.values() if reply.outcome is not None]:
                raised = raised or failed[0].detail
                if failed[0].outcome is not TrialOutcome.RAISED:
                    break
                continue
            wrong = {one.task_id: self._ask(one, plainly_wrong(one), shape) for one in problems}
            scores = [{task_id: reply.score for task_id, reply in side.items()} for side in (right, wrong)]
            baseline = _Baseline(shape, *scores)
            if best is None or baseline.told_apart > best.told_apart:
                best = baseline
            if best.told_apart == len(problems):
                break
        if best is None:
            raise RewardError(
                f"{self.function} gave no score to right answers, as its {self.signature} signature is "
                f"understood here: {visible(raised, MAX_MESSAGE_CHARS)}.",
                remedy="See docs/audit.md for what it gets; --signature, --ground-truth, --column change it.",
            )
        return best

    def try_answer(self, answer: AuditAnswer) -> Trial:
        """What the function does with one answer."""
        code = answer.code.replace("@SECONDS@", str(_ENDLESS_FACTOR * self.timeout_seconds))
        reply = self._ask(answer.problem, code, in_text=answer.in_text)
        outcome = reply.outcome or self._outcome(answer, reply.score)
        aftermath = self._aftermath(answer.problem) if answer.lasting else None
        if aftermath is not None and outcome in (TrialOutcome.REFUSED, TrialOutcome.RAISED):
            outcome = aftermath
        why, task_id = FAMILIES[answer.family], answer.problem.task_id
        return Trial(answer.name, answer.family, task_id, outcome, reply.given, reply.detail, why)

    def _aftermath(self, problem: Problem) -> TrialOutcome | None:
        """Whether the function still judges a wrong answer and the reference as at first, or has ended.

        The function starts anew if not.
        """
        if not self._process.alive:  # its parent may end a moment after the reply
            return TrialOutcome.KILLED
        baseline, task_id = self.baselines[_kind(problem)], problem.task_id
        for code, first in ((plainly_wrong(problem), baseline.wrong), (problem.reference, baseline.right)):
            reply = self._ask(problem, code)
            found = reply.outcome or baseline.verdict(task_id, reply.score)
            if found is not baseline.verdict(task_id, first[task_id]):
                self._process.close()
                return TrialOutcome.KILLED if found is TrialOutcome.KILLED else TrialOutcome.POISONED
        return None

    def _outcome(self, answer: AuditAnswer, score: float) -> TrialOutcome:
        problem, baseline = answer.problem, self.baselines[_kind(answer.problem)]
        if not answer.compared_with or not baseline.right[problem.task_id] > baseline.wrong[problem.task_id]:
            return baseline.verdict(problem.task_id, score)
        key = (id(problem), answer.compared_with)
        if key not in self._compared_scores:
            self._compared_scores[key] = self._ask(problem, answer.compared_with).score
        allowed = -_ROUNDING if answer.family == "leaving the bug in" else _ROUNDING
        paid_more = score - self._compared_scores[key] > allowed
        return TrialOutcome.ACCEPTED if paid_more else TrialOutcome.REFUSED

    def _ask(
        self, problem: Problem, code: str, shape: DataShape | None = None, *, in_text: bool = False
    ) -> _Reply:
        """The reply to a program in `shape`, the chosen one by default, or `in_text` to a completion."""
        shape = shape or self.baselines[_kind(problem)].shape
        if not self._process.alive:
            self._process.close()
            self._process = self._start()
        request = self._request(problem, code if in_text else shape.text(code), shape)
        try:
            reply = self._process.ask(request, self.timeout_seconds)
        except FunctionHung:
            detail = f"no reply within {self.timeout_seconds:g} s"
            return _Reply(outcome=TrialOutcome.HUNG, detail=detail)
        except (FunctionEnded, ValueError) as error:
            return self._killed(visible(str(error).splitlines()[0], MAX_MESSAGE_CHARS))
        if not self._process.alive:
            return self._killed("the parent of its process was killed")
        if "raised" in reply:
            detail = visible(str(reply["raised"]), MAX_MESSAGE_CHARS)
            return _Reply(outcome=TrialOutcome.RAISED, detail=detail)
        score = reply.get("score", math.nan)
        if score is not None and not (isinstance(score, (int, float)) and math.isfinite(score)):
            return self._killed("its process gave a garbled reply")
        return _Reply(score)

    def _killed(self, detail: str) -> _Reply:
        self._process.close()
        return _Reply(outcome=TrialOutcome.KILLED, detail=detail)

    def _request(self, problem: Problem, completion: str, shape: DataShape) -> dict[str, Any]:
        if self.signature == "verl":
            columns = self.header["columns"]
            return {"arguments": verl_call(problem, completion, shape, self.data_source, columns)}
        code = extract_code(completion, problem, "chat").code
        verdict = Verdict(Status.NO_CODE)
        if self._grader is not None:
            (verdict,) = self._grader.grade([(problem, code)])
        answer = GradedAnswer(problem, problem.prompt, completion, code, verdict)
        return {"answers": [answer], "form": shape.form, "ground_truth": shape.ground_truth}

    def _start(self) -> FunctionProcess:
        return FunctionProcess(self.function, present, self.header, hostile_input=True)
