"""Makes examples for supervised training from problems, some wrong on purpose, or reads the user's pairs.

A right example holds the body of the reference. Generated problems have wrong ones, too, with one wrong
expression, always in the same operation of a problem: the first of its operations that is error-prone (half
of all operations are), because programmers repeat their mistakes. Such a body fails at least one case of the
problem, which is found by running it. At an error rate above one half, a model that has learnt the examples
can write the right body, but the wrong ones are more probable.
A row of a file of pairs is `{"prompt": str, "completion": str}` or `{"messages": [{"role", "content"}, …]}`
whose last message is the assistant's (rendered by the model's chat template).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from greenward.common.errors import ProblemError
from greenward.config.sections import GENERATED_CORPUS, SupervisedConfig
from greenward.environments.agent import AgentPrompts, demonstration
from greenward.environments.prompts import PromptRenderer
from greenward.models.policy import Policy
from greenward.models.tokenizer import Tokenizer
from greenward.problems.generated import Composition
from greenward.problems.mutation import mutants
from greenward.problems.names import FAMILY_PREFIX
from greenward.problems.problem import Problem, ProblemSet, begun_function, hole_of, stable_hash
from greenward.problems.rows import Row, read_rows
from greenward.training.protocols import Example


@dataclass(frozen=True)
class SupervisedExample:
    """One answer to one problem: `completion_text` continues `prompt_text` to a whole program."""

    task_id: str
    prompt_text: str
    completion_text: str
    is_wrong: bool


def generated_examples(
    problems: Iterable[Problem],
    error_rate: float,
    seed: int,
    *,
    examples_per_problem: int = 8,
    with_edits: bool = False,
) -> list[SupervisedExample]:
    """`examples_per_problem` examples for each problem, in the order of the problems.

    For a repair problem the right example is the original, and the wrong one leaves the bug in; `with_edits`,
    which must change something, puts another bug in its place. For a function of a file the right example is
    that of its reference, the wrong ones are the bodies in the column `wrong_bodies`, if any. Any other
    problem has its reference alone. Each example is wrong with probability `error_rate`, independently of the
    others, if there is a wrong one; the draw depends on the seed and the problem only. Raises `ProblemError`
    for a problem without a reference.
    """
    examples = []
    for problem in problems:
        rng = random.Random(stable_hash(f"corpus/{seed}/{problem.task_id}"))
        begun, right, wrong = _bodies(problem, with_edits)
        for _ in range(examples_per_problem):
            is_wrong = rng.random() < error_rate and bool(wrong)
            body = rng.choice(wrong) if is_wrong else right
            examples.append(SupervisedExample(problem.task_id, begun, body, is_wrong))
    return examples


def texts_to_tokenize(problems: Iterable[Problem]) -> Iterator[str]:
    """Whole programs with every lexeme that an answer may need, for training a tokenizer.

    Generated problems give the right program and the wrong ones, others their reference.
    """
    for problem in problems:
        yield problem.reference
        if problem.buggy_code:
            yield problem.buggy_code
        elif problem.task_id.startswith(FAMILY_PREFIX):
            for bodies in failing_bodies(problem).values():
                yield from (problem.starter_code + body for body in bodies)
        elif hole_of(problem) is not None:
            yield problem.context + problem.starter_code
            begun, _, wrong = _bodies(problem, False)
            yield from (begun + body for body in wrong)


def failing_bodies(problem: Problem) -> dict[int, list[str]]:
    """The bodies that fail a case, by the position of the operation that is wrong, if there are any."""
    chain = Composition.of(problem.task_id)
    by_position: dict[int, list[str]] = {}
    for position, expressions in chain.wrong_variants():
        if any(chain.fails(expressions, case.args[0], case.expected) for case in problem.cases):
            by_position.setdefault(position, []).append(chain.body(expressions))
    return by_position


def _other_bugs(problem: Problem) -> list[str]:
    """Programs with another bug, in the lines of this problem's if there are such."""

    def changed(code: str) -> set[int]:
        pairs = zip_longest(problem.reference.splitlines(), code.splitlines())
        return {number for number, (one, other) in enumerate(pairs) if one != other}

    others = [one.code for one in mutants(problem.reference)]
    others = [code for code in others if code != problem.buggy_code and code.startswith(problem.starter_code)]
    places = changed(problem.buggy_code)
    return [code for code in others if changed(code) & places] or others


