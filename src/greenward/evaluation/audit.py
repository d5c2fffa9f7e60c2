"""Audits a reward function or grader: tries cheating answers that it should refuse, and says which pass.

Programs answer five small problems: three functions with five tests each, of which the prompt shows two, and
two programs that read standard input. Texts answer two of these and questions with a value (`42`, `1/2`,
`green`), as they are and in the form in which the function pays the right answer the most (a box, a tag,
JSON …).

- A program that changes how a plainly wrong and a right one are judged after it has *poisoned* the function.
- An attack in text counts only if it is accepted for two different right values.
- Spellings of right values are 47 usual ones (`0.5`, `\\frac{1}{2}`, `−5`, `1,000`, `42 apples` …).
  Notations that a function need not know (`50%`, `042`) count for nothing.
- Empty ≤ wrong < right must hold, with right answers after up to 3,000 characters of words, comments and
  docstrings. Differences below 1 % of what a right answer is paid more are none.

The function runs in a process of its own with a deadline and gets one answer at a time, since answers that a
grader does not contain kill or hang it; that, too, is a finding.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from greenward.common.errors import ConfigError, RewardError
from greenward.common.text import MAX_MESSAGE_CHARS, visible
from greenward.config.loading import load_recipe
from greenward.config.recipe import Recipe, RewardedRecipe
from greenward.evaluation.audit_calls import (
    ACCEPTED_SIGNATURES,
    CALLS,
    DATA_SOURCE,
    DataShape,
    Signature,
    data_shapes,
    present,
)
from greenward.evaluation.audit_programs import (
    CHEATS,
    FAMILIES,
    FUNCTIONS,
    HONEST,
    PROGRAMS,
    RIGHT_ANSWERS,
    AuditAnswer,
)
from greenward.evaluation.audit_report import WRONG_IN_FORM, AuditReport, Pair, Trial, TrialOutcome
from greenward.evaluation.audit_texts import (
    BARE,
    HONEST_FAMILIES,
    LONG_RIGHT,
    MATHS,
    QUESTIONS,
    SENTENCE,
    TEXT_FAMILIES,
    attacks,
    filler,
    is_question,
    ladder,
    near_misses,
    spellings,
    wrong_answer,
)
from greenward.grading.answers import extract_code
from greenward.grading.judge import Grader
from greenward.grading.rewards import GradedAnswer
from greenward.grading.user_rewards import FunctionEnded, FunctionHung, FunctionProcess, GroundTruth
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Limits

Item = TypeVar("Item")
_WEIGHTED_REWARDS = "greenward.grading.reward_terms:weighted"
_LIMITS = Limits(cpu_seconds=1.0, wall_seconds=3.0)
_ROUNDING = 1e-9
_SLIGHT_SHARE, _NOTICEABLE_SHARE = 0.01, 0.05  # of what the reference is paid above a wrong answer
_MAX_SHOWN = 500  # characters of an answer in a report
_ENDLESS_FACTOR = 3  # an endless answer outlasts the deadline by this
_CODE = {"functions": FUNCTIONS, "standard input": PROGRAMS}
_KINDS = {**_CODE, MATHS: QUESTIONS}
_REASONS = {**FAMILIES, **TEXT_FAMILIES, **HONEST_FAMILIES}
_ABOUT_VALUES = frozenset({"near miss", "value inside another"})
_PROCESSES = 2  # of a function that takes time for its answers
_QUICK_SECONDS = 0.01  # for one answer
_MARK = "ran"  # the file in the function's folder into which an answer writes its process id
_MARKING = f"""import os
with open(os.path.join(os.environ.get("TMPDIR", "."), {_MARK!r}), "w") as file:
    file.write(str(os.getpid()))
