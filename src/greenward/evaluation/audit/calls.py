"""How a function under audit is called: the three signatures, and the shapes that their data may have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from greenward.errors import RewardError
from greenward.evaluation.audit.tasks import assertions
from greenward.problems.problem import Problem

Signature = Literal["ours", "trl", "verl"]
GroundTruth = Literal["cases as JSON", "assertions", "assertions as JSON"]
DATA_SOURCE = "greenward/audit"


@dataclass(frozen=True)
class Presentation:
    """The shape in which answers and tests are handed over. Those of one signature are tried in turn."""

    fenced: bool = True
    conversational: bool = False
    ground_truth: GroundTruth = "cases as JSON"

    def __str__(self) -> str:
        form = "a fenced block" if self.fenced else "bare code"
        return f"{form}{' in a message' if self.conversational else ''}, ground truth: {self.ground_truth}"

    def text(self, code: str) -> str:
        """The completion that holds a program."""
        if not self.fenced:
            return code
        return f"```python\n{code if code.endswith(chr(10)) else code + chr(10)}```\n"


_TRUTHS: tuple[GroundTruth, ...] = ("cases as JSON", "assertions", "assertions as JSON")
PRESENTATIONS: Mapping[Signature, tuple[Presentation, ...]] = {
    "ours": (Presentation(),),
    "trl": tuple(
        Presentation(fenced, conversational, truth)
        for truth in _TRUTHS
        for fenced, conversational in ((True, False), (False, False), (True, True))
    ),
    "verl": tuple(Presentation(fenced, False, truth) for truth in _TRUTHS for fenced in (True, False)),
}


def signature_of(parameters: list[str]) -> Signature:
    """The signature that the names of a function's parameters speak for."""
    if "completions" in parameters:
        return "trl"
    return "verl" if "solution_str" in parameters else "ours"


def trl_call(problem: Problem, completion: str, shape: Presentation) -> dict[str, Any]:
    """Keyword arguments of TRL's reward functions, for one completion. The data columns are ours."""
    prompt: Any = problem.prompt
    answer: Any = completion
    if shape.conversational:
        prompt = [{"role": "user", "content": prompt}]
        answer = [{"role": "assistant", "content": answer}]
    tests = assertions(problem)
    columns = {
        "task_id": problem.task_id,
        "entry_point": problem.entry_point,
        "tests": tests,
        "test_list": tests,
        "test": "\n".join(tests),
        "test_cases": [{"input": list(case.args), "output": case.expected} for case in problem.cases],
        "ground_truth": ground_truth(problem, shape.ground_truth),
        "answer": ground_truth(problem, shape.ground_truth),
        "reference": problem.reference,
        "solution": problem.reference,
    }
    return {"prompts": [prompt], "completions": [answer]} | {name: [one] for name, one in columns.items()}


def verl_call(problem: Problem, completion: str, shape: Presentation) -> dict[str, Any]:
    """Keyword arguments of verl's `compute_score`."""
    return {
        "data_source": DATA_SOURCE,
        "solution_str": completion,
        "ground_truth": ground_truth(problem, shape.ground_truth),
        "extra_info": {"split": "test", "index": 0, "entry_point": problem.entry_point},
    }


def ground_truth(problem: Problem, form: GroundTruth) -> str:
    """The tests as text. `cases as JSON` has the shape of APPS: fn_name, inputs, outputs."""
    if form == "assertions":
        return "\n".join(assertions(problem))
    if form == "assertions as JSON":
        return json.dumps(assertions(problem))
    inputs = [list(case.args) for case in problem.cases]
    outputs = [case.expected for case in problem.cases]
    return json.dumps({"fn_name": problem.entry_point, "inputs": inputs, "outputs": outputs})


def accepted_arguments(
    call: dict[str, Any], parameters: list[str], required: list[str], takes_any: bool
) -> dict[str, Any]:
    """The arguments that the function takes. Raises `RewardError` for one that it needs and we lack."""
    missing = [name for name in required if name not in call]
    if missing:
        raise RewardError(
            f"the function needs {', '.join(missing)}, which the audit does not have.",
            remedy=f"It has: {', '.join(call)}. Wrap the function to take its data from these.",
        )
    return call if takes_any else {name: value for name, value in call.items() if name in parameters}
