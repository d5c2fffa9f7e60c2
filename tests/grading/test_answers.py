from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from time import process_time

import pytest

from greenward.grading import answers
from greenward.grading.answers import extract_code, final_text, last_block
from greenward.grading.extracted import explained
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
        f"```\n```python\n{BODY}```\n```",
        f"````markdown\n```python\n{BODY}```\n````",
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


@pytest.mark.parametrize("token", ["<|im_end|>", "</think>", "USER: hello"])
def test_what_edits_write_into_a_file_ends_no_answer(token):
    block = f"<<<<<<< SEARCH\nold\n=======\nnew\n{token}\n>>>>>>> REPLACE\n"
    diff = f"```diff\n@@ -1 +1,2 @@\n-old\n+new\n+{token}\n```"
    assert final_text(f"Sure.\n{block}<|im_end|>\n<|im_start|>user") == f"Sure.\n{block}"
    assert final_text(f"{diff}<|im_end|>") == diff


@pytest.mark.parametrize(
    "behind",
    [
        "add.calls = {}",
        "setattr(add, 'calls', {})",
        "add = print and add",
        "CALLS['add'] = add",
        "CALLS.append(1)",
    ],
)
def test_what_changes_the_function_or_what_it_needs_stays_behind_it(behind):
    code = f"CALLS = {{}}\n\ndef add(a, b):\n    CALLS[a] = b\n    return a + b\n\n{behind}\n"
    assert extract_code(f"```python\n{code}```", ADD, "chat").code == code


@pytest.mark.parametrize(
    "behind", ["isupp\nx(", "add", "3", "'done'", "unittest.main()", "result = add(1, 2)\nprint(result)"]
)
def test_what_only_tries_the_function_goes(behind):
    assert extract_code(f"```python\n{BODY}\n{behind}\n```", ADD, "chat").code.strip() == BODY.strip()


@pytest.mark.parametrize(
    "deep", ["+".join("1" * 1200), "not " * 800 + "1", "-" * 1200 + "1", "x" + ".x()" * 500]
)
@pytest.mark.parametrize("begins", ["if {}:\n    pass", "{}", "print({})", "x = {}"])
@pytest.mark.parametrize("style", ["chat", "completion"])
def test_what_is_nested_deeply_behind_a_function_is_read(deep, begins, style):
    code = extract_code(f"```python\n{BODY}\n{begins.format(deep)}\n```", ADD, style).code
    assert code is not None and code.startswith(BODY)


@pytest.mark.parametrize("guard", ["__name__ == '__main__'", '"__main__" == __name__'])
def test_a_main_guard_behind_the_function_goes(guard):
    code = f"```python\n{BODY}\nif {guard}:\n    import doctest\n    doctest.testmod()\n```"
    assert extract_code(code, ADD, "chat").code.strip() == BODY.strip()


KEPT = (
    ("def f(x):\n    f.calls += 1\n    return x * x\n", "f.calls = 0\n"),
    ("def f(x):\n    return T[x]\n", "f.cache = {}\nT = []\nfor i in range(10):\n    T.append(i * i)\n"),
    ("def f(x, y):\n    return x * y\n", "f.__defaults__ = (2,)\n"),
    ("@singledispatch\ndef f(x):\n    return 0\n", "f.register(int, lambda x: x * x)\n"),
    (
        "memo = {}\ndef f(x):\n    return memo[x]\n",
        "def build():\n    memo[3] = 9 + 0 * len(str(f))\nbuild()\n",
    ),
    ("def f(x):\n    return T[x]\n", "def init():\n    global T\n    T = [0, f]\ninit()\n"),
    ("T = []\ndef f(x):\n    return T[x]\n", "if __name__ != '__main__':\n    T.extend(range(9))\n"),
)


@pytest.mark.parametrize(("code", "behind"), KEPT)
def test_what_prepares_the_function_stays_behind_it(code, behind):
    problem = Problem("f", "", "f", starter_code="def f(x):\n")
    found = extract_code(f"```python\n{code}{behind}print(f(3))\n```", problem, "chat")
    assert found.code.strip() == (code + behind).strip()
    assert "tests_dropped" in found.rule


