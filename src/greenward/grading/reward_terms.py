"""Defines the shipped reward functions by name: of tests, code, edits and formats (see docs/rewards.md).

Similarity is that of Ratcliff and Obershelp, as `difflib` computes it, in bounded time: `difflib` needs
cubic time for repetitive texts. Faster libraries compute another number, the Indel ratio, which follows from
the longest common subsequence: for `aba` and `bca` it is 4 / 6 (`ba`), but 2 / 6 here, because the first of
the longest blocks (`a`) leaves nothing to the right of it. Known edits are those from the problem's program
to its reference.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from greenward.common.errors import ConfigError, ProblemError
from greenward.config.recipe import ModelRecipe, RewardedRecipe
from greenward.config.sections import RewardTermConfig
from greenward.grading import quality
from greenward.grading.answers import final_text
from greenward.grading.edits import (
    MAX_ANSWER_CHARS,
    PATH,
    Edit,
    EditError,
    apply_edits,
    editable_files,
    form_of,
    parse_edits,
    written_edits,
)
from greenward.grading.judge import Grader
from greenward.grading.matching import BoundedMatcher
from greenward.grading.quality import bound_names
from greenward.grading.rewards import GradedAnswer, RewardFunction, RewardTerm, Scores, combine, per_answer
from greenward.grading.style import contextual_style
from greenward.grading.user_rewards import KINDS, CustomReward, made_up_answers
from greenward.grading.verdict import EDIT_ERRORS, Family, Status
from greenward.problems.problem import ProblemSet, function_in
from greenward.problems.python_source import parse_bounded
from greenward.sandbox.protocol import Outcome, RunResult
from greenward.tasks import TASKS, find_task

MAX_WORK = 4_000_000  # comparisons: some tenths of a second


def similarity(first: Sequence[Any], second: Sequence[Any]) -> float | None:
    """2 M / T for M elements in matching blocks of T in all; 1 for two empty sequences.

    Equal to `difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()`; None where that takes
    more than `MAX_WORK` comparisons, or both together are longer.
    """
    if first == second:
        return 1.0
    if len(first) + len(second) > MAX_WORK:
        return None
    matcher = BoundedMatcher(first, second, MAX_WORK)
    ratio = matcher.ratio()
    return None if matcher.gave_up else ratio


MAX_COMPARED_EDITS = 30
MAX_COMPARED_LINES = 5_000
MOST_WITHOUT_EFFECT = 0.9  # for known lines at a wrong place
MAX_DIFF_LINES = 5_000
_TAGS = ("<think>\n", "\n</think>\n", "\n<answer>", "</answer>")


@per_answer
def format_partial(answer: GradedAnswer) -> float:
    """0.25 for each tag that occurs once, less 0.001 for each character outside of them, at least 0.

    The answer may share a line with its tags, as the prompt for labels asks. Outside is what stands before
    `<think>`, between `</think>` and `<answer>`, and after `</answer>`; white space behind a
    tag that closes does not count. The tags of the reasoning stand on lines of their own; `<answer>` begins a
    line.
    """
    text = answer.text
    there = [text.count(tag) == 1 for tag in _TAGS]
    outside = len(text.partition(_TAGS[0])[0]) if there[0] else 0
    if there[1] and there[2]:
        behind = "\n" + text.partition(_TAGS[1])[2]  # neighbouring tags share their newline
        outside += len(behind.partition(_TAGS[2])[0].strip())
    if there[-1]:
        outside += len(text.partition(_TAGS[-1])[2].strip())
    return max(0.0, 0.25 * sum(there) - 0.001 * outside)


@per_answer
def format_strict(answer: GradedAnswer) -> float:
    """1 for reasoning and then the answer, each once in its tags and not empty, and nothing else."""
    text = answer.text
    if any(text.count(tag.strip()) != 1 for tag in _TAGS):
        return 0.0
    thought, _, rest = text.rstrip().partition("\n</think>\n<answer>")
    start, written = _TAGS[0], rest.removesuffix(_TAGS[-1])
    is_whole = thought.startswith(start) and rest.endswith(_TAGS[-1])
    return float(is_whole and bool(thought[len(start) :].strip() and written.strip()))


@per_answer
def edit_format(answer: GradedAnswer) -> float:
    """1 for edits that can be read and applied, 0.5 if they can be read and each change something, else 0.

    Edits are read after the reasoning (`<think>` … `</think>`), here and in `edit_similarity`.
    """
    edits = _edits_of(answer)
    if not edits or any(edit.search == edit.replace for edit in edits):
        return 0.0
    return 0.5 if answer.verdict.status in EDIT_ERRORS else 1.0


@per_answer
def edit_similarity(answer: GradedAnswer) -> float | None:
    """How similar the edits are to the known ones; edits that change nothing count for nothing.

    Edits are paired by similarity, the most similar first, whatever their order. A pair scores the mean of
    the similarities of its two sides, as sequences of lines; the sum is divided by the larger number of
    edits. Edits that cannot be applied score at most 0.9, and edits of more than 5,000 lines 0. None for a
    problem without a reference.
    """
    problem = answer.problem
    if not problem.reference:
        return None
    edits = _edits_of(answer)
    form = form_of(final_text(answer.completion, answer.begun))
    known = parse_edits(written_edits(problem, problem.reference, form), form)
    score = similarity_of_edits(edits, known, problem.path or PATH)
    return score if answer.code is not None else min(score, MOST_WITHOUT_EFFECT)


def similarity_of_edits(given: Sequence[Edit], known: Sequence[Edit], path: str) -> float:
    """The score of `edit_similarity`; edits without a path are of the file `path`, or of the one before."""
    if max(len(given), len(known)) > MAX_COMPARED_EDITS or not (given and known):
        return 0.0
    if sum(edit.search.count("\n") + edit.replace.count("\n") for edit in given) > MAX_COMPARED_LINES:
        return 0.0

    def with_paths(edits: Sequence[Edit]) -> list[tuple[str, Edit]]:
        now, found = path, []
        for edit in edits:
            now = edit.path or now
            found.append((now, edit))
        return found

    pairs = []
    for one, (place, edit) in enumerate(with_paths(given)):
        for other, (known_place, wanted) in enumerate(with_paths(known)):
            if place == known_place and edit.search != edit.replace:
                sides = ((edit.search, wanted.search), (edit.replace, wanted.replace))
                alike = (similarity(*(side.split("\n") for side in pair)) or 0.0 for pair in sides)
                pairs.append((sum(alike) / 2, -one, -other))
    total, taken = 0.0, set[tuple[str, int]]()
    for score, one, other in sorted(pairs, reverse=True):
        if not taken & {("given", one), ("known", other)}:
            taken |= {("given", one), ("known", other)}
            total += score
    return total / max(len(given), len(known))


@per_answer
def function_similarity(answer: GradedAnswer) -> float | None:
    """How similar the function is to that of the reference, as sequences of characters without indentation.

    What takes too long to compare counts as unlike. None where answers are whole programs, and without a
    reference.
    """
    both = (function_in(answer.problem, code) for code in (answer.code or "", answer.problem.reference))
    given, known = ("\n".join(map(str.strip, (one or "").splitlines())) for one in both)
    return (similarity(given, known) or 0.0) if known else None


@per_answer
def swe_rl(answer: GradedAnswer, *, tags: bool = True) -> float | None:
    """SWE-RL's reward (Wei et al. 2025, arXiv 2502.18449): similarity of diffs, −1 for a wrong format.

    It is the mean over all changed files of the similarity of the two unified diffs by characters, with three
    lines of context; 0 for a file that only one side changes or that has more than 5,000 lines. With `tags`,
    the answer must have `<think>`, `</think>`, `<solution>` and `</solution>` once each with a thought, as
    published. Edits that cannot be applied, an answer that changes nothing and one without code are a wrong
    format. Unlike the published code, lines to search for that occur twice are refused. None for a problem
    without a reference.
    """
    problem, own = answer.problem, answer.problem.path or PATH
    if not problem.reference:
        return None
    before = editable_files(problem)
    if answer.code is None or (tags and not _has_tags(answer.text)):
        return -1.0
    after = {own: answer.code, **{path: text or "" for path, text in answer.files}}
    if all(before.get(path) == text for path, text in after.items()):
        return -1.0
    oracle = {own: problem.reference, **(problem.reference_files or {})}
    return swe_rl_similarity(before, oracle, after)


def swe_rl_similarity(
    before: Mapping[str, str], oracle: Mapping[str, str], predicted: Mapping[str, str]
) -> float:
    """The mean over all files that either changes of the similarity of the two diffs, 0 where one is empty.

    1 where neither changes a file, as published.
    The texts of files by path: at first, as they should be, as they are. A diff that is too large to be
    compared in bounded time counts as unlike.
    """
    wanted, found = ({path: _diff(before.get(path, ""), text) for path, text in one.items()}
                     for one in (oracle, predicted))  # fmt: skip
    changed = {path for diffs in (wanted, found) for path, diff in diffs.items() if diff}
    scores = [
        (similarity(found[path], wanted[path]) or 0.0) if found.get(path) and wanted.get(path) else 0.0
        for path in changed
    ]
    return sum(scores) / len(scores) if scores else 1.0


def regression() -> RewardFunction:
    """The share of the tests that the program at first passes which still pass; None if it passes none."""
    passed_before: dict[str, tuple[bool, ...]] = {}

    def of_answer(answer: GradedAnswer) -> float | None:
        before = passed_before.get(answer.problem.task_id, ())
        kept = [now for now, then in zip(answer.verdict.tests_passed, before, strict=False) if then]
        return sum(kept) / len(kept) if kept else None

    def score(answers: Sequence[GradedAnswer], grader: Grader) -> Scores:
        problems = {answer.problem.task_id: answer.problem for answer in answers}
        programs = [
            (problem, next(iter(editable_files(problem).values())))
            for task_id, problem in problems.items()
            if task_id not in passed_before
        ]
        for (problem, _), verdict in zip(programs, grader.grade(programs), strict=True):
            if verdict.status.family is not Family.INFRASTRUCTURE:
                passed_before[problem.task_id] = verdict.tests_passed
        return list(map(of_answer, answers))

    return score


def _edits_of(answer: GradedAnswer) -> list[Edit]:
    """The edits of an answer, none if they cannot be read.

    They are what the extraction applied, or could not apply. Edits that lead to another program are none:
    they stand in the reasoning, or have another form than the one that was asked for.
    """
    problem, own = answer.problem, answer.problem.path or PATH
    text = final_text(answer.completion, answer.begun)
    try:
        files = {**editable_files(problem), **(problem.test_files or {})}
        edits = parse_edits(text, form_of(text), files)
    except (EditError, ProblemError):
        return []
    try:
        program = apply_edits(files, edits, own).get(own, files[own])
    except EditError:
        program = None
    return edits if program == answer.code else []


def _has_tags(text: str) -> bool:
    tags = ("<think>", "</think>", "<solution>", "</solution>")
    if len(text) > MAX_ANSWER_CHARS or any(text.count(tag) != 1 for tag in tags):
        return False
    return bool(text.partition("<think>")[2].partition("</think>")[0].strip())


def _diff(before: str, after: str) -> str:
    """A unified diff without the names of the files, as SWE-RL makes it; empty for very long files."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MAX_DIFF_LINES:
        return ""
    return "\n".join(list(difflib.unified_diff(old, new, lineterm=""))[2:])


