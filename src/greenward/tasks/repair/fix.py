"""Repairs a file whose tests fail: a model writes repairs, the tests judge them, the best one is offered."""

from __future__ import annotations

import ast
import difflib
import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from greenward.common.errors import ConfigError, ProblemError, SandboxError
from greenward.common.http import RequestError
from greenward.environments.prompts import PromptRenderer, answer_form, prompt_options
from greenward.evaluation.compare import Selection, best_of_n
from greenward.grading.answers import Extracted
from greenward.grading.edits import AnswerForm
from greenward.grading.judge import Grader
from greenward.grading.verdict import EDIT_ERRORS, Family, Status, Verdict
from greenward.models.catalog import FoundModel, find_model
from greenward.models.policy import Policy, resolve_device
from greenward.problems.mining import (
    RUNNER,
    SourceFile,
    SourceTree,
    files_for,
    find_tree,
    helpers_for,
    needs_pytest,
    run_by_runner,
    sandboxed,
    syntax_tree,
    usual_packages,
    without_runner,
)
from greenward.problems.problem import Problem
from greenward.rollouts.endpoint import Endpoint, ServedModel, is_endpoint
from greenward.rollouts.protocols import SamplingParams
from greenward.runs.files import write_atomically, writing
from greenward.runs.progress import Progress
from greenward.sandbox.inside.files import MAX_FILES, MAX_FILES_BYTES, text_bytes
from greenward.sandbox.isolation import Level
from greenward.sandbox.protocol import Limits

MOST_TOKENS = 1024


