"""Answers that are edits, from the prompt to the verdict and the feedback."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from greenward.common.errors import ProblemError
from greenward.config.sections import RewardTermConfig
from greenward.environments.prompts import PromptRenderer
from greenward.evaluation.samples import Sample
from greenward.grading.edits import written_edits
from greenward.grading.extracted import Extracted
from greenward.grading.judge import Grader
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer, combine
from greenward.grading.verdict import Status
from greenward.grading.verification import failing_references
from greenward.problems.formats import load_json, save_json
from greenward.problems.problem import Case, InProcess, Problem, ProblemSet
from tiny_model import CharacterTokenizer

BUGGY = 'def double(n):\n    """Return twice n."""\n    return 3 * n\n'
DOUBLE = Problem("double", "Return twice n.", "double", tests=(Case((3,), 6),), buggy_code=BUGGY)
SHOP = Problem(
    "shop",
    "Add the tax.",
    "taxed",
    path="shop/prices.py",
    buggy_code="from .rates import RATE\n\n\ndef taxed(price):\n    return price * RATE\n",
    files={"shop/__init__.py": "", "shop/rates.py": "RATE = 0.25\n"},
    test_files={"tests/test_prices.py": "from shop.prices import taxed\nassert taxed(100) == 150\n"},
    tests=(InProcess("import tests.test_prices"),),
)


def block(search, replacement, path=""):
    return f"{path}\n<<<<<<< SEARCH\n{search}=======\n{replacement}>>>>>>> REPLACE\n"


RIGHT_PRICE = block("    return price * RATE\n", "    return price + price * RATE\n", "shop/prices.py")
RIGHT_RATE = block("RATE = 0.25\n", "RATE = 0.5\n", "shop/rates.py")


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=1) as grader:
        yield grader


def renderer(answer="search_replace", chat=True, **keys):
    return PromptRenderer(CharacterTokenizer(chat=chat), answer=answer, **keys)


def verdict(grader, problem, text, **keys):
    (found,) = grader.grade([(problem, renderer(**keys).extracted(problem, text))])
    return found


class Messages(CharacterTokenizer):
    def render_next_message(self, messages, message, *, ended):
        return self.encode(message["content"])


def feedback(verdict, chat=True):
    prompts = PromptRenderer(Messages(chat=chat), answer="search_replace")
    return CharacterTokenizer().decode(prompts.feedback_ids(DOUBLE, verdict))


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("answer", ["search_replace", "diff", "function"])
def test_the_answer_that_is_written_for_a_program_passes(grader, answer, chat):
    right = BUGGY.replace("3", "2")
    text = renderer(answer, chat).written(DOUBLE, right)
    assert verdict(grader, DOUBLE, text, answer=answer, chat=chat).passed
    assert ("<<<<<<< SEARCH\n    return 3" in text) is (answer == "search_replace")
    assert ("\n-    return 3" in text) is (answer == "diff")


def test_edits_of_several_files_are_judged_together(grader):
    assert verdict(grader, SHOP, RIGHT_PRICE + RIGHT_RATE).passed
    assert verdict(grader, SHOP, RIGHT_PRICE).status is Status.FAILED
    new = block("", "RATE = 0.5\n", "shop/other.py") + block(
        "from .rates import RATE\n", "from .other import RATE\n", "shop/prices.py"
    )
    assert verdict(grader, SHOP, RIGHT_PRICE + new).passed
    deleted = "--- a/shop/rates.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-RATE = 0.25\n"
    found = verdict(grader, SHOP, deleted, answer="diff")
    assert "No module named 'shop.rates'" in found.error_message


BOTH = replace(
    SHOP,
    reference=SHOP.buggy_code.replace("return price", "return price + price"),
    reference_files={"shop/rates.py": "RATE = 0.5\n", "shop/notes.py": "NOTE = 1\n"},
)


@pytest.mark.parametrize("form", ["search_replace", "diff"])
@pytest.mark.parametrize("chat", [True, False])
def test_a_reference_of_several_files_passes_and_is_the_known_edit(grader, form, chat, tmp_path):
    save_json([BOTH], tmp_path / "both.json")
    assert list(load_json(tmp_path / "both.json")) == [BOTH]
    assert failing_references([BOTH], grader) == []
    alone = replace(BOTH, reference_files=None)
    assert "failed" in failing_references([alone], grader)[0]
    prompts = renderer(form, chat)
    text = prompts.written(BOTH, BOTH.reference)
    assert "shop/rates.py" in text and "shop/prices.py" in text and "NOTE = 1" in text
    assert verdict(grader, BOTH, text, answer=form, chat=chat).passed
    terms = [make_reward(RewardTermConfig(name=name)) for name in ("edit_similarity", "swe_rl")]
    terms[1] = make_reward(RewardTermConfig(name="swe_rl", options={"tags": False}))

    def similarities(answer):
        found = prompts.extracted(BOTH, answer)
        graded = GradedAnswer(BOTH, "", answer, found.code, verdict(grader, BOTH, answer, answer=form, chat=chat),
                              files=found.files)  # fmt: skip
        return combine(terms, [graded], grader)[0].terms

    assert similarities(text) == {"edit_similarity": 1.0, "swe_rl": 1.0}
    partial = prompts.written(alone, alone.reference)
    assert 0 < similarities(partial)["edit_similarity"] < 0.5  # one of three files
    assert similarities(partial)["swe_rl"] == pytest.approx(1 / 3)


def test_edits_of_the_tests_make_no_difference(grader):
    weaker = block("assert taxed(100) == 150\n", "\n", "tests/test_prices.py")
    assert verdict(grader, SHOP, weaker).status is Status.FAILED
    assert verdict(grader, SHOP, weaker + RIGHT_PRICE + RIGHT_RATE).passed
    gone = "--- a/tests/test_prices.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-from shop.prices import taxed\n-assert taxed(100) == 150\n"
    assert verdict(grader, SHOP, gone, answer="diff").status is Status.FAILED
    # Neither do new files that would be loaded with the tests.
    for path in ("conftest.py", "tests/conftest.py", "tests/__init__.py", "tests/new.py", "pyproject.toml"):
        found = renderer().extracted(SHOP, RIGHT_PRICE + block("", "x = 1\n", path))
        assert found.files == () and found.code
    # Neither does what claims to have been extracted.
    tampered = Extracted(SHOP.buggy_code, files=(("tests/test_prices.py", ""),))
    assert grader.grade([(SHOP, tampered)])[0].status is Status.FAILED


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("I give up.", Status.EDIT_MALFORMED),
        ("<<<<<<< SEARCH\n", Status.EDIT_MALFORMED),
        (block("    return 4 * n\n", "    return 2 * n\n"), Status.EDIT_NOT_FOUND),
        (block("    return 3 * n\n", "    return 3 * n\n"), Status.EDIT_NO_OP),
        (block("", "x\n", "../x.py"), Status.EDIT_OUTSIDE),
        (block(BUGGY, ""), Status.NO_CODE),
        (block("    return 3 * n\n", "    return 2 *\n"), Status.SYNTAX_ERROR),
        ("x" * (1 << 21), Status.EDIT_MALFORMED),
        (block("", "é" * (1 << 19) + "\n", "b.py"), Status.ERROR),
    ],
)
def test_an_answer_that_cannot_be_judged_has_its_status(grader, text, status):
    found = verdict(grader, DOUBLE, text)
    assert (found.status, found.tests_passed) == (status, (False,))


def test_what_is_wrong_with_edits_is_the_feedback(grader):
    text = block("    return 4 * n\n", "    return 2 * n\n")
    failed = verdict(grader, DOUBLE, text)
    assert "This line is not there: '    return 4 * n'. Nearest is line 3" in failed.failure
    for chat in (True, False):
        said = feedback(failed, chat)
        assert "Your edits cannot be applied: Edit 1: the lines" in said
        assert ("edits of the original program" in said) is chat
        assert said.endswith("# Edit:\n") is not chat
    wrong = verdict(grader, DOUBLE, block("    return 3 * n\n", "    return 4 * n\n"))
    assert "A test fails: double(3): expected 6, got 12" in feedback(wrong)


def test_reasoning_before_the_edits_is_not_read_in_chat_style(grader):
    draft = block("    return 3 * n\n", "    return 9 * n\n")
    final = block("    return 3 * n\n", "    return 2 * n\n")
    assert verdict(grader, DOUBLE, f"<think>{draft}</think>{final}").passed


def test_the_prompt_shows_the_files_and_the_form():
    text = renderer().prompt_text(SHOP)
    assert "shop/rates.py\n```python\nRATE = 0.25\n```" in text and "<<<<<<< SEARCH" in text
    assert "test_prices" not in text and "== 150" not in text
    large = replace(SHOP, files={"a.py": "a\n", "b.py": "b" * 20_000, "c.py": "c\n"})
    assert [f"{name}.py\n" in renderer().prompt_text(large) for name in "abc"] == [True, False, False]
    assert "unified diff" in renderer("diff").prompt_text(SHOP)
    text = renderer(chat=False, show_failing_test=True).prompt_text(
        replace(DOUBLE, failing_test="double(3): 9")
    )
    assert text == f"# Wrong:\n{BUGGY}# double(3): 9\n# Edit:\n"


def test_the_completion_prompt_shows_paths_and_the_other_files():
    text = renderer(chat=False).prompt_text(SHOP)
    assert text == (
        "# Add the tax.\n# File: shop/rates.py\nRATE = 0.25\n# File: shop/__init__.py\n\n"
        f"# Wrong: shop/prices.py\n{SHOP.buggy_code}# Edit:\n"
    )
    large = replace(SHOP, files={"a.py": "a\n", "b.py": "b" * 20_000})
    shown = renderer(chat=False).prompt_text(large)
    assert "# File: a.py" in shown and "b.py" not in shown


def test_a_problem_without_a_program_to_edit_is_refused():
    with pytest.raises(ProblemError, match="no program to edit"):
        renderer().prompt_text(replace(DOUBLE, buggy_code=""))


def test_written_edits_of_a_long_program_are_short():
    program = "".join(f"def f{n}():\n    return {n}\n\n\n" for n in range(50))
    problem = replace(DOUBLE, buggy_code=program)
    text = written_edits(problem, program.replace("return 7\n", "return 8\n"), "search_replace")
    assert text.count("\n") == 5
    # A line that occurs twice takes as many neighbours as make it unique.
    same = "a = 1\nb = 2\na = 1\nc = 3\n"
    text = written_edits(replace(DOUBLE, buggy_code=same), "a = 1\nb = 2\na = 5\nc = 3\n", "search_replace")
    assert text == "<<<<<<< SEARCH\na = 1\nc = 3\n=======\na = 5\nc = 3\n>>>>>>> REPLACE\n"


def test_samples_of_edits_survive_their_file():
    problems = ProblemSet([SHOP])
    for text in (RIGHT_PRICE + RIGHT_RATE, "no edit"):
        sample = Sample(SHOP, 0, text, renderer().extracted(SHOP, text))
        assert Sample.from_json(json.loads(json.dumps(sample.to_json())), problems) == sample
