"""Validates a model by `transformers`, GRPO steps and ten problems. Shape suffixes: V vocabulary."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from greenward.common.errors import ConfigError
from greenward.common.text import visible
from greenward.config.loading import load_recipe
from greenward.config.recipe import ModelRecipe, language_model
from greenward.models import checkpoint, gguf, lora
from greenward.models.catalog import FoundModel, find_model
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.models.tokenizer import read_json
from greenward.recipes.run import train, training_memory
from greenward.rollouts.protocols import Completion, SamplingParams
from greenward.runs.machine import peak_resident_mb
from greenward.runs.reading import METRICS, read_evaluations, read_metrics

TOLERANCE = 1e-3
"""Largest difference of logits and log-probabilities, which are computed in float32."""
STEPS, PROBLEMS, TOKENS = 3, 10, 24
SHOWN_TOKENS, SHOWN_LINES = 96, 6
"""Of the one answer that is shown."""
TEMPLATES = {  # what tells the chat templates of families apart
    "<|im_start|>": "ChatML", "<|start_header_id|>": "Llama 3", "<start_of_turn>": "Gemma",
    "[INST]": "Mistral", "<|start|>": "Harmony", "<｜User｜>": "DeepSeek", "<|assistant|>": "Zephyr or Phi-3",
    "### Instruction": "Alpaca",
}  # fmt: skip
PROMPTS = (
    "def add(a, b):\n    return",
    "def is_even(n: int) -> bool:\n    # True if n is even\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "Write a Python function that reverses a string.",
)
SETTINGS = (
    "warm_start=null",
    f"training={{max_steps: {STEPS}, prompts_per_step: 4, num_generations: 4, micro_batch_sequences: 4}}",
    # An entropy bonus gives every answer a gradient, also where no reward differs.
    "algorithm={kl: {coefficient: 0}, entropy_coefficient: 0.001}",
    f"evaluation={{num_questions: {PROBLEMS}, samples: 1, k: [1], at_start: false}}",
)


def validate_model(
    name: str, output: Path, overrides: Sequence[str] = ()
) -> Iterator[tuple[bool | None, str]]:
    """Check the model called `name` step by step; of each, whether it went well and a line of what was found.

    What is said of the model, and its answer to a question, is no check: None stands for the outcome.
    The model is compared with `transformers` in float32, and trained with the recipe's `model.dtype` in the
    run directory `output`, by `quickstart` made short. Raises the typed errors of `greenward.common.errors`
    for what is no model.
    """
    found = find_model(name)
    tokens = f"sampling.max_tokens={max(1, min(64, (found.max_positions or 1 << 20) // 4))}"
    recipe = language_model(load_recipe("quickstart", [f"model.id={name}", *SETTINGS, tokens, *overrides]))
    yield None, _described(found)
    ours: list[_Answers] = []
    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        "load and sample": lambda: _sample(found, recipe.model.device, ours),
        "transformers": lambda: _compare(found, ours[0]),
        "GRPO and evaluation": lambda: _train(recipe, output),
    }
    for what, work in checks.items():
        started = time.perf_counter()
        good, detail = work()
        seconds = time.perf_counter() - started
        on_gpu = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_initialized() else 0
        memory = f"peak memory {peak_resident_mb() + on_gpu:,.0f} MiB"
        gc.collect()  # so that one model is in memory at a time
        yield good, f"{what} ({seconds:.1f} s): {detail}; {memory}"
        if what == "load and sample":
            yield None, ours[0].shown


def _described(found: FoundModel) -> str:
    """What decides how a model is asked, and how its weights are stored."""
    config = read_json(checkpoint.holding("config.json", found.folder) / "config.json")
    stored = found.quantization or config.get("dtype") or config.get("torch_dtype") or "an unknown type"
    tokenizer, template = found.tokenizer, found.tokenizer.chat_template
    family = next(
        (name for mark, name in TEMPLATES.items() if mark in (template or "")), "of no known family"
    )
    ends = ", ".join(tokenizer.decode([one], skip_special_tokens=False) for one in tokenizer.eos_ids)
    positions = f"{found.max_positions:,} positions" if found.max_positions else "positions unknown"
    shown = f"chat template {family}" if template else "no chat template"
    return f"{shown}; answers end with {ends}; {positions}; weights in {stored}"


@dataclass(frozen=True)
class _Answers:
    """What our policy answers to each prompt: the logits (V,) behind it, a greedy and a sampled answer.

    `shown` is its answer to the last one in its chat format, for people.
    """

    prompts: Sequence[Sequence[int]]
    logits: torch.Tensor
    greedy: Sequence[Completion]
    sampled: Sequence[Completion]
    shown: str
    device: torch.device


def _sample(found: FoundModel, device: str, answers: list[_Answers]) -> tuple[bool, str]:
    """Load and sample; well if the sampler's log-probabilities are those that training computes."""
    policy = Policy.from_folder(found.folder, device=device)
    prompts = [policy.tokenizer.encode(text)[: policy.max_positions - TOKENS] for text in PROMPTS]
    policy.check_ids(prompts)
    with torch.inference_mode():
        policy._decoding.open(len(prompts), TOKENS)
        logits = policy._decoding.add(prompts, [1] * len(prompts)).float().cpu()
    drawn = {
        temperature: [
            group[0] for group in policy.sample(prompts, 1, SamplingParams(TOKENS, temperature), seed=0)
        ]
        for temperature in (0.0, 1.0)
    }
    shown = _shown_answer(policy, PROMPTS[-1])
    answers.append(_Answers(prompts, logits, drawn[0.0], drawn[1.0], shown, policy.device))
    batch = GroupBatch.build(prompts, [[c.token_ids] for c in drawn[1.0]], device=policy.device)
    with torch.no_grad():
        scored = policy.completion_logprobs(batch).logprobs_BT.cpu().numpy()
    off = max(
        float(abs(row[: len(one.logprobs)] - one.logprobs).max())
        for row, one in zip(scored, drawn[1.0], strict=True)
    )
    kind = "greenward's decoder" if hasattr(policy.model, "shape") else type(policy.model).__name__
    return off <= TOLERANCE, (
        f"{kind}, {training_memory(policy)}; log-probabilities of sampling and training differ by {off:.1e}"
    )


