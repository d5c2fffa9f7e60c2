"""Evaluations of answers to a suite: judged, summarised and reported; and that of answers from elsewhere."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from greenward import interruption
from greenward.config.sections import SandboxConfig
from greenward.errors import ProblemError
from greenward.evaluation.classification import with_classification
from greenward.evaluation.engine import Seconds, add_given, flaky_samples, judge
from greenward.evaluation.evalplus_files import (
    EVALPLUS_RESULTS,
    Extract,
    demand_samples,
    evalplus_results,
    extracted,
    read_samples,
)
from greenward.evaluation.folder import SUMMARY, EvaluationFolder, refuse_other_settings
from greenward.evaluation.rows import EvaluationRow, Sample
from greenward.evaluation.summary import summarise, usual_ks
from greenward.grading.grader import Grader
from greenward.grading.verdict import Status
from greenward.problems.catalog import load_suite
from greenward.problems.json_rows import refuse
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import build_grader
from greenward.recipes.suites import usable
from greenward.reports.evaluation import evaluation_report
from greenward.reports.write import write_report
from greenward.runs.machine import collect_provenance
from greenward.runs.output import check_folder
from greenward.runs.progress import Progress

MEMORY_MB = 1024
MOST_LOST = 0.02  # of the answers, before an evaluation counts as failed
WALL_PER_CPU = 3.0
DEFAULT_TIMEOUT = 10.0  # CPU seconds for an answer to a suite without times of its own
GOES_ON = f"Stopping; all answers so far are kept, and the same command goes on. {interruption.AGAIN}"
_SHOWN_ROWS = 3  # of those that were skipped; summary.json has all


@dataclass(frozen=True)
class GradingOptions:
    """How answers are judged, for which pass@k (none: the usual ones), and which files are written.

    With `recheck`, every answer is judged so often again to find verdicts that vary. With `overwrite`, an
    evaluation that is there is deleted.
    """

    sandbox: SandboxConfig
    k: tuple[PositiveInt, ...] = ()
    recheck: PositiveInt | None = None
    eval_results: bool = False
    overwrite: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The options that decide verdicts."""
        return {
            "timeout_seconds": None if self.sandbox.suite_times else self.sandbox.cpu_seconds,
            "memory_mb": self.sandbox.memory_mb,
            "packages": list(self.sandbox.packages),
        }


def grading_sandbox(timeout: float | None, workers: int, **others: Any) -> SandboxConfig:
    """The sandbox for answers to public suites: `timeout` CPU seconds each, and more memory than in training.

    Without `timeout`, the suite's own times hold. The limit of wall time is three times that of CPU time.
    """
    seconds = DEFAULT_TIMEOUT if timeout is None else timeout
    return SandboxConfig(
        workers=workers,
        cpu_seconds=seconds,
        suite_times=timeout is None,
        wall_seconds=WALL_PER_CPU * seconds,
        memory_mb=MEMORY_MB,
        **others,
    )


class EvaluationSession(ABC):
    """Answers to a suite from one source, ready to be judged in a folder of their own.

    `name` is that of the source, `facts` are what the summary says of it, `settings` what must be equal when
    the evaluation is resumed, besides `command` and suite, `notes` sentences for the report, `answers` the
    number of answers in all. `grader` judges them while `run` runs.
    """

    command = "eval"
    name: str
    problems: ProblemSet
    facts: dict[str, Any]
    settings: dict[str, Any]
    notes: list[str]
    answers: int
    grader: Grader
    device: str | None = None

    @property
    @abstractmethod
    def prompts(self) -> Mapping[str, str]:
        """The prompt of each problem, by task id."""

    @abstractmethod
    def source(
        self, folder: EvaluationFolder, problems: ProblemSet, seconds: Seconds
    ) -> Iterable[list[Sample]]:
        """Answers that `folder` does not hold yet, to the problems with all their expected values."""

    def facts_of(self, folder: EvaluationFolder) -> dict[str, Any]:
        """What the summary says of all answers, besides the figures."""
        return {}

    def run(
        self, out: str | Path | None, grading: GradingOptions, progress: Progress
    ) -> tuple[dict[str, Any], Path]:
        """Does what is missing in the folder `out`, or the usual one, and writes its summary and reports.

        Returns the summary, whose `failures` say why the command must exit with 2 although everything was
        written, and the folder. Raises `RunError` for a folder of other settings or answers, `SandboxError`
        when nothing could be judged.
        """
        named = {"command": self.command, "suite": self.problems.name}
        settings = named | self.settings | grading.settings
        path = usual_folder(self.command, self.name, self.problems.name) if out is None else Path(out)
        check_folder(path, "evaluation") if grading.overwrite else refuse_other_settings(path, settings)
        began, seconds = time.perf_counter(), Seconds()
        with (
            interruption.stoppable(lambda: GOES_ON),
            build_grader(grading.sandbox) as grader,
        ):
            problems = grader.complete(self.problems)
            with EvaluationFolder(path, settings, problems, overwrite=grading.overwrite) as folder:
                session = collect_provenance(self.device) | {"sandbox": grader.isolation.to_json()}
                sessions = folder.add_session(session)
                folder.write_prompts(self.prompts)
                show, self.grader = _progress_of(folder, self.answers, progress), grader
                try:
                    source = self.source(folder, problems, seconds)
                    with interruption.stoppable(lambda: GOES_ON, may_stop=lambda: True):
                        judge(folder, source, grader, seconds, show)
                except KeyboardInterrupt:
                    progress.message(f"{len(folder.rows)} answers are judged; the same command goes on.")
                    raise
                folder.demand_any_judged()
                most = max(Counter(task_id for task_id, _ in folder.rows).values(), default=0)
                ks = grading.k or usual_ks(most)
                figures = summarise(folder.rows.values(), ks, problems=len(problems))
                figures = with_classification(figures, folder.samples.values())
                failures, notes = _remarks(figures, ks)
                checked = {}
                if grading.recheck:
                    flaky = flaky_samples(folder.samples.values(), grader, grading.recheck)
                    checked = {"recheck": {"repeats": grading.recheck, "flaky": flaky}}
                    notes.append(
                        f"{len(flaky)} answers got different verdicts when judged {grading.recheck} times"
                    )
                notes += _notes_on_suite(problems, self.problems.skipped, grader.tests_by_mode["in_process"])
                summary = {
                    "suite": problems.name,
                    "data_hash": settings["data_hash"],
                    "command": self.command,
                    **self.facts,
                    **self.facts_of(folder),
                    "skipped_rows": list(self.problems.skipped),
                    **figures,
                    **checked,
                    "failures": failures,
                    "settings": settings,
                    "seconds": asdict(seconds) | {"wall": time.perf_counter() - began},
                    "sessions": sessions,
                    "notes": [*self.notes, *notes],
                }
                folder.write(SUMMARY, summary)
                if grading.eval_results:
                    folder.write(EVALPLUS_RESULTS, evalplus_results(folder, summary))
                write_report(evaluation_report(path), path)
        return summary, path


