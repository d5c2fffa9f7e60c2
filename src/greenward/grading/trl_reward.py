"""TRL's convention for reward functions: what one is called with, what it gives and what it logs.

A function is called with keyword arguments only, lists with one entry for each completion, as by
`GRPOTrainer` of TRL 1.16. One without `**kwargs` gets those that it names.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args

from greenward.grading.function_process import Refused, as_number
from greenward.grading.problem_columns import COLUMNS, GroundTruth, problem_columns
from greenward.grading.rewards import GradedAnswer

Form = Literal["text", "messages"]
_BATCH = ("prompts", "completions", "completion_ids", "prompt_ids", "codes", "verdicts")
_TRAINER = ("trainer_state", "log_extra", "log_metric")
_WRONG_FORM = (TypeError, KeyError, IndexError, AttributeError)
_MAX_TEXT = 2000


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function, by what a call by keyword has to know."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Parameters:
        """Raises `Refused` for a function whose parameters cannot be read."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise Refused(f"its parameters cannot be read: {error}.", "Wrap it in a function.") from None
        named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        return cls(
            tuple(one.name for one in named),
            tuple(one.name for one in named if one.default is one.empty),
            any(one.kind is one.VAR_KEYWORD for one in parameters),
        )

    def take(self, name: str) -> bool:
        """Whether the function can be called with this keyword."""
        return self.takes_any or name in self.names

    def follow_trl(self, further: Iterable[str] = ()) -> bool:
        """Whether they are those of a function for TRL, rather than of `f(answers, **options)`.

        `further` are names of columns beside `COLUMNS`.
        """
        if any(name in (*_BATCH, *_TRAINER, "environments") for name in self.names):
            return True
        return self.names[0] in (*COLUMNS, *further) if self.names else self.takes_any

    def check_columns(self, served: tuple[str, ...], columns: Mapping[str, str], who: str) -> None:
        """Raises `Refused` for a parameter that nothing fills, and for a renamed column that there is not."""
        missing = [name for name in self.required if name not in served and name not in columns]
        if "environments" in missing:
            raise Refused(
                "the function needs environments, the tool environments of TRL's environment_factory, "
                "which greenward does not have.",
                "Give the parameter a default, or use a function that judges completions.",
            )
        remedy = (
            f"There are: {', '.join(served)}. Name one of these for a parameter (columns: {{theirs: ours}}; "
            "--column theirs=ours for the audit), or put the data into `columns` of each problem."
        )
        if missing:
            raise Refused(f"the function needs {', '.join(missing)}, which {who} does not have.", remedy)
        for theirs, ours in columns.items():
            if ours not in served:
                raise Refused(
                    f"the column {ours!r}, meant for the parameter {theirs!r}, does not exist.", remedy
                )
            if not self.take(theirs):
                raise Refused(f"the function has no parameter {theirs!r} for the column {ours!r}.", remedy)


@dataclass
class Logged:
    """What a function logged during one call."""

    metrics: dict[str, list[Any]] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)

    def log_metric(self, name: str, value: float) -> None:
        """TRL's `log_metric`: a number for the batch."""
        self.metrics.setdefault(str(name), []).append(value)

    def log_extra(self, column: str, values: list[Any]) -> None:
        """TRL's `log_extra`: a column with one value for each completion."""
        self.extra.setdefault(str(column), []).extend(values)

    def to_plain(self, answers: int) -> dict[str, Any]:
        """As plain data. Raises `Refused` for a metric that is no number and a column of another length."""
        metrics = {_text(name): list(map(as_number, values)) for name, values in self.metrics.items()}
        for name, values in metrics.items():
            for value in values:
                if isinstance(value, str):
                    raise Refused(f"log_metric({name!r}) got {value}.", "Log one number for the batch.")
        for column, entries in self.extra.items():
            if len(entries) != answers:
                raise Refused(
                    f"log_extra({column!r}) got {len(entries)} values for {answers} answers.",
                    "Log one value for each completion.",
                )
        extra = {_text(column): list(map(_plain, entries)) for column, entries in self.extra.items()}
        return {"metrics": metrics, "extra": extra}


@dataclass
class TrainerState:
    """The attributes of TRL's `trainer_state` that are served: steps done, of how many, and passes."""

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0


