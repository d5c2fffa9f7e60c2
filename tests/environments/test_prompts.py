from dataclasses import replace

import pytest

from greenward.environments.prompts import PromptRenderer
from greenward.errors import ConfigError
from greenward.evaluation.suites import SuitePrompts
from greenward.grading.grader import Grader
from greenward.problems.problem import Case, Problem

STARTER = 'def double(n):\n    """Return twice n."""\n'
PROBLEM = Problem("double", "Return twice n.", "double", starter_code=STARTER)


class CharacterTokenizer:
    """One token a character; the chat template writes roles in angle brackets."""

    def __init__(self, chat=False):
        self.chat_template = "{{ messages }}" if chat else None

    def encode(self, text, *, add_special_tokens=False):
        return [ord(character) for character in text]

    def decode(self, token_ids):
        return "".join(chr(token) for token in token_ids)

    def render_chat(self, messages):
        return self.encode("".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>")


def test_completion_style_continues_the_signature():
    renderer = PromptRenderer(CharacterTokenizer())
    assert CharacterTokenizer().decode(renderer.prompt_ids(PROBLEM)) == STARTER
    text = renderer.completion_text(CharacterTokenizer().encode("    return 2 * n\n"))
    assert renderer.extracted(PROBLEM, text).code == STARTER + "    return 2 * n\n"


def test_a_specification_missing_from_the_starter_code_is_put_before_it_as_a_comment():
    bare = Problem(
        "double", "Return twice n.\nIt may be negative.", "double", starter_code="def double(n):\n"
    )
    text = PromptRenderer(CharacterTokenizer()).prompt_text(bare)
    assert text == "# Return twice n.\n# It may be negative.\ndef double(n):\n"


def test_a_specification_of_several_lines_is_found_in_its_indented_docstring():
    starter = 'def double(n):\n    """Return twice n.\n\n    It may be negative.\n    """\n'
    problem = Problem("double", "Return twice n.\n\nIt may be negative.", "double", starter_code=starter)
    assert PromptRenderer(CharacterTokenizer()).prompt_text(problem) == starter


@pytest.mark.parametrize("end", ["", "\n", "    ", "\n    ", "\n\n        \n"])
def test_fences_stand_on_lines_of_their_own_however_the_code_ends(end):
    chat = PromptRenderer(CharacterTokenizer(chat=True))
    code = 'def double(n):\n    """Return twice n."""'
    starter = chat.prompt_text(replace(PROBLEM, starter_code=code + end))
    repair = chat.prompt_text(replace(PROBLEM, buggy_code=code + end))
    for text in (starter, repair):
        lines = text.splitlines()
        assert [line for line in lines if "`" in line and line.startswith("```")][-1:] == ["```"]
        assert lines[lines.index("```") - 1] == '    """Return twice n."""'
    bare = PromptRenderer(CharacterTokenizer())
    assert "# Right:\n" in bare.prompt_text(replace(PROBLEM, buggy_code=code + end))


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
    renderer = PromptRenderer(CharacterTokenizer(chat=True))
    found = renderer.extracted(PROBLEM, "I do not know.")
    assert found.code is None
    assert "no definition of double" in found.reason


def test_chat_style_without_a_template_is_refused():
    with pytest.raises(ConfigError, match="no chat template"):
        PromptRenderer(CharacterTokenizer(), style="chat")


BUGGY = Problem(
    "double#1",
    "Return twice n.",
    "double",
    cases=(Case((3,), 6),),
    starter_code=STARTER,
    buggy_code=f"{STARTER}    return 3 * n\n",
    failing_test="double(3): expected 6, got 9",
)


def test_a_buggy_program_stands_in_comments_before_the_signature():
    text = PromptRenderer(CharacterTokenizer()).prompt_text(BUGGY)
    assert text == (
        '# Wrong:\n# def double(n):\n#     """Return twice n."""\n#     return 3 * n\n# Right:\n' + STARTER
    )


def test_what_the_buggy_program_does_not_say_comes_first():
    bare = replace(BUGGY, starter_code="", buggy_code="def double(n):\n    return 3 * n\n")
    text = PromptRenderer(CharacterTokenizer()).prompt_text(bare)
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
    text = PromptRenderer(CharacterTokenizer(chat=True)).prompt_text(BUGGY)
    assert text.startswith("Fix the bug in this Python function.")
    assert f"```python\n{BUGGY.buggy_code}```" in text


def test_suites_show_the_buggy_program_too():
    for chat in (False, True):
        tokenizer = CharacterTokenizer(chat=chat)
        assert SuitePrompts(tokenizer).prompt_text(BUGGY) == PromptRenderer(tokenizer).prompt_text(BUGGY)


@pytest.mark.parametrize("starter", [STARTER, ""])
def test_repairs_are_read_in_both_styles_and_pass(starter):
    problem = replace(BUGGY, starter_code=starter)
    right = f"{STARTER}    return 2 * n\n"
    completion = PromptRenderer(CharacterTokenizer()).extracted(problem, right[len(starter) :]).code
    chat = (
        PromptRenderer(CharacterTokenizer(chat=True))
        .extracted(problem, f"It was 3.\n```python\n{right}```")
        .code
    )
    with Grader(workers=1) as grader:
        verdicts = grader.grade([(problem, code) for code in (completion, chat, problem.buggy_code)])
    assert [verdict.status.value for verdict in verdicts] == ["passed", "passed", "failed"]
