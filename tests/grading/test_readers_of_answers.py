"""Everything that reads what a model wrote gives one of its closed list of results for any text, in bounded time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from greenward.config.sections import RewardTermConfig
from greenward.environments.agent import APPLY_PATCH, SHELL, SUBMIT, parse_call
from greenward.environments.prompts import PromptRenderer
from greenward.grading.answers import continues_starter, extract_code, holds_fence, last_block
from greenward.grading.edits import EditError, apply_edits, extract_edited, parse_blocks, parse_diff
from greenward.grading.extracted import Extracted
from greenward.grading.reward_terms import SHIPPED_REWARDS, make_reward
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import EDIT_ERRORS, Status, Verdict
from greenward.problems.problem import Assertion, Case, Problem
from greenward.rollouts.driver import Request, turn_of
from greenward.rollouts.endpoint import TextTokenizer
from greenward.rollouts.protocols import Completion, SamplingParams, StopReason
from greenward.runs.files import append_row, read_jsonl, write_rows
from greenward.sandbox.protocol import Outcome, RunResult
from greenward.tasks.code_game.environment import SCRIPTED_PREDICTORS, CodeGamePrompts
from greenward.tasks.code_game.judge import refusal
from greenward.tasks.self_play.environment import MovePrompts
from greenward.tasks.self_play.games import KuhnPoker
from greenward.tasks.vulnerability.labels import Label, parse_label

BUGGY = "def double(n):\n    m = n\n    return 3 * m\n"
RIGHT = BUGGY.replace("3", "2")
FUNCTION = Problem(
    "function", "", "double", tests=(Case((1,), 2),), starter_code="def double(n):\n", reference=RIGHT
)
PROGRAM = Problem("program", "Print.", "", tests=(Assertion("assert True"),), reference="print(1)\n")
REPAIR = replace(FUNCTION, task_id="repair", buggy_code=BUGGY)
FILES = Problem(
    "files",
    "Double.",
    "double",
    tests=(Case((1,), 2),),
    path="café/a b.py",
    files={"café/a b.py": BUGGY, "b.py": "import os\n", "crlf.py": "a = 1\r\nb = 2\r\n", "end.py": "a = 1"},
    starter_code="def double(n):\n",
    reference=RIGHT,
)
LABELLED = Problem(
    "label", "import os\n\ndef f(x):\n    os.system(x)\n", "", label=Label(True, "CWE-78", "p", (4,))
)
EDITED = (REPAIR, FILES)
PROBLEMS = (FUNCTION, PROGRAM, *EDITED, LABELLED)

BLOCK = "<<<<<<< SEARCH\n    return 3 * m\n=======\n    return 2 * m\n>>>>>>> REPLACE\n"
HUNK = "@@ -1,3 +1,3 @@\n def double(n):\n     m = n\n-    return 3 * m\n+    return 2 * m\n"
NAMES = (
    '"a",1', '"a', '"\\303\\251.py"', '"\\777"', '"\\8"', '"\\', '"a"b"', '""', "'a'", "a/b\t2020-01-01", "/dev/null", "",
    "a" * 5000, "\0", "\ud800", "../a", "/etc/passwd", ".git/config", "a/é/b", '"\\x41"', '"\\u0041"', "b'a'", '"a" + "b"',
    "[" * 300, '"a" "b"', "\u202ea.py", "1e999", '"\\0"', "-" * 300, "café/a b.py", '"caf\\303\\251/a b.py"',
)  # fmt: skip
HEADERS = (
    "--- {}\n+++ {}\n" + HUNK,
    "--- a/{}\n+++ b/{}\n" + HUNK,
    "diff --git a/{} b/{}\nnew file mode 100644\n",
    "diff --git a/{0} b/{0}\ndeleted file mode 100644\nindex 1..2\n--- a/{0}\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
    "rename from {}\nrename to {}\n",
    "{}\n" + BLOCK,
    "### `{}`\n" + BLOCK,
    "File: {}\n```python\n" + BLOCK + "```\n",
)
HOSTILE = (
    "", " ", "\0", "\ud800", "\udcff\udc80", "\ufeff" + RIGHT, "\u202e" + BLOCK, "\r\r\n\x0b\x0c\x85\u2028", "x" * 50_000,
    "```" * 9_000, "```python\n" * 5_000, "```python\n~~~\n" * 2_000, "a:```" + " " * 50_000 + "!", "<think>" * 5_000, "</think>" * 5_000,
    "<answer>" * 3_000, "<think>" + BLOCK, f"<think>{BLOCK}</think>", f"<think>\n{BLOCK}\n</think>\n<answer>\n{BLOCK}\n</answer>",
    "(" * 20_000, "[" * 30_000, "{" * 5_000, "lambda:" * 2_000, "not " * 4_000, "-" * 15_000 + "1", "1 + " * 4_000 + "1", "x" + ".a" * 9_000,
    "x = 0x" + "f" * 9_000, "x = " + "9" * 9_000, "print(1e999, -1e999j)", "f'''{\"\"\"\n\"\"\".join(x)}'''", "def double(n): return n\0",
    "if a:\n" + "".join(" " * n + "if a:\n" for n in range(1, 150)), "# coding: rot13\n", "".join(f"def f{n}(): f{n + 1}()\n" for n in range(900)),
    "async" + " " * 50_000, "import " + "a" * 20_000 + " " * 20_000 + "!", "a" + ",a" * 9_000 + "!", "def double(n):\n" + "\t" * 50_000,
    "<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE\n", "<<<<<<< SEARCH\n=======\n", BLOCK[:-5], BLOCK * 1_100, BLOCK.replace("\n", "\r\n"),
    "<" * 99 + " SEARCH" + " " * 50_000 + "x", "<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n" * 900, "a/" * 20_000 + "\n" + BLOCK,
    ("_" * 3_980 + ".!\n" + BLOCK) * 40, '```python\ndef double(n):\n    return f"""' + "{n}\n" * 24_000 + '"""\n```',
    HUNK, "@@ @@\n", "@@", "@@ -0,0 +1 @@\n+x", "@@ -1,999999999 +1,1 @@\n" + " \n" * 9_000, "@@ -٣,١ +١ @@\n-x\n", "\\ No newline at end of file\n", "@@ @@\n\\\n",
    "--- a\n+++ b\n", "--- a\n+++ a\nx\n", "--- \n+++ \n" + HUNK, "Binary files a and b differ\n", "@@ @@\n" + "-a\n+a\n" * 2_000,
    "line " + "1," * 9_000, "<answer>vulnerable" * 2_000, "<answer>safe, 1e999 %</answer>", "<answer>vulnerable CWE-" + "9" * 5_000 + "</answer>",
    "<think>line 1-999999: os.system...</think><answer>unsure</answer>", "<answer>safe, ٣٣ %</answer>",
    "<shell>" * 4_000, "<shell>\0</shell>", "<submit>", "<apply_patch>" + BLOCK, "<tool_call>" + "[" * 100_000, '<tool_call>{"a":' * 2_000,
    '<tool_call>{"name": "shell", "arguments": {"command": 1e999}}', '<tool_call>{"name": NaN}', '<tool_call>{"name": ["shell"]}',
    '<tool_call>{"name": "shell", "name": "submit", "arguments": null}', '<tool_call>{"name": "shell", "arguments": {"command": "\\ud800"}}',
    '<tool_call>{"name": "shell", "arguments": {"command": ' + "9" * 5_000 + "}}", "<tool_call>" + '{"a":' * 9_000 + "1" + "}" * 9_000,
    "\\boxed{" * 10_000, "\\boxed{}", "\\boxed{\0}", "\n# prints\n" * 2_000, "\n# prints\n\ud800", "print('{0.gi_frame}'.format(1))",
    "for i in range(200):\n for j in range(200):\n  " + ";".join(["print()"] * 150), "exec(" * 90 + ")" * 90, "getattr(" * 90 + ")" * 90,
)  # fmt: skip
FORMATTED = tuple(header.format(name, name) for header, name in product(HEADERS, NAMES))
PIECES = st.sampled_from(
    (
        *(
            "\n",
            " ",
            "```",
            "```python\n",
            "~~~",
            "<think>",
            "</think>",
            "\n<answer>\n",
            "</answer>",
            "<submit>",
        ),
        *(
            "<shell>",
            "</shell>",
            "<apply_patch>",
            "<tool_call>",
            '{"name": ',
            '"shell"',
            "<solution>",
            "</solution>",
        ),
        *(
            "<<<<<<< SEARCH\n",
            "=======\n",
            ">>>>>>> REPLACE\n",
            "<<<<< SEARCH\n",
            "b.py\n",
            "crlf.py\n",
            "end.py\n",
        ),
        *(
            "--- ",
            "+++ ",
            "@@ -1 +1 @@\n",
            "@@ @@\n",
            "-x\n",
            "+y\n",
            " z\n",
            "\\\n",
            "diff --git a/x b/x\n",
            '"a",1\n',
        ),
        *(
            "def double(n):\n",
            "    return 3 * m\n",
            "    m = n\n",
            "import os\n",
            "class A:",
            "\t",
            "\r",
            "line 4: os.system",
        ),
        *(
            "vulnerable CWE-78, 90 %",
            "\\boxed{",
            "}",
            "0x",
            "9" * 5000,
            "\0",
            "\ud800",
            "# prints\n",
            "'",
            '"""',
            "(",
            "a = 1",
        ),
    )
)
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=14).map("".join) | st.text(
    st.characters(exclude_categories=()), max_size=40
)
SECONDS = 20.0  # for one text and all readers; 0.3 s on an idle core for the worst


