"""Small parts for tests: overrides with which a recipe trains a step in milliseconds, and a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

TINY_MODEL = (
    "model.shape.layers=1",
    "model.shape.hidden_size=32",
    "model.shape.heads=2",
    "model.shape.kv_heads=2",
    "model.shape.intermediate_size=64",
)

DATA = Path(__file__).parent / "system" / "recorded_runs"
"""Has `starter`, a model of 20,000 parameters that answers half of the problems beside it rightly."""

ON_THE_STARTER = (
    "pretrained=null",
    f"model={DATA / 'starter'}",
    f"problems.train={DATA / 'problems.json'}",
    f"problems.held_out={DATA / 'held_out.json'}",
    "problems.allow_shared=true",  # both files hold the same four problems
    "model.dtype=float32",
    "model.device=cpu",
    "sampling.max_tokens=20",
    "evaluation={num_questions: 4, samples: 2, k: [1, 2], eval_interval_steps: 100, at_start: false}",
    "sandbox={workers: 1, require: D}",
    "training.threads=1",
)
REINFORCED = (
    *ON_THE_STARTER,
    "warm_start=null",
    "training.max_steps=2",
    "training.prompts_per_step=4",
    "training.num_generations=8",
    "training.micro_batch_sequences=16",
    "training.learning_rate=1e-3",
)
BUGS = (f"problems.train=bugs:{DATA / 'problems.json'}", f"problems.held_out=bugs:{DATA / 'held_out.json'}")


class CharacterTokenizer:
    """One token for each character, 0 ends an answer; the chat template, if it has one, writes roles in angle brackets."""

    special_ids: Mapping[str, int] = {"<|end|>": 0}
    begins_answers = True

    def __init__(self, *, chat: bool = False) -> None:
        self.chat_template = "{{ messages }}" if chat else None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(token) for token in token_ids if token)

    def decode_answer(self, token_ids: Iterable[int]) -> str:
        return self.decode(token_ids)

    def render_chat(self, messages: Iterable[Mapping[str, str]], *, begun: str = "") -> list[int]:
        told = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        return self.encode(f"{told}<assistant>{begun}")


TINY_STUDY = (
    "training.threads=1",
    "sandbox.workers=1",
    "problems.families.limit=60",
    *TINY_MODEL,
    "warm_start.max_steps=5",
    "warm_start.batch_size=8",
    "training.prompts_per_step=2",
    "training.num_generations=2",
    "training.micro_batch_sequences=8",
    "sampling.max_tokens=16",
    "evaluation.num_questions=4",
    "evaluation.samples=2",
    "evaluation.k=[1,2]",
)
"""Overrides of the recipes of studies, which train their starting model themselves."""
