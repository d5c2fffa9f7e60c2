"""What an answer may write on its result channel: bytes of any kind are its own doing, never an exception."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenward.grading.testcases import judge, make_plan
from greenward.grading.verdict import Status
from greenward.problems.problem import Case, Comparison, Problem
from greenward.sandbox.protocol import Call, CallResult, Job, Outcome, RunResult
from greenward.sandbox.workers import Attempt

NONCE = "0123456789abcdef" * 2
ATTEMPT = Attempt(0, Job("", "f", (Call((0,)), Call((1,)))), nonce=NONCE)
KINDS = ("value", "raised", "opaque", "ended", "done", "ready", "passed")
TAGS = ("tuple", "set", "frozenset", "dict", "int", "float", "bytes", "complex", "deque", "bytearray", "Decimal",
        "Fraction", "date", "datetime", "time", "timedelta", "range", "eval")  # fmt: skip
ATOMS = (
    st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | st.floats()
    | st.text(max_size=5) | st.sampled_from(["\ud800", "0x" + "f" * 9000, "NaN", "1e999999", "zz", *KINDS])
)  # fmt: skip
JSON = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(TAGS), inner, min_size=1, max_size=1)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=12,
)
FRAMES = st.lists(st.sampled_from(KINDS) | JSON, max_size=4) | JSON


def frame(text: bytes, *, nonce: str = NONCE, more: int = 0) -> bytes:
    return nonce.encode() + struct.pack("!I", max(0, len(text) + more)) + text


def report(results: bytes, **header) -> RunResult:
    header = {
        "ready": True, "killed": None, "exit": 0, "usage": {}, "lengths": [len(results), 0, 0], "call_seconds": [], **header,
    }  # fmt: skip
    return ATTEMPT.read_report(False, header, results, ())


PLANS = [
    make_plan(
        Problem("t", "", "f", tests=(Case((0,), expected), Case((1,), expected)), comparison=comparison)
    )
    for expected, comparison in (
        (1, Comparison()),
        (0.5, Comparison(relative_tolerance=0.1)),
        ({1: (2.5, "x")}, Comparison(tuple_is_list=True)),
        ({1, 2}, Comparison(rule="same_set")),
        ("x", Comparison(rule="not_none")),
    )
]


def is_the_answers_fault(result: RunResult) -> None:
    assert result.outcome is not Outcome.INFRASTRUCTURE
    for plan in PLANS:
        verdict = judge(plan, result)
        assert verdict.status is not Status.INFRASTRUCTURE
        assert all(ord(letter) >= 32 for letter in verdict.error_message + (verdict.error_class or ""))
        json.dumps([verdict.error_message, verdict.first_failure]).encode("utf-8")
        (verdict.error_message + verdict.first_failure).encode("utf-8")


@settings(max_examples=120, deadline=None)
@given(st.lists(FRAMES, max_size=4), st.integers(-3, 3), st.binary(max_size=8), st.integers(0, 40))
def test_no_frame_of_any_shape_raises_or_blames_the_infrastructure(frames, wrong_length, tail, cut):
    texts = [json.dumps(one).encode("ascii") for one in frames]
    is_the_answers_fault(report(b"".join(map(frame, texts))))
    data = b"".join(frame(text, more=wrong_length) for text in texts) + tail
    is_the_answers_fault(report(data[: max(0, len(data) - cut)]))


@settings(max_examples=80, deadline=None)
@given(JSON, JSON)
def test_no_value_that_can_be_decoded_breaks_the_comparison(first, second):
    results = b"".join(
        frame(json.dumps(["value", place, value]).encode("ascii"))
        for place, value in enumerate((first, second))
    )
    is_the_answers_fault(report(results + frame(b'["done"]')))


@pytest.mark.parametrize(
    "text",
    [
        b"[[],0]", b'[{"dict":[]},0]', b'["ended",[],"",""]', b'["ended",{"set":[]},"",""]', b"[[[[[]]]]]",
        b'["ended",{"dict":[]},"",""]', b'["raised",0,[],{}]', b"[NaN]", b"[" * 5000, b"[" * 500 + b"]" * 500,
        b'["value",0,' + b"9" * 10_000 + b"]", b'["value",0,"\\ud800"]', b"\xff", b"", b"{}", b"null",
    ],
    ids=range(16),
)  # fmt: skip
def test_frames_that_are_none_of_ours_are_cheating_and_odd_text_is_not(text):
    result = report(frame(text) + frame(b'["value",1,1]') + frame(b'["done"]'))
    assert result.outcome is (Outcome.COMPLETED if b"ud800" in text else Outcome.CHEATING)
    is_the_answers_fault(result)


@pytest.mark.parametrize("forged", [0, 1, 2])
def test_a_frame_without_the_nonce_is_cheating_and_only_what_came_before_it_counts(forged):
    """The expected values of an answer that guesses them are right in every frame; its nonce is not."""
    texts = [b'["value",0,1]', b'["value",1,1]', b'["done"]']
    proven = report(b"".join(map(frame, texts)))
    assert proven.outcome is Outcome.COMPLETED and judge(PLANS[0], proven).passed
    for nonce in ("0" * 32, NONCE[::-1], NONCE[:-1] + "0"):
        nonces = [nonce if place == forged else NONCE for place in range(3)]
        result = report(b"".join(frame(text, nonce=one) for text, one in zip(texts, nonces, strict=True)))
        assert result.outcome is Outcome.CHEATING and len(result.results) == forged
        assert not judge(PLANS[0], result).passed


def test_only_what_ended_before_its_layers_were_on_is_the_infrastructures_fault():
    for results in (b"", frame(b'["done"]'), b"garbage"):
        assert report(results, ready=False).outcome is Outcome.INFRASTRUCTURE
    for exit_code in (0, 1, -9, -24):
        assert report(b"", exit=exit_code).outcome is not Outcome.INFRASTRUCTURE


def test_a_value_that_breaks_its_comparison_fails_this_answer_only(monkeypatch):
    def surprise(*_):
        raise ZeroDivisionError("a fault of ours that an answer found")

    monkeypatch.setattr("greenward.grading.testcases.matches", surprise)
    verdict = judge(PLANS[0], RunResult(Outcome.COMPLETED, (CallResult(True, 1), CallResult(True, 1))))
    assert (verdict.status, verdict.error_class) == (Status.WRONG_TYPE, "ZeroDivisionError")
    assert verdict.tests_passed == (False, False)
