"""Repairs a file whose tests fail: a model writes repairs, the tests judge them, the best one is offered.

An answer may change the file and others of its project, but not the tests. Comments, blank lines and
docstrings of lines that the answer leaves alone stay, and so do line ends, a byte order mark, a missing
newline at the end, and permissions. What the tests do not need is undone: changed docstrings, changed, added
or deleted top-level statements (unless the answer changes the parameters of a function), and files that were
made or deleted. Definitions that a whole program leaves out are put back if its tests fail without them.

Refused are

- a file that does not end in `.py`, is not UTF-8 or holds null bytes, and one in a hidden folder or one of
  builds; a file that does not parse is repaired like any other;
- tests in which no test is found or all are skipped; some that are skipped as the file is do not count;
- symbolic links as the file or the tests (links in the project are not followed);
- with `--yes`, a read-only file.

Where several folders hold a module of one name, the one beside the file is used.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import shlex
import time
from codecs import BOM_UTF8
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, product
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from greenward.common.errors import ConfigError, GreenwardError, ProblemError, SandboxError
from greenward.common.http import RequestError
from greenward.environments.prompts import PromptRenderer, answer_form, prompt_options
from greenward.evaluation.selection import Selection, best_by_tests
from greenward.grading.answers import extract_code, holds_fence
from greenward.grading.changes import completed, needed_change, without_idle_changes
from greenward.grading.edits import AnswerForm, lines_of
from greenward.grading.extracted import Extracted
from greenward.grading.judge import Grader
from greenward.grading.matching import BoundedMatcher
from greenward.grading.verdict import EDIT_ERRORS, Family, Status, Verdict
from greenward.models.catalog import FoundModel, find_model
from greenward.models.devices import resolve_device
from greenward.models.policy import Policy
from greenward.models.threads import use_free_cores
from greenward.problems.mining import (
    MAX_TREE_FILES,
    SourceFile,
    SourceTree,
    files_for,
    find_class,
    find_tree,
    helpers_for,
    needs_pytest,
    syntax_tree,
    usual_packages,
)
from greenward.problems.problem import Problem
from greenward.problems.python_source import (
    FunctionNode,
    bound_names,
    dotted_name,
    first_line,
    loaded_names,
    parse_or_none,
    same_trees,
    source_lines,
)
from greenward.problems.sandboxed_suites import RUNNER, run_by_runner, sandboxed, without_runner
from greenward.rollouts.endpoint import Endpoint, ServedModel, is_endpoint
from greenward.rollouts.protocols import SamplingParams
from greenward.runs.files import write_atomically, writing
from greenward.runs.progress import Drawn, Progress
from greenward.sandbox.inside.files import MAX_FILES, MAX_FILES_BYTES, text_bytes
from greenward.sandbox.isolation import Level
from greenward.sandbox.protocol import Limits
from greenward.tasks.repair.infilling import LINES_AT_ONCE, around, filled, suspicious_lines

MOST_TOKENS = 1024
SHARE_OF_PROGRAM = 0.75
"""How much of an answer's tokens a file may have that a model without a form of its own writes as a whole."""
MOST_TOKENS_OF_A_LINE = 48
LEAST_SECONDS, TIMES_BEFORE = 2.0, 10.0
"""CPU time that tests of a program with one other line get: so long, or so many times what the one that the
model was asked to repair took."""
MAX_TEST_CHARS = 3000  # of a test that is shown to the model
_WRITABLE = 0o222  # for its owner, its group or others


@dataclass(frozen=True)
class FixOptions:
    """How repairs are sampled and judged. None stands for what the model was trained with, or a default.

    At most `answers` are sampled at `temperature`; none after one that passes, unless `all_answers`. Where
    none passes and the best passes more tests than the file, at most as many to the file as it changes it.
    `form` is what the model writes. By default it is what its run trained it to write; without a run "infill"
    (`answers` fillings of each gap), if the model can fill gaps, and then "function" for a short file and a
    chat model that is loaded here, else "search_replace". `timeout` is the CPU time of all tests in seconds.
    """

    answers: int = 8
    all_answers: bool = False
    temperature: float = 0.8
    max_tokens: int | None = None
    form: AnswerForm | Literal["infill"] | None = None
    seed: int = 0
    timeout: float = 10.0
    workers: int | None = None
    require: Level = Level.B
    packages: tuple[str, ...] = ()
    device: str = "auto"
    dtype: str = "auto"
    api_key_env: str | None = None


