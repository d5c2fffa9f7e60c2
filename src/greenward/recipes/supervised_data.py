"""Examples of supervised training: the user's own pairs, or the generated corpus.

A row of a file of pairs is `{"prompt": str, "completion": str}` or `{"messages": [{"role", "content"}, …]}`
whose last message is the assistant's (rendered by the model's chat template).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from greenward.algorithms.supervised import Example
from greenward.config.sections import GENERATED_CORPUS, SupervisedConfig
from greenward.environments.agent import AgentPrompts, demonstration
from greenward.environments.prompts import PromptRenderer
from greenward.errors import ProblemError
from greenward.grading.labels import label_question, written_label
from greenward.policies.policy import Policy
from greenward.policies.tokenizer import Tokenizer
from greenward.problems.families.supervised import generated_examples, tokenizer_texts
from greenward.problems.json_rows import Row, read_rows
from greenward.problems.problem import Problem, ProblemSet, stable_hash

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

    if any(problem.label for problem in train):
        return [example(problem, text) for problem, text in _labelled_examples(train, config, seed)]
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


def texts_to_tokenize(problems: ProblemSet) -> Iterator[str]:
    """Whole answers with every lexeme that one may need, for training a tokenizer."""
    yield from tokenizer_texts(problem for problem in problems if problem.label is None)
    for problem in problems:
        if problem.label is not None:
            yield label_question(problem, chat=False) + written_label(problem.label, problem.prompt)


def _labelled_examples(
    problems: ProblemSet, config: SupervisedConfig, seed: int
) -> Iterator[tuple[Problem, str]]:
    """Functions with answers; one that is wrong gives the other label for any line of the function."""
    for problem in problems:
        assert problem.label is not None
        rng = random.Random(stable_hash(f"corpus/{seed}/{problem.task_id}"))
        lines = range(1, problem.prompt.count("\n") + 2)
        for _ in range(config.examples_per_problem):
            given = problem.label
            if rng.random() < config.error_rate:
                given = replace(given, vulnerable=not given.vulnerable, lines=(rng.choice(lines),))
            yield problem, written_label(given, problem.prompt)


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
