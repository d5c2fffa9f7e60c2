"""The process that runs a function under audit: one answer at a time, its score or what it raised."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from greenward.evaluation.audit.calls import VERL, Signature
from greenward.grading.function_process import Handler, Reply, as_number, serve
from greenward.grading.trl_reward import Parameters, TrainerState, TrlReward, awaited

_WHO = "the audit"


def main() -> None:
    """Serves until the audit closes its end."""
    serve(_present)


def _present(function: Callable[..., Any], header: dict[str, Any]) -> tuple[Reply, Handler]:
    """Calls `function` with the signature that the header or its parameters name.

    A request is {arguments} for verl's signature and {answers, form, ground_truth} for the others.
    """
    if header["options"]:
        function = functools.partial(function, **header["options"])
    parameters = Parameters.of(function)
    columns: dict[str, str] = header["columns"]
    signature: Signature = header["signature"] or _signature_of(parameters, columns)
    call: Callable[[Any], Any]
    if signature == "trl":
        reward = TrlReward(function, columns=columns, who=_WHO)

        def call(request: Any) -> Any:
            state = TrainerState(0, 1)
            return reward.call(request["answers"], request["form"], state, request["ground_truth"])[0]

    elif signature == "verl":
        parameters.check_columns(VERL, columns, _WHO)

        def call(request: Any) -> Any:
            given = {name: one for name, one in request["arguments"].items() if parameters.take(name)}
            return awaited(function(**given))

    else:

        def call(request: Any) -> Any:
            return awaited(function(request["answers"]))

    def handle(request: Any) -> Reply:
        try:
            return _one_score(call(request))
        except Exception as error:
            return {"raised": " ".join(f"{type(error).__name__}: {error}"[:200].split())}

    takes_verdicts = parameters.takes_any or "verdicts" in (*parameters.names, *columns.values())
    return {"signature": signature, "takes_verdicts": takes_verdicts}, handle


def _signature_of(parameters: Parameters, columns: Iterable[str]) -> Signature:
    """The signature that the names of the parameters speak for."""
    if "solution_str" in parameters.names:
        return "verl"
    return "trl" if parameters.follow_trl(columns) else "ours"


def _one_score(given: Any) -> Reply:
    """The score in a number, a list of one, or verl's dict; None where the function says nothing."""
    if isinstance(given, Mapping):
        given = given.get("score")
    elif isinstance(given, (list, tuple)) and given:
        given = given[0]
    number = None if given is None else as_number(given)
    return {"raised": f"it gave {number}, not a number"} if isinstance(number, str) else {"score": number}
