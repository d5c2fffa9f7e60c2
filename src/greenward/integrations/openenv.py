"""Offers our tasks as OpenEnv environments, for its `create_fastapi_app` (`pip install openenv-core`)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from greenward.common.errors import ConfigError
from greenward.environments.prompts import FEEDBACK, question
from greenward.integrations.rewards import Scorer
from greenward.tasks.self_play.environment import GameSession

try:
    from openenv.core.env_server import Action, Environment, Observation, State
except ImportError as error:
    raise ConfigError(
        f"greenward.integrations.openenv needs OpenEnv, which cannot be imported: {error}",
        remedy="Run `pip install openenv-core`.",
    ) from error


class AnswerAction(Action):
    """An answer to a problem: text with a fenced block, or code that continues the starter code."""

    answer: str


class ProblemObservation(Observation):
    """What is asked, and after an answer its status and the first failing test."""

    task_id: str
    prompt: str
    status: str = ""
    feedback: str = ""


class MoveAction(Action):
    """A move, written as in `legal_moves`."""

    move: str


class PositionObservation(Observation):
    """The rules and the position as text, the model's role and its legal moves; at the end the outcome."""

    role: str
    prompt: str
    legal_moves: list[str]


class _TextEnvironment(Environment):
    """What both environments share: sessions side by side, and the state of an episode.

    `step` raises `ConfigError` before the first `reset` and after the end of an episode.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._goes_on = False

    @property
    def state(self) -> State:
        return self._state

    def _begin(self, episode_id: str | None) -> None:
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        self._goes_on = True

    def _count_step(self) -> None:
        if not self._goes_on:
            raise ConfigError("no episode is going on.", remedy="Call `reset` first.")
        self._state.step_count += 1


class ProblemEnvironment(_TextEnvironment):
    """Asks one problem in each episode; a wrong answer may be repaired up to `max_turns` answers.

    `reset(seed=…)` asks problem number seed, `reset(task_id=…)` that problem. The action is `{"answer":
    text}`, the observation holds `task_id`, `prompt`, `status` and `feedback` (the first failing test). The
    reward of an answer that the infrastructure failed is None. A server, which listens on loopback unless
    uvicorn is told otherwise, and has no access control:

        import uvicorn
        from openenv.core.env_server import create_fastapi_app
        from greenward.integrations.openenv import AnswerAction, ProblemEnvironment, ProblemObservation
        from greenward.integrations.rewards import Scorer

        scorer = Scorer(["tests"], "classic_evaluation")  # one sandbox for all sessions
        app = create_fastapi_app(lambda: ProblemEnvironment(scorer, max_turns=2), AnswerAction,
                                 ProblemObservation, max_concurrent_envs=8)
        uvicorn.run(app, port=8000)

    A client:

        from openenv.core import GenericEnvClient

        with GenericEnvClient(base_url="http://127.0.0.1:8000").sync() as client:
            asked = client.reset(seed=0)
            result = client.step({"answer": "pass"})
            print(asked.observation["prompt"], result.reward, result.done, result.observation["feedback"])
    """

    def __init__(self, scorer: Scorer, max_turns: int = 1) -> None:
        super().__init__()
        self._scorer = scorer
        self._max_turns = max_turns

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task_id: str = "", **options: Any
    ) -> ProblemObservation:
        self._begin(episode_id)
        problems = self._scorer.problems
        self._problem = problems.by_id(task_id) if task_id else problems[(seed or 0) % len(problems)]
        return ProblemObservation(task_id=self._problem.task_id, prompt=question(self._problem, "chat"))

    def step(
        self, action: AnswerAction, timeout_s: float | None = None, **options: Any
    ) -> ProblemObservation:
        self._count_step()
        task_id, prompt = self._problem.task_id, question(self._problem, "chat")
        (scored,) = self._scorer.score([task_id], [prompt], [action.answer])
        verdict = scored.verdict
        is_over = verdict.passed or not scored.scored or self._state.step_count >= self._max_turns
        self._goes_on = not is_over
        return ProblemObservation(
            task_id=task_id,
            prompt=prompt,
            status=verdict.status.value,
            feedback="" if verdict.passed else FEEDBACK.format(failure=verdict.failure),
            done=is_over,
            reward=scored.reward if scored.scored else None,
        )


class PositionEnvironment(_TextEnvironment):
    """A game against a scripted player in each episode.

    The action is `{"move": text}`, the observation holds `role`, `prompt` and `legal_moves`. The opponent is
    `random` or `expert`; the seed of `reset` decides on the game, and an odd one lets the opponent begin. An
    illegal move loses. Games are named as in `self_play.games`.
    """

    def __init__(self, game: str, opponent: str = "random") -> None:
        super().__init__()
        self._game, self._opponent = game, opponent

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> PositionObservation:
        self._begin(episode_id)
        self._session = GameSession(self._game, self._opponent, seed or 0)
        return self._observed()

    def step(self, action: MoveAction, timeout_s: float | None = None, **options: Any) -> PositionObservation:
        self._count_step()
        self._session.move(action.move)
        self._goes_on = not self._session.over
        return self._observed()

    def _observed(self) -> PositionObservation:
        session = self._session
        return PositionObservation(
            role=session.role,
            prompt=session.prompt,
            legal_moves=session.legal_moves,
            done=session.over,
            reward=session.reward,
        )
