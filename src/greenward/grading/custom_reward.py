"""Reward functions of the user's own: the term, and the process that runs the function."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from greenward.errors import ConfigError, RewardError
from greenward.grading.function_process import FunctionProcess, Handler, Refused, Reply, as_number
from greenward.grading.rewards import GradedAnswer, RewardTerm
from greenward.grading.trl_reward import Logged, Parameters, TrainerState, TrlReward, awaited
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Expected, Problem
from greenward.text import visible

if TYPE_CHECKING:  # slow to import, and the function's process needs neither
    from greenward.config.sections import RewardTermConfig
    from greenward.grading.grader import Grader

RewardFunction = Callable[..., Any]
Rewards = Sequence["str | RewardFunction"] | Mapping["str | RewardFunction", float]

_REMEDY = "It must return one finite number, or None where it does not apply, for each answer."


class CustomReward(RewardTerm):
    """The term `module:function`; its signatures are documented in docs/rewards.md.

    `row_columns` are the names of the columns that the problems bring along; a function with TRL's
    signature gets them, too, and sees how many of `max_steps` are done in its `trainer_state`. A `function`
    that is given is called in this process, without a deadline.

    Raises `RewardError`, naming the function and the answer, when the function cannot be imported,
    needs a parameter that nothing fills, raises, takes longer than `timeout_seconds` for a batch, or
    gives the wrong number of scores or a score that is not a finite number.
    """

    def __init__(
        self,
        config: RewardTermConfig,
        *,
        row_columns: Sequence[str] = (),
        max_steps: int = 1,
        steps_per_epoch: float = 1.0,
        function: Callable[..., Any] | None = None,
    ) -> None:
        self.name = config.name
        self.weight = config.weight
        self.extra: dict[str, list[Any]] = {}  # what was logged by `log_extra` for the last batch
        self._timeout_seconds = config.timeout_seconds
        self._max_steps = max_steps
        self._steps_per_epoch = steps_per_epoch
        self._step = 0
        self._metrics: dict[str, list[float]] = {}
        header = {
            "options": dict(config.options),
            "columns": dict(config.columns),
            "form": None if config.completions == "auto" else config.completions,
            "row_columns": tuple(row_columns),
        }
        self._function = (
            FunctionProcess(config.name, _present, header)
            if function is None
            else _FunctionHere(config.name, function, header)
        )
        self.follows_trl: bool = self._function.described["trl"]

    def dry_run(self, answers: Sequence[GradedAnswer]) -> None:
        """Calls a function with TRL's signature once on made-up answers, and forgets the scores.

        What would end the training at its first step (a column missing from `**kwargs`, a result of
        the wrong length) is an error now, and whether texts or messages are expected becomes known.
        """
        if self.follows_trl:
            self._ask(answers, is_dry_run=True)
            self.take_metrics()

    def begin(self, step: int) -> None:
        self._step = step

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        """One score per answer, None where the function says that it does not apply."""
        return self._ask(answers, is_dry_run=False)

    def take_metrics(self) -> dict[str, list[float]]:
        """What the function logged by `log_metric` since the last call, by `function/name`."""
        metrics, self._metrics = self._metrics, {}
        return {f"{self.name}/{name}": values for name, values in metrics.items()}

    def close(self) -> None:
        """Ends the process. Safe to call twice."""
        self._function.close()

    def _ask(self, answers: Sequence[GradedAnswer], *, is_dry_run: bool) -> list[float | None]:
        state = TrainerState(self._step, self._max_steps, self._step / self._steps_per_epoch)
        reply = self._function.ask((list(answers), state, is_dry_run), self._timeout_seconds)
        self.extra = reply["extra"]
        for name, values in reply["metrics"].items():
            self._metrics.setdefault(name, []).extend(values)
        scores: list[float | None] = reply["scores"]
        if len(scores) != len(answers):
            raise RewardError(
                f"{self.name} gave {len(scores)} scores for {len(answers)} answers.", remedy=_REMEDY
            )
        for index, score in enumerate(scores):
            if score is not None and not (isinstance(score, float) and math.isfinite(score)):
                raise RewardError(
                    f"{self.name} gave {visible(str(score), 80)} for answer {index} "
                    f"(problem {answers[index].problem.task_id}).",
                    remedy=_REMEDY,
                )
        return scores


class _FunctionHere:
    """A function of this process in the place of a `FunctionProcess`."""

    def __init__(self, name: str, function: Callable[..., Any], header: dict[str, Any]) -> None:
        self._name = name
        self._handle: Callable[[Any], Any] = lambda header: _present(function, header)
        self.described, self._handle = self.ask(header, 0.0)

    def ask(self, request: Any, timeout_seconds: float) -> Any:
        try:
            return self._handle(request)
        except Refused as refusal:
            raise RewardError(f"{self._name}: {refusal.args[0]}", remedy=refusal.args[1]) from None

    def close(self) -> None:
        pass


def made_up_answers(problem: Problem, number: int) -> list[GradedAnswer]:
    """`number` answers to a problem that no model wrote: the reference, a wrong one and prose by turns."""
    known = tuple(case for case in problem.cases if not isinstance(case.expected, Expected))
    problem = replace(problem, cases=known)
    tests = len(problem.cases) + len(problem.tests) + len(problem.stdio_cases) + len(problem.checks) or 1
    program = problem.reference or f"{problem.starter_code}    pass\n"
    wrong = f"{problem.starter_code}    return None\n"
    kinds = (
        (f"```python\n{program}```\n", program, Verdict(Status.PASSED, (True,) * tests)),
        (f"```python\n{wrong}```\n", wrong, Verdict(Status.FAILED, (False,) * tests)),
        ("I do not know the answer to this question.", None, Verdict(Status.NO_CODE, (False,) * tests)),
    )
    return [
        GradedAnswer(problem, problem.starter_code or problem.prompt, text, code, verdict)
        for text, code, verdict in (kinds[index % len(kinds)] for index in range(number))
    ]


def _present(function: Callable[..., Any], header: dict[str, Any]) -> tuple[Reply, Handler]:
    options, columns, row_columns = header["options"], header["columns"], header["row_columns"]
    trl = None
    if Parameters.of(function).follow_trl((*row_columns, *columns)):
        trl = TrlReward(
            function, options=options, columns=columns, row_columns=row_columns, form=header["form"]
        )
    else:
        try:
            inspect.signature(function).bind([], **options)
        except TypeError as error:
            raise Refused(
                f"its signature {inspect.signature(function)} does not fit: {error}.",
                "Write f(answers, **options) or, as in TRL, f(prompts, completions, **columns). A function "
                "that makes reward functions is to be called in a module of yours: reward = get_reward(…).",
            ) from None

    def handle(request: tuple[list[GradedAnswer], TrainerState, bool]) -> Reply:
        answers, state, is_dry_run = request

        def score(answers: list[GradedAnswer]) -> tuple[Any, Logged]:
            if trl is None:
                return awaited(function(answers, **options)), Logged()
            return (trl.dry_run if is_dry_run else trl.score)(answers, state)

        try:
            scores, logged = score(answers)
            return {"scores": _as_numbers(scores), **logged.to_plain(len(answers))}
        except Refused:
            raise
        except Exception as error:
            when = "on made-up answers, before training, " if is_dry_run else ""
            served = "" if trl is None else f"It is called with: {', '.join(trl.served)}.\n"
            remedy = served + traceback.format_exc(limit=-3)
            raise Refused(when + _explanation(error, answers, score), remedy) from None

    return {"trl": trl is not None}, handle


def _as_numbers(scores: Any) -> list[float | str | None]:
    """Scores as floats and None; what is neither stays text, for the caller to refuse by index."""
    try:
        if isinstance(scores, (str, Mapping, Set)):
            raise TypeError
        given = list(scores)
    except TypeError:
        raise Refused(
            f"it returned {type(scores).__name__}, not a list.", "Return one number or None for each answer."
        ) from None
    return [score if score is None else as_number(score) for score in given]


def _explanation(
    error: Exception, answers: list[GradedAnswer], score: Callable[[list[GradedAnswer]], Any]
) -> str:
    """What was raised, and by which answer: the first that raises when scored alone."""
    message = f"it raised {type(error).__name__}: {error}"
    for index, answer in enumerate(answers):
        try:
            score([answer])
        except Exception:
            return f"{message} (answer {index}, problem {answer.problem.task_id})."
    return f"{message} (no single answer raises when scored alone)."


def reward_terms(rewards: Rewards, functions: dict[str, RewardFunction]) -> list[dict[str, Any]]:
    """The section `rewards` of a recipe; `functions` gets the callables among them, by name."""
    if isinstance(rewards, str) or not isinstance(rewards, Iterable):
        raise ConfigError(
            f"rewards: expected a list or a mapping to weights, found {rewards!r:.200}.",
            remedy="Put a single term or function into a list.",
        )
    weights = rewards if isinstance(rewards, Mapping) else dict.fromkeys(rewards, 1.0)
    terms = []
    for reward, weight in weights.items():
        if not isinstance(reward, str) and not callable(reward):
            raise ConfigError(f"rewards: expected the name of a term or a function, found {reward!r}.")
        name = reward if isinstance(reward, str) else function_name(reward)
        if name in functions:
            raise ConfigError(
                f"two reward functions are called {name}.", remedy="Give each a name of its own."
            )
        if not isinstance(reward, str):
            functions[name] = reward
        terms.append({"name": name, "weight": weight})
    return terms


def function_name(function: RewardFunction) -> str:
    """The name `module:function` of a reward function."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"