@dataclass(frozen=True)
class Repair:
    """What became of a file: the verdict on it, and on the answers, if it failed.

    `changes` are the texts of the files that the best answer changes, before and after, None for a file that
    is not there; empty where no answer passes more tests than the file itself. `model` is what results say
    of the model that was asked, with the `dtype` in which it was computed here; `tokens` is how many it drew,
    and `seconds` what loading it, its answers and the tests took. `stopped` is what ended the search after an
    answer was found that passes more tests than the file: the error of a server, or Ctrl-C.
    """

    problem: Problem
    before: Verdict
    selection: Selection | None = None
    changes: Mapping[Path, tuple[str | None, str | None]] | None = None
    model: Mapping[str, Any] | None = None
    tokens: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    stopped: GreenwardError | KeyboardInterrupt | None = None

    @property
    def failure(self) -> str:
        """The first failing test of the file as it was."""
        return without_runner(self.before.failure)

    @property
    def passed(self) -> bool:
        """Whether all tests pass, with the changes where there are any."""
        if self.selection is None:
            return self.before.passed
        return bool(self.changes) and self.selection.verdict is not None and self.selection.verdict.passed

    def outcomes(self) -> list[dict[str, str | int | None]]:
        """Of each answer: its status, why it does not pass, the tests that pass, the error of its edits."""
        if self.selection is None:
            return []
        found: list[dict[str, str | int | None]] = []
        for answer, verdict in zip(self.selection.answers, self.selection.verdicts, strict=True):
            refused = answer.reason if isinstance(answer, Extracted) and answer.code is None else ""
            found.append(
                {
                    "status": verdict.status.value,
                    "reason": "" if verdict.passed else refused or without_runner(verdict.failure),
                    "tests_passed": sum(verdict.tests_passed),
                    "tests": len(verdict.tests_passed),
                    "edit_error": refused if verdict.status in EDIT_ERRORS else None,
                }
            )
        return found

    def diff(self) -> str:
        parts: list[str] = []
        for path, texts in (self.changes or {}).items():
            old, new = (lines_of(text or "") for text in texts)
            heads = [
                "/dev/null" if text is None else f"{side}/{path}"
                for side, text in zip("ab", texts, strict=True)
            ]
            lines = list(difflib.unified_diff(old, new, heads[0], heads[1]))
            parts += (
                line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
                for line in lines or (f"--- {heads[0]}\n", f"+++ {heads[1]}\n")  # of an empty file
            )
        return "".join(parts)

    def apply(self) -> None:
        """Write the changes, with the line ends and permissions that the files have.

        Raises `ConfigError` where a file has changed since, is a link or may not be written, before anything
        is.
        """
        changes = self.changes or {}
        for path, (before, _) in changes.items():
            demand_writable(path)
            if path.is_symlink():
                raise ConfigError(f"{path} is a link.", remedy="Name the file that it leads to.")
            now = path.read_text(encoding="utf-8-sig", errors="replace") if path.exists() else None
            if now != before:
                raise ConfigError(f"{path} has changed since it was read.", remedy="Run the command again.")
        with writing("the repair"):
            for path, (_, after) in changes.items():
                if after is None:
                    path.unlink()
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                old, mode = (path.read_bytes(), path.stat().st_mode) if path.exists() else (b"", None)
                mark, raw = (BOM_UTF8 if old.startswith(BOM_UTF8) else b""), old.removeprefix(BOM_UTF8)
                text = _with_line_ends_of(raw.decode(errors="replace"), after)
                write_atomically(path, mark + text.encode(), mode=mode)


_LINE_END = re.compile(r"\r\n|\r|\n")


def _with_line_ends_of(old: str, text: str) -> str:
    """The text with the end that each line had, or the line in its place; new lines have the usual one."""
    ends = _LINE_END.findall(old)
    if set(ends) <= {"\n"}:
        return text
    lines, new = _LINE_END.split(old), text.split("\n")
    written = [max(("\r\n", "\n", "\r"), key=ends.count)] * (len(new) - 1)
    for _, i1, i2, j1, j2 in BoundedMatcher(lines[:-1], new[:-1]).get_opcodes():
        paired = min(i2 - i1, j2 - j1)
        written[j1 : j1 + paired] = ends[i1 : i1 + paired]
    return "".join(line + end for line, end in zip(new, (*written, ""), strict=True))


def demand_writable(file: Path) -> None:
    """Raises `ConfigError` for a file that is there and has no permission to be written."""
    if file.exists() and not (file.stat().st_mode & _WRITABLE and os.access(file, os.W_OK)):
        raise ConfigError(f"{file} is read-only.", remedy=f"chmod u+w {shlex.quote(str(file))}")


def find_repair(
    file: Path, tests: Path, model: str, options: FixOptions, progress: Progress | None = None
) -> Repair:
    """Judge `file` by its tests and, if they fail, the answers of `model`: a run, a model or MODEL@URL.

    Raises `ProblemError` for a file or tests that cannot be used, `ConfigError` for a model that cannot be
    asked, `SandboxError` where the tests cannot be run here, and what ends the search before an answer passes
    more tests than the file.
    """
    shown = progress or Progress(quiet=True)
    with shown.during("reading the project"):
        problem, project = repair_problem(file, tests)
    limits = Limits(cpu_seconds=options.timeout, wall_seconds=3 * options.timeout, file_bytes=4 << 20)
    packages = (*usual_packages(), *options.packages)
    started = time.monotonic()
    with Grader(limits, options.workers, require=options.require, packages=packages) as grader:
        with shown.during("running the tests on the file"):
            problem, before = _judged_as_it_is(problem, project, grader, shown)
        if before.passed:
            return Repair(problem, before)
        shown.message(f"{sum(before.tests_passed)} of {len(before.tests_passed)} tests pass")
        judge = _Judge(problem, project, grader, before, time.monotonic() - started)
        asked = _Asked.of(model, judge.asked, project, options, shown)
        stopped: GreenwardError | KeyboardInterrupt | None = None
        try:
            with closing(asked):
                rounds = asked.rounds(judge.asked, judge.suspicious_lines)
                while (answers := next(rounds, None)) is not None:
                    with closing(answers):
                        judge.judge(answers, until_one_passes=not options.all_answers)
                    if judge.has_passed:
                        break
                    if judge.improves():
                        passed = sum(judge.reached.tests_passed)
                        shown.message(
                            f"{passed} of {len(before.tests_passed)} tests pass with the best answer"
                        )
                        rounds = asked.rounds(judge.asked, judge.suspicious_lines)
        except (GreenwardError, KeyboardInterrupt) as error:
            if not judge.has_gained:
                raise
            stopped = error
        selection = judge.selection()
        best, changes = selection.verdict, {}
        if best is not None and sum(best.tests_passed) > sum(before.tests_passed):
            with shown.during("leaving out what the tests do not need"):
                changes = judge.changes(selection)
    seconds = {"loading": asked.loading, "answers": asked.drawing, "tests": judge.seconds}
    return Repair(problem, before, selection, changes, asked.facts, asked.tokens, seconds, stopped)