def tests(answers: list[GradedAnswer]) -> list[float]:
    """What the recipe's default `rewards` give: the fraction of tests passed, plus 1 when all pass."""
    return weighted(answers, rewards=[{"name": "tests"}])


def weighted(answers: list[GradedAnswer], *, rewards: Sequence[Mapping[str, Any]]) -> list[float]:
    """The reward of a recipe: the weighted sum of the terms in its section `rewards`."""
    return [reward.total for reward in combine(_terms(json.dumps(rewards)), answers, _grader())]


@cache
def _terms(rewards: str) -> tuple[RewardTerm, ...]:
    return tuple(make_reward(RewardTermConfig.model_validate(row)) for row in json.loads(rewards))


@cache
def _grader() -> Grader:
    return Grader(workers=1)


@per_answer
def tests_passed(answer: GradedAnswer, *, bonus: float = 1.0) -> float:
    """The fraction of tests passed, plus `bonus` when all pass. An answer that cheats gets 0."""
    if answer.verdict.status is Status.CHEATING:
        return 0.0
    return answer.verdict.fraction_passed + bonus * answer.verdict.passed


@per_answer
def all_tests(answer: GradedAnswer) -> float:
    """1 when every test passes, else 0."""
    return float(answer.verdict.passed)


def execution_ladder(*, output: bool = False) -> RewardFunction:
    """Whether the program runs: +1 with a result, +0.5 without, −0.5 syntax error, −1 otherwise.

    The result of a program is its output, if that is not white space. Where the problem asks for a function,
    it is that function at top level, and output counts for nothing, unless `output` makes it the result
    there, too. An answer without code is a syntax error, and a status of `sys.exit()` other than 0 a runtime
    error. **Tests are not run**: `def add(*_): 0` earns +1. Use it together with `tests`, or to study reward
    hacking.
    """

    def of_run(answer: GradedAnswer, run: RunResult) -> float | None:
        if run.outcome is Outcome.COMPLETED:
            wanted = answer.problem.entry_point.partition(".")[0]
            of_function = wanted and not output
            has_result = defines(answer.code or "", wanted) if of_function else bool(run.stdout.strip())
            return 1.0 if has_result else 0.5
        if run.outcome is Outcome.SYNTAX_ERROR:
            return -0.5
        return None if run.outcome is Outcome.INFRASTRUCTURE else -1.0

    def score(answers: Sequence[GradedAnswer], grader: Grader) -> Scores:
        runs = iter(grader.run_programs([answer.code for answer in answers if answer.code is not None]))
        return [-0.5 if answer.code is None else of_run(answer, next(runs)) for answer in answers]

    return score


