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
import sys
import traceback
import unittest
from collections.abc import Collection, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any

_NOT_RUN = "it was not run"
_failures: dict[str, str | None] = {}  # of each test that was run; None: it passed


def run(names: Sequence[str]) -> None:
    """Runs tests, for `passes` and `left_out`."""
    for_pytest = [name for name in names if "::" in name]
    if for_pytest:
        # Of a name that pytest does not find, it would say so and run none of the others.
        outcomes = _Outcomes(set(for_pytest))
        files = dict.fromkeys(name.partition("::")[0] for name in for_pytest)
        pytest_main(["--continue-on-collection-errors", *files], outcomes)
        _failures.update((name, outcomes.failure(name)) for name in for_pytest)
    for name in names:
        if "::" not in name:
            _failures[name] = _unittest_failure(name)


def passes(name: str) -> None:
    """Raises `AssertionError` unless the test was run, was not skipped, and has passed."""
    if (failure := _failures.get(name, _NOT_RUN)) is not None:
        # An address differs from run to run, and a model may be asked to repair what fails.
        raise AssertionError(re.sub(r" at 0x[0-9a-fA-F]+\b", "", f"{name}: {failure}"))


def left_out(name: str) -> None:
    """Raises `AssertionError` unless the test was skipped, is expected to fail for pytest, or is none."""
    if _failures.get(name) != _NOT_RUN:
        raise AssertionError(f"{name} was run")


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
    result = _FirstFailure()
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(name)
        suite.run(result)
    except BaseException as error:  # of KeyboardInterrupt, the tests behind this one would not be run
        module, _, of = name.rpartition(".")[0].rpartition(".")
        holder = getattr(sys.modules.get(module), of, None)
        is_test = not isinstance(holder, type) or issubclass(holder, unittest.TestCase)
        return _told(error) if is_test else _NOT_RUN
    if result.text is not None:
        return result.text
    if result.unexpectedSuccesses:
        return "it passes, and was expected to fail"
    return None if result.testsRun > len(result.skipped) else _NOT_RUN


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
        if self.text is None:
            self.text = _told(err[1])


def _told(error: BaseException) -> str:
    """The statements that raised an error, its class, and the line of its message that says what it is."""
    # Below the first line, a message compares the values line by line; where a module could not be imported,
    # it holds a traceback, whose last line is the error.
    try:
        message = str(error).strip()
    except Exception:
        message = "<exception str() failed>"  # as Python's traceback says it
    told = message.splitlines()[-1 if "\nTraceback (most recent call last):" in message else 0 :][:1]
    statements = _statements(error.__traceback__)
    return "; ".join([*dict.fromkeys(statements), ": ".join([type(error).__name__, *told])])


def _statements(trace: TracebackType | None) -> list[str]:
    """The line of the test, and the innermost line that was reached outside of `unittest`."""
    frames = [
        (frame, number)
        for frame, number in traceback.walk_tb(trace)
        if str(frame.f_globals.get("__name__")).partition(".")[0] != "unittest"
    ]
    # Of a test that is a coroutine, the loop that runs it comes first.
    library = os.path.dirname(os.__file__)
    own = [(frame, number) for frame, number in frames if not frame.f_code.co_filename.startswith(library)]
    return [
        line
        for frame, number in ((own or frames)[:1] + frames[-1:])
        if (line := linecache.getline(frame.f_code.co_filename, number).strip())
    ]


class _Outcomes:
    """A plugin of pytest that runs `names` and keeps how they ended.

    With parameters, a test has passed if all have.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._failures: dict[str, str | None] = {}  # of tests, and of files and classes without a collection
        self._ended_early = ""

    def failure(self, name: str) -> str | None:
        """What a test says, or the file or class that it could not be collected from; None: it passed."""
        places = accumulate(name.split("::"), "{}::{}".format)
        ended = self._ended_early or _NOT_RUN
        return next((self._failures[one] for one in places if one in self._failures), ended)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [one for one in items if one.nodeid.partition("[")[0] in self._names]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._failures[report.nodeid] = self._told(report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("[")[0]
        if report.failed:
            self._failures[name] = self._told(report)
        elif report.when == "call" and report.passed:
            self._failures.setdefault(name, None)

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        self._ended_early = f"the tests were ended by {excinfo.typename}"

    def _told(self, report: Any) -> str:
        """Of pytest's account of a failure, the lines reached (after `>`) and the error (after `E`)."""
        text = str(report.longrepr)
        lines = [line[1:].strip() for line in text.splitlines() if line[:1] in (">", "E")]
        told = "; ".join(line for line in lines if line and not line.startswith("Use -v to "))
        crash = getattr(report.longrepr, "reprcrash", None)  # of a group of exceptions there is no such line
        return told or (crash.message.partition("\n")[0] if crash else text.strip().rpartition("\n")[2])
