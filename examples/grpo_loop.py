"""GRPO from top to bottom: sample groups of answers, run their tests, compare them, take a step.

    greenward train quickstart training.max_steps=1 evaluation.enabled=false --output runs/start
    python examples/grpo_loop.py runs/start/warm_start

The first command trains a small decoder that answers some of the problems; any model will do.
`greenward train` gives the same numbers (tests/system/test_examples.py). Beside that it has minibatches,
several passes, other losses and baselines, KL terms, evaluation, checkpoints and several processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from greenward import Grader, Policy, Problem, load_problems
from greenward.common.seeding import shuffled_index, step_seed
from greenward.config.sections import ModelConfig
from greenward.environments.prompts import PromptRenderer
from greenward.grading.verdict import Family
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import SamplingParams


def grpo(
    policy: Policy,
    problems: Sequence[Problem],
    grader: Grader,
    *,
    steps: int,
    prompts: int = 32,  # in a step
    answers: int = 8,  # to each prompt: its group
    max_tokens: int = 64,
    learning_rate: float = 3e-4,
    clip: float = 0.2,
    max_grad_norm: float = 1.0,
    rows: int = 64,  # answers in a forward pass
    seed: int = 0,
) -> Iterator[dict[str, float]]:
    """Trains `policy` by GRPO (DeepSeekMath, arXiv 2402.03300, Algorithm 1); the metrics of each step."""
    renderer = PromptRenderer(policy.tokenizer)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(steps):
        # Problems in an order that is shuffled anew for each epoch, and a group of answers to each.
        places = range(step * prompts, (step + 1) * prompts)
        asked = [problems[shuffled_index(len(problems), place, seed=seed)] for place in places]
        prompt_ids = [renderer.prompt_ids(problem) for problem in asked]
        params = SamplingParams(max_tokens=max_tokens)
        groups = policy.sample(prompt_ids, answers, params, seed=step_seed(seed, step, "sampling"))

        # The reward of an answer: the share of tests that its program passes, and 1 more if it passes all.
        programs = [
            (problem, renderer.extracted(problem, renderer.completion_text(completion.token_ids)))
            for problem, group in zip(asked, groups, strict=True)
            for completion in group
        ]
        verdicts = grader.grade(programs)
        if any(verdict.status.family is Family.INFRASTRUCTURE for verdict in verdicts):
            continue  # the sandbox failed, so that nothing is known of these answers
        rewards_NG = np.array([one.fraction_passed + one.passed for one in verdicts]).reshape(
            prompts, answers
        )

        # The advantage of an answer: how much better it is than its group, in standard deviations.
        centred_NG = rewards_NG - rewards_NG.mean(axis=1, keepdims=True)
        advantages_NG = centred_NG / (rewards_NG.std(axis=1, ddof=1, keepdims=True) + 1e-4)

        # The clipped surrogate, a mean over the tokens of each answer and over all answers, in micro-batches.
        optimizer.zero_grad()
        loss = 0.0
        for start in range(0, prompts, max(rows // answers, 1)):
            part = slice(start, start + max(rows // answers, 1))
            completions = [[one.token_ids for one in group] for group in groups[part]]
            batch = GroupBatch.build(prompt_ids[part], completions, device=policy.device)
            mask_BT = batch.completion_mask_BT
            logprobs_BT = policy.completion_logprobs(batch).logprobs_BT.float()
            # The policy before the update is the policy itself, since each batch serves for one step.
            ratio_BT = (logprobs_BT - logprobs_BT.detach()).exp()
            advantages_B1 = torch.tensor(advantages_NG[part].reshape(-1, 1), dtype=torch.float32).to(
                mask_BT.device
            )
            clipped_BT = ratio_BT.clamp(1 - clip, 1 + clip)
            surrogate_BT = -torch.min(ratio_BT * advantages_B1, clipped_BT * advantages_B1) * mask_BT
            share = (surrogate_BT.sum(1) / mask_BT.sum(1)).sum() / (prompts * answers)
            share.backward()
            loss += share.item()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optimizer.step()
        yield {
            "reward/mean": float(rewards_NG.mean()),
            "pass_rate": float(np.mean([one.passed for one in verdicts])),
            "loss": loss,
            "grad_norm": float(norm),
        }


def main() -> None:
    """Train the model in a folder, show each step, and save the result."""
    parser = argparse.ArgumentParser(description="GRPO on generated Python problems.")
    parser.add_argument(
        "model", help="a run, a folder with a model, or the name of one on the Hugging Face Hub"
    )
    parser.add_argument("--problems", default="families", help="a name or a file [families]")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", default="runs/grpo_loop", help="where the model is saved")
    options = parser.parse_args()
    policy = Policy.load(ModelConfig(id=options.model))
    policy.save(options.output)  # a folder that holds something else is refused before anything is trained
    with Grader() as grader:
        problems = grader.complete(load_problems(options.problems))
        for number, metrics in enumerate(grpo(policy, problems, grader, steps=options.steps)):
            print(f"step {number}: " + ", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
    policy.save(options.output)


if __name__ == "__main__":
    main()
