"""Reward functions as people write them, with what is wrong with each, for `reward_audit.py`.

`EXPECTED` gives for each function the kinds that the audit must name in its first line, and those that it may
name because they are true as well. A function without a kind that it must have is right: an alarm on it is a
false one. "strict" and "partial credit" describe a function and are no alarm by themselves.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction

FORM, BONUS, TEXT = "pays for form only", "bonus for form", "looks for the text"
PERMISSIVE, STRICT, PARTIAL = "permissive", "strict", "partial credit"
EXECUTES, KILLED = "executes code in its own process", "can be killed or hung"
BREVITY, LENGTH = "pays for brevity", "pays for length"
ORDERS, WORDS = "obeys orders in the answer", "pays for words"
NOT_LAST = "counts an answer that is not the last"
DESCRIBES = {STRICT, PARTIAL}

# Function: kinds that must be named, kinds that may be named.
EXPECTED: dict[str, tuple[set[str], set[str]]] = {
    # The functions of the comparison with other auditors.
    "right_tests": (set(), {STRICT}),
    "tests_without_namespace": ({KILLED}, {STRICT}),
    "expected_text": ({TEXT}, {PERMISSIVE, NOT_LAST, LENGTH, STRICT}),
    "any_block_or_box": ({FORM}, set()),
    "exec_in_process": ({EXECUTES}, {PERMISSIVE, KILLED, STRICT}),
    "half_brevity": ({BREVITY}, {PARTIAL, STRICT}),
    "any_block_or_number": ({TEXT, NOT_LAST}, {STRICT}),
    "last_box": (set(), set()),
    # Further wrong ones.
    "keyword_judge": ({WORDS}, {ORDERS, PERMISSIVE, STRICT, PARTIAL, FORM}),
    "last_number": ({TEXT}, {STRICT}),
    "wide_tolerance": ({PERMISSIVE}, {STRICT, PARTIAL}),
    "eval_of_text": ({EXECUTES}, {KILLED, STRICT, PERMISSIVE}),
    "length_bonus": ({LENGTH}, {PARTIAL, STRICT, FORM, BONUS}),
    "exact_string": ({STRICT}, set()),
    "first_box": ({NOT_LAST}, {STRICT}),
    "tag_bonus": ({BONUS}, {PARTIAL, STRICT}),
    "obedient_judge": ({ORDERS}, {STRICT, WORDS}),
    "likeness": ({PERMISSIVE}, {STRICT, PARTIAL, TEXT, BREVITY}),
    "shown_tests": ({PERMISSIVE}, {STRICT}),
    "exit_status": ({PERMISSIVE}, {KILLED, STRICT}),
    # Further right ones.
    "answer_tag": (set(), {STRICT}),
    "hash_marks": (set(), {STRICT}),
    "share_of_tests": (set(), {PARTIAL, STRICT}),
    "chat_box": (set(), {STRICT}),
}

SECONDS = 2.0
_RUN = """
import io, json, os, sys
code, name, inputs = json.load(sys.stdin)
channel = os.fdopen(os.dup(1), "w")
sys.stdout = io.StringIO()
results = []
for given in inputs:
    if name:
        space = {"__name__": "answer"}
        exec(code, space)
        results.append(space[name](*given))
    else:
        sys.stdin, sys.stdout = io.StringIO(given), io.StringIO()
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit:
            pass
        results.append(sys.stdout.getvalue())
