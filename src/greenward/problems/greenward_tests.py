"""Runs single tests of a suite in the sandbox, where this file lies beside the code under test.

A test is named as `unittest` loads it (`package.test_module.Case.test_name`), or as pytest names it
(`test_file.py::test_name`; with parameters, all of them).
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import traceback
import unittest
from collections.abc import Sequence
from types import TracebackType
from typing import Any

_failures: dict[str, str | None] = {}  # of each test that was run; None: it passed


def run(names: Sequence[str]) -> None:
    """Runs tests, for `passes`."""
    for_pytest = [name for name in names if "::" in name]
    if for_pytest:
        outcomes = _Outcomes()
        pytest_main(for_pytest, outcomes)
        _failures.update(outcomes.failures)
    for name in names:
        if "::" not in name:
            _failures[name] = _unittest_failure(name)


def passes(name: str) -> None:
    """Raises `AssertionError` unless the test was run, was not skipped, and has passed."""
    if (failure := _failures.get(name, "it was not run")) is not None:
        # An address differs from run to run, and a model may be asked to repair what fails.
        raise AssertionError(re.sub(r" at 0x[0-9a-fA-F]+\b", "", f"{name}: {failure}"))


def pytest_main(arguments: Sequence[str], plugin: Any) -> None:
    """Runs pytest here, without the settings and plugins of the machine, and without its output."""
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    folder = os.getcwd()
    # Without --confcutdir, pytest also collects what lies beside the folder.
    options = ("-c", os.devnull, "--rootdir", folder, "--confcutdir", folder, "-p", "no:cacheprovider")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main([*options, "-q", *arguments], plugins=[plugin])


def _unittest_failure(name: str) -> str | None:
    suite, result = unittest.defaultTestLoader.loadTestsFromName(name), _FirstFailure()
    suite.run(result)
    if result.text is not None:
        return result.text
    return None if result.testsRun > len(result.skipped) and result.wasSuccessful() else "it was not run"


class _FirstFailure(unittest.TestResult):
    """Keeps what the first test or subtest that failed says, in the form that `_Outcomes` gives it."""

    text: str | None = None

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._keep(err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._keep(err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._keep(err)

    def _keep(self, err: tuple[type[BaseException], BaseException, TracebackType]) -> None:
        kind, error, trace = err
        if self.text is not None:
            return
        # Below the first line, a message compares the values line by line; where a module could not be
        # imported, it holds a traceback, whose last line is the error.
        message = str(error).strip()
        told = message.splitlines()[-1 if "\nTraceback (most recent call last):" in message else 0 :][:1]
        statements = _statements(trace)
        self.text = "; ".join([*dict.fromkeys(statements), ": ".join([kind.__name__, *told])])


def _statements(trace: TracebackType | None) -> list[str]:
    """The line of the test, and the innermost line that was reached outside of `unittest`."""
    frames = [
        (frame, number) for frame, number in traceback.walk_tb(trace) if "__unittest" not in frame.f_globals
    ]
    return [
        line
        for frame, number in (frames[:1] + frames[-1:])
        if (line := linecache.getline(frame.f_code.co_filename, number).strip())
    ]


class _Outcomes:
    """A plugin of pytest that keeps how tests ended; with parameters, a test has passed if all have."""

    def __init__(self) -> None:
        self.failures: dict[str, str | None] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("[")[0]
        if report.failed:
            # Of pytest's account of a failure, the lines reached (after `>`) and the error (after `E`).
            text = str(report.longrepr)
            lines = [line[1:].strip() for line in text.splitlines() if line[:1] in (">", "E")]
            told = "; ".join(line for line in lines if line and not line.startswith("Use -v to "))
            self.failures[name] = told or text.strip().rpartition("\n")[2]
        elif report.when == "call" and report.passed:
            self.failures.setdefault(name, None)
