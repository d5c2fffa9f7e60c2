"""The figures of classifiers: closed forms of random and constant ones, and hand-computed examples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from greenward.tasks.vulnerability.labels import Classified, Label, LabelAnswer, classification_figures


def items(said: list[tuple[str | None, str | None]], confidence: float | None = None) -> list[Classified]:
    """Pairs: what was said of the vulnerable version and of the fixed one."""
    found = []
    for number, both in enumerate(said):
        for one, vulnerable in zip(both, (True, False), strict=True):
            answer = LabelAnswer(one, "CWE-89", confidence)  # type: ignore[arg-type]
            found.append(Classified(Label(vulnerable, "CWE-89", f"pair {number}"), (answer,)))
    return found


def scored(scores: list[float], vulnerable: bool, start: int = 0) -> list[Classified]:
    label = Label(vulnerable, "CWE-89", "")
    return [
        Classified(
            Label(vulnerable, label.cwe, f"{start + n}"), (LabelAnswer("vulnerable", confidence=score),)
        )
        for n, score in enumerate(scores)
    ]


@pytest.mark.parametrize("said", ["vulnerable", "safe"])
def test_a_constant_classifier_gets_half_of_all_and_no_pair(said: str) -> None:
    found = classification_figures(items([(said, said)] * 100))
    assert found["accuracy"]["value"] == 0.5 and found["auc"] == 0.5
    pairs = {name: one["value"] for name, one in found["pairs"].items() if name != "whole"}
    right = {"vulnerable": "vulnerable", "safe": "benign"}[said]
    assert pairs == {
        **dict.fromkeys(("correct", "vulnerable", "benign", "reversed", "undecided"), 0.0), right: 1.0
    }  # fmt: skip
    assert found["recall"] == float(said == "vulnerable")
    assert found["vd_s"] is None  # 100 benign functions are too few


@pytest.mark.parametrize("probability", [0.5, 0.2])
def test_a_random_classifier_gets_the_closed_form(probability: float) -> None:
    rng = np.random.default_rng(0)
    drawn = rng.random((20_000, 2)) < probability
    said = [tuple("vulnerable" if one else "safe" for one in row) for row in drawn]
    found = classification_figures(items(said))  # type: ignore[arg-type]
    p = probability
    expected = {
        "correct": p * (1 - p), "reversed": p * (1 - p), "vulnerable": p * p, "benign": (1 - p) ** 2
    }  # fmt: skip
    for name, value in expected.items():
        one = found["pairs"][name]
        assert one["value"] == pytest.approx(value, abs=5 * math.sqrt(0.25 / 20_000))
        assert one["low"] < one["value"] < one["high"]
    assert found["accuracy"]["value"] == pytest.approx(0.5, abs=0.02)
    assert found["auc"] == pytest.approx(0.5, abs=0.02)


def test_a_random_score_misses_all_but_the_share_of_false_alarms() -> None:
    rng = np.random.default_rng(1)
    good, bad = rng.random(20_000).tolist(), rng.random(20_000).tolist()
    found = classification_figures([*scored(bad, True), *scored(good, False, 20_000)])
    assert found["vd_s"] == pytest.approx(0.995, abs=0.003)
    assert found["auc"] == pytest.approx(0.5, abs=0.02)


def test_the_threshold_of_vd_s_allows_one_false_alarm_in_200() -> None:
    good = [0.1] * 199 + [0.9]
    found = classification_figures([*scored([0.95, 0.5, 0.05, 0.1], True), *scored(good, False, 10)])
    assert found["vd_s"] == 0.5  # above 0.1: 0.95 and 0.5
    good = [0.1] * 198 + [0.9, 0.9]
    found = classification_figures([*scored([0.95, 0.5, 0.05, 0.1], True), *scored(good, False, 10)])
    assert found["vd_s"] == 0.75  # the threshold is 0.9


def test_abstentions_and_answers_without_a_label_are_counted_apart() -> None:
    found = classification_figures(
        items([("vulnerable", "safe"), ("unsure", "safe"), (None, "vulnerable"), ("safe", "vulnerable")])
    )
    assert (found["abstained"], found["no_label"]) == (1, 1)
    shares = {name: one["value"] for name, one in found["pairs"].items() if name != "whole"}
    assert shares == {"correct": 0.25, "vulnerable": 0, "benign": 0, "reversed": 0.25, "undecided": 0.5}
    assert found["accuracy"]["value"] == 3 / 8
    assert (found["precision"], found["recall"]) == (1 / 3, 1 / 4)
    assert found["f1"] == pytest.approx(2 / 7)


def test_calibration_of_stated_confidence() -> None:
    found = classification_figures(items([("vulnerable", "safe"), ("safe", "vulnerable")], 0.8))[
        "calibration"
    ]
    assert found["stated"] == 4 and found["accuracy"] == 0.5
    assert found["ece"] == pytest.approx(0.3)
    assert found["brier"] == pytest.approx((0.04 + 0.64) / 2)
    assert classification_figures(items([("safe", "safe")]))["calibration"] is None


def test_votes_and_their_risk() -> None:
    def item(pair: str, vulnerable: bool, *said: str) -> Classified:
        return Classified(Label(vulnerable, "CWE-78", pair), tuple(LabelAnswer(one) for one in said))  # type: ignore[arg-type]

    found = classification_figures([
        item("a", True, "vulnerable", "vulnerable", "vulnerable", "safe"),
        item("a", False, "vulnerable", "safe", "safe", "safe"),  # its first answer is wrong, its vote right
        item("b", True, "safe", "safe", "unsure", "vulnerable"),
        item("b", False, "vulnerable", "safe", "unsure", "unsure"),  # a tie
    ])  # fmt: skip
    assert found["accuracy"]["value"] == 0.25
    assert found["majority"]["accuracy"]["value"] == 0.5
    assert found["majority"]["pairs"]["correct"]["value"] == 0.5
    assert found["majority"]["risk_coverage"] == [
        {"least_share": 0.75, "coverage": 0.5, "risk": 0.0},
        {"least_share": 0.5, "coverage": 0.75, "risk": pytest.approx(1 / 3)},
    ]
