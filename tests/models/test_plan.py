"""Plans for GPUs that are not at hand: figures of data sheets, and times in closed form."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from test_memory import BILLION, WORK

from greenward.cli.main import cli
from greenward.common.errors import ConfigError
from greenward.config.loading import load_recipe, shipped_folder
from greenward.models.memory import GPUS, find_gpu, make_plan, model_shape, parameters


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("H100", "h100"),
        ("NVIDIA A100-80GB", "a100"),
        ("a100 40gb", "a100-40"),
        ("RTX 4090", "4090"),
        ("A100-SXM4-80GB", "a100"),
        ("NVIDIA RTX 4090 24GB", "4090"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
    ],
)
def test_gpus_are_found_however_they_are_written(written: str, key: str) -> None:
    assert find_gpu(written) == GPUS[key]


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"found 'h10'(.|\n)*Nearest: h100"):
        find_gpu("h10")


def test_the_step_is_work_over_peak_over_utilisation() -> None:
    work = replace(WORK, answers_per_step=64, dtype_bytes=2)
    gpu = GPUS["h100"]
    plan = make_plan(BILLION, work, gpu, 2)
    tokens = 8 * 96 + 32 * 64  # of each of two GPUs: 8 prompts, 32 answers
    seconds = 6 * parameters(BILLION) * tokens / 989e12
    assert plan.training_seconds == pytest.approx((seconds / 0.5, seconds / 0.2))
    keys_and_values = 2 * 24 * 2 * 256 * 2 * (96 + 32) * 32  # half of an answer is there on average
    token = (2 * parameters(BILLION) + keys_and_values) / 3350e9
    prefill = 2 * parameters(BILLION) * 8 * 96 / 989e12
    assert plan.sampling_seconds[0] == pytest.approx((64 * token + prefill) / 0.6)
    longer = make_plan(BILLION, replace(work, gradient_checkpointing=True, reference=True), gpu, 2)
    assert longer.training_seconds[0] == pytest.approx(plan.training_seconds[0] * 10 / 6)
    assert plan.sharded is not None
    assert plan.sharded.state["optimizer"] == plan.memory.state["optimizer"] // 2


CODE_REPAIR = ("grpo_code_repair", "grpo_spec", "grpo_vulnerability", "grpo_agent_repair")


@pytest.mark.parametrize("recipe", CODE_REPAIR)
@pytest.mark.parametrize(("size", "gpus"), [("7B", "1"), ("14B", "4")])
@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_adapters_of_the_models_that_recipes_name_fit_the_gpus_that_they_name(
    recipe: str, size: str, gpus: str, gpu: str
) -> None:
    text = (shipped_folder() / f"{recipe}.yaml").read_text()
    assert size in text and "model.lora.r=32" in text
    model = (f"model=Qwen/Qwen2.5-Coder-{size}-Instruct", "model.lora.r=32")
    shown = CliRunner().invoke(cli, ["plan", recipe, "--gpu", gpu, "--gpus", gpus, *model])
    assert shown.exit_code == 0 and "whole copies: " in shown.output and ": fits" in shown.output
    assert "NOT" not in shown.output and "sharded" not in shown.output  # which an adapter cannot be


@pytest.mark.parametrize("gpu", ["v100", "a100", "h200"])
def test_gradient_checkpointing_is_on_where_training_does_not_fit_without(gpu: str) -> None:
    said = []
    for asked in ("auto", "false", "true"):
        command = ["plan", "quickstart", "--gpu", gpu, "model=Qwen/Qwen2.5-3B", "model.lora.r=16"]
        asked = f"model.gradient_checkpointing={asked}"
        shown = CliRunner().invoke(cli, [*command, "training.micro_batch_sequences=8", asked])
        peak = re.search(r"whole copies: ([\d.]+) GiB", shown.output)
        assert peak
        said.append((float(peak[1]), "checkpointing: on" in shown.output))
    (of_auto, is_on), (without, _), (with_it, _) = said
    assert is_on == (1.15 * without > GPUS[gpu].memory) and of_auto == (with_it if is_on else without)
    assert is_on == (gpu == "v100")


def test_sharding_counts_the_whole_copies_that_each_process_keeps() -> None:
    plan = make_plan(BILLION, replace(WORK, dtype_bytes=2, reference=True), GPUS["h100"], 4)
    assert plan.sharded is not None
    whole = 2 * parameters(BILLION)
    assert plan.sharded.state["reference"] == plan.sharded.state["weights for sampling"] == whole
    assert plan.sharded.total >= sum(plan.sharded.state.values()) + 4 * parameters(BILLION)  # while renewed


def test_the_command_says_what_fits_what_it_costs_and_that_nothing_was_measured() -> None:
    command = [
        "plan",
        "quickstart",
        "--gpu",
        "h100",
        "--gpus",
        "8",
        "--price",
        "2.5",
        "model=Qwen/Qwen2.5-7B",
    ]
    shown = CliRunner().invoke(cli, command)
    assert shown.exit_code == 0, shown.output
    assert "unmeasured" in shown.output and "7,615.6 M parameters" in shown.output
    assert "whole copies: " in shown.output and "does NOT fit" in shown.output
    assert "sharded: " in shown.output and "cost at 2.5 an hour" in shown.output
    toy = CliRunner().invoke(cli, ["plan", "quickstart", "--gpu", "l4"])
    assert toy.exit_code == 0 and ": fits" in toy.output and "cost" not in toy.output
    assert "0.0 to 0.0" not in toy.output and "a step: 0.0" in toy.output
    unknown = CliRunner().invoke(cli, ["plan", "quickstart", "--gpu", "l4", "model=owner/unknown"])
    assert isinstance(unknown.exception, ConfigError) and "not in the cache" in str(unknown.exception)


@pytest.mark.parametrize(
    ("name", "config", "millions"),
    [
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen2Config", 7615.6),
        ("Qwen/Qwen3-0.6B", "Qwen3Config", 596.0),  # without the head, which is the embedding
        ("Qwen/Qwen3-8B", "Qwen3Config", 8190.7),
        ("Qwen/Qwen3-14B-Base", "Qwen3Config", 14768.3),
    ],
)
def test_published_shapes_have_the_sizes_of_their_models(name: str, config: str, millions: float) -> None:
    """The numbers of weights are those that the hub gives; they are counted by transformers as well."""
    transformers = pytest.importorskip("transformers")
    known = model_shape(load_recipe("quickstart", [f"model={name}"]))
    assert known is not None and parameters(known[0]) / 1e6 == pytest.approx(millions, abs=0.06)
    shape = known[0]
    made = getattr(transformers, config)(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size, tie_word_embeddings=shape.tied_embeddings,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    assert model.num_parameters() == parameters(shape)
