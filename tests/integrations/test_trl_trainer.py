"""Our rewards inside TRL's own `GRPOTrainer`, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed; make test-bridges")

from greenward import Grader, load_problems, reward_function
from greenward.grading.answers import extract_code


def test_grpo_trains_with_the_rewards_that_the_grader_gives(
    published: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder = published("qwen2")
    problems = load_problems("classic_training")[:2]
    seen: list[tuple[list[str], list[str], list[float]]] = []
    ours = reward_function(["tests"], problems)

    def greenward_reward(
        prompts: list[str], completions: list[str], task_id: list[str], **columns: Any
    ) -> list[float]:
        """One completion of each batch is replaced by a right answer, so that there is something to learn."""
        completions = [problems.by_id(task_id[0]).reference.join(("```python\n", "\n```")), *completions[1:]]
        rewards = ours(prompts, completions, task_id=task_id, **columns)
        seen.append((task_id, completions, rewards))
        return rewards

    rows = Dataset.from_list([{"prompt": one.starter_code, "task_id": one.task_id} for one in problems])
    arguments = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        logging_steps=1,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    before = model.lm_head.weight.detach().clone()
    trainer = GRPOTrainer(
        model,
        reward_funcs=greenward_reward,
        args=arguments,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    trainer.train()
    assert len(seen) == 2
    for task_ids, completions, rewards in seen:
        asked = [problems.by_id(one) for one in task_ids]
        codes = [
            extract_code(text, problem, "chat" if "```" in text else "completion").code
            for text, problem in zip(completions, asked, strict=True)
        ]
        with Grader() as grader:
            verdicts = grader.grade(list(zip(asked, codes, strict=True)))
        assert rewards[0] == 2.0 and [reward == 2.0 for reward in rewards] == [one.passed for one in verdicts]
    logged = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert logged == pytest.approx([sum(rewards) / len(rewards) for *_, rewards in seen])
    assert (model.lm_head.weight != before).any()
