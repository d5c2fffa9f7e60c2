"""Puts functions of the user in the place of a loss and of advantages, and tries them before training.

A recipe names them as `module:function` under `algorithm.loss` and `algorithm.advantage`. Both are called in
this process by keyword, and get what they name. Shapes: B rows (one turn of one episode each), T completion
positions, N trajectories (all that the policy wrote in one role of an episode).

Before there is a run directory both are tried on a made-up batch, and each of these is an error that names
the function, what was expected and what was found:

- no such module or function, an argument that does not exist, a result of another shape or type, an
  exception;
- NaN or infinity in a loss, a gradient or an advantage; no gradient that reaches the policy; advantages that
  are all 0;
- a loss whose value or gradient differs between the whole batch and its single answers added up (tolerance
  0.1 %).

The trainer checks shapes and advantages at every step as well.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from greenward.common.errors import ConfigError, GreenwardError
from greenward.config.sections import PolicyGradientConfig
from greenward.grading.user_rewards import Parameters, Refused, load_function, source_of
from greenward.models.scoring import TokenScores
from greenward.rollouts.protocols import Episode, StopReason, Turn
from greenward.training.advantages import Advantages, Estimator, per_token, role_turns, zeros
from greenward.training.batch import Batch, MicroBatch, Row
from greenward.training.losses import Objective, policy_loss


@dataclass(frozen=True)
class OwnFunction:
    """The function `name` under a key of the recipe.

    `source` is the text that a resumed run must find again (`source_of`).
    """

    key: str
    name: str
    function: Callable[..., Any]
    source: str

    @classmethod
    def find(cls, key: str, name: str, given: Mapping[str, Callable[..., Any]]) -> OwnFunction:
        """The function of this name in `given`, or imported from the current folder or what is installed.

        Raises `ConfigError` for what cannot be imported, is no function, or has no source.
        """
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            function = given[name] if name in given else load_function(name)
        except Refused as refusal:
            raise ConfigError(f"{key}: {name}: {refusal.args[0]}", remedy=refusal.args[1]) from None
        try:
            if not inspect.isfunction(function):
                raise TypeError(f"it is a {type(function).__name__}")
            source = source_of(function)
        except (OSError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{key}: {name}: expected a function whose source is kept with the run; {error}.",
                remedy="Define it by def in a file or in a cell of a notebook.",
            ) from None
        return cls(key, name, function, source)

    def __call__(self, **given: Any) -> Any:
        """What the function returns for those of the values `given` that it names.

        Raises `ConfigError` for a parameter that nothing fills and, with file and line, for what it raises.
        """
        try:
            parameters = Parameters.of(self.function)
        except Refused as refusal:
            raise self.error(*refusal.args) from None
        if missing := [name for name in parameters.required if name not in given]:
            raise self.error(
                f"its parameter {missing[0]} is not known.", f"Name some of these: {', '.join(given)}."
            )
        try:
            return self.function(**{name: value for name, value in given.items() if parameters.take(name)})
        except (GreenwardError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            own = self.function.__code__.co_filename
            where = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == own]
            place = "".join(traceback.format_list(where[-1:])).strip()
            raise self.error(f"it raised {type(error).__name__}: {error}", place) from error

    def error(self, found: str, remedy: str) -> ConfigError:
        return ConfigError(f"{self.key}: {self.name}: {found}", remedy=remedy or None)


@dataclass(frozen=True)
class OwnLoss:
    """A loss of the user's: called as `policy_loss` calls it, it gives the share () of a micro-batch.

    Tensors (B, T) are float32, and 0 where `mask_BT` is False: B answers (one turn of one episode each), T
    completion positions.

    - `logprobs_BT`: log-probabilities of the sampled tokens, with gradient.
    - `old_logprobs_BT`: those of the trainer before the first update on this batch; equal to `logprobs_BT` in
      that update.
    - `sampler_logprobs_BT`: those that the sampler reported.
    - `ref_logprobs_BT`: those of the reference policy; None unless `algorithm.kl.coefficient` is above 0.
    - `entropy_BT`: entropy of the next-token distribution in nats, with gradient.
    - `advantages_BT`: advantages, times the weights of `algorithm.importance` where it is set.
    - `mask_BT`: True for tokens that are trained on.
    - `total_tokens`, `total_sequences`: how many the whole minibatch has.
    - `max_completion_tokens`: `sampling.max_tokens`.
    - `clip_low`, `clip_high`: those of the recipe.

    The result is a tensor of shape (): the share of this micro-batch in the loss of its minibatch, which is
    the sum over its micro-batches.
    """

    function: OwnFunction
    learns_everywhere: bool = True
    """Whether rows have a gradient whose advantages are all 0."""

    def __call__(self, **given: Any) -> Tensor:
        """Raises `ConfigError` as `OwnFunction`, and for anything but a floating-point tensor ()."""
        loss = self.function(**given)
        if not isinstance(loss, Tensor) or loss.shape != () or not loss.is_floating_point():
            found = type(loss).__name__
            if isinstance(loss, Tensor):
                found = f"a tensor {tuple(loss.shape)} of {str(loss.dtype).removeprefix('torch.')}"
            raise self.function.error(f"expected a floating-point tensor of shape (), found {found}.", _SUM)
        return loss

    def tried(self, algorithm: PolicyGradientConfig) -> OwnLoss:
        """The same, once it was called on a made-up batch, whole and in micro-batches.

        Raises `ConfigError` for a loss that is not finite, gives the policy no gradient, or depends on how
        the batch is divided.
        """
        objective = Objective.of(algorithm, kl_coefficient=0.0, entropy_coefficient=0.0, own=self)
        groups = _made_up_rows(with_reference=algorithm.kl.coefficient > 0 or algorithm.kl.measure)
        policy = {row: torch.tensor(row.turn.logprobs_T).requires_grad_() for rows in groups for row in rows}

        def gradients(parts: Sequence[MicroBatch], place: str = "") -> tuple[Tensor, Tensor]:
            """The loss and, of the log-probability of each token, its gradient."""
            losses = []
            for micro in parts:
                logprobs_BT = pad_sequence([policy[row] for row in micro.rows], batch_first=True)
                scores = TokenScores(logprobs_BT, -logprobs_BT.exp() * logprobs_BT)
                losses.append(policy_loss(scores, micro, objective).loss)
            loss = torch.stack(losses).sum()
            if not loss.requires_grad:
                raise self.function.error(f"{_MADE_UP} the policy got no gradient.", _DETACHED)
            found = torch.cat(torch.autograd.grad(loss, list(policy.values()), materialize_grads=True))
            for what, values in (
                ("it gave a loss of", loss.detach()),
                ("its gradient has an entry of", found),
            ):
                if not values.isfinite().all():
                    wrong = float(values[~values.isfinite()].flatten()[0])
                    raise self.function.error(f"{_MADE_UP} {place}{what} {wrong}.", _FINITE)
            return loss.detach(), found

        batch = _micro_batch(groups)
        loss, gradient = gradients([batch])
        if not gradient.any():
            raise self.function.error(f"{_MADE_UP} the policy got no gradient.", _DETACHED)
        single = [_micro_batch([[row]], of=groups) for rows in groups for row in rows]
        untrained = _micro_batch(groups[:1], of=groups, trained=False)
        divided = "in micro-batches, of which one has no token that is trained on, "
        sum_loss, sum_gradient = gradients([*single, untrained], divided)
        scale = float(gradient.abs().max())
        is_equal = torch.allclose(sum_gradient, gradient, rtol=1e-3, atol=1e-4 * scale)
        if not is_equal or not torch.allclose(sum_loss, loss, rtol=1e-3, atol=1e-5):
            raise self.function.error(
                f"{_MADE_UP} its loss is {float(loss):.6g} for the whole and {float(sum_loss):.6g} as the "
                f"sum over micro-batches, its largest gradient {scale:.6g} "
                f"and {float(sum_gradient.abs().max()):.6g}.",
                _SUM,
            )
        without = replace(batch, advantages_BT=torch.zeros_like(batch.advantages_BT))
        _, gradient = gradients([without], "with advantages of 0 ")
        return replace(self, learns_everywhere=bool(gradient.any()))


@dataclass(eq=False)
class OwnAdvantage(Estimator):
    """An estimator that asks a function of the user's.

    A trajectory is all that the policy wrote in one role of an episode.

    - `rewards_N`: rewards, float64.
    - `groups_N`: the number of its group: equal where the prompt and the role are.
    - `lengths_N`: tokens T that the policy wrote.
    - `episodes_N`: each one's `Episode` (`greenward.rollouts.protocols`): verdict, terms of the reward, turns
      with their tokens.

    The result is a list, an array or a tensor of N advantages: numbers, which hold for every token, or arrays
    (T,). Episodes whose grading was lost to the infrastructure have no trajectory, so that a group may have
    one alone.
    """

    function: OwnFunction

    def __call__(self, episodes: Sequence[Episode]) -> Advantages:
        """Raises `ConfigError` as `OwnFunction`, and for what are not N finite advantages."""
        places, advantages = list(role_turns(episodes)), zeros(episodes)
        if not places:
            return Advantages(advantages)
        numbers: dict[tuple[int, str], int] = {}
        groups = [(episodes[one.index].group_id, one.role) for one in places]
        found = self.function(
            rewards_N=np.array([one.reward for one in places], dtype=np.float64),
            groups_N=np.array([numbers.setdefault(group, len(numbers)) for group in groups]),
            lengths_N=np.array([one.tokens for one in places]),
            episodes_N=[episodes[one.index] for one in places],
        )
        try:
            values = [np.asarray(value, dtype=np.float32) for value in found]
        except (TypeError, ValueError, RuntimeError) as error:
            raise self.function.error(f"expected a list or an array of numbers; {error}.", _N) from None
        if len(values) != len(places):
            raise self.function.error(f"expected {len(places)} advantages, found {len(values)}.", _N)
        for number, (value, place) in enumerate(zip(values, places, strict=True)):
            size, reward = groups.count(groups[number]), f"{place.reward:g}"
            of = f"of trajectory {number} (reward {reward}, {place.tokens} tokens, in a group of {size})"
            if value.shape not in ((), (place.tokens,)):
                raise self.function.error(f"the advantage {of} has the shape {value.shape}.", _N)
            if not np.isfinite(value).all():
                wrong = value[~np.isfinite(value)].flat[0]
                raise self.function.error(f"the advantage {of} is {wrong}.", _FINITE)
            place.scatter(np.broadcast_to(value, place.tokens), advantages)
        return Advantages(advantages)

    def tried(self) -> OwnAdvantage:
        """The same, once it was called on made-up episodes.

        Raises `ConfigError` where it fails on them, or where all advantages are 0.
        """
        found = self(_made_up_episodes()).advantages
        if not any(each_T.any() for turns in found for each_T in turns):
            raise self.function.error(f"{_MADE_UP} all advantages are 0.", "Compare rewards that differ.")
        return self


@dataclass(frozen=True)
class OwnMathematics:
    """The loss and the advantages of the user's own, where a recipe names such, each tried."""

    loss: OwnLoss | None = None
    advantage: OwnAdvantage | None = None

    @classmethod
    def of(cls, algorithm: Any, given: Mapping[str, Callable[..., Any]]) -> OwnMathematics:
        """Those of a recipe's algorithm; `given` has the caller's functions. Raises `ConfigError`."""
        loss = advantage = None
        if ":" in (name := getattr(algorithm, "loss", "")):
            loss = OwnLoss(OwnFunction.find("algorithm.loss", name, given)).tried(algorithm)
        if ":" in (name := getattr(algorithm, "advantage", "")):
            advantage = OwnAdvantage(OwnFunction.find("algorithm.advantage", name, given)).tried()
        return cls(loss, advantage)

    @property
    def sources(self) -> dict[str, str]:
        """The source of each, by the last part of its key."""
        return {
            one.function.key.rpartition(".")[2]: one.function.source
            for one in (self.loss, self.advantage)
            if one is not None
        }