def _judged_as_it_is(
    problem: Problem, project: _Project, grader: Grader, progress: Progress
) -> tuple[Problem, Verdict]:
    """The problem without tests that are skipped as the file is, and the verdict on the file.

    Raises `ProblemError` where all are skipped, `SandboxError` where the tests cannot be run.
    """
    names = list(project.tests)
    skipped = replace(problem, **run_by_runner(names, "left_out"))
    before, found = grader.grade([(one, problem.buggy_code) for one in (problem, skipped)])
    if not before.passed and any(found.tests_passed):
        run = [name for name, is_out in zip(names, found.tests_passed, strict=True) if not is_out]
        if not run:
            raise ProblemError(
                f"all {len(names)} tests are skipped.", remedy="Name tests that are run on this machine."
            )
        progress.message(f"{len(names) - len(run)} tests are skipped and do not count")
        problem = replace(problem, **run_by_runner(run))
        (before,) = grader.grade([(problem, problem.buggy_code)])
    if before.status.family is Family.INFRASTRUCTURE:
        raise SandboxError(f"the tests could not be run: {before.error_message}")
    return problem, before


class _Judge:
    """Judges the answers in their order, without what changes nothing; a part of a program as a part.

    `asked` is the problem that the model is asked: the file as it was or, in later rounds, as the best answer
    of the rounds before has changed it, whose verdict is `reached`. Each answer is judged as a repair of the
    file as it was, and holds what those changes are.
    """

    def __init__(
        self,
        problem: Problem,
        project: _Project,
        grader: Grader,
        before: Verdict,
        seconds: float,
    ) -> None:
        self.seconds = seconds
        self._problem, self._project, self._grader = problem, project, grader
        self._limits_of_lines = grader.limits
        self._judged: dict[int, tuple[Extracted, Verdict]] = {}
        self._verdicts: dict[Extracted, Verdict] = {}
        self._known = {problem.path: problem.buggy_code, **(problem.files or {})}
        self.has_passed = False
        self._before = before
        self._start(Extracted(problem.buggy_code), before)

    @property
    def has_gained(self) -> bool:
        """Whether an answer passes more tests than the file as it was."""
        passed = sum(self._before.tests_passed)
        return any(sum(verdict.tests_passed) > passed for _, verdict in self._judged.values())

    def suspicious_lines(self) -> list[int]:
        """Those of what is asked, the most suspicious first. Their answers get limits by what it took."""
        started = time.monotonic()
        suites = dict.fromkeys(test.file for test in self._project.tests.values())
        found, has_run = suspicious_lines(self.asked, suites, self._grader.executor)
        limits = self._grader.limits
        most = limits.cpu_seconds  # of a program that no test could import, it is not known what they take
        if self.reached.status is Status.TIMEOUT:  # of the many programs with one other line, some never end
            most = min(most, LEAST_SECONDS)
        elif has_run:
            most = min(most, max(LEAST_SECONDS, TIMES_BEFORE * self.reached.cpu_seconds))
        self._limits_of_lines = replace(limits, cpu_seconds=most)
        self.seconds += time.monotonic() - started
        return found

    def judge(self, answers: _Answers, *, until_one_passes: bool) -> None:
        """Judge the answers of a round; those with another line while the model writes the next ones."""
        self._of_earlier_rounds = len(self._judged)
        begun = deque[tuple[int, Extracted, Future[list[Verdict]]]]()
        with self._grader.with_limits(self._limits_of_lines) as lines:

            def is_enough(*, waits: bool) -> bool:
                started = time.monotonic()
                while begun and (waits or begun[0][2].done()) and not (self.has_passed and until_one_passes):
                    number, best, future = begun.popleft()
                    self._keep(number, best, *future.result())
                self.seconds += time.monotonic() - started
                return self.has_passed and until_one_passes

            try:
                for number, answer, written in answers:
                    if written == "line":
                        best = replace(answer, files=self._changed)
                        begun.append((number, best, lines.submit([(self._problem, best)])))
                    else:
                        self._keep(number, *self._best_reading(answer, is_program=written == "program"))
                    if is_enough(waits=False):
                        return
            except GreenwardError:  # what was written before counts, however long its tests take
                if not is_enough(waits=True):
                    raise
            except KeyboardInterrupt:
                is_enough(waits=False)
                raise
            is_enough(waits=True)

    def _keep(self, number: int, best: Extracted, verdict: Verdict) -> None:
        self._judged[self._of_earlier_rounds + number] = best, verdict
        self.has_passed |= verdict.passed

    def _start(self, best: Extracted, verdict: Verdict) -> None:
        self.reached, self._changed = verdict, best.files
        files = {**(self._problem.files or {}), **dict(best.files)}
        self.asked = replace(
            self._problem,
            buggy_code=best.code or "",
            files={path: text for path, text in files.items() if text is not None},
            failing_test=without_runner(verdict.failure),
        )

    def improves(self) -> bool:
        """Whether none passes, and the best passes more tests than what was asked; `asked` is then new."""
        best, verdict = self.selection().answer, self.selection().verdict
        if verdict is None or verdict.passed or sum(verdict.tests_passed) <= sum(self.reached.tests_passed):
            return False
        assert isinstance(best, Extracted)
        self._start(best, verdict)
        return True

    def _best_reading(self, answer: Extracted, *, is_program: bool) -> tuple[Extracted, Verdict]:
        written = _read_as_files(_within(self._project.folder, self.asked, answer))
        if written.code is not None:
            files = tuple({**dict(self._changed), **dict(written.files)}.items())
            written = replace(written, files=files)
        as_written = written
        if written.code is not None:
            written = replace(written, code=self._without_tests(written.code))
        kept = self._with_each(written, without_idle_changes)
        best, verdict = kept, self._verdict(kept)
        others = [written] if _docstrings_differ(kept, written) else []  # the tests may read them
        if is_program:  # or a part of it
            whole = self._with_each(written, completed, since=self.asked)
            others.append(self._with_each(whole, without_idle_changes))
        if as_written != written:  # what has the name of a test may be none
            others.append(self._with_each(as_written, without_idle_changes))
        for other in others:
            if (
                not verdict.passed
                and (found := self._verdict(other)).fraction_passed > verdict.fraction_passed
            ):
                best, verdict = other, found
        return best, verdict

    def _without_tests(self, code: str) -> str:
        """A module without tests that the answer repeats below its code, and without imports from itself."""
        tree, before = parse_or_none(code), parse_or_none(self.asked.buggy_code)
        module = PurePosixPath(self.asked.path).with_suffix("")
        if tree is None or module.name == "__init__":
            return code
        own = {".".join(module.parts[at:]) for at in range(len(module.parts))}
        tests = {(test.of or test.function).name for test in self._project.tests.values()}
        known = before.body if before else []
        tests -= bound_names(before) if before else set()
        imports = {ast.dump(node) for node in known if isinstance(node, ast.ImportFrom)}  # as of a namesake
        at: Counter[int] = Counter()
        gone: list[range] = []
        for node in tree.body:
            lines = range(first_line(node), (node.end_lineno or node.lineno) + 1)
            at.update({lines[0], lines[-1]})
            is_own = isinstance(node, ast.ImportFrom) and node.module in own and ast.dump(node) not in imports
            if is_own or getattr(node, "name", "") in tests:
                gone.append(lines)
        # A line that several statements share stays.
        numbers = {one for lines in gone if at[lines[0]] == at[lines[-1]] == 1 for one in lines}
        return "".join(line for number, line in enumerate(source_lines(code), 1) if number not in numbers)

    def selection(self) -> Selection:
        judged = [self._judged[number] for number in sorted(self._judged)]
        return best_by_tests(self._problem, [one for one, _ in judged], [verdict for _, verdict in judged])

    def changes(self, selection: Selection) -> dict[Path, tuple[str | None, str | None]]:
        """The texts that the best answer changes; of one that passes, what the tests need of it."""
        best = selection.answer
        assert isinstance(best, Extracted) and selection.verdict is not None
        if selection.verdict.passed:
            for path in self._texts(best):
                best = self._with_each(best, partial(self._needed, best, path), only=path)
            best = self._without_needless_files(best)
        return {
            self._project.place(path): (self._known.get(path), text)
            for path, text in self._texts(best).items()
            if text != self._known.get(path)
        }

    def _without_needless_files(self, best: Extracted) -> Extracted:
        """Without the files that it makes or deletes, where all tests pass without that.

        A new file stays, too, where another text of the answer has its name.
        """
        for path, text in best.files:
            rest = replace(best, files=tuple(one for one in best.files if one[0] != path))
            if text is not None and path in self._known:
                continue
            name = re.escape(PurePosixPath(path).stem)
            texts = [one for one in self._texts(rest).values() if one and re.search(rf"\b{name}\b", one)]
            if (text is None or not texts) and self._verdict(rest).passed:
                best = rest
        return best

    def _needed(self, best: Extracted, path: str, before: str, after: str) -> str:
        def passes(text: str) -> bool:
            return self._verdict(self._with_each(best, lambda *_: text, only=path)).passed

        return needed_change(before, after, passes)

    def _texts(self, answer: Extracted) -> dict[str, str | None]:
        return {self._problem.path: answer.code, **dict(answer.files)}

    def _with_each(
        self,
        answer: Extracted,
        change: Callable[[str, str], str],
        *,
        only: str | None = None,
        since: Problem | None = None,
    ) -> Extracted:
        """The answer with `change(before, after)` for the text of each program that was there before."""
        known = self._known if since is None else {since.path: since.buggy_code, **(since.files or {})}

        def changed(path: str, text: str | None) -> str | None:
            before = known.get(path)
            if text is None or not before or not path.endswith(".py") or only not in (None, path):
                return text
            return change(before, text)

        files = tuple((path, changed(path, text)) for path, text in answer.files)
        return replace(answer, code=changed(self._problem.path, answer.code), files=files)

    def _verdict(self, answer: Extracted) -> Verdict:
        started = time.monotonic()
        if answer not in self._verdicts:
            (self._verdicts[answer],) = self._grader.grade([(self._problem, answer)])
        self.seconds += time.monotonic() - started
        return self._verdicts[answer]


