"""Trains a Q-network to write programs, and evaluates it beside random search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from greenward.common.errors import CheckpointError, ConfigError
from greenward.common.seeding import step_seed
from greenward.common.statistics import proportion
from greenward.common.text import visible
from greenward.config.recipe import Recipe
from greenward.config.section import ConfigSection, Fraction, PositiveFraction, SandboxConfig, Share
from greenward.config.sections import (
    AlgorithmConfig,
    EvaluationConfig,
    LoopConfig,
    ProblemsConfig,
    TrackingConfig,
)
from greenward.diagnostics.finding import Topic
from greenward.diagnostics.simulation import Kind
from greenward.evaluation.evaluate import OnSamples, Seconds
from greenward.evaluation.figures import summarise
from greenward.evaluation.model_session import AnswerOptions
from greenward.evaluation.samples import EvaluationRow, EvaluationRows, Sample
from greenward.evaluation.session import EvaluationSession
from greenward.grading.extracted import Extracted
from greenward.grading.judge import build_grader
from greenward.grading.verification import build_problems, verify_references
from greenward.problems.catalog import load_suite
from greenward.problems.problem import Problem, ProblemSet
from greenward.reports.document import Section
from greenward.reports.runs import Runs
from greenward.rollouts.protocols import POLICY, Episode
from greenward.runs.checkpoints import LAST, checkpoint_step, find_checkpoint
from greenward.runs.directory import RunDirectory
from greenward.runs.files import sha256_of, write_json
from greenward.runs.reading import METRICS, is_run, read_metrics, read_sessions
from greenward.tasks.task import Say, Task
from greenward.tasks.token_mdp import features
from greenward.tasks.token_mdp.features import make_embeddings
from greenward.tasks.token_mdp.grammar import Vocabulary
from greenward.tasks.token_mdp.mdp import (
    SHAPED,
    Attempt,
    Choose,
    CodeGrading,
    TokenMDP,
    TokenSettings,
    Weights,
    by_prior,
    make_program_reward,
    note_tests,
    write,
)
from greenward.tasks.token_mdp.problems import TokenProblem
from greenward.tasks.token_mdp.report import (
    Q_LEARNING,
    RANDOM_SEARCH,
    REPLAY,
    SIMULATED,
    UNSEEN,
    program_sections,
    write_replay,
)
from greenward.tasks.token_mdp.small_functions import small_functions, without_solutions
from greenward.training.protocols import Callback, Evaluator

if TYPE_CHECKING:
    from greenward.tasks.token_mdp.dqn import DQNAgent
    from greenward.tasks.token_mdp.trainer import DQNTrainer


class DQNAlgorithmConfig(AlgorithmConfig):
    """Deep Q-learning (Mnih et al., 2015) with its usual improvements, each by a switch."""

    name: Literal["dqn"] = "dqn"
    learning_rate: PositiveFloat = Field(1e-4, description="of Adam; usual are 1e-4 to 1e-3")
    gamma: Fraction = Field(
        0.99,
        description="discount of what comes one step later, usually 0.95 to 0.99; 0 = the next reward alone",
    )
    epsilon_start: Fraction = Field(1.0, description="share of random actions in the first episode")
    epsilon_end: Fraction = Field(0.01, description="the lowest share of random actions")
    epsilon_decay: PositiveFraction = Field(
        0.995, description="factor of epsilon from episode to episode, usually 0.999 to 0.99995"
    )
    buffer_capacity: PositiveInt = Field(
        50_000, description="newest transitions that are kept, usually 10,000 to 100,000, of 4 kB each"
    )
    batch_size: PositiveInt = Field(64, description="transitions of one update")
    learning_starts: NonNegativeInt = Field(1000, description="transitions before the first update")
    hidden_dim: PositiveInt = Field(512, description="width of the two hidden layers")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of each hidden layer that updates leave out"
    )
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
    word_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="share of an update's rows in which the docstring's words are hidden, usually 0.2 to 0.4",
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
    practice_epsilon: Fraction = Field(0.05, description="share of random tokens on generated problems")
    bonus: NonNegativeFloat = Field(
        0.5,
        description="of tokens that seldom followed a prefix, in the units of Q, usually 0.5 to 2; 0 = none",
    )


class TokenProblemsConfig(ProblemsConfig):
    """Problems of the token MDP, and generated ones beside those to train on."""

    train: str = "classic_training"
    held_out: str = "classic_evaluation"
    generated: NonNegativeInt = Field(
        0, description="small generated functions that are learned from by their references (demonstrations)"
    )
    compositions: NonNegativeInt = Field(
        0,
        description="further generated functions, composed at random of others, usually 500 to 3,000",
    )


class TokenEnvironmentConfig(ConfigSection):
    """The token MDP: what can be written, in how many steps, and what is seen of it."""

    max_steps: PositiveInt = Field(
        50, description="tokens and deletions of a program at most, usually 32 to 50"
    )
    vocab_size: Annotated[int, Field(ge=1, le=5000)] = Field(
        64,
        description="tokens, the most useful ones first; the grammar needs 64 and knows 109, the others are "
        "frequent literals",
    )
    extra_tokens: tuple[str, ...] = Field((), description='further literals, such as "\'xyz\'" or "42"')
    grammar_mask: bool = Field(True, description="only tokens that can become a program are legal")
    delete: bool = Field(True, description="allow to take back the newest token")
    test_when: Literal["end", "whole"] = Field(
        "end", description="run the tests at the end, or whenever the program is whole"
    )
    embedding: Literal["hashed", "learned", "model"] = Field(
        "hashed",
        description="fixed hashes, an encoder that is trained with the Q-network, or embedding_model",
    )
    embedding_model: str | None = Field(
        None, description="folder or hub id of a code model (extra hf), for embedding: model"
    )
    embedding_reads: Literal["tokens", "program"] = Field(
        "tokens", description="embedding: model reads each token once, or the program after each token"
    )
    relations: bool = Field(
        True, description="show how inputs and outputs of the visible tests go together (hashed, learned)"
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
    pythonic_weight: NonNegativeFloat = Field(0.5, description="of idioms in the place of longer forms")
    progress_weight: NonNegativeFloat = Field(
        0.5, description="of the shaping by potential, in code_quality and curriculum"
    )
    scale: PositiveFloat = Field(0.1, description="factor of all rewards before they are learned")

    def mistakes(self) -> Iterator[str]:
        if self.type not in (*SHAPED, "sparse") and ":" not in self.type:
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
    practice_per_step: NonNegativeInt = Field(
        0, description="further episodes of a round, in which generated functions are written by the agent"
    )
    practice_rounds: PositiveInt = Field(
        1, description="rounds until the longest generated problems are practised, from the shortest on"
    )
    checkpoint_interval_steps: PositiveInt = Field(2, description="rounds; 2 of 50 episodes are 100 episodes")
    curriculum: bool = Field(True, description="draw problems that are solved already less often")
    log_frequency: PositiveInt = Field(1, description="rounds from one row of metrics to the next")
    verbose: bool = Field(False, description="also log the gradient norm of each layer")
    render_every: NonNegativeInt = Field(0, description="print a program every so many rounds; 0 = never")
    start_from: str | None = Field(
        None, description="checkpoint or run whose Q-network and optimizer this training begins with"
    )
    device: str = Field("cpu", description="of the Q-network: cpu, cuda …, or auto")

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
    "fast": {
        "training": {"num_episodes": 1000, "max_seconds": 900.0},
        "algorithm": {"buffer_capacity": 5000, "batch_size": 32},
    },
    "standard": {
        "training": {"num_episodes": 8000, "max_seconds": 900.0},
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
        "none", description="episodes, seconds, memory, batch and width, where the recipe does not set them"
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


MOST_REPLAYED = 12
CLASSICS = ("classic_training", "classic_evaluation")


def build_mdp(
    recipe: DQNRecipe, problems: Sequence[Any], *, training: bool = False, unseen: Sequence[Any] = ()
) -> TokenMDP:
    """The token MDP of a recipe on these problems. Raises `ProblemError` and `ConfigError`.

    For `training`, their references must be reachable, and there are a token prior and demonstrations, which
    solve none of the problems and none of the `unseen` ones.
    """
    section = recipe.environment
    vocabulary = Vocabulary(section.vocab_size, section.extra_tokens)
    settings = TokenSettings(
        section.max_steps, section.grammar_mask, section.delete, test_whole=section.test_when == "whole"
    )
    uses = recipe.exploration.prior or recipe.problems.generated or recipe.training.practice_per_step
    with_corpus = bool(training and uses)
    return TokenMDP(
        problems, vocabulary, settings, check=training and section.check_reachability,
        corpus=generated_problems(recipe, [*problems, *unseen]) if with_corpus else (),
        embeddings=make_embeddings(
            section.embedding,
            section.embedding_model,
            vocabulary,
            relations=section.relations,
            reads=section.embedding_reads,
        ),
    )  # fmt: skip


def generated_problems(recipe: DQNRecipe, problems: Sequence[Problem]) -> ProblemSet:
    """The small functions of the recipe that solve none of these problems and none of the classic ones."""
    classics = [problem for name in CLASSICS for problem in load_suite(name)]
    functions = small_functions(recipe.problems.compositions)
    return without_solutions(functions, [*classics, *problems])


def build_agent(recipe: DQNRecipe, mdp: TokenMDP) -> DQNAgent:
    """The agent at its beginning. Observations are kept in half precision."""
    from greenward.models.devices import resolve_device
    from greenward.tasks.token_mdp.dqn import DQNAgent, TokenEncoder

    learned = recipe.environment.embedding == "learned"  # numbers of words need all bits
    return DQNAgent(
        features.SIZE,
        len(mdp.vocabulary),
        recipe.algorithm,
        seed=recipe.seed,
        device=resolve_device(recipe.training.device, key="training.device"),
        encoder=partial(TokenEncoder, len(mdp.vocabulary)) if learned else None,
        dtype=np.float32 if learned else np.float16,
    )


class TokenMDPTask(Task):
    """Programs that a Q-network writes token by token, for training and evaluation."""

    recipes: ClassVar = {"dqn": DQNRecipe}
    measured: ClassVar = "hidden-test"  # on the problems of the training, by tests that it never sees
    recipe: DQNRecipe

    @classmethod
    def evaluation(cls, run: str, suite: str | None, given: Mapping[str, Any]) -> ProgramEvaluation | None:
        return ProgramEvaluation(run, suite, given) if is_run(Path(run).expanduser()) else None

    @staticmethod
    def findings() -> Sequence[Topic]:
        return (Q_LEARNING,)

    @staticmethod
    def simulated() -> Mapping[str, Kind]:
        return SIMULATED

    @staticmethod
    def report(runs: Runs) -> Sequence[Section]:
        return program_sections(runs)

    def __init__(
        self,
        recipe: DQNRecipe,
        given: Mapping[str, ProblemSet] = MappingProxyType({}),
        functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        if functions:
            raise ConfigError("task token_mdp takes its reward from reward.type, as module:function.")
        from greenward.models.devices import resolve_device

        super().__init__(recipe)
        resolve_device(recipe.training.device, key="training.device")
        self.train, self.held_out = build_problems(recipe, given)
        self.mdp = build_mdp(recipe, list(self.train), training=True, unseen=list(self.held_out))
        self.held_out_mdp = build_mdp(recipe, list(self.held_out)) if self.held_out else None

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        """Start the sandbox, and run the references."""
        self.grader = stack.enter_context(build_grader(self.recipe.sandbox))
        run.add_provenance(sandbox=self.grader.isolation.to_json(), tokens=list(self.mdp.vocabulary.lexemes))
        self.grading = CodeGrading(self.grader)
        verify_references(self.recipe, self.grader, self.train, self.held_out, extend_limits=False)

    @property
    def weights(self) -> Weights:
        """The weights of the reward's terms; steps earn for progress where the reward is shaped."""
        reward = self.recipe.reward
        return Weights(
            reward.correctness_weight,
            reward.quality_weight,
            reward.efficiency_weight,
            reward.pythonic_weight,
            reward.progress_weight if reward.type in SHAPED else 0.0,
        )

    def trainer(self) -> DQNTrainer:
        from greenward.tasks.token_mdp.trainer import DQNTrainer

        recipe, reward, weights = self.recipe, self.recipe.reward, self.weights
        agent = build_agent(recipe, self.mdp)
        if recipe.training.start_from is not None:
            agent.load(Path(recipe.training.start_from).expanduser())
        trainer = DQNTrainer(
            agent,
            self.mdp,
            self.grading,
            make_program_reward(reward.type, weights, self.grader),
            exploration=recipe.exploration,
            episodes_per_step=recipe.training.episodes_per_step,
            updates_per_step=recipe.training.updates_per_step,
            practice_per_step=recipe.training.practice_per_step,
            practice_rounds=recipe.training.practice_rounds,
            progress_weight=weights.progress,
            reward_scale=reward.scale,
            curriculum=recipe.training.curriculum,
            verbose=recipe.training.verbose,
            seed=recipe.seed,
        )
        trainer.demonstrate(recipe.problems.generated)
        return trainer

    def evaluators(self, policy: Any) -> Mapping[str | None, Evaluator]:
        """Greedy programs and programs with epsilon, on the hidden tests."""
        found = {None: self._evaluator("hidden tests", self.mdp)}
        return found | ({UNSEEN: self._evaluator(UNSEEN, self.held_out_mdp)} if self.held_out_mdp else {})

    @property
    def loop_options(self) -> Mapping[str, Any]:
        rounds = self.recipe.training.log_frequency
        return {"keep_best": True, "finishes_steps": True, "log_interval_steps": rounds}

    def wrong_with_processes(self, sharding: str) -> str:
        return (
            "task token_mdp trains in one; seeds run side by side by `greenward sweep … seed=0..4 --jobs 5`"
        )

    def callbacks(self, say: Say) -> Sequence[Callback]:
        """Programs that are shown during training."""
        every = self.recipe.training.render_every
        return [Renderer(every, say)] if every else []

    def finish(self, run: RunDirectory, trainer: Any, say: Say) -> None:
        """Write the replay of greedy episodes, and search at random for as many episodes and as long."""
        write_replay(run.path / REPLAY, greedy_steps(trainer.policy, self.mdp, self.grading))
        if self.recipe.evaluation.random_search:
            say("Random search by the same mask and token prior, as many episodes and as long.")
            rows = read_metrics(run.path / METRICS).rows
            record = random_search(
                self.mdp,
                CodeGrading(self.grader),
                episodes=trainer.episodes_done,
                seconds=sum(float(row["time/step"]) for row in rows),
                seed=self.recipe.seed,
                round_size=self.recipe.training.episodes_per_step,
            )
            write_json(run.path / RANDOM_SEARCH, record)

    def found(self) -> Iterator[str]:
        yield from self.found_problems()
        yield f"reward: {self.recipe.reward.type}"

    def doubts(self) -> Iterator[str]:
        if unproved := self.mdp.unproved:
            section = self.recipe.environment
            yield (
                f"{', '.join(unproved)}: there is no reference, so nothing shows that a program of "
                f"{section.vocab_size} tokens and at most {section.max_steps} steps passes the tests. A "
                "problem that cannot be written stays unsolved however long the training is."
            )

    def try_out(self, model: Any, most: int, warn: Say) -> Iterator[str]:
        with build_grader(self.recipe.sandbox) as grader:
            make_program_reward(self.recipe.reward.type, Weights(), grader)
            sets = self.train[:most], self.held_out[:most]
            verified = verify_references(self.recipe, grader, *sets, extend_limits=False)
            if verified.count:
                yield f"references: {verified.count} pass their own tests"

    def sample(self, model: Any) -> str:
        first = self.mdp.problems[0]
        reference = " ".join(self.mdp.references.get(first.task_id, ["not checked"]))
        return (
            f"# {len(self.mdp.problems)} problems to train on, {len(self.held_out)} unseen, "
            f"{len(self.mdp.vocabulary)} tokens\n# {first.task_id}: {reference}"
        )

    def _evaluator(self, name: str, mdp: TokenMDP) -> Evaluator:
        def evaluate(agent: Any, step: int, elapsed_seconds: float) -> dict[str, Any]:
            record = evaluate_agent(agent, mdp, self.grading, self.recipe.evaluation)
            return {"suite": name, "step": step, "elapsed_seconds": elapsed_seconds, **record}

        return evaluate


