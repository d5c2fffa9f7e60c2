"""Runs single tests of a suite in the sandbox, where this file lies beside the code under test.

A test is named as `unittest` loads it (`package.test_module.Case.test_name`), or as pytest names it
(`test_file.py::test_name`; with parameters, all of them).
"""

from __future__ import annotations

import contextlib
import io
import os
import unittest
from collections.abc import Sequence
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
        raise AssertionError(f"{name}: {failure}")


def pytest_main(arguments: Sequence[str], plugin: Any) -> None:
    """Runs pytest here, without the settings and plugins of the machine, and without its output."""
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    folder = os.getcwd()
    # Without --confcutdir, pytest also collects what lies beside the folder.
    options = ("-c", os.devnull, "--rootdir", folder, "--confcutdir", folder, "-p", "no:cacheprovider")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main([*options, "--assert=plain", "-q", *arguments], plugins=[plugin])


def _unittest_failure(name: str) -> str | None:
    suite, result = unittest.defaultTestLoader.loadTestsFromName(name), unittest.TestResult()
    suite.run(result)
    if wrong := [*result.errors, *result.failures]:
        return wrong[0][1].strip().rpartition("\n")[2]
    return None if result.testsRun > len(result.skipped) and result.wasSuccessful() else "it was not run"


class _Outcomes:
    """A plugin of pytest that keeps how tests ended; with parameters, a test has passed if all have."""

    def __init__(self) -> None:
        self.failures: dict[str, str | None] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("[")[0]
        if report.failed:
            # Of pytest's account of a failure, the line of the test (after `>`) and the error (after `E`).
            text = str(report.longrepr)
            lines = [line[1:].strip() for line in text.splitlines() if line[:1] in (">", "E")]
            self.failures[name] = "; ".join(lines) or text.strip().rpartition("\n")[2]
        elif report.when == "call" and report.passed:
            self.failures.setdefault(name, None)
