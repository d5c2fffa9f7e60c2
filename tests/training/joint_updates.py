"""Updates that one process makes alone and several make together: called by a test, and run as a program.

python joint_updates.py RESULTS     with the variables that a launcher sets, but for those of a rank

The program forks once it has loaded torch and what optimizers and shards load of it, which takes longer than
the updates.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch.distributed.fsdp

from greenward.config.sections import (
    GRPOAlgorithmConfig,
    PPOAlgorithmConfig,
    SupervisedConfig,
    TrainingConfig,
)
from greenward.grading.verdict import Status
from greenward.models.heads import Critic
from greenward.rollouts.protocols import Episode
from greenward.training import distributed
from greenward.training.advantages import ESTIMATORS
from greenward.training.optim import KLCoefficient
from greenward.training.ppo import CriticEstimator, PPOTrainer
from greenward.training.protocols import Example
from greenward.training.sft import SFTTrainer
from greenward.training.trainer import RLTrainer
from learning import NoCollector, judged_episode, make_turn, tiny_policy

Result = dict[str, Any]
LIMIT = 12


def episodes(rewards: Sequence[Sequence[float]], seed: int, *, failed: int | None = None) -> list[Episode]:
    """Groups with prompts and answers of very different lengths; `failed` names one that is not scored."""
    rng = np.random.default_rng(seed)
    made = []
    for group, of_group in enumerate(rewards):
        prompt = rng.integers(1, 11, rng.integers(2, 15)).tolist()
        for reward in of_group:
            length = int(rng.integers(1, LIMIT + 1))
            turn = make_turn(
                prompt, rng.integers(1, 11, length), logprobs_T=-2.4 - 0.1 * rng.random(length).astype("f4")
            )
            status = Status.INFRASTRUCTURE if len(made) == failed else Status.FAILED
            made.append(judged_episode((turn,), {"programmer": reward}, group, status))
    return made


UNEVEN = [[1.0, 0.0, 0.5], [0.0, 0.0], [0.3, 0.9, 0.1, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.2, 0.4]]
BATCHES: tuple[list[Episode], ...] = (
    episodes(UNEVEN, 1, failed=4),
    episodes([[0.0, 0.0], [1.0, 1.0]], 2),  # no group has a signal
    episodes([[0.0, 0.0, 0.0], [1.0, 0.5], [0.0]], 3),  # fewer rows with a signal than micro-batches
    episodes(UNEVEN[:3], 4),
)


def train(kind: str, **settings: Any) -> Result:
    """The metrics and the weights after the update on each batch, and the state that a checkpoint keeps."""
    policy = tiny_policy()
    training = TrainingConfig.model_validate(
        {"learning_rate": 3e-3, "micro_batch_sequences": 3, "max_steps": len(BATCHES), "max_grad_norm": 0.1}
    )
    reference = policy.frozen_copy()
    make: Any = RLTrainer
    critic = None
    if kind == "ppo":
        algorithm: Any = PPOAlgorithmConfig.model_validate(settings)
        critic = Critic(policy, separate_trunk=algorithm.critic.trunk == "separate")
        make = partial(PPOTrainer, critic=critic, critic_config=algorithm.critic, kl_in_loss=False)
    else:
        algorithm = GRPOAlgorithmConfig.model_validate(settings)
    if distributed.is_sharded():
        from greenward.training.distributed import shard

        shard(policy, *([] if critic is None else critic.children()))
    if critic is not None:
        estimator: Any = CriticEstimator(
            policy,
            critic,
            algorithm.critic,
            algorithm.kl,
            KLCoefficient(algorithm.kl.coefficient, target=None, horizon=1),
            micro_batch_sequences=3,
            reference=reference if algorithm.kl.coefficient else None,
        )
    else:
        estimator = ESTIMATORS[algorithm.advantage]
    trainer = make(
        policy,
        NoCollector(),  # type: ignore[arg-type]
        estimator,
        algorithm,
        training,
        max_completion_tokens=LIMIT,
        reference=reference if algorithm.kl.coefficient else None,
    )
    metrics = [trainer.update(batch, estimator(batch), step) for step, batch in enumerate(BATCHES)]
    result = {"weights": policy.state_dict(), "trainer": trainer.state_dict()}
    saved = distributed.all_gather_object([result])[0]  # what the first process writes, and all read
    policy.load_state_dict(saved["weights"])
    trainer.load_state_dict(saved["trainer"])
    again = {"weights": policy.state_dict(), "trainer": trainer.state_dict()}
    return {"metrics": metrics, **result, "again": again}


def supervise() -> Result:
    """The losses and weights of supervised steps: batches of 5 of 7 examples of very different lengths."""
    policy = tiny_policy()
    rng = np.random.default_rng(5)
    examples = [
        Example(tuple(rng.integers(1, 11, 4).tolist()), tuple(rng.integers(1, 11, length).tolist()))
        for length in (1, 2, 30, 4, 9, 1, 16)
    ]
    if distributed.is_sharded():
        from greenward.training.distributed import shard

        shard(policy)
    config = SupervisedConfig(max_steps=6, batch_size=5, warmup_steps=1)
    trainer = SFTTrainer(policy, examples, config, seed=0)
    metrics = [dict(trainer.train_step(step).metrics) for step in range(6)]
    return {"metrics": metrics, "weights": policy.state_dict(), "trainer": trainer.state_dict()}


CASES: dict[str, Callable[[], Result]] = {
    "grpo": lambda: train("grpo", minibatches=2, updates_per_batch=2),
    "grpo with KL": lambda: train(
        "grpo",
        kl={"coefficient": 0.1},
        entropy_coefficient=0.01,
        loss="dapo",
        max_step_kl=0.02,
        updates_per_batch=3,
    ),
    "ppo": lambda: train("ppo", minibatches=2, updates_per_batch=2, kl={"coefficient": 0.05}),
    "ppo, own trunk": lambda: train(
        "ppo", minibatches=2, critic={"trunk": "separate", "updates_per_batch": 3}
    ),
    "sft": supervise,
}


def forked_ranks() -> list[int]:
    """Fork a process for each rank but the first, and set the variables of each: the pids, for the first."""
    others: list[int] = []
    rank = 0
    for other in range(1, int(os.environ["WORLD_SIZE"])):
        if (pid := os.fork()) == 0:
            others, rank = [], other
            break
        others.append(pid)
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    return others


def main() -> None:
    torch.set_num_threads(1)
    others = forked_ranks()
    with distributed.process_group():
        names = [name for name in CASES if "ppo" not in name or distributed.sharding() != "zero3"]
        results = {name: CASES[name]() for name in names}
        if distributed.is_first():
            torch.save(results, Path(sys.argv[1]))
    failed = [pid for pid in others if os.waitpid(pid, 0)[1]]
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