def _docstrings_differ(one: Extracted, other: Extracted) -> bool:
    """Whether two answers that are the same program but for docstrings and comments differ in the former."""
    pairs = zip((one.code, *dict(one.files).values()), (other.code, *dict(other.files).values()), strict=True)
    for texts in pairs:
        trees = [parse_or_none(text or "") for text in texts]
        if texts[0] != texts[1] and (None in trees or not same_trees(*trees)):
            return True
    return False


def _read_as_files(answer: Extracted) -> Extracted:
    """The answer with the line ends that the texts of files have: Python ends a line at a lone \\r, too."""

    def read(text: str | None) -> str | None:
        return None if text is None else _LINE_END.sub("\n", text)

    files = tuple((path, read(text)) for path, text in answer.files)
    return replace(answer, code=read(answer.code), files=files)


def _within(folder: Path, problem: Problem, answer: Extracted) -> Extracted:
    """The answer, without its code if its new files are there already or a link leads them elsewhere."""
    for path, _ in answer.files:
        place = folder / path
        is_inside = place.resolve().is_relative_to(folder.resolve()) and not os.path.lexists(place)
        if path not in (problem.files or {}) and not is_inside:
            return Extracted(None, f"{place} is a file that the prompt does not show.", Status.EDIT_OUTSIDE)
    return answer