def _shown_answer(policy: Policy, question: str) -> str:
    """A question and the beginning of the answer, drawn at temperature 0.7."""
    prompt = policy.tokenizer.render_question(question)
    room = policy.max_positions - len(prompt)
    if room < 1:
        return f"no room for an answer to {question!r}"
    ((one,),) = policy.sample([prompt], 1, SamplingParams(min(SHOWN_TOKENS, room), 0.7), seed=0)
    lines = visible(policy.tokenizer.decode_answer(one.token_ids)).strip().splitlines()
    cut = [line[:100] for line in lines[:SHOWN_LINES]] + ["…"] * (len(lines) > SHOWN_LINES)
    return "\n  | ".join((f"{question} (at temperature 0.7)", *cut))


@torch.no_grad()
def _compare(found: FoundModel, ours: _Answers) -> tuple[bool, str]:
    """Our answers under the model as `transformers` loads it: one plain forward pass for each."""
    base = checkpoint.base_folder(found.folder)
    try:
        if base and gguf.source_of(base):  # transformers reads no adapter of a GGUF file by itself
            model = lora.read_merged(found.folder, base)
        else:
            model = checkpoint.transformers_model(found.folder)
    except ImportError as error:
        raise ConfigError(
            "validate-model needs transformers, which is not installed.", remedy="pip install 'greenward[hf]'"
        ) from error
    model.to(ours.device).eval()
    logits_off = logprobs_off = 0.0
    greedy = tokens = 0
    for number, prompt in enumerate(ours.prompts):
        for one in (ours.greedy[number], ours.sampled[number]):
            ids = torch.tensor([[*prompt, *one.token_ids.tolist()]], device=ours.device)
            logits_TV = model(ids).logits[0, len(prompt) - 1 : -1].float().cpu()
            chosen = torch.log_softmax(logits_TV, -1)[np.arange(len(one.token_ids)), one.token_ids]
            logits_off = max(logits_off, float((logits_TV[0] - ours.logits[number]).abs().max()))
            logprobs_off = max(logprobs_off, float((chosen - torch.from_numpy(one.logprobs)).abs().max()))
            if one is ours.greedy[number]:
                best = logits_TV.max(-1).values - logits_TV[np.arange(len(one.token_ids)), one.token_ids]
                greedy += int((best <= TOLERANCE).sum())
                tokens += len(best)
    return max(logits_off, logprobs_off) <= TOLERANCE and greedy == tokens, (
        f"logits differ by {logits_off:.1e}, log-probabilities by {logprobs_off:.1e}; "
        f"{greedy} of {tokens} greedy tokens are the most likely ones"
    )


def _train(recipe: ModelRecipe, output: Path) -> tuple[bool, str]:
    """Train and evaluate; well if every step changed the weights, whatever share of the answers is right."""
    train(recipe, output, quiet=True)
    rows = read_metrics(output / METRICS).rows
    applied = sum(row["updates/applied"] > 0 and not row["updates/non_finite"] for row in rows)
    finite = all(math.isfinite(row.get("loss", math.nan)) for row in rows)
    steps = ", ".join(f"{row['time/step']:.1f}" for row in rows)
    evaluation = read_evaluations(output)[-1]
    return finite and applied == len(rows) == STEPS, (
        f"{applied} of {STEPS} steps updated the weights, loss {'' if finite else 'NOT '}finite; {steps} s a "
        f"step in {recipe.model.dtype}; pass@1 {evaluation['metrics']['pass@1']['value']:.0%} of {PROBLEMS} "
        f"problems in {sum(evaluation['seconds'].values()):.1f} s"
    )
