"""The samples of an evaluation and what became of each, in memory and as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Any

from greenward.common.errors import SandboxError
from greenward.common.records import check_types
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import EDIT_ERRORS, Family, Status, Verdict
from greenward.problems.problem import Problem, ProblemSet
from greenward.runs.files import from_json_number

SampleKey = tuple[str, int]  # task id, number of the sample
MAX_FAILED_TESTS = 100  # suites have problems with thousands of tests


@dataclass(frozen=True)
class Sample:
    """One answer to a problem: what the model wrote and the program in it; a row of `samples.jsonl`.

    `extracted.code` is None when the text holds no program. `truncated`: the answer reached the token limit.
    `tokens` is None where the answer was not sampled here, `prompt_tokens` where no server counted them.
    `lost` says why an answer never came; it is not stored. `refused` are the parameters of decoding that a
    server did not take.
    """

    problem: Problem
    number: int
    text: str
    extracted: Extracted
    truncated: bool = False
    tokens: int | None = None
    prompt_tokens: int | None = None
    lost: str = ""
    refused: tuple[str, ...] = ()

    @property
    def code(self) -> str | None:
        return self.extracted.code

    @property
    def key(self) -> SampleKey:
        return self.problem.task_id, self.number

    def to_json(self) -> dict[str, Any]:
        """The sample in EvalPlus's form: `solution` is the program, or null."""
        found = self.extracted
        return {
            "task_id": self.problem.task_id,
            "sample": self.number,
            "completion": self.text,
            "solution": found.code,
            "extraction_failure": found.reason,
            "extraction": found.rule,
            "truncated": self.truncated,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            **({"files": dict(found.files)} if found.files else {}),
            **({"status": found.status.value} if found.status in EDIT_ERRORS else {}),
            **({"refused_parameters": list(self.refused)} if self.refused else {}),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any], problems: ProblemSet) -> Sample:
        """The inverse of `to_json`. Rows of earlier versions have neither numbers of tokens nor a rule."""
        status, files = Status(row.get("status", Status.NO_CODE.value)), row.get("files", {})
        return cls(
            problems.by_id(row["task_id"]),
            row["sample"],
            row["completion"],
            Extracted(
                row["solution"],
                row["extraction_failure"],
                status,
                tuple(files.items()),
                row.get("extraction", ""),
            ),
            row["truncated"],
            row.get("tokens"),
            row.get("prompt_tokens"),
            refused=tuple(row.get("refused_parameters", ())),
        )


@dataclass(frozen=True)
class EvaluationRow:
    """What became of one sample: a row of `results.jsonl` and of a training run's evaluations.

    `success` is None when the infrastructure failed. `failed_tests` are the positions of the first tests
    that failed or were not reached; `base_passed` says whether the original tests of a suite with added
    ones passed, None where there is no such difference. `seconds` is wall time in the sandbox.
    `extraction` names the rules by which the program was found (`extracted.RULES`). `code_sha256` identifies
    the program that was judged, None if the answer held none. `layers` are those of isolation.
    """

    task_id: str
    sample: int
    status: Status
    success: bool | None
    error_class: str | None
    error_message: str
    first_failure: str
    tests: int
    tests_passed: int
    failed_tests: tuple[int, ...]
    base_passed: bool | None
    seconds: float
    cpu_seconds: float
    extraction_failure: str
    extraction: str
    truncated: bool
    tokens: int | None
    code_sha256: str | None
    tags: tuple[str, ...]
    layers: tuple[str, ...]

    @classmethod
    def of(cls, sample: Sample, verdict: Verdict) -> EvaluationRow:
        """The row of a sample that was judged."""
        passed, base = verdict.tests_passed, sample.problem.base_tests
        failed = [index for index, ok in enumerate(passed) if not ok]
        encoded = None if sample.code is None else sample.code.encode("utf-8", errors="surrogatepass")
        return cls(
            task_id=sample.problem.task_id,
            sample=sample.number,
            status=verdict.status,
            success=success_of(verdict.status),
            error_class=verdict.error_class,
            error_message=verdict.error_message,
            first_failure=verdict.first_failure,
            tests=len(passed),
            tests_passed=sum(passed),
            failed_tests=tuple(failed[:MAX_FAILED_TESTS]),
            base_passed=None if base is None else bool(passed) and all(passed[:base]),
            seconds=round(verdict.wall_seconds, 4),
            cpu_seconds=round(verdict.cpu_seconds, 4),
            extraction_failure=sample.extracted.reason,
            extraction=sample.extracted.rule,
            truncated=sample.truncated,
            tokens=sample.tokens,
            code_sha256=sha256(encoded).hexdigest() if encoded is not None else None,
            tags=sample.problem.tags,
            layers=verdict.layers,
        )

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EvaluationRow:
        """The inverse of `to_json`. Raises `KeyError`, `TypeError` or `ValueError` for a row of another form.

        Rows of earlier versions have neither `tokens` nor `extraction`, nor `success`, which follows from the
        status.
        """
        status = Status(row["status"])
        row = (
            {"tokens": None, "extraction": ""} | dict(row) | {"status": status, "success": success_of(status)}
        )
        values = {name: row[name] for name in _FIELDS}
        values |= {name: from_json_number(values[name]) for name in ("seconds", "cpu_seconds")}
        values |= {name: tuple(values[name]) for name in ("failed_tests", "tags", "layers")}
        read = cls(**values)
        check_types(read)
        if not 0 <= read.tests_passed <= read.tests:
            raise ValueError(f"{read.tests_passed} of {read.tests} tests cannot have passed")
        return read

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"status": self.status.value}

    @property
    def key(self) -> SampleKey:
        return self.task_id, self.sample

    @property
    def fraction_passed(self) -> float:
        """The share of the problem's tests that passed."""
        return self.tests_passed / self.tests if self.tests else 0.0


_FIELDS = tuple(field.name for field in fields(EvaluationRow))


class EvaluationRows:
    """Samples by their keys, and the rows of those that are judged, in memory."""

    place = "this evaluation"
    """What messages call it."""

    def __init__(self) -> None:
        self.samples: dict[SampleKey, Sample] = {}
        self.rows: dict[SampleKey, EvaluationRow] = {}

    def add_samples(self, samples: Iterable[Sample]) -> None:
        self.samples.update((sample.key, sample) for sample in samples)

    def add_new(self, samples: Iterable[Sample]) -> list[Sample]:
        """Adds the samples of which there is none of the same key, and gives those.

        Lost ones are given and not added.
        """
        new = [sample for sample in samples if sample.key not in self.samples]
        self.add_samples([sample for sample in new if not sample.lost])
        return new

    def add_row(self, row: EvaluationRow) -> None:
        self.rows[row.key] = row

    def demand_any_judged(self, prefix: str = "") -> None:
        """Raises `SandboxError` when there are rows and the infrastructure failed for every one."""
        rows = self.rows.values()
        if rows and all(row.success is None for row in rows):
            raise SandboxError(
                f"{prefix}none of {len(rows)} answers could be judged.",
                remedy=f"The sandbox said: {next(iter(rows)).error_message or 'nothing'}.",
            )


def success_of(status: Status) -> bool | None:
    """Whether all tests passed; None when the infrastructure failed."""
    return None if status.family is Family.INFRASTRUCTURE else status is Status.PASSED
