"""How a function under audit is called: the three signatures, and the shapes that their data may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from greenward.grading.problem_columns import GROUND_TRUTHS, GroundTruth, ground_truth
from greenward.grading.trl_reward import Form
from greenward.problems.problem import Problem

Signature = Literal["ours", "trl", "verl"]
DATA_SOURCE = "greenward/audit"
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
_SAID = {
    "json": "cases as JSON",
    "assertions": "assertions",
    "assertions-json": "assertions as JSON",
    "json-lines": "cases as JSON lines",
}


@dataclass(frozen=True)
class Presentation:
    """The shape in which answers and tests are handed over. Those of one signature are tried in turn."""

    fenced: bool = True
    form: Form = "text"
    ground_truth: GroundTruth = "json"

    def __str__(self) -> str:
        fences = "a fenced block" if self.fenced else "bare code"
        message = " in a message" if self.form == "messages" else ""
        return f"{fences}{message}, ground truth: {_SAID[self.ground_truth]}"

    def text(self, code: str) -> str:
        """The completion that holds a program."""
        if not self.fenced:
            return code
        return f"```python\n{code if code.endswith(chr(10)) else code + chr(10)}```\n"


def presentations(
    signature: Signature, truth: GroundTruth | None, *, reads_stdin: bool
) -> tuple[Presentation, ...]:
    """The shapes to try, for tasks of functions or of programs; with `truth`, those of that form only."""
    if signature == "ours":
        return (Presentation(),)
    truths = GROUND_TRUTHS
    if reads_stdin:  # what programs print is not told by assertions
        truths = ("json", "json-lines")
    if truth is not None:
        truths = (truth,) if truth in truths else ("json",)
    shapes: tuple[tuple[bool, Form], ...] = ((True, "text"), (False, "text"))
    if signature == "trl":
        shapes += ((True, "messages"),)
    return tuple(Presentation(fenced, form, one) for one in truths for fenced, form in shapes)


def verl_call(
    problem: Problem, completion: str, shape: Presentation, data_source: str, columns: Mapping[str, str]
) -> dict[str, Any]:
    """Keyword arguments of verl's `compute_score`, further ones under other names (theirs: ours)."""
    call = {
        "data_source": data_source,
        "solution_str": completion,
        "ground_truth": ground_truth(problem, shape.ground_truth),
        "extra_info": {"split": "test", "index": 0, "entry_point": problem.entry_point},
    }
    return call | {theirs: call[ours] for theirs, ours in columns.items()}
