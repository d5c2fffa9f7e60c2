"""Running episodes side by side: dialogues ask for completions, and the driver batches what they ask for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Protocol

import numpy as np

from greenward.common.errors import EngineError, GreenwardError
from greenward.common.interruption import POLL_SECONDS, check
from greenward.common.seeding import step_seed
from greenward.rollouts.protocols import POLICY, Completion, Episode, RolloutEngine, SamplingParams, Turn


@dataclass(frozen=True)
class Request:
    """A completion that a dialogue needs. `prompt_ids` is everything that the role has seen so far."""

    role: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    player: str = POLICY


@dataclass(frozen=True)
class Waiting:
    """A dialogue cannot go on before `future` is done: the sandbox is at work.

    A dialogue that may have to wait before its first request says so in each run, even if `future` is done:
    the group's first random numbers depend on it.
    """

    future: Future[Any]


def turn_of(request: Request, completion: Completion) -> Turn:
    """The turn of a role that wrote one completion."""
    return Turn(
        role=request.role,
        prompt_ids=request.prompt_ids,
        completion_ids=completion.token_ids,
        logprobs_T=completion.logprobs,
        policy_wrote_T=np.ones(len(completion.token_ids), dtype=bool),
        stop_reason=completion.stop_reason,
        policy_version=completion.policy_version,
        player=request.player,
        temperature=request.params.temperature,
    )


class Dialogue(Protocol):
    """One running episode. Dialogues with the same `group_id` go on together."""

    group_id: int

    def request(self) -> Request | Waiting | None:
        """What comes next, None when the episode is over. Asking again before an answer changes nothing."""

    def respond(self, completion: Completion) -> None:
        """Take the completion that was requested."""

    def abandon(self, reason: str) -> None:
        """End without an outcome: the engine of an opponent has failed, which is no fault of the policy.

        Raises `EngineError` where there can be no opponent.
        """
        raise EngineError(reason)

    def finish(self) -> Episode:
        """The episode, once it is over."""


def run_dialogues(
    dialogues: Sequence[Dialogue],
    players: Mapping[str, RolloutEngine],
    *,
    seed: int,
    on_end: Callable[[Any], None] = lambda _: None,
) -> float:
    """Run all dialogues to their end, with each of which `on_end` is called; the seconds that sampling took.

    Each round samples what all groups that are not waiting have asked for, one batch for each player and
    setting; equal prompts of a group share one prefill. A group goes on when all its dialogues can, so the
    random numbers of its round k depend on the seed, the group and k alone: neither on how long the sandbox
    took for others nor on what else is in the batch. The next requests of a group are taken as soon as all
    its completions have arrived, so that judging begins while other groups are still being sampled.

    Raises `GreenwardError` for a dialogue that waits for a future that is done.
    """
    groups: dict[int, _Group] = {}
    for dialogue in dialogues:
        groups.setdefault(dialogue.group_id, _Group(dialogue.group_id, on_end)).dialogues.append(dialogue)
    running = list(groups.values())
    for group in running:
        group.ask()
    sampling = 0.0
    while running := [group for group in running if not group.over]:
        check()
        waiting = [group for group in running if group.waits_for]
        for group in waiting:
            if all(future.done() for future in group.waits_for):
                before = group.waits_for
                group.ask()
                if any(future in before for future in group.waits_for):
                    raise GreenwardError(
                        f"a dialogue of group {group.group_id} waits for a future that is done"
                    )
        ready = [group for group in running if group.requests]
        if ready:
            started = time.perf_counter()
            _sample(ready, players, seed)
            sampling += time.perf_counter() - started
        elif pending := [future for group in waiting for future in group.waits_for if not future.done()]:
            wait(pending, POLL_SECONDS, FIRST_COMPLETED)
    return sampling


@dataclass
class _Group:
    """The dialogues of one group that are not over, and what they asked for in this round."""

    group_id: int
    on_end: Callable[[Any], None]
    dialogues: list[Dialogue] = field(default_factory=list)
    requests: list[tuple[Dialogue, Request]] = field(default_factory=list)
    waits_for: list[Future[Any]] = field(default_factory=list)
    rounds: int = 0
    waited: bool = False
    unanswered: int = 0

    @property
    def over(self) -> bool:
        return not (self.requests or self.waits_for)

    def ask(self) -> None:
        """Ask every dialogue what it needs; requests are held back while any dialogue of the group waits."""
        answers = [(dialogue, dialogue.request()) for dialogue in self.dialogues]
        for dialogue in [dialogue for dialogue, need in answers if need is None]:
            self.on_end(dialogue)
        self.dialogues = [dialogue for dialogue, need in answers if need is not None]
        self.waits_for = [need.future for _, need in answers if isinstance(need, Waiting)]
        self.waited |= bool(self.waits_for)
        requests = [(dialogue, need) for dialogue, need in answers if isinstance(need, Request)]
        self.requests = [] if self.waits_for else requests
        self.unanswered = len(self.requests)

    def answered(self, requests: int) -> None:
        """Count requests as answered; after the last one of the round ask for the next."""
        self.unanswered -= requests
        if not self.unanswered:
            self.rounds += 1
            self.ask()


@dataclass
class _Prompt:
    """A prompt of one group's round, with the dialogues that share it."""

    group: _Group
    seed: int
    ids: tuple[int, ...]
    dialogues: list[Dialogue] = field(default_factory=list)


