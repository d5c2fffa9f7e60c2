"""examples/sql_task: a task of one's own, its judge beside sqlite3, and a training by its recipe."""

from __future__ import annotations

import importlib
import random
import shutil
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest

from greenward import api
from greenward.common.errors import ConfigError
from greenward.config.loading import load_recipe
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import Status
from greenward.runs.reading import read_evaluations, read_metrics

pytestmark = pytest.mark.usefixtures("kept_sandbox")

EXAMPLE = Path(__file__).parents[2] / "examples" / "sql_task"
SCHEMA = """CREATE TABLE people (name TEXT, salary INTEGER, age REAL);
INSERT INTO people VALUES ('a', 3, NULL); INSERT INTO people VALUES ('b', NULL, 2.5);
INSERT INTO people VALUES ('c', 3, 0.1); INSERT INTO people VALUES ('d', NULL, NULL);"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example with its questions, as the current folder."""
    folder = tmp_path_factory.mktemp("sql") / "sql_task"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [str(folder), *sys.path])
        importlib.import_module("questions").main()
        yield folder
        for name in ("questions", "sql_task"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def judge(folder):
    recipe = load_recipe(folder / "recipe.yaml", ["sandbox.cpu_seconds=0.5", "sandbox.require=D"])
    with importlib.import_module("sql_task").SQLJudge(recipe) as judge:
        yield judge


def verdicts(judge, reference, queries):
    question = importlib.import_module("questions").Question
    problem = question(f"q/{reference}", "?", "", schema=SCHEMA, reference=reference)
    return [one.status for one in judge.grade([(problem, query) for query in queries])]


def test_rows_are_compared_in_any_order_also_where_null_and_numbers_mix(judge):
    reference = "SELECT salary, age FROM people"
    right = [
        reference,
        f"{reference} ORDER BY age DESC",
        "SELECT salary, age + 0.0 FROM people ORDER BY name DESC",
    ]
    assert verdicts(judge, reference, right) == [Status.PASSED] * 3
    wrong = ["SELECT age, salary FROM people", "SELECT DISTINCT salary FROM people", f"{reference} LIMIT 3"]
    assert verdicts(judge, reference, wrong) == [Status.FAILED] * 3


def test_queries_that_write_or_reach_out_or_never_end_are_no_answers(judge):
    refused = [
        "DROP TABLE people",
        "INSERT INTO people VALUES ('e', 1, 1)",
        "ATTACH DATABASE 'x.db' AS x",
        "PRAGMA user_version = 3",
        "SELECT load_extension('x')",
        "SELECT * FROM nothing",
        "SELECT 1; SELECT 2",
        "not SQL",
    ]
    assert verdicts(judge, "SELECT 1", refused) == [Status.ERROR] * len(refused)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT MAX(x) FROM n"
    assert verdicts(judge, "SELECT 1", [endless]) == [Status.TIMEOUT]
    question = importlib.import_module("questions").Question(
        "q/none", "?", "", schema=SCHEMA, reference="SELECT 1"
    )
    (none,) = judge.grade([(question, Extracted(None, "no query"))])
    assert none.status is Status.NO_CODE


def test_verdicts_are_those_of_sqlite_itself(judge, folder):
    """Each question is asked with its own query, and with those of others, some of which give the same rows."""
    problems = list(importlib.import_module("questions").read_questions(folder / "dev.jsonl"))
    rng = random.Random(0)
    pairs = [
        (one, rng.choice((one, *rng.sample(problems, 4))).reference) for one in problems for _ in range(3)
    ]

    def rows(schema, query):
        with sqlite3.connect(":memory:") as database:
            database.executescript(schema)
            return Counter(database.execute(query).fetchall())

    expected = [rows(one.schema, query) == rows(one.schema, one.reference) for one, query in pairs]
    assert 0 < sum(expected) < len(pairs)
    assert [verdict.passed for verdict in judge.grade(pairs)] == expected


def test_training_and_held_out_questions_differ(folder):
    read = importlib.import_module("questions").read_questions
    train, dev = ({one.prompt for one in read(folder / f"{name}.jsonl")} for name in ("train", "dev"))
    assert (len(train), len(dev)) == (84, 28) and not train & dev


@pytest.mark.slow
def test_the_recipe_trains_evaluates_and_reports(folder):
    overrides = [
        "model.shape={layers: 1, hidden_size: 32, heads: 2, kv_heads: 2, intermediate_size: 64, max_positions: 192}",
        "warm_start.max_steps=20", "training={max_steps: 2, prompts_per_step: 4, num_generations: 4, threads: 1}",
        "evaluation={num_questions: 8, samples: 1, k: [1], eval_interval_steps: 2}", "sandbox.require=D",
    ]  # fmt: skip
    assert api.train("recipe.yaml", overrides, output="run", quiet=True).finished
    assert len(read_metrics(folder / "run/metrics.jsonl").rows) == 2
    assert [one["step"] for one in read_evaluations(folder / "run")] == [0, 2]
    assert (folder / "run/report.html").is_file()
    assert api.train("recipe.yaml", [*overrides, "training.max_steps=3"], output="run", resume=True).finished
    with pytest.raises(ConfigError, match="no reward term 'row'") as caught:
        api.train("recipe.yaml", [*overrides, "rewards=[{name: row}]"], output="other", quiet=True)
    assert "Did you mean 'rows'?" in str(caught.value.remedy)
