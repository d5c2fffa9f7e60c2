"""Defines the recipe of each kind, a union on `kind`; wrong keys are errors before heavy code is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator

from greenward.common.errors import ConfigError
from greenward.common.files import read_file
from greenward.common.parsing import parse_yaml_text
from greenward.config.sections import (
    ConfigSection,
    EnvironmentConfig,
    EvaluationConfig,
    LoopConfig,
    ModelConfig,
    MonitorConfig,
    ProblemsConfig,
    RewardModelConfig,
    RewardTermConfig,
    RolloutsConfig,
    SamplingConfig,
    SandboxConfig,
    Seed,
    SupervisedConfig,
    TrackingConfig,
    TrainingConfig,
)
from greenward.config.training import (
    AgentConfig,
    AlgorithmConfig,
    CodeGameConfig,
    DQNEvaluationConfig,
    DQNTrainingConfig,
    ExplorationConfig,
    FaultsConfig,
    GRPOAlgorithmConfig,
    ImportanceConfig,
    PPOAlgorithmConfig,
    RejectionAlgorithmConfig,
    RejectionConfig,
    SelfPlayAlgorithmConfig,
    SelfPlayConfig,
    TokenEnvironmentConfig,
    TokenProblemsConfig,
    TokenRewardConfig,
)

# Learning rates of a pretrained model where the recipe gives none.
SUPERVISED_LEARNING_RATE = 2e-5
REINFORCEMENT_LEARNING_RATE = 1e-6
LORA_RATE_FACTOR = 10
"""How much larger default learning rates of an adapter are than those of all weights."""

Trained = TypeVar("Trained", SupervisedConfig, LoopConfig, None)
Updated = TypeVar("Updated", AlgorithmConfig, RejectionAlgorithmConfig)


class BaseRecipe(ConfigSection):
    """The keys that all kinds share, beside sections of the same names."""

    kind: str
    name: str = "run"
    seed: Seed = 0


class ModelRecipe(BaseRecipe):
    """The keys that the kinds share which train a language model."""

    preset: Literal["auto", "cpu", "v100", "a100", "h100", "none"] = Field(
        "auto", description="settings of a pretrained model that follow from the machine; auto: of this one"
    )
    preset_keys: tuple[str, ...] = Field((), description="what the preset gave; greenward writes this")
    model: ModelConfig = ModelConfig()
    problems: ProblemsConfig = ProblemsConfig()
    warm_start: SupervisedConfig | None = Field(None, description="supervised training before RL")
    sampling: SamplingConfig = SamplingConfig()
    training: LoopConfig = Field(LoopConfig(), validate_default=True)
    evaluation: EvaluationConfig = EvaluationConfig()
    sandbox: SandboxConfig = SandboxConfig()
    tracking: TrackingConfig = TrackingConfig()

    @field_validator("warm_start", "training", mode="after")
    @classmethod
    def _learning_rate_for_the_model(cls, section: Trained, recipe: ValidationInfo) -> Trained:
        model = recipe.data.get("model")
        if model is None or not isinstance(section, SupervisedConfig | TrainingConfig):
            return section
        if "learning_rate" in section.model_fields_set:
            return section
        rate, supervised = section.learning_rate, isinstance(section, SupervisedConfig)
        if model.id is not None and not is_from_random_weights(model.id):
            rate = SUPERVISED_LEARNING_RATE if supervised else REINFORCEMENT_LEARNING_RATE
        if model.lora is not None and (model.id is not None or not supervised):
            rate = float(f"{rate * LORA_RATE_FACTOR:.6g}")
        return section.model_copy(update={"learning_rate": rate})

    def mistakes(self) -> Iterator[str]:
        has_base = self.model.id is not None or (self.warm_start is not None and self.kind != "sft")
        if self.model.lora is not None and not has_base:
            more = "" if self.kind == "sft" else ", or give a warm_start, which trains all weights first"
            yield f"model.lora adapts a trained model, and there is none: set model.id{more}"


class SupervisedRecipe(ModelRecipe):
    """`kind: sft`: supervised training on the user's pairs or on the generated corpus."""

    kind: Literal["sft"] = "sft"
    warm_start: SupervisedConfig = Field(description="its data and settings")
    environment: EnvironmentConfig = Field(EnvironmentConfig(), description="what the examples are to answer")