@pytest.mark.parametrize(
    ("first", "then", "kept"),
    [
        (
            "T = []\nfor i in range(4):\n    T.append(i)\n",
            "def add(a, b):\n    return T[a] + b\n",
            "T.append(i)",
        ),
        ("N = 1\nN += 1\n", "def add(a, b):\n    return N + a\n", "N += 1"),
        (
            "try:\n    import math as m\nexcept ImportError:\n    m = None\n",
            "def add(a, b):\n    return m.fsum([a, b])\n",
            "except",
        ),
        (
            "import math\n",
            "from __future__ import annotations\ndef add(a, b):\n    return math.fsum([a, b])\n",
            "import math",
        ),
    ],
)
def test_all_that_makes_a_name_comes_from_the_other_block(first, then, kept):
    found = extract_code(f"```python\n{first}```\nThen:\n```python\n{then}```", ADD, "chat")
    assert kept in found.code and found.rule == "block joined"
    assert compile(found.code, "<answer>", "exec")


@pytest.mark.parametrize("final", ["add = lambda a, b: a * b\n", "from operator import mul as add\n"])
def test_the_last_definition_counts_also_if_it_is_no_def(final):
    assert extract_code(f"```python\n{BODY}```\nFinal:\n```python\n{final}```", ADD, "chat").code == final


@pytest.mark.parametrize(
    "sketch",
    [
        "def add(a, b):\n",
        "def add(a, b):\n    ...\n",
        "class Adder:\n    def add(self, a, b):\n        return 0\n",
    ],
)
def test_a_sketch_behind_the_function_is_not_the_answer(sketch):
    assert extract_code(f"```python\n{BODY}```\nIts form:\n```python\n{sketch}```", ADD, "chat").code == BODY


@pytest.mark.parametrize(
    "behind", ["pip install x\n", "x = int(input())\n", "import sys\ninput = sys.stdin.readline\n"]
)
def test_a_part_of_a_program_behind_it_is_not_the_answer(behind):
    program = "n = int(input())\nprint(2 * n)\n"
    assert (
        extract_code(f"```python\n{program}```\nNote:\n```python\n{behind}```", PROGRAM, "chat").code
        == program
    )


@pytest.mark.parametrize("begin", ["T: list[int] = [1]\n", "(a, c) = (1, 2)\n", "*T, last = [1, 2]\n"])
def test_a_text_that_is_python_is_the_program_as_a_whole(begin):
    assert extract_code(begin + BODY, ADD, "chat").code == begin + BODY
    text = begin + "n, = map(int, input().split())\nprint(n)\n"
    assert extract_code(text, PROGRAM, "chat").code == text


def test_of_many_blocks_only_the_last_are_looked_at(monkeypatch):
    looked_at = []
    tests_others = answers._tests_others
    monkeypatch.setattr(
        answers,
        "_tests_others",
        lambda block, earlier: looked_at.append(len(earlier)) or tests_others(block, earlier),
    )
    extract_code("```python\nassert g(1)\n```\n" * 300, PROGRAM, "chat")
    assert 0 < sum(looked_at) <= answers._MOST_CUTS**2


def test_an_entry_point_is_taken_literally():
    assert extract_code("aXb", Problem("p", "", "a.b("), "chat").code is None


