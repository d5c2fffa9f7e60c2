"""verl calls `compute_score` with the columns of a row: the rewards are those of the grader."""

from __future__ import annotations

from greenward.api import load_problems
from greenward.integrations import compute_score, verl_row


def test_scores_are_executions_of_the_problem_that_the_row_names() -> None:
    problem = load_problems("classic_training")[0]
    row = verl_row(problem, "classic_training")
    assert problem.entry_point in row["prompt"][0]["content"]
    source, truth = row["data_source"], row["reward_model"]["ground_truth"]
    right = f"Here it is:\n```python\n{problem.reference}\n```"
    for answer, passes in ((right, 1.0), ("```python\nimport sys; sys.exit(0)\n```", 0.0), ("no code", 0.0)):
        scored = compute_score(source, answer, truth, row["extra_info"])
        assert scored == {"score": 2 * passes, "acc": passes, "infrastructure": 0.0}