@dataclass(frozen=True)
class FixOptions:
    """How repairs are sampled and judged. None stands for what the model was trained with, or a default.

    `answers` are sampled at `temperature`. `form` is what the model writes: "search_replace" by default, or
    what its run trained it to write. `timeout` is the CPU time of all tests in seconds.
    """

    answers: int = 8
    temperature: float = 0.8
    max_tokens: int | None = None
    form: AnswerForm | None = None
    seed: int = 0
    timeout: float = 10.0
    workers: int = 2
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
    of the model that was asked, with the `dtype` in which it was computed here.
    """

    problem: Problem
    before: Verdict
    selection: Selection | None = None
    changes: Mapping[Path, tuple[str | None, str | None]] | None = None
    model: Mapping[str, Any] | None = None

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
        for path, (before, after) in (self.changes or {}).items():
            old, new = ((text or "").splitlines(keepends=True) for text in (before, after))
            parts += (
                line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
                for line in difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
            )
        return "".join(parts)

    def apply(self) -> None:
        """Write the changes, with the line endings and permissions that the files have.

        Raises `ConfigError` where a file has changed since or is a link, before anything is written.
        """
        changes = self.changes or {}
        for path, (before, _) in changes.items():
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
                write_atomically(path, mark + text.encode())
                if mode is not None:
                    path.chmod(mode)


def _with_line_ends_of(old: str, text: str) -> str:
    """The text with the end that each line had, and for new lines the one that most have."""
    lines, new = old.split("\n"), text.split("\n")
    ends = ["\r" if line.endswith("\r") else "" for line in lines[:-1]]
    if not any(ends):
        return text
    usual, last = max(("\r", ""), key=ends.count), len(new) - 1
    written = [line + usual if at < last else line for at, line in enumerate(new)]
    plain = [line.removesuffix("\r") for line in lines]
    for block in difflib.SequenceMatcher(None, plain, new, autojunk=False).get_matching_blocks():
        for at, end in enumerate(ends[block.a : block.a + block.size], start=block.b):
            written[at] = new[at] + end if at < last else new[at]
    return "\n".join(written)


def find_repair(
    file: Path, tests: Path, model: str, options: FixOptions, progress: Progress | None = None
) -> Repair:
    """Judge `file` by its tests and, if they fail, the answers of `model`: a run, a model or MODEL@URL.

    Raises `ProblemError` for a file or tests that cannot be used, `ConfigError` for a model that cannot be
    asked, `SandboxError` where the tests cannot be run here.
    """
    problem, folder = repair_problem(file, tests)
    limits = Limits(cpu_seconds=options.timeout, wall_seconds=3 * options.timeout, file_bytes=4 << 20)
    packages = (*usual_packages(), *options.packages)
    with Grader(limits, options.workers, require=options.require, packages=packages) as grader:
        (before,) = grader.grade([(problem, problem.buggy_code)])
        if before.status.family is Family.INFRASTRUCTURE:
            raise SandboxError(f"the tests could not be run: {before.error_message}")
        if before.passed:
            return Repair(problem, before)
        problem = replace(problem, failing_test=Repair(problem, before).failure)
        shown = progress or Progress(quiet=True)
        written, asked = answers_to(problem, model, options, shown)
        answers = [_within(folder, problem, one) for one in written]
        with shown.during(f"judging {len(answers)} answers"):
            selection = best_of_n(problem, answers, grader)
    best, changes = selection.verdict, {}
    if best is not None and sum(best.tests_passed) > sum(before.tests_passed):
        answer = selection.answer
        found = answer if isinstance(answer, Extracted) else Extracted(answer)
        known = {problem.path: problem.buggy_code, **(problem.files or {})}
        after = {problem.path: found.code, **dict(found.files)}
        changes = {
            folder / path: (known.get(path), text) for path, text in after.items() if text != known.get(path)
        }
    return Repair(problem, before, selection, changes, asked)


def _within(folder: Path, problem: Problem, answer: Extracted) -> Extracted:
    """The answer, without its code if its new files are there already or a link leads them elsewhere."""
    for path, _ in answer.files:
        place = folder / path
        is_inside = place.resolve().is_relative_to(folder.resolve()) and not os.path.lexists(place)
        if path not in (problem.files or {}) and not is_inside:
            return Extracted(None, f"{place} is a file that the prompt does not show.", Status.EDIT_OUTSIDE)
    return answer


def repair_problem(file: Path, tests: Path) -> tuple[Problem, Path]:
    """The problem to repair `file` so that its tests pass, and the folder that its paths are relative to.

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
    suites = [
        one
        for one in tree.files
        if (project / one.shown).is_relative_to(place) and one is not own and any(_tests_in(one))
    ]
    names = [name for suite in suites for name in _tests_in(suite)]
    if not names:
        unread = next((one for one in tree.left_out if (project / one.where).is_relative_to(place)), None)
        raise ProblemError(
            f"{tests}: no test was found" + (f" ({unread.where}: {unread.reason})." if unread else "."),
            remedy="Tests are functions test_… and classes of unittest or Test…, in a file or a folder.",
        )
    files = files_for(own, tree)
    # A repair may import what the file does not, and of one that is not Python no import is known.
    rest = {one.place: one.text for one in tree.files if one.top == own.top and not one.is_test}
    if len(rest) < MAX_FILES // 2 and sum(map(text_bytes, rest.values())) < MAX_FILES_BYTES // 2:
        files |= rest
    test_files = {RUNNER: sandboxed(RUNNER)}
    for suite in suites:
        test_files |= helpers_for(suite, tree) | {suite.place: suite.text}
        files |= {
            path: text for path, text in files_for(suite, tree).items() if not tree.by_place[path].is_test
        }
    test_files = {path: text for path, text in test_files.items() if path != own.place}
    files = {path: text for path, text in files.items() if path not in test_files and path != own.place}
    files |= {} if own.text else {own.place: ""}  # a program that is empty is one to edit, too
    root = (project / own.shown).parents[own.place.count("/")]
    problem = Problem(
        task_id=str(file),
        prompt="",
        entry_point="",
        **run_by_runner(names),
        path=own.place,
        files=files,
        test_files=test_files,
        buggy_code=own.text,
    )
    return problem, Path(os.path.relpath(root))


