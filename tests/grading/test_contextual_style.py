"""Each rule of contextual style, on a file whose habits are known, and that style is never paid without tests."""

from __future__ import annotations

import pytest

from greenward.config.sections import RewardTermConfig
from greenward.evaluation.figures import with_style
from greenward.evaluation.samples import EvaluationRow, Sample
from greenward.grading.extracted import Extracted
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer
from greenward.grading.style import deviations, habits, score_of
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem, hole_of

SNAKE = '''"""Prices."""


def with_tax(net_price: float, tax_rate: float) -> float:
    """The price with tax."""
    gross_price = net_price * (1 + tax_rate)
    return gross_price


def label_of(item_name: str) -> str:
    """The label of an item."""
    if item_name in ("pen", "ink"):
        return f"{item_name} (small)"
    return f"{item_name} (large)"


def price_text(net_price: float) -> str:
    """The price in words."""
    for unit_name in ("cent", "euro"):
        if net_price < 1:
            return f"{net_price} {unit_name}"
    return "a lot"


def wanted(item_count: int) -> str:
    """How many items there are."""
    ...
'''
CAMEL = """class Shop:
  def add(self, itemName):
    '''
    Add an item.
    '''
    oldCount = self.counts.get('pen', 0)
    self.counts[itemName] = oldCount + 1
    return 'item %s' % itemName

  def drop(self, itemName):
    '''
    Drop an item.
    '''
    newCount = self.counts['pen'] - 1
    if newCount < 0:
      return 'no %s' % itemName
    return 'item %s' % itemName

  def wanted(self, itemCount):
    '''
    How many items there are.
    '''
"""
HEAD = '''def wanted(item_count: int) -> str:
    """How many items there are."""
'''
PLAIN = (
    HEAD + '    item_word = "items" if item_count != 1 else "item"\n    return f"{item_count} {item_word}"\n'
)


def problem(text: str, entry_point: str = "wanted") -> Problem:
    return Problem("p", "How many items there are.", entry_point, path="shop.py", files={"shop.py": text})


def found(function: str, text: str = SNAKE, entry_point: str = "wanted") -> dict[str, int] | None:
    asked = problem(text, entry_point)
    hole = hole_of(asked)
    assert hole is not None
    return deviations(asked, hole.filled_with(function))


def test_the_habits_of_a_file_are_those_of_what_stands_around_the_function() -> None:
    known = habits(SNAKE, "wanted")
    assert known is not None and known.longest == 79
    assert known.labels == {
        "names": "snake_case",
        "quotes": '"',
        "formatting": "f-string",
        "annotations": "annotated",
        "docstrings": '""", on the first line',
        "indentation": repr("    "),
        "line_length": "within",
    }
    other = habits(CAMEL, "Shop.wanted")
    assert other is not None
    assert (other.labels["names"], other.labels["quotes"], other.labels["indentation"]) == (
        "camelCase", "'", repr("  "),
    )  # fmt: skip
    assert (other.labels["formatting"], other.labels["annotations"]) == ("%", "plain")
    # Two functions are too few to tell a habit of docstrings.
    assert "docstrings" not in other.labels
    assert habits("x = 1\n", "wanted") == habits("x = 1\n", "other")


def test_a_function_in_the_style_of_its_file_does_not_deviate() -> None:
    assert found(PLAIN) == dict.fromkeys(found(PLAIN) or {}, 0) and len(found(PLAIN) or {}) == 7
    method = (
        "  def wanted(self, itemCount):\n    '''\n    How many items there are.\n    '''\n"
        "    unitName = 'item'\n    return '%d %s' % (itemCount, unitName)\n"
    )
    assert set((found(method, CAMEL, "Shop.wanted") or {"": 1}).values()) == {0}


