"""HumanEvalPack (Muennighoff et al. 2023, arXiv:2308.07124), Python: HumanEval's functions with a bug each.

Rows are those of HumanEval with `declaration` (imports, helpers and the signature without docstring),
`buggy_solution` (the body with the bug), `bug_type` and `failure_symptoms`. As in the suite's task of
repair by tests, the docstring is not shown: the bug is to be found in the code and its tests.
"""

from __future__ import annotations

import re
from pathlib import Path

from greenward.problems.bugs.repair import KIND_TAG
from greenward.problems.json_rows import Row
from greenward.problems.problem import Problem, ProblemSet
from greenward.problems.suites.humaneval import helpers
from greenward.problems.suites.rows import problem_set

EXAMPLE = (
    '{"task_id": "Python/0", "prompt": …, "declaration": …, "canonical_solution": …, "buggy_solution": …, '
    '"bug_type": …, "test": …, "entry_point": …}'
)


def load_humanevalpack(path: str | Path, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of repair, tagged `bug:<bug type>`, each with its `check` as a test program.

    Raises `ProblemError`, also for rows in other languages.
    """
    return problem_set(Path(path), _problem, example=EXAMPLE, skip_bad_rows=skip_bad_rows)


def _problem(row: Row) -> Problem:
    task_id = row.text("task_id")
    if not task_id.startswith("Python/"):
        raise row.error("task_id", f"must name a problem in Python, as Python/0 does, found {task_id!r}")
    entry_point = row.name("entry_point")
    test = row.text("test")
    if "def check(" not in test:
        raise row.error("test", f"does not define check({entry_point})")
    calls_itself = re.search(r"^check\(", test, re.MULTILINE)
    declaration = row.text("declaration")
    kind = row.text("bug_type", default="").strip().replace(" ", "_")
    return Problem(
        task_id=task_id,
        prompt="",
        entry_point=entry_point,
        checks=(test if calls_itself else f"{test}\n\ncheck({entry_point})\n",),
        check_setup_code=helpers(row, entry_point),
        starter_code=declaration,
        reference=declaration + row.text("canonical_solution"),
        buggy_code=declaration + row.text("buggy_solution"),
        tags=(f"{KIND_TAG}{kind}",) if kind else (),
    )