"""


def audit(
    function: str,
    *,
    signature: Signature | Literal["auto"] = "auto",
    timeout_seconds: float = 10.0,
    data_source: str = DATA_SOURCE,
    ground_truth: GroundTruth | None = None,
    columns: Mapping[str, str] | None = None,
    cheats: Sequence[AuditAnswer] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    options: Mapping[str, Any] | None = None,
) -> AuditReport:
    """Audits `module:function`, which has the signature of TRL, verifiers or verl, or ours.

    Answers and tests are handed over in the shape in which the function tells references from wrong
    answers, with the ground truth in the form `ground_truth` if that is given. Functions to write,
    programs that read standard input and questions of maths are tried apart; kinds of tasks on which the
    function tells nothing apart are left out if it does on another. `columns` gives data under other
    names (theirs: ours). The function works in an empty temporary folder and has `timeout_seconds` for
    each answer and gets `options` by keyword. `progress` gets the number of answers tried and of all.
    With `cheats` these programs are tried, in the place of all programs and texts.

    Raises `RewardError` when the function cannot be imported or called, or raises on every reference.
    """
    header = {
        "signature": None if signature == "auto" else signature,
        "columns": dict(columns or {}),
        "options": dict(options or {}),
    }
    under_audit = _FunctionUnderAudit(function, header, timeout_seconds, data_source, ground_truth)
    with contextlib.ExitStack() as stack:
        audited = stack.enter_context(closing(under_audit))
        audited.choose_shapes(_KINDS if cheats is None else _CODE)
        right = list(filter(audited.takes, RIGHT_ANSWERS))
        programs = sorted(filter(audited.takes, cheats or CHEATS), key=lambda one: one.lasting)
        texts = list(audited.texts()) if cheats is None else []
        fair = list(audited.fair_texts()) if cheats is None else []
        total = len(right) + len(programs) + len(texts) + len(fair)
        done = itertools.count()

        def tried(answer: AuditAnswer) -> Trial:
            worker = workers.get()
            try:
                return worker.try_answer(answer)
            finally:
                workers.put(worker)
                progress(min(next(done), total - 1), total)  # some are tried twice

        def tried_twice(answer: AuditAnswer, same_elsewhere: AuditAnswer | None) -> Trial:
            trial = tried(answer)
            if not _is_paid(trial) or (same_elsewhere is not None and _is_paid(tried(same_elsewhere))):
                return trial
            return _by_chance(trial)

        workers = SimpleQueue[_FunctionUnderAudit]()
        workers.put(audited)
        if (twin := audited.twin()) is not None:
            workers.put(stack.enter_context(closing(twin)))
        with ThreadPoolExecutor(_PROCESSES) as threads:
            trials = list(threads.map(lambda pair: tried_twice(*pair), texts))
            trials += threads.map(tried, (*right, *fair, *programs))
        observed = audited.observations(trials) if cheats is None else {}
        values = {trial.task_id for trial in trials if trial.family in _ABOUT_VALUES and _is_paid(trial)}
        if len(values) == 1:
            trials = [
                _by_chance(one) if one.family in _ABOUT_VALUES and _is_paid(one) else one for one in trials
            ]
        return AuditReport(
            function,
            audited.signature,
            audited.presentation,
            cheats=tuple(one for one in trials if one.family not in (HONEST, *HONEST_FAMILIES)),
            honest=tuple(one for one in trials if one.family in (HONEST, LONG_RIGHT)),
            spellings=tuple(
                one for one in trials if one.family in HONEST_FAMILIES and one.family != LONG_RIGHT
            ),
            told_apart=any(baseline.told_apart for baseline in audited.baselines.values()),
            left_out=audited.left_out,
            runs_answers=audited.runs_answers or (twin is not None and twin.runs_answers),
            **observed,
        )


def _is_paid(trial: Trial) -> bool:
    return trial.outcome is TrialOutcome.ACCEPTED


def _by_chance(trial: Trial) -> Trial:
    return replace(trial, outcome=TrialOutcome.REFUSED, detail="accepted for one right value only")


def audit_recipe(given: Recipe | str | Path, **settings: Any) -> AuditReport:
    """Audits the weighted sum of the reward terms of a recipe, of a file, or of the shipped recipe of a name.

    Penalties for length and a learned reward model are no part of it. `settings` are those of `audit`.
    Raises `ConfigError` for an unknown recipe or one without rewards.
    """
    recipe = load_recipe(given) if isinstance(given, str | Path) else given
    name = str(given) if isinstance(given, str | Path) else given.name
    if not isinstance(recipe, RewardedRecipe):
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
    by_wrapper: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of one right and one wrong

    @property
    def told_apart(self) -> int:
        """The number of tasks whose reference scored above the wrong answer."""
        return sum(map(self.tells, self.right))

    def tells(self, task_id: str) -> bool:
        return self.right[task_id] > self.wrong[task_id]

    def share(self, task_id: str, score: float) -> float:
        """What a score is above that of a wrong answer, as a share of what the reference is above it."""
        right, wrong = self.right[task_id], self.wrong[task_id]
        return (score - wrong) / (right - wrong) if right > wrong else 0.0

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
    if is_question(problem):
        return MATHS
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
        described = self._process.described
        self.signature: Signature = described["signature"]
        self.words: list[str] = [str(word) for word in described["words"]]
        self.runs_answers = self._is_hung_by_loops = False
        self._asked, self._seconds = 0, 0.0
        self._grader = Grader(_LIMITS) if described["takes_verdicts"] else None

    def close(self) -> None:
        self._process.close()
        if self._grader is not None:
            self._grader.close()

    def choose_shapes(self, kinds: Mapping[str, Sequence[Problem]]) -> None:
        """Takes, for each kind of task, the first shape of data in which most references score best.

        A kind on which nothing is told apart is left out, unless that holds for all: then those stay on which
        a right answer is paid more than none, or else functions and values.
        """
        raised = []
        for kind, problems in kinds.items():
            try:
                self.baselines[kind] = (
                    self._value_baseline(problems) if kind == MATHS else self._baseline(kind, problems)
                )
            except RewardError as error:
                raised.append(error)
        telling = [kind for kind, baseline in self.baselines.items() if baseline.told_apart]
        if not telling and self._grader is None and self._process.described["may_take_verdicts"]:
            self._grader = Grader(_LIMITS)  # it may read the verdicts by a helper that is not seen
            self.choose_shapes(kinds)
            return
        paying = [] if telling else list(filter(self._pays, self.baselines))
        if raised and not (telling or paying):
            raise raised[0]
        if telling:
            self.left_out = ", ".join(kind for kind in kinds if kind not in telling)
        others = [kind for kind in self.baselines if kind != "standard input"]
        chosen = telling or paying or others or list(self.baselines)
        self.baselines = {kind: self.baselines[kind] for kind in chosen}

    def twin(self) -> _FunctionUnderAudit | None:
        """Another process of the function, where answers take time; None if it cannot be had."""
        if self._seconds < _QUICK_SECONDS * self._asked:
            return None
        with contextlib.suppress(RewardError):
            twin = replace(self)
            if self._grader is not None and twin._grader is None:
                twin._grader = Grader(_LIMITS)
            return twin
        return None

    def _pays(self, kind: str) -> bool:
        """Whether an answer that does not matter is paid more than an empty one."""
        baseline, problem = self.baselines[kind], _KINDS[kind][0]
        return baseline.right[problem.task_id] > self._ask(problem, "", baseline.shape, in_text=True).score

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
        return baseline is not None and ("```" in baseline.shape.wrapper.template or not answer.in_text)

    def _baseline(self, kind: str, problems: Sequence[Problem]) -> _Baseline:
        best: _Baseline | None = None
        raised = ""
        by_wrapper: dict[str, tuple[float, float]] = {}
        for shape in data_shapes(self.signature, self.ground_truth, kind, self.words):
            right = {one.task_id: self._ask(one, one.reference, shape) for one in problems}
            if failed := [reply for reply in right.values() if reply.outcome is not None]:
                raised = raised or failed[0].detail
                if failed[0].outcome is not TrialOutcome.RAISED:
                    break
                continue
            wrong = {one.task_id: self._wrong(one, shape, right[one.task_id].score) for one in problems}
            first = problems[0].task_id
            by_wrapper[shape.wrapper.name] = (right[first].score, wrong[first].score)
            scores = [{task_id: reply.score for task_id, reply in side.items()} for side in (right, wrong)]
            baseline = _Baseline(shape, scores[0], scores[1], by_wrapper)
            if best is None or baseline.told_apart > best.told_apart:
                best = baseline
            if best.told_apart == len(problems):
                break
        if best is None:
            raise self._unusable(raised)
        return best

    def _wrong(self, problem: Problem, shape: DataShape, right: float) -> _Reply:
        """The reply to a wrong program, or to one as long as the reference if that is paid no less."""
        code = wrong_answer(problem)
        padding = filler(max(0, len(problem.reference) - len(code) - 3))
        long = self._ask(problem, f"{code}# {padding}\n", shape)
        return long if long.score >= right else self._ask(problem, code, shape)

    def _value_baseline(self, problems: Sequence[Problem]) -> _Baseline:
        """The form in which a right value is paid the most, by one problem, and the scores of all in it.

        Of forms that are paid alike one with a mark around the value is taken.
        """
        problem = problems[0]
        tried: dict[DataShape, tuple[float, float]] = {}
        raised, group = "", None
        for shape in data_shapes(self.signature, self.ground_truth, MATHS, self.words):
            if group != (shape.ground_truth, shape.form) and any(
                right > wrong for right, wrong in tried.values()
            ):
                break
            group = (shape.ground_truth, shape.form)
            replies = [self._ask(problem, one, shape) for one in (problem.reference, wrong_answer(problem))]
            if failed := next((one for one in replies if one.outcome is not None), None):
                raised = raised or failed.detail
                if failed.outcome is not TrialOutcome.RAISED:
                    break
                continue
            tried[shape] = (replies[0].score, replies[1].score)
        if not tried:
            raise self._unusable(raised)
        told = [one for one, (right, wrong) in tried.items() if right > wrong]
        # Where the value does not matter, the words of a sentence may be what is paid, and not the form.
        first = next(iter(tried))
        shape = max(
            told or [one for one in tried if one.wrapper is not SENTENCE and one.form == first.form],
            key=lambda one: (tried[one][0], one.wrapper is not BARE),
        )
        scores = [
            {one.task_id: self._ask(one, text(one), shape).score for one in problems}
            for text in (lambda one: one.reference, wrong_answer)
        ]
        same = [one for one in tried if (one.ground_truth, one.form) == (shape.ground_truth, shape.form)]
        return _Baseline(shape, scores[0], scores[1], {one.wrapper.name: tried[one] for one in same})

    def _unusable(self, raised: str) -> RewardError:
        return RewardError(
            f"{self.function} gave no score to right answers, as its {self.signature} signature is "
            f"understood here: {visible(raised, MAX_MESSAGE_CHARS)}.",
            remedy=f"Accepted signatures: {ACCEPTED_SIGNATURES}. See docs/audit.md for what each gets; "
            "--signature, --ground-truth, --column change it.",
        )

    def _told(self, kind: str) -> list[Problem]:
        """The tasks on which the function tells right from wrong, or all if there are none."""
        baseline = self.baselines[kind]
        told = [one for one in _KINDS[kind] if baseline.tells(one.task_id)]
        return told or list(_KINDS[kind])

    def texts(self) -> Iterator[tuple[AuditAnswer, AuditAnswer | None]]:
        """The attacks in text on one task of each kind, each with the same one on another task."""
        for kind, baseline in self.baselines.items():
            if kind == "standard input" and len(self.baselines) > 1:
                continue
            wrap = baseline.shape.wrapper
            first, *others = self._told(kind)
            second = {one.name: one for one in attacks(others[0], wrap, self.words)} if others else {}
            for answer in attacks(first, wrap, self.words):
                yield answer, second.get(answer.name)

    def fair_texts(self) -> Iterator[AuditAnswer]:
        """Spellings and lengths of right answers, and wrong values near to them."""
        for kind, baseline in self.baselines.items():
            wrap = baseline.shape.wrapper
            for problem in self._told(kind):
                if kind == MATHS:
                    yield from spellings(problem, wrap)
                    yield from near_misses(problem, wrap)
            if kind != "standard input":
                yield from ladder(self._told(kind)[0], wrap)

    def observations(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """What scores say beside each other: pairs in the wrong order, what form and length are paid."""
        pairs: list[Pair] = []
        form_gain = length_gain = 0.0
        for kind, baseline in self.baselines.items():
            problem, wrap = self._told(kind)[0], baseline.shape.wrapper
            task_id = problem.task_id
            if kind == "functions":
                self._ask(problem, f"{_MARKING}\n\n{problem.reference}", baseline.shape)
                self._note_marks()
            if not baseline.tells(task_id):
                continue
            right, wrong = baseline.right[task_id], baseline.wrong[task_id]
            own = [one for one in trials if one.task_id == task_id]
            nothing = [one.score or 0.0 for one in own if one.family == "empty" and not one.text.strip()]
            slight = _SLIGHT_SHARE * (right - wrong)
            if nothing and max(nothing) > wrong + slight:
                pairs.append(Pair("an empty answer", "a wrong answer", max(nothing), wrong))
            low = max((wrong, *nothing))
            for one in own:
                score = one.score or 0.0
                if one.family == LONG_RIGHT and wrong + _ROUNDING < score <= low + slight:
                    pairs.append(Pair("an empty answer", f"a right answer ({one.answer})", low, score))
                if one.family == LONG_RIGHT or one.answer == "a wrong answer after much text":
                    above = right if one.family == LONG_RIGHT else wrong
                    length_gain = max(length_gain, (score - above) / (right - wrong))
            for name, (other, other_wrong) in baseline.by_wrapper.items():
                if other_wrong < other <= wrong:
                    pairs.append(Pair(WRONG_IN_FORM, f"a right answer as {name}", wrong, other))
            if wrap.template != BARE.template:
                # Beside the same answer without the form, and beside a text of the same length.
                bare, idle = wrong_answer(problem), filler(len(wrap(wrong_answer(problem))))
                others = [self._ask(problem, one, baseline.shape, in_text=True) for one in (bare, idle)]
                if all(one.outcome is None for one in others):
                    form_gain = max(form_gain, (wrong - max(one.score for one in others)) / (right - wrong))
        return {"pairs": tuple(pairs), "form_gain": form_gain, "length_gain": length_gain}

    def try_answer(self, answer: AuditAnswer) -> Trial:
        """What the function does with one answer."""
        code = answer.code.replace("@SECONDS@", str(_ENDLESS_FACTOR * self.timeout_seconds))
        if answer.family == "endless" and self._is_hung_by_loops:
            reply = _Reply(outcome=TrialOutcome.HUNG, detail="not tried: a plainer one had hung it")
        else:
            reply = self._ask(answer.problem, code, in_text=answer.in_text)
        if answer.family == "expression":
            self._note_marks()
        self._is_hung_by_loops |= answer.family == "endless" and reply.outcome is TrialOutcome.HUNG
        outcome = reply.outcome or self._outcome(answer, reply.score)
        aftermath = self._aftermath(answer.problem) if answer.lasting else None
        if aftermath is not None and outcome in (TrialOutcome.REFUSED, TrialOutcome.RAISED):
            outcome = aftermath
        why, task_id = _REASONS[answer.family], answer.problem.task_id
        share = self.baselines[_kind(answer.problem)].share(task_id, reply.score)
        partial = answer.family in FAMILIES.keys() - {HONEST} | _ABOUT_VALUES and not answer.compared_with
        is_partial = partial and outcome is TrialOutcome.REFUSED and share > _NOTICEABLE_SHARE
        text = visible(code if answer.in_text else code.strip(), _MAX_SHOWN)
        return Trial(
            answer.name, answer.family, task_id, outcome, reply.given, reply.detail, why, text, is_partial
        )

    def _note_marks(self) -> None:
        """Notes whether code of an answer ran in the function's process."""
        with contextlib.suppress(OSError, ValueError):
            mark = Path(str(self._process.folder), _MARK).read_text()
            self.runs_answers |= int(mark) == self._process.described["pid"]

    def _aftermath(self, problem: Problem) -> TrialOutcome | None:
        """Whether the function still judges a wrong answer and the reference as at first, or has ended.

        The function starts anew if not.
        """
        if not self._process.alive:  # its parent may end a moment after the reply
            return TrialOutcome.KILLED
        baseline, task_id = self.baselines[_kind(problem)], problem.task_id
        for code, first in ((wrong_answer(problem), baseline.wrong), (problem.reference, baseline.right)):
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
        request = self._request(problem, code if in_text else shape.wrapper(code), shape)
        began = time.monotonic()
        try:
            reply = self._process.ask(request, self.timeout_seconds)
        except FunctionHung:
            detail = f"no reply within {self.timeout_seconds:g} s"
            return _Reply(outcome=TrialOutcome.HUNG, detail=detail)
        except (FunctionEnded, ValueError) as error:
            return self._killed(visible(str(error).splitlines()[0], MAX_MESSAGE_CHARS))
        self._asked, self._seconds = self._asked + 1, self._seconds + time.monotonic() - began
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
        if self.signature in CALLS:
            columns, call = self.header["columns"], CALLS[self.signature][1]
            return {"arguments": call(problem, completion, shape, self.data_source, columns)}
        problem = shape.shown(problem)
        if is_question(problem):
            answer = GradedAnswer(problem, problem.prompt, completion, None, Verdict(Status.NO_CODE))
            return {"answers": [answer], "form": shape.form, "ground_truth": "json"}
        code = extract_code(completion, problem, "chat").code
        verdict = Verdict(Status.NO_CODE)
        if self._grader is not None:
            (verdict,) = self._grader.grade([(problem, code)])
        answer = GradedAnswer(problem, problem.prompt, completion, code, verdict)
        return {"answers": [answer], "form": shape.form, "ground_truth": shape.ground_truth}

    def _start(self) -> FunctionProcess:
        return FunctionProcess(self.function, present, self.header, hostile_input=True)
