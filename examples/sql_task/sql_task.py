"""A task of one's own: questions about a database are answered by SQL. See docs/extending.md, "A task"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PositiveInt
from questions import Question, read_questions

from greenward.config.recipe import recipes_with
from greenward.config.sections import ConfigSection
from greenward.environments.prompts import PromptRenderer, PromptTokenizer
from greenward.grading.execution import ExecutionJudge, JobSet
from greenward.grading.extracted import Extracted
from greenward.grading.judge import build_executor, build_limits
from greenward.grading.rewards import GradedAnswer, per_answer
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import ProblemSet
from greenward.sandbox.protocol import Call, Job, RunResult
from greenward.tasks.problem_task import ProblemTask
from greenward.training.protocols import Example

if TYPE_CHECKING:
    from greenward.config.sections import SupervisedConfig
    from greenward.models.policy import Policy

# The query is data of this program, which runs in the sandbox. Only what reads is allowed: SQLITE_READ,
# SQLITE_SELECT, SQLITE_FUNCTION and SQLITE_RECURSIVE.
PROGRAM = """import sqlite3
def rows(schema, query, most):
    database = sqlite3.connect(":memory:")
    database.executescript(schema)
    database.set_authorizer(lambda action, *_: 0 if action in (20, 21, 31, 33) else 1)
    return [list(row) for row in database.execute(query).fetchmany(most)]
"""


class SQLConfig(ConfigSection):
    """How queries are run."""

    most_rows: PositiveInt = Field(1000, description="rows of a result that are compared")


class SQLSections(ConfigSection):
    """What the task adds to a recipe."""

    sql: SQLConfig = SQLConfig()


class SQLPrompts(PromptRenderer):
    """Puts a question after the columns of the table, and reads the query up to the first semicolon."""

    def prompt_text(self, problem: Any) -> str:
        table = problem.schema.partition(";")[0]
        if self.style == "chat":
            return f"{table};\n\n{problem.prompt} Answer with one query of SQLite in a ```sql code block."
        return f"-- {table}\n-- {problem.prompt}\n"

    def extracted(self, problem: Any, text: str) -> Extracted:
        if self.style == "chat":
            *_, text = [text, *text.replace("```sql", "```").split("```")[1::2]]
        query = text.partition(";")[0].strip()
        return Extracted(query or None, "" if query else "the answer holds no query")


class SQLJudge(ExecutionJudge):
    """Compares the rows that a query gives with those of the reference, which never enter its process."""

    def __init__(self, recipe: Any) -> None:
        super().__init__(build_executor(recipe.sandbox), owns_executor=True)
        self._limits, self._most_rows = build_limits(recipe.sandbox), recipe.sql.most_rows
        self._expected: dict[str, Counter[tuple[Any, ...]]] = {}

    def plan(self, problems: Iterable[Any]) -> None:
        new = [one for one in dict.fromkeys(problems) if one.task_id not in self._expected]
        for index, result in self.executor.run(self.job(one, one.reference) for one in new):
            self._expected[new[index].task_id] = rows_of(result)

    def job_set(self, problem: Any, answer: Extracted) -> JobSet[Verdict] | None:
        return super().job_set(problem, answer) if problem.task_id in self._expected else None

    def job(self, problem: Question, code: str) -> Job:
        call = Call((problem.schema, code, self._most_rows), {})
        return Job(PROGRAM, "rows", (call,), limits=self._limits)

    def verdict(self, problem: Question, result: RunResult) -> Verdict:
        (called,) = result.results
        if not called.returned:
            status, right = Status.ERROR, False
        else:
            right = rows_of(result) == self._expected[problem.task_id]
            status = Status.PASSED if right else Status.FAILED
        return Verdict(status, (right,), called.error_class, called.error_message)


def rows_of(result: RunResult) -> Counter[tuple[Any, ...]]:
    """The first `most_rows` rows in any order, since NULL and numbers mix. Empty if the query failed."""
    rows: Sequence[Sequence[Any]] = result.results[0].value or () if result.results else ()
    return Counter(tuple(round(one, 9) if isinstance(one, float) else one for one in row) for row in rows)


@per_answer
def right_rows(answer: GradedAnswer) -> float:
    """1 where the query gives the rows of the reference, else 0."""
    return float(answer.verdict.passed)


@per_answer
def runs(answer: GradedAnswer) -> float:
    """1 for a query that SQLite takes, else 0."""
    return float(answer.verdict.status in (Status.PASSED, Status.FAILED))


class SQL(ProblemTask):
    """Questions that are answered by queries."""

    recipes: ClassVar = recipes_with("sql_task:SQL", SQLSections)
    rewards: ClassVar = {"rows": right_rows, "runs": runs}
    loads_sources: ClassVar = True

    def load(self, given: Mapping[str, ProblemSet]) -> tuple[ProblemSet, ProblemSet]:
        sources = self.recipe.problems
        return read_questions(Path(sources.train)), read_questions(Path(sources.held_out))

    def judge(self) -> SQLJudge:
        return SQLJudge(self.recipe)

    def renderer(self, tokenizer: PromptTokenizer) -> SQLPrompts:
        model = self.recipe.model
        return SQLPrompts(tokenizer, style=model.prompt_style, system_prompt=model.system_prompt)

    def texts(self) -> Iterable[str]:
        return (f"-- {one.schema.partition(';')[0]}\n-- {one.prompt}\n{one.reference};" for one in self.train)

    def examples(self, policy: Policy, config: SupervisedConfig) -> Sequence[Example]:
        prompts, tokenizer = self.renderer(policy.tokenizer), policy.tokenizer
        return [
            Example(prompts.prompt_ids(one), (*tokenizer.encode(f"{one.reference};"), tokenizer.eos_id))
            for one in self.train
        ]
