"""The rows of an evaluation's files: answers (`samples.jsonl`) and what became of them (`results.jsonl`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Any

from greenward.evaluation.drawing import Answer, AnswerKey
from greenward.grading.verdict import Status, Verdict

MAX_FAILED_TESTS = 100  # suites have problems with thousands of tests


@dataclass(frozen=True)
class Result:
    """What became of one answer: a row of `results.jsonl`.

    `failed_tests` are the positions of the first tests that failed or were not reached;
    `base_passed` says whether the original tests of a suite with added ones passed, None where
    there is no such difference. `seconds` is wall time in the sandbox. `code_sha256` names the
    program that was judged, None if the answer held none. `layers` are those of isolation.
    """

    task_id: str
    sample: int
    status: Status
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
    truncated: bool
    code_sha256: str | None
    tags: tuple[str, ...]
    layers: tuple[str, ...]

    @classmethod
    def of(cls, answer: Answer, verdict: Verdict) -> Result:
        """The result of an answer that was judged."""
        passed = verdict.tests_passed
        base = answer.problem.base_tests
        failed = [index for index, ok in enumerate(passed) if not ok]
        return cls(
            task_id=answer.problem.task_id,
            sample=answer.sample,
            status=verdict.status,
            error_class=verdict.error_class,
            error_message=verdict.error_message,
            first_failure=verdict.first_failure,
            tests=len(passed),
            tests_passed=sum(passed),
            failed_tests=tuple(failed[:MAX_FAILED_TESTS]),
            base_passed=None if base is None else bool(passed) and all(passed[:base]),
            seconds=round(verdict.wall_seconds, 4),
            cpu_seconds=round(verdict.cpu_seconds, 4),
            extraction_failure=answer.extraction_failure,
            truncated=answer.truncated,
            code_sha256=code_hash(answer.code),
            tags=answer.problem.tags,
            layers=verdict.layers,
        )

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Result:
        """The inverse of `to_json`. Raises `KeyError` or `ValueError` for a row of another form."""
        values = {field.name: row[field.name] for field in fields(cls)}
        lists = {name: tuple(values[name]) for name in ("failed_tests", "tags", "layers")}
        return cls(**values | lists | {"status": Status(row["status"])})

    def to_json(self) -> dict[str, Any]:
        """The row as plain data."""
        return asdict(self) | {"status": self.status.value}

    @property
    def key(self) -> AnswerKey:
        return self.task_id, self.sample

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED

    @property
    def fraction_passed(self) -> float:
        return self.tests_passed / self.tests if self.tests else 0.0

    @property
    def extraction_failed(self) -> bool:
        return self.code_sha256 is None


def sample_row(answer: Answer) -> dict[str, Any]:
    """An answer as a row of `samples.jsonl`: `solution` is the program in it, or null."""
    return {
        "task_id": answer.problem.task_id,
        "sample": answer.sample,
        "completion": answer.text,
        "solution": answer.code,
        "extraction_failure": answer.extraction_failure,
        "truncated": answer.truncated,
    }


def code_hash(code: str | None) -> str | None:
    """SHA-256, in hex, of a program."""
    return None if code is None else sha256(code.encode("utf-8", errors="surrogatepass")).hexdigest()
