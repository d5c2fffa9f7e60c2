"""The memory estimate beside what models, autograd and PEFT really hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from greenward.config.loading import load_recipe
from greenward.models.attention import SharedPrefixAttention
from greenward.models.decoder import Decoder, DecoderShape
from greenward.models.kernels.build import kernels
from greenward.models.kernels.step import KernelStep
from greenward.models.memory import (
    LORA_TARGETS,
    Workload,
    activations,
    adapter_parameters,
    advice,
    estimate,
    model_shape,
    parameters,
)
from greenward.models.scoring import GroupBatch

SHAPE = DecoderShape(
    vocab_size=512,
    hidden_size=128,
    layers=4,
    heads=8,
    kv_heads=2,
    head_dim=16,
    intermediate_size=352,
    max_positions=512,
)
WORK = Workload(
    dtype_bytes=4,
    answers_per_step=16,
    answers_per_prompt=4,
    micro_batch=8,
    prompt_tokens=96,
    completion_tokens=64,
)
BILLION = replace(SHAPE, vocab_size=32000, hidden_size=2048, layers=24, head_dim=256, intermediate_size=5632)


@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        replace(SHAPE, tied_embeddings=False, qkv_bias=True),
        replace(SHAPE, qk_norm=True, head_dim=32, kv_heads=8),
    ],
)
def test_parameters_are_those_of_the_decoder(shape: DecoderShape) -> None:
    with torch.device("meta"):
        decoder = Decoder(shape)
    assert parameters(shape) == sum(parameter.numel() for parameter in decoder.parameters())


@pytest.mark.skipif(kernels() is None, reason="no compiled kernels on this machine")
@pytest.mark.parametrize("intermediate_size", [352, 1024])
def test_small_decoders_sample_from_matrices_of_their_own(intermediate_size: int) -> None:
    shape = replace(SHAPE, intermediate_size=intermediate_size)
    decoder = Decoder(shape)
    step = KernelStep.of(decoder)
    assert (step is None) == (intermediate_size > 352)
    matrices = [weight for weight in step._kept if weight.dim() == 2] if step else []
    held = sum(4 * weight.numel() for weight in matrices if weight.data_ptr() != decoder.embedding.data_ptr())
    assert estimate(shape, WORK).state.get("weights for sampling", 0) == held
    assert estimate(shape, replace(WORK, lora_rank=4)).state.get("weights for sampling", 0) == 0


@pytest.mark.parametrize(
    ("size", "published"),  # the totals in the tensors of the published checkpoints
    [
        ("0.5B", 494_032_768),
        ("1.5B", 1_543_714_304),
        ("3B", 3_085_938_688),
        ("7B", 7_615_616_512),
        ("14B", 14_770_033_664),
        ("32B", 32_763_876_352),
    ],
)
def test_the_shapes_of_qwen_need_no_network(size: str, published: int) -> None:
    recipe = load_recipe("quickstart", [f"model=Qwen/Qwen2.5-Coder-{size}-Instruct"])
    known = model_shape(recipe)
    assert known is not None and parameters(known[0]) == published


def test_adapters_are_those_of_peft() -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=352,
        head_dim=16,
    )
    shape = replace(SHAPE, layers=2)
    for targets in (LORA_TARGETS, ("q_proj", "v_proj")):
        lora = peft.LoraConfig(r=6, target_modules=list(targets))
        model = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert adapter_parameters(shape, 6, targets) == trained


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_what_autograd_keeps(dtype: torch.dtype, checkpointing: bool) -> None:
    decoder = Decoder(SHAPE, compute_dtype=dtype)
    decoder.initialise(torch.Generator().manual_seed(0))
    decoder.gradient_checkpointing = checkpointing
    weights = {p.untyped_storage().data_ptr() for p in decoder.parameters()}
    work = replace(WORK, dtype_bytes=dtype.itemsize, gradient_checkpointing=checkpointing)
    answers = [[[3] * work.completion_tokens] * work.answers_per_prompt] * 2
    batch = GroupBatch.build([[1] * work.prompt_tokens, [2] * work.prompt_tokens], answers)
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = decoder(batch.token_ids_M, SharedPrefixAttention(decoder, batch))
        loss = (hidden @ decoder.unembedding_VE.t()).sum()
    bytes_kept = sum(storage.nbytes() for storage in kept.values())
    expected = activations(SHAPE, work)
    if checkpointing:  # what one layer keeps is made again in the backward pass
        one, none = (replace(SHAPE, layers=layers, vocab_size=0) for layers in (1, 0))
        whole = replace(work, gradient_checkpointing=False)
        expected -= activations(one, whole) - activations(none, whole)
    assert loss.isfinite()
    assert bytes_kept == pytest.approx(expected, rel=0.15)


def test_the_state_of_training_is_four_times_the_weights_and_less_with_adapters_or_shards() -> None:
    found = estimate(BILLION, WORK)
    weights = 4 * parameters(BILLION)
    assert found.state["weights"] == found.training["gradients"] == weights
    assert found.state["optimizer"] == 2 * weights
    lora = estimate(BILLION, replace(WORK, lora_rank=16, reference=True))
    assert "reference" not in lora.state  # the base weights themselves
    assert lora.state["optimizer"] == 8 * adapter_parameters(BILLION, 16)
    assert lora.state["weights"] == weights and lora.total < 0.55 * found.total
    assert found.packed == weights and "weights for sampling" not in found.state  # given back for the update
    half = estimate(BILLION, replace(WORK, lora_rank=16, dtype_bytes=2))
    assert half.state["weights"] == weights // 2  # frozen weights are kept in the type of the arithmetic
    sharded = estimate(BILLION, replace(WORK, shards=8))
    assert sharded.state["optimizer"] == found.state["optimizer"] // 8
    imitates = estimate(BILLION, replace(WORK, imitates=True, copies=1))  # the copy is the critic's
    assert imitates.state["optimizer"] == (2 * 2 + 2) * weights


def test_other_engines_and_models_of_transformers_count() -> None:
    ours = estimate(BILLION, WORK)
    engine = estimate(BILLION, replace(WORK, engine_bytes=10**9))
    assert engine.state["other engine"] == 10**9 and "keys and values" not in engine.state
    assert engine.sampling == 0
    whole_logits = 8 * (96 + 64) * 32000 * 4
    assert ours.packed < sum(ours.training.values())
    assert estimate(BILLION, replace(WORK, native=False)).total > ours.total + whole_logits


def test_the_advice_is_the_mildest_change_that_fits() -> None:
    work = replace(WORK, completion_tokens=2048, micro_batch=16)
    limits = [estimate(BILLION, one).total for one in (work, replace(work, micro_batch=8))]
    assert advice(BILLION, work, limits[0] - 1) == "training.micro_batch_sequences=8"
    state = sum(estimate(BILLION, work).state.values()) + 4 * parameters(BILLION)
    enough = advice(BILLION, work, int(state * 1.1))
    assert enough is not None and "model.gradient_checkpointing=true" in enough and "lora" not in enough
    adapter = advice(BILLION, work, state // 2)
    assert adapter is not None and "model.lora.r=16" in adapter
    assert advice(BILLION, work, 1 << 30) is None