def defines(code: str, name: str) -> bool:
    """Whether the top level of a program binds `name`: by a definition, an assignment or an import."""
    tree = parse_bounded(code)
    return tree is not None and any(name in bound_names(node) for node in tree.body)


@per_answer
def code_format(answer: GradedAnswer) -> float:
    """1 when the answer holds code that parses and defines the entry point at top level, else 0.

    Where an answer is one function of a file, this function counts and not the rest of the file.

    Where no entry point is asked for, any statement will do.
    """
    wanted = answer.problem.entry_point.partition(".")[0]
    function = function_in(answer.problem, answer.code or "")
    if function is not None:
        in_class = f"class File:\n{function}" if function[:1].isspace() else function
        return float(bool(function) and parse_bounded(in_class) is not None)
    tree = parse_bounded(answer.code or "")
    statements = tree.body if tree is not None else []
    return float(any(not wanted or getattr(node, "name", None) == wanted for node in statements))


def code_score(*, correctness: float = 0.8, readability: float = 0.2) -> RewardFunction:
    """The mean of correctness (share of tests passed, 0 for cheating) and readability, by their weights.

    Its parts are reported beside it, as `reward/correctness` and `reward/readability`.

    Raises `ConfigError` for weights that are negative or all 0.
    """
    if min(correctness, readability) < 0 or correctness + readability <= 0:
        raise ConfigError(
            "the weights of code_score must not be negative and must sum to more than 0, "
            f"found correctness {correctness} and readability {readability}."
        )
    parts = {"correctness": tests_passed(bonus=0.0), "readability": quality.readability()}

    def score(answers: Sequence[GradedAnswer], grader: Grader) -> Mapping[str, Scores]:
        scores: dict[str, Any] = {name: part(answers, grader) for name, part in parts.items()}
        pairs = zip(*scores.values(), strict=True)
        means = [(correctness * a + readability * b) / (correctness + readability) for a, b in pairs]
        return {"code_score": means, **scores}

    return score