class ReinforcementRecipe(ModelRecipe):
    """The keys that the kinds with rewards share."""

    training: TrainingConfig = Field(TrainingConfig(), validate_default=True)
    rollouts: RolloutsConfig = RolloutsConfig()
    monitor: MonitorConfig = MonitorConfig()

    @field_validator("algorithm", mode="after", check_fields=False)
    @classmethod
    def _corrected_where_engines_differ(cls, section: Updated, recipe: ValidationInfo) -> Updated:
        rollouts = recipe.data.get("rollouts")
        if rollouts is None or not rollouts.differs or not isinstance(section, AlgorithmConfig):
            return section
        if "importance" not in section.model_fields_set:
            return section.model_copy(update={"importance": ImportanceConfig()})
        if rollouts.max_staleness and section.importance is None:
            raise ValueError(
                f"rollouts.max_staleness {rollouts.max_staleness} needs a correction: leave "
                "algorithm.importance out, or give its bounds"
            )
        return section

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        length, tokens = self.rollouts.vllm.max_model_len, self.sampling.max_tokens
        if self.rollouts.engine == "vllm" and length is not None and length <= tokens:
            yield (
                f"rollouts.vllm.max_model_len {length} leaves no room for a prompt beside "
                f"sampling.max_tokens {tokens}"
            )
        if self.rollouts.max_staleness and self.kind in ("self_play", "code_game"):
            yield (
                f"rollouts.max_staleness {self.rollouts.max_staleness} does not work with kind: {self.kind}: "
                "the opponents of a step are known only after the update before it"
            )


class CodeRecipe(ReinforcementRecipe):
    """The keys that the kinds share whose answers are code."""

    environment: EnvironmentConfig = EnvironmentConfig()
    rewards: tuple[RewardTermConfig, ...] = (RewardTermConfig(name="tests"),)
    reward_model: RewardModelConfig | None = Field(
        None, description="learn to predict which answers pass, beside the rewards or as one of them"
    )
    algorithm: GRPOAlgorithmConfig | PPOAlgorithmConfig | RejectionAlgorithmConfig

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if not self.rewards:
            yield "rewards is empty: name at least one reward term"
        environment = self.environment
        if environment.tools and (environment.max_turns > 1 or environment.answer != "function"):
            yield (
                "environment.tools is an agent, whose turns are calls: leave environment.max_turns and "
                "environment.answer out"
            )
        if environment.tools and self.sandbox.backend == "http":
            yield "environment.tools needs workspaces: sandbox.backend must be local or ray"
        if environment.tools and environment.tools.call_reward and self.kind != "grpo":
            yield "environment.tools.call_reward needs kind: grpo"
        buffer = self.algorithm.overlong.penalty_buffer
        if buffer >= self.sampling.max_tokens:
            yield (
                f"algorithm.overlong.penalty_buffer {buffer} must be below "
                f"sampling.max_tokens {self.sampling.max_tokens}"
            )


class PolicyGradientRecipe(CodeRecipe):
    """The keys that GRPO and PPO share."""

    algorithm: GRPOAlgorithmConfig | PPOAlgorithmConfig
    faults: FaultsConfig = FaultsConfig()

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.algorithm.minibatches > self.training.prompts_per_step:
            yield (
                f"algorithm.minibatches {self.algorithm.minibatches} is more than "
                f"training.prompts_per_step {self.training.prompts_per_step}: a group cannot be split"
            )
        if (self.sampling.top_p < 1 or self.sampling.top_k > 0) and self.algorithm.importance is None:
            yield (
                "sampling.top_p or sampling.top_k draws from another distribution than the one that is "
                "trained: set algorithm.importance={high: 2} to correct for it, or leave both off"
            )
        if self.faults.reward_overconfidence is not None and self.reward_model is None:
            yield "faults.reward_overconfidence needs the section reward_model (reward_model: {} is enough)"
        explosion = self.faults.gradient_explosion
        if explosion is not None and explosion.after_step >= self.training.max_steps:
            yield (
                f"faults.gradient_explosion.after_step {explosion.after_step} must be below "
                f"training.max_steps {self.training.max_steps}, or nothing explodes"
            )


def _without_groups(recipe: GRPORecipe | CodeGameRecipe) -> Iterator[str]:
    if recipe.training.num_generations < 2:
        yield (
            f"training.num_generations {recipe.training.num_generations}: {recipe.algorithm.advantage} "
            "compares the answers of a group and needs at least 2 (kind: ppo works with 1)"
        )


class GRPORecipe(PolicyGradientRecipe):
    """`kind: grpo`: policy gradients with group baselines or none; a choice of advantage and loss."""

    kind: Literal["grpo"] = "grpo"
    algorithm: GRPOAlgorithmConfig = Field(GRPOAlgorithmConfig(), validate_default=True)

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        yield from _without_groups(self)