@pytest.mark.parametrize("characters", [50_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_long_hostile_text_is_read_in_one_pass(characters):
    for piece in ("```python\n", "```", "<think>", "def ", "a, "):
        text = piece * (characters // len(piece))
        extract_code(text, ADD, "chat")
        extract_code(text, PROGRAM, "chat")


def read(completion, begun="", problem=ADD):
    return extract_code(completion, problem, "chat", begun)


WRONG = "def add(a, b):\n    return a - b\n"
BLOCK, DRAFT = f"```python\n{BODY}```", f"```python\n{WRONG}```"


@pytest.mark.parametrize(
    ("completion", "begun", "expected"),
    [
        # The prompt's own opening tag counts.
        (f"{DRAFT}\nWait", "<think>\n", None),
        (f"{DRAFT}\n</think>\n{BLOCK}", "<think>\n", BODY),
        (f"{DRAFT}[/THINK]{BLOCK}</s>", "[THINK]", BODY),
        (f"{DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>{BLOCK}<|return|>",
         "<|channel|>analysis<|message|>", BODY),
        # A thought, then no program.
        (f"<think>\n{BLOCK}\n</think>\nI cannot solve this.", "", None),
        (f"<think>\n{BLOCK}", "", None),
        (f"<|channel|>analysis<|message|>{BLOCK}<|end|>", "", None),
        (f"analysisWe need it.\n{BLOCK}", "", None),
        (f"Here is my thought process:\n{BLOCK}", "", None),
        (f"Sure. <think>\n{BLOCK}", "", None),
        (f"I add.\nHere is my thought process:\n{BLOCK}", "", BODY),
        # The tags of other families.
        (f"<|channel|>analysis<|message|>{DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>{BLOCK}", "", BODY),
        (f"analysisWe need it.\n{DRAFT}assistantfinal{BLOCK}", "", BODY),
        (f"<|channel>thought\n{DRAFT}<channel|>{BLOCK}<turn|>", "", BODY),
        (f"<|START_THINKING|>{DRAFT}<|END_THINKING|><|START_RESPONSE|>{BLOCK}<|END_RESPONSE|>", "", BODY),
        (f"Here is my thought process:\n{DRAFT}\nHere is my response:\n{BLOCK}", "", BODY),
        (f"◁think▷{DRAFT}◁/think▷{BLOCK}", "", BODY),
        (f"<THINK>\n{DRAFT}\n</THINK>\n{BLOCK}", "", BODY),
        # Several thoughts, and one behind the answer.
        (f"<think>a</think>\n<think>\n{DRAFT}\n</think>\n{BLOCK}", "", BODY),
        (f"<think>a</think>\n{BLOCK}\n<think>\n{DRAFT}", "", BODY),
        # A tag within prose or code is none.
        (f"I close `</think>` soon.\n{BLOCK}", "", BODY),
        (f"```python\nT = '</think>'\n{BODY}```", "", f"T = '</think>'\n{BODY}"),
        (f"```python\nT = '''\n<think>\n'''\n{BODY}```", "", f"T = '''\n<think>\n'''\n{BODY}"),
        (f"T = '<think>'  # </think>\n{BODY}", "", f"T = '<think>'  # </think>\n{BODY}"),
        (f"<|channel|>final<|message|>```python\nT = '<|end|>'\n{BODY}```<|return|>", "", f"T = '<|end|>'\n{BODY}"),
    ],
)  # fmt: skip
def test_what_is_thought_is_no_answer(completion, begun, expected):
    found = read(completion, begun)
    assert found.code == expected
    assert expected or found.reason


ENDS = (
    "<|im_end|>", "\n<|im_end|>\n", "<|im_end|><|endoftext|><|endoftext|>", "<|eot_id|>", "</s>", " </s>", "<|endoftext|>",
    "<｜end▁of▁sentence｜>", "<end_of_turn>\n<eos>", "<|end|>", "<|EOT|>", "<file_sep>", "<|END_OF_TURN_TOKEN|>", "\n<|user|>",
    "<|eot|>", "[|endofturn|]", "<|role_end|>", "<seed:eos>", "<eoa>", "[e~[", "<turn|>", "\n[DONE]", " [DONE]", "\n[/PYTHON]",
    f"<|im_end|>\n<|im_start|>user\nAgain.<|im_end|>\n<|im_start|>assistant\n{DRAFT}",
    f"<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{DRAFT}", f"</s><s>[INST] Again. [/INST] {DRAFT}",
    f"\n\n### Instruction:\nAgain.\n\n### Response:\n{DRAFT}", f"assistant\n\n{DRAFT}", f"\nUSER: Again.\nASSISTANT: {DRAFT}",
)  # fmt: skip
HEADS = (
    "<|im_start|>assistant\n", "<|endoftext|><|endoftext|><|im_start|>assistant\n", "<s> [/INST] ", "[PYTHON]\n", "\ufeff",
    "<|begin_of_text|><|start_header_id|>assistant<|end_header_id|>\n\n", "<start_of_turn>model\n", "<|assistant|>\n",
    "<|im_start|>assistant<|im_sep|>", "[gMASK]<sop><|assistant|>\n", "[|assistant|]", "<role>ASSISTANT</role>", "\n\n",
    "### Response:\n", "ASSISTANT: ", "assistant\n\n", "<|start_of_role|>assistant<|end_of_role|>", "<think>\n\n</think>\n\n",
)  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("form", ["{}", "```python\n{}\n```", "```python\n{}```", "```python\n{}"])
def test_headers_and_end_tokens_are_no_part_of_a_program(head, form):
    for end in ENDS if head == HEADS[0] else ENDS[::5]:
        if form[-1] == "}" and (end == " [DONE]" or end.startswith("assistant")):
            continue  # behind code, this could be an index or a name
        text = head + form.format(BODY.rstrip("\n")) + end
        found = read(text)
        assert found.code and found.code.strip() == BODY.strip(), (text, found)


MARKS = (
    "<|im_end|>",
    "<|endoftext|>",
    "</s>",
    "<think>",
    "</think>",
    "<|channel|>",
    "[DONE]",
    "```",
    "### Instruction:",
)


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("line", ["T = '{}'", "# {}", 'T = """a {} b"""', "T = 'a'.replace('{}', '')"])
@pytest.mark.parametrize("form", ["{}", "```python\n{}```", "```python\n{}", "```\n{}```<|im_end|>"])
def test_tokens_and_tags_in_code_are_code(mark, line, form):
    program = f"{line.format(mark)}\n{BODY}"
    if line[0] == "#" and "}```" not in form:
        return  # without the end of the block, a line of prose could begin like this
    assert read(form.format(program)).code.strip() in (program.strip(), BODY.strip())  # comments may go
    assert read(f"<think>\n{DRAFT}\n</think>\n{form.format(program)}").code.strip().endswith(BODY.strip())


CONSTANT = "SHIFT = 0\n\ndef add(a, b):\n    return a + b + SHIFT\n"
IN_DOCSTRING = (
    'def add(a, b):\n    """Adds.\n\n    ```python\n    add(1, 2)\n    ```\n    """\n    return a + b\n'
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Without a fence: from the first line from which on the text has what is asked for.
        (CONSTANT, CONSTANT),
        (f"Here it is:\n\n{CONSTANT}\nIt adds, I hope.", f"{CONSTANT}\n"),
        (IN_DOCSTRING, IN_DOCSTRING),
        (f"Sure:\n\n{IN_DOCSTRING}\nIt's done.", f"{IN_DOCSTRING}\n"),
        (f"First:\n\n{WRONG}\nBut no, it's a sum:\n\n{CONSTANT}\nDone, I hope.", f"{CONSTANT}\n"),
        ("So:\n\n    def add(a, b):\n        return a + b\n\nDone.", BODY),
        (f"<answer>\n{CONSTANT}</answer>", CONSTANT),
        (f"Here:\r\n\r\n{CONSTANT}".replace("\n", "\r\n"), CONSTANT),
        # Fences.
        (f"```python\n{IN_DOCSTRING}```", IN_DOCSTRING),
        (f"```text\n{IN_DOCSTRING}```", IN_DOCSTRING),
        (f"```python\n{IN_DOCSTRING}", IN_DOCSTRING),
        (f"```\n```python\n{BODY}```\n```", BODY),
        (f"```markdown\nHere:\n```python\n{BODY}```\n```", BODY),
        (f"````python\n{BODY}```\nDone.", BODY),
        (f"~~~python\n{BODY}```\nDone.", BODY),
        ("- ```python\n  def add(a, b):\n      return a + b\n  ```", BODY),
        (f"```\npython\n{BODY}```", BODY),
        (f"```python\n{BODY.rstrip()}```", BODY),
        ("```python def add(a, b): return a + b ```", "def add(a, b): return a + b\n"),
        (f"```python\n# ```\n{BODY}```", f"# ```\n{BODY}"),
        # Text on the lines of the fences.
        (f"{DRAFT}\nNo.\n<answer>{BLOCK}</answer>", BODY),
        (f"{DRAFT}\nNo.\n**So:**{BLOCK}**\n\n```\n3\n```", BODY),
        (f"Use {BLOCK} for it.\n\n```\n3\n```", BODY),
        (f'```markdown\nIt\'s a """.\n{BLOCK}\n```', BODY),
        (f"[BEGIN]\n{BODY}[DONE]\nagain", BODY),
        # The last block that defines the entry point.
        (f"{DRAFT}\nBetter:\n```\n{BODY}```", BODY),
        (f"```python\n{WRONG}\nBetter:\n{BLOCK}", BODY),
        (f"1. Begin:\n```python\ndef add(a, b):\n    ...\n```\n2. All:\n{BLOCK}", BODY),
        # A block that the prompt has opened.
        (f"{BODY}```\nTry it:\n```python\nprint(add(1, 2))\n```", BODY),
        (f"{IN_DOCSTRING}```\nDone.", IN_DOCSTRING),
        ("    return a + b\n```\nDone.", BODY),
        (f"{WRONG}```\nBetter:\n{BLOCK}", BODY),
        # What a block needs of others: imports, definitions and assignments, as EvalPlus's sanitiser takes.
        ("```python\nimport math\nX = 1\nprint(X)\n```\n```python\ndef add(a, b):\n    return math.fsum((a, b))\n```",
         "import math\ndef add(a, b):\n    return math.fsum((a, b))\n"),
        ("```python\ndef helper(a):\n    return a\n```\n```python\ndef add(a, b):\n    return helper(a) + b\n```",
         "def helper(a):\n    return a\ndef add(a, b):\n    return helper(a) + b\n"),
        ("```python\ndef add(a, b):\n    return helper(a) + b\n```\n```python\ndef helper(a):\n    return a\n```",
         "def helper(a):\n    return a\ndef add(a, b):\n    return helper(a) + b\n"),
        # What only tries the entry point goes; what it needs stays.
        (f"```python\n{BODY}\nassert add(1, 1) == 3\nprint(add(input()))\n```", BODY + "\n"),
        (f"```python\n{BODY}\nLIMIT = 3\nprint(add(LIMIT, 1))\n```", f"{BODY}\nLIMIT = 3\n"),
        (f"```python\n{BODY}\nif __name__ == '__main__':\n    add(1, 2, 3)\n```", BODY + "\n"),
        ("```python\ndef add(a, b):\n    return a + b + SHIFT\n\nSHIFT = 0\nassert add(1, 1) == 3\n```",
         "def add(a, b):\n    return a + b + SHIFT\n\nSHIFT = 0\n"),
    ],
)  # fmt: skip
def test_the_program_of_an_answer(text, expected):
    assert read(text).code == expected


EVALPLUS = "Below is a Python script with a self-contained function:\n```python\n"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (f"{BODY}```\nDone.", BODY),
        (f"{BODY}```<|im_end|>", BODY),
        (f"{BODY}<|im_end|>", BODY),
        (f"{BODY}\nprint(add(in", f"{BODY}\n"),
        (BLOCK, BODY),
        (f"{WRONG}```\nBetter:\n{BLOCK}", BODY),
    ],
)
def test_a_block_that_the_prompt_opened(completion, expected):
    assert read(completion, EVALPLUS).code == expected