@dataclass(frozen=True)
class _Project:
    """Where the files of a problem lie: in `folder`, but for those that are imported from `elsewhere`.

    `tests` are its tests by name.
    """

    folder: Path
    elsewhere: Mapping[str, Path]
    tests: Mapping[str, _Test]

    def place(self, path: str) -> Path:
        return self.elsewhere.get(path, self.folder / path)

    def test_source(self, name: str) -> str:
        """What a test says, "" for one that is not known or too long to be shown."""
        return self.tests[name].source() if name in self.tests else ""


def repair_problem(file: Path, tests: Path) -> tuple[Problem, _Project]:
    """The problem to repair `file` so that its tests pass, and where its files lie.

    `tests` is a file or folder of unittest or pytest. Files that `file` imports from its own project may be
    changed, too; those of the tests may not. Raises `ProblemError`.
    """
    for path in (file, tests):
        if not path.exists():
            raise ProblemError(f"{path}: there is no such file.")
        if path.is_symlink():  # a repository could name any file of this machine so
            raise ProblemError(
                f"{path} is a symbolic link.", remedy=f"Name the file itself: {path.resolve()}"
            )
    if file.is_dir() or file.suffix != ".py":
        raise ProblemError(f"{file}: expected a Python file.", remedy="Name the file that is to be repaired.")
    place = tests.resolve()
    project = Path(os.path.commonpath([file.resolve().parent, place if place.is_dir() else place.parent]))
    tree = find_tree(str(project))
    own = _at(tree, project, file)
    root = (project / own.shown).parents[own.place.count("/")]
    beside = {one for one in tree.files if project / one.shown == root / one.place}
    # Of modules with the same name, that beneath the same folder is the one that is imported.
    tree = replace(tree, files=tuple(sorted(tree.files, key=lambda one: one not in beside)))
    if "\0" in own.text:
        raise ProblemError(
            f"{file} holds null bytes: it is no Python file.", remedy="Name the file that is to be repaired."
        )
    suites = [
        one
        for one in tree.files
        if (project / one.shown).is_relative_to(place) and one is not own and any(_tests_in(one, tree))
    ]
    found = {test.name: test for suite in suites for test in _tests_in(suite, tree)}
    if not found:
        unread = next((one for one in tree.left_out if (project / one.where).is_relative_to(place)), None)
        raise ProblemError(
            f"{tests}: no test was found" + (f" ({unread.where}: {unread.reason})." if unread else "."),
            remedy="Tests are functions test_… and classes of unittest or Test…, in a file or a folder.",
        )
    files = files_for(own, tree)
    # A repair may import what the file does not, and of one that is not Python no import is known.
    rest = {one.place: one.text for one in beside if one.top == own.top and not one.is_test}
    if len(rest) < MAX_FILES // 2 and sum(map(text_bytes, rest.values())) < MAX_FILES_BYTES // 2:
        files |= rest
    test_files = {RUNNER: sandboxed(RUNNER)}
    # Classes of tests may lie in files that no test is found in.
    of_tests = dict.fromkeys((*suites, *(test.file for test in found.values())))
    for suite in of_tests:
        test_files |= helpers_for(suite, tree) | {suite.place: suite.text}
        files |= {
            path: text for path, text in files_for(suite, tree).items() if not tree.by_place[path].is_test
        }
    test_files = {path: text for path, text in test_files.items() if path != own.place}
    files = {path: text for path, text in files.items() if path not in test_files and path != own.place}
    files |= {} if own.text else {own.place: ""}  # a program that is empty is one to edit, too
    problem = Problem(
        task_id=str(file),
        prompt="",
        entry_point="",
        **run_by_runner(list(found)),
        path=own.place,
        files=files,
        test_files=test_files,
        buggy_code=own.text,
    )
    where = {path: project / tree.by_place[path].shown for path in files}
    elsewhere = {path: Path(os.path.relpath(at)) for path, at in where.items() if at != root / path}
    return problem, _Project(Path(os.path.relpath(root)), elsewhere, found)


