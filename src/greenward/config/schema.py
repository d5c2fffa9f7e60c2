"""The one config model: every key of a recipe, its default, its meaning and its bounds.

A recipe is a YAML file that fills in a `Recipe`. Unknown keys and impossible combinations are
errors before anything heavy is loaded. This module imports neither torch nor any other room.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from greenward.config.algorithm import AlgorithmConfig, CriticConfig
from greenward.config.evaluation import EvaluationConfig
from greenward.config.faults import FaultsConfig
from greenward.config.pretrained import (
    REINFORCEMENT_LEARNING_RATE,
    SUPERVISED_LEARNING_RATE,
    is_from_random_weights,
)
from greenward.config.rejection import RejectionConfig
from greenward.config.reward_model import RewardModelConfig
from greenward.config.section import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)


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


GENERATED_CORPUS = "corpus"


class SupervisedConfig(Section):
    """Supervised training (warm start, or `kind: sft` on the user's own pairs)."""

    data: str | None = Field(
        None,
        description="JSONL of {prompt, completion} or {messages}; corpus, or none in a warm start = the "
        "generated corpus",
    )
    misconception_rate: Fraction = Field(
        0.7, description="share of corpus examples in which one component carries a plausible mistake"
    )
    examples_per_problem: PositiveInt = Field(4, description="corpus examples drawn for each problem")
    max_steps: PositiveInt = 600
    max_seconds: PositiveFloat | None = Field(None, description="stop after so much time")
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = Field(3e-3, description="default for a pretrained model: 2e-5")
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
    options: dict[str, Any] = Field(default_factory=dict)
    timeout_seconds: PositiveFloat = Field(60.0, description="for module:function terms, per batch")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="for functions with TRL's signature: our column for a parameter of theirs (theirs: ours)",
    )
    completions: Literal["auto", "text", "messages"] = Field(
        "auto", description="for functions with TRL's signature: how prompts and completions are given"
    )


class TrainingConfig(Section):
    """The loop: sizes, optimizer, schedule, checkpoints."""

    max_steps: PositiveInt = 100
    max_seconds: PositiveFloat | None = Field(
        None,
        description="stop after so much training time, evaluation aside, over all sessions of the run; "
        "kind: sft has warm_start.max_seconds",
    )
    prompts_per_step: PositiveInt = 16
    num_generations: PositiveInt = Field(
        16, description="answers per prompt (G); at least 2 for kind: grpo, which compares them"
    )
    micro_batch_sequences: PositiveInt = Field(
        64, description="answers per forward/backward; gradients accumulate over the rest"
    )
    learning_rate: PositiveFloat = Field(2.5e-4, description="default for a pretrained model: 1e-6")
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = 0
    weight_decay: NonNegativeFloat = 0.0
    adam_betas: tuple[Fraction, Fraction] = (0.9, 0.99)
    max_grad_norm: PositiveFloat = 1.0
    checkpoint_interval_steps: PositiveInt = 20
    keep_checkpoints: PositiveInt = 2
    threads: PositiveInt | None = Field(None, description="torch threads; none = torch's default")


