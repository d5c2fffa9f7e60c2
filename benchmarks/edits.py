"""How many answers that are edits are read and applied per second, and how long hostile ones take.

    .venv/bin/python benchmarks/edits.py

Typical answers: a sentence, then SEARCH/REPLACE blocks in a fence, or a diff, that change one to three places
of a program of 60 lines. The seconds are CPU time of one process; of three rounds the fastest counts. Hostile
answers of 1 and 10 MB are read, applied and scored by the reward terms of repair.
Writes `results/edits.json`.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from greenward.grading.edits import AnswerForm, extract_edited, written_edits
from greenward.grading.reward_terms import edit_similarity, format_partial, format_strict, similarity, swe_rl
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Verdict
from greenward.problems.problem import Problem

RESULTS = Path(__file__).parent / "results" / "edits.json"
ANSWERS, ROUNDS = 2_000, 3
FORMS: tuple[AnswerForm, ...] = ("search_replace", "diff")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the numbers are kept")
    options = parser.parse_args()
    record: dict[str, Any] = {"processor": platform.processor() or platform.machine(), "typical": {}}
    for form in FORMS:
        answers = typical_answers(form)
        seconds = min(cpu_seconds(lambda answers=answers, form=form: apply_all(answers, form))
                      for _ in range(ROUNDS))  # fmt: skip
        record["typical"][form] = {
            "answers_per_second": round(len(answers) / seconds),
            "characters": round(sum(len(text) for _, text in answers) / len(answers)),
        }
        print(f"{form}: {len(answers) / seconds:,.0f} answers per second")
    record["hostile_seconds"] = {name: round(seconds, 3) for name, seconds in hostile_seconds().items()}
    for name, seconds in record["hostile_seconds"].items():
        print(f"{name}: {seconds:.3f} s")
    options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def typical_answers(form: AnswerForm) -> list[tuple[Problem, str]]:
    """Answers of one form to problems of 60 lines, the same for every run."""
    rng = random.Random(0)
    found = []
    for number in range(ANSWERS):
        lines = [f"    value_{line} = compute(value_{line - 1}, {rng.randrange(100)})" for line in range(58)]
        program = "\n".join(["def f(value_0):", *lines, "    return value_57", ""])
        changed = list(lines)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(lines))
            changed[place] = changed[place].replace("compute", "compute_again")
        repaired = "\n".join(["def f(value_0):", *changed, "    return value_57", ""])
        problem = Problem(f"typical/{number}", "", "f", buggy_code=program, reference=repaired)
        edits = written_edits(problem, repaired, form)
        found.append((problem, f"The wrong function is called.\n\n```python\n{edits}```\n"))
    return found


def apply_all(answers: list[tuple[Problem, str]], form: AnswerForm) -> None:
    for problem, text in answers:
        assert extract_edited(text, problem, form).code == problem.reference


def hostile_seconds() -> dict[str, float]:
    """The CPU time that each hostile answer takes, in all."""
    program = "a = 1\n" * 100_000 + "".join(f"b{line} = 1\n" for line in range(1000))
    problem = Problem("hostile", "", "f", buggy_code=program, reference=program.replace("b7 = 1", "b7 = 2"))
    small = Problem(
        "small", "", "f", buggy_code="def f():\n    return 1\n", reference="def f():\n    return 2\n"
    )
    far = "".join(f"<<<<<<< SEARCH\nb{line} = 1\n=======\n>>>>>>> REPLACE\n" for line in range(1000))
    answers: dict[str, tuple[Problem, str]] = {
        "10 MB of one line": (problem, "x" * 10_000_000),
        "10 MB of markers": (problem, "<<<<<<< SEARCH\n" * 700_000),
        "1 MB of markers": (problem, "<<<<<<< SEARCH\n" * 60_000),
        "1 MB of one marker": (problem, "<" * 1_000_000),
        "1,000 blocks far down in 200,000 lines": (problem, far),
        "17,000 blocks": (problem, far * 17),
        "a function of 1 MB": (small, _replaced("    return " + "1 + " * 250_000 + "1\n")),
        "100,000 equal lines": (small, _replaced("    x = 1\n" * 100_000)),
        "4,000 lines in a diff": (small, _replaced("".join(f"    x{n} = 1\n" for n in range(4000)))),
    }
    found = {name: cpu_seconds(lambda one=one: score(*one)) for name, one in answers.items()}
    for name, texts in {"aa": ("a" * 1_900, "a" * 1_901), "ab": ("ab" * 3000, "ba" * 3000)}.items():
        found[f"similarity of repetitions of {name[:2]!r}"] = cpu_seconds(
            lambda texts=texts: similarity(*texts)
        )
    return found


def _replaced(text: str) -> str:
    return f"<<<<<<< SEARCH\n    return 1\n=======\n{text}>>>>>>> REPLACE\n"


def score(problem: Problem, text: str) -> None:
    """All that greenward does with an answer but run it."""
    found = extract_edited(text, problem, "search_replace")
    answer = GradedAnswer(problem, "", text, found.code, Verdict(found.status), files=found.files)
    for reward in (format_partial(), format_strict(), edit_similarity(), swe_rl(tags=False)):
        reward([answer], None)  # type: ignore[arg-type]  # these need no grader


def cpu_seconds(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