SHIPPED_REWARDS: Mapping[str, Callable[..., RewardFunction]] = {
    "tests": tests_passed,
    "all_tests": all_tests,
    "execution_ladder": execution_ladder,
    "code_quality": quality.code_quality,
    "format": code_format,
    "readability": quality.readability,
    "code_score": code_score,
    "format_partial": format_partial,
    "format_strict": format_strict,
    "edit_format": edit_format,
    "edit_similarity": edit_similarity,
    "swe_rl": swe_rl,
    "regression": regression,
    "function_similarity": function_similarity,
    "contextual_style": contextual_style,
}
"""The function of each name, which is called with the options of a recipe (its keyword-only parameters)."""


_SUMMARIES = ("mean", "std", "min", "max")
"""What metrics have under `reward/` besides the terms."""


def make_reward(
    config: RewardTermConfig,
    own: Mapping[str, Callable[..., RewardFunction]] = MappingProxyType({}),
    **training: Any,
) -> RewardTerm:
    """The term that a recipe names: one of the task's `own`, a shipped one, or `module:function`.

    `training` is what `CustomReward` is told of the training.

    Raises `ConfigError` for an unknown name or option (naming the nearest), `RewardError` for a
    function that cannot be imported or called.
    """
    if ":" in config.name:
        return CustomReward(config, taken={*SHIPPED_REWARDS, *own, *_SUMMARIES}, **training)
    known_rewards = {**SHIPPED_REWARDS, **own}
    if config.name not in known_rewards:  # a caller without a recipe may name those of any task
        known_rewards |= {name: made for task in TASKS for name, made in find_task(task).rewards.items()}
    shipped = known_rewards.get(config.name)
    if shipped is None:
        raise ConfigError(
            f"there is no reward term {config.name!r}.",
            remedy=_nearest(config.name, list(known_rewards)) + " Your own: 'module:function'.",
        )
    parameters = inspect.signature(shipped).parameters.values()
    types = get_type_hints(shipped)
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    options = {}
    for option, value in config.options.items():
        if option not in known:
            raise ConfigError(
                f"the reward term {config.name!r} has no option {option!r}.", remedy=_nearest(option, known)
            )
        try:
            expected = TypeAdapter(types[option], config=ConfigDict(allow_inf_nan=False))
            options[option] = expected.validate_python(value)
        except ValidationError as error:
            place = ".".join(map(str, (option, *error.errors()[0]["loc"])))
            raise ConfigError(
                f"the option {place} of the reward term {config.name!r}: {error.errors()[0]['msg']}, "
                f"found {value!r:.80}."
            ) from None
    return RewardTerm(config.name, config.weight, shipped(**options))


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."


