"""What evaluating a model and grading given answers have in common: judge, summarise, report."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from greenward.config.sections import SandboxConfig
from greenward.evaluation.engine import Seconds, flaky_samples, judge
from greenward.evaluation.evalplus_files import EVALPLUS_RESULTS, evalplus_results
from greenward.evaluation.folder import SUMMARY, EvaluationFolder, refuse_other_settings
from greenward.evaluation.rows import EvaluationRow, Sample
from greenward.evaluation.summary import summarise, usual_ks
from greenward.grading.verdict import Status
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import build_grader
from greenward.reports.evaluation import evaluation_report
from greenward.reports.write import write_report
from greenward.runs.machine import collect_provenance
from greenward.runs.progress import Progress

MEMORY_MB = 1024
MOST_LOST = 0.02  # of the answers, before an evaluation counts as failed
WALL_PER_CPU = 3.0
DEFAULT_TIMEOUT = 10.0  # CPU seconds for an answer to a suite without times of its own
_SHOWN_ROWS = 3  # of those that were skipped; summary.json has all


@dataclass(frozen=True)
class GradingOptions:
    """How answers are judged, and which figures and files are made of the verdicts.

    Without `k`, the usual ones. With `recheck`, every answer is judged so often again to find verdicts
    that vary.
    """

    sandbox: SandboxConfig
    k: tuple[int, ...] = ()
    recheck: int | None = None
    eval_results: bool = False

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

    `facts` are what the summary says of the source, `settings` what must be equal when the evaluation is
    resumed, `notes` sentences for the report, `answers` the number of answers in all.
    """

    problems: ProblemSet
    facts: dict[str, Any]
    settings: dict[str, Any]
    notes: list[str]
    answers: int
    default_folder: Path
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

    def run(self, out: Path, grading: GradingOptions, progress: Progress) -> dict[str, Any]:
        """Does what is missing in the folder `out`, writes its summary and reports; returns the summary.

        Its `failures` say why the command must exit with 2 although everything was written. Raises
        `RunError` for a folder of other settings or answers, `SandboxError` when nothing could be judged.
        """
        settings = self.settings | grading.settings
        refuse_other_settings(out, settings)
        began, seconds = time.perf_counter(), Seconds()
        with build_grader(grading.sandbox) as grader:
            problems = grader.complete(self.problems)
            with EvaluationFolder(out, settings, problems) as folder:
                session = collect_provenance(self.device) | {"sandbox": grader.isolation.to_json()}
                sessions = folder.add_session(session)
                folder.write_prompts(self.prompts)
                show = _progress_of(folder, self.answers, progress)
                try:
                    judge(folder, self.source(folder, problems, seconds), grader, seconds, show)
                except KeyboardInterrupt:
                    progress.message(f"{len(folder.rows)} answers are judged; the same command goes on.")
                    raise
                folder.demand_any_judged()
                most = max(Counter(task_id for task_id, _ in folder.rows).values(), default=0)
                ks = grading.k or usual_ks(most)
                figures = summarise(folder.rows.values(), ks, problems=len(problems))
                checked = {}
                if grading.recheck:
                    flaky = flaky_samples(folder.samples.values(), grader, grading.recheck)
                    checked = {"recheck": {"repeats": grading.recheck, "flaky": flaky}}
                summary = {
                    "suite": problems.name,
                    "data_hash": settings["data_hash"],
                    **self.facts,
                    "skipped_rows": list(self.problems.skipped),
                    **figures,
                    **checked,
                    "failures": _failures(figures, ks),
                    "settings": settings,
                    "seconds": asdict(seconds) | {"wall": time.perf_counter() - began},
                    "sessions": sessions,
                    "notes": [
                        *self.notes,
                        *_notes(figures, ks, checked),
                        *_notes_on_the_suite(
                            problems, self.problems.skipped, grader.tests_by_mode["in_process"]
                        ),
                    ],
                }
                folder.write(SUMMARY, summary)
                if grading.eval_results:
                    folder.write(EVALPLUS_RESULTS, evalplus_results(folder, summary))
                write_report(evaluation_report(out), out)
        return summary


