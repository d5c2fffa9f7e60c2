"""A GRPO trainer whose rewards are of texts alone, so that a step is sampling and update."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from greenward.common.seeding import shuffled_index
from greenward.config.sections import GRPOAlgorithmConfig, TrainingConfig
from greenward.models.policy import Policy
from greenward.rollouts.protocols import POLICY, Collection, Episode, RolloutEngine, SamplingParams, Turn
from greenward.training.advantages import ESTIMATORS
from greenward.training.collector import Collector
from greenward.training.trainer import RLTrainer


def trainer_on_texts(
    policy: Policy,
    prompts: Sequence[str],
    reward_of: Callable[[str], float],
    *,
    group_size: int,
    max_tokens: int,
    micro_batch: int,
    settled: Callable[[], None] = lambda: None,
) -> RLTrainer:
    """A trainer each of whose steps answers all prompts; `settled` waits for a device."""
    sampling = SamplingParams(max_tokens=max_tokens)

    class TextReward:
        """An environment that rewards the text itself."""

        def collect(
            self, players: Mapping[str, RolloutEngine], groups: range, *, seed: int, step: int = 0
        ) -> Collection:
            started = time.perf_counter()
            asked = [prompts[shuffled_index(len(prompts), group, seed=0)] for group in groups]
            prompt_ids = [tuple(policy.tokenizer.encode(prompt)) for prompt in asked]
            sampled_groups = players[POLICY].sample(prompt_ids, group_size, sampling, seed=seed)
            settled()
            sampled = time.perf_counter()
            episodes = []
            for group_id, ids, group in zip(groups, prompt_ids, sampled_groups, strict=True):
                for completion in group:
                    turn = Turn(
                        "writer",
                        ids,
                        completion.token_ids,
                        completion.logprobs,
                        np.ones(len(completion.token_ids), dtype=bool),
                        completion.stop_reason,
                        completion.policy_version,
                    )
                    text = policy.tokenizer.decode(completion.token_ids)
                    rewards = {"writer": reward_of(text)}
                    episodes.append(
                        Episode((turn,), rewards, group_id, str(group_id), "written", answer=text)
                    )
            return Collection(episodes, sampled - started, time.perf_counter() - sampled)

    training = TrainingConfig(
        max_steps=10**6,
        prompts_per_step=len(prompts),
        num_generations=group_size,
        micro_batch_sequences=micro_batch,
        learning_rate=1e-6,
    )
    collector = Collector(TextReward(), {POLICY: policy}, groups_per_step=len(prompts), seed=0)
    return RLTrainer(
        policy,
        collector,
        ESTIMATORS["grpo"],
        GRPOAlgorithmConfig(),
        training,
        max_completion_tokens=max_tokens,
    )