_Written = Literal["program", "edit", "line"]
_Answers = Generator[tuple[int, Extracted, _Written], None, None]


class _Asked:
    """A model that is asked for repairs: what results say of it, and what it took. Times are in seconds."""

    facts: Mapping[str, Any]
    tokens = 0
    loading = drawing = 0.0
    _renderer: PromptRenderer
    _is_run: bool

    def __init__(self, project: _Project, options: FixOptions, progress: Progress) -> None:
        self._project, self._options, self._progress = project, options, progress

    @staticmethod
    def of(
        model: str, problem: Problem, project: _Project, options: FixOptions, progress: Progress
    ) -> _Asked:
        """Raises `ConfigError` for a model that cannot be asked."""
        if is_endpoint(model):
            return _AskedServer(model, project, options, progress)
        return _AskedPolicy(model, problem, project, options, progress)

    def rounds(self, problem: Problem, suspicious: Callable[[], list[int]]) -> Iterator[_Answers]:
        """The answers of each round with their numbers, as they end, and what was written.

        `suspicious` finds the most suspicious lines. Raises `EngineError` for a server that fails.
        """
        yield self._answers(problem)

    def _answers(self, problem: Problem) -> _Answers:
        with closing(self._texts(self._shown(problem))) as texts:
            started = time.monotonic()
            for number, text in texts:
                self.drawing += time.monotonic() - started
                yield number, *self._extracted(problem, text)
                started = time.monotonic()

    def _extracted(self, problem: Problem, text: str) -> tuple[Extracted, _Written]:
        found = self._renderer.extracted(problem, text)
        if found.status is Status.EDIT_MALFORMED and holds_fence(text):  # a program in place of edits
            program = extract_code(text, problem, self._renderer.style)
            if program.code and parse_or_none(program.code) is not None:
                return program, "program"
        return found, "program" if self._renderer.answer == "function" else "edit"

    def _shown(self, problem: Problem) -> Problem:
        """With the source of the failing test; a run is asked as it was trained."""
        source = self._project.test_source(problem.failing_test.partition(": ")[0])
        if self._is_run or not source:
            return problem
        return replace(problem, failing_test=f"{problem.failing_test}\n\n```python\n{source}```")

    def close(self) -> None:
        """Free what is held besides memory."""

    def _texts(self, problem: Problem) -> Generator[tuple[int, str], None, None]:
        raise NotImplementedError


class _AskedServer(_Asked):
    def __init__(self, model: str, project: _Project, options: FixOptions, progress: Progress) -> None:
        super().__init__(project, options, progress)
        if options.dtype != "auto":
            raise ConfigError(
                "dtype concerns models that are loaded here; a server has chosen its own.",
                remedy="Leave out --dtype.",
            )
        if options.form == "infill":
            raise ConfigError(
                "the form infill is for models that are loaded here.", remedy="Choose another --form."
            )
        self._endpoint = Endpoint(model, key_variable=options.api_key_env)
        if line := self._endpoint.leaving_line:
            progress.message(line)
        served = ServedModel(self._endpoint)
        self._renderer, self.facts = _renderer(served, options), served.to_json()
        self._is_run = served.recipe is not None

    def _texts(self, problem: Problem) -> Generator[tuple[int, str], None, None]:
        options = self._options
        asked = self._renderer.messages(problem) or self._renderer.prompt_text(problem)
        params = SamplingParams(options.max_tokens or MOST_TOKENS, options.temperature)
        prompts = [(asked, options.seed + number) for number in range(options.answers)]
        with self._progress.drawing("sampling", len(prompts), most_tokens=params.max_tokens) as drawn:
            for batch in self._endpoint.ask_all(prompts, params):
                for number, answer in batch:
                    if isinstance(answer, RequestError):
                        raise self._endpoint.explained(answer)
                    drawn.answers(1)
                    drawn.tokens(answer.completion_tokens or 0)
                    self.tokens += answer.completion_tokens or 0
                    yield number, answer.text

    def close(self) -> None:
        self._endpoint.close()


