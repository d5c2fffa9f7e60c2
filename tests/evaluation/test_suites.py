"""Prompts character by character as the published harnesses have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from greenward.common.errors import ConfigError, ProblemError
from greenward.config.loading import load_recipe
from greenward.environments.prompts import BODY_STOPS, SCRIPT_STOPS, PromptRenderer
from greenward.evaluation.suites import HELD_OUT, renderer_for, stable_subset
from greenward.problems.problem import Assertion, Case, Check, Problem, ProblemSet, StdioCase
from greenward.tasks.vulnerability.data import vulnerability_pairs


class Characters:
    def __init__(self, chat: bool = False, begins_answers: bool = False) -> None:
        self.chat_template = "template" if chat else None
        self.begins_answers = begins_answers

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [ord(character) for character in ("^" if add_special_tokens else "") + text]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))

    def render_chat(self, messages: Sequence[dict[str, Any]], *, begun: str = "") -> list[int]:
        return self.encode(
            "".join(f"<{message['role']}>{message['content']}" for message in messages) + begun
        )


def mbpp(number: int) -> Problem:
    tests = tuple(f"assert f{number}({i}) == {i}" for i in range(3))
    return Problem(
        f"Mbpp/{number}",
        f"Task {number}.",
        f"f{number}",
        tests=tuple(map(Assertion, tests)),
        starter_code=f'"""\nTask {number}.\n{tests[0]}\n"""\n',
        reference=f"def f{number}(x):\n    return x\n",
    )


HUMANEVAL = Problem(
    "HumanEval/0",
    "Twice\nn.",  # the docstring spells the line end out
    "double",
    tests=(Check("check(double)"),),
    starter_code='def double(n):\n    """Twice\\nn."""\n',
)


def seen(renderer: PromptRenderer, problem: Problem) -> str:
    return Characters().decode(renderer.prompt_ids(problem))


def test_base_models_continue_the_docstring_with_the_first_assertion():
    assert (
        seen(PromptRenderer(Characters(), prompt="evalplus"), mbpp(11))
        == '^"""\nTask 11.\nassert f11(0) == 0\n"""\n'
    )


def test_humaneval_is_continued_as_it_stands():
    assert seen(PromptRenderer(Characters(), prompt="evalplus"), HUMANEVAL) == "^" + HUMANEVAL.starter_code


def test_three_examples_are_put_as_the_paper_does():
    text = seen(PromptRenderer(Characters(), prompt="evalplus", shots=[mbpp(2), mbpp(3)]), mbpp(11))
    tests = {number: "\n".join(f"assert f{number}({i}) == {i}" for i in range(3)) for number in (2, 3, 11)}
    you = "You are an expert Python programmer, and here is your task:"
    assert text == (
        f"^{you} Task 2. Your code should pass these tests:\n\n{tests[2]}\n[BEGIN]\n"
        "def f2(x):\n    return x\n[DONE]\n\n"
        f"{you} Task 3. Your code should pass these tests:\n\n{tests[3]}\n[BEGIN]\n"
        "def f3(x):\n    return x\n[DONE]\n\n"
        f"{you} Task 11. Your code should pass these tests:\n\n{tests[11]}\n[BEGIN]\n"
    )


def test_chat_models_go_on_after_the_answer_that_evalplus_begins():
    renderer = PromptRenderer(Characters(chat=True, begins_answers=True), prompt="evalplus")
    assert seen(renderer, mbpp(11)) == (
        "<user>Please provide a self-contained Python script that solves the following problem in a markdown "
        'code block:\n```\n"""\nTask 11.\nassert f11(0) == 0\n"""\n```\n'
        "Below is a Python script with a self-contained function that solves the problem and passes "
        "corresponding tests:\n```python\n"
    )
    assert renderer.stop_strings(mbpp(11)) == ("\nif __name__", "\ndef main(", "\nprint(", "\n```\n")
    found = renderer.extracted(mbpp(11), "def f11(x):\n    return x\n```\nIt returns x.")
    assert found.code == "def f11(x):\n    return x\n"


def test_servers_get_the_instruction_that_evalplus_sends_them():
    renderer = PromptRenderer(Characters(chat=True), prompt="evalplus", system_prompt="Be brief.")
    assert seen(renderer, mbpp(11)) == (
        "<system>Be brief.<user>Please provide a self-contained Python script that solves the following "
        'problem in a markdown code block:\n```python\n"""\nTask 11.\nassert f11(0) == 0\n"""\n```'
    )
    assert renderer.stop_strings(mbpp(11)) == ()


DOUBLE = Problem("LiveCodeBench/1", "Read n.\nPrint 2n.", "", tests=(StdioCase("1", "2"),))


def test_livecodebench_asks_for_a_program_with_its_system_message():
    renderer = PromptRenderer(Characters(chat=True, begins_answers=True), prompt="livecodebench")
    assert seen(renderer, DOUBLE) == (
        "<system>You are an expert Python programmer. You will be given a question (problem specification) and "
        "will generate a correct Python program that matches the specification and passes all tests."
        "<user>### Question:\nRead n.\nPrint 2n.\n\n"
        "### Format: Read the inputs from stdin solve the problem and write the answer to stdout (do not "
        "directly test on the sample inputs). Enclose your code within delimiters as follows. Ensure that when "
        "the python program runs, it reads the inputs, runs the algorithm and writes output to STDOUT.\n"
        "```python\n# YOUR CODE HERE\n```\n\n### Answer: (use the provided format with backticks)\n\n"
    )
    with_starter = replace(DOUBLE, starter_code="class Solution:\n    def f(self, n):\n", tests=())
    assert (
        "### Format: You will use the following starter code to write the solution to the problem and "
        "enclose your code within delimiters.\n```python\nclass Solution:\n    def f(self, n):\n```\n\n"
        in seen(renderer, with_starter)
    )


@pytest.mark.parametrize(
    ("problems", "prompt"),
    [
        ([DOUBLE], "livecodebench"),
        ([replace(DOUBLE, task_id="APPS/1")], "livecodebench"),
        ([replace(HUMANEVAL, task_id="BigCodeBench/1")], "bigcodebench"),
        ([HUMANEVAL, mbpp(11)], "evalplus"),
    ],
)
def test_the_published_prompt_of_a_suite_is_the_usual_one(problems, prompt):
    renderer, _ = renderer_for("file.jsonl", None, Characters(chat=True), ProblemSet(problems))
    assert renderer.prompt == prompt
    ours, _ = renderer_for(
        "file.jsonl", None, Characters(chat=True), ProblemSet(problems), prompt="greenward"
    )
    assert ours.prompt == "greenward"


def test_the_form_of_answers_can_be_chosen():
    buggy = ProblemSet([replace(HUMANEVAL, buggy_code="def f(x):\n    return 1\n")])
    for answer in ("search_replace", "diff"):
        renderer, _ = renderer_for("file.jsonl", None, Characters(chat=True), buggy, answer=answer)
        assert renderer.answer == answer and "def f(x):" in renderer.prompt_text(buggy[0])
        with pytest.raises(ProblemError, match="no program to edit"):
            renderer_for("file.jsonl", None, Characters(chat=True), ProblemSet([HUMANEVAL]), answer=answer)
    trained = load_recipe("grpo_code_repair", ["environment.answer=diff"])
    for answer, form in ((None, "diff"), ("function", "function"), ("search_replace", "search_replace")):
        renderer, _ = renderer_for(HELD_OUT, trained, Characters(chat=True), buggy, answer=answer)
        assert renderer.answer == form
    agent = load_recipe("grpo_agent_repair")
    with pytest.raises(ConfigError, match="agents change files by tools"):
        renderer_for(HELD_OUT, agent, Characters(chat=True), buggy, answer="diff")


@pytest.mark.parametrize("prompt", ["evalplus", "livecodebench", "bigcodebench"])
@pytest.mark.parametrize("style", ["completion", "chat"])
def test_published_prompts_ask_for_repairs_and_labels_as_we_do(prompt, style):
    repair = replace(HUMANEVAL, buggy_code="def f(x):\n    return 1\n")
    label = vulnerability_pairs("held_out")[0]
    for problem in (repair, label):
        published, ours = (
            PromptRenderer(Characters(chat=True), prompt=one, style=style) for one in (prompt, "greenward")
        )
        assert seen(published, problem) == seen(ours, problem)


def test_a_problem_whose_starter_code_does_not_say_what_is_asked_is_described():
    bare = Problem("p", "Twice n.", "double", tests=(Case((1,), 2),), starter_code="def double(n):\n")
    assert seen(PromptRenderer(Characters(), prompt="evalplus"), bare) == "^# Twice n.\ndef double(n):\n"


def test_answers_end_at_the_first_stop_string():
    renderer = PromptRenderer(Characters(), prompt="evalplus")
    body = "    return 2 * n\n"
    assert renderer.extracted(HUMANEVAL, f"{body}\ndef other():\n    pass\n").code == (
        HUMANEVAL.starter_code + body
    )
    script = "def helper():\n    pass\n\ndef f11(x):\n    return x\n"
    assert renderer.extracted(mbpp(11), f"{script}\nassert f11(1) == 1\nprint(2)").code == (
        mbpp(11).starter_code + script
    )


def test_with_examples_the_answer_is_a_whole_program_up_to_done():
    renderer = PromptRenderer(Characters(), prompt="evalplus", shots=[mbpp(2)])
    program = "def f11(x):\n    return x\n"
    assert renderer.extracted(mbpp(11), f"{program}[DONE]\n\nYou are an expert").code == program
    nothing = renderer.extracted(mbpp(11), "\n[DONE]")
    assert nothing.code is None
    assert nothing.reason


def test_only_stop_strings_that_fit_every_problem_end_the_drawing():
    renderer = PromptRenderer(Characters(), prompt="evalplus")
    assert renderer.common_stops([HUMANEVAL]) == BODY_STOPS
    assert renderer.common_stops([HUMANEVAL, mbpp(11)]) == SCRIPT_STOPS


def test_examples_go_with_base_models_and_assertions_only():
    with pytest.raises(ConfigError, match="base models"):
        PromptRenderer(Characters(chat=True), prompt="evalplus", style="chat", shots=[mbpp(2)])
    with pytest.raises(ConfigError, match="assertions"):
        PromptRenderer(Characters(), prompt="evalplus", shots=[mbpp(2)]).prompt_text(HUMANEVAL)
    assert PromptRenderer(Characters(chat=True), prompt="evalplus", shots=[mbpp(2)]).style == "completion"


def problem_set(sizes: dict[str, int]) -> ProblemSet:
    return ProblemSet(
        Problem(task_id=f"{tag}/{number}", prompt="", entry_point="f", tags=(tag,))
        for tag, size in sizes.items()
        for number in range(size)
    )


def test_choice_does_not_depend_on_the_order_of_the_set_and_keeps_it() -> None:
    problems = problem_set({"lists": 50, "strings": 30})
    chosen = [problem.task_id for problem in stable_subset(problems, 20)]
    assert chosen == [problem.task_id for problem in problems if problem.task_id in chosen]
    assert chosen == [problem.task_id for problem in stable_subset(ProblemSet(reversed(problems)), 20)][::-1]


def test_each_tag_has_its_share() -> None:
    chosen = stable_subset(problem_set({"lists": 200, "strings": 100, "numbers": 20}), 32)
    counts = Counter(problem.tags[0] for problem in chosen)
    assert len(chosen) == 32
    assert abs(counts["lists"] - 20) <= 1
    assert abs(counts["strings"] - 10) <= 1
    assert abs(counts["numbers"] - 2) <= 1


def test_larger_choice_contains_the_smaller() -> None:
    problems = problem_set({"lists": 60, "strings": 25, "odd": 1})
    small, large = ({p.task_id for p in stable_subset(problems, count)} for count in (12, 30))
    assert small < large


def test_all_are_chosen_when_there_are_no_more() -> None:
    problems = problem_set({"lists": 5})
    assert stable_subset(problems, 5) is problems
    assert stable_subset(problems, 500) is problems


def test_the_versions_of_a_function_stay_together() -> None:
    problems = vulnerability_pairs("held_out")
    for count in (10, 60, 200):
        pairs = Counter(problem.label.pair for problem in stable_subset(problems, count) if problem.label)
        assert set(pairs.values()) == {2} and len(pairs) == count // 2


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    ("starter", "kept"), [(None, ""), ("def f11(x):\n", "def f11(x):\n")], ids=["a docstring", "a signature"]
)
def test_a_written_answer_is_read_as_the_program_that_it_stands_for(
    chat: bool, starter: str | None, kept: str
) -> None:
    problem = mbpp(11) if starter is None else replace(mbpp(11), starter_code=starter)
    renderer = PromptRenderer(Characters(chat=chat))
    answer = renderer.written(problem, problem.reference)
    assert answer.startswith("```python\n" if chat else problem.reference.removeprefix(kept))
    code = renderer.extracted(problem, answer).code
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["f11"](5) == 5