def greedily(agent: DQNAgent) -> Choose:
    """The best legal token for each program."""
    return lambda _, observations_BD, legal_BA: agent.act(observations_BD, legal_BA)


def with_epsilon(agent: DQNAgent, epsilon: float, rng: np.random.Generator) -> Choose:
    """The best legal token or, with probability `epsilon`, any legal one."""
    return lambda _, observations_BD, legal_BA: agent.act(observations_BD, legal_BA, epsilon, rng)


def evaluate_agent(
    agent: DQNAgent, mdp: TokenMDP, grading: CodeGrading, section: DQNEvaluationConfig
) -> dict[str, Any]:
    """One greedy program for each problem and some with epsilon, on the hidden tests where there are any.

    The record has the form of every evaluation of a run (`evaluation.evaluate`).
    """
    started, problems = time.perf_counter(), mdp.problems
    rng = np.random.default_rng(step_seed(section.seed, 0, "evaluation"))
    greedy_rows = judged(write(mdp, problems, greedily(agent), grading), grading)
    each = [one for one in problems for _ in range(section.samples)]
    rows = judged(write(mdp, each, with_epsilon(agent, section.epsilon, rng), grading), grading)
    figures = summarise([row for row, _ in rows], section.k, problems=len(problems))
    first = summarise([row for row, _ in greedy_rows], (1,), problems=len(problems))
    figures["metrics"]["greedy_pass@1"] = first["metrics"]["pass@1"]
    return {
        "samples": section.samples,
        "temperature": section.epsilon,
        **figures,
        "seconds": {"sampling": time.perf_counter() - started, "grading": 0.0},
        "prompts": {one.task_id: one.problem.starter_code for one in problems},
        "rows": [{**row.to_json(), "code": code} for row, code in rows],
        "greedy_rows": [{**row.to_json(), "code": code} for row, code in greedy_rows],
    }


