"""The training of `kind: dqn`: problems with hidden tests, the agent, its evaluation, and random search."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from greenward.algorithms.callbacks import Callback
from greenward.algorithms.dqn import DQNAgent, TokenEncoder
from greenward.algorithms.dqn_trainer import DQNTrainer
from greenward.algorithms.loop import Evaluator
from greenward.config.dqn import DQNEvaluationConfig
from greenward.config.recipe import DQNRecipe
from greenward.environments.episode import POLICY, Episode
from greenward.environments.token_mdp import features
from greenward.environments.token_mdp.embeddings import make_embeddings
from greenward.environments.token_mdp.mdp import TokenMDP, TokenSettings
from greenward.environments.token_mdp.problems import TokenProblem
from greenward.environments.token_mdp.rewards import Weights, make_program_reward
from greenward.environments.token_mdp.rounds import Attempt, Choose, CodeGrading, by_prior, note_tests, write
from greenward.environments.token_mdp.vocabulary import Vocabulary
from greenward.errors import ConfigError
from greenward.evaluation.rows import EvaluationRow, Sample
from greenward.evaluation.summary import summarise
from greenward.grading.extraction import Extracted
from greenward.intervals import proportion
from greenward.problems.catalog import load_suite
from greenward.problems.problem import Problem, ProblemSet
from greenward.problems.small_functions import small_functions
from greenward.recipes.build import build_grader, build_problems, verify_references
from greenward.reports.replay import write_replay
from greenward.reports.token_programs import RANDOM_SEARCH, REPLAY, UNSEEN
from greenward.runs.directory import RunDirectory
from greenward.runs.files import write_json
from greenward.runs.metrics import read_metrics
from greenward.runs.progress import Progress
from greenward.seeding import step_seed
from greenward.text import visible

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
    learned = recipe.environment.embedding == "learned"  # numbers of words need all bits
    return DQNAgent(
        features.SIZE,
        len(mdp.vocabulary),
        recipe.agent,
        seed=recipe.seed,
        device=recipe.training.device,
        encoder=partial(TokenEncoder, len(mdp.vocabulary)) if learned else None,
        dtype=np.float32 if learned else np.float16,
    )


class DQNTasks:
    """What a Q-network trains and is evaluated on."""

    def __init__(
        self, recipe: DQNRecipe, given: Mapping[str, ProblemSet], functions: Mapping[str, Callable[..., Any]]
    ) -> None:
        if functions:
            raise ConfigError("kind dqn takes its reward from reward.type, as module:function.")
        self.recipe = recipe
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

    def callbacks(self, progress: Progress) -> Sequence[Callback]:
        """Programs that are shown during training."""
        every = self.recipe.training.render_every
        return [Renderer(every, progress)] if every else []

    def compare(self, run: RunDirectory, trainer: DQNTrainer, progress: Progress) -> None:
        """Write the replay of greedy episodes, and search at random for as many episodes and as long."""
        write_replay(run.path / REPLAY, greedy_steps(trainer.policy, self.mdp, self.grading))
        if self.recipe.evaluation.random_search:
            progress.message("Random search by the same mask and token prior, as many episodes and as long.")
            rows = read_metrics(run.path / "metrics.jsonl").rows
            record = random_search(
                self.mdp,
                CodeGrading(self.grader),
                episodes=trainer.episodes_done,
                seconds=sum(float(row["time/step"]) for row in rows),
                seed=self.recipe.seed,
                round_size=self.recipe.training.episodes_per_step,
            )
            write_json(run.path / RANDOM_SEARCH, record)

    def sample(self) -> str:
        """What a dry run shows."""
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

    The record has the form of every evaluation of a run (`evaluation.engine`).
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
        "rows": _with_code(rows),
        "greedy_rows": _with_code(greedy_rows),
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


def _with_code(rows: Sequence[tuple[EvaluationRow, str]]) -> list[dict[str, Any]]:
    return [{**row.to_json(), "code": code} for row, code in rows]


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

    def __init__(self, every: int, progress: Progress) -> None:
        self._every, self._progress = every, progress

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        if step % self._every == 0 and episodes:
            best = max(episodes, key=lambda episode: episode.rewards[POLICY])
            shown = visible(best.answer, 2000)
            self._progress.message(f"Step {step}, {best.task_id}, {best.outcome}:\n{shown}")


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
