"""What `greenward train` saves of a real model, loaded by `transformers` and PEFT: how far logits differ.

    python benchmarks/saved_models.py MODEL [--lora 16] [--steps 3] [KEY=VALUE ...]

MODEL is a folder of Llama, Qwen2 or Qwen3. `greenward train sft` takes some steps in float32 on a few pairs.
The model that was trained is restored as `--resume` does it, exactly, and computes the logits of some texts;
what was saved is loaded in every way in which others load it, and computes them, too: the checkpoint by
`AutoModelForCausalLM`, and of LoRA also the adapter by PEFT on its base, beside the weights and merged. The
logits of the model before the training show that there is something to be saved. The exit code is 1 where
logits differ by more than 1e-3, or the training has not moved them by ten times as much.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from greenward import api
from greenward.config.loading import load_recipe
from greenward.config.recipe import ModelRecipe, language_model
from greenward.models.catalog import build_policy
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.training.loop import load_trainer_state

MOST, MOVED = 1e-3, 10.0  # logits, and how much more the training must change
TEXTS = (
    "def is_prime(n):\n    if n < 2:\n        return False\n",
    "The capital of France is Paris, and 17 * 23 = 391.",
    "import numpy as np\n\n\nclass Stack:\n    def push(self, item):\n        self.items.append(item)\n",
)
PAIRS = [
    {"prompt": f"Add {n} to a number.\n", "completion": f"def add_{n}(x):\n    return x + {n}\n"}
    for n in range(8)
]


@torch.no_grad()
def ours(policy: Policy) -> list[Tensor]:
    """The logits (T, V) of our decoder behind each token of each text but the last."""
    prompts = [policy.tokenizer.encode(text) for text in TEXTS]
    batches = [GroupBatch.build([ids[:1]], [[ids[1:]]], device=policy.device) for ids in prompts]
    return [policy.completion_hidden(one) @ policy.model.unembedding_VE.t() for one in batches]


@torch.no_grad()
def theirs(model: Any, tokenizer: Any) -> list[Tensor]:
    """The same of a model of transformers, with the tokens of its own tokenizer."""
    model.eval()
    prompts = [tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids for text in TEXTS]
    return [model(ids).logits[0, :-1].float() for ids in prompts]


def furthest(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


def trained(recipe: ModelRecipe, last: Path) -> list[Tensor]:
    """The logits of the model that the run has trained, as resuming restores it."""
    policy = build_policy(recipe, list)
    state = load_trainer_state(last)
    if "weights" in state:
        policy.load_state_dict(state["weights"])
    else:
        policy.load_weights(last)
    return ours(policy)


def ways(last: Path, base: Path, *, lora: bool) -> dict[str, Callable[[], Any]]:
    """The ways in which others load what was saved in `last`, and a base that is a folder."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def whole(folder: Path) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def adapted() -> Any:
        return PeftModel.from_pretrained(whole(base), last / "adapter")

    found: dict[str, Callable[[], Any]] = {"checkpoint, by transformers": lambda: whole(last)}
    if lora:
        found["adapter, by PEFT"] = adapted
        found["adapter, merged by PEFT"] = lambda: adapted().merge_and_unload()
    return found


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("model", type=Path, help="a model's folder")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="other settings of the recipe")
    parser.add_argument("--lora", type=int, metavar="RANK", help="train an adapter, alpha 2 · RANK")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_intermixed_args()
    torch.set_num_threads(options.threads)
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory(prefix="saved-models-") as place:
        data, run = Path(place, "pairs.jsonl"), Path(place, "run")
        data.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
        settings = [
            f"model={options.model}", "model.device=cpu", "model.dtype=float32", f"warm_start.data={data}",
            f"warm_start.max_steps={options.steps}", "warm_start.batch_size=4", "warm_start.warmup_steps=0",
            "evaluation.enabled=false", f"training.threads={options.threads}",
            *([f"model.lora={{r: {options.lora}, alpha: {2 * options.lora}}}"] if options.lora else []),
            *options.settings,
        ]  # fmt: skip
        recipe = language_model(load_recipe("sft", settings))
        before = ours(Policy.load(recipe.model))
        api.train("sft", settings, output=run)
        last = run / "checkpoints" / "last"
        expected = trained(recipe, last)
        moved = furthest(before, expected)
        shown = f"LoRA of rank {options.lora}" if options.lora else "all weights"
        print(
            f"{options.model.name}, {shown}: {options.steps} steps moved logits by up to {moved:.2e}",
            flush=True,
        )
        differences = {}
        for name, load in ways(last, options.model, lora=bool(options.lora)).items():
            gc.collect()  # one model at a time
            differences[name] = furthest(expected, theirs(load(), AutoTokenizer.from_pretrained(last)))
            print(f"{name:28}{differences[name]:.2e}", flush=True)
    worst = max(differences.values())
    print(f"largest difference {worst:.2e}")
    return int(worst > MOST or moved < MOVED * MOST)


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
