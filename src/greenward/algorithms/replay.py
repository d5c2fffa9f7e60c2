"""Replay memory of Q-learning: transitions, n-step returns, uniform and prioritised draws.

Shape suffixes: B transitions of a batch, D entries of an observation, A actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from greenward.errors import CheckpointError

PRIORITY_FLOOR = 1e-3
"""Added to every TD error, so that no transition is never drawn."""


class Transition(NamedTuple):
    """What an update learns from: Q(observation, action) should be reward + discount · max Q(next).

    `discount` is gamma to the number of rewards in `reward`, and 0 where the episode ended. `next_legal` are
    the actions that are legal next.
    """

    observation: np.ndarray
    action: int
    reward: float
    next_observation: np.ndarray
    next_legal: np.ndarray
    discount: float


class NStepWindow:
    """Turns the steps of one running episode into n-step transitions (Sutton and Barto, 2018, chapter 7)."""

    def __init__(self, n: int, gamma: float) -> None:
        self._n, self._gamma = n, gamma
        self._steps: deque[tuple[np.ndarray, int, float]] = deque()

    def push(
        self,
        observation: np.ndarray,
        action: int,
        reward: float,
        next_observation: np.ndarray,
        next_legal: np.ndarray,
        *,
        terminated: bool,
        truncated: bool = False,
    ) -> list[Transition]:
        """The transitions that the step completes: at the end of an episode, all that were waiting.

        A truncated episode could have gone on, so its last state still has a value.
        """
        self._steps.append((observation, action, reward))
        complete = []
        while self._steps and (terminated or truncated or len(self._steps) == self._n):
            ahead = sum(self._gamma**k * step[2] for k, step in enumerate(self._steps))
            discount = 0.0 if terminated else self._gamma ** len(self._steps)
            first, chosen, _ = self._steps.popleft()
            complete.append(Transition(first, chosen, ahead, next_observation, next_legal, discount))
        return complete


class SumTree:
    """Draws indices in proportion to their weights, in logarithmic time (arXiv 1511.05952, appendix B).

    Leaf i is node `size + i` of a complete binary tree whose inner nodes hold the sum of their two children.
    """

    def __init__(self, capacity: int) -> None:
        self._size = 1 << max(0, capacity - 1).bit_length()
        self._nodes = np.zeros(2 * self._size)

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    def weights(self, indices: np.ndarray) -> np.ndarray:
        return self._nodes[self._size + indices]

    def set(self, indices: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights of leaves; of an index that occurs twice, the last one counts."""
        nodes = self._size + indices
        self._nodes[nodes] = weights
        while (nodes := np.unique(nodes // 2))[0] > 0:
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, points: np.ndarray) -> np.ndarray:
        """The leaf into which each point of [0, total) falls when the weights are laid end to end."""
        nodes = np.ones(len(points), np.int64)
        points = points.copy()
        while nodes[0] < self._size:  # all are at one depth
            left = self._nodes[2 * nodes]
            # Never into an empty half, where rounding would lead.
            right = (points >= left) & (self._nodes[2 * nodes + 1] > 0)
            points -= np.where(right, left, 0.0)
            nodes = 2 * nodes + right
        return nodes - self._size


@dataclass(frozen=True)
class Batch:
    """Transitions as tensors. `weights_B` correct for the draw, and `indices` say where they lie.

    The last `successes` rows are of episodes that succeeded and of demonstrations.
    """

    observations_BD: torch.Tensor
    actions_B: torch.Tensor
    rewards_B: torch.Tensor
    next_observations_BD: torch.Tensor
    next_legal_BA: torch.Tensor
    discounts_B: torch.Tensor
    weights_B: torch.Tensor
    indices: np.ndarray
    ages: np.ndarray
    successes: int = 0

    def joined(self, other: Batch) -> Batch:
        """Both batches as one; the other one holds successes. Indices and ages are those of this one."""
        own: dict[str, Any] = {
            name: torch.cat([one, vars(other)[name]])
            for name, one in vars(self).items()
            if isinstance(one, torch.Tensor)
        }
        return replace(self, **own, successes=self.successes + len(other.indices))


class ReplayBuffer:
    """The newest `capacity` transitions, drawn uniformly or by priority.

    A new transition has the highest priority seen so far. Observations are kept as `dtype`, legal actions as
    bits. `ages` of a batch are the numbers of transitions that came after each.
    """

    def __init__(
        self,
        capacity: int,
        observation_size: int,
        actions: int,
        *,
        priority_exponent: float = 0.0,
        dtype: Any = np.float32,
    ) -> None:
        self.capacity, self.actions = capacity, actions
        self.added = 0
        self._exponent = priority_exponent
        self._highest = 1.0
        self._tree = SumTree(capacity)
        self._arrays = {  # in the order of `Transition`
            "observations": np.zeros((capacity, observation_size), dtype),
            "actions": np.zeros(capacity, np.int64),
            "rewards": np.zeros(capacity, np.float32),
            "next_observations": np.zeros((capacity, observation_size), dtype),
            "next_legal": np.zeros((capacity, -(-actions // 8)), np.uint8),
            "discounts": np.zeros(capacity, np.float32),
        }
        for array in self._arrays.values():
            array.fill(0)  # takes the memory now: it does not grow later, and too little of it shows at once

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def extend(self, transitions: Sequence[Transition]) -> None:
        """Add transitions in order, over the oldest ones where the memory is full."""
        transitions = transitions[-self.capacity :]
        if not transitions:
            return
        places = (self.added + np.arange(len(transitions))) % self.capacity
        rows = Transition(*zip(*transitions, strict=True))
        rows = rows._replace(next_legal=np.packbits(np.asarray(rows.next_legal, bool), axis=1))
        for array, values in zip(self._arrays.values(), rows, strict=True):
            array[places] = values
        self._tree.set(places, np.full(len(places), self._highest))
        self.added += len(transitions)

    def sample(self, size: int, importance: float, rng: np.random.Generator) -> Batch:
        """A batch, one draw from each of `size` equal parts of the total priority (stratified).

        The weights are (N · P(i))^-importance, divided by the largest of the batch.
        """
        points = (np.arange(size) + rng.random(size)) / size * self._tree.total
        indices = self._tree.find(points)
        chances = self._tree.weights(indices) / self._tree.total
        weights = (len(self) * chances) ** -importance
        rows = {name: values[indices] for name, values in self._arrays.items()}
        legal = np.unpackbits(rows["next_legal"], axis=1, count=self.actions)
        tensor = torch.from_numpy
        return Batch(
            tensor(rows["observations"]).float(),
            tensor(rows["actions"]),
            tensor(rows["rewards"]),
            tensor(rows["next_observations"]).float(),
            tensor(legal).bool(),
            tensor(rows["discounts"]),
            tensor(weights / weights.max()).float(),
            indices,
            (self.added - 1 - indices) % self.capacity,
        )

    def update_priorities(self, indices: np.ndarray, td_errors: np.ndarray) -> None:
        """Set the priorities of drawn transitions from their newest TD errors."""
        if self._exponent == 0.0 or not len(indices):
            return
        priorities = (np.abs(td_errors) + PRIORITY_FLOOR) ** self._exponent
        self._tree.set(indices, priorities)
        self._highest = max(self._highest, float(priorities.max()))

    def state_dict(self) -> dict[str, Any]:
        kept = len(self)
        tensors = {name: torch.from_numpy(values[:kept].copy()) for name, values in self._arrays.items()}
        priorities = torch.from_numpy(self._tree.weights(np.arange(kept)))
        return {**tensors, "priorities": priorities, "highest": self._highest, "added": self.added}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`. Raises `CheckpointError` where it is of another shape."""
        for name, values in self._arrays.items():
            saved = state[name].numpy()
            if saved.shape[1:] != values.shape[1:] or len(saved) != min(state["added"], self.capacity):
                raise CheckpointError(
                    f"replay memory: {name} holds {saved.shape}, which does not fit {values.shape}.",
                    remedy="Resume with the vocabulary and buffer_capacity of the run.",
                )
            values[: len(saved)] = saved
        self.added, self._highest = state["added"], state["highest"]
        if self.added:
            self._tree.set(np.arange(len(self)), state["priorities"].numpy())
