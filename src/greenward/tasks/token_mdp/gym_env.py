"""Offers the token MDP by gymnasium's interfaces: importing this module registers `greenward/TokenMDP-v0`.

`gymnasium.make("greenward/TokenMDP-v0", problems="classic_training")` makes one environment, `make_vec` many
side by side, which are graded together. `info["action_mask"]` are the legal actions, and `info["reason"]`
says why an episode is over. An illegal action changes nothing but costs a step (`info["illegal_action"]`);
with `illegal_actions="error"` it raises. Where no action is legal, `info["reason"]` is `no legal action`.
`render()` shows the code so far and what its tests gave. Programs run in the sandbox, never in this process.

    import gymnasium
    import greenward.tasks.token_mdp.gym_env  # registers the ids

    environment = gymnasium.make("greenward/TokenMDP-v0", problems="classic_training")
    observation, info = environment.reset(seed=0)
    legal = info["action_mask"].nonzero()[0]
    observation, reward, terminated, truncated, info = environment.step(legal[0])
    many = gymnasium.make_vec(
        "greenward/TokenMDP-v0", num_envs=48, vectorization_mode="vector_entry_point"
    )
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from greenward.common.errors import ConfigError
from greenward.grading.judge import Grader
from greenward.grading.verdict import Verdict
from greenward.problems.catalog import load_suite
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Limits
from greenward.tasks.token_mdp import features
from greenward.tasks.token_mdp.grammar import Vocabulary, tidied
from greenward.tasks.token_mdp.mdp import (
    ENDED,
    SHAPED,
    SUCCESS_MEMORY,
    CodeGrading,
    GradedProgram,
    TokenMDP,
    TokenSettings,
    Weights,
    Writing,
    make_program_reward,
    potential,
)

TOKEN_MDP = "greenward/TokenMDP-v0"

if TOKEN_MDP not in registration.registry:
    registration.register(
        TOKEN_MDP, entry_point=f"{__name__}:TokenMDPEnv", vector_entry_point=f"{__name__}:TokenMDPVectorEnv"
    )

_LIMITS = Limits(cpu_seconds=0.5, wall_seconds=4.0)


class TokenMDPVectorEnv(VectorEnv):
    """`num_envs` programs that are written side by side; what ends in one step is graded in one batch.

    `problems` are problems or the name of a suite; each episode has one of them at random. An episode ends
    with the token `<end>`, at the step limit (`truncated`), or where no action is legal. An illegal action
    changes nothing but costs a step, with `info["illegal_action"]`; with `illegal_actions="error"` it raises
    `ConfigError`. `gamma` is the discount for which the shaping by progress is neutral. With
    `test_when="whole"` the tests run whenever the program is whole, not at its end alone, and the observation
    tells how many passed. `writings` are the programs. `success` is the share of the newest episodes of each
    problem that passed, for which `reward="curriculum"` lets partial credit shrink.
    """

    metadata: ClassVar = {"render_modes": ["ansi"], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        *,
        problems: str | Sequence[Problem] = "classic_training",
        vocab_size: int | None = None,
        max_steps: int = 50,
        grammar_mask: bool = True,
        delete: bool = True,
        reward: str = "code_quality",
        weights: Weights | None = None,
        gamma: float = 0.99,
        test_when: str = "end",
        illegal_actions: str = "skip",
        grader: Grader | None = None,
        render_mode: str | None = None,
    ) -> None:
        if illegal_actions not in ("skip", "error") or test_when not in ("end", "whole"):
            raise ConfigError(
                "expected illegal_actions skip or error and test_when end or whole, "
                f"found {illegal_actions!r} and {test_when!r}."
            )
        weights = weights or Weights()
        loaded = load_suite(problems) if isinstance(problems, str) else problems
        vocabulary = Vocabulary() if vocab_size is None else Vocabulary(vocab_size)
        settings = TokenSettings(max_steps, grammar_mask, delete, test_whole=test_when == "whole")
        self.mdp = TokenMDP(list(loaded), vocabulary, settings)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (features.SIZE,), np.float32)
        self.single_action_space = spaces.Discrete(len(vocabulary))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._owned = Grader(_LIMITS) if grader is None else None
        self._grading = CodeGrading(grader or self._owned)  # type: ignore[arg-type]
        self._reward = make_program_reward(reward, weights, self._grading.grader)
        self._progress, self._gamma = weights.progress if reward in SHAPED else 0.0, gamma
        self.success = dict.fromkeys((one.task_id for one in self.mdp.problems), 0.0)
        self._raises = illegal_actions == "error"
        self.writings: list[Writing] = []
        self._over = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode in each environment; `options["task_id"]` names the problem of all."""
        super().reset(seed=seed)
        asked = (options or {}).get("task_id")
        if asked is not None and asked not in self.success:
            raise ConfigError(f"there is no problem {asked!r}; there are {', '.join(self.success)}.")
        self._asked = asked
        self.writings = [self._begin() for _ in range(self.num_envs)]
        self._over[:] = False
        return self._observations(), self._info()

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards = np.zeros(self.num_envs)
        illegal = np.zeros(self.num_envs, bool)
        tested: list[int] = []
        begun = self._over.copy()  # gymnasium's NEXT_STEP: the step after an end begins an episode
        for place, action in enumerate(np.asarray(actions, np.int64).tolist()):
            if begun[place]:
                self.writings[place] = self._begin()
                continue
            writing = self.writings[place]
            before = potential(writing)
            illegal[place] = not (0 <= action < len(self.mdp.vocabulary) and writing.legal_V[action])
            if illegal[place] and self._raises:
                written = " ".join(self.mdp.vocabulary.lexemes[token] for token in writing.tokens)
                raise ConfigError(
                    f"action {action} is illegal after {written or 'nothing'}.",
                    remedy='Choose among info["action_mask"], or set illegal_actions="skip".',
                )
            writing.skip() if illegal[place] else writing.act(action)
            rewards[place] = self._progress * (self._gamma * potential(writing) - before)
            if writing.outcome or (self.mdp.settings.test_whole and writing.complete):
                tested.append(place)
        verdicts = self._grade(tested, rewards)
        self._over = np.array([bool(one.outcome) for one in self.writings])
        truncated = np.array([one.outcome not in ("", ENDED) for one in self.writings])
        info = self._info() | {"illegal_action": illegal, "_illegal_action": illegal}
        if verdicts:
            ended = [verdicts.get(place) for place in range(self.num_envs)]
            info["passed"] = np.array([one is not None and one.passed for one in ended])
            info["_passed"] = np.array([one is not None for one in ended])
        return self._observations(), rewards, self._over & ~truncated, truncated, info

    def render(self) -> tuple[str, ...]:
        """The code of each environment so far, with what its tests gave."""
        return tuple(
            f"# {one.one.problem.prompt}\n{one.code}"
            + ("# not tested yet" if one.tested is None else f"# {one.tested:.0%} of the tests passed")
            for one in self.writings
        )

    def close_extras(self, **kwargs: Any) -> None:
        """End the sandbox, if it belongs to these environments."""
        if self._owned is not None:
            self._owned.close()

    def _begin(self) -> Writing:
        if self._asked is not None:
            return self.mdp.start(next(one for one in self.mdp.problems if one.task_id == self._asked))
        return self.mdp.start(self.mdp.problems[int(self.np_random.integers(len(self.mdp.problems)))])

    def _grade(self, places: Sequence[int], rewards: np.ndarray) -> dict[int, Verdict]:
        """Test these programs; those whose episode is over earn their reward."""
        written = [self.writings[place] for place in places]
        codes = [tidied(one.code) for one in written]
        verdicts = self._grading([(one.one.problem, code) for one, code in zip(written, codes, strict=True)])
        levels = [self.success[one.one.task_id] for one in written]
        programs = list(map(GradedProgram, written, codes, verdicts, levels))
        scores = self._reward(programs) if programs else []
        for place, one, verdict, (total, _) in zip(places, written, verdicts, scores, strict=True):
            one.tested = verdict.fraction_passed
            if one.outcome:
                rewards[place] += total
                task = one.one.task_id
                self.success[task] += (1 - SUCCESS_MEMORY) * (verdict.passed - self.success[task])
        return dict(zip(places, verdicts, strict=True))

    def _observations(self) -> np.ndarray:
        return np.stack([one.observation for one in self.writings])

    def _info(self) -> dict[str, Any]:
        info = {
            "action_mask": np.stack([one.legal_V for one in self.writings]).astype(np.int8),
            "task_id": np.array([one.one.task_id for one in self.writings], dtype=object),
            "reason": np.array([one.outcome for one in self.writings], dtype=object),
        }
        return info | {f"_{name}": np.ones(self.num_envs, bool) for name in info}


class TokenMDPEnv(gymnasium.Env):
    """One environment, with the arguments of `TokenMDPVectorEnv`."""

    metadata: ClassVar = {"render_modes": ["ansi"]}

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        self.render_mode = render_mode
        self.many = TokenMDPVectorEnv(1, **options)
        self.mdp = self.many.mdp
        self.observation_space = self.many.single_observation_space
        self.action_space = self.many.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        observations, info = self.many.reset(seed=seed, options=options)
        return observations[0], _first(info)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observations, rewards, terminated, truncated, info = self.many.step(np.array([action]))
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _first(info)

    def render(self) -> str:
        return self.many.render()[0]

    def close(self) -> None:
        self.many.close()


def _first(info: dict[str, Any]) -> dict[str, Any]:
    return {
        name: values[0] for name, values in info.items() if not name.startswith("_") and info[f"_{name}"][0]
    }
