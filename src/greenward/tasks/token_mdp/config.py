"""Defines the recipe of the token MDP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from greenward.config.recipe import Recipe
from greenward.config.sections import (
    ConfigSection,
    EvaluationConfig,
    Fraction,
    LoopConfig,
    PositiveFraction,
    ProblemsConfig,
    SandboxConfig,
    Share,
    TrackingConfig,
)
from greenward.config.training import AlgorithmConfig


class DQNAlgorithmConfig(AlgorithmConfig):
    """Deep Q-learning (Mnih et al., 2015) with its usual improvements, each by a switch."""

    name: Literal["dqn"] = "dqn"
    learning_rate: PositiveFloat = Field(1e-4, description="of Adam")
    gamma: PositiveFraction = Field(0.99, description="discount of what comes one step later")
    epsilon_start: Fraction = Field(1.0, description="share of random actions in the first episode")
    epsilon_end: Fraction = Field(0.01, description="the lowest share of random actions")
    epsilon_decay: PositiveFraction = Field(0.995, description="factor of epsilon from episode to episode")
    buffer_capacity: PositiveInt = Field(50_000, description="newest transitions that are kept")
    batch_size: PositiveInt = Field(64, description="transitions of one update")
    learning_starts: NonNegativeInt = Field(1000, description="transitions before the first update")
    hidden_dim: PositiveInt = Field(512, description="width of the two hidden layers")
    dropout: Fraction = Field(0.0, description="after each hidden layer, during updates only")
    double: bool = Field(True, description="the online network chooses the action that the target one values")
    dueling: bool = Field(True, description="value and advantages in two streams (arXiv 1511.06581)")
    n_step: PositiveInt = Field(1, description="rewards that are summed before the target network is asked")
    prioritized: bool = Field(True, description="draw transitions by their TD error (arXiv 1511.05952)")
    priority_exponent: Fraction = Field(0.6, description="0 = uniform, 1 = in proportion to the TD error")
    importance_start: Fraction = Field(0.4, description="exponent of the importance weights at the start")
    importance_updates: PositiveInt = Field(20_000, description="updates after which that exponent is 1")
    target_update_interval: NonNegativeInt = Field(
        500, description="updates between two copies of the online network; 0 with tau"
    )
    tau: Share | None = Field(
        None, description="share of the online network that enters the target each update"
    )
    success_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of each batch that is drawn from episodes that succeeded"
    )
    demonstration_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of each batch that is drawn from demonstrations, where there are any"
    )
    pretraining_updates: NonNegativeInt = Field(
        0, description="updates on demonstrations alone before the first episode, where there are any"
    )
    success_margin: NonNegativeFloat = Field(
        0.0,
        description="by how much actions of successes and demonstrations should be worth more than all "
        "others, as in DQfD (arXiv 1704.03732); 0 = off",
    )
    huber_delta: PositiveFloat = Field(1.0, description="TD error from which the loss grows linearly")
    max_grad_norm: PositiveFloat = Field(10.0, description="gradients are scaled down to this norm")
    weight_decay: NonNegativeFloat = 0.0

    def mistakes(self) -> Iterator[str]:
        if (self.tau is None) == (self.target_update_interval == 0):
            yield (
                "the target network needs either target_update_interval above 0 (hard copies) or tau with "
                f"target_update_interval: 0 (soft), found {self.target_update_interval} and {self.tau}"
            )
        if self.epsilon_end > self.epsilon_start:
            yield f"epsilon_end {self.epsilon_end} must not be above epsilon_start {self.epsilon_start}"

    def epsilon(self, episode: int) -> float:
        """The share of random actions in an episode, counted from 0."""
        return max(self.epsilon_end, self.epsilon_start * self.epsilon_decay**episode)

    def importance(self, update: int) -> float:
        """The exponent of the importance weights (beta) at an update, counted from 0."""
        done = min(1.0, update / self.importance_updates)
        return self.importance_start + (1.0 - self.importance_start) * done


class ExplorationConfig(ConfigSection):
    """What directs exploration in the token MDP, beside epsilon."""

    greedy_share: Fraction = Field(
        0.17,
        description="share of greedy episodes, which tell how well a problem is solved; all others look for "
        "programs that were not written before",
    )
    prior: bool = Field(True, description="draw random tokens by the token prior, not uniformly")
    bonus: NonNegativeFloat = Field(
        0.5, description="of tokens that seldom followed a prefix, in the units of Q; 0 = none"
    )


class TokenProblemsConfig(ProblemsConfig):
    """Problems of the token MDP, and generated ones beside those to train on."""

    train: str = "classic_training"
    held_out: str = "classic_evaluation"
    generated: NonNegativeInt = Field(
        0, description="small generated functions that are learned from by their references (demonstrations)"
    )


class TokenEnvironmentConfig(ConfigSection):
    """The token MDP: what can be written, in how many steps, and what is seen of it."""

    max_steps: PositiveInt = Field(50, description="tokens and deletions of a program at most")
    vocab_size: Annotated[int, Field(ge=1, le=5000)] = Field(
        64, description="tokens, the most useful ones first; the grammar needs 64"
    )
    extra_tokens: tuple[str, ...] = Field((), description='further literals, such as "\'xyz\'" or "42"')
    grammar_mask: bool = Field(True, description="only tokens that can become a program are legal")
    delete: bool = Field(False, description="allow to take back the newest token")
    test_when: Literal["end", "whole"] = Field(
        "end", description="run the tests at the end, or whenever the program is whole"
    )
    embedding: Literal["hashed", "learned", "model"] = Field(
        "hashed",
        description="fixed hashes, an encoder that is trained with the Q-network, or embedding_model",
    )
    embedding_model: str | None = Field(
        None, description="folder of a code model (extra hf), for embedding: model"
    )
    check_reachability: bool = Field(True, description="prove first that each reference can be written")

    def mistakes(self) -> Iterator[str]:
        if (self.embedding == "model") != (self.embedding_model is not None):
            yield "embedding_model goes with embedding: model, and that needs it"


class TokenRewardConfig(ConfigSection):
    """What a program earns; the weights are those of code_quality and curriculum."""

    type: str = Field(
        "code_quality", description="code_quality, sparse, curriculum, or your own as module:function"
    )
    correctness_weight: NonNegativeFloat = 10.0
    quality_weight: NonNegativeFloat = 2.0
    efficiency_weight: NonNegativeFloat = 1.0
    progress_weight: NonNegativeFloat = Field(0.5, description="of the shaping by potential, in every type")
    scale: PositiveFloat = Field(0.1, description="factor of all rewards before they are learned")

    def mistakes(self) -> Iterator[str]:
        if self.type not in ("code_quality", "sparse", "curriculum") and ":" not in self.type:
            yield (
                "reward.type: expected code_quality, sparse, curriculum or module:function, "
                f"found {self.type!r}"
            )


class DQNTrainingConfig(LoopConfig):
    """Episodes and updates; a step of the training is a round of episodes that run side by side."""

    num_episodes: PositiveInt = 5000
    max_seconds: PositiveFloat | None = Field(None, description="training time limit, evaluation excluded")
    episodes_per_step: PositiveInt = Field(50, description="episodes of a round, graded together")
    updates_per_step: PositiveInt = Field(8, description="updates after each round")
    checkpoint_interval_steps: PositiveInt = Field(2, description="rounds; 2 of 50 episodes are 100 episodes")
    curriculum: bool = Field(True, description="draw problems that are solved already less often")
    log_frequency: PositiveInt = Field(1, description="rounds from one row of metrics to the next")
    verbose: bool = Field(False, description="also log the gradient norm of each layer")
    render_every: NonNegativeInt = Field(0, description="print a program every so many rounds; 0 = never")
    device: str = Field("cpu", description="of the Q-network: cpu, cuda …")

    @property
    def max_steps(self) -> int:
        """The number of rounds."""
        return -(-self.num_episodes // self.episodes_per_step)


class DQNEvaluationConfig(EvaluationConfig):
    """Evaluation of the Q-network: one greedy program for each problem, and `samples` with `epsilon`."""

    samples: PositiveInt = Field(
        1, description="programs with epsilon for each problem, beside the greedy one"
    )
    k: tuple[PositiveInt, ...] = Field((1,), min_length=1)
    epsilon: Fraction = Field(0.05, description="share of random actions in these")
    random_search: bool = Field(True, description="at the end, also search at random for as long")


PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "fast": {"training": {"num_episodes": 1000}, "algorithm": {"buffer_capacity": 5000, "batch_size": 32}},
    "standard": {
        "training": {"num_episodes": 8000},
        "algorithm": {"buffer_capacity": 50_000, "batch_size": 128},
    },
    "production": {
        "training": {"num_episodes": 60_000},
        "algorithm": {"buffer_capacity": 100_000, "batch_size": 128, "hidden_dim": 1024},
    },
    "none": {},
}


class DQNRecipe(Recipe):
    """Programs written token by token, by deep Q-learning."""

    task: Literal["token_mdp"] = "token_mdp"
    preset: Literal["fast", "standard", "production", "none"] = Field(
        "none", description="episodes, memory, batch and width, where the recipe does not set them"
    )
    problems: TokenProblemsConfig = TokenProblemsConfig()
    algorithm: DQNAlgorithmConfig = DQNAlgorithmConfig()
    exploration: ExplorationConfig = ExplorationConfig()
    environment: TokenEnvironmentConfig = TokenEnvironmentConfig()
    reward: TokenRewardConfig = TokenRewardConfig()
    training: DQNTrainingConfig = DQNTrainingConfig()
    evaluation: DQNEvaluationConfig = DQNEvaluationConfig()
    sandbox: SandboxConfig = SandboxConfig()
    tracking: TrackingConfig = TrackingConfig()

    @classmethod
    def with_own_preset(cls, data: dict[str, Any]) -> dict[str, Any]:
        name = data.get("preset")
        for section, values in (PRESETS.get(name, {}) if isinstance(name, str) else {}).items():
            given = data.get(section, {})
            if isinstance(given, dict):
                data = data | {section: {**values, **given}}
        return data
