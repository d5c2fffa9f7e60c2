"""What evaluating a model and grading given answers have in common: judge, sum up, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from greenward.config.sections import SandboxConfig
from greenward.errors import SandboxError
from greenward.evaluation.drawing import Seconds
from greenward.evaluation.evalplus_export import evalplus_results
from greenward.evaluation.folder import (
    EVALPLUS_RESULTS,
    SUMMARY,
    EvaluationFolder,
    refuse_other_settings,
)
from greenward.evaluation.results import Result
from greenward.evaluation.suite_run import Draw, complete, flaky_answers
from greenward.evaluation.summary import all_lost, summarise, usual_ks
from greenward.grading.verdict import Status
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import build_grader
from greenward.reports.evaluation import evaluation_report
from greenward.reports.write import write_report
from greenward.runs.progress import Progress
from greenward.runs.provenance import collect_provenance

MEMORY_MB = 1024
MOST_LOST = 0.02  # of the answers, before an evaluation counts as failed
WALL_PER_CPU = 3.0
_SHOWN_ROWS = 3  # of those that were skipped; summary.json has all
DEFAULT_TIMEOUT = 10.0  # CPU seconds for an answer to a suite without times of its own

DrawIn = Callable[[EvaluationFolder, ProblemSet], Draw]
"""The drawing of answers for a folder, to problems whose expected values are known."""


@dataclass(frozen=True)
class GradingOptions:
    """How answers are judged and what is made of the verdicts.

    Without `k`, the usual ones. With `recheck`, every answer is judged so often again to find verdicts
    that vary.
    """

    sandbox: SandboxConfig
    k: tuple[int, ...] = ()
    recheck: int | None = None
    eval_results: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What of this decides verdicts."""
        return {
            "timeout_seconds": None if self.sandbox.suite_times else self.sandbox.cpu_seconds,
            "memory_mb": self.sandbox.memory_mb,
            "packages": list(self.sandbox.packages),
        }


def grading_sandbox(timeout: float | None, workers: int, **others: Any) -> SandboxConfig:
    """Where answers to public suites run: `timeout` CPU seconds each, and more memory than in training.

    Without `timeout`, the suite's own times hold. The wall clock gets three times as much.
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


def carry_out(
    out: Path,
    problems: ProblemSet,
    draw_in: DrawIn,
    options: GradingOptions,
    *,
    settings: Mapping[str, Any],
    facts: Mapping[str, Any],
    prompts: Mapping[str, str],
    answers: int,
    progress: Progress,
    device: str | None = None,
) -> dict[str, Any]:
    """Do what is missing in the folder `out`, write its summary and reports; the summary.

    `answers` is the number of answers in all, for the progress bar; `facts` go into the summary. Its
    `failures` say why the command must exit with 2 although everything was written.
    Raises `RunError` for a folder of other settings, `SandboxError` when nothing could be judged.
    """
    refuse_other_settings(out, settings)
    began, seconds = time.perf_counter(), Seconds()
    with build_grader(options.sandbox) as grader:
        completed = grader.complete(problems)
        with EvaluationFolder.open(out, settings, completed) as folder:
            session = collect_provenance(device) | {"sandbox": grader.isolation.to_json()}
            sessions = folder.add_session(session)
            folder.write_prompts(prompts)
            try:
                complete(
                    folder,
                    draw_in(folder, completed),
                    grader,
                    seconds=seconds,
                    on_result=_progress_of(folder, answers, progress),
                )
            except KeyboardInterrupt:
                progress.message(f"{len(folder.results)} answers are judged; the same command goes on.")
                raise
            if all_lost(folder.results.values()):
                lost = next(iter(folder.results.values()))
                raise SandboxError(
                    f"none of {len(folder.results)} answers could be judged.",
                    remedy=f"The sandbox said: {lost.error_message or 'nothing'}.",
                )
            most = max(Counter(task_id for task_id, _ in folder.results).values(), default=0)
            ks = options.k or usual_ks(most)
            figures = summarise(folder.results.values(), ks, problems=len(problems))
            checked = {}
            if options.recheck:
                flaky = flaky_answers(folder.samples.values(), grader, options.recheck)
                checked = {"recheck": {"repeats": options.recheck, "flaky": flaky}}
            in_process = grader.tests_by_mode["in_process"]
            summary = {
                **facts,
                **figures,
                **checked,
                "failures": _failures(figures, ks),
                "settings": dict(settings),
                "seconds": asdict(seconds) | {"wall": time.perf_counter() - began},
                "sessions": sessions,
                "notes": [
                    *facts.get("notes", ()),
                    *_notes_on_rows(facts["skipped_rows"]),
                    *_notes(figures, ks, checked),
                    *_notes_on_tests(completed, in_process),
                ],
            }
            folder.write(SUMMARY, summary)
            if options.eval_results:
                folder.write(EVALPLUS_RESULTS, evalplus_results(folder.samples, folder.results, summary))
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


def _progress_of(folder: EvaluationFolder, answers: int, progress: Progress) -> Callable[[Result], None]:
    """Shows each new result: how many there are, and the share that passed."""
    passed = sum(result.passed for result in folder.results.values())
    progress.phase("answers", answers)
    if folder.results:
        progress.message(f"{len(folder.results)} of {answers} answers are judged already")

    def show(result: Result) -> None:
        nonlocal passed
        passed += result.passed
        progress.advance(len(folder.results), pass_rate=passed / len(folder.results))

    return show


def _failures(figures: Mapping[str, Any], ks: tuple[int, ...]) -> list[str]:
    """What was asked for and could not be had, one sentence each."""
    failures = undefined(ks, figures["most_answers"])
    lost, answers = figures["statuses"].get(Status.INFRASTRUCTURE.value, 0), figures["answers"]
    if lost > MOST_LOST * answers:
        failures.append(
            f"{lost} of {answers} answers ({lost / answers:.1%}) were lost to the infrastructure and count "
            f"as not passed; at most {MOST_LOST:.0%} may be. The same command tries them again."
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
    lost = figures["statuses"].get(Status.INFRASTRUCTURE.value, 0)
    if 0 < lost <= MOST_LOST * figures["answers"]:
        notes.append(
            f"{lost} answers ({lost / figures['answers']:.1%}) were lost to the infrastructure and count as "
            "not passed; the same command tries them again"
        )
    if checked:
        flaky, repeats = checked["recheck"]["flaky"], checked["recheck"]["repeats"]
        notes.append(f"{len(flaky)} answers got different verdicts when judged {repeats} times")
    return notes


def _notes_on_rows(skipped: Sequence[str]) -> list[str]:
    """How many rows of the suite's file were left out, and what is wrong with the first."""
    if not skipped:
        return []
    more = " …" if len(skipped) > _SHOWN_ROWS else ""
    return [f"skipped rows of the suite's file: {len(skipped)}. {' '.join(skipped[:_SHOWN_ROWS])}{more}"]


def _notes_on_tests(problems: ProblemSet, in_process: int) -> list[str]:
    notes = []
    left_out = sum(problem.tests_left_out for problem in problems)
    if left_out:
        notes.append(f"{left_out} tests of the suite are left out: nothing could judge them here")
    if in_process:
        notes.append(f"{in_process} tests ran inside the answers' own processes, which could forge them")
    return notes