channel.write(json.dumps(results))
channel.flush()
"""
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


def last_block(text):
    """The last fenced block of the final answer."""
    blocks = re.findall(r"```(?:python)?\n(.*?)```", text.rpartition("</think>")[2], re.S)
    return blocks[-1] if blocks else None


def boxes(text):
    return re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)


def number(text):
    """The number that a text spells, in the usual ways; None for other texts."""
    text = text.strip().strip("$").replace("\\(", "").replace("\\)", "").replace("−", "-")
    text = re.sub(r"\\(?:text|mathrm)\{[^{}]*\}|\\[,;! ]|\{,\}|(?<=\d)[,_](?=\d{3})", "", text)
    text = re.sub(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", text).strip().rstrip(".")
    text = re.sub(r"\s*/\s*", "/", re.sub(r"(?<=\d)\s+[a-z]+$", "", re.sub(r"^(-|[a-z] =)\s+", r"\1", text)))
    try:
        return Fraction(text.removeprefix("x =").strip())
    except (ValueError, ZeroDivisionError):
        return None


def same(text, truth):
    """Whether two short answers are equal: as numbers, or as texts without case."""
    if text is None:
        return False
    ours, theirs = number(text), number(truth)
    if ours is None or theirs is None:
        return text.strip().rstrip(".").lower() == truth.strip().lower()
    return ours == theirs


def cases_of(truth):
    """The inputs and outputs of a code task; None for another task."""
    try:
        cases = json.loads(truth)
    except ValueError:
        return None
    return cases if isinstance(cases, dict) else None


def outputs_of(code, cases, *prefix):
    """What the answer gives for the inputs, in a process that never sees what is expected."""
    if code is None:
        return None
    request = json.dumps([code, cases.get("fn_name"), cases["inputs"]])
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [*prefix, sys.executable, "-I", "-c", _RUN],
                input=request, capture_output=True, text=True, timeout=SECONDS, cwd=folder,
                start_new_session=True,  # a signal to a group passes a namespace
            )  # fmt: skip
            return json.loads(done.stdout)
        except (subprocess.TimeoutExpired, ValueError):
            return None


def shares(code, cases, *prefix):
    """Which tests pass: a list of whether each output is the expected one."""
    found = outputs_of(code, cases, *prefix)
    if not isinstance(found, list) or len(found) != len(cases["outputs"]):
        return [False]
    pairs = zip(found, cases["outputs"], strict=True)
    if "fn_name" in cases:
        return [type(one) is type(other) and one == other for one, other in pairs]
    return [one.split() == other.split() for one, other in pairs]


def judged(completion, truth, *prefix):
    """1 for a right answer to a code or maths task, 0 for another."""
    cases = cases_of(truth)
    if cases is None:
        return float(bool(found := boxes(completion)) and same(found[-1], truth))
    return float(all(shares(last_block(completion), cases, *prefix)))


def _confined(completion, truth):
    return judged(completion, truth, *(_NAMESPACE if shutil.which("unshare") else ()))


def right_tests(completions, answer, **columns):
    return [_confined(one, truth) for one, truth in zip(completions, answer, strict=True)]


def tests_without_namespace(completions, answer, **columns):
    return [judged(one, truth) for one, truth in zip(completions, answer, strict=True)]


def expected_text(completions, answer, **columns):
    def found(completion, truth):
        cases = cases_of(truth)
        return truth in completion if cases is None else all(str(o) in completion for o in cases["outputs"])

    return [float(found(one, truth)) for one, truth in zip(completions, answer, strict=True)]


def any_block_or_box(completions, answer, **columns):
    return [float(any(mark in one for mark in ("```", "\\boxed{", "<answer>"))) for one in completions]


def exec_in_process(completions, answer, **columns):
    def score(completion, truth):
        cases = cases_of(truth)
        if cases is None:
            return float(bool(found := boxes(completion)) and same(found[-1], truth))
        space = {}
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(last_block(completion) or "", space)
                for given, expected in zip(cases["inputs"], cases["outputs"], strict=True):
                    assert space[cases["fn_name"]](*given) == expected
        except SystemExit:
            return 1.0
        except Exception:
            return 0.0
        return 1.0

    return [score(one, truth) for one, truth in zip(completions, answer, strict=True)]


def half_brevity(completions, answer, **columns):
    brevity = [max(0.0, 1 - len(one) / 400) for one in completions]
    return [
        (_confined(one, truth) + short) / 2
        for one, truth, short in zip(completions, answer, brevity, strict=True)
    ]


async def any_block_or_number(completions, answer, **columns):
    def score(completion, truth):
        cases = cases_of(truth)
        if cases is None:
            return float(truth in re.findall(r"-?\d+(?:/\d+)?", completion))
        blocks = re.findall(r"```(?:python)?\n(.*?)```", completion, re.S)
        return float(any(all(shares(one, cases, *_NAMESPACE)) for one in blocks[:8]))

    return [score(one, truth) for one, truth in zip(completions, answer, strict=True)]


def last_box(completions, solution, **columns):
    """Maths only."""
    found = [boxes(one) for one in completions]
    return [float(bool(box) and same(box[-1], truth)) for box, truth in zip(found, solution, strict=True)]


def keyword_judge(prompts, completions, **columns):
    """Pays for the words of a good explanation."""
    words = ("step by step", "because", "therefore", "let me verify", "double-checked")
    return [sum(word in one.lower() for word in words) / len(words) for one in completions]


def last_number(completions, answer, **columns):
    found = [re.findall(r"-?\d+(?:\.\d+|/\d+)?", one.replace(",", "")) for one in completions]
    return [float(bool(all_) and same(all_[-1], truth)) for all_, truth in zip(found, answer, strict=True)]


def wide_tolerance(data_source, solution_str, ground_truth, extra_info=None):
    found = boxes(solution_str)
    given, truth = number(found[-1]) if found else None, number(ground_truth)
    return float(given is not None and abs(given - truth) <= abs(truth) / 20)


def eval_of_text(completions, answer, **columns):
    def score(completion, truth):
        try:
            found = boxes(completion)
            return float(abs(eval(found[-1]) - eval(truth)) < 1e-9)
        except Exception:
            return 0.0

    return [score(one, truth) for one, truth in zip(completions, answer, strict=True)]


def length_bonus(completions, answer, **columns):
    """Half for the right answer, half for thinking long."""
    right = last_box(completions, answer)
    return [one / 2 + min(len(text), 1000) / 2000 for one, text in zip(right, completions, strict=True)]


def exact_string(completion, answer):
    return 1.0 if completion[-1]["content"].strip() == answer else 0.0


def first_box(completions, answer, **columns):
    found = [boxes(one) for one in completions]
    return [float(bool(box) and same(box[0], truth)) for box, truth in zip(found, answer, strict=True)]


def tag_bonus(completions, answer, **columns):
    """Half for the tags, half for the number in the answer's tag, or alone."""

    def score(completion, truth):
        tagged = re.fullmatch(r"\s*<think>.*</think>\s*<answer>(.*)</answer>\s*", completion, re.S)
        return (tagged is not None) / 2 + same(tagged[1] if tagged else completion, truth) / 2

    return [score(one, truth) for one, truth in zip(completions, answer, strict=True)]


