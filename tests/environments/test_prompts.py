import pytest

from greenward.environments.prompts import PromptRenderer
from greenward.errors import ConfigError
from greenward.problems.problem import Problem

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
