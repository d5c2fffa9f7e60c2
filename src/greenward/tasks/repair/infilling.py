"""Repairs a program line by line: a model that was trained to fill gaps writes each suspicious line anew.

A small model that is asked for a whole program mostly repeats it; asked for the line between two texts, it
writes the line that it expects there (cloze-style repair: Xia and Zhang 2022, arXiv 2207.08281). Lines are
tried in the order of Ochiai's coefficient over the tests that run them (Abreu, Zoeteweij and van Gemund 2007,
"On the accuracy of spectrum-based fault localization").
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt

from greenward.problems.mining import RUNNER, TRACER, SourceFile, needs_pytest, sandboxed
from greenward.problems.problem import Problem
from greenward.problems.python_source import UNREADABLE, parse, parse_or_none, same_trees, source_lines
from greenward.sandbox.protocol import Call, Executor, Job, Limits

MOST_LINES, LINES_AT_ONCE = 24, 8
CHARS_BEFORE, CHARS_AFTER = 2000, 1000  # of the program that the model is shown around a gap
_TEST_SECONDS = 2.0  # CPU time of one test, traced
_LIMITS = Limits(cpu_seconds=30.0, wall_seconds=90.0, output_bytes=4 << 20, file_bytes=4 << 20)


def suspicious_lines(problem: Problem, suites: Iterable[SourceFile], executor: Executor) -> list[int]:
    """The lines of the faulty program, counted from 1, the most suspicious first: at most `MOST_LINES`.

    Of a program that cannot be parsed, those nearest to the error; of one whose tests cannot be loaded, all
    in order.
    """
    code = problem.buggy_code
    try:
        tree = parse(code)
    except SyntaxError as error:
        place = error.lineno or 1
        numbers = [number for number, line in enumerate(source_lines(code), 1) if line.strip()]
        return sorted(numbers, key=lambda number: abs(number - place))[:MOST_LINES]
    except UNREADABLE:
        return []
    files = {**(problem.files or {}), **(problem.test_files or {}), problem.path: code}
    files[RUNNER] = sandboxed(RUNNER)
    jobs = [
        Job(
            sandboxed(TRACER),
            "trace_lines",
            (Call((one.place if needs_pytest(one) else one.module, problem.path, _TEST_SECONDS)),),
            limits=_LIMITS,
            files=files,
            path=TRACER,
        )
        for one in suites
    ]
    rows = [row for _, result in executor.run(jobs) for row in _rows(result.stdout)]
    at_import = set(_lines_of_import(tree.body))  # every test has run them, before it was traced
    runs = Counter(number for _, lines in rows for number in lines | at_import)
    failed = Counter(number for has_passed, lines in rows if not has_passed for number in lines | at_import)
    if not failed:
        return sorted(_lines_of(tree))[:MOST_LINES]
    # The number of failing tests, a factor of all coefficients, does not change their order.
    scores = {number: count / sqrt(runs[number]) for number, count in failed.items()}
    known = scores.keys() & _lines_of(tree)
    return sorted(known, key=lambda number: (-scores[number], number))[:MOST_LINES]


def _rows(printed: str) -> Iterator[tuple[bool, set[int]]]:
    """Whether each test has passed, and its lines, as far as what was printed is of the right form."""
    for line in printed.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        match row:
            case [bool(has_passed), [*numbers]] if all(type(one) is int for one in numbers):
                yield has_passed, set(numbers)


def _lines_of(tree: ast.Module) -> set[int]:
    """All lines of statements but imports and docstrings."""
    left_out = {number for node in ast.walk(tree) if _says_nothing(node) for number in _span(node)}
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    return {number for node in statements for number in _span(node)} - left_out


def _lines_of_import(body: Sequence[ast.stmt]) -> Iterator[int]:
    """The lines that run when a module is imported, signatures included."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from range(node.lineno, max(node.lineno + 1, node.body[0].lineno))
        elif isinstance(node, ast.ClassDef):
            yield node.lineno
            yield from _lines_of_import(node.body)
        elif not _says_nothing(node):
            yield from _span(node)


def _says_nothing(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)


def _span(node: ast.AST) -> range:
    return range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)


def around(code: str, number: int, *, shows_line: bool) -> tuple[str, str]:
    """What is shown of a program before and after a gap, in whole lines.

    The gap is a line, counted from 1, or just before it if the model is shown the line.
    """
    lines = source_lines(code)
    before = list(_within(reversed(lines[: number - 1]), CHARS_BEFORE))
    after = lines[number - 1 if shows_line else number :]
    return "".join(reversed(before)), "".join(_within(after, CHARS_AFTER))


def _within(lines: Iterable[str], most: int) -> Iterator[str]:
    for line in lines:
        most -= len(line)
        if most < 0:
            return
        yield line


def filled(code: str, number: int, text: str) -> Iterator[str]:
    """The programs with the first line of a text in place of a line, before it, and behind it.

    Those that are no programs, or none but the given one, are left out.
    """
    lines = source_lines(code)
    end = "\n" if lines[number - 1].endswith("\n") else ""
    written, old = text.partition("\n")[0].rstrip(), lines[number - 1].removesuffix("\n")
    if written.strip() == old.strip():
        return
    tree = parse_or_none(code)
    for new in ([written], [written, old], [old, written]) if written else ([],):
        middle = "\n".join(new) + end if new else ""
        program = "".join([*lines[: number - 1], middle, *lines[number:]])
        other = parse_or_none(program)
        if other is not None and not same_trees(tree, other):
            yield program