class TrlReward:
    """A user's function with TRL's signature, called with answers.

    `options` are further keyword arguments, `columns` gives columns under other names (theirs: ours),
    `row_columns` are those that the problems bring along. With `form` None the annotation of
    `completions` decides whether prompts and completions are texts or lists of messages; without
    one, the prompt's own form, unless the function raises on the first batch and does not on the other form.

    Raises `Refused` for a parameter that cannot be filled.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        options: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
        row_columns: tuple[str, ...] = (),
        form: Form | None = None,
        who: str = "training",
    ) -> None:
        self._function = function
        self._parameters = Parameters.of(function)
        self._options = dict(options or {})
        self._renamed = dict(columns or {})
        self._columns = tuple(dict.fromkeys((*COLUMNS, *row_columns)))
        self.served = tuple(dict.fromkeys((*_BATCH, *_TRAINER, *self._columns)))
        for name in self._options:
            if not self._parameters.take(name):
                raise Refused(
                    f"its signature does not fit: it has no parameter for the option {name!r}.",
                    f"Its parameters: {', '.join(self._parameters.names)}.",
                )
        self._parameters.check_columns((*self.served, *self._options), self._renamed, who)
        self.form: Form | None = form or _annotated_form(function)

    def call(
        self, answers: list[GradedAnswer], form: Form, state: TrainerState, truth: GroundTruth = "json"
    ) -> tuple[Any, Logged]:
        """What the function returns for the answers, awaited if need be, and what it logged."""
        logged, prompts, completions = Logged(), list[Any](), list[Any]()
        for one in answers:
            messages = list(map(dict, one.messages)) or [{"role": "user", "content": one.prompt}]
            prompts.append(messages if form == "messages" else one.prompt)
            message = {"role": "assistant", "content": one.completion}
            completions.append([message] if form == "messages" else one.completion)
        by_problem = {id(answer.problem): answer.problem for answer in answers}
        columns = {key: problem_columns(problem, truth) for key, problem in by_problem.items()}
        rows = [columns[id(answer.problem)] for answer in answers]
        given = {
            **{name: [row.get(name) for row in rows] for name in self._columns},
            "prompts": prompts,
            "completions": completions,
            "completion_ids": [_token_ids(answer.completion_ids, answer.completion) for answer in answers],
            "prompt_ids": [_token_ids(answer.prompt_ids, answer.prompt) for answer in answers],
            "codes": [answer.code for answer in answers],
            "verdicts": [answer.verdict for answer in answers],
            "trainer_state": state,
            "log_extra": logged.log_extra,
            "log_metric": logged.log_metric,
        }
        given |= {theirs: given[ours] for theirs, ours in self._renamed.items()} | self._options
        taken = {name: value for name, value in given.items() if self._parameters.take(name)}
        return awaited(self._function(**taken)), logged

    def score(self, answers: list[GradedAnswer], state: TrainerState) -> tuple[Any, Logged]:
        """As `call`, in the form that the function takes."""
        if self.form is not None:
            return self.call(answers, self.form, state)
        forms: tuple[Form, Form] = ("messages", "text") if answers[0].messages else ("text", "messages")
        try:
            given, self.form = self.call(answers, forms[0], state), forms[0]
        except _WRONG_FORM as error:
            try:
                given, self.form = self.call(answers, forms[1], state), forms[1]
            except Exception:
                raise error from None
        return given

    def dry_run(self, answers: list[GradedAnswer], state: TrainerState) -> tuple[Any, Logged]:
        """As `score`, for made-up answers, which show whether the function takes texts or messages.

        Where it takes both and only one makes it tell the answers apart, it takes that one.
        """
        if self.form is not None:
            return self.call(answers, self.form, state)
        tried: dict[Form, tuple[Any, Logged]] = {}
        failed: list[Exception] = []
        for form in get_args(Form):
            try:
                given, logged = self.call(answers, form, state)
                tried[form] = (list(given) if hasattr(given, "__iter__") else given, logged)
            except Exception as error:
                failed.append(error)
        if not tried:
            # The other form gives TypeError as a rule: what else was raised says more.
            raise next((error for error in failed if not isinstance(error, TypeError)), failed[0])
        telling = [form for form, (scores, _) in tried.items() if _varies(scores)]
        chosen = telling if len(telling) == 1 else list(tried)
        self.form = chosen[0] if len(chosen) == 1 else None
        return tried[chosen[0]]


def _token_ids(ids: tuple[int, ...], text: str) -> list[int]:
    """The token ids; where no policy wrote the text, its UTF-8 bytes."""
    return list(ids or text.encode("utf-8", "replace"))


def _annotated_form(function: Callable[..., Any]) -> Form | None:
    """The form of `completions` that its annotation names (`list[str]`, `list[list[dict[str, str]]]`)."""
    parameter = inspect.signature(function).parameters.get("completions")
    said = "" if parameter is None or parameter.annotation is parameter.empty else str(parameter.annotation)
    return "messages" if "dict" in said.lower() else "text" if "str" in said else None


def _varies(scores: Any) -> bool:
    """Whether scores differ from one another; a score that is not a number counts as itself."""
    values = scores if isinstance(scores, list) else ()
    return len({str(score if score is None else as_number(score)) for score in values}) > 1


def awaited(result: Any) -> Any:
    """The result of a call, and for an async function what it resolves to. All calls share one event loop."""
    return _event_loop().run_until_complete(result) if inspect.isawaitable(result) else result


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _plain(value: Any) -> Any:
    """What a log holds of a value: numbers, texts of bounded length, lists and objects of these."""
    if hasattr(value, "tolist"):  # of NumPy or torch
        value = value.tolist()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, (list, tuple)) and len(value) <= _MAX_TEXT:
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {_text(key): _plain(one) for key, one in value.items()}
    return _text(value)


def _text(value: Any) -> str:
    return str(value)[:_MAX_TEXT].encode("utf-8", "backslashreplace").decode()
