"""Defines what recipes are made of: the keys that all share, those of a model, and those of an algorithm.

A recipe names a `task`, what is asked, and an `algorithm.name`, how it is learned. Its class is that of the
algorithm with the sections that the task adds (`recipes_with`); `greenward.tasks.TASKS` has the tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationInfo, create_model, field_validator

from greenward.common.errors import ConfigError
from greenward.common.files import read_file
from greenward.common.yaml_text import parse_yaml_text
from greenward.config.section import ConfigSection, SandboxConfig, Seed
from greenward.config.sections import (
    AlgorithmConfig,
    EditsConfig,
    EnvironmentConfig,
    EvaluationConfig,
    FaultsConfig,
    GRPOAlgorithmConfig,
    ImportanceConfig,
    LoopConfig,
    ModelConfig,
    MonitorConfig,
    PolicyGradientConfig,
    PPOAlgorithmConfig,
    ProblemsConfig,
    RejectionAlgorithmConfig,
    RewardModelConfig,
    RewardTermConfig,
    RolloutsConfig,
    SamplingConfig,
    SupervisedAlgorithmConfig,
    SupervisedConfig,
    ToolsConfig,
    TrackingConfig,
    TrainingConfig,
)

# Learning rates of a pretrained model where the recipe gives none.
SUPERVISED_LEARNING_RATE = 2e-5
REINFORCEMENT_LEARNING_RATE = 1e-6
LORA_RATE_FACTOR = 10
"""How much larger default learning rates of an adapter are than those of all weights."""

Trained = TypeVar("Trained", SupervisedConfig, LoopConfig, None)
Updated = TypeVar("Updated", bound=AlgorithmConfig)


class Recipe(ConfigSection):
    """The keys and sections that all recipes share."""

    task: str = "functions"
    name: str = "run"
    seed: Seed = 0

    if TYPE_CHECKING:  # sections of every recipe; each class has them after those that their checks need
        algorithm: AlgorithmConfig
        problems: ProblemsConfig
        training: LoopConfig
        evaluation: EvaluationConfig
        sandbox: SandboxConfig
        tracking: TrackingConfig

    @classmethod
    def with_own_preset(cls, data: dict[str, Any]) -> dict[str, Any]:
        """`data` with the values of the presets that only this class has; here there are none."""
        return data


class ModelRecipe(Recipe):
    """The keys of recipes that train a language model."""

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
        has_base = self.model.id is not None or (self.warm_start is not None and self.algorithm.name != "sft")
        if self.model.lora is not None and not has_base:
            more = (
                ""
                if self.algorithm.name == "sft"
                else ", or give a warm_start, which trains all weights first"
            )
            yield f"model.lora adapts a trained model, and there is none: set model.id{more}"


class SupervisedRecipe(ModelRecipe):
    """`algorithm.name: sft`: supervised training on the user's pairs or on the generated corpus."""

    algorithm: SupervisedAlgorithmConfig = SupervisedAlgorithmConfig()
    warm_start: SupervisedConfig = Field(description="its data and settings")


class ReinforcementRecipe(ModelRecipe):
    """The keys of recipes with rewards."""

    training: TrainingConfig = Field(TrainingConfig(), validate_default=True)
    rollouts: RolloutsConfig = RolloutsConfig()
    monitor: MonitorConfig = MonitorConfig()

    @field_validator("algorithm", mode="after", check_fields=False)
    @classmethod
    def _corrected_where_engines_differ(cls, section: Updated, recipe: ValidationInfo) -> Updated:
        rollouts = recipe.data.get("rollouts")
        if rollouts is None or not rollouts.differs or not isinstance(section, PolicyGradientConfig):
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


class RewardedRecipe(ReinforcementRecipe):
    """The keys of recipes whose answers are rewarded by terms."""

    rewards: tuple[RewardTermConfig, ...] = (RewardTermConfig(name="tests"),)
    reward_model: RewardModelConfig | None = Field(
        None, description="learn to predict which answers pass, beside the rewards or as one of them"
    )
    algorithm: GRPOAlgorithmConfig | PPOAlgorithmConfig | RejectionAlgorithmConfig

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if not self.rewards:
            yield "rewards is empty: name at least one reward term"
        buffer = self.algorithm.overlong.penalty_buffer
        if buffer >= self.sampling.max_tokens:
            yield (
                f"algorithm.overlong.penalty_buffer {buffer} must be below "
                f"sampling.max_tokens {self.sampling.max_tokens}"
            )


