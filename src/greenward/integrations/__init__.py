"""Parts for other training loops: rewards, an evaluation callback, and our tasks in the forms of others.

The modules `openenv` and `verifiers` need the packages that they are named for.
"""

from greenward.integrations.evaluation_callback import EvaluationCallback as EvaluationCallback
from greenward.integrations.rewards import compute_score as compute_score
from greenward.integrations.rewards import reward_function as reward_function
from greenward.integrations.rewards import verl_row as verl_row
