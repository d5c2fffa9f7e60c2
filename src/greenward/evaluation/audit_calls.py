"""Calls a function under audit by its signature: TRL's, that of verifiers, verl's or ours.

The names of the parameters select the signature, unless `--signature` does. Parameters that fit none are
refused with what is accepted.

- `verl` (a parameter `solution_str`): `f(data_source, solution_str, ground_truth, extra_info)`, which returns
  a number or a dict with `score`.
- `verifiers` (a parameter `completion`, or `completions` beside `answers`, `states`, `tasks`, `infos` or
  `parser`): `f(prompt, completion, answer, state, task, info, parser)`, those that it names; prompt and
  completion as messages, or as texts if it fails on these. The parser gives the text of the last message.
  With `completions` it judges a group (plural names): the answer beside the reference, of which the first
  score counts.
- `trl` (a parameter that TRL knows: `completions`, `completion_ids`, `prompts`, …): as in training, one
  completion at a time. No policy wrote the answers, so the bytes of a text stand for its token ids.
- `ours`: `f(answers)`, each answer judged by our grader before.

A program is handed over as a fenced block, as bare code, or as a block in an answer tag after thoughts, in
a text or a list of messages. The ground truth is one object as in APPS (`json`, without `fn_name` for
programs that read standard input), assert statements one a line (`assertions`) or as a JSON list
(`assertions-json`), or an object `{"input", "output"}` on each line (`json-lines`). Unless `--ground-truth`
names one, they are tried in turn, and the first in which the function tells the references from the
plainest wrong answer is used.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from greenward.evaluation.audit_texts import (
    CODE_WRAPPERS,
    FENCED,
    MATHS,
    VALUE_TRUTHS,
    VALUE_WRAPPERS,
    Wrapper,
    is_question,
    wrappers_from,
)
from greenward.grading.user_rewards import (
    GROUND_TRUTHS,
    Form,
    GroundTruth,
    Handler,
    Parameters,
    Refused,
    Reply,
    TrainerState,
    TrlReward,
    as_number,
    awaited,
    problem_columns,
)
from greenward.problems.problem import Problem

Signature = Literal["ours", "trl", "verl", "verifiers"]
DATA_SOURCE = "greenward/audit"
_WHO = "the audit"
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
VERIFIERS = ("prompt", "completion", "answer", "state", "task", "info", "parser")
# Of a function that judges the answers to a prompt together, which gets a list of each.
VERIFIERS_GROUP = ("prompts", "completions", "answers", "states", "tasks", "infos", "parser")
_OTHER = "other"  # the reference, which stands beside the answer in a group
ACCEPTED_SIGNATURES = (
    "f(completions, **columns), with prompts and columns of the data set, as in TRL; "
    "f(completion, answer, **kwargs), as in verifiers, or f(completions, answers, states) of a group; "
    "compute_score(data_source, solution_str, ground_truth, extra_info), as in verl; "
    "f(answers), as ours"
)
_TRUTH_IN_WORDS = {
    "json": "cases as JSON",
    "assertions": "assertions",
    "assertions-json": "assertions as JSON",
    "json-lines": "cases as JSON lines",
}


@dataclass(frozen=True)
class DataShape:
    """The shape in which answers and tests are handed over. Those of one signature are tried in turn.

    `ground_truth` is one of `GROUND_TRUTHS` for programs, and of `VALUE_TRUTHS` for values.
    """

    wrapper: Wrapper = FENCED
    form: Form = "text"
    ground_truth: str = "json"

    def __str__(self) -> str:
        message = " in a message" if self.form == "messages" else ""
        truth = _TRUTH_IN_WORDS.get(self.ground_truth, self.ground_truth)
        return f"{self.wrapper.name}{message}, ground truth: {truth}"

    def shown(self, problem: Problem) -> Problem:
        """The problem with its value, if that is what it asks for, as this shape gives it."""
        if not is_question(problem):
            return problem
        truth = VALUE_TRUTHS[self.ground_truth].replace("@", problem.reference)
        return replace(problem, columns=dict.fromkeys(("answer", "ground_truth", "solution"), truth))


def data_shapes(
    signature: Signature, truth: GroundTruth | None, kind: str, words: Sequence[str]
) -> tuple[DataShape, ...]:
    """The shapes to try for a kind of tasks; with `truth`, those of that form only.

    `words` are those of the function's source, which may name the tags that it wants.
    """
    forms: tuple[Form, ...] = {"trl": ("text", "messages"), "verifiers": ("messages", "text")}.get(
        signature, ("text",)
    )  # type: ignore[assignment]
    if kind == MATHS:
        wrappers = (*VALUE_WRAPPERS, *wrappers_from(words))
        return tuple(
            DataShape(one, form, truth)
            for truth, form, one in itertools.product(VALUE_TRUTHS, forms, wrappers)
        )
    if signature == "ours":
        return (DataShape(),)
    # What programs print is not told by assertions.
    truths: tuple[GroundTruth, ...] = ("json", "json-lines") if kind == "standard input" else GROUND_TRUTHS
    if truth is not None:
        truths = (truth,) if truth in truths else ("json",)
    shapes = [(wrapper, form) for form in forms for wrapper in CODE_WRAPPERS]
    shapes.sort(key=lambda shape: CODE_WRAPPERS.index(shape[0]) > 1)
    return tuple(DataShape(wrapper, form, one) for one in truths for wrapper, form in shapes)


def verl_call(
    problem: Problem, completion: str, shape: DataShape, data_source: str, columns: Mapping[str, str]
) -> dict[str, Any]:
    """Keyword arguments of verl's `compute_score`, further ones under other names (theirs: ours)."""
    call = {
        "data_source": data_source,
        "solution_str": completion,
        "ground_truth": _columns(problem, shape)["ground_truth"],
        "extra_info": {"split": "test", "index": 0, "entry_point": problem.entry_point},
    }
    return call | {theirs: call[ours] for theirs, ours in columns.items()}


