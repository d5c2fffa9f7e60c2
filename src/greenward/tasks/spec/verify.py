"""Mines problems from source trees into a folder: two sides, a manifest, and what was left out and why.

Everything of a tree runs in the sandbox. A function or method with a docstring and a body of 1 to 60 lines
is a candidate. It is judged by up to six passing tests that reach it (of the standard library those that
CPython names after the module, which Debian and others leave out), or else by the `>>>` examples of its
docstring. It is kept if the original passes three times within 0.5 s of CPU time, and if an empty body and
every body that returns a constant or its first argument fail. An original that depends on no package must
also pass in workers that have loaded nothing, as it is judged later. Equal functions count once, and a
function is left out if an answer could read a copy. No file has problems on both sides of the split.

- `train.json`, `held_out.json`: problems in the simple JSON format; `columns` has origin, licence and
  dependencies.
- `left_out.jsonl`: each function and file that gives no problem, with the reason in words.
- `manifest.json`: sources with versions and licences, counts, hashes, settings, packages that the tests
  need, isolation.
"""

from __future__ import annotations

import importlib.util
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from greenward.common.control_groups import usable_cores
from greenward.common.errors import ProblemError
from greenward.common.garbage import collection_paused
from greenward.common.text import visible
from greenward.grading.judge import Grader
from greenward.grading.testcases import demand_judgeable
from greenward.grading.verdict import Family, Verdict
from greenward.problems.formats import save_json
from greenward.problems.mining import (
    EMPTY_BODIES,
    LeftOut,
    MaskedFunction,
    SourceFile,
    SourceTree,
    constant_bodies,
    doctest_problem,
    files_for,
    find_tree,
    helpers_for,
    in_file,
    masked_functions,
    needs_pytest,
    suite_problem,
    suites_of,
    usual_packages,
)
from greenward.problems.problem import Problem, ProblemSet, stable_hash
from greenward.problems.python_source import module_of
from greenward.problems.sandboxed_suites import RUNNER, TRACER, sandboxed, traced_rows
from greenward.runs.files import write_json, write_rows, writing
from greenward.runs.machine import collect_provenance
from greenward.runs.output import check_folder, refuse_other_entries, replace_folder
from greenward.sandbox.isolation import Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, Executor, Job, Limits, RunResult

LIMITS = Limits(cpu_seconds=2.0, wall_seconds=8.0, memory_bytes=512 << 20)
MOST_REFERENCE_SECONDS = 0.5  # CPU time of the original with its tests, so that answers have time enough
TEST_SECONDS = 0.25  # CPU time of one test, traced
MOST_TESTS = 6
_TRACE_LIMITS = Limits(cpu_seconds=6.0, wall_seconds=30.0, output_bytes=4 << 20)
_FILES_AT_ONCE, _VERIFIED_AT_ONCE = 12, 24
_UNREACHED = "no test reaches it"


@dataclass(frozen=True)
class MiningOptions:
    """What is mined, and how: until there are `limit` problems, of test suites or of doctests alone.

    `held_out` is the share of the problems that is held out, `context_chars` how much of the file a prompt
    shows around a function. `packages` are what the trees may import besides the standard library: pytest
    without them, where it is installed. `workers` run at a time, as many as there are processors without it.
    """

    limit: int | None = None
    held_out: float = 0.2
    suites: bool = True
    context_chars: int = 4000
    packages: Sequence[str] | None = None
    workers: int | None = None
    require: str = "B"
    seed: int = 0


