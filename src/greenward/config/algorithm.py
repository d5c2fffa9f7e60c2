"""The sections of a recipe that depend on its kind: algorithm, rejection, games and planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from greenward.config.sections import ConfigSection, Fraction, PositiveFraction, Share, named

MoreThanOne = Annotated[float, Field(gt=1)]
Loss = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce", "ppo"]


class KLConfig(ConfigSection):
    """Pull towards the reference policy (the policy at the start of the run).

    Without `target` the coefficient is fixed. With it, the coefficient follows the measured KL
    (Ziegler et al. 2019, arXiv 1909.08593, section 2.2).
    """

    coefficient: NonNegativeFloat = Field(0.0, description="with a target, its first value")
    estimator: Literal["k1", "k2", "k3"] = "k3"
    target: PositiveFloat | None = Field(None, description="KL in nats per token to adapt to; none = fixed")
    horizon: PositiveInt = Field(10_000, description="episodes over which the coefficient adapts")

    refresh_every: PositiveInt | None = Field(
        None,
        description="steps after which the reference becomes the policy of then, or the average that "
        "training.weight_average keeps; none = never",
    )

    def mistakes(self) -> Iterator[str]:
        if self.target is not None and self.coefficient == 0:
            yield (
                "target adapts the coefficient by factors, and coefficient is 0: "
                "give it a first value above 0 (0.1 is usual)"
            )


class PPOKLConfig(KLConfig):
    """The KL of PPO, which can also be a cost in the reward of each token."""

    in_reward: bool = Field(False, description="subtract it from the reward of each token, not in the loss")


class OverlongConfig(ConfigSection):
    """Treatment of answers that reach the token limit (DAPO §3.4)."""

    mask_truncated: bool = Field(False, description="truncated answers leave the loss")
    penalty_buffer: NonNegativeInt = Field(
        0, description="tokens before the limit over which the penalty rises from 0 to penalty"
    )
    penalty: NonNegativeFloat = 1.0


class CriticConfig(ConfigSection):
    """The critic of `kind: ppo`: its trunk (the policy's or its own copy), and how values are learned."""

    trunk: Literal["shared", "separate"] = Field("shared", description="the policy's own, or a copy of it")
    discount: PositiveFraction = 1.0
    gae_lambda: Fraction = Field(0.95, description="λ of the advantages")
    value_lambda: Fraction = Field(1.0, description="λ of the returns to learn; 1 = no bootstrapping")
    loss_weight: PositiveFloat = 0.5
    clip: PositiveFloat | None = Field(0.2, description="distance from the old values; none = off")
    learning_rate: PositiveFloat | None = Field(None, description="none = training.learning_rate")
    max_grad_norm: PositiveFloat | None = Field(None, description="none = training.max_grad_norm")
    updates_per_batch: PositiveInt | None = Field(None, description="none = algorithm.updates_per_batch")
    whiten_advantages: bool = Field(
        True,
        description="scale to mean 0 and deviation 1 over a batch's tokens, less where rewards vary little",
    )


class ImportanceConfig(ConfigSection):
    """Importance sampling between sampler and trainer: weights p_trainer / p_sampler, bounded."""

    mode: Literal["truncate", "mask"] = Field(
        "truncate", description="weights outside of the bounds are cut to the nearer one, or become 0"
    )
    level: Literal["token", "sequence"] = Field(
        "token", description="the ratio of each token, or the product over all tokens of the answer"
    )
    low: NonNegativeFloat = 0.0
    high: PositiveFloat = 2.0

    def mistakes(self) -> Iterator[str]:
        if not self.low < self.high:
            yield f"low {self.low} must be below high {self.high}"
        if self.low > 1 or (self.mode == "mask" and self.high < 1):
            yield (
                f"the bounds [{self.low}, {self.high}] exclude 1, the weight where sampler and trainer agree"
            )


class AlgorithmConfig(ConfigSection):
    """What the policy-gradient algorithms share: the loss, its clipping, KL and entropy terms."""

    loss: Loss = "dapo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = Field(0.2, description="DAPO uses 0.28; CISPO's upper bound is 1 + this")
    updates_per_batch: PositiveInt = Field(1, description="passes over each batch of episodes")
    minibatches: PositiveInt = Field(1, description="optimizer steps per pass")
    max_step_kl: PositiveFloat | None = Field(None, description="approx_kl that ends the update of a batch")
    kl: KLConfig = KLConfig()
    entropy_coefficient: NonNegativeFloat = Field(
        0.0, description="weight of the entropy bonus in the loss; with entropy_target, its first value"
    )
    entropy_target: PositiveFloat | None = Field(None, description="nats per token to adapt to; none = fixed")
    overlong: OverlongConfig = OverlongConfig()
    importance: ImportanceConfig | None = Field(
        None,
        description="correct for a sampler that is not the trainer; on by itself where `rollouts` make one",
    )

    def mistakes(self) -> Iterator[str]:
        if self.entropy_target is not None and self.entropy_coefficient == 0:
            yield (
                "entropy_target adapts entropy_coefficient by factors, and entropy_coefficient is 0: "
                "give it a first value above 0 (0.01 is usual)"
            )


class GRPOAlgorithmConfig(AlgorithmConfig):
    """Policy gradients whose baseline, if any, is the group of answers to the same prompt."""

    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce"] = "grpo"
    dynamic_sampling: bool = Field(False, description="sample again until all groups have signal")
    dynamic_sampling_max_rounds: PositiveInt = 4


class PPOAlgorithmConfig(AlgorithmConfig):
    """Policy gradients whose baseline is a critic."""

    advantage: Literal["gae"] = "gae"
    loss: Loss = "ppo"
    critic: CriticConfig = CriticConfig()
    kl: PPOKLConfig = PPOKLConfig()


class RejectionAlgorithmConfig(ConfigSection):
    """What rejection sampling shares with the policy-gradient algorithms."""

    overlong: OverlongConfig = OverlongConfig()


class RejectionConfig(ConfigSection):
    """`kind: rejection`: which sampled answers are kept, and how the policy is trained on them."""

    min_reward: float | None = Field(
        None, description="keep answers with at least this reward; none = answers that pass all their tests"
    )
    max_per_prompt: PositiveInt = Field(4, description="different answers per problem to train on, at most")
    replay_rounds: NonNegativeInt = Field(0, description="earlier rounds whose kept answers are used again")
    epochs: PositiveInt = Field(1, description="passes over the kept answers in each round")
    batch_size: PositiveInt = Field(64, description="kept answers per optimizer step")


class GameConfig(ConfigSection):
    """A game and how often it is played. A name alone is enough."""

    name: str = Field(
        description="tictactoe, kuhn_poker, negotiation, textarena:ID, or your class as module:Class"
    )
    weight: PositiveFloat = Field(1.0, description="its share of the groups, relative to the other games")


class LeagueConfig(ConfigSection):
    """Earlier versions as opponents, drawn in proportion to (1 - score against them)^hardness."""

    size: PositiveInt = Field(8, description="versions that are kept; the oldest leaves first")
    snapshot_every: PositiveInt = Field(20, description="steps after which the policy joins")
    hardness: NonNegativeFloat = Field(1.0, description="0 = all versions are equally likely")


class SelfPlayConfig(ConfigSection):
    """What is played against whom, and how a move is written."""

    games: tuple[
        Annotated[GameConfig, BeforeValidator(named, json_schema_input_type=str | GameConfig)], ...
    ] = Field((GameConfig(name="tictactoe"),), min_length=1)
    opponents: dict[str, NonNegativeFloat] = Field(
        {"self": 1.0},
        description="share of the games against self, latest (the policy, not trained on), league, random, "
        "expert (minimax, equilibrium or best response), a run or model folder, or MODEL@URL (a model behind "
        "an OpenAI-compatible server)",
    )
    opponent_noise: Fraction = Field(
        0.0,
        description="share of random legal moves of opponents that are models: more positions are seen",
    )
    league: LeagueConfig = LeagueConfig()
    move_format: Literal["bare", "boxed"] = Field(
        "bare", description="the move alone, or reasoning and then \\boxed{move}"
    )
    illegal_moves: Literal["lose", "retry"] = Field("lose", description="retry: one more answer is asked for")
    format_weight: NonNegativeFloat = Field(
        0.0, description="reward of a player all of whose moves keep the format"
    )
    evaluation_games: PositiveInt = Field(2000, description="games of each match of an evaluation")

    def mistakes(self) -> Iterator[str]:
        if not sum(self.opponents.values()) > 0:
            yield "opponents: give at least one of them a share above 0, such as {self: 1}"
        names = [game.name for game in self.games]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            yield f"games names {twice[0]} twice; give it a weight instead"


class CodeGameConfig(ConfigSection):
    """The game of code: who predicts, which role is trained when, and what a program may do."""

    predictor: Literal["frozen", "league", "self", "constant", "last_literal", "interpreter"] = Field(
        "frozen",
        description="the policy as it was when the phase began; as it was at the beginning of any phase, the "
        "stronger ones more often; the policy itself, which learns both roles at once; or a script",
    )
    phases: tuple[PositiveInt, PositiveInt] | None = Field(
        None,
        description="steps for which the generator is trained, then the predictor, and so on, each against "
        "the policy of before; none = the generator throughout",
    )
    league_size: PositiveInt = Field(8, description="versions that predictor: league keeps")
    max_program_tokens: PositiveInt | None = Field(
        None, description="a program of more loses; none = sampling.max_tokens, as for a prediction"
    )
    max_output_bytes: PositiveInt = Field(32, description="a program that prints more loses")
    max_operations: PositiveInt = Field(10_000, description="a program that takes more loses")
    evaluation_games: PositiveInt = Field(500, description="games of each pair in an evaluation")

    def mistakes(self) -> Iterator[str]:
        if self.phases and self.predictor not in ("frozen", "league"):
            yield f"phases need predictor: frozen or league; {self.predictor} has none"
        if self.predictor == "league" and not self.phases:
            yield "predictor: league needs phases: a version joins in each"


class SelfPlayAlgorithmConfig(AlgorithmConfig):
    """Policy gradients whose baseline is conditioned on the role (SPIRAL, arXiv 2506.24119)."""

    loss: Loss = "ppo"
    advantage: Literal["role_baseline", "group_mean", "position_mean", "none"] = Field(
        "role_baseline",
        description="what is subtracted from the return of a role; position_mean is the mean of the step's "
        "returns in equal positions, for games that have few",
    )
    baseline_decay: Fraction = Field(0.95, description="of the running mean of each task and role")
    baseline_updated_first: bool = Field(
        False, description="the order printed in the paper; the official code subtracts the mean of before"
    )
    discount: PositiveFraction = Field(1.0, description="of the result, per own move that follows")


class MemoryLeakConfig(ConfigSection):
    """Tensors are never freed: memory grows over `training.max_steps`."""

    growth_factor: MoreThanOne = Field(2.1, description="memory at the last step over that at the first")
    shape: Literal["linear", "noisy", "steps"] = Field(
        "linear", description="noisy: under peaks that are freed; steps: at every 20th step alone"
    )


class GradientExplosionConfig(ConfigSection):
    """The learning rate jumps and clipping is removed, so that gradient norms explode."""

    after_step: PositiveInt = Field(300, description="the last healthy step, as metrics.jsonl counts")
    rate_factor: MoreThanOne = Field(3000.0, description="on the learning rate, from the next step on")
    rate_growth: Annotated[float, Field(ge=1)] = Field(
        1.05, description="on the factor at each further step; 1 = none, and norms fall again"
    )
    remove_clip: bool = Field(True, description="no gradient clipping from the next step on")


class RewardOverconfidenceConfig(ConfigSection):
    """The reward model's logits are scaled up, so that its predictions are overconfident."""

    calibration_score: Share = Field(0.65, description="the score to reach; a healthy one is above 0.85")
    logit_scale: MoreThanOne | None = Field(
        None, description="a fixed factor on the logits instead, which no score steers"
    )


class BatchFaultConfig(ConfigSection):
    """A bug in what the trainer learns from, from the step after `after_step` on."""

    after_step: NonNegativeInt = Field(0, description="the last healthy step, as metrics.jsonl counts")


class TemperatureMismatchConfig(BatchFaultConfig):
    """The trainer takes another temperature for the sampler's than it is."""

    factor: PositiveFloat = Field(2.0, description="times the sampler's temperature")


class StaleSamplerConfig(BatchFaultConfig):
    """The sampler gets the new weights too seldom."""

    renewed_every: PositiveInt = Field(20, description="steps")


class FaultsConfig(ConfigSection):
    """Bugs planted in the training, to measure what finds them. An empty section (`{}`) plants one."""

    memory_leak: MemoryLeakConfig | None = None
    gradient_explosion: GradientExplosionConfig | None = None
    reward_overconfidence: RewardOverconfidenceConfig | None = None
    advantage_sign_flipped: BatchFaultConfig | None = None
    loss_mask_shifted: BatchFaultConfig | None = None
    end_never_trained: BatchFaultConfig | None = None
    padding_in_loss: BatchFaultConfig | None = None
    random_data_order: BatchFaultConfig | None = None
    temperature_mismatch: TemperatureMismatchConfig | None = None
    stale_sampler: StaleSamplerConfig | None = None

    @property
    def planted(self) -> dict[str, ConfigSection]:
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: section for name, section in sections.items() if section is not None}
