"""Samples greedy answers as EvalPlus does: its prompt, `generate` of transformers, its stops and sanitiser.

Reads `problems.jsonl` (task_id, prompt, entry_point, tokens, answer) of a folder and adds to its
`peer.jsonl`; what is there is not asked again. EvalPlus asks one prompt at a time; here prompts are asked in
batches, padded on the left, of problems with answers of about as many `tokens`, since a batch ends with its
last row. `--check N` asks N of them alone, too, and compares. Of each answer that differs from `answer`, the
text of the other side, `ties.jsonl` says how far apart the two largest logits are where the answers part.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from evalplus.provider.utility import EOS, make_raw_chat_prompt
from evalplus.sanitize import sanitize
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria

STOPS = [*EOS, "\n```\n"]
INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code "
    "block:"
)
RESPONSE = (
    "Below is a Python script with a self-contained function that solves the problem and passes "
    "corresponding tests:"
)


class StopStrings(StoppingCriteria):
    """Ends each row with its first stop string."""

    def __init__(self, tokenizer, prompt_length: int) -> None:
        self.tokenizer, self.prompt_length = tokenizer, prompt_length

    def __call__(self, input_ids, scores, **_):
        texts = self.tokenizer.batch_decode(input_ids[:, self.prompt_length :], skip_special_tokens=True)
        return torch.tensor([any(stop in text for stop in STOPS) for text in texts], device=input_ids.device)


def prompt_of(one: dict, tokenizer) -> str:
    return make_raw_chat_prompt(one["prompt"].strip() + "\n", INSTRUCTION, RESPONSE, tokenizer)


def sampled(model, tokenizer, problems: list[dict], max_tokens: int) -> list[tuple[str, list[int]]]:
    """Each answer as EvalPlus cuts it, and its tokens as they were drawn."""
    prompts = [prompt_of(one, tokenizer) for one in problems]
    given = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
    length = given["input_ids"].shape[1]
    with torch.inference_mode():
        ids = model.generate(
            **given,
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            stopping_criteria=[StopStrings(tokenizer, length)],
        )
    texts = tokenizer.batch_decode(ids[:, length:], skip_special_tokens=True)
    ends = [min([text.index(stop) for stop in STOPS if stop in text], default=10_000) for text in texts]
    cut = [text[:end].replace("\t", "    ") for text, end in zip(texts, ends, strict=True)]
    return list(zip(cut, ids[:, length:].tolist(), strict=True))


def tie(model, tokenizer, one: dict, ids: list[int]) -> dict | None:
    """Where the answer of the other side leaves this one, and how far apart the best two logits are there."""
    shared = len(ids)
    while shared and not one["answer"].startswith(tokenizer.decode(ids[:shared], skip_special_tokens=True)):
        shared -= 1
    if shared == len(ids):
        return None
    prompt = tokenizer(prompt_of(one, tokenizer), add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids[:shared]]]), logits_to_keep=1).logits[0, -1].float()
    best = logits.topk(2).values
    return {"task_id": one["task_id"], "token": shared, "gap": float(best[0] - best[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=768)
    parser.add_argument("--check", type=int, default=0)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    rows = [json.loads(line) for line in (args.folder / "problems.jsonl").read_text().splitlines()]
    path = args.folder / "peer.jsonl"
    there = (
        {json.loads(line)["task_id"] for line in path.read_text().splitlines()} if path.exists() else set()
    )
    left = sorted((one for one in rows if one["task_id"] not in there), key=lambda one: one["tokens"])
    for begin in range(0, len(left), args.batch):
        chunk, began = left[begin : begin + args.batch], time.perf_counter()
        texts = sampled(model, tokenizer, chunk, args.max_tokens)
        with path.open("a") as file:
            for one, (text, ids) in zip(chunk, texts, strict=True):
                solution = sanitize(text, entrypoint=one["entry_point"])
                row = {"task_id": one["task_id"], "completion": text, "solution": solution, "ids": ids}
                file.write(json.dumps(row) + "\n")
        done = len(there) + begin + len(chunk)
        print(f"EvalPlus: {done} of {len(rows)} answers, {time.perf_counter() - began:.0f} s", flush=True)
    if args.check:
        kept = {row["task_id"]: row["completion"] for row in map(json.loads, path.read_text().splitlines())}
        alone = [(one, sampled(model, tokenizer, [one], args.max_tokens)[0][0]) for one in rows[: args.check]]
        equal = sum(kept[one["task_id"]] == text for one, text in alone)
        print(f"EvalPlus: {equal} of {len(alone)} answers are equal in a batch and alone", flush=True)
    drawn = {row["task_id"]: row["ids"] for row in map(json.loads, path.read_text().splitlines())}
    ties = [tie(model, tokenizer, one, drawn[one["task_id"]]) for one in rows]
    (args.folder / "ties.jsonl").write_text("".join(json.dumps(one) + "\n" for one in ties if one))


if __name__ == "__main__":
    main()