@dataclass
class Mined:
    """Problems with their functions, in the order of their files; what was left out; functions in all."""

    problems: list[tuple[MaskedFunction, Problem]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    functions: int = 0


def mine(
    trees: Sequence[SourceTree],
    executor: Executor,
    options: MiningOptions,
    progress: Callable[[int, int, int], None] = lambda files, of, problems: None,
    *,
    bare: Executor,
) -> Mined:
    """Problems of the functions in these trees; `progress` gets the files done, all files, the problems.

    `executor` may have loaded what tests import. `bare` has loaded nothing; it judges the originals of
    problems that depend on no package once, because what was loaded outside of the layers can work where it
    would not behind them. With a limit, files are taken in an order that depends on the seed and their
    places only.
    """
    mined = Mined()
    seen: dict[str, str] = {}
    with Grader(LIMITS, executor=executor) as grader, Grader(LIMITS, executor=bare) as bare_grader:
        for tree in trees:
            mined.left_out += tree.left_out
            miner = _Miner(tree, executor, grader, bare_grader, options, mined, seen)
            files = [one for one in tree.files if not one.is_test]
            files.sort(key=lambda one: stable_hash(f"mine/{options.seed}/{one.place}"))
            done, stream = 0, iter(files)
            while batch := list(islice(stream, _FILES_AT_ONCE)):
                if options.limit is not None and len(mined.problems) >= options.limit:
                    break
                miner.add(batch)
                done += len(batch)
                progress(done, len(files), len(mined.problems))
    del mined.problems[len(mined.problems) if options.limit is None else options.limit :]
    mined.problems.sort(key=lambda one: (one[1].task_id.partition("/")[0], one[0].file.place, one[0].start))
    mined.left_out.sort(key=lambda one: one.where)
    return mined


@dataclass
class _Miner:
    """Mines the files of one tree; the tests of a file run once.

    `seen` says where each function was met first, by its fingerprint.
    """

    tree: SourceTree
    executor: Executor
    grader: Grader
    bare_grader: Grader
    options: MiningOptions
    mined: Mined
    seen: dict[str, str]

    def __post_init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}  # of all functions of the tree, by place and line
        self._targets: dict[str, dict[str, int]] = defaultdict(dict)
        self._functions: dict[str, list[MaskedFunction]] = {}
        self._copies: dict[str, list[str]] = defaultdict(list)  # the places of equal functions
        with collection_paused():  # syntax trees have no cycles
            for file in self.tree.files:
                if not file.is_test:
                    self._functions[file.place] = list(self._read(file))
        self._traced: set[str] = set()
        # The tests that reach a function: how many functions each reaches in all, its suite, its name.
        self._reached: dict[int, list[tuple[int, str, str]]] = defaultdict(list)

    def _read(self, file: SourceFile) -> Iterator[MaskedFunction]:
        for found in masked_functions(file):
            self.mined.functions += "." in found.where if isinstance(found, LeftOut) else 1
            if isinstance(found, LeftOut):
                self.mined.left_out.append(found)
                continue
            number = self._numbers[found.file.place, found.start] = len(self._numbers)
            self._targets[found.file.place][str(found.start + 1)] = number
            self._copies[found.fingerprint].append(found.file.place)
            yield found

    def _leave_out(self, function: MaskedFunction, reason: str, detail: str = "") -> None:
        self.mined.left_out.append(LeftOut(function.where, reason, detail))

    def add(self, files: Iterable[SourceFile]) -> None:
        """Adds the problems of these files."""
        functions = [one for file in files for one in self._functions[file.place]]
        if self.options.suites and functions:
            asked = dict.fromkeys(one.file for one in functions)
            self._trace(dict.fromkeys(name for file in asked for name in suites_of(file, self.tree)))
        waiting: list[tuple[MaskedFunction, Problem]] = []
        again: list[tuple[MaskedFunction, Problem]] = []
        for one in functions:
            chars = self.options.context_chars
            found = []
            if tests := self._tests_of(one):
                found.append((one, suite_problem(one, self.tree, *tests, chars)))
            if ">>>" in one.docstring:
                found.append((one, doctest_problem(one, self.tree, chars)))
            if not found:
                self._leave_out(one, _UNREACHED)
                continue
            if (place := self._readable_copy(*found[0])) is not None:
                self._leave_out(one, "a copy can be read", f"in {place}")
                continue
            if (first := self.seen.setdefault(one.fingerprint, one.where)) != one.where:
                self._leave_out(one, "duplicate", f"of {first}")
                continue
            found = [pair for pair in found if self._is_judgeable(*pair)]
            waiting += found[:1]
            again += found[1:]
        for start in range(0, len(waiting), _VERIFIED_AT_ONCE):
            if self.options.limit is None or len(self.mined.problems) < self.options.limit:
                candidates = waiting[start : start + _VERIFIED_AT_ONCE]
                refused = self._verify(candidates)
                # In place of a refused problem the other one for the same function.
                refused |= self._verify([pair for pair in again if pair[0].where in refused])
                for one, _ in candidates:
                    if one.where in refused:
                        self._leave_out(one, *refused[one.where])

    def _is_judgeable(self, function: MaskedFunction, problem: Problem) -> bool:
        try:
            demand_judgeable(problem)
            return True
        except ProblemError as error:
            self._leave_out(function, "cannot be judged", error.message[:200])
            return False

    def _readable_copy(self, function: MaskedFunction, problem: Problem) -> str | None:
        """Where an answer could read an equal function; None for nowhere."""
        others = list(self._copies[function.fingerprint])
        others.remove(function.file.place)
        files = {*(problem.files or {}), *(problem.test_files or {})}
        return next((place for place in others if self.tree.library or place in files), None)

    def _tests_of(self, function: MaskedFunction) -> tuple[str, list[str]] | None:
        """A suite, and those of its tests that concern the function most: they reach fewer others."""
        found = sorted(self._reached[self._numbers[function.file.place, function.start]])
        if not found:
            return None
        suite = found[0][1]
        tests = dict.fromkeys(test for _, one, test in found if one == suite)  # once with all parameters
        return suite, list(tests)[:MOST_TESTS]

    def _trace(self, suites: Iterable[str]) -> None:
        """Runs suites that have not run yet."""
        new = [name for name in suites if name not in self._traced]
        self._traced.update(new)
        for index, result in self.executor.run(self._trace_job(name) for name in new):
            suite, reached = new[index], False
            names = (f"{suite}::", f"{suite}.", f"{module_of(suite)}.")  # of pytest, of unittest
            for test, seconds, numbers in _rows(result.stdout):
                reached = True
                if seconds <= TEST_SECONDS and test.startswith(names):
                    for number in numbers:
                        self._reached[number].append((len(numbers), suite, test))
            if not reached:
                self.mined.left_out.append(LeftOut(suite, "no test passes", _ending(result)))

    def _trace_job(self, suite: str) -> Job:
        name, files, targets = suite, {RUNNER: sandboxed(RUNNER)}, self._targets
        if suite in self.tree.by_place:
            file = self.tree.by_place[suite]
            files |= helpers_for(file, self.tree) | files_for(file, self.tree)
            name = file.place if needs_pytest(file) else file.module
            targets = {place: lines for place, lines in targets.items() if place in files}
        call = Call((name, dict(targets), 2 * TEST_SECONDS))
        return Job(sandboxed(TRACER), "trace", (call,), limits=_TRACE_LIMITS, files=files, path=TRACER)

    def _verify(self, candidates: Sequence[tuple[MaskedFunction, Problem]]) -> dict[str, tuple[str, str]]:
        """Keeps the problems whose tests tell the original from wrong bodies; why not, for the others."""
        refused: dict[str, tuple[str, str]] = {}

        def judge(
            bodies: Callable[[MaskedFunction], Sequence[str]], *, is_bare: bool = False
        ) -> Iterator[tuple[str, str, Verdict]]:
            runs = [
                (one.where, body, (problem, in_file(one, body) if body else problem.reference))
                for one, problem in candidates
                if one.where not in refused and not (is_bare and (problem.columns or {})["dependencies"])
                for body in bodies(one)
            ]
            grader = self.bare_grader if is_bare else self.grader
            verdicts = grader.grade([answer for _, _, answer in runs])
            for (where, body, _), verdict in zip(runs, verdicts, strict=True):
                yield where, body, verdict

        def check_originals(*, is_bare: bool = False) -> None:
            for where, _, verdict in judge(lambda _: [""], is_bare=is_bare):
                if not verdict.passed:
                    refused[where] = "the original fails", visible(verdict.failure, 200)
                elif not is_bare and verdict.cpu_seconds > MOST_REFERENCE_SECONDS:
                    refused[where] = "its tests take too long", f"{verdict.cpu_seconds:.1f} s"

        def check_wrong(bodies: Callable[[MaskedFunction], Sequence[str]], reason: str) -> None:
            for where, body, verdict in judge(bodies):
                if verdict.status.family is Family.INFRASTRUCTURE:
                    refused[where] = "infrastructure", verdict.error_message
                elif verdict.passed:
                    refused[where] = reason, body

        check_originals(is_bare=True)
        check_originals()
        check_wrong(lambda _: EMPTY_BODIES, "an empty body passes")
        check_wrong(constant_bodies, "a constant passes")
        check_originals()
        check_originals()
        self.mined.problems += (one for one in candidates if one[0].where not in refused)
        return refused


