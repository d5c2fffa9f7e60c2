"""Trains a Q-network to write programs, and evaluates it beside random search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from greenward.common.errors import CheckpointError, ConfigError
from greenward.common.seeding import step_seed
from greenward.common.statistics import proportion
from greenward.common.text import visible
from greenward.diagnostics.finding import Topic
from greenward.evaluation.evaluate import EvaluationRow, Sample, Seconds, summarise
from greenward.evaluation.session import AnswerOptions, EvaluationSession
from greenward.evaluation.store import EvaluationFolder
from greenward.grading.extraction import Extracted
from greenward.grading.judge import build_grader
from greenward.grading.verification import build_problems, verify_references
from greenward.problems.catalog import load_suite
from greenward.problems.problem import Problem, ProblemSet
from greenward.reports.document import Section
from greenward.reports.runs import Runs
from greenward.rollouts.episode import POLICY, Episode
from greenward.runs.checkpoints import LAST, checkpoint_step, find_checkpoint
from greenward.runs.directory import RunDirectory
from greenward.runs.files import sha256_of, write_json
from greenward.runs.reading import METRICS, is_run, read_metrics, read_sessions
from greenward.tasks.task import Say, Task
from greenward.tasks.token_mdp import features
from greenward.tasks.token_mdp.config import DQNEvaluationConfig, DQNRecipe
from greenward.tasks.token_mdp.features import make_embeddings
from greenward.tasks.token_mdp.findings import Q_LEARNING
from greenward.tasks.token_mdp.grammar import Vocabulary
from greenward.tasks.token_mdp.mdp import (
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
from greenward.tasks.token_mdp.problems import TokenProblem, small_functions
from greenward.tasks.token_mdp.report import RANDOM_SEARCH, REPLAY, UNSEEN, program_sections, write_replay
from greenward.training.protocols import Callback, Evaluator

if TYPE_CHECKING:
    from greenward.tasks.token_mdp.dqn import DQNAgent
    from greenward.tasks.token_mdp.trainer import DQNTrainer

MOST_REPLAYED = 12
CLASSICS = ("classic_training", "classic_evaluation")


def build_mdp(recipe: DQNRecipe, problems: Sequence[Any], *, training: bool = False) -> TokenMDP:
    """The token MDP of a recipe on these problems. Raises `ProblemError` and `ConfigError`.

    For `training`, their references must be reachable, and there are a token prior and demonstrations.
    """
    section = recipe.environment
    vocabulary = Vocabulary(section.vocab_size, section.extra_tokens)
    settings = TokenSettings(
        section.max_steps, section.grammar_mask, section.delete, test_whole=section.test_when == "whole"
    )
    with_corpus = training and (recipe.exploration.prior or recipe.problems.generated)
    return TokenMDP(
        problems, vocabulary, settings, check=training and section.check_reachability,
        corpus=generated_problems() if with_corpus else (),
        embeddings=make_embeddings(section.embedding, section.embedding_model, vocabulary),
    )  # fmt: skip


def generated_problems() -> ProblemSet:
    """The small functions that do what none of the classic problems asks for."""
    classics = [problem for name in CLASSICS for problem in load_suite(name)]
    return small_functions(ProblemSet(classics, name="classics"))


def build_agent(recipe: DQNRecipe, mdp: TokenMDP) -> DQNAgent:
    """The agent at its beginning. Observations are kept in half precision."""
    from greenward.tasks.token_mdp.dqn import DQNAgent, TokenEncoder

    learned = recipe.environment.embedding == "learned"  # numbers of words need all bits
    return DQNAgent(
        features.SIZE,
        len(mdp.vocabulary),
        recipe.algorithm,
        seed=recipe.seed,
        device=recipe.training.device,
        encoder=partial(TokenEncoder, len(mdp.vocabulary)) if learned else None,
        dtype=np.float32 if learned else np.float16,
    )


class TokenMDPTask(Task):
    """What a Q-network trains and is evaluated on."""

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
        super().__init__(recipe)
        self.train, self.held_out = build_problems(recipe, given)
        self.mdp = build_mdp(recipe, list(self.train), training=True)
        self.held_out_mdp = build_mdp(recipe, list(self.held_out)) if self.held_out else None

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        """Start the sandbox, and run the references."""
        self.grader = stack.enter_context(build_grader(self.recipe.sandbox))
        run.add_provenance(sandbox=self.grader.isolation.to_json(), tokens=list(self.mdp.vocabulary.lexemes))
        self.grading = CodeGrading(self.grader)
        verify_references(self.recipe, self.grader, self.train, self.held_out)

    def trainer(self) -> DQNTrainer:
        from greenward.tasks.token_mdp.trainer import DQNTrainer

        recipe, reward = self.recipe, self.recipe.reward
        weights = Weights(
            reward.correctness_weight, reward.quality_weight, reward.efficiency_weight, reward.progress_weight
        )
        trainer = DQNTrainer(
            build_agent(recipe, self.mdp),
            self.mdp,
            self.grading,
            make_program_reward(reward.type, weights, self.grader),
            exploration=recipe.exploration,
            episodes_per_step=recipe.training.episodes_per_step,
            updates_per_step=recipe.training.updates_per_step,
            progress_weight=reward.progress_weight,
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
        return "task token_mdp trains in one"

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

    def sample(self, policy: Any) -> str:
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

    def __init__(
        self,
        run: str | Path,
        problems: str | None,
        options: Mapping[str, Any],
    ) -> None:
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

    def source(
        self, folder: EvaluationFolder, problems: ProblemSet, seconds: Seconds
    ) -> Iterable[list[Sample]]:
        grading = CodeGrading(self.grader)
        for number, one in enumerate(self._mdp.problems):
            if all((one.task_id, sample) in folder.samples for sample in range(1 + self._episodes)):
                continue
            began = time.perf_counter()
            rng = np.random.default_rng(step_seed(self._seed, number, "evaluation"))
            written = write(self._mdp, [one], greedily(self._agent), grading)
            choose = with_epsilon(self._agent, self._epsilon, rng)
            written += write(self._mdp, [one] * self._episodes, choose, grading)
            seconds.sampling += time.perf_counter() - began
            problem = problems.by_id(one.task_id)
            samples = [sample_of(attempt, problem, sample) for sample, attempt in enumerate(written)]
            folder.add_new(samples)
            yield [folder.samples[sample.key] for sample in samples if sample.key not in folder.rows]

    def facts_of(self, folder: EvaluationFolder) -> dict[str, Any]:
        return {"by_problem": _by_problem(folder)}


def _by_problem(folder: EvaluationFolder) -> list[dict[str, Any]]:
    """For each problem whether the greedy program is right, and the share of the others with its interval."""
    found = []
    for task_id in dict.fromkeys(task for task, _ in folder.rows):
        rows = [row for (task, number), row in folder.rows.items() if task == task_id and number > 0]
        share = proportion(sum(bool(row.success) for row in rows), len(rows)) if rows else None
        found.append(
            {
                "task_id": task_id,
                "greedy": folder.rows[task_id, 0].success,
                "epsilon": share and share.to_json(),
                "program": folder.samples[task_id, 0].code,
            }
        )
    return found
