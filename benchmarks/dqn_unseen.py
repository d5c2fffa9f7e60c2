"""Problems that the recipe `dqn_code_generation` never trains on: which are reachable, and which it solves.

    .venv/bin/python benchmarks/dqn_unseen.py --mbpp ../shared/data/mbpp/mbpp.jsonl --reachable
    .venv/bin/python benchmarks/dqn_unseen.py --mbpp ../shared/data/mbpp/mbpp.jsonl --json FILE

The problems are the three of `classic_evaluation`, and all of MBPP (Austin et al. 2021) that the token MDP
can write: the types are those of generated functions, the grammar accepts MBPP's own solution, and that has a
value on 40 inputs, MBPP's own and others that are drawn as those of generated functions are. The first 20
tests are visible, the others are hidden; a program that passes both solves the problem. A problem whose
tests the solution of an earlier one passes is left out, and so is what a training problem's solution solves.
Generated functions that pass all visible or all hidden tests of one of the problems take no part in training.

A problem is reachable by composition where some program that passes its tests has only parts that
demonstrations have, too (`composition.py`). The programs that are tried are MBPP's own, the
generated functions that were left out because they solve the problem, and those that a run wrote.
A run that is finished is not repeated, and the record of earlier runs in FILE is kept.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import composition
from greenward import api
from greenward.common.errors import ProblemError
from greenward.grading.judge import Grader, build_grader
from greenward.problems.catalog import load_suite
from greenward.problems.formats import save_json
from greenward.problems.problem import Case, Comparison, Problem, stable_hash
from greenward.runs.reading import read_evaluations, read_metrics, read_summary
from greenward.tasks.token_mdp import task
from greenward.tasks.token_mdp.grammar import Vocabulary
from greenward.tasks.token_mdp.problems import TokenProblem, check_reachable, token_problems
from greenward.tasks.token_mdp.report import UNSEEN
from greenward.tasks.token_mdp.small_functions import inputs_like, small_functions
from greenward.tasks.token_mdp.task import DQNRecipe

VISIBLE, TESTS, SECONDS = 20, 40, 2
Lacking = dict[str, list[str]]
ARMS: dict[str, tuple[str, ...]] = {
    "the recipe": (),
    "without compositions": ("problems.compositions=0",),
    "without relations of the tests": ("environment.relations=false",),
    "without word dropout": ("algorithm.word_dropout=0",),
    "without practice": ("training.practice_per_step=0",),
    "as it was before these parts": (
        "training.practice_per_step=0", "problems.compositions=0", "environment.relations=false",
        "algorithm.word_dropout=0", "algorithm.pretraining_updates=6000", "training.updates_per_step=6",
    ),
    "1 step": ("algorithm.n_step=1",),
    "without prioritised replay": ("algorithm.prioritized=false",),
    "without any episode": ("training.num_episodes=50", "training.updates_per_step=1"),
}  # fmt: skip


def unseen_problems(mbpp: Path, vocabulary: Vocabulary, max_steps: int) -> list[Problem]:
    """The problems, in the order of the files."""
    found = list(load_suite("classic_evaluation"))
    trained = list(load_suite("classic_training"))
    for line in mbpp.read_text(encoding="utf-8").splitlines():
        try:
            with_tests = of_mbpp(json.loads(line), vocabulary, max_steps)
        except (ProblemError, ValueError, SyntaxError, AttributeError, KeyError, ArithmeticError):
            continue  # its types, tests or solution are others than those the token MDP knows
        except (LookupError, TypeError, TimeoutError, RecursionError):
            continue  # its solution has no value on an input within the time
        if not any(same_function(one, with_tests) for one in (*trained, *found)):
            found.append(with_tests)
    return found


def of_mbpp(row: dict[str, Any], vocabulary: Vocabulary, max_steps: int) -> Problem:
    cases, name = [], ""
    for text in row["test_list"]:
        compared = ast.parse(text).body[0].test  # type: ignore[attr-defined]
        name = compared.left.func.id
        inputs = tuple(as_json(ast.literal_eval(one)) for one in compared.left.args)
        cases.append(Case(inputs, as_json(ast.literal_eval(compared.comparators[0]))))
    definition = next(
        one for one in ast.parse(row["code"]).body if isinstance(one, ast.FunctionDef) and one.name == name
    )
    head = f"def {name}({', '.join(one.arg for one in definition.args.args)}):\n"
    reference = f"{ast.unparse(definition)}\n"
    problem = Problem(
        f"mbpp/{row['task_id']}", row["text"], name, tuple(cases), starter_code=head, reference=reference
    )
    (one,) = token_problems([problem], vocabulary)
    check_reachable(one, vocabulary, max_steps)
    function, rng = function_of(problem), random.Random(stable_hash(reference))
    signal.alarm(SECONDS)
    try:
        while len(cases) < TESTS:
            inputs = inputs_like(problem, rng)
            cases.append(Case(inputs, as_json(function(*inputs))))
    finally:
        signal.alarm(0)
    made = Problem(
        problem.task_id, problem.prompt, name, tuple(cases[:VISIBLE]), hidden_cases=tuple(cases[VISIBLE:]),
        starter_code=head, reference=reference, comparison=Comparison(tolerance=0.0),
    )  # fmt: skip
    token_problems([made], vocabulary)
    return made


def as_json(value: Any) -> Any:
    """The value with lists for tuples, which the token MDP does not tell apart."""
    return [as_json(one) for one in value] if isinstance(value, list | tuple) else value


def out_of_time(*_: object) -> None:
    raise TimeoutError


def function_of(problem: Problem) -> Any:
    namespace: dict[str, Any] = {}
    exec(problem.reference, namespace)  # a suite's own solution
    return namespace[problem.entry_point]


def same_function(one: Problem, other: Problem) -> bool:
    """Whether the solution of `one` passes the tests of `other`."""
    if len(one.cases[0].args) != len(other.cases[0].args):
        return False
    function = function_of(one)
    signal.alarm(SECONDS)
    try:
        return all(function(*case.args) == case.expected for case in (*other.cases, *other.hidden_cases))
    except Exception:
        return False
    finally:
        signal.alarm(0)


def lacking(recipe: DQNRecipe, problems: Sequence[Problem], written: Mapping[str, set[str]]) -> Lacking:
    """For each problem the parts of its nearest program that no demonstration has: none where reachable.

    `written` are programs of runs that passed the hidden tests, by problem.
    """
    vocabulary = Vocabulary(recipe.environment.vocab_size, recipe.environment.extra_tokens)
    most = recipe.environment.max_steps
    mdp = task.build_mdp(recipe, list(load_suite("classic_training")), training=True, unseen=problems)
    known: set[composition.Part] = set()
    for one, tokens in mdp.corpus:
        if len(tokens) <= most:
            shown = [vocabulary.lexemes[token] for token in tokens]
            known |= composition.parts(one.grammar, vocabulary, shown)
    used = {one.task_id for one, _ in mdp.corpus}
    left_out = [one for one in small_functions(recipe.problems.compositions) if one.task_id not in used]
    found = {}
    for one in token_problems(problems, vocabulary):
        sources = [one.problem.reference, *written.get(one.task_id, ())]
        sources += [other.reference for other in left_out if same_function(other, merged(one))]
        programs = [lexemes for text in sources for lexemes in (as_lexemes(one, text, vocabulary, most))]
        parts = (composition.parts(one.grammar, vocabulary, lexemes) for lexemes in programs)
        nearest = min((composition.missing(program, [known]) for program in parts), key=len)
        found[one.task_id] = sorted(f"{' '.join(map(str, where))}: {token}" if isinstance(where, tuple)
                                    else f"{where} {token}" for where, token in nearest)  # fmt: skip
    return found


def merged(one: TokenProblem) -> Problem:
    return replace(one.problem, hidden_cases=one.hidden.cases if one.hidden else ())


def as_lexemes(one: TokenProblem, source: str, vocabulary: Vocabulary, most: int) -> Iterator[list[str]]:
    """The program as it is and with its only variable inlined, where the problem's grammar accepts it."""
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.FunctionDef)
    head = f"def {definition.name}({ast.unparse(definition.args)}):\n"
    problem = replace(one.problem, entry_point=definition.name, starter_code=head, reference=source)
    try:
        lexemes = check_reachable(replace(one, problem=problem), vocabulary, most)
    except ProblemError:
        return
    yield lexemes
    if (shorter := composition.inlined(lexemes)) != lexemes:
        yield shorter


