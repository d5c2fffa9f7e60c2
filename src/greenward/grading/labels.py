"""Judges answers that say whether a function is vulnerable, with reasons and, where stated, confidence.

The answer is `vulnerable` with a weakness, `safe`, or `unsure`. A reason cites lines and what they call:
    <think>
    line 4: os.system
    </think>
    <answer>vulnerable CWE-78, 90 %</answer>
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from keyword import iskeyword
from typing import Literal

from greenward.common.errors import RewardError
from greenward.grading.rewards import GradedAnswer, per_answer
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Label, Problem

Answered = Literal["vulnerable", "safe", "unsure"]
MAX_CITED = 200
MAX_CHARS = 1 << 16

_ANSWER = re.compile(
    r"<answer>\s*(vulnerable|safe|unsure)\b(?:[^<\d]{0,40}?\bCWE[- ]?0*(\d{1,5}))?"
    r"(?:[^<%]{0,200}?(?<![\d.])(\d{1,3}(?:\.\d{1,9})?)\s{0,9}%)?[^<]{0,200}</answer>",
    re.IGNORECASE,
)
_CITED = re.compile(
    r"\blines?\s{1,9}(\d{1,6}(?:\s{0,9}(?:,\s{0,9}and\b|,|-|–|and\b|to\b)\s{0,9}\d{1,6}){0,50})"
    r"(?:\s{0,9}:\s{0,9}([A-Za-z_][\w.]{0,100}))?",
    re.IGNORECASE,
)
_RANGE = re.compile(r"(\d+)(?:\s*(?:-|–|to)\s*(\d+))?")
_TAGS = re.compile(r"</?(?:think|answer)>")
_SAID: dict[str, Answered] = {"vulnerable": "vulnerable", "safe": "safe", "unsure": "unsure"}
_STRICT = ["<think>", "</think>", "<answer>", "</answer>"]

LABEL_INSTRUCTION = (
    "Does this function have a security vulnerability?\n\n{code}\n\nReason between <think> and </think>, "
    "citing lines as `line 4: os.system`. Then write <answer>vulnerable CWE-78</answer> with the weakness, "
    "<answer>safe</answer> or <answer>unsure</answer>; you may add your confidence, as in "
    "<answer>safe, 80 %</answer>."
)


@dataclass(frozen=True)
class LabelAnswer:
    """What an answer says. `said` is None without a label that can be read.

    `confidence` is in [0, 1]; `lines` are the cited ones and `sinks` the names beside them. `strict`: the
    tags are all there, once and in order, with nothing outside of them.
    """

    said: Answered | None
    cwe: str | None = None
    confidence: float | None = None
    lines: frozenset[int] = frozenset()
    sinks: tuple[str, ...] = ()
    strict: bool = False

    def detects(self, label: Label) -> bool:
        """Whether it is right about there being a vulnerability."""
        return self.said == ("vulnerable" if label.vulnerable else "safe")


def label_question(problem: Problem, *, chat: bool) -> str:
    """The function with numbered lines, after an instruction for models that follow one."""
    lines = problem.prompt.rstrip().split("\n")
    code = "\n".join(f"{number} {line}".rstrip() for number, line in enumerate(lines, start=1))
    return LABEL_INSTRUCTION.format(code=code) if chat else f"{code}\n"


def written_label(label: Label, code: str) -> str:
    """The answer that gives `label` and cites its lines of `code` with what is called there first."""
    lines = code.split("\n")
    calls = {number: called_in(lines[number - 1]) for number in label.lines or ()}
    cited = "".join(f"line {n}: {names[0]}\n" if names else f"line {n}\n" for n, names in calls.items())
    text = f"vulnerable {label.cwe}" if label.vulnerable else "safe"
    return f"<think>\n{cited}</think>\n<answer>{text}</answer>"


def called_in(line: str) -> list[str]:
    """The names that are called in a line, such as `os.system`."""
    return [name for name in re.findall(r"[A-Za-z_][\w.]*(?=\()", line) if not iskeyword(name)]


def parse_label(text: str) -> LabelAnswer:
    """Reads an answer, in linear time; only its first `MAX_CHARS` characters count.

    The last label after the reasoning holds.
    """
    text = text[:MAX_CHARS].strip()
    reason, _, after = text.rpartition("</think>")
    found = list(_ANSWER.finditer(after.partition("<think>")[0]))
    numbers: set[int] = set()
    sinks = []
    for cited, sink in _CITED.findall(reason):
        for first, last in _RANGE.findall(cited):
            numbers.update(range(int(first), min(int(last or first), int(first) + MAX_CITED) + 1))
        sinks += [sink.rstrip(".")] if sink else []
        if len(numbers) > MAX_CITED:
            break
    said, cwe, confidence = found[-1].groups() if found else ("", None, None)
    is_strict = _TAGS.findall(text) == _STRICT and text.startswith("<think>") and text.endswith("</answer>")
    return LabelAnswer(
        _SAID.get(said.lower()),
        f"CWE-{cwe}" if cwe else None,
        min(float(confidence), 100.0) / 100 if confidence else None,
        frozenset(numbers),
        tuple(sinks[:MAX_CITED]),
        strict=bool(found) and is_strict,
    )


def judge_label(label: Label, text: str | None) -> Verdict:
    """The verdict on an answer: its first test is the detection, the second one the weakness of a
    vulnerability.

    It has passed if both are right; an abstention and an answer without a label have statuses of their own.
    """
    tests = 2 if label.vulnerable else 1
    answer = parse_label(text or "")
    if answer.said is None:
        message = (
            "expected <answer>vulnerable CWE-…</answer>, <answer>safe</answer> or <answer>unsure</answer>"
        )
        return Verdict(Status.NO_LABEL, (False,) * tests, error_message=message)
    if answer.said == "unsure":
        return Verdict(Status.ABSTAINED, (False,) * tests)
    detected = answer.detects(label)
    passed = (detected, detected and answer.cwe == label.cwe) if label.vulnerable else (detected,)
    if all(passed):
        return Verdict(Status.PASSED, passed)
    wanted = f"vulnerable {label.cwe}" if label.vulnerable else "safe"
    given = " ".join(filter(None, (answer.said, answer.cwe if answer.said == "vulnerable" else None)))
    return Verdict(Status.FAILED, passed, first_failure=f"expected {wanted}, found {given}")


def evidence(label: Label, answer: LabelAnswer, code: str) -> float | None:
    """How well the reason fits what the fix changed, in [0, 1]; None where no line of this version changed.

    0.7 of it is the F1 score of the cited lines against the changed ones, 0.3 the share of the names beside
    them that are called on a changed line, as they stand there or without what comes before a dot. Where
    nothing is called on the changed lines, it is the F1 score.
    """
    if not label.lines:
        return None
    changed, lines = set(label.lines), code.split("\n")
    f1 = 2 * len(changed & answer.lines) / (len(changed) + len(answer.lines))
    called = {name for number in changed if number <= len(lines) for name in called_in(lines[number - 1])}
    if not called:
        return f1
    parts = [name.split(".") for name in called]
    known = {".".join(one[start:]) for one in parts for start in range(len(one))}  # `a.b.c`, `b.c` and `c`
    there = [sink in known for sink in answer.sinks]
    return 0.7 * f1 + 0.3 * (sum(there) / len(there) if there else 0.0)


@per_answer
def detection(answer: GradedAnswer) -> float:
    """1 for the right answer to whether there is a vulnerability, 0 for an abstention, else -1."""
    if answer.verdict.status is Status.ABSTAINED:
        return 0.0
    return 1.0 if answer.verdict.tests_passed[:1] == (True,) else -1.0


@per_answer
def weakness(answer: GradedAnswer) -> float | None:
    """1 where a vulnerability is named as the weakness that it is, else 0; for vulnerable functions only."""
    return float(answer.verdict.passed) if _label(answer).vulnerable else None


@per_answer
def fitting_evidence(answer: GradedAnswer) -> float | None:
    """How well the reason fits the lines that the fix changed (`evidence`)."""
    return evidence(_label(answer), parse_label(answer.completion), answer.problem.prompt)


def _label(answer: GradedAnswer) -> Label:
    if answer.problem.label is None:
        raise RewardError(
            f"{answer.problem.task_id} has tests and no label.",
            remedy="Take this term for problems to classify (problems.train=vulnerabilities).",
        )
    return answer.problem.label