READS = "n = int(input())\nprint(n)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"```python\n{READS}```\nTests:\n```python\ndef test_it():\n    assert run('1') == '1'\n```", READS),
        (f"```python\n{READS}```\nUse:\n```python\nimport subprocess\nprint(subprocess.run(['a'], input='1'))\n```", READS),
        (f"```python\n{READS}```\n```python\n# Output: 3\n```", READS),
        (f"```\n{READS}```\nOutput:\n```\n3\n```", READS),
        (f"```python\nimport os\nn = os.read(0, 9)\n```\n```\n{READS}```", READS),
        (f"```\n3 4\n```\nOutput:\n```\n7\n```\n```python\n{READS}```", READS),
        ("```python\nimport sys\n\ndef read():\n    return sys.stdin.read()\n```\nThen:\n```python\nprint(read())\n```",
         "import sys\ndef read():\n    return sys.stdin.read()\nprint(read())\n"),
        (f"First:\n\nn = input()\nprint(n)\n\nBut it's a number:\n\n{READS}\nDone, I hope.", f"{READS}\n"),
        (f"{READS}\nx = 3 is then printed, isn't it", f"{READS}\n"),
        (f"{READS}```\nDone.", READS),
        ("[print(n) for n in range(int(input()))]", "[print(n) for n in range(int(input()))]"),
        (f"```python {READS}```", READS),
        ("Sorry", None),
    ],
)  # fmt: skip
def test_the_whole_program_of_an_answer(text, expected):
    assert extract_code(text, PROGRAM, "chat").code == expected
    assert extract_code(text, PROGRAM).code == expected


