"""How a function under audit is called, and the process that runs it: one answer at a time.

A reply holds its score or what it raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from greenward.evaluation.audit.report import Signature
from greenward.grading.function_process import Handler, Reply, as_number
from greenward.grading.problem_columns import GROUND_TRUTHS, GroundTruth, ground_truth
from greenward.grading.trl_reward import Form, Parameters, TrainerState, TrlReward, awaited
from greenward.problems.problem import Problem

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
            return _one_score(call(request))
        except Exception as error:
            return {"raised": " ".join(f"{type(error).__name__}: {error}"[:200].split())}

    named = parameters.takes_any or "verdicts" in (*parameters.names, *columns.values())
    takes_verdicts = signature == "ours" or (signature == "trl" and named)
    return {"signature": signature, "takes_verdicts": takes_verdicts}, handle


def _one_score(given: Any) -> Reply:
    """The score in a number, a list of one, or verl's dict; None where the function says nothing."""
    if isinstance(given, Mapping):
        given = given.get("score")
    elif isinstance(given, (list, tuple)) and given:
        given = given[0]
    number = None if given is None else as_number(given)
    return {"raised": f"it gave {number}, not a number"} if isinstance(number, str) else {"score": number}
