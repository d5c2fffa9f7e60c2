"""The programs that run suites of tests in the sandbox, and the fields of problems that they judge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from greenward.problems.problem import InProcess

_RUNNER_MODULE = "__import__('greenward_tests')"
_PASSES = f"{_RUNNER_MODULE}.passes"
_RUNNERS_CALL = re.compile(
    re.escape(_PASSES) + r"\((?:.*?expected it to pass, raised AssertionError: (.*)|'([^']*)'\))", re.DOTALL
)
RUNNER, TRACER = "greenward_tests.py", "greenward_trace.py"


def sandboxed(name: str) -> str:
    """The text of a program that runs in the sandbox beside a suite."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def traced_rows(printed: str) -> Iterator[Any]:
    """The rows that `TRACER` printed, and whatever JSON the tests printed."""
    for line in printed.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield row


def run_by_runner(names: Sequence[str], demand: str = "passes") -> dict[str, Any]:
    """The fields of a problem that is judged by these tests, which `RUNNER` among its test files runs.

    `demand` is the function of `RUNNER` that says of each whether it has ended as it should.
    """
    return {
        "setup_code": f"{_RUNNER_MODULE}.run({list(names)!r})",
        "tests": tuple(InProcess(f"{_RUNNER_MODULE}.{demand}({name!r})") for name in names),
    }


def without_runner(failure: str) -> str:
    """What a failing test of `run_by_runner` says, without the call of the runner."""
    found = _RUNNERS_CALL.match(failure)
    return failure if found is None else found[1] or f"{found[2]}{failure[found.end() :]}"