def test_rules_say_how_a_program_was_found():
    found = read(
        f"```python\nimport math\n```\n```python\n{BODY}X = math.pi\nassert add(1, 1) == 3\nprint(\n```"
    )
    assert found.rule == "block joined cut tests_dropped"
    assert read(f"{BODY}```").rule == "closed" and read(f"Here:\n{BODY}").rule == "text"
    assert explained("block cut") == (
        "the last block that defines the entry point, without what is not Python behind it"
    )


def test_endings_of_families_of_models():
    path = Path(__file__).parents[3] / "shared" / "data" / "field_inputs" / "endings.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    for name, text in json.loads(path.read_text(encoding="utf-8")).items():
        assert read(text).code == BODY, name
        assert extract_code(text, ADD).code == BODY, name


@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_hostile_tokens_and_fences_take_linear_time(times):
    begin = process_time()
    for text in (
        "`" * 10_000 * times,
        "<|im_end|>" * 10 * times + BODY,
        "```python\n" + "<|im_end|>\n" * 500 * times + "```",
        "'<|im_end|>'" * 200 * times,
        "Here is my thought process:" * 200 * times,
        "`assistant\n" * 500 * times,
        "<|channel|>a<|message|>" + "<|x" * 1_000 * times,
        "- ```\n" * 500 * times,
        "def add(a, b):\n    return 1\n\nBut no.\n" * 15 * times,
        "    def add(a, b):\n        return (\n" * 16 * times,
        "x = 1\ny =\n" * 60 * times,
    ):
        for problem in (ADD, PROGRAM):
            extract_code(text, problem)
            extract_code(text, problem, "chat", "<think>\n")
    assert process_time() - begin < 60.0


