"""The public suites by name, and files of any known format by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from greenward.errors import ProblemError
from greenward.problems.json_format import load_json
from greenward.problems.json_rows import BadRow, read_rows
from greenward.problems.problem import ProblemSet
from greenward.problems.suites.evalplus import load_evalplus
from greenward.problems.suites.files import HubDataset, PinnedFile, find_file
from greenward.problems.suites.humaneval import load_humaneval
from greenward.problems.suites.humanevalpack import load_humanevalpack
from greenward.problems.suites.mbpp import PARTS, load_mbpp
from greenward.problems.suites.multipl_e import load_multipl_e
from greenward.problems.suites.programming_contests import load_programming_contests
from greenward.problems.suites.quixbugs import BUGGY, load_quixbugs

_MBPP_REVISION = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
_MBPP_SPLITS = ("prompt", "test", "validation", "train")
_EVALPLUS = "https://github.com/evalplus"
_HUMANEVAL_PLUS = f"{_EVALPLUS}/humanevalplus_release/raw/200defce9e3429d28ca215b6dd061c0f7f31c18b"
_MBPP_PLUS = f"{_EVALPLUS}/mbppplus_release/raw/dadf43da556a00f7bacd71cb154f2932757d9144"


@dataclass(frozen=True)
class Suite:
    """A public suite: how its files are read, what they are called, where they come from.

    `load` takes a path and `skip_bad_rows`.
    """

    load: Callable[..., ProblemSet]
    files: tuple[str, ...]
    source: HubDataset | PinnedFile | None = None
    variable: str | None = None


def _load_quixbugs(path: Path, *, skip_bad_rows: bool = False) -> ProblemSet:
    return load_quixbugs(path)  # a program and its tests are files: there are no rows


SUITES: Mapping[str, Suite] = {
    "mbpp": Suite(
        load_mbpp,
        ("mbpp.jsonl",),
        HubDataset("google-research-datasets/mbpp", "full", _MBPP_SPLITS, _MBPP_REVISION),
        variable="MBPP_DATASET_PATH",
    ),
    "mbpp-sanitized": Suite(
        load_mbpp,
        ("sanitized-mbpp.json",),
        HubDataset("google-research-datasets/mbpp", "sanitized", _MBPP_SPLITS, _MBPP_REVISION),
    ),
    "mbpp+": Suite(
        load_evalplus,
        ("MbppPlus.jsonl.gz", "MbppPlus.jsonl"),
        PinnedFile(
            f"{_MBPP_PLUS}/MbppPlus.jsonl.gz",
            "af43697e8791c4c149bdfd6b489d8b5412507551ac20e28a439f650b8225db63",
        ),
    ),
    "humaneval": Suite(
        load_humaneval,
        ("HumanEval.jsonl.gz", "HumanEval.jsonl"),
        HubDataset(
            "openai/openai_humaneval", "openai_humaneval", ("test",),
            "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        ),
    ),
    "humaneval+": Suite(
        load_evalplus,
        ("HumanEvalPlus.jsonl.gz", "HumanEvalPlus.jsonl"),
        PinnedFile(
            f"{_HUMANEVAL_PLUS}/HumanEvalPlus.jsonl.gz",
            "272720b90ac375502c8ed23cd791c2a93dfb22a911641a494da74a426c09f101",
        ),
    ),
    "humaneval+mini": Suite(
        load_evalplus,
        ("HumanEvalPlus-Mini.jsonl.gz", "HumanEvalPlus-Mini.jsonl"),
        PinnedFile(
            f"{_HUMANEVAL_PLUS}/HumanEvalPlus-Mini.jsonl.gz",
            "91486741f1627101021fbe50523df08eebb5b0bf5e804b633dcd5ca3c14dbd2f",
        ),
    ),
    "humanevalpack": Suite(load_humanevalpack, ("humanevalpack.jsonl",)),
    "quixbugs": Suite(_load_quixbugs, ("quixbugs", "QuixBugs")),
}  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A format of files, told by fields that its rows have."""

    names: str
    fields: tuple[str, ...]
    load: Callable[..., ProblemSet]


# In this order: some have the fields of a later one, too.
FORMATS = (
    Format("HumanEval+, MBPP+", ("base_input",), load_evalplus),
    Format("HumanEvalPack", ("buggy_solution",), load_humanevalpack),
    Format("MultiPL-E (Python)", ("name", "prompt", "tests"), load_multipl_e),
    Format("HumanEval, MBXP/mxeval (Python), LeetCodeDataset", ("entry_point", "test"), load_humaneval),
    Format("MBPP", ("test_list",), load_mbpp),
    Format("LiveCodeBench", ("question_content",), load_programming_contests),
    Format("APPS, TACO", ("question",), load_programming_contests),
    Format("the simple JSON format", ("function_name",), load_json),
    Format("the simple JSON format", ("test_cases",), load_json),  # with a misspelt name
)
SUPPORTED = (
    "Supported are JSON and JSON Lines files (also .gz) of "
    + "; ".join(dict.fromkeys(f"{one.names} (fields {', '.join(one.fields)})" for one in FORMATS[:-1]))
    + "; and the folders of QuixBugs and APPS."
)


def locate(name: str) -> Path:
    """Where the file or folder of a suite of `SUITES` lies. Raises `ProblemError` if nowhere."""
    suite = SUITES[name]
    return find_file(name, suite.files, suite.source, suite.variable)


def load_named(name: str, path: str | Path | None = None, *, skip_bad_rows: bool = False) -> ProblemSet:
    """A suite of `SUITES`, whole, or one part of it as in `mbpp:train`.

    `path` says where its file lies; without it, `files.find_file` looks. Raises `ProblemError`.
    """
    suite_name, _, part = name.partition(":")
    suite = SUITES[suite_name]
    if part and part not in PARTS:
        raise ProblemError(f"{name}: there is no part {part!r}.", remedy=f"Parts: {', '.join(PARTS)}.")
    problems = suite.load(Path(path) if path is not None else locate(suite_name), skip_bad_rows=skip_bad_rows)
    if not part:
        return ProblemSet(problems, name=suite_name, skipped=problems.skipped)
    of_part = [problem for problem in problems if part in problem.tags]
    if not of_part:
        raise ProblemError(f"{name}: no problem lies in this part.", remedy="Only MBPP's suites have parts.")
    return ProblemSet(of_part, name=name, skipped=problems.skipped)


def load_file(path: str | Path, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of a file or folder in any known format, told by the fields of its rows.

    Raises `ProblemError`; for a file of no known format it names those that are.
    """
    path = Path(path)
    if path.is_dir():
        if (path / BUGGY).is_dir():
            return _load_quixbugs(path)
        if not any(path.glob("*/question.txt")):
            raise ProblemError(f"{path}: not a folder of QuixBugs or APPS.", remedy=SUPPORTED)
        return load_programming_contests(path, skip_bad_rows=skip_bad_rows)
    bad: list[BadRow] = []
    fields: set[str] = set()
    try:
        for row in read_rows(path, example="the rows of a format", non_finite=True, on_bad=bad.append):
            for known in FORMATS:
                if row.values.keys() >= set(known.fields):
                    return known.load(path, skip_bad_rows=skip_bad_rows)
            fields |= row.values.keys()
    except BadRow:
        raise
    except ProblemError as error:
        raise ProblemError(error.message, remedy=SUPPORTED) from None
    if fields:
        told = f"{path}: no row has the fields of a supported format; they have {', '.join(sorted(fields))}."
    else:
        told = bad[0].message if bad else f"{path}: there is no problem in the file."
    raise ProblemError(told, remedy=SUPPORTED)