class StubGrader:
    """Answers for the sandbox, so that reading alone is tested."""

    def run_programs(self, codes: list[str]) -> list[RunResult]:
        return [RunResult(Outcome.COMPLETED, stdout="\ud800") for _ in codes]

    def grade(self, answers: list[Any]) -> list[Verdict]:
        return [Verdict(Status.FAILED, (True, False)) for _ in answers]


def extractions(text: str) -> Iterator[tuple[Problem, Extracted]]:
    for style in ("chat", "completion"):
        yield from ((problem, extract_code(text, problem, style)) for problem in PROBLEMS)
        for problem, form in product(EDITED, ("search_replace", "diff")):
            yield problem, extract_edited(text, problem, form)


def read_blocks(text: str) -> None:
    for problem in PROBLEMS:
        continues_starter(text, problem)
    last_block(text)
    holds_fence(text)


def read_edits(text: str) -> None:
    for parse in (parse_blocks, lambda text: [edit for file in parse_diff(text) for edit in file.edits()]):
        try:
            apply_edits({"x": "a\n", "b.py": BUGGY}, parse(text), "b.py")
        except EditError as error:
            assert error.status in EDIT_ERRORS


def read_label(text: str) -> None:
    assert parse_label(text).said in (None, "vulnerable", "safe", "unsure")
    assert LABELLED.label.judge(text).status in {
        Status.PASSED, Status.FAILED, Status.ABSTAINED, Status.NO_LABEL,
    }  # fmt: skip