def train(run: Path, suite: Path, seed: int, overrides: Sequence[str]) -> None:
    usual = (
        f"seed={seed}", f"problems.held_out={suite}", "problems.verify_references=false",
        "training.checkpoint_interval_steps=100000", "evaluation.samples=1", "evaluation.random_search=false",
        "evaluation.at_start=false", "evaluation.eval_interval_steps=100000",
    )  # fmt: skip
    api.train("dqn_code_generation", [*usual, *overrides], output=run, quiet=True, resume=True)


def greedy_programs(run: Path, suite: str | None) -> dict[str, str]:
    """By problem, the greedy programs of a run that pass the hidden tests."""
    rows = read_evaluations(run, suite)[-1]["greedy_rows"]
    return {row["task_id"]: row["code"] for row in rows if row["status"] == "passed"}


def passing(programs: Mapping[str, str], problems: Sequence[TokenProblem], grader: Grader) -> dict[str, str]:
    """The programs that pass the visible tests: hidden ones alone may leave out what MBPP's own ask for."""
    asked = [(one.problem, programs[one.task_id]) for one in problems if one.task_id in programs]
    verdicts = grader.grade(asked)
    return {one.task_id: code for (one, code), verdict in zip(asked, verdicts, strict=True) if verdict.passed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mbpp", type=Path, required=True, help="mbpp.jsonl, as its authors published it")
    parser.add_argument("--output", type=Path, default=Path("runs/dqn_unseen"))
    parser.add_argument("--arms", nargs="*", default=[*ARMS][:1], choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of every arm")
    parser.add_argument("--reachable", action="store_true", help="tell what is reachable, and train nothing")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, out_of_time)
    recipe = api.load_recipe("dqn_code_generation", options.set)
    assert isinstance(recipe, DQNRecipe)
    vocabulary = Vocabulary(recipe.environment.vocab_size, recipe.environment.extra_tokens)
    problems = unseen_problems(options.mbpp, vocabulary, recipe.environment.max_steps)
    options.output.mkdir(parents=True, exist_ok=True)
    suite = options.output / "unseen.json"
    save_json(problems, suite)
    is_there = options.json is not None and options.json.is_file()
    known: dict[str, Any] = json.loads(options.json.read_text()) if is_there else {}
    found: dict[str, dict[str, Any]] = known.get("arms", {})
    written: dict[str, set[str]] = {}
    for arm, seed in () if options.reachable else product(options.arms, options.seeds):
        run = options.output / f"{arm.replace(' ', '_')}_{seed}"
        summary = read_summary(run)
        if summary is None or summary["status"] != "finished":
            train(run, suite, seed, [*options.set, *ARMS[arm]])
        with build_grader(recipe.sandbox) as grader:
            asked = token_problems(problems, vocabulary)
            unseen = passing(greedy_programs(run, UNSEEN), asked, grader)
        for name, code in unseen.items():
            written.setdefault(name, set()).add(code)
        rows = read_metrics(run / "metrics.jsonl").rows
        found.setdefault(arm, {})[str(seed)] = {
            "classics": len(greedy_programs(run, None)),
            "unseen": sorted(unseen),
            "seconds": sum(float(row["time/step"]) for row in rows),
        }
        print(arm, seed, found[arm][str(seed)], flush=True)
        if options.json:
            options.json.write_text(json.dumps(known | {"arms": found}, indent=1) + "\n")
    earlier = known.get("lacking", {})  # which knew what other runs wrote
    parts = {
        name: min(one, earlier.get(name, one), key=len)
        for name, one in lacking(recipe, problems, written).items()
    }
    for name, one in parts.items():
        print(f"{name}: {'reachable' if not one else 'lacks ' + '; '.join(one)}")
    print(f"{sum(not one for one in parts.values())} of {len(parts)} are reachable by composition")
    if options.json:
        options.json.write_text(json.dumps({"lacking": parts, "arms": found}, indent=1) + "\n")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