def answers_to(
    problem: Problem, model: str, options: FixOptions, progress: Progress
) -> tuple[list[Extracted], dict[str, Any]]:
    """What a model answers, extracted, and what results say of the model.

    Raises `ConfigError`, and `EngineError` for a server that fails.
    """
    if is_endpoint(model):
        if options.dtype != "auto":
            raise ConfigError(
                "dtype concerns models that are loaded here; a server has chosen its own.",
                remedy="Leave out --dtype.",
            )
        with closing(Endpoint(model, key_variable=options.api_key_env)) as endpoint:
            served = ServedModel(endpoint)
            renderer = _renderer(served, options)
            asked = renderer.messages(problem) or renderer.prompt_text(problem)
            params = SamplingParams(options.max_tokens or MOST_TOKENS, options.temperature)
            texts: dict[int, str] = {}
            prompts = [(asked, options.seed + number) for number in range(options.answers)]
            with progress.drawing("sampling", len(prompts)) as drawn:
                for batch in endpoint.ask_all(prompts, params):
                    for number, answer in batch:
                        if isinstance(answer, RequestError):
                            raise endpoint.explained(answer)
                        texts[number] = answer.text
                        drawn.answers(1)
                        drawn.tokens(answer.completion_tokens or 0)
            facts = served.to_json()
        return [renderer.extracted(problem, texts[number]) for number in sorted(texts)], facts
    found = find_model(model)
    renderer = _renderer(found, options)
    device = resolve_device(options.device)
    with progress.during(f"loading {found.name}"):
        policy = Policy.for_inference(found.folder, dtype=options.dtype, device=device)
    progress.message(f"model: {found.description()}; computed in {policy.computed_in}")
    prompt = renderer.prompt_ids(problem)
    usual = found.recipe.sampling.max_tokens if found.recipe else MOST_TOKENS
    if not prompt:
        raise ConfigError(
            f"{problem.path} is empty, and {model} is shown nothing but the file.",
            remedy="Take a model that follows instructions, or begin the file with a signature.",
        )
    room = policy.max_positions - len(prompt)
    if room < 1:
        raise ConfigError(
            f"the prompt has {len(prompt)} tokens, and the model {policy.max_positions} positions.",
            remedy="Take a model with more positions, or a smaller file.",
        )
    params = SamplingParams(
        max_tokens=min(options.max_tokens or usual, room),
        temperature=options.temperature,
        stop_strings=found.recipe.sampling.stop_strings if found.recipe else (),
    )
    with progress.drawing("sampling", options.answers, most_tokens=params.max_tokens) as drawn:
        policy.on_tokens = drawn.tokens
        (completions,) = policy.sample([prompt], options.answers, params, seed=options.seed)
        drawn.answers(len(completions))
    written = (renderer.completion_text(one.token_ids.tolist()) for one in completions)
    facts = found.to_json() | {"dtype": policy.computed_in}
    return [renderer.extracted(problem, text) for text in written], facts


def _renderer(model: FoundModel | ServedModel, options: FixOptions) -> PromptRenderer:
    recipe = model.recipe
    form: AnswerForm = options.form or (answer_form(recipe) if recipe else "search_replace")
    return PromptRenderer(
        model.tokenizer, **{"show_failing_test": True, **prompt_options(recipe)}, answer=form
    )


def _at(tree: SourceTree, project: Path, file: Path) -> SourceFile:
    for one in tree.files:
        if project / one.shown == file.resolve():
            return one
    reason = next((one for one in tree.left_out if project / one.where == file.resolve()), None)
    raise ProblemError(
        f"{file}: it cannot be read" + (f" ({reason.reason}: {reason.detail})." if reason else ".")
    )


def _tests_in(file: SourceFile) -> Iterator[str]:
    """The names of the tests in a file, as its runner takes them; none for a file that is not Python."""
    try:
        body = syntax_tree(file).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return

    def tests_of(nodes: list[ast.stmt]) -> list[str]:
        functions = [one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [one.name for one in functions if one.name.startswith("test")]

    between, start = ("::", file.place) if needs_pytest(file) else (".", file.module)
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from (between.join((start, node.name, name)) for name in tests_of(node.body))
        else:
            yield from (f"{file.place}::{name}" for name in tests_of([node]))
