"""The one config model: every key of a recipe, its default, its meaning and its bounds.

A recipe is a YAML file that fills in a `Recipe`. Unknown keys and impossible combinations are
errors before anything heavy is loaded. This module imports neither torch nor any other room.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen group of keys that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ShapeConfig(Section):
    """Shape of a decoder made from random weights (used when `model.id` is not set)."""

    layers: PositiveInt = 4
    hidden_size: PositiveInt = 128
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 4
    intermediate_size: PositiveInt = 384
    max_positions: PositiveInt = 512
    vocab_size: PositiveInt = Field(1024, description="upper bound; the trained tokenizer may be smaller")

    @model_validator(mode="after")
    def _heads_divide(self) -> ShapeConfig:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        return self


class ModelConfig(Section):
    """Who answers: a Hugging Face folder or id, an earlier run, or a decoder from random weights."""

    id: str | None = Field(None, description="Hugging Face id, model folder or run directory")
    cache_dir: str | None = Field(None, description="where downloaded models are kept")
    shape: ShapeConfig = ShapeConfig()
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "float32",
        description="of the arithmetic; auto is bfloat16 where the processor has it in hardware",
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 …")
    gradient_checkpointing: bool = False
    prompt_style: Literal["auto", "completion", "chat"] = Field(
        "auto", description="chat when the tokenizer has a chat template, else completion"
    )
    system_prompt: str | None = None


class FamiliesConfig(Section):
    """Generated problems: compositions of small list, string and number functions."""

    max_depth: Annotated[int, Field(ge=1, le=3)] = 2
    limit: PositiveInt | None = Field(None, description="use only so many compositions")
    held_out: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share of compositions that neither warm start nor RL ever sees"
    )
    seed: int = 0


class BugsConfig(Section):
    """Problems of repair: how bugs are put into the programs of `bugs:<problems>`, and what is shown."""

    per_problem: PositiveInt = Field(1, description="buggy versions of each program, each with one bug")
    show_failing_test: bool = Field(False, description="tell the model what the first failing test gave")
    seed: int = 0


class ProblemsConfig(Section):
    """What is asked: `families`, a shipped set, a public suite (`mbpp:train`, `humaneval`), or a file.

    `bugs:` before any of them asks for the repair of its programs, after a bug was put into each.
    """

    train: str = "families"
    held_out: str = "families"
    families: FamiliesConfig = FamiliesConfig()
    bugs: BugsConfig = BugsConfig()
    verify_references: bool = Field(
        True, description="run the reference solutions of user files before training"
    )
    allow_test_ids: bool = Field(
        False, description="train on test problems of MBPP (ids 11 to 510) all the same"
    )


class SupervisedConfig(Section):
    """Supervised training (warm start, or `kind: sft` on the user's own pairs)."""

    data: str | None = Field(
        None, description="JSONL of {prompt, completion} or {messages}; none = the generated corpus"
    )
    misconception_rate: Fraction = Field(
        0.7, description="share of corpus examples in which one component carries a plausible mistake"
    )
    examples_per_problem: PositiveInt = Field(4, description="corpus examples drawn for each problem")
    max_steps: PositiveInt = 600
    max_seconds: PositiveFloat | None = Field(None, description="stop after so much time")
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 3e-3
    warmup_steps: NonNegativeInt = 30
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0


class SamplingConfig(Section):
    """How answers are drawn during training."""

    max_tokens: PositiveInt = 64
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NonNegativeInt = 0
    stop_strings: tuple[str, ...] = ()


class RewardTermConfig(Section):
    """One reward term: a known name (tests, execution_ladder, code_quality, …) or `module:function`."""

    name: str
    weight: float = 1.0
    options: dict[str, Any] = {}
    timeout_seconds: PositiveFloat = Field(60.0, description="for module:function terms, per batch")


class KLConfig(Section):
    """Pull towards the reference policy (the policy at the start of the run)."""

    coefficient: NonNegativeFloat = 0.0
    estimator: Literal["k1", "k2", "k3"] = "k3"


class OverlongConfig(Section):
    """What happens to answers that hit the token limit (DAPO §3.4)."""

    mask_truncated: bool = Field(False, description="truncated answers leave the loss")
    penalty_buffer: NonNegativeInt = Field(
        0, description="tokens before the limit over which the penalty rises from 0 to penalty"
    )
    penalty: NonNegativeFloat = 1.0


class AlgorithmConfig(Section):
    """How reward becomes gradient: an advantage estimator, a loss, and a few numbers."""

    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce"] = "grpo"
    loss: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce"] = "dapo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = Field(0.2, description="DAPO uses 0.28; CISPO's upper bound is 1 + this")
    updates_per_batch: PositiveInt = Field(1, description="passes over each batch of episodes")
    minibatches: PositiveInt = Field(1, description="optimizer steps per pass")
    kl: KLConfig = KLConfig()
    dynamic_sampling: bool = Field(
        False, description="resample until the batch is full of groups with signal"
    )
    dynamic_sampling_max_rounds: PositiveInt = 4
    overlong: OverlongConfig = OverlongConfig()
    importance_cap: PositiveFloat | None = Field(
        None, description="truncated importance sampling between sampler and trainer, capped here"
    )


class TrainingConfig(Section):
    """The loop: sizes, optimizer, schedule, checkpoints."""

    max_steps: PositiveInt = 100
    prompts_per_step: PositiveInt = 16
    num_generations: Annotated[int, Field(ge=2)] = Field(16, description="answers per prompt (G)")
    micro_batch_sequences: PositiveInt = Field(
        64, description="answers per forward/backward; gradients accumulate over the rest"
    )
    learning_rate: PositiveFloat = 2.5e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = 0
    weight_decay: NonNegativeFloat = 0.0
    adam_betas: tuple[Fraction, Fraction] = (0.9, 0.99)
    max_grad_norm: PositiveFloat = 1.0
    checkpoint_interval_steps: PositiveInt = 20
    keep_checkpoints: PositiveInt = 2
    threads: PositiveInt | None = Field(None, description="torch threads; none = torch's default")


class SuiteConfig(Section):
    """A suite to evaluate on during training: one answer to each question. Its name alone will do, too."""

    name: str = Field(description="mbpp, mbpp:test, humaneval+, … or a file; see docs/problems.md")
    num_questions: PositiveInt | None = Field(
        None, description="none = all; for mbpp, MBPP_EVAL_NUM_QUESTIONS wins over this"
    )
    temperature: NonNegativeFloat = 0.2
    timeout_seconds: PositiveFloat = Field(
        10.0, description="CPU time of one answer, where that is more than sandbox.cpu_seconds"
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


class SandboxConfig(Section):
    """Where answers run and what one answer may use."""

    workers: PositiveInt = 2
    cpu_seconds: PositiveFloat = 1.0
    wall_seconds: PositiveFloat = 4.0
    memory_mb: PositiveInt = 512
    output_kb: PositiveInt = 64
    require: Literal["A", "B", "C", "D"] = Field(
        "B", description="least level of isolation to run at; `greenward doctor` shows this machine's"
    )
    packages: tuple[str, ...] = Field(
        (), description="what answers may import besides the standard library (numpy, …)"
    )


class WandbConfig(Section):
    """Where the mirror on Weights & Biases goes; offline needs no account."""

    project: str = "greenward"
    entity: str | None = None
    mode: Literal["online", "offline"] = "offline"


class TrackingConfig(Section):
    """Mirrors of the local files; never required, never prompted for."""

    tensorboard: bool = False
    wandb: WandbConfig | None = None


class Recipe(Section):
    """A whole recipe: one YAML file."""

    kind: Literal["grpo", "sft"] = "grpo"
    name: str = "run"
    seed: int = 0
    model: ModelConfig = ModelConfig()
    problems: ProblemsConfig = ProblemsConfig()
    warm_start: SupervisedConfig | None = Field(
        None, description="supervised training before RL (kind: grpo), or all of it (kind: sft)"
    )
    sampling: SamplingConfig = SamplingConfig()
    rewards: tuple[RewardTermConfig, ...] = (RewardTermConfig(name="tests"),)
    algorithm: AlgorithmConfig = AlgorithmConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    sandbox: SandboxConfig = SandboxConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        if self.algorithm.minibatches > self.training.prompts_per_step:
            raise ValueError(
                f"algorithm.minibatches {self.algorithm.minibatches} is more than "
                f"training.prompts_per_step {self.training.prompts_per_step}: a group cannot be split"
            )
        if self.training.micro_batch_sequences % self.training.num_generations:
            raise ValueError(
                f"training.micro_batch_sequences {self.training.micro_batch_sequences} must be a "
                f"multiple of training.num_generations {self.training.num_generations}: "
                "a group shares its prompt within one micro-batch"
            )
        narrowed = self.sampling.top_p < 1 or self.sampling.top_k > 0
        if self.kind == "grpo" and narrowed and self.algorithm.importance_cap is None:
            raise ValueError(
                "sampling.top_p or sampling.top_k draws from another distribution than the one that is "
                "trained: set algorithm.importance_cap (2 is usual) to correct for it, or leave both off"
            )
        if self.kind == "sft" and self.warm_start is None:
            raise ValueError("kind: sft needs the section warm_start (its data and settings)")
        if not self.rewards and self.kind == "grpo":
            raise ValueError("rewards is empty: name at least one reward term")
        buffer = self.algorithm.overlong.penalty_buffer
        if buffer >= self.sampling.max_tokens:
            raise ValueError(
                f"algorithm.overlong.penalty_buffer {buffer} must be below "
                f"sampling.max_tokens {self.sampling.max_tokens}"
            )
        if self.model.dtype == "float16" and self.model.device == "cpu":
            raise ValueError("model.dtype float16 does not train on cpu; use float32 or bfloat16")
        return self
