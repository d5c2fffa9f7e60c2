"""Grades answers from elsewhere on a suite, resumable at every answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from greenward.errors import ProblemError
from greenward.evaluation.engine import Seconds, add_given
from greenward.evaluation.evalplus_files import Extract, demand_samples, extracted, read_samples
from greenward.evaluation.folder import EvaluationFolder
from greenward.evaluation.rows import Sample
from greenward.problems.catalog import load_suite
from greenward.problems.json_rows import refuse
from greenward.problems.problem import ProblemSet
from greenward.recipes.evaluation_session import EvaluationSession, file_name
from greenward.recipes.suites import judgeable, naming_the_option


class SampleGrading(EvaluationSession):
    """A file or folder of answers to a suite, ready to be graded.

    `extract` says whether programs are taken out of the answers' texts (`evalplus_files.extracted`), and
    `notes` what was done. With `skip_bad_rows`, answers to problems that were skipped are left out. Raises
    `ProblemError` for an unknown suite and for answers that cannot be read.
    """

    def __init__(
        self, samples: Path, suite: str, *, extract: Extract = "auto", skip_bad_rows: bool = False
    ) -> None:
        demand_samples(samples)
        with naming_the_option():
            problems = load_suite(suite, skip_bad_rows=skip_bad_rows)
        self.problems = judgeable(problems) if skip_bad_rows else problems
        unknown: list[ProblemError] = []
        given = read_samples(samples, self.problems, unknown.append if self.problems.skipped else refuse)
        self.samples, note = extracted(given, extract)
        self.notes = [note] if note else []
        if unknown:
            self.notes.append(
                f"rows or folders of answers that belong to no problem, since rows of the suite's file were "
                f"skipped: {len(unknown)}. {unknown[0].message}"
            )
        name = samples.name.removesuffix(".gz").removesuffix(".jsonl")
        self.default_folder = Path("runs") / "grade" / f"{file_name(name)}-{file_name(self.problems.name)}"
        self.answers = len(self.samples)
        self.most_answers = max(Counter(sample.problem.task_id for sample in self.samples).values())
        self.facts = {"command": "grade", "samples_file": samples.name}
        self.settings = {
            "command": "grade",
            "suite": self.problems.name,
            "data_hash": self.problems.data_hash,
        }

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