def judged(attempts: Sequence[Attempt], grading: CodeGrading) -> list[tuple[EvaluationRow, str]]:
    """What became of each program on the hidden tests, or on all where none are hidden."""
    problems = [one.writing.one.hidden or one.writing.one.problem for one in attempts]
    verdicts = grading([(problem, one.code) for problem, one in zip(problems, attempts, strict=True)])
    numbers: dict[str, int] = {}
    rows = []
    for problem, one, verdict in zip(problems, attempts, verdicts, strict=True):
        number = numbers[problem.task_id] = numbers.get(problem.task_id, -1) + 1
        rows.append((EvaluationRow.of(sample_of(one, problem, number), verdict), one.code))
    return rows


def sample_of(attempt: Attempt, problem: Problem, number: int) -> Sample:
    """What was written for a problem as answer `number` of an evaluation."""
    return Sample(problem, number, attempt.code, Extracted(attempt.code), tokens=len(attempt.writing.tokens))


def greedy_steps(agent: DQNAgent, mdp: TokenMDP, grading: CodeGrading) -> list[dict[str, Any]]:
    """A greedy episode of each problem, step by step: the code so far and the values of the best tokens."""
    found = []
    for one in mdp.problems[:MOST_REPLAYED]:
        writing, steps = mdp.start(one), []
        while not writing.outcome:
            values = np.where(writing.legal_V, agent.q_values(writing.observation[None])[0], -np.inf)
            best = np.argsort(-values)[:5]
            best = best[np.isfinite(values[best])]
            writing.act(int(best[0]))
            note_tests([writing], grading)
            shown = [(mdp.vocabulary.lexemes[action], round(float(values[action]), 3)) for action in best]
            steps.append({"code": writing.code, "tokens": shown})
        found.append({"task_id": one.task_id, "prompt": one.problem.prompt, "steps": steps})
    return found


