"""Implements deep Q-learning: replay memory, network, target, agent, and the loop over an environment.

    y = r_1 + γ r_2 + … + γ^(n-1) r_n + γ^n max_a Q_target(s_n, a)        loss = Huber(y - Q(s, a))

It combines DQN (Mnih et al., Nature 518, 2015), Double (van Hasselt et al., arXiv 1509.06461), dueling (Wang
et al., 1511.06581), prioritised replay (Schaul et al., 1511.05952) and n-step returns, as in Rainbow (Hessel
et al., 1710.02298). `DQNAlgorithmConfig` documents every setting. Which actions are legal is part of every
observation: neither exploration nor a maximum looks at others.

- Replay memory (`buffer_capacity`): consecutive states resemble each other.
- Prioritised replay (`prioritized`): what is still wrong is drawn more often, and weighted down in turn.
- Target network (`target_update_interval`, or `tau`): the aim must not move with each update.
- Double (`double`): a maximum over noisy values is too high; one network chooses, the other values.
- Dueling (`dueling`): the worth of the state is learned once for all its tokens.
- n-step (`n_step`): the reward at the end reaches the beginning n tokens at a time.
- Demonstrations (`demonstration_share`, `pretraining_updates`, `problems.generated`,
  `problems.compositions`): small generated functions are in each batch, after updates on them alone (DQfD,
  1704.03732).
- Practice (`training.practice_per_step`, `training.practice_rounds`, `exploration.practice_epsilon`): the
  agent also writes generated functions itself, the short ones first.
- Hidden words (`word_dropout`): some rows of an update hide the docstring, so that tests are read, too.
- Margin (`success_margin`): tokens of demonstrations and successes should be worth more than all others
  (DQfD).

Where training does not work, look at metrics and change settings as follows:

- The reward stays low (`programs/unique`, `epsilon`, `problems/solved`): slower `epsilon_decay`, larger
  `exploration.bonus`, more partial credit.
- Programs repeat one construct (`q/overestimation`): `algorithm.double=true`, a smaller
  `environment.max_steps`.
- A problem is solved and lost again (`pass_rate/greedy`): `algorithm.success_margin=0.5`, more
  `training.updates_per_step`.
- One constant answers everything (`programs/most_common`): tests of which a constant passes less than half.
- It is slow (`time/sampling`, `time/grading`, `time/update`): `sandbox.cpu_seconds` (0.2 is enough), fewer
  updates, a smaller vocabulary.
- Memory grows (`replay/size`, `perf/rss_mb`): a smaller `algorithm.buffer_capacity`.

Shape suffixes: B transitions or environments, D entries of an observation, A actions, H hidden size.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from greenward.common.errors import CheckpointError, GreenwardError
from greenward.common.files import expecting
from greenward.runs.checkpoints import LAST, find_checkpoint
from greenward.runs.reading import CHECKPOINTS
from greenward.tasks.token_mdp import features
from greenward.tasks.token_mdp.features import HASHED_WORDS
from greenward.training.loop import STATE_FILE, load_trainer_state
from greenward.training.protocols import Stateful

if TYPE_CHECKING:
    from greenward.tasks.token_mdp.task import DQNAlgorithmConfig

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
        indices = self._tree.find((np.arange(size) + rng.random(size)) / size * self._tree.total)
        weights = (len(self) * (self._tree.weights(indices) / self._tree.total)) ** -importance
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


WEIGHTS = "q_network.pt"


class QNetwork(nn.Module):
    """Q(s, ·) for all actions: observation -> H -> H -> actions, ReLU and dropout after each hidden layer.

    The dueling form adds a value V(s) and advantages A(s, ·) whose mean over all actions is 0 (equation 9 of
    arXiv 1511.06581). `encoder` maps an observation to the vector that the first layer reads.
    """

    def __init__(
        self, inputs: int, actions: int, config: DQNAlgorithmConfig, encoder: nn.Module | None = None
    ) -> None:
        super().__init__()
        hidden = config.hidden_dim
        self.encoder = encoder or nn.Identity()
        self.body = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(config.dropout),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(config.dropout),
        )  # fmt: skip
        self.advantage = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1) if config.dueling else None

    def forward(self, observations_BD: Tensor) -> Tensor:
        hidden_BH = self.body(self.encoder(observations_BD))
        advantages_BA = self.advantage(hidden_BH)
        if self.value is None:
            return advantages_BA
        return self.value(hidden_BH) + advantages_BA - advantages_BA.mean(dim=1, keepdim=True)


class TokenEncoder(nn.Module):
    """From the numbers of words and tokens to the entries of a hashed observation.

    It is the encoder of `environment.embedding: learned`, trained with the Q-network. Words are averaged;
    the newest tokens go through a recurrent layer. What is no number stays as it is.
    """

    def __init__(self, tokens: int, *, width: int = 32, newest: int = 32) -> None:
        super().__init__()
        self.newest = newest
        self.words = nn.EmbeddingBag(HASHED_WORDS + 1, features.WORDS, mode="mean", padding_idx=0)
        self.tokens = nn.Embedding(tokens + 1, width, padding_idx=0)
        self.reader = nn.GRU(width, features.CODE, batch_first=True)

    def forward(self, observations_BD: Tensor) -> Tensor:
        problem, code = features.PROBLEM, features.PROBLEM + features.CODE
        words_B = self.words(observations_BD[:, : features.WORDS].long())
        _, read_1BC = self.reader(self.tokens(observations_BD[:, code - self.newest : code].long()))
        facts_B = observations_BD[:, features.WORDS : problem]
        return torch.cat([words_B, facts_B, read_1BC[0], observations_BD[:, code:]], dim=1)


def q_targets(
    rewards_B: Tensor,
    discounts_B: Tensor,
    online_BA: Tensor,
    target_BA: Tensor,
    legal_BA: Tensor,
    *,
    double: bool,
) -> Tensor:
    """What Q(s, a) should be. `online_BA` and `target_BA` are both networks' values of the next state.

    The target network values the best legal action: its own best one, or with `double` the online network's,
    which takes away the upward bias of a maximum over noise. Where nothing is legal next, or the episode
    ended (discount 0), the rewards alone remain.
    """
    chooser_BA = online_BA if double else target_BA
    chosen_B1 = chooser_BA.masked_fill(~legal_BA, -torch.inf).argmax(dim=1, keepdim=True)
    values_B = target_BA.gather(1, chosen_B1).squeeze(1)
    goes_on_B = legal_BA.any(dim=1) & (discounts_B > 0)
    return rewards_B + torch.where(goes_on_B, discounts_B * values_B, torch.zeros_like(values_B))


def margin_loss(q_BA: Tensor, actions_B: Tensor, margin: float) -> Tensor:
    """How far the given actions are from being worth `margin` more than all others (DQfD, equation 2)."""
    others_BA = q_BA + margin * (1.0 - nn.functional.one_hot(actions_B, q_BA.shape[1]))
    return (others_BA.max(dim=1).values - q_BA.gather(1, actions_B[:, None]).squeeze(1)).mean()


class DQNAgent(Stateful):
    """A Q-network with its target, its optimizer and its memory of transitions.

    `version` counts the updates behind the weights. `dtype` is that of the observations in memory.
    """

    _saved: ClassVar = {name: name for name in ("target", "optimizer", "memory", "successes", "version")}

    def __init__(
        self,
        observation_size: int,
        actions: int,
        config: DQNAlgorithmConfig,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        encoder: Callable[[], nn.Module] | None = None,
        dtype: Any = np.float32,
    ) -> None:
        torch.manual_seed(seed)
        self.config = config
        self.device = torch.device(device)
        self.actions = actions
        self.online, self.target = (
            QNetwork(observation_size, actions, config, encoder and encoder()).to(self.device)
            for _ in range(2)
        )
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False).eval()
        self.online.eval()
        self.optimizer = torch.optim.AdamW(
            self.online.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self._buffer = partial(ReplayBuffer, observation_size=observation_size, actions=actions, dtype=dtype)
        exponent = config.priority_exponent if config.prioritized else 0.0
        self.memory = self._buffer(config.buffer_capacity, priority_exponent=exponent)
        self.successes = self._buffer(max(1, config.buffer_capacity // 10) if config.success_share else 1)
        self.demonstrations: ReplayBuffer | None = None
        self.version = 0

    def demonstrate(self, transitions: Sequence[Transition]) -> None:
        """Keep these transitions for good; each batch has its `demonstration_share` of them (DQfD)."""
        self.demonstrations = self._buffer(len(transitions))
        self.demonstrations.extend(transitions)
        self.memory.extend(transitions)

    def remember(self, transitions: Sequence[Transition], *, success: bool = False) -> None:
        """Keep the transitions of an episode; of one that succeeded, for `success_share` as well."""
        self.memory.extend(transitions)
        if success and self.config.success_share:
            self.successes.extend(transitions)

    def draw(self, rng: np.random.Generator) -> Batch:
        """A batch of the memory, with its shares of demonstrations and, once there are any, successes."""
        config = self.config
        exponent = config.importance(self.version) if config.prioritized else 0.0
        kept = round(config.batch_size * config.success_share) if len(self.successes) else 0
        shown = round(config.batch_size * config.demonstration_share) if self.demonstrations else 0
        batch = self.memory.sample(config.batch_size - kept - shown, exponent, rng)
        for source, size in ((self.successes, kept), (self.demonstrations, shown)):
            if source and size:
                batch = batch.joined(source.sample(size, 0.0, rng))
        return batch

    def demonstrated(self, rng: np.random.Generator) -> Batch:
        """A batch of demonstrations alone, from which DQfD learns before the first episode."""
        assert self.demonstrations is not None
        size = self.config.batch_size
        batch = self.demonstrations.sample(size, 0.0, rng)
        return replace(batch, indices=batch.indices[:0], successes=size)  # none of it lies in the memory

    @torch.no_grad()
    def q_values(self, observations_BD: np.ndarray) -> np.ndarray:
        """Q of every action, of shape (B, A)."""
        observations = torch.as_tensor(observations_BD, dtype=torch.float32, device=self.device)
        return self.online(observations).cpu().numpy()

    def act(
        self,
        observations_BD: np.ndarray,
        legal_BA: np.ndarray,
        epsilon: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> np.ndarray:
        """The best legal action of each row or, with probability `epsilon`, any legal one."""
        actions_B = np.where(legal_BA, self.q_values(observations_BD), -np.inf).argmax(axis=1)
        if rng is not None and epsilon > 0:
            random_B = np.where(legal_BA, rng.random(legal_BA.shape), -1.0).argmax(axis=1)
            actions_B = np.where(rng.random(len(actions_B)) < epsilon, random_B, actions_B)
        return actions_B

    def learn(self, rng: np.random.Generator, batch: Batch | None = None) -> dict[str, float]:
        """One update, on a batch of the memory; what it measured, by name.

        Raises `GreenwardError` where the loss is not finite, before the weights are lost.
        """
        config = self.config
        batch = batch or self.draw(rng)
        self.online.train()
        q_BA = self.online(self._with_words_hidden(batch.observations_BD, rng).to(self.device))
        q_B = q_BA.gather(1, batch.actions_B[:, None].to(self.device)).squeeze(1)
        self.online.eval()
        with torch.no_grad():
            following_BD = batch.next_observations_BD.to(self.device)
            target_BA = self.target(following_BD)
            online_BA = self.online(following_BD) if config.double else target_BA
            targets_B = q_targets(
                batch.rewards_B.to(self.device), batch.discounts_B.to(self.device), online_BA, target_BA,
                batch.next_legal_BA.to(self.device), double=config.double,
            )  # fmt: skip
        losses_B = nn.functional.huber_loss(q_B, targets_B, reduction="none", delta=config.huber_delta)
        loss = (batch.weights_B.to(self.device) * losses_B).mean()
        if config.success_margin and batch.successes:
            own = slice(-batch.successes, None)
            loss = loss + margin_loss(q_BA[own], batch.actions_B[own].to(self.device), config.success_margin)
        if not torch.isfinite(loss):
            raise GreenwardError(
                f"the loss of update {self.version + 1} is {float(loss.detach())}: the values diverged.",
                remedy="Lower algorithm.learning_rate, or give smaller rewards; float32 holds up to 3.4e38.",
            )
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.online.parameters(), config.max_grad_norm)
        self.optimizer.step()
        self.version += 1
        if config.tau is not None or self.version % config.target_update_interval == 0:
            with torch.no_grad():
                for old, new in zip(self.target.parameters(), self.online.parameters(), strict=True):
                    old.lerp_(new, 1.0 if config.tau is None else config.tau)
        errors_B = (targets_B - q_B.detach()).cpu().numpy()
        self.memory.update_priorities(batch.indices, errors_B[: len(batch.indices)])
        return {
            "loss": float(loss.detach()),
            "grad_norm": float(norm),
            "q/mean": float(q_B.detach().mean()),
            "q/max": float(q_B.detach().max()),
            "td_error": float(np.abs(errors_B).mean()),
            "replay/age": float(batch.ages.mean()),
        }

    def _with_words_hidden(self, observations_BD: Tensor, rng: np.random.Generator) -> Tensor:
        """The observations without the words of the docstring in a share of the rows, drawn by `rng`."""
        if not self.config.word_dropout:
            return observations_BD
        shown_B = torch.from_numpy(rng.random(len(observations_BD)) >= self.config.word_dropout)
        words_BW, rest_BD = observations_BD.tensor_split([features.WORDS], dim=1)
        return torch.cat([words_BW * shown_B[:, None], rest_BD], dim=1)

    def layer_gradients(self) -> dict[str, float]:
        """The norm of the newest gradient of each layer, by name."""
        named = self.online.named_parameters()
        return {f"grad_norm/{name}": float(one.grad.norm()) for name, one in named if one.grad is not None}

    def state_dict(self) -> dict[str, Any]:
        """The weights of the online network."""
        return self.online.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the online network. Raises `CheckpointError` where layers have other sizes."""
        own = self.online.state_dict()
        for name in own.keys() | state.keys():
            found = tuple(state[name].shape) if name in state else "nothing"
            expected = tuple(own[name].shape) if name in own else "nothing"
            if found != expected:
                raise CheckpointError(
                    f"The Q-network of the checkpoint does not fit: {name} is {found}, and the recipe asks "
                    f"for {expected}.",
                    remedy="Keep vocab_size, hidden_dim, dueling and the embeddings of the run.",
                )
        self.online.load_state_dict(state)

    def training_state(self) -> dict[str, Any]:
        """What an exact resume needs besides the weights: target, optimizer, memory."""
        return super().state_dict()

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)

    def save(self, folder: Path | str) -> None:
        torch.save(self.online.state_dict(), Path(folder) / WEIGHTS)

    saves_exactly = True

    def load_weights(self, folder: Path | str) -> None:
        """Read the weights from a folder. Raises `CheckpointError` where they are missing or do not fit."""
        file = Path(folder) / WEIGHTS
        if not file.is_file():
            raise CheckpointError(f"{folder} has no {WEIGHTS}: it is no checkpoint of a Q-network.")
        with expecting(
            "the weights of a Q-network", file, CheckpointError, RuntimeError, EOFError, UnpicklingError
        ):
            self.load_state_dict(torch.load(file, map_location=self.device, weights_only=True))

    def load(self, checkpoint: Path | str) -> None:
        """Go on from any checkpoint: of this or another run, or of a run its newest one.

        Network, target, optimizer and the number of updates are taken over; the memory begins empty. Raises
        `CheckpointError` for what holds none, and for layers of other sizes.
        """
        folder = Path(checkpoint)
        folder = folder.parent if folder.name == WEIGHTS else folder
        folder = find_checkpoint(folder, LAST) if (folder / CHECKPOINTS).is_dir() else folder
        self.load_weights(folder)
        self.target.load_state_dict(self.online.state_dict())
        if (folder / STATE_FILE).is_file():
            state = load_trainer_state(folder)
            with expecting("the state of a Q-learning", folder / STATE_FILE, CheckpointError, RuntimeError):
                agent = state["trainer"]["agent"]
                self.target.load_state_dict(agent["target"])
                self.optimizer.load_state_dict(agent["optimizer"])
                self.version = int(agent["version"])