@pytest.mark.parametrize(
    ("rule", "body", "count"),
    [
        ("names", '    itemWord, otherWord = "item", 1\n    return itemWord\n', 2),
        (
            "names",
            "    word = netPrice = net_price = 1\n    return word\n",
            1,
        ),  # words and known names are none
        ("quotes", "    return 'items' + \"item\" + 'it\"s'\n", 1),  # the last one needs its marks
        ("quotes", "    return f'{item_count} items'\n", 1),
        ("formatting", '    return "{} items".format(item_count)\n', 1),
        ("formatting", '    return "%d items" % item_count + "{}".format(1)\n', 2),
        (
            "annotations",
            "    def inner(first, second: int):\n        return first\n    return inner(1, 2)\n",
            2,
        ),
        ("docstrings", "    def inner() -> int:\n        return 1\n    return inner()\n", 1),
        ("indentation", '    if item_count:\n      return "some"\n    return "none"\n', 1),
        ("line_length", f'    return "{"x" * 90}"\n', 1),
        ("line_length", f'    return "{"x" * 60}"\n', 0),
    ],
)
def test_each_rule_counts_what_differs_from_the_file(rule: str, body: str, count: int) -> None:
    counts = found(HEAD + body)
    assert counts is not None and counts[rule] == count
    others = {name for name, number in counts.items() if number and name != rule}
    assert others <= ({"docstrings"} if "inner" in body else set())
    assert score_of(counts) < 1 or count == 0


@pytest.mark.parametrize(
    ("docstring", "count"),
    [('"""How many."""', 0), ("'''How many.'''", 1), ('"""\n    How many.\n    """', 1), ("", 1)],
)
def test_the_form_of_a_docstring_is_compared(docstring: str, count: int) -> None:
    counts = found(f"def wanted(item_count: int) -> str:\n    {docstring}\n    return str(item_count)\n")
    assert counts is not None and counts["docstrings"] == count


def test_padding_with_what_fits_does_not_make_up_for_a_deviation() -> None:
    one = "    itemWord = 1\n"
    padding = "".join(f"    other_word_{number} = 1\n" for number in range(50))
    short, long = (found(f"{HEAD}{lines}    return itemWord\n") for lines in (one, one + padding))
    assert short is not None and long is not None and score_of(short) == score_of(long) < 1


def test_style_is_paid_for_right_answers_alone() -> None:
    asked = problem(SNAKE)
    hole = hole_of(asked)
    assert hole is not None
    term = make_reward(RewardTermConfig(name="contextual_style"))
    worse = PLAIN.replace("item_word", "itemWord")
    answers = [
        GradedAnswer(of, "", text, None if text is None else hole.filled_with(text), Verdict(status))  # type: ignore[arg-type]
        for of, text, status in [
            (asked, PLAIN, Status.PASSED),
            (asked, worse, Status.PASSED),
            (asked, PLAIN, Status.FAILED),
            (asked, PLAIN, Status.CHEATING),
            (Problem("q", "", "wanted"), PLAIN, Status.PASSED),
            (problem("def wanted(): ...\n"), PLAIN, Status.PASSED),
        ]
    ]
    scores = term.function(answers, None)  # type: ignore[arg-type]
    assert scores == [1.0, pytest.approx((6 + 0.5) / 7), 0.0, 0.0, None, None]


def test_the_figure_is_the_mean_over_right_answers() -> None:
    asked = problem(SNAKE)
    hole = hole_of(asked)
    assert hole is not None
    texts = [PLAIN, PLAIN.replace("item_word", "itemWord"), PLAIN]
    samples = [
        Sample(asked, number, text, Extracted(hole.filled_with(text))) for number, text in enumerate(texts)
    ]
    statuses = [Status.PASSED, Status.PASSED, Status.FAILED]
    rows = [EvaluationRow.of(one, Verdict(of)) for one, of in zip(samples, statuses, strict=True)]
    figures = with_style({"metrics": {}}, rows, samples)
    assert figures["metrics"]["contextual_style"]["value"] == pytest.approx((1 + (6 + 0.5) / 7) / 2)
    assert figures["style"]["answers"] == 2
    assert figures["style"]["rules"]["names"] == {"answers": 2, "kept": 1}
    assert figures["style"]["rules"]["quotes"] == {"answers": 2, "kept": 2}
    assert with_style({"metrics": {}}, rows[2:], samples[2:]) == {"metrics": {}}