class Renderer(Callback):
    """Prints the best program of every so many rounds."""

    name = "render"

    def __init__(self, every: int, say: Say) -> None:
        self._every, self._say = every, say

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        if step % self._every == 0 and episodes:
            best = max(episodes, key=lambda episode: episode.rewards[POLICY])
            shown = visible(best.answer, 2000)
            self._say(f"Step {step}, {best.task_id}, {best.outcome}:\n{shown}")


def random_search(
    mdp: TokenMDP, grading: CodeGrading, *, episodes: int, seconds: float, seed: int, round_size: int
) -> dict[str, Any]:
    """Random search by the same mask, token prior and head starts: for which problems a program was found.

    All problems get the same number of episodes. A program counts as found when it passes the visible tests,
    and as right when it passes the hidden ones, too. Searching goes on until both `episodes` and `seconds`
    are used; `at_episodes` and `at_seconds` tell what was found by then.
    """
    rng = np.random.default_rng(step_seed(seed, 0, "random search"))
    choose: Choose = by_prior(mdp, rng)
    each = max(1, round_size // len(mdp.problems))
    found: dict[str, dict[str, Any]] = {}
    tried = passed = 0
    started = time.perf_counter()
    used = 0.0
    while tried < episodes or used < seconds:
        wanted: list[TokenProblem] = [one for one in mdp.problems for _ in range(each)]
        attempts = write(mdp, wanted, choose, grading, head_starts=mdp.head_starts(len(wanted), rng))
        verdicts = grading([(one.writing.one.problem, one.code) for one in attempts])
        tried, used = tried + len(attempts), time.perf_counter() - started
        for attempt, verdict in zip(attempts, verdicts, strict=True):
            passed += verdict.passed
            task = attempt.writing.one.task_id
            if verdict.passed and not found.get(task, {}).get("hidden"):
                ((row, code),) = judged([attempt], grading)
                if task not in found or row.success:
                    found[task] = {
                        "episodes": tried,
                        "seconds": used,
                        "code": code,
                        "hidden": bool(row.success),
                    }

    def solved(key: str, most: float) -> dict[str, float]:
        right = sum(one["hidden"] and one[key] <= most for one in found.values())
        return proportion(right, len(mdp.problems)).to_json() | {"solved": right}

    return {
        "episodes": tried,
        "seconds": used,
        "pass_rate": proportion(passed, tried).to_json(),
        "at_episodes": {"episodes": episodes, **solved("episodes", episodes)},
        "at_seconds": {"allowed": seconds, **solved("seconds", seconds)},
        "found": found,
    }


OPTIONS = ("checkpoint", "seed")
DEFAULT_EPISODES = 50


class ProgramEvaluation(EvaluationSession):
    """A Q-network and the problems that it is asked; answer 0 of each is greedy, the others have `epsilon`.

    One sample means `DEFAULT_EPISODES`. Programs are judged by the hidden tests where a problem has any.
    Raises `ConfigError` for options of language models, `CheckpointError` for another vocabulary than the one
    that was trained, `ProblemError` for problems that the grammar does not know.
    """

    def __init__(self, run: str | Path, problems: str | None, options: Mapping[str, Any]) -> None:
        samples, epsilon = options.get("samples", 1), options.get("epsilon")
        of_answers = {one.name for one in fields(AnswerOptions)} - {"samples", *OPTIONS}
        if wrong := sorted(of_answers & set(options)):
            raise ConfigError(
                f"an evaluation of a Q-network has no {', '.join(wrong)}.",
                remedy=f"Leave it out; there are n, epsilon and {', '.join(OPTIONS)}.",
            )
        self.name, path = str(run), Path(run).expanduser()
        from greenward.config.loading import load_recipe

        recipe = load_recipe(path / "config.yaml")
        assert isinstance(recipe, DQNRecipe)
        folder = find_checkpoint(path, options.get("checkpoint") or LAST)
        asked = load_suite(problems or recipe.problems.held_out)
        self._mdp = build_mdp(recipe, list(asked))
        trained = next((one["tokens"] for one in read_sessions(path) if "tokens" in one), None)
        if trained is not None and tuple(trained) != (lexemes := self._mdp.vocabulary.lexemes):
            raise CheckpointError(
                f"{path} was trained with {len(trained)} tokens, and its recipe gives {len(lexemes)} here.",
                remedy="Evaluate it with the version of greenward that trained it.",
            )
        self._agent = build_agent(recipe, self._mdp)
        self._agent.load_weights(folder)
        self._episodes = samples if samples > 1 else DEFAULT_EPISODES
        self._epsilon = recipe.evaluation.epsilon if epsilon is None else epsilon
        self._seed = options.get("seed") or 0
        self.problems = ProblemSet((one.hidden or one.problem for one in self._mdp.problems), name=asked.name)
        self.notes = []
        if any(one.hidden for one in self._mdp.problems):
            self.notes.append("Judged by hidden tests, which the network never sees.")
        self.answers = len(self.problems) * (1 + self._episodes)
        weights = sha256_of(sorted(folder.glob("*.pt")), named=True)
        self.settings = {
            "data_hash": self.problems.data_hash,
            "weights": weights,
            "episodes": self._episodes,
            "epsilon": self._epsilon,
            "seed": self._seed,
        }
        self.facts = {"model": {"name": self.name, "step": checkpoint_step(folder), "weights": weights}}

    @property
    def prompts(self) -> Mapping[str, str]:
        return {one.task_id: one.problem.starter_code for one in self._mdp.problems}

    def draw(
        self, store: EvaluationRows, problems: ProblemSet, seconds: Seconds, on_samples: OnSamples
    ) -> None:
        grading = CodeGrading(self.grader)
        for number, one in enumerate(self._mdp.problems):
            if all((one.task_id, sample) in store.samples for sample in range(1 + self._episodes)):
                continue
            began = time.perf_counter()
            rng = np.random.default_rng(step_seed(self._seed, number, "evaluation"))
            written = write(self._mdp, [one], greedily(self._agent), grading)
            choose = with_epsilon(self._agent, self._epsilon, rng)
            written += write(self._mdp, [one] * self._episodes, choose, grading)
            seconds.sampling += time.perf_counter() - began
            problem = problems.by_id(one.task_id)
            samples = (sample_of(attempt, problem, sample) for sample, attempt in enumerate(written))
            on_samples(store.add_new(samples))

    def facts_of(self, store: EvaluationRows) -> dict[str, Any]:
        return {"by_problem": _by_problem(store)}


def _by_problem(store: EvaluationRows) -> list[dict[str, Any]]:
    """For each problem whether the greedy program is right, and the share of the others with its interval."""
    found = []
    for task_id in dict.fromkeys(task for task, _ in store.rows):
        rows = [row for (task, number), row in store.rows.items() if task == task_id and number > 0]
        share = proportion(sum(bool(row.success) for row in rows), len(rows)) if rows else None
        found.append(
            {
                "task_id": task_id,
                "greedy": store.rows[task_id, 0].success,
                "epsilon": share and share.to_json(),
                "program": store.samples[task_id, 0].code,
            }
        )
    return found