class PolicyGradientRecipe(RewardedRecipe):
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


def without_groups(training: TrainingConfig, algorithm: GRPOAlgorithmConfig) -> Iterator[str]:
    """Yield the mistake of an algorithm that compares answers within a group, if groups have one answer.

    What an advantage of the user's compares is not known.
    """
    if training.num_generations < 2 and ":" not in algorithm.advantage:
        yield (
            f"training.num_generations {training.num_generations}: {algorithm.advantage} "
            "compares the answers of a group and needs at least 2 (algorithm.name: ppo works with 1)"
        )


class GRPORecipe(PolicyGradientRecipe):
    """`algorithm.name: grpo`: policy gradients with group baselines or none; advantage and loss as chosen."""

    algorithm: GRPOAlgorithmConfig = Field(GRPOAlgorithmConfig(), validate_default=True)

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        yield from without_groups(self.training, self.algorithm)


class PPORecipe(PolicyGradientRecipe):
    """`algorithm.name: ppo`: policy gradients with a critic."""

    algorithm: PPOAlgorithmConfig = Field(PPOAlgorithmConfig(), validate_default=True)


class RejectionRecipe(RewardedRecipe):
    """`algorithm.name: rejection`: supervised training on the policy's own answers that pass."""

    algorithm: RejectionAlgorithmConfig = RejectionAlgorithmConfig()


class TurnSections(ConfigSection):
    """What a task adds to a recipe whose answers may be repaired with feedback."""

    environment: EnvironmentConfig = EnvironmentConfig()


class EditSections(TurnSections):
    """What a task adds to a recipe whose answers may be edits."""

    environment: EditsConfig = EditsConfig()


class ToolSections(ConfigSection):
    """What a task adds to a recipe whose policy calls tools."""

    tools: ToolsConfig = ToolsConfig()

    if TYPE_CHECKING:
        algorithm: AlgorithmConfig
        sandbox: SandboxConfig

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.sandbox.backend == "http":
            yield "tools need workspaces: sandbox.backend must be local or ray"
        if self.tools.call_reward and self.algorithm.name not in ("grpo", "sft"):
            yield "tools.call_reward needs algorithm.name: grpo"


ALGORITHMS: Mapping[str, type[ModelRecipe]] = MappingProxyType(
    {"grpo": GRPORecipe, "ppo": PPORecipe, "rejection": RejectionRecipe, "sft": SupervisedRecipe}
)
"""The recipe class of each algorithm that trains a language model."""


def recipes_with(
    task: str, *sections: type[ConfigSection], algorithms: Collection[str] = tuple(ALGORITHMS)
) -> Mapping[str, type[Recipe]]:
    """The recipe class of each of these algorithms for a task, with the keys of `sections`."""
    prefix = "".join(part.title() for part in re.split(r"\W|_", task))
    made: Any = create_model  # mypy knows neither computed bases nor computed literals
    return {
        name: made(
            f"{prefix}{ALGORITHMS[name].__name__}",
            __base__=(*sections, ALGORITHMS[name]),
            __doc__=ALGORITHMS[name].__doc__,
            task=(Literal[task], task),
        )
        for name in algorithms
    }


def language_model(recipe: Recipe) -> ModelRecipe:
    """The recipe, if it is one of a language model. Raises `ConfigError`."""
    if not isinstance(recipe, ModelRecipe):
        raise ConfigError(
            f"{recipe.name}: task {recipe.task} trains a network of its own, and this needs a language model."
        )
    return recipe


def is_from_random_weights(model_id: str) -> bool:
    """Whether `model_id` is a run of greenward, or a folder in one, that began from random weights.

    Such a model continues with the settings that made it. Only the `config.yaml` of runs is read; where
    a run continued another, that one decides.
    """
    seen: set[Path] = set()
    while True:
        folder = Path(os.path.realpath(Path(model_id).expanduser()))
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
