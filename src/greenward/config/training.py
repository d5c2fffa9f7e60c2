"""Defines the sections of a recipe that decide how it learns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from greenward.config.sections import (
    ConfigSection,
    EvaluationConfig,
    Fraction,
    LoopConfig,
    PositiveFraction,
    ProblemsConfig,
    Share,
    named,
)

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
        0.0, description="share of random legal moves of opponents that are models: more positions are seen"
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


class AgentConfig(ConfigSection):
    """Deep Q-learning (Mnih et al., 2015) with its usual improvements, each by a switch."""

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
    "fast": {"training": {"num_episodes": 1000}, "agent": {"buffer_capacity": 5000, "batch_size": 32}},
    "standard": {"training": {"num_episodes": 8000}, "agent": {"buffer_capacity": 50_000, "batch_size": 128}},
    "production": {
        "training": {"num_episodes": 60_000},
        "agent": {"buffer_capacity": 100_000, "batch_size": 128, "hidden_dim": 1024},
    },
    "none": {},
}


def with_dqn_preset(data: dict[str, Any]) -> dict[str, Any]:
    """The keys of a recipe with its preset's values for those that are not set."""
    name = data.get("preset")
    for section, values in (PRESETS.get(name, {}) if isinstance(name, str) else {}).items():
        given = data.get(section, {})
        if isinstance(given, dict):
            data = data | {section: {**values, **given}}
    return data
