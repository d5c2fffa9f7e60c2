"""Provides rewards, an evaluation callback, a recorder and our tasks for the training loops of others.

`openenv` and `verifiers` need the packages that they are named for, `EvaluationCallback` the extra `train`.
"""

from typing import TYPE_CHECKING, Any

from greenward.integrations.recorder import OpenRLHFLogger as OpenRLHFLogger
from greenward.integrations.recorder import Recorder as Recorder
from greenward.integrations.recorder import VerlLogger as VerlLogger
from greenward.integrations.recorder import record as record
from greenward.integrations.rewards import compute_score as compute_score
from greenward.integrations.rewards import reward_function as reward_function
from greenward.integrations.rewards import verl_row as verl_row

if TYPE_CHECKING:
    from greenward.integrations.evaluation_callback import EvaluationCallback as EvaluationCallback


def __getattr__(name: str) -> Any:
    """Imports the callback, which needs torch, when it is first used."""
    if name == "EvaluationCallback":
        from greenward.integrations.evaluation_callback import EvaluationCallback

        return EvaluationCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