def read_call(text: str) -> None:
    call = parse_call(text)
    assert call is None or call.error or call.name in (SHELL, APPLY_PATCH, SUBMIT)
    assert call is None or all(isinstance(value, str) for value in call.arguments.values())


def completed(text: str) -> Completion:
    ids = np.array(TextTokenizer().encode(text), dtype=np.int64)
    return Completion(ids, np.zeros(len(ids), np.float32), StopReason.END, 0)


def read_move(text: str) -> None:
    for form in ("bare", "boxed"):
        move = MovePrompts(KuhnPoker(), TextTokenizer(), form).move(completed(text))
        assert move.action is None or isinstance(move.action, str)


def read_code_game(text: str) -> None:
    refusal(text)
    for predict in SCRIPTED_PREDICTORS.values():
        assert isinstance(predict(text), str)
    for template in ("with one", None):
        tokenizer = TextTokenizer()
        tokenizer.chat_template = template  # type: ignore[assignment]
        prompts = CodeGamePrompts(tokenizer, 32)
        turn = turn_of(Request("predictor", (), SamplingParams()), completed(text))
        assert isinstance(prompts.program("a = 1", turn), str)
        assert isinstance(prompts.prediction(turn), str | None)
        prompts.can_say(text, SamplingParams(max_tokens=1000))
        prompts.shows(text)


