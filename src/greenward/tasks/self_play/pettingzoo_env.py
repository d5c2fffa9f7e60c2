"""Games as environments of PettingZoo (Terry et al. 2021, arXiv 2009.14471): one agent acts at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from greenward.common.errors import ConfigError
from greenward.tasks.self_play.games import Game, checked_returns

try:
    from gymnasium.spaces import Box, Dict, Discrete
    from pettingzoo import AECEnv
    from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper
except ImportError as error:
    raise ConfigError(
        f"games as environments need PettingZoo ({error}).", remedy="pip install 'greenward[games]'"
    ) from error


def pettingzoo_env(game: Game, *, max_bytes: int = 256) -> AECEnv:
    """The game with PettingZoo's checks of actions and of the order of calls.

    `max_bytes` bounds an observation. Raises `ConfigError` for a game that does not list its actions.
    """
    return OrderEnforcingWrapper(AssertOutOfBoundsWrapper(GameAECEnv(game, max_bytes=max_bytes)))


class GameAECEnv(AECEnv):
    """A game whose agents are its roles; action number i is `game.actions[i]`.

    An observation has the text as UTF-8 bytes, 0 after its end (`observation`, shape (max_bytes,), uint8),
    and 1 for each legal action of the agent to move (`action_mask`, shape (actions,), int8). The text itself
    is `infos[agent]["text"]`; in the observation a longer one is cut. An illegal action loses `game.forfeit`.
    """

    def __init__(self, game: Game, *, max_bytes: int) -> None:
        super().__init__()
        if not game.actions:
            raise ConfigError(f"{game.name} does not list its actions, so they cannot be numbered.")
        self.metadata = {"name": game.name, "render_modes": [], "is_parallelizable": False}
        self.possible_agents = list(game.roles)
        self.action_spaces = {role: Discrete(len(game.actions)) for role in game.roles}
        self.observation_spaces = {
            role: Dict(
                {
                    "observation": Box(0, 255, (max_bytes,), np.uint8),
                    "action_mask": Box(0, 1, (len(game.actions),), np.int8),
                }
            )
            for role in game.roles
        }
        self._game = game
        self._max_bytes = max_bytes
        self._rng = random.Random()
        self._state: Any = None

    def action_space(self, agent: str) -> Discrete:
        return self.action_spaces[agent]

    def observation_space(self, agent: str) -> Dict:
        return self.observation_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a game; without `seed` the random numbers of the one before go on."""
        if seed is not None:
            self._rng = random.Random(seed)
        self._state = self._game.start(self._rng)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._go_on()

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        assert action is not None
        game, player = self._game, self.possible_agents.index(agent)
        self._cumulative_rewards[agent] = 0.0
        name = game.actions[int(action)]
        returns: tuple[float, float] | None = None
        if name in game.legal_actions(self._state):
            self._state = game.step(self._state, name)
            if game.player(self._state) is None:
                returns = checked_returns(game, self._state)
        else:
            returns = (-game.forfeit, game.forfeit) if player == 0 else (game.forfeit, -game.forfeit)
        if returns is not None:
            self.rewards = dict(zip(self.possible_agents, returns, strict=True))
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self._go_on()

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        data = self.infos[agent]["text"].encode()[: self._max_bytes]
        text = np.frombuffer(data.ljust(self._max_bytes, b"\0"), np.uint8)
        to_move = agent == self.agent_selection and not self.terminations[agent]
        legal = self._game.legal_actions(self._state) if to_move else ()
        mask = np.array([action in legal for action in self._game.actions], np.int8)
        return {"observation": text, "action_mask": mask}

    def _go_on(self) -> None:
        """Choose the agent to move; once the game is over each agent is asked once more."""
        self.agent_selection = self.possible_agents[self._game.player(self._state) or 0]
        self.infos = {
            role: {"text": self._game.observation(self._state, number)}
            for number, role in enumerate(self.possible_agents)
        }
