"""What was learned: kinds of failure, form and content, problems newly solved, the curve of pass@k."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from math import comb
from statistics import fmean

import pytest
from synthetic_study import write_seed

from greenward.reports.document import Charts, Paragraph, Table
from greenward.reports.learned import FORM, failure_kind, learned
from greenward.reports.training import training_report

PASSED = {"status": "passed", "code": "x", "error_class": None}
WRONG = {"status": "failed", "code": "x", "error_class": None}
TORN = {"status": "syntax_error", "code": "x", "truncated": True}


def evaluation(problems: dict[str, list[dict]]) -> dict:
    rows = [
        {"task_id": name, "samples": len(answers), "passed": answers.count(PASSED), "answers": answers}
        for name, answers in problems.items()
    ]
    return {"step": 0, "metrics": {}, "rates": {}, "rows": rows}


def random_evaluation(rng: random.Random, problems: int, samples: int, better: float) -> dict:
    kinds = [PASSED, WRONG, TORN, {"status": "error", "error_class": "TypeError", "code": "x"}]
    weights = [better, 1, 1.5 - better, 0.5]
    return evaluation({f"p{i}": rng.choices(kinds, weights, k=samples) for i in range(problems)})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (PASSED, None),
        (WRONG, "wrong value"),
        ({**WRONG, "truncated": True}, "wrong value"),  # the program was whole
        ({"status": "wrong_type"}, "wrong value"),
        ({"status": "syntax_error", "code": "x"}, "syntax error"),
        (TORN, "cut off at the limit of tokens"),
        ({"status": "no_code", "truncated": True}, "cut off at the limit of tokens"),
        ({"status": "no_code", "code": None}, "no program found in the answer"),
        ({"status": "no_code", "code": "x", "extraction_failure": "empty"}, "no program found in the answer"),
        ({"status": "no_code", "code": "def f(): pass"}, "another name than asked for"),
        ({"status": "edit_not_found", "code": None}, "edits that cannot be applied"),
        ({"status": "edit_malformed", "truncated": True}, "cut off at the limit of tokens"),
        ({"status": "timeout", "code": "x"}, "timeout"),
        ({"status": "infrastructure", "code": "x"}, "lost to the infrastructure"),
        ({"status": "error", "error_class": "ModuleNotFoundError"}, "import missing or failing"),
        ({"status": "error", "error_class": "IndexError"}, "exception"),
    ],
)
def test_each_answer_has_one_kind(answer: dict, kind: str | None) -> None:
    assert failure_kind(answer) == kind


@pytest.mark.parametrize(
    ("name", "kind"), [("math", FORM[4]), ("List", FORM[4]), ("defaultdict", FORM[4]), ("ys", "exception")]
)
def test_a_name_of_the_standard_library_that_is_not_defined_is_a_missing_import(name: str, kind: str) -> None:
    answer = {"status": "error", "error_class": "NameError", "error_message": f"name '{name}' is not defined"}
    assert failure_kind(answer) == kind


@pytest.mark.parametrize("seed", range(5))
def test_counts_and_parts_agree_with_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    before, after = random_evaluation(rng, 40, 6, 0.4), random_evaluation(rng, 40, 6, 1.2)
    found = learned([before], [after])
    assert found is not None and found.kinds is not None and found.gain is not None
    flat = [[one for row in e["rows"] for one in row["answers"]] for e in (before, after)]
    assert found.answers == (240, 240)
    for name, counts in found.kinds.items():
        assert counts == tuple(sum(failure_kind(one) == name for one in answers) for answers in flat)
    failing = [sum(one != PASSED for one in answers) for answers in flat]
    assert [sum(counts[side] for counts in found.kinds.values()) for side in (0, 1)] == failing

    formed = [sum(one != TORN for one in answers) / 240 for answers in flat]
    rates = [answers.count(PASSED) / 240 for answers in flat]
    gain = found.gain
    assert gain.formed == pytest.approx(formed)
    assert (
        gain.whole.value
        == pytest.approx(rates[1] - rates[0])
        == pytest.approx(gain.form.value + gain.content.value)
    )
    # The mean of both orders in which the two factors can change.
    passing = [rate / share for rate, share in zip(rates, formed, strict=True)]
    first = (formed[1] - formed[0]) * passing[0]
    last = (formed[1] - formed[0]) * passing[1]
    assert gain.form.value == pytest.approx((first + last) / 2)
    for part in (gain.whole, gain.form, gain.content):
        assert part.low <= part.value <= part.high


@pytest.mark.parametrize("seed", range(5))
def test_newly_solved_problems_and_the_curve_agree_with_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    before, after = random_evaluation(rng, 30, 4, 0.2), random_evaluation(rng, 30, 4, 0.6)
    found = learned([before], [after])
    assert found is not None
    passed = [[one == PASSED for one in row["answers"]] for row in before["rows"]]
    passes = [[one == PASSED for one in row["answers"]] for row in after["rows"]]
    never = [i for i in range(30) if not any(passed[i])]
    assert found.solved.never_before == len(never) and found.solved.before == 30 - len(never)
    assert found.solved.newly == sum(any(passes[i]) for i in never)
    assert found.solved.no_longer == sum(any(passed[i]) and not any(passes[i]) for i in range(30))
    # Of all orders of a problem's eight answers, those in which the first four fail and another passes.
    by_chance = 0.0
    for i in range(30):
        answers = passed[i] + passes[i]
        halves = list(itertools.combinations(range(8), 4))
        by_chance += sum(any(answers) and not any(answers[j] for j in half) for half in halves) / len(halves)
    assert found.solved.by_chance == pytest.approx(by_chance)
    for k in range(1, 5):
        for side, outcomes in enumerate((passed, passes)):
            exact = fmean(
                sum(any(chosen) for chosen in itertools.combinations(one, k)) / comb(4, k) for one in outcomes
            )
            assert found.curve[k][side].value == pytest.approx(exact)
    assert set(found.curve) == {1, 2, 3, 4}
    assert found.lead is not None
    assert found.lead.value == pytest.approx(found.curve[1][1].value - found.curve[4][0].value)


def test_chance_is_what_chance_gives_where_nothing_was_learned() -> None:
    rng = random.Random(0)
    newly, by_chance = 0, 0.0
    for _ in range(30):
        rates = [rng.random() ** 3 for _ in range(60)]
        both = [
            evaluation(
                {
                    f"p{i}": [PASSED if rng.random() < rate else WRONG for _ in range(4)]
                    for i, rate in enumerate(rates)
                }
            )
            for _ in range(2)
        ]
        found = learned([both[0]], [both[1]])
        assert found is not None
        newly, by_chance = newly + found.solved.newly, by_chance + found.solved.by_chance
    assert newly > 100 and newly == pytest.approx(by_chance, rel=0.15)


def test_seeds_are_counted_together_and_a_seed_that_has_not_ended_is_left_out() -> None:
    first, last = evaluation({"a": [WRONG, WRONG]}), evaluation({"a": [PASSED, WRONG], "b": [PASSED]})
    found = learned([first, first, None], [last, last, last])
    assert found is not None and found.answers == (4, 4) and found.solved.newly == 2
    assert found.curve[1][1].value == 0.5
    assert learned([first], [None]) is None and learned([None], [last]) is None
    assert learned([first], [evaluation({"b": [PASSED]})]) is None


def test_without_the_answers_nothing_is_said_of_form() -> None:
    first, last = evaluation({"a": [WRONG, WRONG]}), evaluation({"a": [PASSED, WRONG]})
    last["rows"][0]["answers"] = last["rows"][0]["answers"][:1]
    found = learned([first], [last])
    assert found is not None and found.kinds is None and found.gain is None and found.solved.newly == 1


def test_many_answers_have_a_curve_of_few_points() -> None:
    row = {"task_id": "a", "samples": 5000, "passed": 100}
    found = learned([{"rows": [row]}], [{"rows": [row]}])
    assert found is not None and len(found.curve) <= 64 and max(found.curve) == 5000


def test_the_report_of_a_training_says_it(tmp_path) -> None:
    report = training_report(write_seed(tmp_path / "run", problems=30))
    (found,) = [one for one in report.sections if one.title == "What was learned"]
    text = " ".join(block.text for block in found.blocks if isinstance(block, Paragraph))
    assert "pass@1 after" in text and "chance alone would give" in text
    (chart,) = next(block for block in found.blocks if isinstance(block, Charts)).charts
    assert [line.name for line in chart.series] == ["before", "after"]
    assert report.data["learned"]["solved"]["samples"] == (8, 8)
    assert not Counter(isinstance(block, Table) for block in found.blocks)[True] > 1