def _rows(printed: str) -> Iterator[tuple[str, float, list[int]]]:
    for row in traced_rows(printed):
        match row:
            case [str(test), float(seconds), [*numbers]] if all(type(one) is int for one in numbers):
                yield test, seconds, numbers


def _ending(result: RunResult) -> str:
    failed = next((one for one in result.results if not one.returned), None)
    message = failed.error_message if failed else result.error_message
    return visible(f"{failed.error_class if failed else result.outcome.value}: {message}", 200)


TRAIN, HELD_OUT, LEFT_OUT, MANIFEST = "train.json", "held_out.json", "left_out.jsonl", "manifest.json"
_USUAL = MiningOptions()


@dataclass(frozen=True)
class MiningResult:
    """The folder, the problems of each side, the functions found, and how many were left out by reason.

    `packages` are those that the problems need to be judged.
    """

    folder: Path
    train: ProblemSet
    held_out: ProblemSet
    functions: int
    left_out: Mapping[str, int]
    packages: tuple[str, ...]


def mine_problems(
    sources: Sequence[str],
    folder: str | Path,
    options: MiningOptions = _USUAL,
    progress: Callable[[int, int, int], None] = lambda files, of, problems: None,
) -> MiningResult:
    """Mines problems from source trees (`find_tree`) into `folder`, which is written at the end, as a whole.

    `progress` gets the files done, all files of the tree, the problems. A folder that was mined before is
    replaced.

    Raises `ProblemError` for a source that is not there and for trees that give no problem; `RunError` for a
    folder that holds something else; `SandboxError`.
    """
    folder = Path(folder)
    if check_folder(folder, "problems"):
        refuse_other_entries(folder, "problems")
    trees = [find_tree(source) for source in dict.fromkeys(sources)]
    packages = usual_packages() if options.packages is None else options.packages
    count, level = options.workers or usable_cores(), Level(options.require)
    with (
        LocalExecutor(count, packages=runners(packages), require=level) as executor,
        LocalExecutor(count, require=level) as bare,
    ):
        mined = mine(trees, executor, options, progress, bare=bare)
        isolation = executor.isolation.to_json()
    reasons = dict(Counter(one.reason for one in mined.left_out).most_common())
    if not mined.problems:
        remedy = "Expected Python files (.py) with documented functions."
        if reasons:
            remedy = f"Left out: {', '.join(f'{count} {reason}' for reason, count in reasons.items())}."
        if _UNREACHED in reasons:
            remedy += (
                " A function is tested by doctests in its docstring, or by the test files of a project: "
            )
            remedy += "name the project's folder, which has them."
        raise ProblemError(
            f"none of {mined.functions} functions in {', '.join(sources)} gives a problem.", remedy=remedy
        )
    named = {name for _, problem in mined.problems for name in (problem.columns or {})["dependencies"]}
    needed = tuple(name for name in packages if name in named)
    sides = split_by_file(mined, options.held_out, options.seed)
    result = MiningResult(folder, *sides, mined.functions, reasons, needed)
    facts = {"packages": list(packages), "sandbox": isolation}
    facts |= {
        name: getattr(options, name) for name in ("held_out", "limit", "suites", "context_chars", "seed")
    }
    _write(result, mined, trees, facts)
    return result


