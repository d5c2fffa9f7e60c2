"""Runs a file of tests in the sandbox and prints what each test reaches. Loaded there as text.

`trace` prints, for each test that has passed, a line with a JSON list: the name of the test, its CPU seconds,
and the numbers of the functions that it called. `trace_lines` prints, for each test, whether it has passed,
and the lines of one file that it ran. A test that takes too long is ended and has failed; one that is skipped
or fails as it is expected to is left out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import unittest
from types import FrameType
from typing import Any

import greenward_tests  # type: ignore[import-not-found]  # the file beside it

WALL_PER_CPU = 6  # the wall clock ends sleepers, and not what waits for a busy processor


class _TooLong(BaseException):
    """Ends a test; no test expects it."""


class Tracer:
    """Records the calls of `targets` (place → first line → number) during a test of `seconds` of CPU time."""

    def __init__(self, targets: dict[str, dict[str, int]], seconds: float) -> None:
        self._lines = {
            os.path.join(root, place): {int(line): number for line, number in lines.items()}
            for place, lines in targets.items()
            for root in (os.getcwd(), os.path.dirname(unittest.__path__[0]))
        }
        self._seconds, self._out, self._root = seconds, os.dup(1), os.getcwd()
        self._places: dict[str, str] = {}
        self._reached: set[int] = set()
        self._started = 0.0
        signal.signal(signal.SIGPROF, self._end_test)
        signal.signal(signal.SIGALRM, self._end_test)

    def begin(self) -> None:
        self._reached, self._started = set(), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, self._seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_PER_CPU * self._seconds)
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def end(self) -> None:
        sys.settrace(None)
        threading.settrace(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)

    def report(self, name: str, has_passed: bool) -> None:
        """Prints the functions that a test reached, if it has passed."""
        if self._reached and has_passed:
            self._print([name, time.process_time() - self._started, sorted(self._reached)])

    def _print(self, row: list[Any]) -> None:
        os.write(self._out, f"{json.dumps(row)}\n".encode())

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        lines = self._lines.get(self._place(frame))
        if lines is not None and event == "call":
            number = lines.get(frame.f_code.co_firstlineno)
            if number is not None:
                self._reached.add(number)

    def _place(self, frame: FrameType) -> str:
        """The file of a frame; tests often name the folder of a module as `tests/..`."""
        name = frame.f_code.co_filename
        if name not in self._places:
            self._places[name] = os.path.normpath(os.path.join(self._root, name))
        return self._places[name]

    def _end_test(self, *_: Any) -> None:
        raise _TooLong("it takes too long")


class LineTracer(Tracer):
    """Records the lines of the file at `place` during a test of `seconds` of CPU time.

    Of each function that is called, also the first line of its decorators and signature.
    """

    def __init__(self, place: str, seconds: float) -> None:
        super().__init__({}, seconds)
        self._path = os.path.join(self._root, place)

    def report(self, name: str, has_passed: bool) -> None:
        self._print([has_passed, sorted(self._reached)])

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if self._place(frame) != self._path:
            return None
        self._reached.add(frame.f_code.co_firstlineno)
        return self._trace_line

    def _trace_line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._reached.add(frame.f_lineno)
        return self._trace_line


class _TracedResult(unittest.TestResult):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer, self._has_passed = tracer, False

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._has_passed = False
        for found in (self.failures, self.errors, self.skipped, self.expectedFailures):
            found.clear()  # of the test before
        self._tracer.begin()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._has_passed = True

    def stopTest(self, test: unittest.TestCase) -> None:
        self._tracer.end()
        if self.failures or self.errors or not (self.skipped or self.expectedFailures):
            self._tracer.report(test.id(), self._has_passed)
        super().stopTest(test)


class _TracedPytest:
    """A plugin of pytest."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def pytest_runtest_setup(self) -> None:
        self._tracer.begin()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:  # the call does not follow a fixture that fails
            self._tracer.end()
            if not report.skipped:
                self._tracer.report(report.nodeid.partition("[")[0], report.passed)


def trace(test: str, targets: dict[str, dict[str, int]], seconds: float) -> None:
    """Traces a file of tests for pytest, or a module of cases for unittest. Raises what loading it raises."""
    _run(test, Tracer(targets, seconds))


def trace_lines(test: str, place: str, seconds: float) -> None:
    """As `trace`, the lines of the file at `place`."""
    _run(test, LineTracer(place, seconds))


def _run(test: str, tracer: Tracer) -> None:
    null = os.open(os.devnull, os.O_WRONLY)  # what the tests print is dropped
    os.dup2(null, 1)
    os.dup2(null, 2)
    if test.endswith(".py"):
        greenward_tests.pytest_main([test], _TracedPytest(tracer))
        return
    __import__(test)
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[test])
    suite.run(_TracedResult(tracer))