@pytest.mark.parametrize(
    ("starter", "text"),
    [
        ("def add(a, b):\n", "return a + b"),
        ("def add(a, b):\n", "total = a + b\n    return total\n"),
        ('def add(a, b):\n    """Add."""\n', "for _ in range(1):\n        a += b\n    return a"),
        ("def add(a, b):\n", '"""Add."""\n    return a + b\n\n\nassert add(1, 2) == 3'),
        ("def add(a, b):\n    if a:\n", "return a + b\n    return b"),
        # Of its first line only a part is left, or the whole has lost it.
        ("def add(a, b):\n", "    if a:\n            a += 0\n        return a + b"),
        ("def add(a, b):\n", "total = a\nfor _ in [0]:\n    total += b\nreturn total\n"),
        ('def add(a, b):\n    """Add."""\n', "# the sum\nreturn a + b\n\nprint(add(1, 2))\n"),
        ('def add(a, b):\n    """Add."""\n', "if a or b:\n    return a + b\nelse:\n    return 0"),
    ],
)
def test_the_first_line_of_a_stripped_completion_gets_its_indentation_back(starter, text):
    for style in ("completion", None):
        found = extract_code(text, replace(ADD, starter_code=starter), style)
        space = {}
        exec(found.code, space)
        assert space["add"](2, 3) == 5 and "indented" in found.rule


