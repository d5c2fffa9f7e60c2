"""Finds and loads sets of problems by name: generated and shipped ones, public suites, and files.

A name finds its file, in this order:

1. the path that the command is given, or for `mbpp` and `mbpp-sanitized` that in `MBPP_DATASET_PATH`, a file
   or its folder;
2. the folder `GREENWARD_DATA`, or a folder in it, under its public name (`mbpp.jsonl`, `sanitized-mbpp.json`,
   `HumanEval.jsonl.gz`, `HumanEvalPlus.jsonl.gz`, `MbppPlus.jsonl.gz`, `humanevalpack.jsonl`, `quixbugs` …);
3. the cache (`GREENWARD_CACHE`, else `~/.cache/greenward`), where what was downloaded stays under its
   revision;
4. the hub, at a fixed revision or hash (extra `hub`). QuixBugs and HumanEvalPack are not downloaded: clone
   the first, export the Python rows of the second as JSON lines.

QuixBugs (Lin et al. 2017), programs with a bug on one line, is read here. Its
folder is that of the upstream repository: `python_programs` (with the bug; the docstring is below the code),
`correct_python_programs`, `json_testcases` (lines of `[arguments, expected]`) and `python_testcases` (pytest
files, of which those of the nine graph programs are read).
- Programs that are generators are judged by the list of what they yield; `sqrt` within the tolerance that is
  its second argument.
- Three graph programs take plain data: their tests run as test programs in a process without the answer. Six
  take `Node` objects, which exist in the answer's process only: their tests run there and could be forged.
- Two cases (one of knapsack, one of levenshtein) take the right programs minutes to hours, the first also 30
  GB. They are left out; upstream skips them by default, too.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from greenward.common.errors import ProblemError
from greenward.common.files import expects
from greenward.common.parsing import parse_json_text
from greenward.common.text import load_keys
from greenward.problems.contests import (
    APPS,
    CODE_CONTESTS,
    CODEFORCES,
    DEEPCODER,
    LIVECODEBENCH,
    OPEN_R1,
    VERL,
    apps_rows,
)
from greenward.problems.formats import (
    ACECODE,
    BIGCODEBENCH,
    EVALPLUS,
    HUMANEVAL,
    HUMANEVAL_X,
    HUMANEVALPACK,
    KODCODE,
    MBPP,
    MULTIPL_E,
    PARTS,
    SIMPLE_JSON,
    load_json,
)
from greenward.problems.names import BUGS, FAMILIES, MODULES, PLANTED, REPOSITORY_SETS, SHIPPED
from greenward.problems.problem import Assertion, Case, Check, Comparison, InProcess, Problem, ProblemSet
from greenward.problems.python_source import parse
from greenward.problems.repositories import SWE_BENCH, planted_candidates, shipped_repositories
from greenward.problems.rows import DATA, BadRow, Format, Row, read_problems, read_rows, read_text
from greenward.runs.files import write_atomically, writing
from greenward.tasks import FORMATS, SOURCES, load

if TYPE_CHECKING:
    from greenward.config.section import BugsConfig, FamiliesConfig

DATA_VARIABLE = "GREENWARD_DATA"
CACHE_VARIABLE = "GREENWARD_CACHE"


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hugging Face hub, at one revision."""

    id: str
    config: str
    splits: tuple[str, ...]
    revision: str

    @property
    def cached_name(self) -> str:
        return f"{self.id.replace('/', '--')}-{self.config}-{self.revision[:12]}.jsonl"

    def fetch(self, datasets: Any) -> bytes:
        """The rows as JSON lines, read by the library `datasets`."""
        lines = []
        for part in self.splits:
            rows = datasets.load_dataset(self.id, self.config, split=part, revision=self.revision)
            lines += [json.dumps(row, ensure_ascii=False) for row in rows if isinstance(row, Mapping)]
        return ("\n".join(lines) + "\n").encode("utf-8", errors="surrogatepass")


@dataclass(frozen=True)
class PinnedFile:
    """A published file with the hash that it must have."""

    url: str
    sha256: str

    @property
    def cached_name(self) -> str:
        return f"{self.sha256[:12]}-{self.url.rpartition('/')[2]}"

    def fetch(self, datasets: Any) -> bytes:
        return Path(datasets.DownloadManager().download(self.url)).read_bytes()