def learn_environment(
    agent: DQNAgent,
    environment: Any,
    *,
    steps: int,
    seed: int,
    train_every: int = 1,
    updates: int = 1,
    on_training: Callable[[int], bool] = lambda step: False,
) -> list[float]:
    """Q-learning in a gymnasium environment with discrete actions, for at most `steps` steps.

    After every `train_every` steps come `updates` updates. Legal actions are `info["action_mask"]`, and all
    without one. `on_training` is called with the number of steps done after each training, and ends it by
    True. Returns the return of each episode.
    """
    config, rng = agent.config, np.random.default_rng(seed)
    everything = np.ones(agent.actions, bool)
    returns: list[float] = []
    step = 0
    for episode in itertools.count():
        observation, info = environment.reset(seed=seed if episode == 0 else None)
        legal = np.asarray(info.get("action_mask", everything), bool)
        window = NStepWindow(config.n_step, config.gamma)
        total, over = 0.0, False
        while not over:
            (action,) = agent.act(observation[None], legal[None], config.epsilon(episode), rng)
            following, reward, terminated, truncated, info = environment.step(int(action))
            legal = np.asarray(info.get("action_mask", everything), bool)
            complete: list[Transition] = window.push(
                observation, int(action), float(reward), following, legal,
                terminated=terminated, truncated=truncated,
            )  # fmt: skip
            agent.remember(complete)
            observation, total, over = following, total + float(reward), terminated or truncated
            step += 1
            if step % train_every == 0 and step > config.learning_starts:
                for _ in range(updates):
                    agent.learn(rng)
                if on_training(step):
                    return returns
            if step == steps:
                return returns
        returns.append(total)
    raise AssertionError("unreachable")