def verifiers_call(
    problem: Problem, completion: str, shape: DataShape, data_source: str, columns: Mapping[str, str]
) -> dict[str, Any]:
    """Keyword arguments of a reward function of verifiers, and those for the reference as another answer of
    a group; `present` adds the parser.
    """
    row = _columns(problem, shape)

    def arguments(completion: str) -> dict[str, Any]:
        given: dict[str, Any] = {"prompt": problem.prompt, "completion": completion, "answer": row["answer"]}
        if shape.form == "messages":
            given["prompt"] = [{"role": "user", "content": problem.prompt}]
            given["completion"] = [{"role": "assistant", "content": completion}]
        given |= {"task": data_source, "info": row}
        call = {**given, "state": {**given, "turn": 1, "is_completed": True, "responses": []}, "parser": None}
        return call | {theirs: call[ours] for theirs, ours in columns.items()}

    return {**arguments(completion), _OTHER: arguments(shape.wrapper(problem.reference))}


def _columns(problem: Problem, shape: DataShape) -> dict[str, Any]:
    form: Any = shape.ground_truth if shape.ground_truth in GROUND_TRUTHS else "json"
    return problem_columns(shape.shown(problem), form)


class _Parser:
    """What a function for verifiers asks of its parser: the text of the last message."""

    def parse_answer(self, completion: Any) -> str:
        return completion if isinstance(completion, str) else str(completion[-1]["content"])

    def parse(self, text: str) -> str:
        return text