@dataclass(frozen=True)
class Suite:
    """A public suite: the names of its files, their format (None for a folder), where they come from."""

    files: tuple[str, ...]
    format: Format | None = None
    source: HubDataset | PinnedFile | None = None
    variable: str | None = None
    named_alike: bool = False
    """Whether the variable is another suite's, and counts for this one where it leads to its own file."""


def cache_folder() -> Path:
    """`$GREENWARD_CACHE`, else `greenward` in the user's cache folder. It need not exist."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "greenward"


def find_file(name: str, suite: Suite, *, fetch: bool = True) -> Path:
    """The file (or folder) of the suite with this name.

    Looks in this order: at the path in the suite's environment variable, a file or the folder of one; for
    one of the suite's file names in the folder `$GREENWARD_DATA` or in a folder of that; in the cache; at the
    source of the suite. Raises `ProblemError` that says which file to put where. Without `fetch`, it returns
    where the file would be put in the cache.
    """
    if own := _named_by(suite.variable):
        beside = [own] if own.is_file() else [own / file for file in suite.files]
        there = [one for one in beside if one.exists() and (not suite.named_alike or one.name in suite.files)]
        if there:
            return there[0]
        if not suite.named_alike:
            raise ProblemError(f"{suite.variable} names the folder {own}, which holds no {suite.files[0]}.")
    if data := _named_by(DATA_VARIABLE):
        for place in (data, *sorted(entry for entry in data.glob("*") if entry.is_dir())):
            for file in suite.files:
                if (place / file).exists():
                    return place / file
    files = " or ".join(suite.files)
    advice = f"put {files} into a folder and set {DATA_VARIABLE} to it, or give the file's path."
    source = suite.source
    if source is None:
        raise ProblemError(f"{name}: its files were not found.", remedy=advice)
    cached = cache_folder() / "suites" / source.cached_name
    if fetch and not cached.exists():
        content = _fetched(name, source, advice)
        with writing(str(cached)):
            cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, content)
    return cached


def _named_by(variable: str | None) -> Path | None:
    load_keys()
    path = os.environ.get(variable) if variable else None
    if path and not Path(path).exists():
        raise ProblemError(f"{variable} names {path}, which does not exist.")
    return Path(path) if path else None


def _fetched(name: str, source: HubDataset | PinnedFile, advice: str) -> bytes:
    try:
        import datasets
    except ImportError:
        raise ProblemError(
            f"{name}: its file was not found, and the library that would fetch it is not installed.",
            remedy=f"pip install 'greenward[hub]'. Or, without a network: {advice}",
        ) from None
    try:
        content = source.fetch(datasets)
    except Exception as error:  # what `datasets` raises without a network has no common base class
        reason = str(error).partition("\n")[0][:200]
        raise ProblemError(
            f"{name}: could not be fetched ({type(error).__name__}: {reason}).",
            remedy=f"Without a network: {advice}",
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if isinstance(source, PinnedFile) and found != source.sha256:
        raise ProblemError(
            f"{name}: {source.url} gave a file with SHA-256 {found[:16]}…, expected {source.sha256[:16]}….",
            remedy="The published file has changed. Results with it could not be compared; it was not kept.",
        )
    return content


BUGGY, CORRECT = "python_programs", "correct_python_programs"
JSON_CASES, PYTEST = "json_testcases", "python_testcases"
# Except for sqrt, whose programs differ in what they accept as close enough, results are exact.
_COMPARISON = Comparison(tolerance=0.0, tuple_is_list=True)
_SLOW: Mapping[str, Callable[..., bool]] = {
    "knapsack": lambda capacity, items: capacity * len(items) > 10_000_000,
    "levenshtein": lambda source, target: len(source) * len(target) > 500,
}
# What the right program for levenshtein needs for its other cases, on a slow machine.
_CPU_SECONDS = {"levenshtein": 40.0}


@expects("QuixBugs", ProblemError)
def load_quixbugs(folder: str | Path) -> ProblemSet:
    """The 40 programs. `starter_code` is empty: the program in `buggy_code` is to be written anew.

    The programs that have JSON cases are tagged `json`, the graph programs `graph`. Raises
    `ProblemError`.
    """
    folder = Path(folder)
    for part in (BUGGY, CORRECT, JSON_CASES, PYTEST):
        if not (folder / part).is_dir():
            raise ProblemError(
                f"{folder}: expected the folder {part!r} of QuixBugs, found none.",
                remedy="Give the path of a copy of github.com/jkoppel/QuixBugs.",
            )
    tests = sorted(path.stem.removeprefix("test_") for path in (folder / PYTEST).glob("test_*.py"))
    if not tests:
        raise ProblemError(f"{folder / PYTEST}: there is no test file.")
    return ProblemSet((_problem(folder, name) for name in tests), name="quixbugs")


def _problem(folder: Path, name: str) -> Problem:
    reference = read_text(folder / CORRECT / f"{name}.py", within=folder)
    problem = Problem(
        task_id=f"QuixBugs/{name}",
        prompt="One line of this program is wrong.",
        entry_point=name,
        reference=reference,
        buggy_code=read_text(folder / BUGGY / f"{name}.py", within=folder),
    )
    cases = folder / JSON_CASES / f"{name}.json"
    if cases.is_file():
        rows = _json_cases(cases)
        in_time = [row for row in rows if name not in _SLOW or not _SLOW[name](*row[0])]
        tests = _assertions(name, reference, in_time)
        return replace(
            problem,
            tests=tuple(map(Assertion, tests)) or tuple(Case(*row) for row in in_time),
            comparison=_COMPARISON,
            tags=("json",),
            tests_left_out=len(rows) - len(in_time),
            cpu_seconds=_CPU_SECONDS.get(name, 0.0),
        )
    module = parse(read_text(folder / PYTEST / f"test_{name}.py", within=folder))
    set_up, programs = _split_pytest_file(module)
    if any(isinstance(node, ast.Name) and node.id == "Node" for node in ast.walk(module)):
        return replace(
            problem,
            tests=tuple(InProcess(f"{set_up}\n{program}") for program in programs),
            setup_code=read_text(folder / PYTEST / "node.py", within=folder),
            tags=("graph",),
        )
    return replace(problem, tests=tuple(map(Check, programs)), check_setup_code=set_up, tags=("graph",))


def _json_cases(path: Path) -> list[tuple[tuple[Any, ...], Any]]:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            try:
                arguments, expected = parse_json_text(line)
            except (ValueError, TypeError) as error:
                raise ProblemError(
                    f"{path}, line {number}: expected [arguments, expected]: {error}."
                ) from None
            # Upstream: what is no list is the only argument.
            rows.append((tuple(arguments) if isinstance(arguments, list) else (arguments,), expected))
    return rows


def _assertions(name: str, reference: str, rows: list[tuple[tuple[Any, ...], Any]]) -> tuple[str, ...]:
    """The cases as assert statements where a call must not be compared as it is; else nothing."""
    calls = [(f"{name}({', '.join(map(repr, arguments))})", arguments, value) for arguments, value in rows]
    if name == "sqrt":
        return tuple(f"assert abs({call} - {value!r}) <= {given[-1]!r}" for call, given, value in calls)
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(parse(reference))):
        return tuple(f"assert list({call}) == {value!r}" for call, _, value in calls)
    return ()


def _split_pytest_file(module: ast.Module) -> tuple[str, tuple[str, ...]]:
    """(what the tests share, a program for each test that calls it)."""
    shared, programs = [], []
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            programs.append(f"{ast.unparse(node)}\n{node.name}()\n")
        # Some statements choose which program is imported: the buggy or the correct one.
        elif not any(isinstance(inner, (ast.Import, ast.ImportFrom)) for inner in ast.walk(node)):
            shared.append(node)
    return ast.unparse(ast.Module(shared, [])), tuple(programs)


Part = Literal["train", "held_out"]
_SPARE_BUGS = 3  # further candidates, for bugs that no test finds


def _evalplus(name: str, release: str, sha256: str) -> Suite:
    source = PinnedFile(f"https://github.com/evalplus/{release}/{name}.jsonl.gz", sha256)
    return Suite((f"{name}.jsonl.gz", f"{name}.jsonl"), EVALPLUS, source)


def _mbpp(file: str, config: str, *, named_alike: bool = False) -> Suite:
    revision = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
    source = HubDataset("google-research-datasets/mbpp", config, tuple(PARTS), revision)
    return Suite((file,), MBPP, source, "MBPP_DATASET_PATH", named_alike)


_HUMANEVAL_PLUS = "humanevalplus_release/raw/200defce9e3429d28ca215b6dd061c0f7f31c18b"
_MBPP_PLUS = "mbppplus_release/raw/dadf43da556a00f7bacd71cb154f2932757d9144"
_HUMANEVAL = HubDataset(
    "openai/openai_humaneval", "openai_humaneval", ("test",), "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"
)
SUITES: dict[str, Suite] = {
    "mbpp": _mbpp("mbpp.jsonl", "full"),
    "mbpp-sanitized": _mbpp("sanitized-mbpp.json", "sanitized", named_alike=True),
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

NAMED = (*SHIPPED, *REPOSITORY_SETS, *SUITES)
GENERATED = (FAMILIES, MODULES, *SOURCES)


_SHOWN_FORMATS = 3  # that are equally near to a row
_SHOWN_FOLDERS = 5
_DATA_FILES = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".parquet")


@cache
def formats() -> tuple[Format, ...]:
    """All formats of files."""
    of_tasks = [one for place in FORMATS for one in load(place)]
    return (
        EVALPLUS, HUMANEVALPACK, HUMANEVAL_X, MULTIPL_E, HUMANEVAL, MBPP, BIGCODEBENCH, KODCODE, ACECODE,
        LIVECODEBENCH, APPS, CODE_CONTESTS, DEEPCODER, OPEN_R1, CODEFORCES, VERL, SWE_BENCH, *of_tasks,
        SIMPLE_JSON,
    )  # fmt: skip


def supported() -> str:
    """What files can be read, for a message."""
    named = "; ".join(f"{one.name} (fields {one.fields_text})" for one in formats())
    files = f"JSON and JSON Lines files (also .gz) and parquet files of {named}"
    folders = "folders of such files, and the folders of QuixBugs and APPS"
    return f"Supported are {files}; {folders}. FORMAT:FILE names the format."


def chosen_format(source: str) -> tuple[Format | None, str]:
    """The format that a source names and the path behind it; None and the source if it names none."""
    key, _, path = source.partition(":")
    found = next((one for one in formats() if one.key == key), None)
    is_part = key in SUITES and (path in PARTS or (not Path(path).suffix and not Path(path).exists()))
    return (None, source) if found is None or not path or is_part else (found, path)


def load_problems(
    source: str,
    families: FamiliesConfig,
    part: Part,
    *,
    bugs: BugsConfig | None = None,
    skip_bad_rows: bool = False,
) -> ProblemSet:
    """The problems that a recipe's `problems.train` or `problems.held_out` names.

    Of what is generated (`GENERATED`), `part` is returned; what `load_suite` takes
    is returned whole. With `bugs:` before it, the result is candidates for the repair of its programs, more
    of each than `bugs.per_problem`; `grading.verification` finds those that do have a bug. With `planted:`
    before the folder of a package, the same for its modules and tests. Raises `ProblemError`.
    """
    if part not in get_args(Part):
        raise ProblemError(f"part: expected {' or '.join(get_args(Part))}, found {part!r:.100}.")
    if source.startswith(BUGS):
        from greenward.config.section import BugsConfig
        from greenward.problems.mutation import repair_candidates

        originals = load_problems(source[len(BUGS) :], families, part, skip_bad_rows=skip_bad_rows)
        bugs = bugs or BugsConfig()
        candidates = repair_candidates(originals, per_problem=bugs.per_problem + _SPARE_BUGS, seed=bugs.seed)
        if not candidates:
            raise ProblemError(
                f"{source}: none of the problems has a reference that a bug could be put into.",
                remedy="Name problems that come with their reference solutions.",
            )
        return candidates
    if source.startswith(PLANTED):
        from greenward.config.section import BugsConfig

        bugs = bugs or BugsConfig()
        return planted_candidates(source[len(PLANTED) :], per_module=4 * bugs.per_problem, seed=bugs.seed)
    if source == FAMILIES:
        return _split_families(families)[part]
    if source == MODULES:
        return _split_modules(families)[part]
    if source in SOURCES:
        made: ProblemSet = load(SOURCES[source])(part)
        return made
    return load_suite(source, skip_bad_rows=skip_bad_rows, known=(*GENERATED, *NAMED))


def sources_in(source: str) -> tuple[str, ...]:
    """The sources of a list that is separated by commas; the name of a file that is there may hold commas."""
    return (source,) if Path(source).exists() else tuple(map(str.strip, source.split(",")))


def check_source(
    source: str, known: tuple[str, ...] = (*GENERATED, *NAMED), path: str | Path | None = None
) -> None:
    """Raises `ProblemError` for an unknown name or a missing file, before anything is read.

    It names the nearest of `known`, or of the files beside a missing one. `path` is the file of a suite.
    Of a list (`sources_in`), each one is checked.
    """
    if len(parts := sources_in(source.removeprefix(BUGS))) > 1:
        for part in parts:
            check_source(part, known)
        return
    source = source.removeprefix(BUGS)
    if source.startswith(PLANTED) and not Path(source.removeprefix(PLANTED)).is_dir():
        raise ProblemError(f"{source}: there is no such folder of a package.")
    _, source = chosen_format(source.removeprefix(PLANTED))
    name, _, part = source.partition(":")
    file = Path(source)
    if name in SUITES:
        if part and part not in PARTS:
            raise ProblemError(f"{source}: there is no part {part!r}.", remedy=f"Parts: {', '.join(PARTS)}.")
        if path is None:
            find_file(name, SUITES[name], fetch=False)
    elif source not in known and not file.exists():
        is_file = file.suffix in (".json", ".jsonl", ".gz", ".parquet")
        beside = [str(one) for kind in ("json*", "parquet") for one in file.parent.glob(f"*.{kind}")]
        place = source.partition(":")[2]
        chosen = [f"{one.key}:{place}" for one in formats()] if place and Path(place).is_file() else []
        near = get_close_matches(source, [*chosen, *known, *(beside if is_file else ())], n=1)
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
    ships, a file of a known format, which `KEY:` before it may name (`Format.key`), a folder of such files,
    or several of these, separated by commas. `path` is the file of a public suite; without it, `find_file`
    looks for the file. With `skip_bad_rows`, rows that cannot be used are left out and listed in
    `ProblemSet.skipped`. Raises `ProblemError` that names the nearest of `known`, also for an id that two of
    several sources have.
    """
    if len(parts := sources_in(source)) > 1:
        return _joined([load_suite(part, skip_bad_rows=skip_bad_rows, known=known) for part in parts], source)
    name, _, part = source.partition(":")
    if source in REPOSITORY_SETS:
        return shipped_repositories(source)
    if source in SHIPPED:
        return load_json(DATA / f"{source}.json")
    check_source(source, known, path)
    form, place = chosen_format(source)
    if form is not None or name not in SUITES:
        return load_file(place, form, skip_bad_rows=skip_bad_rows)
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