@pytest.mark.parametrize(
    "behind",
    [
        "\n```python\n# Test\nprint(add(1, 2))\n```\n",
        "\nThis adds the two.\n```python\n",
        "\nExample:\n```\n>>> add(1, 2)\n3\n```\nBut wait.\n```py\n# 3\n```\n",
    ],
)
def test_a_body_before_a_fence_continues_the_starter_code(behind):
    for style in ("chat", None):
        found = extract_code("    total = a + b\n    return total\n" + behind, ADD, style)
        space = {}
        exec(found.code, space)
        assert space["add"](2, 3) == 5
    better = "```python\ndef add(a, b):\n    return b + a\n```\n"
    assert (
        extract_code(f"    return a - b\n\nBetter:\n{better}", ADD).code
        == "def add(a, b):\n    return b + a\n"
    )


@pytest.mark.parametrize(
    ("prompt", "then"),
    [
        (
            "Below is an instruction that describes a task. Write a response.\n\n### Instruction:\nAdd.\n\n"
            "### Input:\ndef add(a, b):\n\n### Response:\n ",
            "\n\n### Instruction:\nSubtract.\n\n### Response:\ndef add(a, b):\n    return a - b\n",
        ),
        ("<s> [INST] Write add.\n```python\ndef add(a, b):\n    ...\n``` [/INST] ", "</s>"),
        (
            "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nAdd.<|im_end|>\n"
            "<|im_start|>assistant\n",
            "<|im_end|>\n<|im_start|>user\nThanks.",
        ),
        (
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nAdd.<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
        ),
        ("<bos><start_of_turn>user\nAdd.<end_of_turn>\n<start_of_turn>model\n", "<end_of_turn>"),
        ("<|user|>\nAdd.<|end|>\n<|assistant|>\n", "<|end|>"),
        ("USER: Write add. ASSISTANT: ", "\nUSER: Thanks."),
        ("### Human: Write add.\n### Assistant:\n", "\n### Human: Thanks."),
        ("system\nYou are a helpful assistant.\nuser\nWrite add.\nassistant\n", ""),
        ("@@ Instruction\nWrite add.\n\n@@ Response\n", ""),
    ],
)
@pytest.mark.parametrize("form", ["{}", "Here it is:\n```python\n{}```\n"])
def test_a_prompt_that_an_answer_repeats_is_no_part_of_it(prompt, then, form):
    program = "import math\n\n\ndef add(a, b):\n    return int(math.fsum([a, b]))\n"
    found = extract_code(prompt + form.format(program) + then, ADD)
    assert ast.dump(ast.parse(found.code)) == ast.dump(ast.parse(program))  # a heading may be a comment


def test_what_only_looks_like_a_prompt_is_a_program():
    program = "# Notes\n### Instruction:\nx = 1\n### Response:\n\n\ndef add(a, b):\n    return a + b\n"
    assert extract_code(program, ADD, "chat").code.startswith("# Notes")
    program = program.removeprefix("# Notes\n")
    assert extract_code(program, ADD, "chat").code == program


@pytest.mark.parametrize(
    "text", ["    return a + b", "\n    return a + b\n", "Sure, here is the answer.", "isupp\n a ("]
)
def test_no_indentation_is_added_where_none_was_lost(text):
    found = extract_code(text, ADD, "completion")
    assert "indented" not in found.rule