def present(function: Callable[..., Any], header: dict[str, Any]) -> tuple[Reply, Handler]:
    """Calls `function` with the signature that the header or its parameters name.

    A request is {arguments} for verl and verifiers, and {answers, form, ground_truth} for the others.
    """
    written = function
    if header["options"]:
        function = functools.partial(function, **header["options"])
    parameters = Parameters.of(function)
    columns: dict[str, str] = header["columns"]
    signature = header["signature"] or _signature(function, parameters, columns)
    reward = TrlReward(function, columns=columns, who=_WHO) if signature == "trl" else None
    if signature in CALLS:
        parameters.check_columns(CALLS[signature][0], columns, _WHO)
    is_group = signature == "verifiers" and "completions" in parameters.names

    def call(request: Any) -> Any:
        if reward is not None:
            state = TrainerState(0, 1)
            return reward.call(request["answers"], request["form"], state, request["ground_truth"])[0]
        if signature in CALLS:
            given = dict(request["arguments"])
            other = given.pop(_OTHER, {})
            if is_group:
                plural = dict(zip(VERIFIERS, VERIFIERS_GROUP, strict=True))
                given = {plural.get(name, name): [one, other[name]] for name, one in given.items()}
            if signature == "verifiers":
                given["parser"] = _Parser()
            return awaited(function(**{name: one for name, one in given.items() if parameters.take(name)}))
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

    words = list(dict.fromkeys(_words(written)))[:_MOST_WORDS]
    named = "verdicts" in (*parameters.names, *columns.values(), *words)
    takes_verdicts = signature == "ours" or (signature == "trl" and named)
    may_take_verdicts = signature == "trl" and parameters.takes_any
    takes = {"takes_verdicts": takes_verdicts, "may_take_verdicts": may_take_verdicts}
    return {"signature": signature, **takes, "words": words, "pid": os.getpid()}, handle


CALLS = {"verl": (VERL, verl_call), "verifiers": ((*VERIFIERS, *VERIFIERS_GROUP), verifiers_call)}
_MOST_WORDS, _DEEPEST = 200, 6


def _signature(function: Callable[..., Any], parameters: Parameters, columns: Mapping[str, str]) -> Signature:
    """The signature that the parameters name. Raises `Refused` where they name none."""
    names = {columns.get(name, name) for name in parameters.names}
    if "solution_str" in names:
        return "verl"
    if "completion" in names and "completions" not in names:
        return "verifiers"
    if "completions" in names and names.intersection(VERIFIERS_GROUP[2:]):
        return "verifiers"
    if parameters.follow_trl(columns):
        return "trl"
    try:
        inspect.signature(function).bind([])
    except TypeError:
        found = f"{getattr(function, '__name__', 'f')}{inspect.signature(function)}"
        raise Refused(
            f"its parameters are those of no signature that is known: {found}.",
            f"Accepted are {ACCEPTED_SIGNATURES}. --column THEIRS=OURS gives data under the names of yours.",
        ) from None
    return "ours"


def _words(found: Any, depth: int = 0, seen: set[int] | None = None) -> Iterator[str]:
    """The texts that a function works with: constants of its code, and of what it calls in its module."""
    seen = set() if seen is None else seen
    if depth > _DEEPEST or id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, str):
        yield found[:500]
    elif isinstance(found, re.Pattern):
        yield str(found.pattern)[:500]
    elif isinstance(found, Mapping):
        yield from _words((*found, *found.values()), depth, seen)
    elif isinstance(found, (tuple, list, set, frozenset)):
        for one in tuple(found)[:_MOST_WORDS]:
            yield from _words(one, depth + 1, seen)
    elif isinstance(found, types.CodeType):
        for one in found.co_consts:
            yield from _words(one, depth, seen)
    elif callable(found) and (code := getattr(inspect.unwrap(found), "__code__", None)):
        function = inspect.unwrap(found)
        yield from _words(code, depth, seen)
        names = (one for part in (code, *code.co_consts) for one in getattr(part, "co_names", ()))
        for name in dict.fromkeys(names):
            used = function.__globals__.get(name)
            own = getattr(used, "__module__", None) == function.__module__
            if own or isinstance(used, (str, tuple, list, set, frozenset, dict, re.Pattern)):
                yield from _words(used, depth + 1, seen)
