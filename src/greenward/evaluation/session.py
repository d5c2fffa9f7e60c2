"""Runs an evaluation in a folder or in memory, and that of answers from elsewhere.

Those of models are in `model_session.py`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from greenward.common import interruption
from greenward.common.errors import ProblemError, RunError
from greenward.evaluation.evaluate import (
    OnSamples,
    Seconds,
    add_given,
    evaluate,
    flaky_samples,
    usual_ks,
)
from greenward.evaluation.grading_options import GradingOptions
from greenward.evaluation.samples import EvaluationRow, EvaluationRows
from greenward.evaluation.store import (
    EVALPLUS_RESULTS,
    SUMMARY,
    EvaluationFolder,
    Extract,
    demand_samples,
    evalplus_results,
    extracted,
    read_samples,
    refuse_other_settings,
)
from greenward.grading.judge import Grader
from greenward.grading.verdict import Status
from greenward.grading.verification import usable
from greenward.problems.catalog import load_suite
from greenward.problems.problem import ProblemSet
from greenward.problems.rows import refuse
from greenward.runs.files import read_json, write_rows
from greenward.runs.machine import collect_provenance
from greenward.runs.output import check_folder
from greenward.runs.progress import Progress, shown_answer
from greenward.sandbox.pool import StartingExecutor

MOST_LOST = 0.02  # of the answers, before an evaluation counts as failed
GOES_ON = f"Stopping; all answers so far are kept, and the same command goes on. {interruption.AGAIN}"


class EvaluationSession(ABC):
    """Answers to a suite from one source, ready to be judged in a folder of their own.

    `name` is that of the source, `facts` are what the summary says of it, `settings` what must be equal when
    the evaluation is resumed, besides `command` and suite, `notes` sentences for the report, `answers` the
    number of answers in all. While `run` runs, `grader` judges them and `progress` is shown. `not_taken` are
    settings that were asked for and that a server did not take: the summary has None for them. Answers run in
    `executor`, or in one that starts with `run`.
    The answers are kept in a folder (`run`) or in memory (`run_in_memory`).
    """

    command = "eval"
    name: str
    problems: ProblemSet
    facts: dict[str, Any]
    settings: dict[str, Any]
    notes: list[str]
    answers: int
    grader: Grader
    progress: Progress
    executor: StartingExecutor | None = None
    device: str | None = None
    not_taken: Sequence[str] = ()

    @property
    @abstractmethod
    def prompts(self) -> Mapping[str, str]:
        """The prompt of each problem, by task id."""

    @abstractmethod
    def draw(
        self, store: EvaluationRows, problems: ProblemSet, seconds: Seconds, on_samples: OnSamples
    ) -> None:
        """As `Source.draw`, to the problems with all their expected values."""

    def prepare(self, grading: GradingOptions, progress: Progress) -> None:
        """Settles what takes long of `settings` and `facts`; `progress` is shown from here on."""
        self.progress = progress

    def facts_of(self, store: EvaluationRows) -> dict[str, Any]:
        """What the summary says of all answers, besides the figures."""
        return {}

    def further_files(self, store: EvaluationRows) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        """What other programs read of the answers: rows by the name of their file."""
        return {}

    def run(
        self, out: str | Path | None, grading: GradingOptions, progress: Progress
    ) -> tuple[dict[str, Any], Path]:
        """Does what is missing in the folder `out`, or the usual one, and writes its summary and reports.

        Returns the summary, whose `failures` say why the command must exit with 2 although everything was
        written, and the folder. Raises `RunError` for a folder of other settings or answers, `SandboxError`
        when nothing could be judged.
        """
        self.prepare(grading, progress)
        settings = self._all_settings(grading)
        path = usual_folder(self.command, self.name, self.problems.name) if out is None else Path(out)
        check_folder(path, "evaluation") if grading.overwrite else refuse_other_settings(path, settings)
        began, seconds = time.perf_counter(), Seconds()
        with (
            interruption.stoppable(lambda: GOES_ON),
            self._grading(grading) as problems,
            EvaluationFolder(path, settings, problems, overwrite=grading.overwrite) as folder,
        ):
            session = collect_provenance(self.device) | {"sandbox": self.grader.isolation.to_json()}
            sessions = folder.add_session(session)
            folder.write_prompts(self.prompts)
            show = _progress_of(folder, self.answers, progress, grading.show)
            try:
                with interruption.stoppable(lambda: GOES_ON, may_stop=lambda: True):
                    figures = evaluate(
                        self, problems, folder, self.grader, grading.k, seconds=seconds, on_row=show
                    )
            except KeyboardInterrupt:
                progress.message(f"{_there(folder, self.answers)}; the same command goes on.")
                raise
            summary = self._summary(folder, problems, figures, grading) | {
                "seconds": _over_sessions(path, asdict(seconds) | {"wall": time.perf_counter() - began}),
                "sessions": sessions,
            }
            for name, rows in self.further_files(folder).items():
                write_rows(path / name, rows)
            folder.sync()
            folder.write(SUMMARY, summary)
            if grading.eval_results:
                folder.write(EVALPLUS_RESULTS, evalplus_results(folder, summary))
            _write_report(path)
        return summary, path

    def run_in_memory(self, grading: GradingOptions) -> dict[str, Any]:
        """The summary as `run` gives it, with the `prompts` and the `rows` of all answers, and no folder."""
        self.prepare(grading, Progress(quiet=True))
        store, seconds, began = EvaluationRows(), Seconds(), time.perf_counter()
        with self._grading(grading) as problems:
            figures = evaluate(self, problems, store, self.grader, grading.k, seconds=seconds)
            summary = self._summary(store, problems, figures, grading)
        return summary | {
            "seconds": asdict(seconds) | {"wall": time.perf_counter() - began},
            "prompts": dict(self.prompts),
            "rows": [
                row.to_json() | {"code": store.samples[key].code or ""}
                for key, row in sorted(store.rows.items())
            ],
        }

    def _all_settings(self, grading: GradingOptions) -> dict[str, Any]:
        return {"command": self.command, "suite": self.problems.name} | self.settings | grading.settings

    @contextmanager
    def _grading(self, grading: GradingOptions) -> Iterator[ProblemSet]:
        """The problems with all expected values; inside, `grader` judges."""
        with grading.grader(self.executor.result() if self.executor else None) as self.grader:
            with self.progress.during("expected values of the suite"):
                problems = self.grader.complete(self.problems)
            yield problems

    def _summary(
        self,
        store: EvaluationRows,
        problems: ProblemSet,
        figures: Mapping[str, Any],
        grading: GradingOptions,
    ) -> dict[str, Any]:
        """What is known of all answers. Raises `SandboxError` when none could be judged."""
        store.demand_any_judged()
        failures, notes = _remarks(figures, grading.k or usual_ks(figures["most_answers"]))
        checked = {}
        if grading.recheck:
            flaky = flaky_samples(store.samples.values(), self.grader, grading.recheck)
            checked = {"recheck": {"repeats": grading.recheck, "flaky": flaky}}
            notes.append(f"{len(flaky)} answers got different verdicts when judged {grading.recheck} times")
        notes += _notes_on_suite(self.problems, problems, self.grader.tests_by_mode["in_process"])
        settings = self._all_settings(grading)
        return {
            "suite": problems.name,
            "data_hash": settings["data_hash"],
            "command": self.command,
            **self.facts,
            **self.facts_of(store),
            "skipped_rows": list(self.problems.skipped),
            **figures,
            **checked,
            "failures": failures,
            "settings": settings | dict.fromkeys(self.not_taken),
            "notes": [*self.notes, *notes],
        }


def _write_report(folder: Path) -> None:
    from greenward.reports.evaluation import evaluation_report  # when all is judged
    from greenward.reports.write import write_report

    write_report(evaluation_report(folder), folder)


def _over_sessions(folder: Path, seconds: Mapping[str, float]) -> dict[str, float]:
    """The times of this session and of those that finished before: the same command again does little."""
    known: Any = None
    with suppress(RunError):  # a summary that cannot be read is written anew
        known = (read_json(folder / SUMMARY) or {}).get("seconds")
    known = known if isinstance(known, Mapping) else {}
    earlier = {name: value for name, value in known.items() if isinstance(value, int | float)}
    return {name: value + earlier.get(name, 0.0) for name, value in seconds.items()}


class SampleGrading(EvaluationSession):
    """A file or folder of answers to a suite, ready to be graded.

    `extract` says whether programs are taken out of the answers' texts (`evaluation.store.extracted`), and
    `notes` what was done. With `skip_bad_rows`, answers to no problem of the suite are left out. Raises
    `ProblemError` for an unknown suite and for answers that cannot be read.
    """

    command = "grade"

    def __init__(
        self,
        samples: Path,
        suite: str,
        *,
        extract: Extract = "auto",
        skip_bad_rows: bool = False,
        executor: StartingExecutor | None = None,
    ) -> None:
        self.executor = executor
        demand_samples(samples)
        self.problems = usable(partial(load_suite, suite), skip_bad_rows=skip_bad_rows)
        unknown: list[ProblemError] = []
        given = read_samples(samples, self.problems, unknown.append if skip_bad_rows else refuse)
        self.given, note = extracted(given, extract)
        self.notes = [note] if note else []
        if unknown:
            self.notes.append(
                f"rows or folders of answers to no problem of the suite, skipped: {len(unknown)}. "
                f"{unknown[0].message}"
            )
        self.name = samples.name.removesuffix(".gz").removesuffix(".jsonl")
        self.answers = len(self.given)
        self.most_answers = max(Counter(sample.problem.task_id for sample in self.given).values())
        self.facts = {"samples_file": samples.name, "extract": extract}
        self.settings = {"data_hash": self.problems.data_hash}

    @property
    def prompts(self) -> Mapping[str, str]:
        problems = {sample.problem.task_id: sample.problem for sample in self.given}
        return {task_id: problem.starter_code or problem.prompt for task_id, problem in problems.items()}

    def draw(
        self, store: EvaluationRows, problems: ProblemSet, seconds: Seconds, on_samples: OnSamples
    ) -> None:
        given = [replace(one, problem=problems.by_id(one.problem.task_id)) for one in self.given]
        on_samples(add_given(store, given))


def undefined(ks: Iterable[int], most: int) -> list[str]:
    """A sentence for each pass@k that cannot be estimated where no problem has more than `most` answers."""
    return [
        f"pass@{k} needs {k} answers to a problem, and no problem has more than {most}. "
        f"Add answers, or choose a --k of at most {most}."
        for k in ks
        if k > most
    ]


def usual_folder(command: str, *names: str) -> Path:
    """Where an evaluation is written without another choice, by its names, which may hold anything."""
    safe = ["".join(c if c.isalnum() or c in "-_.+" else "_" for c in name.strip("/. ")) for name in names]
    return Path("runs") / command / "-".join(name or "_" for name in safe)


def _progress_of(
    folder: EvaluationFolder, answers: int, progress: Progress, shown: int
) -> Callable[[EvaluationRow], None]:
    """Shows each new row: how many there are and how many passed; of the first `shown`, the answers."""
    passed, new = sum(row.success is True for row in folder.rows.values()), 0
    if folder.samples:
        progress.message(_there(folder, answers))

    def show(row: EvaluationRow) -> None:
        nonlocal passed, new
        if not new:
            progress.phase("judging", answers, "answer")
        passed, new = passed + (row.success is True), new + 1
        if new <= shown:
            said = f"{row.task_id}, answer {row.sample}: {row.status.value}"
            progress.message(shown_answer(said, folder.samples[row.key].text))
        waits = len(folder.samples) < answers  # for answers that are still being drawn
        eta = "" if waits else None
        progress.advance(len(folder.rows), {"passed": passed}, phase="judging", eta=eta)

    return show


def _there(folder: EvaluationFolder, answers: int) -> str:
    return f"{len(folder.samples)} of {answers} answers are there, {len(folder.rows)} of them judged"


def _remarks(figures: Mapping[str, Any], ks: Iterable[int]) -> tuple[list[str], list[str]]:
    """What was asked for and is missing, and what a reader must know of the figures."""
    answers, answered = figures["answers"], figures["answered"]
    failures, notes = undefined(ks, figures["most_answers"]), []
    if answered < figures["problems"]:
        notes.append(f"scored {answered} of {figures['problems']} problems: all figures are over those")
    for k in ks:
        metric = figures["metrics"].get(f"pass@{k}")
        if metric is not None and metric["problems"] < answered:
            notes.append(f"pass@{k} is over the {metric['problems']} problems that have {k} answers or more")
    lost = figures["statuses"].get(Status.INFRASTRUCTURE.value, 0)
    share = f"({lost / max(1, answers):.1%}) were lost to the infrastructure and count as not passed"
    if lost > MOST_LOST * answers:
        failures.append(
            f"{lost} of {answers} answers {share}; at most {MOST_LOST:.0%} may be. The same command tries "
            "them again."
        )
    elif lost:
        notes.append(f"{lost} answers {share}; the same command tries them again")
    if missing := figures["errors"].get(ModuleNotFoundError.__name__):
        notes.append(
            f"{missing} answers found no module that they or their tests import (--package allows it)"
        )
    return failures, notes


def _notes_on_suite(read: ProblemSet, problems: ProblemSet, in_process: int) -> list[str]:
    """What of the suite was left out, and which of its tests an answer could forge."""
    left_out = sum(problem.tests_left_out for problem in problems)
    notes = (
        (read.skipped, f"skipped rows of the suite's file: {read.skipped_note}"),
        (left_out, f"{left_out} tests of the suite are left out: nothing could judge them here"),
        (in_process, f"{in_process} tests ran inside the answers' own processes, which could forge them"),
    )
    return [note for occurs, note in notes if occurs]