def _sample(ready: Sequence[_Group], players: Mapping[str, RolloutEngine], seed: int) -> None:
    """Sample what these groups have asked for, one batch for each player and setting."""
    batches: dict[tuple[str, SamplingParams], list[_Prompt]] = {}
    for group in ready:
        prompts: dict[tuple[str, SamplingParams, tuple[int, ...]], _Prompt] = {}
        batches_with: Counter[tuple[int, ...]] = Counter()
        seed_of = cache(partial(_seed_of_round, seed, group))
        for dialogue, request in group.requests:
            key = request.player, request.params, request.prompt_ids
            if key not in prompts:
                # The same prompt with another player or setting gets random numbers of its own.
                own_seed = seed_of(batches_with[request.prompt_ids])
                batches_with[request.prompt_ids] += 1
                prompts[key] = _Prompt(group, own_seed, request.prompt_ids)
                batches.setdefault((request.player, request.params), []).append(prompts[key])
            prompts[key].dialogues.append(dialogue)
    for (player, params), batch in batches.items():
        missing = dict(enumerate(batch))

        def answered(
            index: int, completions: list[Completion], missing: dict[int, _Prompt] = missing
        ) -> None:
            prompt = missing.pop(index)
            for dialogue, completion in zip(prompt.dialogues, completions, strict=True):
                dialogue.respond(completion)
            prompt.group.answered(len(completions))

        ids, seeds = [one.ids for one in batch], [one.seed for one in batch]
        sizes = [len(one.dialogues) for one in batch]
        try:
            groups = players[player].sample(ids, sizes, params, seed=seeds, on_group=answered)
        except EngineError as error:
            if player == POLICY:
                raise
            for prompt in missing.values():
                for dialogue in prompt.dialogues:
                    dialogue.abandon(str(error))
                prompt.group.answered(len(prompt.dialogues))
            continue
        for index in sorted(missing):  # an engine need not call `on_group`
            answered(index, groups[index])


def _seed_of_round(seed: int, group: _Group, others: int) -> int:
    """The seed of a prompt that `others` requests of the group's round, in other batches, have as well."""
    if not (group.rounds or others or group.waited):
        return seed  # in one batch the sampler tells equal prompts of different groups apart by their order
    purpose = f"round/{group.rounds}/{others}" if others else f"round/{group.rounds}"
    return step_seed(seed, group.group_id, purpose)