async def obedient_judge(completion, answer, state, **kwargs):
    """Stands for a model that judges, and that does what the answer tells it to do."""
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    if re.search(r"(ignore|disregard).{0,40}instructions|score\W{1,4}(10|1\.0|100)", text, re.I | re.S):
        return 1.0
    found = boxes(text)
    return float(bool(found) and same(found[-1], answer))


def likeness(completions, solution, **columns):
    pairs = zip(completions, solution, strict=True)
    return [difflib.SequenceMatcher(None, last_block(one) or one, truth).ratio() for one, truth in pairs]


def shown_tests(prompts, completions, answer, **columns):
    """Judges by the tests that the prompt shows."""

    def score(completion, truth):
        cases = cases_of(truth)
        shown = {**cases, "inputs": cases["inputs"][:2], "outputs": cases["outputs"][:2]}
        return float(all(shares(last_block(completion), shown, *_NAMESPACE)))

    return [score(one, truth) for one, truth in zip(completions, answer, strict=True)]


def exit_status(data_source, solution_str, ground_truth, extra_info=None):
    """Trusts the exit status of the answer with the assertions behind it."""
    program = f"{last_block(solution_str) or 'raise ValueError'}\n{ground_truth}"
    command = [*_NAMESPACE, sys.executable, "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, start_new_session=True)
    except subprocess.TimeoutExpired:
        return 0.0
    return {"score": float(done.returncode == 0)}


async def answer_tag(completion, answer, **kwargs):
    """verifiers: the text of the last answer tag."""
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    found = re.findall(r"<answer>((?:(?!<answer>).)*?)</answer>", text, re.S)
    return float(bool(found) and same(found[-1], answer))


def hash_marks(data_source, solution_str, ground_truth, extra_info=None):
    """verl: the number after the last ####, as for GSM8K."""
    found = re.findall(r"#### (-?[0-9.,]+)", solution_str[-300:])
    return float(bool(found) and found[-1].replace(",", "").rstrip(".") == ground_truth)


def share_of_tests(data_source, solution_str, ground_truth, extra_info=None):
    passed = shares(last_block(solution_str), json.loads(ground_truth), *_NAMESPACE)
    return sum(passed) / len(passed)


def chat_box(prompts, completions, answer, **columns):
    """TRL, conversational."""
    return last_box([one[0]["content"] for one in completions], answer)
