"""Makes questions about a small database, each with a query that answers it.

`python questions.py` writes the files of the recipe.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from greenward import Problem
from greenward.problems.problem import ProblemSet
from greenward.problems.rows import read_rows

COLUMNS = ("name", "team", "city", "salary", "age")
TEAMS, CITIES = ("sales", "research", "support", "legal"), ("Rome", "Oslo", "Lima", "Kyiv")
TEMPLATES = (
    ("How many people are in {team}?", "SELECT COUNT(*) FROM people WHERE team = '{team}'"),
    ("Who lives in {city}?", "SELECT name FROM people WHERE city = '{city}'"),
    ("Who of {team} lives in {city}?", "SELECT name FROM people WHERE team = '{team}' AND city = '{city}'"),
    ("What is the mean {number} in {team}?", "SELECT AVG({number}) FROM people WHERE team = '{team}'"),
    ("What is the highest {number} in {city}?", "SELECT MAX({number}) FROM people WHERE city = '{city}'"),
    ("Who has {number} above {limit}?", "SELECT name FROM people WHERE {number} > {limit}"),
    ("How many have {number} below {limit}?", "SELECT COUNT(*) FROM people WHERE {number} < {limit}"),
    ("What is the {number} of all in {city}?", "SELECT name, {number} FROM people WHERE city = '{city}'"),
    ("Whose {number} is not known?", "SELECT name FROM people WHERE {number} IS NULL"),
)  # fmt: skip


@dataclass(frozen=True)
class Question(Problem):
    """A question in words (`prompt`) about the database that `schema` makes; `reference` answers it."""

    schema: str = ""


def read_questions(path: Path) -> ProblemSet:
    """The questions of a JSON Lines file. Raises `ProblemError` naming a bad row."""
    rows = read_rows(path, '{"id": …, "question": …, "schema": …, "query": …}')
    return ProblemSet(
        (
            Question(
                row.text("id"),
                row.text("question"),
                "",
                schema=row.text("schema"),
                reference=row.text("query"),
            )
            for row in rows
        ),
        name=path.stem,
    )


def make_questions(seed: int) -> list[dict[str, str]]:
    """Make every question once, in a random order, each about a table of its own."""
    rng = random.Random(seed)
    limits = {"salary": range(1000, 9000, 500), "age": range(20, 65, 3)}
    words = [
        {"team": team, "city": city, "number": number, "limit": limit}
        for team, city in product(TEAMS, CITIES)
        for number, each in limits.items()
        for limit in each
    ]
    queries = {ask.format(**one): query.format(**one) for ask, query in TEMPLATES for one in words}
    asked = sorted(queries)
    rng.shuffle(asked)
    return [
        {"id": f"{seed}/{number}", "question": one, "schema": make_table(rng), "query": queries[one]}
        for number, one in enumerate(asked)
    ]


def make_table(rng: random.Random) -> str:
    """SQL that makes the table `people` with twelve rows; some numbers are not known."""
    lines = ["CREATE TABLE people (name TEXT, team TEXT, city TEXT, salary INTEGER, age INTEGER);"]
    for number in range(12):
        known = [rng.randrange(1000, 9000, 50), rng.randrange(20, 65)]
        salary, age = ("NULL" if rng.random() < 0.2 else str(one) for one in known)
        row = f"'p{number}', '{rng.choice(TEAMS)}', '{rng.choice(CITIES)}', {salary}, {age}"
        lines.append(f"INSERT INTO people VALUES ({row});")
    return "\n".join(lines)


def main() -> None:
    """Write train.jsonl and dev.jsonl, which share no question."""
    questions = make_questions(seed=0)
    held_out = len(questions) // 4
    for name, part in (("train", questions[held_out:]), ("dev", questions[:held_out])):
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in part), encoding="utf-8")


if __name__ == "__main__":
    main()
