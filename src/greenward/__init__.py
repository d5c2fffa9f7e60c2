"""greenward: reinforcement learning that turns failing tests green."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from greenward.api import EvaluationResult as EvaluationResult
    from greenward.api import TrainingResult as TrainingResult
    from greenward.api import audit as audit
    from greenward.api import evaluate as evaluate
    from greenward.api import grade as grade
    from greenward.api import load_problems as load_problems
    from greenward.api import load_recipe as load_recipe
    from greenward.api import read_evaluation as read_evaluation
    from greenward.api import read_run as read_run
    from greenward.api import train as train
    from greenward.diagnostics.diagnose import diagnose_run as diagnose_run
    from greenward.evaluation.selection import best_of_n as best_of_n
    from greenward.grading.judge import Grader as Grader
    from greenward.integrations import EvaluationCallback as EvaluationCallback
    from greenward.integrations import reward_function as reward_function
    from greenward.models.policy import Policy as Policy
    from greenward.problems.problem import Assertion as Assertion
    from greenward.problems.problem import Case as Case
    from greenward.problems.problem import Check as Check
    from greenward.problems.problem import Doctest as Doctest
    from greenward.problems.problem import InProcess as InProcess
    from greenward.problems.problem import Problem as Problem
    from greenward.problems.problem import ProblemSet as ProblemSet
    from greenward.problems.problem import StdioCase as StdioCase
    from greenward.runs.publish import push as push

__version__ = "0.1.0"

_PUBLIC = {
    "api": (
        "EvaluationResult",
        "TrainingResult",
        "audit",
        "evaluate",
        "grade",
        "load_problems",
        "load_recipe",
        "read_evaluation",
        "read_run",
        "train",
    ),
    "diagnostics.diagnose": ("diagnose_run",),
    "evaluation.selection": ("best_of_n",),
    "grading.judge": ("Grader",),
    "integrations": ("EvaluationCallback", "reward_function"),
    "models.policy": ("Policy",),
    "problems.problem": (
        *("Assertion", "Case", "Check", "Doctest", "InProcess", "Problem", "ProblemSet", "StdioCase"),
    ),
    "runs.publish": ("push",),
}

__all__ = [name for names in _PUBLIC.values() for name in names]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: `import greenward` loads nothing heavy."""
    for module, names in _PUBLIC.items():
        if name in names:
            return getattr(import_module(f"greenward.{module}"), name)
    raise AttributeError(f"module 'greenward' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