class _AskedPolicy(_Asked):
    def __init__(
        self, model: str, problem: Problem, project: _Project, options: FixOptions, progress: Progress
    ) -> None:
        super().__init__(project, options, progress)
        started = time.monotonic()
        found = find_model(model)
        usual = found.recipe.sampling.max_tokens if found.recipe else MOST_TOKENS
        most = options.max_tokens or usual
        # Small models write programs better than blocks of edits, which must repeat the file exactly.
        is_short = len(found.tokenizer.encode(problem.buggy_code)) <= SHARE_OF_PROGRAM * most
        follows = found.tokenizer.chat_template is not None
        self._renderer = _renderer(found, options, "function" if is_short and follows else "search_replace")
        self._is_run = found.recipe is not None
        device = resolve_device(options.device)
        with progress.during(f"loading {found.name}"):
            policy = Policy.for_inference(found.folder, dtype=options.dtype, device=device)
        progress.message(f"model: {found.description()}; computed in {policy.computed_in}")
        if line := use_free_cores(device):
            progress.message(line)
        can_fill = policy.tokenizer.fills_gaps
        if options.form == "infill" and not can_fill:
            raise ConfigError(
                f"the tokenizer of {model} has no tokens that mark a gap.",
                remedy="Choose another --form, or a model that was trained to fill in the middle.",
            )
        self._infills = options.form == "infill" or (options.form is None and can_fill and not self._is_run)
        prompt = self._renderer.prompt_ids(self._shown(problem))
        if not prompt:
            raise ConfigError(
                f"{problem.path} is empty, and {model} is shown nothing but the file.",
                remedy="Take a model that follows instructions, or begin the file with a signature.",
            )
        if not len(prompt) < policy.max_positions:
            said = f"the prompt has {len(prompt)} tokens, and the model {policy.max_positions} positions"
            if not self._infills:
                raise ConfigError(f"{said}.", remedy="Take a model with more positions, or a smaller file.")
            if options.form is None:
                progress.message(f"{said}: it is asked for single lines only")
        self._params = SamplingParams(
            max_tokens=most,
            temperature=options.temperature,
            stop_strings=found.recipe.sampling.stop_strings if found.recipe else (),
        )
        self._policy = policy
        self.facts = found.to_json() | {"dtype": policy.computed_in}
        self.loading = time.monotonic() - started

    def rounds(self, problem: Problem, suspicious: Callable[[], list[int]]) -> Iterator[_Answers]:
        if self._infills:
            with self._progress.during("tracing the tests"):
                tried, lines = {problem.buggy_code}, suspicious()
            if not lines:
                self._progress.message(f"the tests that fail run no line of {problem.path}")
            starts = range(0, len(lines), LINES_AT_ONCE)
            for shows_line, start in product((False, True), starts):
                batch = lines[start : start + LINES_AT_ONCE]
                prompts = [around(problem.buggy_code, one, shows_line=shows_line) for one in batch]
                yield self._fillings(problem, batch, prompts, tried)
        prompt = self._renderer.prompt_ids(self._shown(problem))
        if self._options.form != "infill" and len(prompt) < self._policy.max_positions:
            yield self._answers(problem)

    def _fillings(
        self, problem: Problem, lines: Sequence[int], gaps: Sequence[tuple[str, str]], tried: set[str]
    ) -> _Answers:
        """Programs that are not `tried`, each with a line that the model wrote in a gap at one of `lines`."""
        options, policy, tokenizer = self._options, self._policy, self._policy.tokenizer
        most_tokens = min(options.max_tokens or MOST_TOKENS, MOST_TOKENS_OF_A_LINE)
        params = SamplingParams(most_tokens, options.temperature, stop_strings=("\n",))
        most = policy.max_positions - params.max_tokens
        prompts = [tokenizer.render_gap(*gap, most=most) for gap in gaps]
        texts = set[tuple[int, str]]()
        numbers = count()
        with self._progress.drawing(
            "sampling", len(lines) * options.answers, most_tokens=params.max_tokens
        ) as drawn:
            policy.on_tokens = partial(self._count, drawn)
            started = time.monotonic()
            with closing(policy.as_they_end(prompts, options.answers, params, seed=options.seed)) as ends:
                for (place, _), completion in ends:
                    drawn.answers(1)
                    text = tokenizer.decode_filling(completion.token_ids.tolist())
                    if (place, text) in texts:  # to parse long programs takes seconds
                        continue
                    texts.add((place, text))
                    for program in filled(problem.buggy_code, lines[place], text):
                        if program not in tried:
                            tried.add(program)
                            self.drawing += time.monotonic() - started
                            yield next(numbers), Extracted(program), "line"
                            started = time.monotonic()
            self.drawing += time.monotonic() - started

    def _count(self, drawn: Drawn, tokens: int) -> None:
        self.tokens += tokens
        drawn.tokens(tokens)

    def _texts(self, problem: Problem) -> Generator[tuple[int, str], None, None]:
        options, policy = self._options, self._policy
        prompt = self._renderer.prompt_ids(problem)
        most = min(self._params.max_tokens, policy.max_positions - len(prompt))
        params = replace(self._params, max_tokens=most)
        with self._progress.drawing("sampling", options.answers, most_tokens=most) as drawn:
            policy.on_tokens = partial(self._count, drawn)
            ends = policy.as_they_end([prompt], options.answers, params, seed=options.seed)
            with closing(ends):
                for (_, number), completion in ends:
                    drawn.answers(1)
                    yield number, self._renderer.completion_text(completion.token_ids.tolist())