READERS: tuple[Callable[[str], None], ...] = (
    *(read_blocks, read_edits, read_label, read_call, read_move, read_code_game),
)


def graded(text: str) -> list[GradedAnswer]:
    """What is extracted of a text for each problem, as answers that were graded."""
    answers = []
    for problem, found in extractions(text):
        assert found.code is None or isinstance(found.code, str)
        assert found.status in {Status.NO_CODE, *EDIT_ERRORS}
        verdict = Verdict(found.status, (False, False))
        answers.append(GradedAnswer(problem, "", text, found.code, verdict, files=found.files))
    return answers


def scores_of(name: str, answers: list[GradedAnswer]) -> list[float | None]:
    """What a shipped term gives those of the answers whose problems it is for."""
    of_labels = name in ("detection", "weakness", "evidence")
    answers = [one for one in answers if (one.problem is LABELLED) is of_labels]
    if name in ("edit_similarity", "swe_rl", "regression"):
        answers = [one for one in answers if one.problem in EDITED]
    return make_reward(RewardTermConfig(name=name)).score(answers, StubGrader())  # type: ignore[arg-type]


def check_scores(scores: list[float | None]) -> None:
    assert all(score is None or (math.isfinite(score) and -1.0 <= score <= 2.0) for score in scores)


PURE_TERMS = [name for name, reward in SHIPPED_REWARDS.items() if hasattr(reward, "__wrapped__")]


def read_everything(text: str) -> None:
    for read in READERS:
        read(text)
    answers = graded(text)
    for name in PURE_TERMS:
        check_scores(scores_of(name, answers))
    unapplied = [one for one in answers if one.code is None]
    assert all(score is not None and score < 1.0 for score in scores_of("edit_similarity", unapplied))


def shortened(text: str) -> str:
    """A text without its middle: still deep and long enough for every limit of the interpreter, and read soon."""
    return text[:2_500] + text[-2_500:] if len(text) > 5_000 else text


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(tuple(map(shortened, HOSTILE)), id="short texts"),
        pytest.param(FORMATTED[::5], id="some names of files"),
        pytest.param(HOSTILE, id="texts", marks=pytest.mark.slow),
        pytest.param(FORMATTED, id="names of files", marks=pytest.mark.slow),
    ],
)
def test_every_reader_survives_hostile_texts(texts: tuple[str, ...]) -> None:
    slow = {}
    for text in texts:
        begin = process_time()
        read_everything(text)
        slow[text[:60], len(text)] = process_time() - begin
    assert max(slow.values()) < SECONDS, max(slow, key=slow.get)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def hostile_answers() -> list[GradedAnswer]:
    return [answer for text in (*HOSTILE[::3], *FORMATTED[::25]) for answer in graded(text)]


@pytest.mark.parametrize("name", sorted(set(SHIPPED_REWARDS) - set(PURE_TERMS)))
def test_terms_that_score_many_answers_at_once_score_hostile_ones(
    name: str, hostile_answers: list[GradedAnswer]
) -> None:
    begin = process_time()
    check_scores(scores_of(name, hostile_answers))
    assert process_time() - begin < 3 * SECONDS


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_every_reader_survives_any_text(text: str) -> None:
    read_everything(text)


def test_any_text_is_written_and_tokenized(tmp_path: Path, tokenizer: Any) -> None:
    renderer = PromptRenderer(tokenizer, style="completion")
    for text in HOSTILE:
        problem = replace(FUNCTION, prompt=text[:1000], starter_code=f"# {text[:50]!r}\n")
        assert isinstance(renderer.prompt_ids(problem), tuple)
        assert isinstance(tokenizer.decode(tokenizer.encode(text[:5000])), str)
        rows = [{"answer": text, text[:9]: [text], "extra": {"nested": {text[:9]: math.nan}}}]
        write_rows(tmp_path / "rows.jsonl", rows)
        append_row(tmp_path / "rows.jsonl", rows[0])
        content = (tmp_path / "rows.jsonl").read_bytes()
        assert len(content.decode("utf-8").split("\n")) == 3
        found, again = read_jsonl(tmp_path / "rows.jsonl").rows
        assert found["answer"] == again["answer"] == json.loads(json.dumps(text))
