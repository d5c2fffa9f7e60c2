"""Finds the answers in the files that public harnesses write.

A row of a file of answers holds `task_id` and `completion` (continues the prompt) or `solution` (a whole
program, which wins where both are given; a list of them counts as several answers; null is an answer without
a program). Rows of one task are numbered in their order unless they carry `sample`. Rows of LiveCodeBench
hold `question_id` and `code_list` (programs) or `output_list` (what was written); all may lie in one array.
Also read are `output` (TACO), `generation` (NeMo-Skills), `prediction`, `response` and `code`, their plurals,
the samples of lm-evaluation-harness (`doc`, `filtered_resps`), the logs of Inspect as JSON, EvalPlus's
`eval_results.json`, and objects and lists with an entry for each problem (OpenCompass, APPS,
bigcode-evaluation-harness).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from greenward.common.errors import ProblemError
from greenward.common.parsing import parse_json_text
from greenward.problems.problem import ProblemSet
from greenward.problems.rows import Row, read_rows, read_text

EXAMPLE = (
    '{"task_id": …, "completion": …}, {"task_id": …, "solution": …} or {"question_id": …, "code_list": […]}'
)
REMEDY = f"Expected one line each of {EXAMPLE}."
PROGRAMS = ("solution", "code_list", "output_list", "code", "codes", "solutions")
_WORDS = ("completion", "output", "generation", "prediction", "response", "generated_code")
WRITTEN = (*_WORDS, *(f"{word}s" for word in _WORDS), "filtered_resps", "resps")
"""Fields of what a model wrote, which may continue the prompt, in the order in which they count."""
_OF_PATCHES = (
    "These are predictions for SWE-bench, which its own harness judges: `python -m "
    "swebench.harness.run_evaluation --predictions_path FILE`. `greenward eval MODEL --suite ROWS` lets a "
    "model repair the repositories of SWE-bench's rows, and judges that (docs/agents.md)."
)


def answer_rows(path: Path, problems: ProblemSet) -> Iterator[Row]:
    """The rows of a file, each with the `task_id` of its problem as text.

    The last line of a file may be torn, as a killed writer leaves it; it is then left out. Raises
    `ProblemError` naming file and line for what is no row.
    """
    text = read_text(path)
    if re.match(r"\s*\[\s*\{", text):
        rows = read_rows(path, EXAMPLE)
    elif (whole := _whole(text)) is not None:
        rows = _of_value(path, whole, problems)
    else:
        rows = _of_lines(path, text)
    return map(_with_id, rows)


def field_of_answers(row: Row) -> str:
    """The field that holds what a model wrote. Raises `ProblemError`."""
    if field := next((name for name in (*PROGRAMS[:3], *WRITTEN, *PROGRAMS[3:]) if name in row.values), None):
        return field
    near = [
        f"Did you mean {match!r} by {name!r}?"
        for name in row.values
        for match in get_close_matches(name, ("completion", "solution"), n=1)
    ]
    raise row.error("completion", "is missing, and so is 'solution'", remedy=next(iter(near), REMEDY))


def texts_of(row: Row, field: str) -> Sequence[str | None]:
    """The answers in a field: one text, or a list of them, which lm-evaluation-harness puts into another."""
    given = row.values[field]
    given = given if isinstance(given, list) else [given]
    if field in ("filtered_resps", "resps"):
        given = [*chain.from_iterable(one if isinstance(one, list) else [one] for one in given)]
    if not all(isinstance(one, str | None) for one in given):
        raise row.error(field, "must be text, null, or a list of texts")
    return given


def _whole(text: str) -> Any:
    """The value of a text that is a single list, or a single object of several lines; None for another."""
    first, _, rest = text.strip().partition("\n")
    if rest and first[:1] == "{":
        with suppress(ValueError):
            parse_json_text(first)
            return None
    if first[:1] in ("{", "["):
        with suppress(ValueError):
            return parse_json_text(text)
    return None


def _of_lines(path: Path, text: str) -> Iterator[Row]:
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = parse_json_text(line)
        except ValueError as error:
            if number == len(lines) and number > 1:
                return  # torn: what ends a whole line is missing
            raise ProblemError(f"{path}, line {number}: not JSON ({error}).", remedy=REMEDY) from None
        if not isinstance(values, dict):
            raise ProblemError(f"{path}, line {number}: not an object.", remedy=REMEDY)
        yield Row(path, number, number, values)


def _of_value(path: Path, whole: Any, problems: ProblemSet) -> Iterator[Row]:
    found: Any = None
    match whole:
        case {"eval": {**by_id}}:  # EvalPlus
            found = [one for rows in by_id.values() for one in (rows if isinstance(rows, list) else [rows])]
        case {"samples": [{"id": _}, *_] as samples}:  # Inspect
            found = [_inspected(one) for one in samples]
        case {**by_id} if by_id and by_id.keys().isdisjoint({"task_id", "question_id", "doc"}):
            if ids := _ids([*map(str, by_id)], problems):
                found = [_entry(one, value) for one, value in zip(ids, by_id.values(), strict=True)]
        case [[*_], *_]:
            if len(whole) != len(problems):
                what = f"{path}: holds {len(whole)} lists, and {problems.name} has {len(problems)} problems."
                raise ProblemError(what, remedy=f"Expected a list of answers to each problem, or {EXAMPLE}.")
            found = [_entry(one.task_id, value) for one, value in zip(problems, whole, strict=True)]
        case []:
            found = []
    rows = [whole] if found is None else found
    for number, values in enumerate(rows, start=1):
        if not isinstance(values, dict):
            raise ProblemError(f"{path}, line {number}: not an object.", remedy=REMEDY)
        yield Row(path, number, 0 if found is not None else 1, values)


def _ids(keys: Sequence[str], problems: ProblemSet) -> list[str] | None:
    """The ids that the keys of an object are, or the positions that they are; None for other keys."""
    with suppress(ProblemError):
        return [problems.by_id(key).task_id for key in keys]
    if list(keys) == [str(number) for number in range(len(problems))]:
        return [problem.task_id for problem in problems]
    return None


def _entry(task_id: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {**value, "task_id": task_id}
    return {"task_id": task_id, "completions": value}


def _inspected(sample: Any) -> Any:
    """The row of a sample of Inspect, whose output is a message."""
    match sample:
        case {"id": task_id, "output": {"choices": [*choices]}}:
            contents = [_content(choice) for choice in choices] or [None]
            return {"task_id": task_id, "completions": contents}
    return sample


def _content(choice: Any) -> Any:
    """The text of a message, which may have several parts."""
    match choice:
        case {"message": {"content": [*parts]}}:
            texts = (
                one.get("text") for one in parts if isinstance(one, Mapping) and one.get("type") == "text"
            )
            return "".join(text for text in texts if isinstance(text, str))
        case {"message": {"content": content}}:
            return content
    return None


def _with_id(row: Row) -> Row:
    values = row.values
    doc = values.get("doc")
    if "task_id" not in values and isinstance(doc, dict) and "task_id" in doc:  # lm-evaluation-harness
        values = {**values, "task_id": doc["task_id"]}
    field = "task_id" if "task_id" in values else "question_id"
    if field not in values:
        raise row.missing("task_id", remedy=_OF_PATCHES if "model_patch" in values else REMEDY)
    task_id = values[field]
    if isinstance(task_id, int) and not isinstance(task_id, bool):  # MBPP's own ids
        values = {**values, field: str(task_id)}
    return replace(row, values=values)