class SandboxConfig(Section):
    """Where answers run and what one answer may use."""

    workers: PositiveInt = 2
    cpu_seconds: PositiveFloat = 1.0
    suite_times: bool = Field(
        False, description="the times of a public suite in place of cpu_seconds, where it has them"
    )
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

    kind: Literal["grpo", "ppo", "rejection", "sft"] = Field(
        "grpo",
        description="ppo learns with a critic, grpo with any other advantage; rejection trains on its own "
        "answers that pass; sft is supervised",
    )
    name: str = "run"
    seed: int = 0
    model: ModelConfig = ModelConfig()
    problems: ProblemsConfig = ProblemsConfig()
    warm_start: SupervisedConfig | None = Field(
        None, description="supervised training before RL, or all of it (kind: sft)"
    )
    sampling: SamplingConfig = SamplingConfig()
    rewards: tuple[RewardTermConfig, ...] = (RewardTermConfig(name="tests"),)
    reward_model: RewardModelConfig | None = Field(
        None, description="learn to predict which answers pass, beside the rewards or as one of them"
    )
    algorithm: AlgorithmConfig = Field(AlgorithmConfig(), validate_default=True)
    rejection: RejectionConfig = RejectionConfig()
    training: TrainingConfig = Field(TrainingConfig(), validate_default=True)
    evaluation: EvaluationConfig = EvaluationConfig()
    sandbox: SandboxConfig = SandboxConfig()
    tracking: TrackingConfig = TrackingConfig()
    faults: FaultsConfig = FaultsConfig()

    @field_validator("warm_start", "training", mode="after")
    @classmethod
    def _learning_rate_for_a_pretrained_model(
        cls, section: SupervisedConfig | TrainingConfig | None, recipe: ValidationInfo
    ) -> SupervisedConfig | TrainingConfig | None:
        model = recipe.data.get("model")
        if (
            section is None
            or model is None
            or model.id is None
            or "learning_rate" in section.model_fields_set
        ):
            return section
        if is_from_random_weights(model.id):
            return section
        supervised = isinstance(section, SupervisedConfig)
        rate = SUPERVISED_LEARNING_RATE if supervised else REINFORCEMENT_LEARNING_RATE
        return section.model_copy(update={"learning_rate": rate})

    @field_validator("algorithm", mode="after")
    @classmethod
    def _defaults_of_ppo(cls, algorithm: AlgorithmConfig, recipe: ValidationInfo) -> AlgorithmConfig:
        if recipe.data.get("kind") != "ppo":
            return algorithm
        defaults = {"advantage": "gae", "loss": "ppo", "critic": CriticConfig()}
        left_out = {key: value for key, value in defaults.items() if key not in algorithm.model_fields_set}
        return algorithm.model_copy(update=left_out)

    @model_validator(mode="after")
    def _one_kind_of_baseline(self) -> Recipe:
        """A critic for `ppo`, a group for `grpo`; the other kinds have no baseline."""
        algorithm, generations = self.algorithm, self.training.num_generations
        if self.kind == "ppo":
            if algorithm.advantage != "gae":
                raise ValueError(
                    f"kind: ppo has a critic and needs algorithm.advantage gae, found {algorithm.advantage}: "
                    "leave the key out, or set kind: grpo"
                )
            if algorithm.critic is None:
                raise ValueError("kind: ppo needs algorithm.critic: leave the key out for its defaults")
            if algorithm.dynamic_sampling:
                raise ValueError(
                    "algorithm.dynamic_sampling replaces groups without signal, which a critic learns from "
                    "all the same: leave it off for kind: ppo"
                )
        if self.kind == "grpo":
            if algorithm.advantage == "gae" or algorithm.critic is not None:
                raise ValueError("algorithm.advantage gae and algorithm.critic need kind: ppo")
            if algorithm.kl.in_reward:
                raise ValueError(
                    "algorithm.kl.in_reward needs rewards per token, so kind: ppo; "
                    "with kind: grpo the KL is a term of the loss (in_reward: false)"
                )
            if generations < 2:
                raise ValueError(
                    f"training.num_generations {generations}: {algorithm.advantage} compares the answers "
                    "of a group and needs at least 2 (kind: ppo does with 1)"
                )
        return self

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
        if self.kind in ("grpo", "ppo") and narrowed and self.algorithm.importance_cap is None:
            raise ValueError(
                "sampling.top_p or sampling.top_k draws from another distribution than the one that is "
                "trained: set algorithm.importance_cap (2 is usual) to correct for it, or leave both off"
            )
        if self.kind == "sft" and self.warm_start is None:
            raise ValueError("kind: sft needs the section warm_start (its data and settings)")
        if self.kind == "sft" and self.reward_model is not None:
            raise ValueError("reward_model learns from graded answers: kind: sft has none")
        if not self.rewards and self.kind != "sft":
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

    @model_validator(mode="after")
    def _plantable(self) -> Recipe:
        explosion = self.faults.gradient_explosion
        if self.faults.planted and self.kind not in ("grpo", "ppo"):
            raise ValueError(
                f"faults.{next(iter(self.faults.planted))} disturbs policy-gradient training: "
                "it needs kind: grpo or kind: ppo"
            )
        if self.faults.reward_overconfidence is not None and self.reward_model is None:
            raise ValueError(
                "faults.reward_overconfidence needs the section reward_model (reward_model: {} will do)"
            )
        if explosion is not None and explosion.after_step >= self.training.max_steps:
            raise ValueError(
                f"faults.gradient_explosion.after_step {explosion.after_step} must be below "
                f"training.max_steps {self.training.max_steps}, or nothing explodes"
            )
        return self