def _renderer(
    model: FoundModel | ServedModel, options: FixOptions, usual: AnswerForm = "search_replace"
) -> PromptRenderer:
    recipe = model.recipe
    form = answer_form(recipe) if recipe else usual
    if options.form is not None and options.form != "infill":
        form = options.form
    return PromptRenderer(
        model.tokenizer, **{"show_failing_test": True, **prompt_options(recipe)}, answer=form
    )


def _at(tree: SourceTree, project: Path, file: Path) -> SourceFile:
    for one in tree.files:
        if project / one.shown == file.resolve():
            return one
    if found := next((one for one in tree.left_out if project / one.where == file.resolve()), None):
        raise ProblemError(f"{file}: it cannot be read ({found.reason}: {found.detail}).")
    raise ProblemError(
        f"{file}: it is not among the {len(tree.files)} files that were read beneath {project}, which has "
        f"it and its tests. At most {MAX_TREE_FILES} are, and none of folders that are hidden or of builds.",
        remedy="Put the file and its tests into a folder of their own.",
    )


@dataclass(frozen=True, eq=False)
class _Test:
    """A function of a test file, of a class where `of` is not None; `name` is as its runner takes it.

    `heir` is the class that it is a test of, where that lies in another file than the class that defines it.
    """

    name: str
    file: SourceFile
    function: FunctionNode
    of: ast.ClassDef | None
    heir: str = ""

    def source(self) -> str:
        """The test and what it names in its file, and its heir.

        It is "" if that has more than `MAX_TEST_CHARS` characters.
        """
        lines = source_lines(self.file.text)
        own: list[ast.stmt] = [self.function]
        if self.of is not None:
            own[:0] = [one for one in self.of.body if getattr(one, "name", "") in ("setUp", "setup_method")]
        needed: dict[int, None] = {}
        waiting: list[ast.AST] = [*own, *((*self.of.bases, *self.of.decorator_list) if self.of else ())]
        # The tree may be another than that of this test: few are kept.
        itself = first_line(self.of or self.function)
        body = [one for one in syntax_tree(self.file).body if first_line(one) != itself]
        while waiting:
            node = waiting.pop()
            names = loaded_names(node) | {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
            for other in body:
                if id(other) not in needed and names & bound_names(other):
                    needed[id(other)] = None
                    waiting.append(other)
        shown: list[str] = []
        for node in body:
            if id(node) in needed:
                shown += lines[first_line(node) - 1 : node.end_lineno]
        if self.of is not None:
            shown += lines[itself - 1 : max(self.of.lineno, first_line(self.of.body[0]) - 1)]
        for node in own:
            shown += lines[first_line(node) - 1 : node.end_lineno]
        text = "".join(line.rstrip("\r\n") + "\n" for line in (*shown, *source_lines(self.heir)))
        return text if len(text) <= MAX_TEST_CHARS else ""


def _tests_in(file: SourceFile, tree: SourceTree) -> Iterator[_Test]:
    """The tests in a file, also those that its classes inherit; none for a file that is not Python."""
    try:
        body = syntax_tree(file).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return

    def tests_of(nodes: list[ast.stmt]) -> list[FunctionNode]:
        functions = [one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [one for one in functions if one.name.startswith("test")]

    is_for_pytest = needs_pytest(file)
    between, start = ("::", file.place) if is_for_pytest else (".", file.module)
    for node in body:
        if isinstance(node, ast.ClassDef):
            lineage, has_others = _lineage(node, file, tree)
            if has_others or (is_for_pytest and node.name.startswith("Test")):
                found = {one.name: (one, at, of) for at, of in reversed(lineage) for one in tests_of(of.body)}
                for one, at, of in found.values():
                    name = between.join((start, node.name, one.name))
                    if at == file:
                        yield _Test(name, file, one, node)
                    else:
                        lines = source_lines(file.text)[first_line(node) - 1 : node.end_lineno]
                        yield _Test(name, at, one, of, "".join(lines))
        else:
            for one in tests_of([node]):
                yield _Test(f"{file.place}::{one.name}", file, one, None)


def _lineage(
    node: ast.ClassDef, file: SourceFile, tree: SourceTree
) -> tuple[list[tuple[SourceFile, ast.ClassDef]], bool]:
    """The class and those of the tree that it derives from, with their files; whether it has other bases."""
    found = {(file.place, node.name): (file, node)}
    waiting, has_others = [(file, node)], False
    while waiting:
        at, of = waiting.pop(0)
        for base in of.bases:
            known = find_class(dotted_name(base), at, tree)
            if known is None:
                has_others |= dotted_name(base) != "object"
            elif (key := (known[0].place, known[1].name)) not in found:
                found[key] = known
                waiting.append(known)
    return list(found.values()), has_others
