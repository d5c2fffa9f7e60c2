"""Verifies every problem that greenward makes or ships, in the sandbox, and prints what there is.

    python benchmarks/verify_problems.py [--workers 2] [--seed 0]

Every reference must pass and every wrong body of the examples must fail. Exits with 1 if not.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections import Counter

from greenward.config.section import FamiliesConfig
from greenward.grading.judge import Grader
from greenward.grading.verdict import Verdict
from greenward.problems.catalog import load_suite
from greenward.problems.generated import OPERATIONS, compositions, generate, split
from greenward.problems.names import SHIPPED
from greenward.problems.problem import Problem, ProblemSet
from greenward.sandbox.protocol import Limits
from greenward.tasks.corpus import failing_bodies, generated_examples, texts_to_tokenize

LEXEME = re.compile(r"\w+|[^\w\s]|\n *")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    config = FamiliesConfig(seed=options.seed)

    problems, seconds = timed(lambda: generate(config))
    train, held_out = split(problems, config.held_out, config.seed)
    examples, example_seconds = timed(lambda: generated_examples(train, 0.7, config.seed))
    templates = {operation.template for operation in OPERATIONS.values()}
    print(f"operations       {len(OPERATIONS)} of {len(templates)} templates")
    print(f"type-correct     {[sum(1 for _ in compositions(d)) for d in (1, 2, 3)]} at depth 1, 2, 3")
    kept = Counter(tag for problem in problems for tag in problem.tags)
    print(f"problems         {kept['depth_1']} at depth 1, {kept['depth_2']} at depth 2, in {seconds:.2f} s")
    print(f"split            {len(train)} for training, {len(held_out)} held out")
    cases = [len(problem.cases) for problem in problems]
    print(f"cases            {min(cases)} to {max(cases)} a problem")
    print_lexemes(problems)
    right = sum(not example.is_wrong for example in examples) / len(examples)
    print(f"supervised       {len(examples)} examples, {right:.1%} right, in {example_seconds:.2f} s")

    references = [(p, p.reference) for name in SHIPPED for p in load_suite(name)]
    references += [(p, p.reference) for p in problems]
    failing = [(p, body) for p in problems for bodies in failing_bodies(p).values() for body in bodies]
    wrong = [(p, p.starter_code + body) for p, body in failing]
    with Grader(Limits(), workers=options.workers) as grader:
        bad = report("references", references, grader, must_pass=True)
        bad += report("wrong bodies", wrong, grader, must_pass=False)
    return 1 if bad else 0


def timed(action):  # type: ignore[no-untyped-def]
    """(result, wall seconds)."""
    start = time.perf_counter()
    result = action()
    return result, time.perf_counter() - start


def print_lexemes(problems: ProblemSet) -> None:
    bodies = [len(LEXEME.findall(p.reference[len(p.starter_code) :])) for p in problems]
    prompts = [len(LEXEME.findall(p.starter_code)) for p in problems]
    distinct = {lexeme for text in texts_to_tokenize(problems) for lexeme in LEXEME.findall(text)}
    print(f"lexemes          {len(distinct)} distinct, wrong expressions included")
    print(f"  of a body      {statistics.mean(bodies):.1f} on average, {max(bodies)} at most")
    print(f"  of a prompt    {statistics.mean(prompts):.1f} on average, {max(prompts)} at most")


def report(what: str, answers: list[tuple[Problem, str]], grader: Grader, *, must_pass: bool) -> int:
    """Print how the answers fared; the number that fared otherwise than they must."""
    verdicts, seconds = timed(lambda: grader.grade(answers))
    statuses = Counter(verdict.status.value for verdict in verdicts)
    print(f"{what:<16} {len(answers)} run in {seconds:.1f} s: {dict(statuses)}")
    bad = [
        (problem, verdict)
        for (problem, _), verdict in zip(answers, verdicts, strict=True)
        if not as_expected(verdict, must_pass)
    ]
    for problem, verdict in bad[:10]:
        print(f"  {problem.task_id}: {verdict.status.value} {verdict.first_failure}")
    return len(bad)


def as_expected(verdict: Verdict, must_pass: bool) -> bool:
    """Whether an answer was judged, and as it must be; a sandbox that failed has judged nothing."""
    return verdict.status.value != "infrastructure" and verdict.passed == must_pass


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
