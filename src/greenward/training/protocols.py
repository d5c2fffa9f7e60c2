"""Defines what tasks and trainings share: hooks of a step, what checkpoints keep, evaluators, examples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from greenward.rollouts.protocols import Episode
from greenward.runs.directory import RunDirectory
from greenward.runs.no_signal import MIN_STEPS, no_signal_periods

if TYPE_CHECKING:
    from greenward.config.sections import TokensConfig
    from greenward.models.tokenizer import Tokenizer


class Stateful:
    """Saves and restores the attributes that `_saved` names, each under its key there.

    Attributes with a state of their own are asked for that, and those that are None are left out. A state
    holds tensors and plain Python values, not NumPy's: checkpoints are read without unpickling code.
    """

    _saved: ClassVar[Mapping[str, str]] = {}

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs."""
        parts = {key: getattr(self, attribute) for key, attribute in self._saved.items()}
        return {
            key: part.state_dict() if hasattr(part, "state_dict") else part
            for key, part in parts.items()
            if part is not None
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        for key, attribute in self._saved.items():
            part = getattr(self, attribute)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(state[key])
            elif part is not None:
                setattr(self, attribute, state[key])


class Callback(Stateful):
    """Acts at fixed points of every step; a subclass overrides what it needs.

    Steps are counted as in metrics.jsonl: the first one is 1. `name` is the key under which checkpoints keep
    the callback's state.
    """

    name = ""

    def on_step_begin(self, step: int) -> None:
        """Called before step `step`."""

    def on_episodes(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """Called with episodes as they are collected; gives those that the step goes on with."""
        return episodes

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        """Called after the update of step `step`, with the episodes it was made from; may add metrics."""


class ScoresTokens(Protocol):
    """A trainer that tells what it computed for each token of a step, where `token_scores` is not None.

    `token_scores` holds arrays (T,) by name, for each turn that was trained on by its `id`.
    """

    token_scores: dict[int, dict[str, np.ndarray]] | None


@dataclass(eq=False)
class RolloutWriter(Callback):
    """Keeps the episodes of each step in `rollouts/`, at most `most` of them, taken evenly.

    With a tokenizer, the prompt of each is kept as the policy saw it. `tokens` says of which answers numbers
    by token are written as well: what the sampler gave and, where there is a `trainer`, its `token_scores`.
    """

    name = "rollouts"

    run: RunDirectory
    most: int | None = None
    tokenizer: Tokenizer | None = None
    tokens: TokensConfig | None = None
    trainer: ScoresTokens | None = None

    def on_step_begin(self, step: int) -> None:
        if self.trainer is not None:
            self.trainer.token_scores = {} if self._writes_tokens(step) else None

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        every = 1 if self.most is None else -(-len(episodes) // self.most)
        kept = episodes[:: max(every, 1)]
        prompts: dict[tuple[int, ...], str] = {}
        if self.tokenizer is not None:
            for ids in dict.fromkeys(one.prompt_ids for one in kept if one.prompt_ids):
                prompt = self.tokenizer.decode(ids, skip_special_tokens=False)
                prompts[ids] = self.run.prompts.add(step, prompt)
        self.run.write_rollouts(step, [rollout_row(one, prompts.get(one.prompt_ids, "")) for one in kept])
        if self._writes_tokens(step):
            assert self.tokens is not None
            self.run.write_tokens(step, list(self._token_rows(kept[: self.tokens.answers])))

    def _writes_tokens(self, step: int) -> bool:
        return self.tokens is not None and step % self.tokens.every == 0

    def _token_rows(self, episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
        """The numbers by token of each turn that the policy played in these episodes."""
        assert self.tokenizer is not None
        of_turns = (self.trainer and self.trainer.token_scores) or {}
        for number, episode in enumerate(episodes):
            for turn in episode.trained_turns:
                columns = {"logprob": turn.logprobs_T, **of_turns.get(id(turn), {})}
                ids = turn.completion_ids.tolist()
                yield {
                    "row": number,
                    "role": turn.role,
                    "ids": ids,
                    "pieces": [self.tokenizer.decode([one], skip_special_tokens=False) for one in ids],
                    "mask": turn.policy_wrote_T.astype(int).tolist(),
                    **{name: [round(float(one), 4) for one in values] for name, values in columns.items()},
                }


_MAX_TESTS, _MAX_STDOUT_CHARS = 1000, 500


def rollout_row(episode: Episode, prompt_id: str = "") -> dict[str, Any]:
    """One episode as plain data; columns that say nothing are left out."""
    trained, verdict = episode.trained_turns, episode.verdict
    row = {
        "problem": episode.task_id,
        "group": episode.group_id,
        "answer": episode.answer,
        "status": episode.outcome,
        "first_failure": verdict.first_failure if verdict else "",
        "rewards": dict(episode.rewards),
        "terms": dict(episode.reward_terms),
        "tokens": episode.policy_tokens,
        "stop": trained[-1].stop_reason.value if trained else "",
    }
    optional: dict[str, Any] = {
        "policy_version": trained[-1].policy_version if trained else None,
        "advantage": episode.advantage,
        "masked": episode.masked or None,
        "prompt_id": prompt_id or None,
        "extra": dict(episode.extra) or None,
        "transcript": [{"role": role, "text": text} for role, text in episode.transcript] or None,
    }
    if verdict is not None:
        optional |= {
            "tests": "".join("01"[passed] for passed in verdict.tests_passed[:_MAX_TESTS]) or None,
            "error_class": verdict.error_class,
            "error_message": verdict.error_message or None,
            "error_line": verdict.error_line,
            "traceback": verdict.traceback or None,
            "stdout": verdict.stdout[:_MAX_STDOUT_CHARS] or None,
        }
    return row | {name: value for name, value in optional.items() if value is not None}


class NoSignalWarning(Callback):
    """Says why the newest steps gave no learning signal: a message when it begins, then `brief`."""

    name = "signal"

    def __init__(self, config: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self.brief: str | None = None
        self._config = config
        self._say = say
        self._newest: deque[Mapping[str, float]] = deque(maxlen=MIN_STEPS)
        self._fewest_illegal: Mapping[str, float] = {}
        self._said: set[str] = set()

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
        row = {"step": step, **numbers}
        self._newest.append(row)
        if row.get("games/illegal", 1.0) < self._fewest_illegal.get("games/illegal", 1.0):
            self._fewest_illegal = row
        earlier = [] if self._fewest_illegal in self._newest else [self._fewest_illegal]
        found = no_signal_periods([*earlier, *self._newest], self._config)
        self.brief = found[0].cause.brief if found else None
        if not found:
            self._said.clear()
        elif found[0].cause.brief not in self._said:
            self._said.add(found[0].cause.brief)
            self._say(f"Step {step}, and {MIN_STEPS - 1} before: {found[0].cause}")

    def state_dict(self) -> dict[str, Any]:
        return {
            "newest": list(self._newest),
            "said": sorted(self._said),
            "fewest_illegal": self._fewest_illegal,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`, which is empty in checkpoints of versions that did not save it."""
        self._newest.extend(state.get("newest", ()))
        self._said.update(state.get("said", ()))
        self._fewest_illegal = state.get("fewest_illegal", {})


Evaluator = Callable[[Any, int, float], dict[str, Any]]
"""(policy, step, training seconds so far) -> an evaluation as plain data."""


@dataclass(frozen=True)
class Example:
    """One pair, as token ids. The completion ends with the end-of-sequence token.

    `trained` says of each token of the completion whether it is trained on; None means all of them.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    trained: tuple[bool, ...] | None = None

    @property
    def tokens(self) -> int:
        return len(self.completion_ids) if self.trained is None else sum(self.trained)