class SampleGrading(EvaluationSession):
    """A file or folder of answers to a suite, ready to be graded.

    `extract` says whether programs are taken out of the answers' texts (`evalplus_files.extracted`), and
    `notes` what was done. With `skip_bad_rows`, answers to problems that were skipped are left out. Raises
    `ProblemError` for an unknown suite and for answers that cannot be read.
    """

    command = "grade"

    def __init__(
        self, samples: Path, suite: str, *, extract: Extract = "auto", skip_bad_rows: bool = False
    ) -> None:
        demand_samples(samples)
        self.problems = usable(partial(load_suite, suite), skip_bad_rows=skip_bad_rows)
        unknown: list[ProblemError] = []
        given = read_samples(samples, self.problems, unknown.append if self.problems.skipped else refuse)
        self.samples, note = extracted(given, extract)
        self.notes = [note] if note else []
        if unknown:
            self.notes.append(
                f"rows or folders of answers that belong to no problem, since rows of the suite's file were "
                f"skipped: {len(unknown)}. {unknown[0].message}"
            )
        self.name = samples.name.removesuffix(".gz").removesuffix(".jsonl")
        self.answers = len(self.samples)
        self.most_answers = max(Counter(sample.problem.task_id for sample in self.samples).values())
        self.facts = {"samples_file": samples.name}
        self.settings = {"data_hash": self.problems.data_hash}

    @property
    def prompts(self) -> Mapping[str, str]:
        problems = {sample.problem.task_id: sample.problem for sample in self.samples}
        return {task_id: problem.starter_code or problem.prompt for task_id, problem in problems.items()}

    def source(
        self, folder: EvaluationFolder, problems: ProblemSet, seconds: Seconds
    ) -> Iterable[list[Sample]]:
        """Adds the answers to `folder`, whence they are judged."""
        samples = [replace(one, problem=problems.by_id(one.problem.task_id)) for one in self.samples]
        add_given(folder, samples, str(folder.path))
        return ()


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
    folder: EvaluationFolder, answers: int, progress: Progress
) -> Callable[[EvaluationRow], None]:
    """Shows each new row: how many there are, and the share that passed."""
    passed = sum(row.success is True for row in folder.rows.values())
    progress.phase("evaluation", answers, "answer")
    if folder.rows:
        progress.message(f"{len(folder.rows)} of {answers} answers are judged already")

    def show(row: EvaluationRow) -> None:
        nonlocal passed
        passed += row.success is True
        progress.advance(len(folder.rows), {"pass_rate": passed / len(folder.rows)})

    return show


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


def _notes_on_suite(problems: ProblemSet, skipped: Sequence[str], in_process: int) -> list[str]:
    """What of the suite was left out, and which of its tests an answer could forge."""
    first = " ".join([*skipped[:_SHOWN_ROWS], *(["…"] if len(skipped) > _SHOWN_ROWS else [])])
    left_out = sum(problem.tests_left_out for problem in problems)
    notes = (
        (skipped, f"skipped rows of the suite's file: {len(skipped)}. {first}"),
        (left_out, f"{left_out} tests of the suite are left out: nothing could judge them here"),
        (in_process, f"{in_process} tests ran inside the answers' own processes, which could forge them"),
    )
    return [note for occurs, note in notes if occurs]
