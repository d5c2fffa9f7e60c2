"""Records what TRL's GRPOTrainer computes for given tensors, in `trl_losses.json` beside this file.

Run it in an environment with trl==1.16.0 (benchmarks/requirements-trl.txt):

    python tests/training/record_trl_losses.py

`test_losses_against_trl.py` compares our losses with the recorded numbers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

RECORD = Path(__file__).with_name("trl_losses.json")
LOSSES = ("grpo", "dr_grpo", "dapo", "cispo", "gspo")
CLIP_LOW, CLIP_HIGH, MAX_COMPLETION_TOKENS, IMPORTANCE_CAP = 0.2, 0.28, 9, 1.1
ROWS, WIDTH = 6, 7


def tensors(seed: int) -> dict[str, Any]:
    """Random tensors (B, T) whose ratios lie on both sides of the clipping bounds."""
    rng = np.random.default_rng(seed)
    logprobs = -rng.gamma(2.0, 0.6, (ROWS, WIDTH))
    lengths = np.array([WIDTH, *rng.integers(1, WIDTH + 1, ROWS - 1)])
    values = {
        "logprobs": logprobs,
        "old_logprobs": logprobs + rng.normal(0, 0.3, logprobs.shape),
        "ref_logprobs": logprobs + rng.normal(0, 0.5, logprobs.shape),
        "sampler_logprobs": logprobs + rng.normal(0, 0.2, logprobs.shape),
        "advantages": rng.normal(0, 1, ROWS),
        "mask": np.arange(WIDTH)[None] < lengths[:, None],
    }
    return {name: np.round(v, 6).tolist() if v.dtype != bool else v.tolist() for name, v in values.items()}


def cases() -> list[dict[str, Any]]:
    """Every loss, on and off policy, with and without KL, and with truncated importance sampling."""
    return [
        {"loss": loss, "off_policy": off_policy, "beta": beta, "importance": importance, "seed": seed}
        for seed, loss in enumerate(LOSSES)
        for off_policy in (False, True)
        for beta, importance in ((0.0, False), (0.1, False), (0.1, True))
    ]


def make_trainer(folder: str) -> Any:
    """A GRPOTrainer around a Qwen2 of a few hundred parameters; only its loss is used."""
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    torch.manual_seed(0)
    vocabulary = {"<pad>": 0, "<eos>": 1, "a": 2}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
    config = Qwen2Config(
        vocab_size=3, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return GRPOTrainer(
        model=Qwen2ForCausalLM(config),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, report_to=[], max_completion_length=MAX_COMPLETION_TOKENS,
            per_device_train_batch_size=2, num_generations=2, epsilon=CLIP_LOW,
        ),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 2),
        processing_class=tokenizer,
    )  # fmt: skip


def trl_loss(trainer: Any, case: dict[str, Any]) -> tuple[float, list[list[float]]]:
    """TRL's loss and its gradient with respect to the log-probabilities (B, T)."""
    import torch

    given = {name: torch.tensor(value) for name, value in tensors(case["seed"]).items()}
    logprobs = given["logprobs"].requires_grad_()
    mask = given["mask"].long()
    sequence_level = case["loss"] == "gspo"
    trainer.loss_type = "grpo" if sequence_level else case["loss"]
    trainer.importance_sampling_level = "sequence" if sequence_level else "token"
    trainer.beta = case["beta"]
    trainer.epsilon_low = CLIP_LOW
    trainer.epsilon_high = 1 + CLIP_HIGH if case["loss"] == "cispo" else CLIP_HIGH
    trainer.max_completion_length = MAX_COMPLETION_TOKENS
    trainer.current_gradient_accumulation_steps = 1
    trainer.args.steps_per_generation = 1
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = case["importance"]
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None)
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
        "completion_ids": torch.zeros(ROWS, WIDTH, dtype=torch.long),
        "completion_mask": mask,
        "advantages": given["advantages"],
        "ref_per_token_logps": given["ref_logprobs"],
        "num_items_in_batch": mask.sum(),
    }
    if case["off_policy"]:
        inputs["old_per_token_logps"] = given["old_logprobs"]
    if case["importance"]:
        old = given["old_logprobs"] if case["off_policy"] else logprobs.detach()
        inputs["importance_sampling_ratio"] = (
            (old - given["sampler_logprobs"]).exp().clamp(max=IMPORTANCE_CAP)
        )
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, inputs)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return float(loss.detach()), gradient.tolist()


def main() -> None:
    import trl

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder)
        recorded = []
        for case in cases():
            loss, gradient = trl_loss(trainer, case)
            recorded.append(case | {"value": loss, "gradient": gradient})
    seeds = sorted({case["seed"] for case in cases()})
    record = {"trl": trl.__version__, "tensors": {str(s): tensors(s) for s in seeds}, "cases": recorded}
    RECORD.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