def load_file(path: str | Path, chosen: Format | None = None, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of a file or folder, in the format that was chosen or that the fields of its rows tell.

    A folder is one of QuixBugs or APPS, or holds files of a known format, which are read in the order of
    their names; folders in it are not read.

    Raises `ProblemError`; for a file of no known format it names the nearest one, the fields that are
    missing, and the known formats. A row that fits several formats is a bad row unless one was chosen.
    """
    path = Path(path)
    if path.is_dir():
        if (path / BUGGY).is_dir():
            return load_quixbugs(path)
        if any(path.glob("*/question.txt")):
            return read_problems(path, APPS, rows=apps_rows(path), skip_bad_rows=skip_bad_rows)
        files = sorted(one for one in path.iterdir() if one.is_file() and one.name.endswith(_DATA_FILES))
        if files:
            read = [load_file(one, chosen, skip_bad_rows=skip_bad_rows) for one in files]
            return _joined(read, path.name)
        inside = [str(one) for one in sorted(path.iterdir()) if one.is_dir()]
        found = f" Its folders: {', '.join(inside[:_SHOWN_FOLDERS])}." if inside else ""
        none = f"not a folder of QuixBugs or APPS, and no {', '.join(_DATA_FILES)} file is in it.{found}"
        raise ProblemError(f"{path}: {none}", remedy=supported())
    form = chosen or _format_of(path)
    if chosen is None:
        form = replace(form, problem=partial(_problem_of_format, form))
    return read_problems(path, form, skip_bad_rows=skip_bad_rows)


def _joined(sets: Sequence[ProblemSet], name: str) -> ProblemSet:
    skipped = tuple(chain.from_iterable(one.skipped for one in sets))
    return ProblemSet(chain.from_iterable(sets), name=name, skipped=skipped)


def _problem_of_format(form: Format, row: Row) -> Problem | tuple[Problem, ...]:
    """The problem of a row of a file of this format. Raises `BadRow` for a row of another, or of several."""
    found = _only_format(row)
    if found is not form:
        raise row.error(found.fields[-1], f"is one of {found.name}, while the rows before are of {form.name}")
    return form.problem(row)


def _only_format(row: Row) -> Format:
    """The format that a row has. Raises `BadRow` if it has none or several."""
    fitting = [one for one in formats() if one.fits(row)]
    # Tables of several data sets have all columns, with null in those that a row does not use.
    used = [one for one in fitting if not one.missing(row, filled=True)]
    if len(fitting) == 1 or len(used) == 1:
        return (used or fitting)[0]
    if fitting:
        named = " and of ".join(f"{one.name} ({one.fields_text})" for one in fitting)
        keys = " or ".join(f"{one.key}:FILE" for one in fitting)
        raise BadRow(
            f"{row.file}, {row.place}: it has the fields of {named}.", remedy=f"Name the format: {keys}."
        )
    named = ", ".join(sorted(row.values))[:500] or "none"
    lacks = {one: [repr(field).replace("|", "' or '") for field in one.missing(row)] for one in formats()}
    near = [one for one in formats() if 0 < len(lacks[one]) < len(one.fields)]
    if not near:
        raise BadRow(f"{row.file}, {row.place}: it has no field of a supported format; it has {named}.")
    near.sort(key=lambda one: (len(lacks[one]), len(lacks[one]) / len(one.fields)))
    nearest = [one for one in near if len(lacks[one]) == len(lacks[near[0]])][:_SHOWN_FORMATS]
    told = "; ".join(f"of {one.name} it lacks {', '.join(lacks[one])}" for one in nearest)
    meant = [
        f"Is {name!r} meant to be {field!r}?"
        for one in nearest
        for field in one.missing(row)
        for name in get_close_matches(field, row.values.keys() - set(one.fields), n=1, cutoff=0.8)
    ]
    raise BadRow(
        f"{row.file}, {row.place}: it has the fields of no format; {told}. This row has: {named}.",
        remedy=" ".join(meant) or None,
    )


def _format_of(path: Path) -> Format:
    """The format of the first row that has a single one."""
    bad: list[BadRow] = []

    def keep_first(error: BadRow) -> None:
        bad[:] = bad or [error]

    try:
        for row in read_rows(path, example="the rows of a format", non_finite=True, on_bad=keep_first):
            try:
                return _only_format(row)
            except BadRow as error:
                keep_first(error)
    except ProblemError as error:
        raise ProblemError(
            error.message, remedy=" ".join(filter(None, (error.remedy, supported())))
        ) from None
    first = bad[0] if bad else BadRow(f"{path}: there is no problem in the file.")
    raise ProblemError(first.message, remedy=" ".join(filter(None, (first.remedy, supported()))))


@lru_cache(maxsize=1)
def _split_families(config: FamiliesConfig) -> dict[str, ProblemSet]:
    from greenward.problems.generated import generate, split

    train, held_out = split(generate(config), config.held_out, config.seed)
    return {"train": train, "held_out": held_out}


@lru_cache(maxsize=1)
def _split_modules(config: FamiliesConfig) -> dict[str, ProblemSet]:
    from greenward.problems.generated import generated_modules

    sides = _split_families(config)
    train, held_out = generated_modules(sides["train"], sides["held_out"])
    return {"train": train, "held_out": held_out}
