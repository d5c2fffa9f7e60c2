"""Graders for the audit: naive ones as they are found in the wild, and extremes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys


def code_in(text):
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    return blocks[0] if blocks else text


def exec_and_assert(prompts, completions, tests, **columns):
    """TRL: executes answer and assertions in the trainer's own process."""
    scores = []
    for completion, assertions in zip(completions, tests, strict=True):
        namespace = {}
        try:
            exec(code_in(completion), namespace)
            for assertion in assertions:
                exec(assertion, namespace)
            scores.append(1.0)
        except Exception:
            scores.append(0.0)
    return scores


def exit_status(data_source, solution_str, ground_truth, extra_info=None):
    """verl: pastes a prelude, the answer and the assertions together and trusts the exit status."""
    program = f"from math import *\n{code_in(solution_str)}\n{ground_truth}"
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=1)
    except subprocess.TimeoutExpired:
        return 0.0
    return {"score": float(done.returncode == 0), "acc": done.returncode == 0}


def printed_text(completions, test_cases, entry_point, **columns):
    """TRL: compares what a program prints with the expected values as text."""
    scores = []
    for completion, cases, name in zip(completions, test_cases, entry_point, strict=True):
        calls = "".join(f"print({name}(*{case['input']!r}))\n" for case in cases)
        expected = "".join(f"{case['output']}\n" for case in cases)
        program = f"{code_in(completion)}\n{calls}"
        try:
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=1)
            scores.append(float(done.stdout == expected))
        except (subprocess.TimeoutExpired, UnicodeDecodeError):
            scores.append(0.0)
    return scores


def shown_tests_only(prompts, completions, task_id, **columns):
    """TRL, conversational: judges by the tests that the prompt shows."""
    scores = []
    for prompt, completion in zip(prompts, completions, strict=True):
        tests = re.findall(r"^assert .*$", prompt[0]["content"], re.M)
        program = "\n".join([code_in(completion[0]["content"]), *tests, "print('done-7391')"])
        try:
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=1)
            scores.append(float(done.stdout.endswith("done-7391\n")))
        except subprocess.TimeoutExpired:
            scores.append(0.0)
    return scores


def bare_code_only(data_source, solution_str, ground_truth, extra_info=None):
    """verl: wants a JSON list of assertions, and code without fences."""
    program = "\n".join([solution_str, *json.loads(ground_truth)])
    return float(
        subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=1).returncode == 0
    )


def everything(completions, **columns):
    return [1.0 for _ in completions]


def nothing(completions, **columns):
    return [0.0 for _ in completions]


def one_for_any_code(answers):
    return [float(answer.code is not None) for answer in answers]


def raises(completions, **columns):
    raise KeyError("tests_of_mine")


def needs_more(completions, rubric):
    return [0.0]


def leaves(completions, **columns):
    os._exit(3)
