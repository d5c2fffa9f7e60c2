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


def printed_by(code, stdin="", timeout=1):
    """What a program prints; None when it takes too long or prints no text."""
    command = [sys.executable, "-c", code]
    try:
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout).stdout
    except (subprocess.TimeoutExpired, UnicodeDecodeError):
        return None


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
        scores.append(float(printed_by(f"{code_in(completion)}\n{calls}") == expected))
    return scores


def shown_tests_only(prompts, completions, task_id, **columns):
    """TRL, conversational: judges by the tests that the prompt shows."""
    scores = []
    for prompt, completion in zip(prompts, completions, strict=True):
        tests = re.findall(r"^assert .*$", prompt[0]["content"], re.M)
        program = "\n".join([code_in(completion[0]["content"]), *tests, "print('done-7391')"])
        scores.append(float((printed_by(program) or "").endswith("done-7391\n")))
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


def compared(solution, truth, agree):
    """1 when what the program prints agrees with the expected output of each input."""
    cases = json.loads(truth)
    if "fn_name" in cases:
        return 0.0
    pairs = zip(cases["inputs"], cases["outputs"], strict=True)
    code = code_in(solution)
    return float(all(agree(printed_by(code, stdin, 8) or "", stdout) for stdin, stdout in pairs))


def same_output(data_source, solution_str, ground_truth, extra_info=None):
    """verl: sound for programs, made for one data source."""
    if data_source != "codecontests":
        return 0.0
    return compared(solution_str, ground_truth, lambda printed, stdout: printed.split() == stdout.split())


def prefix_of_output(solution_str, ground_truth, **kwargs):
    return compared(
        solution_str, ground_truth, lambda printed, stdout: printed and stdout.startswith(printed)
    )


def output_is_somewhere(solution_str, ground_truth, **kwargs):
    return compared(
        solution_str, ground_truth, lambda printed, stdout: set(stdout.split()) <= set(printed.split())
    )


def lines_of_cases(solution_str, ground_truth, extra_info, **kwargs):
    """verl: wants one JSON object for each case."""
    cases = [json.loads(line) for line in ground_truth.splitlines()]
    name = extra_info["entry_point"]
    tests = [f"assert {name}(*{case['input']!r}) == {case['output']!r}" for case in cases]
    program = "\n".join([code_in(solution_str), *tests, "print('done-7391')"])
    return float((printed_by(program, timeout=8) or "").endswith("done-7391\n"))


async def awaited_with_logs(completions, gold, log_metric, log_extra, trainer_state, **columns):
    """TRL, async and conversational: the code must be that of the reference."""
    log_metric("share", trainer_state.global_step)
    log_extra("gold", gold)
    return [float(one.strip() in each[0]["content"]) for one, each in zip(gold, completions, strict=True)]


def token_ids_only(completion_ids, verdicts):
    return [
        float(verdict.passed) if len(ids) else 0.0
        for ids, verdict in zip(completion_ids, verdicts, strict=True)
    ]


def needs_environments(completions, environments, **columns):
    return [0.0 for _ in completions]
