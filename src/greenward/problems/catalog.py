"""Loads problems by name: generated families, the sets that greenward ships, public suites, files."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from greenward.config.sections import BugsConfig, FamiliesConfig
from greenward.errors import ProblemError
from greenward.problems.data_files import DATA
from greenward.problems.families.generate import generate
from greenward.problems.families.modules import MODULES, generated_modules
from greenward.problems.families.split import split
from greenward.problems.json_format import SIMPLE_JSON, load_json
from greenward.problems.json_rows import BadRow, Format, read_problems, read_rows
from greenward.problems.mutation.repair import repair_candidates
from greenward.problems.problem import ProblemSet
from greenward.problems.repositories import (
    PLANTED,
    REPOSITORIES,
    SWE_BENCH,
    planted_candidates,
    shipped_repositories,
)
from greenward.problems.suites.check_programs import HUMANEVAL, HUMANEVALPACK, MULTIPL_E
from greenward.problems.suites.contests import APPS, LIVECODEBENCH, apps_rows
from greenward.problems.suites.evalplus import EVALPLUS
from greenward.problems.suites.files import HubDataset, PinnedFile, Suite, find_file
from greenward.problems.suites.mbpp import MBPP, PARTS
from greenward.problems.suites.quixbugs import BUGGY, load_quixbugs
from greenward.problems.suites.vulnerability_files import PAIRS, PRIMEVUL, SVEN
from greenward.problems.vulnerabilities.generate import VULNERABILITIES, vulnerability_pairs

Part = Literal["train", "held_out"]
FAMILIES = "families"
BUGS = "bugs:"
SHIPPED = ("classic_training", "classic_evaluation")
_ONE_BUG_EACH = BugsConfig()
_SPARE_BUGS = 3  # further candidates, for bugs that no test finds


def _evalplus(name: str, release: str, sha256: str) -> Suite:
    source = PinnedFile(f"https://github.com/evalplus/{release}/{name}.jsonl.gz", sha256)
    return Suite((f"{name}.jsonl.gz", f"{name}.jsonl"), EVALPLUS, source)


def _mbpp(file: str, config: str, variable: str | None = None) -> Suite:
    revision = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
    source = HubDataset("google-research-datasets/mbpp", config, tuple(PARTS), revision)
    return Suite((file,), MBPP, source, variable)


_HUMANEVAL_PLUS = "humanevalplus_release/raw/200defce9e3429d28ca215b6dd061c0f7f31c18b"
_MBPP_PLUS = "mbppplus_release/raw/dadf43da556a00f7bacd71cb154f2932757d9144"
_HUMANEVAL = HubDataset(
    "openai/openai_humaneval", "openai_humaneval", ("test",), "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"
)
SUITES: dict[str, Suite] = {
    "mbpp": _mbpp("mbpp.jsonl", "full", "MBPP_DATASET_PATH"),
    "mbpp-sanitized": _mbpp("sanitized-mbpp.json", "sanitized"),
    "mbpp+": _evalplus(
        "MbppPlus", _MBPP_PLUS, "af43697e8791c4c149bdfd6b489d8b5412507551ac20e28a439f650b8225db63"
    ),
    "humaneval": Suite(("HumanEval.jsonl.gz", "HumanEval.jsonl"), HUMANEVAL, _HUMANEVAL),
    "humaneval+": _evalplus(
        "HumanEvalPlus", _HUMANEVAL_PLUS, "272720b90ac375502c8ed23cd791c2a93dfb22a911641a494da74a426c09f101"
    ),
    "humaneval+mini": _evalplus(
        "HumanEvalPlus-Mini",
        _HUMANEVAL_PLUS,
        "91486741f1627101021fbe50523df08eebb5b0bf5e804b633dcd5ca3c14dbd2f",
    ),
    "humanevalpack": Suite(("humanevalpack.jsonl",), HUMANEVALPACK),
    "quixbugs": Suite(("quixbugs", "QuixBugs")),
}

NAMED = (*SHIPPED, REPOSITORIES, *SUITES)
GENERATED = (FAMILIES, MODULES, VULNERABILITIES)

# In this order: some formats also have the fields of a later one. The last is for a misspelt `function_name`.
FORMATS = (
    EVALPLUS, HUMANEVALPACK, MULTIPL_E, HUMANEVAL, MBPP, LIVECODEBENCH, APPS, SWE_BENCH, SVEN, PRIMEVUL,
    PAIRS, SIMPLE_JSON,
    replace(SIMPLE_JSON, fields=("test_cases",)),
)  # fmt: skip
SUPPORTED = (
    "Supported are JSON and JSON Lines files (also .gz) of "
    + "; ".join(f"{one.name} (fields {', '.join(one.fields)})" for one in FORMATS[:-1])
    + "; and the folders of QuixBugs and APPS."
)


def load_problems(
    source: str,
    families: FamiliesConfig,
    part: Part,
    *,
    bugs: BugsConfig = _ONE_BUG_EACH,
    skip_bad_rows: bool = False,
) -> ProblemSet:
    """The problems that a recipe's `problems.train` or `problems.held_out` names.

    Of the generated `families`, `modules` and `vulnerabilities`, `part` is returned; what `load_suite` takes
    is returned whole. With `bugs:` before it, the result is candidates for the repair of its programs, more
    of each than `bugs.per_problem`; `grading.bugs` finds those that do have a bug. With `planted:` before
    the folder of a package, the same for its modules and tests. Raises `ProblemError`.
    """
    if part not in get_args(Part):
        raise ProblemError(f"part: expected {' or '.join(get_args(Part))}, found {part!r:.100}.")
    if source.startswith(BUGS):
        originals = load_problems(source[len(BUGS) :], families, part, skip_bad_rows=skip_bad_rows)
        candidates = repair_candidates(originals, per_problem=bugs.per_problem + _SPARE_BUGS, seed=bugs.seed)
        if not candidates:
            raise ProblemError(
                f"{source}: none of the problems has a reference that a bug could be put into.",
                remedy="Name problems that come with their reference solutions.",
            )
        return candidates
    if source.startswith(PLANTED):
        most = 4 * bugs.per_problem
        return planted_candidates(source[len(PLANTED) :], per_module=most, seed=bugs.seed)
    if source == FAMILIES:
        return _split_families(families)[part]
    if source == MODULES:
        return generated_modules(_split_families(families)[part])
    if source == VULNERABILITIES:
        return vulnerability_pairs(part)
    return load_suite(source, skip_bad_rows=skip_bad_rows, known=(*GENERATED, *NAMED))


def check_source(
    source: str,
    known: tuple[str, ...] = (*GENERATED, *NAMED),
    path: str | Path | None = None,
) -> None:
    """Raises `ProblemError` for an unknown name or a missing file, before anything is read.

    It names the nearest of `known`, or of the files beside a missing one. `path` is the file of a suite.
    """
    source = source.removeprefix(BUGS)
    if source.startswith(PLANTED) and not Path(source.removeprefix(PLANTED)).is_dir():
        raise ProblemError(f"{source}: there is no such folder of a package.")
    source = source.removeprefix(PLANTED)
    name, _, part = source.partition(":")
    file = Path(source)
    if name in SUITES:
        if part and part not in PARTS:
            raise ProblemError(f"{source}: there is no part {part!r}.", remedy=f"Parts: {', '.join(PARTS)}.")
        if path is None:
            find_file(name, SUITES[name], fetch=False)
    elif source not in known and not file.exists():
        is_file = file.suffix in (".json", ".jsonl", ".gz")
        beside = [str(one) for one in file.parent.glob("*.json*")] if is_file else []
        near = get_close_matches(source, [*known, *beside], n=1)
        all_known = f"Known: {', '.join(known)}, or the path of a file."
        raise ProblemError(
            f"{source}: there is no such file." if is_file else f"no problem set is called {source!r}.",
            remedy=f"Did you mean {near[0]!r}?" if near else all_known,
        )


def load_suite(
    source: str,
    *,
    path: str | Path | None = None,
    skip_bad_rows: bool = False,
    known: tuple[str, ...] = NAMED,
) -> ProblemSet:
    """The problems of a suite, in its order.

    `source` is the name of a public suite (or of one part of it, as in `mbpp:test`), of a set that greenward
    ships, or a file of a known format. `path` is the file of a public suite; without it, `find_file` looks
    for the file. With `skip_bad_rows`, rows that cannot be used are left out and listed in
    `ProblemSet.skipped`. Raises `ProblemError` that names the nearest of `known`.
    """
    name, _, part = source.partition(":")
    if source == REPOSITORIES:
        return shipped_repositories()
    if source in SHIPPED:
        return load_json(DATA / f"{source}.json")
    check_source(source, known, path)
    if name not in SUITES:
        return load_file(source, skip_bad_rows=skip_bad_rows)
    suite = SUITES[name]
    file = Path(path) if path is not None else find_file(name, suite)
    if suite.format:
        whole = read_problems(file, suite.format, skip_bad_rows=skip_bad_rows)
    else:
        whole = load_quixbugs(file)
    problems = whole.with_problems((one for one in whole if not part or part in one.tags), name=source)
    if not problems:
        raise ProblemError(
            f"{source}: no problem lies in this part.", remedy="Only MBPP's suites have parts."
        )
    return problems


def load_file(path: str | Path, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of a file or folder in any known format, recognised by the fields of its rows.

    Raises `ProblemError`; for a file of no known format it names the known ones.
    """
    path = Path(path)
    if path.is_dir():
        if (path / BUGGY).is_dir():
            return load_quixbugs(path)
        if not any(path.glob("*/question.txt")):
            raise ProblemError(f"{path}: not a folder of QuixBugs or APPS.", remedy=SUPPORTED)
        return read_problems(path, APPS, rows=apps_rows(path), skip_bad_rows=skip_bad_rows)
    return read_problems(path, _format_of(path), skip_bad_rows=skip_bad_rows)


def _format_of(path: Path) -> Format:
    bad: list[str] = []
    fields: set[str] = set()

    def keep_first(error: BadRow) -> None:
        bad[:] = bad or [error.message]

    try:
        for row in read_rows(path, example="the rows of a format", non_finite=True, on_bad=keep_first):
            for known in FORMATS:
                if row.values.keys() >= set(known.fields):
                    return known
            fields |= row.values.keys()
    except ProblemError as error:
        raise ProblemError(error.message, remedy=SUPPORTED) from None
    if fields:
        named = ", ".join(sorted(fields))[:500]
        what = f"{path}: no row has the fields of a supported format; they have {named}."
    else:
        what = bad[0] if bad else f"{path}: there is no problem in the file."
    raise ProblemError(what, remedy=SUPPORTED)


@lru_cache(maxsize=1)
def _split_families(config: FamiliesConfig) -> dict[str, ProblemSet]:
    train, held_out = split(generate(config), config.held_out, config.seed)
    return {"train": train, "held_out": held_out}