def undefined(ks: Iterable[int], most: int) -> list[str]:
    """A sentence for each pass@k that cannot be estimated where no problem has more than `most` answers."""
    return [
        f"pass@{k} needs {k} answers to a problem, and no problem has more than {most}. "
        f"Add answers, or choose a --k of at most {most}."
        for k in ks
        if k > most
    ]


def file_name(text: str) -> str:
    """A name for a file or folder from a text that may hold anything."""
    return "".join(c if c.isalnum() or c in "-_.+" else "_" for c in text.strip("/. ")) or "_"


def _progress_of(
    folder: EvaluationFolder, answers: int, progress: Progress
) -> Callable[[EvaluationRow], None]:
    """Shows each new row: how many there are, and the share that passed."""
    passed = sum(row.success is True for row in folder.rows.values())
    progress.phase("answers", answers)
    if folder.rows:
        progress.message(f"{len(folder.rows)} of {answers} answers are judged already")

    def show(row: EvaluationRow) -> None:
        nonlocal passed
        passed += row.success is True
        progress.advance(len(folder.rows), pass_rate=passed / len(folder.rows))

    return show


def _lost(figures: Mapping[str, Any]) -> tuple[int, str]:
    """How many answers the infrastructure lost, and a text for their share."""
    lost = figures["statuses"].get(Status.INFRASTRUCTURE.value, 0)
    return lost, f"({lost / max(1, figures['answers']):.1%}) were lost to the infrastructure and count as"


def _failures(figures: Mapping[str, Any], ks: tuple[int, ...]) -> list[str]:
    """What was asked for and is missing, one sentence each."""
    failures = undefined(ks, figures["most_answers"])
    lost, share = _lost(figures)
    if lost > MOST_LOST * figures["answers"]:
        failures.append(
            f"{lost} of {figures['answers']} answers {share} not passed; at most {MOST_LOST:.0%} may be. The "
            "same command tries them again."
        )
    return failures


def _notes(figures: Mapping[str, Any], ks: tuple[int, ...], checked: Mapping[str, Any]) -> list[str]:
    """What a reader must know of the figures."""
    notes = []
    if figures["answered"] < figures["problems"]:
        notes.append(
            f"scored {figures['answered']} of {figures['problems']} problems: all figures are over those"
        )
    for k in ks:
        metric = figures["metrics"].get(f"pass@{k}")
        if metric is not None and metric["problems"] < figures["answered"]:
            notes.append(f"pass@{k} is over the {metric['problems']} problems that have {k} answers or more")
    lost, share = _lost(figures)
    if 0 < lost <= MOST_LOST * figures["answers"]:
        notes.append(f"{lost} answers {share} not passed; the same command tries them again")
    if checked:
        flaky, repeats = checked["recheck"]["flaky"], checked["recheck"]["repeats"]
        notes.append(f"{len(flaky)} answers got different verdicts when judged {repeats} times")
    return notes


def _notes_on_the_suite(problems: ProblemSet, skipped: Sequence[str], in_process: int) -> list[str]:
    """What of the suite was left out, and which of its tests an answer could forge."""
    notes = []
    if skipped:
        more = " …" if len(skipped) > _SHOWN_ROWS else ""
        first = " ".join(skipped[:_SHOWN_ROWS])
        notes.append(f"skipped rows of the suite's file: {len(skipped)}. {first}{more}")
    left_out = sum(problem.tests_left_out for problem in problems)
    if left_out:
        notes.append(f"{left_out} tests of the suite are left out: nothing could judge them here")
    if in_process:
        notes.append(f"{in_process} tests ran inside the answers' own processes, which could forge them")
    return notes
