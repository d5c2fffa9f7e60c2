"""Repairs a program line by line: a model that was trained to fill gaps writes each suspicious line anew.

A small model that is asked for a whole program mostly repeats it; asked for the line between two texts, it
writes the line that it expects there (cloze-style repair: Xia and Zhang 2022, arXiv 2207.08281).

- The tests run once more with a trace. The lines that failing tests run are tried in the order of Ochiai's
  coefficient (Abreu, Zoeteweij and van Gemund 2007, "On the accuracy of spectrum-based fault localization"):
  failing tests that run the line, divided by the root of all failing tests times all tests that run it.
- Lines that run at import count as run by every test and come last among equals, decorators and signatures
  as run by the tests that call the function, the lines of one statement as run together, and tests that are
  skipped or expected to fail not at all. Among equals, the line on which most expressions begin comes first,
  and then the last one: in 40 of 41 programs of `benchmarks/fix.py` (without a model, with and without
  `--quixbugs`) the line to change is tried after 1.4 others, at most 9.
- Of a file that does not parse, the lines nearest to the error are tried; of one that cannot be imported,
  all in order.
- At most 16 lines are tried, four at a time, then once more with a gap before the line, so that the model
  sees it. What it writes, at most 48 tokens, is tested in place of the line, before it and behind it. A line
  that leaves the program as it was, or makes it one that does not parse, is not tested.
- The model sees 2,000 characters before the gap and 1,000 after it, or what its positions hold of them, but
  no test.
- A program with one other line may run endlessly. Its tests get ten times the CPU time that the file took
  (as the best answer of the rounds before changes it), at least 2 seconds and at most `--timeout`; all of
  `--timeout` if no test could be loaded, and 2 seconds if it ran into that limit.
- Once an answer passes more tests than the file, the next line is sought in the file as that answer changes
  it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import sqrt
from typing import TypeGuard

from greenward.problems.mining import SourceFile, needs_pytest
from greenward.problems.problem import Problem
from greenward.problems.python_source import (
    UNREADABLE,
    FunctionNode,
    first_line,
    parse,
    parse_or_none,
    same_trees,
    source_lines,
)
from greenward.problems.sandboxed_suites import TRACER, sandboxed, traced_rows
from greenward.sandbox.protocol import Call, Executor, Job, Limits

MOST_LINES, LINES_AT_ONCE = 16, 4
CHARS_BEFORE, CHARS_AFTER = 2000, 1000  # of the program that the model is shown around a gap
_TEST_SECONDS = 2.0  # CPU time of one test, traced
_LIMITS = Limits(cpu_seconds=30.0, wall_seconds=90.0, output_bytes=4 << 20, file_bytes=4 << 20)


def suspicious_lines(
    problem: Problem, suites: Iterable[SourceFile], executor: Executor
) -> tuple[list[int], bool]:
    """The lines of the faulty program, the most suspicious first, and whether any of its tests was run.

    Lines are counted from 1, and there are at most `MOST_LINES`.

    Of a program that cannot be parsed, they are those nearest to the error; of one whose tests cannot be
    loaded, all in order.
    """
    code = problem.buggy_code
    try:
        tree = parse(code)
    except SyntaxError as error:
        place = error.lineno or 1
        return sorted(_with_code(code), key=lambda number: (abs(number - place), number))[:MOST_LINES], False
    except UNREADABLE:
        return [], False
    files = {**(problem.files or {}), **(problem.test_files or {}), problem.path: code}
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
    # Every test has run these, before it was traced.
    at_import = {number for node in _run_by_import(tree) for number in _own_lines(node)}
    statements = [_own_lines(node) for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    runs, failed = Counter[int](), Counter[int]()
    for has_passed, lines in rows:
        # Of a statement of several lines, those of constants and brackets are not traced.
        ran = at_import.union(*(one for one in statements if not lines.isdisjoint(one)), lines)
        runs.update(ran)
        failed.update(() if has_passed else ran)
    if not failed:
        return sorted(_lines_of(tree, code))[:MOST_LINES], bool(rows)
    # The number of failing tests, a factor of all coefficients, does not change their order.
    scores = {number: count / sqrt(runs[number]) for number, count in failed.items()}
    known = scores.keys() & _lines_of(tree, code)
    expressions = Counter(node.lineno for node in ast.walk(tree) if isinstance(node, ast.expr))

    def rank(number: int) -> tuple[float, bool, int, int]:
        # That a test depends on a line of the import is a guess.
        return -scores[number], number in at_import, -expressions[number], -number

    return sorted(known, key=rank)[:MOST_LINES], True


def _rows(printed: str) -> Iterator[tuple[bool, set[int]]]:
    """Whether each test has passed, and its lines."""
    for row in traced_rows(printed):
        match row:
            case [bool(has_passed), [*numbers]] if all(type(one) is int for one in numbers):
                yield has_passed, set(numbers)


def _lines_of(tree: ast.Module, code: str) -> set[int]:
    """All lines of statements but imports, docstrings, comments and empty lines outside of strings."""
    left_out = {number for node in ast.walk(tree) if _says_nothing(node) for number in _span(node)}
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr)]
    shown = _with_code(code).union(*(range(one.lineno, (one.end_lineno or 0) + 1) for one in strings))
    return {number for node in statements for number in _span(node)} & shown - left_out


def _with_code(code: str) -> set[int]:
    lines = enumerate(map(str.strip, source_lines(code)), 1)
    return {number for number, line in lines if line and not line.startswith("#")}


def _run_by_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that may run when a module is imported; functions count where they are called."""
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr | FunctionNode):
            continue
        if isinstance(node, ast.stmt):
            yield node
        waiting += ast.iter_child_nodes(node)


def _own_lines(node: ast.stmt) -> range:
    """The lines of a statement but those of the statements inside, with decorators and signatures."""
    end = node.end_lineno
    if isinstance(node, ast.Match):
        end = node.subject.end_lineno
    elif body := getattr(node, "body", None):
        end = max(node.lineno, first_line(body[0]) - 1)
    return range(first_line(node), (end or 0) + 1)


def _says_nothing(node: ast.AST) -> TypeGuard[ast.stmt]:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)


def _span(node: ast.stmt) -> range:
    return range(first_line(node), (node.end_lineno or 0) + 1)


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


_tree = lru_cache(maxsize=1)(parse_or_none)  # of a program in which many gaps are filled


def filled(code: str, number: int, text: str) -> Iterator[str]:
    """The programs with the first line of a text in place of a line, before it, and behind it.

    Those that are no programs, or none but the given one, are left out.
    """
    lines = source_lines(code)
    end = "\n" if lines[number - 1].endswith("\n") else ""
    # Python ends a line at a lone carriage return, too.
    written, old = re.split(r"[\r\n]", text, maxsplit=1)[0].rstrip(), lines[number - 1].removesuffix("\n")
    if written.strip() == old.strip():
        return
    tree = _tree(code)
    for new in ([written], [written, old], [old, written]) if written else ([],):
        middle = "\n".join(new) + end if new else ""
        program = "".join([*lines[: number - 1], middle, *lines[number:]])
        other = parse_or_none(program)
        if other is not None and not same_trees(tree, other):
            yield program
