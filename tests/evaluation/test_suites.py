"""Prompts character by character as the published harnesses have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from greenward.common.errors import ConfigError
from greenward.evaluation.suites import BODY_STOPS, SCRIPT_STOPS, SuitePrompts, stable_subset
from greenward.problems.problem import Assertion, Case, Check, Problem, ProblemSet
from greenward.tasks.vulnerability.data import vulnerability_pairs


class Characters:
    def __init__(self, chat: bool = False) -> None:
        self.chat_template = "template" if chat else None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [ord(character) for character in ("^" if add_special_tokens else "") + text]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(map(chr, ids))

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))


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


def seen(renderer: SuitePrompts, problem: Problem) -> str:
    return Characters().decode(renderer.prompt_ids(problem))


def test_base_models_continue_the_docstring_with_the_first_assertion():
    assert seen(SuitePrompts(Characters()), mbpp(11)) == '^"""\nTask 11.\nassert f11(0) == 0\n"""\n'


def test_humaneval_is_continued_as_it_stands():
    assert seen(SuitePrompts(Characters()), HUMANEVAL) == "^" + HUMANEVAL.starter_code


def test_three_examples_are_put_as_the_paper_does():
    text = seen(SuitePrompts(Characters(), shots=[mbpp(2), mbpp(3)]), mbpp(11))
    tests = {number: "\n".join(f"assert f{number}({i}) == {i}" for i in range(3)) for number in (2, 3, 11)}
    you = "You are an expert Python programmer, and here is your task:"
    assert text == (
        f"^{you} Task 2. Your code should pass these tests:\n\n{tests[2]}\n[BEGIN]\n"
        "def f2(x):\n    return x\n[DONE]\n\n"
        f"{you} Task 3. Your code should pass these tests:\n\n{tests[3]}\n[BEGIN]\n"
        "def f3(x):\n    return x\n[DONE]\n\n"
        f"{you} Task 11. Your code should pass these tests:\n\n{tests[11]}\n[BEGIN]\n"
    )


def test_chat_models_get_the_instruction_with_the_prompt_in_a_block():
    renderer = SuitePrompts(Characters(chat=True), system_prompt="Be brief.")
    assert seen(renderer, mbpp(11)) == (
        "<system>Be brief.<user>Please provide a self-contained Python script that solves the following "
        'problem in a markdown code block:\n```\n"""\nTask 11.\nassert f11(0) == 0\n"""\n```'
    )
    assert renderer.stop_strings(mbpp(11)) == ()


def test_a_problem_whose_starter_code_does_not_say_what_is_asked_is_described():
    bare = Problem("p", "Twice n.", "double", tests=(Case((1,), 2),), starter_code="def double(n):\n")
    assert seen(SuitePrompts(Characters()), bare) == "^# Twice n.\ndef double(n):\n"


def test_answers_end_at_the_first_stop_string():
    renderer = SuitePrompts(Characters())
    body = "    return 2 * n\n"
    assert renderer.extracted(HUMANEVAL, f"{body}\ndef other():\n    pass\n").code == (
        HUMANEVAL.starter_code + body
    )
    script = "def helper():\n    pass\n\ndef f11(x):\n    return x\n"
    assert renderer.extracted(mbpp(11), f"{script}\nassert f11(1) == 1\nprint(2)").code == (
        mbpp(11).starter_code + script
    )


def test_with_examples_the_answer_is_a_whole_program_up_to_done():
    renderer = SuitePrompts(Characters(), shots=[mbpp(2)])
    program = "def f11(x):\n    return x\n"
    assert renderer.extracted(mbpp(11), f"{program}[DONE]\n\nYou are an expert").code == program
    nothing = renderer.extracted(mbpp(11), "\n[DONE]")
    assert nothing.code is None
    assert nothing.reason


def test_only_stop_strings_that_fit_every_problem_end_the_drawing():
    renderer = SuitePrompts(Characters())
    assert renderer.common_stops([HUMANEVAL]) == BODY_STOPS
    assert renderer.common_stops([HUMANEVAL, mbpp(11)]) == SCRIPT_STOPS


def test_examples_go_with_base_models_and_assertions_only():
    with pytest.raises(ConfigError, match="base models"):
        SuitePrompts(Characters(chat=True), style="chat", shots=[mbpp(2)])
    with pytest.raises(ConfigError, match="assertions"):
        SuitePrompts(Characters(), shots=[mbpp(2)]).prompt_text(HUMANEVAL)
    assert SuitePrompts(Characters(chat=True), shots=[mbpp(2)]).style == "completion"


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