def runners(packages: Sequence[str]) -> list[str]:
    """`packages`, and what their tests import in every run: the sandbox loads it once, before all runs."""
    names = [*packages, "unittest", *(f"test.support{name}" for name in ("", ".os_helper", ".import_helper"))]
    if "pytest" in packages:
        from _pytest.config import default_plugins

        names += (f"_pytest.{name}" for name in default_plugins)
    return [name for name in names if name in packages or _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of its package
        return False


def split_by_file(mined: Mined, held_out: float, seed: int) -> tuple[ProblemSet, ProblemSet]:
    """(train, held-out): whole files, in an order by stable hash, until the share `held_out` is reached.

    A copy of a file has the same text and goes to the same side. Problems from a single file are all trained
    on.
    """
    problems_of: dict[str, list[Problem]] = {}
    for function, problem in mined.problems:
        problems_of.setdefault(function.file.text, []).append(problem)
    order = sorted(problems_of, key=lambda text: stable_hash(f"split/{seed}/{problems_of[text][0].task_id}"))
    wanted, held = held_out * len(mined.problems), set[str]()
    count = 0
    for text in order[:-1]:
        if held and count + len(problems_of[text]) / 2 > wanted:
            break
        held.add(text)
        count += len(problems_of[text])
    sides = [
        ProblemSet(
            (problem for one, problem in mined.problems if (one.file.text in held) is is_held), name=name
        )
        for name, is_held in (("mined/train", False), ("mined/held_out", True))
    ]
    return sides[0], sides[1]


def _write(result: MiningResult, mined: Mined, trees: Sequence[SourceTree], facts: Mapping[str, Any]) -> None:
    def write(draft: Path) -> None:
        save_json(result.train, draft / TRAIN)
        if result.held_out:
            save_json(result.held_out, draft / HELD_OUT)
        write_rows(draft / LEFT_OUT, map(asdict, mined.left_out))
        write_json(
            draft / MANIFEST,
            {
                "sources": [
                    {key: getattr(one, key) for key in ("name", "version", "licence")}
                    | {"files": len(one.files)}
                    for one in trees
                ],
                "functions": result.functions,
                "problems": {
                    name: {
                        "count": len(side),
                        "data_hash": side.data_hash,
                        "files": sorted({f"{one.task_id.partition('/')[0]}: {one.path}" for one in side}),
                    }
                    for name, side in ((TRAIN, result.train), (HELD_OUT, result.held_out))
                },
                "packages": result.packages,
                "left_out": result.left_out,
                "settings": facts,
                "provenance": collect_provenance(),
            },
        )

    with writing(str(result.folder)):
        replace_folder(result.folder, "problems", write)
