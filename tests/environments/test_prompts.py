from dataclasses import replace

import pytest

from greenward.common.errors import ConfigError
from greenward.environments.prompts import PromptRenderer, question
from greenward.grading.judge import Grader
from greenward.problems.problem import Assertion, Case, Problem, StdioCase
from tiny_model import CharacterTokenizer

STARTER = 'def double(n):\n    """Return twice n."""\n'
PROBLEM = Problem("double", "Return twice n.", "double", starter_code=STARTER)


BASE, CHAT = PromptRenderer(CharacterTokenizer()), PromptRenderer(CharacterTokenizer(chat=True))


def test_completion_style_continues_the_signature():
    assert CharacterTokenizer().decode(BASE.prompt_ids(PROBLEM)) == STARTER
    text = BASE.completion_text(CharacterTokenizer().encode("    return 2 * n\n"))
    assert BASE.extracted(PROBLEM, text).code == STARTER + "    return 2 * n\n"


def test_a_specification_missing_from_the_starter_code_is_put_before_it_as_a_comment():
    prompt, starter = "Return twice n.\nIt may be negative.", "def double(n):\n"
    text = BASE.prompt_text(replace(PROBLEM, prompt=prompt, starter_code=starter))
    assert text == "# Return twice n.\n# It may be negative.\ndef double(n):\n"
    there = 'def double(n):\n    """Return twice n.\n\n    It may be negative.\n    """\n'
    problem = replace(PROBLEM, prompt="Return twice n.\n\nIt may be negative.", starter_code=there)
    assert BASE.prompt_text(problem) == there


@pytest.mark.parametrize("end", ["", "\n", "    ", "\n    ", "\n\n        \n"])
def test_fences_stand_on_lines_of_their_own_however_the_code_ends(end):
    code = 'def double(n):\n    """Return twice n."""'
    starter = CHAT.prompt_text(replace(PROBLEM, starter_code=code + end))
    repair = CHAT.prompt_text(replace(PROBLEM, buggy_code=code + end))
    for text in (starter, repair):
        lines = text.splitlines()
        assert [line for line in lines if "`" in line and line.startswith("```")][-1:] == ["```"]
        assert lines[lines.index("```") - 1] == '    """Return twice n."""'
    assert "# Right:\n" in BASE.prompt_text(replace(PROBLEM, buggy_code=code + end))


def test_chat_style_asks_in_a_user_message_and_reads_the_fenced_block():
    renderer = PromptRenderer(CharacterTokenizer(chat=True), system_prompt="Be brief.")
    assert renderer.style == "chat"
    asked = CharacterTokenizer().decode(renderer.prompt_ids(PROBLEM))
    assert asked.startswith("<system>Be brief.<user>")
    assert STARTER in asked
    assert asked.endswith("<assistant>")
    answer = "Sure:\n```python\ndef double(n):\n    return n + n\n```\nDone."
    assert (renderer.extracted(PROBLEM, answer).code or "").strip() == ("def double(n):\n    return n + n")


def test_prose_without_code_is_no_answer_in_chat_style():
    found = CHAT.extracted(PROBLEM, "I do not know.")
    assert found.code is None and "no definition of double" in found.reason


def test_chat_style_without_a_template_is_refused():
    with pytest.raises(ConfigError, match="no chat template"):
        PromptRenderer(CharacterTokenizer(), style="chat")


def test_a_program_that_reads_standard_input_is_asked_for_as_one():
    program = Problem("sum", "Print the sum of two numbers.", "", tests=(StdioCase("1 2", "3"),))
    assert CHAT.prompt_text(program) == (
        "Write a Python program that solves this problem. It reads the input from standard input and prints the "
        "output to standard output. Answer with the whole program in one ```python code block.\n\n"
        "Print the sum of two numbers."
    )
    text = "# Reads standard input, prints to standard output.\n# Print the sum of two numbers.\n"
    assert question(program, "completion") == text


def test_a_chat_asks_for_a_program_where_there_is_no_function():
    program = Problem("sum", "Define add and sub.", "", tests=(Assertion("assert add(1, 2) == 3"),))
    assert CHAT.prompt_text(program) == (
        "Write this Python program. Answer with the whole program in one ```python code block.\n\n"
        "```python\n# Define add and sub.\n```"
    )


BUGGY = Problem(
    "double#1",
    "Return twice n.",
    "double",
    tests=(Case((3,), 6),),
    starter_code=STARTER,
    buggy_code=f"{STARTER}    return 3 * n\n",
    failing_test="double(3): expected 6, got 9",
)


def test_a_buggy_program_stands_in_comments_after_what_it_does_not_say_itself():
    program = '# Wrong:\n# def double(n):\n#     """Return twice n."""\n#     return 3 * n\n# Right:\n'
    assert BASE.prompt_text(BUGGY) == program + STARTER
    bare = replace(BUGGY, starter_code="", buggy_code="def double(n):\n    return 3 * n\n")
    text = BASE.prompt_text(bare)
    assert text == "# Return twice n.\n# Wrong:\n# def double(n):\n#     return 3 * n\n# Right:\n"


def test_the_failing_test_is_shown_where_that_is_asked_for():
    for chat in (False, True):
        shown = PromptRenderer(CharacterTokenizer(chat=chat), show_failing_test=True)
        hidden = PromptRenderer(CharacterTokenizer(chat=chat))
        assert BUGGY.failing_test in shown.prompt_text(BUGGY)
        assert BUGGY.failing_test not in hidden.prompt_text(BUGGY)
        unknown = replace(BUGGY, failing_test="")
        assert shown.prompt_text(unknown) == hidden.prompt_text(unknown)


def test_a_chat_is_asked_to_fix_the_bug():
    text = CHAT.prompt_text(BUGGY)
    assert text.startswith("Fix the bug in this Python function.")
    assert f"```python\n{BUGGY.buggy_code}```" in text


def test_suites_show_the_buggy_program_too():
    for chat in (False, True):
        tokenizer = CharacterTokenizer(chat=chat)
        assert PromptRenderer(tokenizer, prompt="evalplus").prompt_text(BUGGY) == PromptRenderer(
            tokenizer
        ).prompt_text(BUGGY)


@pytest.mark.parametrize("starter", [STARTER, ""])
def test_repairs_are_read_in_both_styles_and_pass(starter):
    problem = replace(BUGGY, starter_code=starter)
    right = f"{STARTER}    return 2 * n\n"
    completion = BASE.extracted(problem, right[len(starter) :]).code
    chat = CHAT.extracted(problem, f"It was 3.\n```python\n{right}```").code
    with Grader(workers=1) as grader:
        verdicts = grader.grade([(problem, code) for code in (completion, chat, problem.buggy_code)])
    assert [verdict.status.value for verdict in verdicts] == ["passed", "passed", "failed"]