def build_rewards(
    recipe: ModelRecipe,
    problems: ProblemSet,
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    *,
    own: Mapping[str, Callable[..., RewardFunction]] = MappingProxyType({}),
) -> tuple[RewardTerm, ...]:
    """The reward terms; none for supervised training.

    By the name of the term, `functions` are the caller's, and `own` those of the task (`Task.rewards`).
    The user's functions are called once with made-up answers to the first problems.
    Raises `ConfigError` for an unknown name or option, and `RewardError` for a function that cannot be
    imported, needs data that there is not, or fails.
    """
    if not isinstance(recipe, RewardedRecipe):
        return ()
    row_columns = list(dict.fromkeys(name for problem in problems for name in problem.columns or ()))
    terms = []
    for config in recipe.rewards:
        term = make_reward(
            config,
            own,
            function=functions.get(config.name),
            row_columns=row_columns,
            max_steps=recipe.training.max_steps,
            steps_per_epoch=len(problems) / recipe.training.prompts_per_step,
        )
        if isinstance(term, CustomReward):
            term.dry_run(_made_up(recipe, problems))
        terms.append(term)
    return tuple(terms)


def kept_sources(terms: Sequence[RewardTerm]) -> dict[str, str]:
    """The sources of the user's functions among the terms, by `reward_NAME`, as a part of a file's name."""
    sources: dict[str, str] = {}
    for term in terms:
        if isinstance(term, CustomReward) and term.source is not None:
            name = "reward_" + re.sub(r"\W", "_", term.name.partition(":")[2] or term.name, flags=re.ASCII)
            while name in sources:
                name += "_"
            sources[name] = term.source
    return sources


def try_rewards(
    terms: Sequence[RewardTerm], recipe: ModelRecipe, problems: ProblemSet, grader: Grader
) -> None:
    """Call the terms that were not called yet on made-up answers, and keep the scores in `tried`."""
    for term in terms:
        if not term.tried:
            term.tried = term.score(_made_up(recipe, problems), grader)


def _made_up(recipe: ModelRecipe, problems: ProblemSet) -> list[GradedAnswer]:
    """Answers to the first problems, in groups as in a training, with every kind in each."""
    assert isinstance(recipe, RewardedRecipe)
    group = recipe.training.num_generations
    asked = problems[: min(2, recipe.training.prompts_per_step)]
    return [answer for one in asked for answer in made_up_answers(one, -(-KINDS // group) * group)]
