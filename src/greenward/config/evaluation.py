"""What is measured during training: the held-out problems, and public suites beside."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from greenward.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section


class SuiteConfig(Section):
    """A suite to evaluate on during training: one answer to each question. Its name alone will do, too."""

    name: str = Field(description="mbpp, mbpp:test, humaneval+, … or a file; see docs/problems.md")
    num_questions: PositiveInt | None = Field(
        None, description="none = all; for mbpp, MBPP_EVAL_NUM_QUESTIONS wins over this"
    )
    temperature: NonNegativeFloat = 0.2
    timeout_seconds: PositiveFloat | None = Field(
        None,
        description="CPU time of one answer (contest suites: of one test), more where the suite's reference"
        " needs more; none = the suite's own times, 10 where it has none",
    )
    max_tokens: PositiveInt | None = Field(None, description="none = as in sampling")
    fewshot: Annotated[int, Field(ge=0, le=3)] = Field(0, description="MBPP's examples before each problem")


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class EvaluationConfig(Section):
    """Evaluation before the first step, every `eval_interval_steps`, and after the last.

    `suites` beside, all else is about the held-out problems.
    """

    enabled: bool = True
    at_start: bool = Field(True, description="also before the first step")
    num_questions: PositiveInt = 300
    samples: PositiveInt = Field(8, description="answers per problem (n of pass@k)")
    k: tuple[PositiveInt, ...] = (1, 8)
    temperature: NonNegativeFloat = 1.0
    greedy: bool = Field(True, description="also measure greedy pass@1")
    eval_interval_steps: PositiveInt = 20
    seed: int = 1234
    suites: tuple[
        Annotated[SuiteConfig, BeforeValidator(_named, json_schema_input_type=str | SuiteConfig)], ...
    ] = Field((), description="public suites to measure as well: their names, or sections")

    @model_validator(mode="after")
    def _enough_samples(self) -> EvaluationConfig:
        if max(self.k) > self.samples:
            raise ValueError(
                f"k={max(self.k)} needs at least as many samples per problem; samples is {self.samples}"
            )
        return self