class PPORecipe(PolicyGradientRecipe):
    """`kind: ppo`: policy gradients with a critic."""

    kind: Literal["ppo"] = "ppo"
    algorithm: PPOAlgorithmConfig = Field(PPOAlgorithmConfig(), validate_default=True)


class RejectionRecipe(CodeRecipe):
    """`kind: rejection`: supervised training on the policy's own answers that pass."""

    kind: Literal["rejection"] = "rejection"
    algorithm: RejectionAlgorithmConfig = RejectionAlgorithmConfig()
    rejection: RejectionConfig = RejectionConfig()


class SelfPlayRecipe(ReinforcementRecipe):
    """`kind: self_play`: two-player games against itself, earlier versions and scripted players."""

    kind: Literal["self_play"] = "self_play"
    self_play: SelfPlayConfig = SelfPlayConfig()
    algorithm: SelfPlayAlgorithmConfig = Field(SelfPlayAlgorithmConfig(), validate_default=True)


class CodeGameRecipe(ReinforcementRecipe):
    """`kind: code_game`: one player writes a program, the other one predicts what it prints."""

    kind: Literal["code_game"] = "code_game"
    code_game: CodeGameConfig = CodeGameConfig()
    algorithm: GRPOAlgorithmConfig = Field(GRPOAlgorithmConfig(), validate_default=True)

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        yield from _without_groups(self)
        if self.sandbox.backend != "local":
            yield "kind code_game runs programs under two hash seeds: sandbox.backend must be local"


class DQNRecipe(BaseRecipe):
    """`kind: dqn`: programs written token by token, by deep Q-learning."""

    kind: Literal["dqn"] = "dqn"
    preset: Literal["fast", "standard", "production", "none"] = Field(
        "none", description="episodes, memory, batch and width, where the recipe does not set them"
    )
    problems: TokenProblemsConfig = TokenProblemsConfig()
    agent: AgentConfig = AgentConfig()
    exploration: ExplorationConfig = ExplorationConfig()
    environment: TokenEnvironmentConfig = TokenEnvironmentConfig()
    reward: TokenRewardConfig = TokenRewardConfig()
    training: DQNTrainingConfig = DQNTrainingConfig()
    evaluation: DQNEvaluationConfig = DQNEvaluationConfig()
    sandbox: SandboxConfig = SandboxConfig()
    tracking: TrackingConfig = TrackingConfig()


Recipe = GRPORecipe | PPORecipe | RejectionRecipe | SelfPlayRecipe | CodeGameRecipe | SupervisedRecipe
"""A recipe that trains a language model."""
AnyRecipe = Recipe | DQNRecipe
RECIPE: TypeAdapter[AnyRecipe] = TypeAdapter(Annotated[AnyRecipe, Field(discriminator="kind")])
KINDS: Mapping[str, type[BaseRecipe]] = {
    str(recipe.model_fields["kind"].default): recipe for recipe in get_args(AnyRecipe)
}
"""The recipe class of each kind."""


def with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The resolved config of an earlier version, with the defaults of the keys that were added since.

    One that this version cannot read is returned as it is.
    """
    try:
        return RECIPE.validate_python(config).model_dump(mode="json")
    except ValidationError:
        return config


def language_model(recipe: AnyRecipe) -> Recipe:
    """The recipe, if it is one of a language model. Raises `ConfigError`."""
    if isinstance(recipe, DQNRecipe):
        raise ConfigError(
            f"{recipe.name}: kind dqn trains a Q-network over tokens of its own, and this needs a language "
            "model."
        )
    return recipe


def is_from_random_weights(model_id: str) -> bool:
    """Whether `model_id` is a run of greenward, or a folder in one, that began from random weights.

    Such a model continues with the settings that made it. Only the `config.yaml` of runs is read; where
    a run continued another, that one decides.
    """
    seen: set[Path] = set()
    while True:
        folder = Path(model_id).expanduser().resolve()
        run = next((one for one in (folder, *folder.parents) if (one / "checkpoints").is_dir()), None)
        if run is None or run in seen or not (run / "config.yaml").is_file():
            return False
        seen.add(run)
        try:
            config = parse_yaml_text(read_file(run / "config.yaml", within=run).decode("utf-8"))
            earlier = config["model"]["id"]
        except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
            return False  # not a run of greenward
        if earlier is None:
            return True
        model_id = str(earlier)
