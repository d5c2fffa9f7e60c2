"""Grades answers from elsewhere on a suite, resumable at every answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from greenward.errors import ProblemError
from greenward.evaluation.folder import EvaluationFolder
from greenward.evaluation.samples import Extract, demand_samples, extracted, read_samples
from greenward.evaluation.suite_run import Draw, given
from greenward.problems.catalog import load_suite
from greenward.problems.json_rows import refuse
from greenward.problems.problem import ProblemSet
from greenward.recipes.evaluation_session import GradingOptions, carry_out, file_name
from greenward.recipes.suites import judgeable, naming_the_option
from greenward.runs.progress import Progress


class SampleGrading:
    """A file or folder of answers to a suite, ready to be graded.

    `extract` says whether programs are taken out of the answers' texts (`samples.extracted`), and `notes`
    what was done. With `skip_bad_rows`, answers to problems that were skipped are left out. Raises
    `ProblemError` for an unknown suite and for answers that cannot be read.
    """

    def __init__(
        self, samples: Path, suite: str, *, extract: Extract = "auto", skip_bad_rows: bool = False
    ) -> None:
        self.path = samples
        demand_samples(samples)
        with naming_the_option():
            problems = load_suite(suite, skip_bad_rows=skip_bad_rows)
        self.problems = judgeable(problems) if skip_bad_rows else problems
        unknown: list[ProblemError] = []
        answers = read_samples(samples, self.problems, unknown.append if self.problems.skipped else refuse)
        self.answers, note = extracted(answers, extract)
        self.notes = [note] if note else []
        if unknown:
            self.notes.append(
                f"rows or folders of answers that belong to no problem, since rows of the suite's file were "
                f"skipped: {len(unknown)}. {unknown[0].message}"
            )

    @property
    def default_folder(self) -> Path:
        """Where the evaluation goes if nobody says otherwise."""
        name = self.path.name.removesuffix(".gz").removesuffix(".jsonl")
        return Path("runs") / "grade" / f"{file_name(name)}-{file_name(self.problems.name)}"

    @property
    def most_answers(self) -> int:
        """The largest number of answers to one problem."""
        return max(Counter(answer.problem.task_id for answer in self.answers).values())

    def run(self, out: Path, grading: GradingOptions, progress: Progress) -> dict[str, Any]:
        """Grade what is not graded yet in `out`; the summary.

        Raises `RunError` when `out` holds other answers under the same numbers.
        """
        data_hash = self.problems.data_hash
        return carry_out(
            out,
            self.problems,
            self._draw_in,
            grading,
            settings={"command": "grade", "suite": self.problems.name, "data_hash": data_hash}
            | grading.settings,
            facts={
                "command": "grade",
                "suite": self.problems.name,
                "samples_file": self.path.name,
                "data_hash": data_hash,
                "skipped_rows": list(self.problems.skipped),
                "notes": self.notes,
            },
            prompts={
                problem.task_id: problem.starter_code or problem.prompt
                for problem in {answer.problem.task_id: answer.problem for answer in self.answers}.values()
            },
            answers=len(self.answers),
            progress=progress,
        )

    def _draw_in(self, folder: EvaluationFolder, problems: ProblemSet) -> Draw:
        answers = [replace(answer, problem=problems.by_id(answer.problem.task_id)) for answer in self.answers]
        return given(answers, folder)