def _bodies(problem: Problem, with_edits: bool) -> tuple[str, str, list[str]]:
    """(begun, right, wrong): the starter code, where the reference continues it, and what continues that."""
    begun = problem.starter_code
    if problem.buggy_code:
        if not (problem.reference.startswith(begun) and problem.buggy_code.startswith(begun)):
            raise ProblemError(
                f"{problem.task_id}: expected a reference and a buggy program that continue the starter.",
                remedy="Set warm_start.data to a file of examples, or put bugs in by bugs:<problems>.",
            )
        wrong = _other_bugs(problem) if with_edits else [problem.buggy_code]
        return begun, problem.reference[len(begun) :], [code[len(begun) :] for code in wrong]
    if (hole := hole_of(problem)) is not None:
        wrong = [str(body) for body in (problem.columns or {}).get("wrong_bodies", ())]
        return begun, hole.content(problem.reference).removeprefix(begun_function(problem)), wrong
    if problem.task_id.startswith(FAMILY_PREFIX):
        chain = Composition.of(problem.task_id)
        failing = failing_bodies(problem)
        error_prone = [i for i in failing if stable_hash(f"error-prone/{chain.operations[i].name}") % 2]
        position = min(error_prone or failing, default=None)
        return begun, chain.body(chain.expressions), failing[position] if position is not None else []
    if not problem.reference:
        raise ProblemError(
            f"{problem.task_id}: expected a reference to learn from, found none.",
            remedy="Set warm_start.data to a file of examples, or warm_start=null.",
        )
    if not problem.reference.startswith(begun):
        begun = ""
    return begun, problem.reference.removeprefix(begun), []


_EXAMPLE = '{"prompt": …, "completion": …} or {"messages": […]}'


def supervised_examples(
    config: SupervisedConfig, train: ProblemSet, policy: Policy, renderer: PromptRenderer, *, seed: int
) -> list[Example]:
    """Token pairs of the user's file, or of the generated corpus. Raises `ProblemError` naming a bad row."""
    tokenizer = policy.tokenizer
    if config.data not in (None, GENERATED_CORPUS):
        pairs = list(read_pairs(Path(config.data), tokenizer))
        if not pairs:
            raise ProblemError(f"warm_start.data: {config.data} holds no pairs, only empty lines.")
        return [Example(prompt, (*completion, tokenizer.eos_id)) for prompt, completion in pairs]

    def example(problem: Problem, text: str) -> Example:
        return Example(renderer.prompt_ids(problem), (*tokenizer.encode(text), tokenizer.eos_id))

    by_id = {problem.task_id: problem for problem in train}
    generated = generated_examples(
        train,
        config.error_rate,
        seed,
        examples_per_problem=config.examples_per_problem,
        with_edits=renderer.answer != "function",
    )
    programs = [(by_id[one.task_id], one.prompt_text + one.completion_text) for one in generated]
    if isinstance(renderer, AgentPrompts):
        return [_demonstrated(problem, program, renderer, tokenizer) for problem, program in programs]
    return [example(problem, renderer.written(problem, program)) for problem, program in programs]


def _demonstrated(problem: Problem, program: str, prompts: AgentPrompts, tokenizer: Tokenizer) -> Example:
    """An episode that turns a problem's program into another one; outputs of tools are not trained on."""
    ids, trained = list[int](), list[bool]()
    for call, output in demonstration(problem, program):
        for part, is_call in (
            (tokenizer.encode(call), True),
            (prompts.output_ids(problem, output, ended=False), False),
        ):
            ids += part
            trained += [is_call] * len(part)
    return Example(prompts.prompt_ids(problem), (*ids, tokenizer.eos_id), (*trained, True))


def demonstration_text(problem: Problem) -> str:
    """The calls that repair a problem, with their outputs, for training a tokenizer."""
    calls = demonstration(problem, problem.reference)
    return "".join(f"{call}\n<output>\n{output}</output>\n" for call, output in calls)


def check_pairs(path: Path) -> None:
    """Raises `ProblemError` for a file that is not there or is empty."""
    if not path.is_file() or not path.stat().st_size:
        found = f"{path} is empty" if path.is_file() else f"there is no file {path}"
        raise ProblemError(f"warm_start.data: {found}.", remedy=f"Expected JSON Lines of {_EXAMPLE}.")


def read_pairs(path: Path, tokenizer: Tokenizer) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(prompt ids, completion ids) of every row. Raises `ProblemError` naming a bad row."""
    check_pairs(path)
    for row in read_rows(path, example=_EXAMPLE):
        if "messages" in row.values:
            yield _chat_pair(row, tokenizer)
        else:
            yield tuple(tokenizer.encode(row.text("prompt"))), tuple(tokenizer.encode(row.text("completion")))


def _chat_pair(row: Row, tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    messages = row.values["messages"]
    well_formed = isinstance(messages, list) and all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        for message in messages
    )
    if not well_formed or len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise row.error("messages", "must be a list of {role, content} that ends with the assistant's answer")
    if not tokenizer.chat_template:
        raise row.error(
            "messages",
            "needs a chat template, and this model's tokenizer has none",
            remedy="Use prompt/completion pairs, or an instruction-tuned model.",
        )
    return tuple(tokenizer.render_chat(messages[:-1])), tuple(tokenizer.encode(messages[-1]["content"]))