_MADE_UP = "on a made-up batch, before training,"
_SUM = (
    "A minibatch is divided into micro-batches of any size, whose losses are added up: return a sum over "
    "values (B, T), divided by total_tokens or total_sequences. docs/own_algorithm.md has examples."
)
_FINITE = "Avoid 0/0, log 0 and exp of large numbers, as by a small number in the divisor or by clamp."
_DETACHED = "Compute the loss from logprobs_BT (or entropy_BT) without detach, item, numpy and no_grad."
_N = "Return one number for each trajectory, or one array with a number for each token that the policy wrote."


def _made_up_episodes() -> list[Episode]:
    """Groups with different and with equal rewards, and one of a single episode.

    In most turns the second token is not the policy's.
    """
    rng = np.random.default_rng(0)
    episodes = []
    for group, rewards in enumerate(((0.0, 1.0, 0.25, 1.0), (1.0, 1.0), (0.5,), (0.0, 2.0))):
        for reward in rewards:
            length = int(rng.integers(3, 8))
            turn = Turn(
                role="programmer",
                prompt_ids=(1, 2, 3 + group),
                completion_ids=rng.integers(1, 9, length),
                logprobs_T=-rng.uniform(0.1, 2.0, length).astype(np.float32),
                policy_wrote_T=np.arange(length) != (1 if group else length),
                stop_reason=StopReason.END,
                policy_version=0,
            )
            outcome = "passed" if reward >= 1 else "failed"
            episodes.append(
                Episode((turn,), {"programmer": reward}, group, f"made up {group}", outcome, reward >= 1)
            )
    return episodes


def _made_up_rows(*, with_reference: bool) -> list[list[Row]]:
    """The rows of those episodes with advantages of both signs; every second one is on policy."""
    rng, episodes = np.random.default_rng(1), _made_up_episodes()
    advantages = per_token(episodes, lambda *_: float(rng.normal()))
    groups = Batch.of(episodes, Advantages(advantages)).groups
    for rows in groups:
        for number, row in enumerate(rows):
            logprobs_T = row.turn.logprobs_T
            row.old_logprobs_T = logprobs_T - np.float32(0.1 * (number % 2)) * rng.random(
                len(logprobs_T), dtype=np.float32
            )
            row.ref_logprobs_T = logprobs_T - np.float32(0.1) if with_reference else None
    return [list(rows) for rows in groups]


def _micro_batch(
    groups: Sequence[Sequence[Row]], *, of: Sequence[Sequence[Row]] | None = None, trained: bool = True
) -> MicroBatch:
    """These rows, with the totals of the groups `of`."""
    rows = [row for one in of or groups for row in one]
    return MicroBatch.build(
        groups,
        torch.device("cpu"),
        trained,
        total_sequences=len(rows),
        total_tokens=sum(row.turn.policy_tokens for row in rows),
        max_completion_tokens=8,
    )
