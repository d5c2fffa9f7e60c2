"""Small models in GGUF files, made by the package `gguf`."""

from __future__ import annotations

import gguf
import numpy as np
import torch

CHARACTERS = [chr(one) for one in (*range(33, 127), *range(161, 173), *range(174, 256))]
CHARACTERS += [chr(256 + n) for n in range(256 - len(CHARACTERS))]
MERGES = ["Ġ Ġ", "d e", "de f", "r e", "1 2", "12 3", "Ċ Ġ"]
TOKENS = [
    *CHARACTERS,
    *(one.replace(" ", "") for one in MERGES),
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "[PAD267]",
]
TYPES = [1] * (len(TOKENS) - 5) + [3, 3, 3, 4, 5]
END, IM_END = len(TOKENS) - 5, len(TOKENS) - 3
SIZES = {"hidden": 256, "heads": 4, "kv_heads": 2, "layers": 2, "intermediate": 256}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


def shapes(family, *, head_dim=64, tied=False):
    E, F = SIZES["hidden"], SIZES["intermediate"]
    Q, K = SIZES["heads"] * head_dim, SIZES["kv_heads"] * head_dim
    found = {"token_embd.weight": (len(TOKENS), E), "output_norm.weight": (E,)}
    if not tied:
        found["output.weight"] = (len(TOKENS), E)
    for n in range(SIZES["layers"]):
        layer = {"attn_norm.weight": (E,), "ffn_norm.weight": (E,)}
        layer |= {"attn_q.weight": (Q, E), "attn_k.weight": (K, E), "attn_v.weight": (K, E)}
        layer |= {"attn_output.weight": (E, Q), "ffn_gate.weight": (F, E), "ffn_up.weight": (F, E)}
        layer |= {"ffn_down.weight": (E, F)}
        if family == "qwen2":
            layer |= {"attn_q.bias": (Q,), "attn_k.bias": (K,), "attn_v.bias": (K,)}
        if family == "qwen3":
            layer |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
        found |= {f"blk.{n}.{name}": shape for name, shape in layer.items()}
    return found


def write(
    path,
    family="llama",
    kind="F32",
    *,
    pre="qwen2",
    extra=(),
    change=None,
    without=(),
    tied=False,
    head_dim=64,
    only=None,
    per_part=0,
):
    """A small model with random numbers, of the given quantisation where that has rows of a block each.

    With `per_part`, it is split into parts of so many tensors, which are named after the path.
    """
    writer = gguf.GGUFWriter(str(path), family, split_max_tensors=per_part)
    values = {
        "general.type": "model",
        f"{family}.block_count": SIZES["layers"],
        f"{family}.context_length": 128,
        f"{family}.embedding_length": SIZES["hidden"],
        f"{family}.feed_forward_length": SIZES["intermediate"],
        f"{family}.attention.head_count": SIZES["heads"],
        f"{family}.attention.head_count_kv": SIZES["kv_heads"],
        f"{family}.attention.key_length": head_dim,
        f"{family}.attention.value_length": head_dim,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": 5000.0,
        f"{family}.rope.dimension_count": head_dim,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.padding_token_id": END,
        "tokenizer.chat_template": TEMPLATE,
    }
    for key, value in {**values, **dict(extra)}.items():
        if key == "general.architecture" or key in without:
            continue
        adders = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        adders.get(type(value), writer.add_array)(key, value)
    generator = np.random.default_rng(0)
    for name, shape in shapes(only or family, tied=tied, head_dim=head_dim).items():
        numbers = (generator.standard_normal(shape) * 0.1).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, numbers + (1.0 if "norm" in name else 0.0))
            continue
        raw, raw_kind = quantised(numbers, kind)
        writer.add_tensor(name, raw, raw_dtype=raw_kind)
    for name, numbers in (change or {}).items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantised(numbers, kind):
    """The bytes of a matrix; where gguf cannot quantise, random blocks with scales of a sensible size."""
    of = gguf.GGMLQuantizationType[kind]
    try:
        return gguf.quantize(numbers, of), of
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[of]
        blocks = numbers.size // block
        raw = np.random.default_rng(1).integers(0, 256, (blocks, size), dtype=np.uint8)
        scale = np.frombuffer(np.float16(1e-3).tobytes(), dtype=np.uint8)
        places = {"Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,)}.get(kind, (0, 2))
        for place in places:
            raw[:, place : place + 2] = scale
        return raw.reshape(*numbers.shape[:-1], -1), of


def logits(policy, prompts):
    with torch.inference_mode():
        policy._decoding.open(len(prompts), 4)
        return policy._decoding.add(prompts, [1] * len(prompts)).float()
