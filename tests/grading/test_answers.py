from __future__ import annotations

from time import process_time

import pytest

from greenward.grading.answers import extract_code, last_block
from greenward.problems.problem import Problem, StdioCase

ADD = Problem("add", "Add.", "add", starter_code="def add(a, b):\n")
BODY = "def add(a, b):\n    return a + b\n"


def test_a_completion_continues_the_starter_code():
    assert extract_code("    return a + b\n", ADD, "completion").code == BODY


@pytest.mark.parametrize("text", ["", " \n\t"])
@pytest.mark.parametrize("style", ["completion", "chat"])
def test_an_empty_answer_has_no_code(text, style):
    extracted = extract_code(text, ADD, style)
    assert extracted.code is None
    assert "empty" in extracted.reason


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{BODY}```",
        f"Sure:\n\n```py\n{BODY}```\nIt adds.",
        f"```\n{BODY}```",
        f"~~~python\n{BODY}~~~",
        f"````python\n{BODY}````",
        f"``` Python\n{BODY}```",
        f"```python\n{BODY}",  # cut short
        f"<think>```python\ndef add(a, b): return 0\n```</think>\n```python\n{BODY}```",
        f"I think ```add``` is easy </think>```python\nx\n```\n```python\n{BODY}```",
        f"```python\n{BODY}```\n<think>```python\ndef add(a, b): return 0",
        f"```python\n{BODY}```\nUse it:\n```python\nprint(add(1, 2))\n```",
        f"```python\ndef add(a, b): return 0\n```\nBetter:\n```python\n{BODY}```",
        f"```bash\npip install x\n```\n```python\n{BODY}```\n```text\n3\n```",
        f"1. List:\n   ```python\n   {BODY.replace(chr(10), chr(10) + '   ').rstrip()}\n   ```",
        f"```python\r\n{BODY}```",
        f"```text\n{BODY}```",
        f"```add.py\n{BODY}```",
        f"Here is the code: ```python\n{BODY}```\nIt adds.",
        f"Use ```add``` so: ```\n{BODY}```",
        f"Take this\nfrom the top:\n{BODY}",
        f"{BODY}\nIt adds both numbers.\nThat is all: 3.",
    ],
)
def test_the_block_that_defines_the_entry_point_is_found(text):
    assert extract_code(text, ADD, "chat").code.rstrip("\n") == BODY.rstrip("\n")


def test_a_block_keeps_its_texts_as_they_are():
    code = 'def add(a, b):\n    return \'\u2028\x0c\x85\' + """a\n    \nb"""\n'
    assert extract_code(f"```python\n{code}```", ADD, "chat").code == code


@pytest.mark.parametrize(
    "torn",
    [
        "def more(a):\n    return (a +",
        "def main(): print(add(in",
        "print(add(1,",
        "assert add(1, 2) == 4",
        'x = """',
    ],
)
@pytest.mark.parametrize("form", ["```python\n{}", "{}", "Sure:\n\n{}"])
def test_a_torn_end_behind_the_function_is_cut(torn, form):
    found = extract_code(form.format(f"{BODY}\n{torn}"), ADD, "chat")
    assert found.code.strip() == BODY.strip()


def test_a_torn_function_is_not_made_whole():
    torn = "def add(a, b):\n    a = abs(a)\n    return (a +"
    assert extract_code(f"```python\n{torn}", ADD, "chat").code == f"{torn}\n"


def test_lines_of_spaces_behind_a_fence_are_read_in_linear_time():
    begin = process_time()
    for text in (
        "a:```" + " " * 100_000 + "!",
        "a:```" + "a" * 100_000 + " !",
        ("a:```" + " " * 300 + "!\n") * 300,
    ):
        assert last_block(text) is None
    assert process_time() - begin < 3.0


def test_a_block_may_keep_the_indentation_of_all_of_its_lines():
    assert last_block("```\n  a\n b\n```") == " a\nb\n"
    assert last_block("```\n  a\n b\n```", dedent=False) == "  a\n b\n"


def test_without_a_definition_the_last_block_counts():
    assert extract_code("```python\na = 1\n```\n```python\nb = 2\n```", ADD, "chat").code == "b = 2\n"


def test_an_unfenced_answer_counts_from_its_first_line_of_code():
    assert extract_code("Here:\nimport math\n" + BODY, ADD, "chat").code == "import math\n" + BODY


@pytest.mark.parametrize(
    "text", ["I cannot.", "<think>def add(a, b): pass", "```json\n{}\n```", "```python\n\n```"]
)
def test_prose_alone_is_no_code(text):
    extracted = extract_code(text, ADD, "chat")
    assert extracted.code is None
    assert extracted.reason


PROGRAM = Problem("sum", "Add.", "", tests=(StdioCase("1 2", "3"),))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Try\n```python\nprint(1)\n```\nor better\n```python\nprint(2)\n```", "print(2)\n"),
        ("```python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)\n"),
        ("```\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)\n"),
        ("```\n1\n```", "1\n"),
        ("n = int(input())\nprint(n)", "n = int(input())\nprint(n)"),
        ("Here it is:\n\nimport sys\nprint(3)", "import sys\nprint(3)"),
        ("Read two numbers.\na, b = map(int, input().split())", "a, b = map(int, input().split())"),
        ("<think>x = 1</think>for n in range(3):\n    print(n)", "for n in range(3):\n    print(n)"),
        ("I cannot do this for you.", None),
        ("for every case, add the numbers", None),
        ("if a == b then stop", None),
        ("```json\n{}\n```", None),
    ],
)
def test_a_whole_program_is_found(text, code):
    assert extract_code(text, PROGRAM, "chat").code == code
    assert code or extract_code(text, PROGRAM, "chat").reason


def test_an_entry_point_is_taken_literally():
    assert extract_code("aXb", Problem("p", "", "a.b("), "chat").code is None


def test_long_hostile_text_is_read_in_one_pass():
    for text in (
        "```python\n" * 200_000,
        "```" * 1_000_000,
        "<think>" * 500_000,
        "def " * 500_000,
        "a, " * 500_000,
    ):
        extract_code(text, ADD, "chat")
        extract_code(text, PROGRAM, "chat")
