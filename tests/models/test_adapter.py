"""LoRA on our decoder and on models of transformers, against PEFT on the same weights."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from greenward.common.errors import CheckpointError, ConfigError
from greenward.config.sections import LoraConfig
from greenward.models import adapter_expressions
from greenward.models.catalog import find_model
from greenward.models.heads import Critic
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import SamplingParams
from greenward.training.loop import WeightAverage

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

PROMPTS = [[5, 7, 11, 13, 17], [3, 4]]
COMPLETIONS = [[[20, 21, 22], [30], [40, 41]], [[50, 51, 52, 53]]]
KINDS = {
    "qwen2, all layers": ("qwen2", "all-linear"),
    "qwen3, queries and values": ("qwen3", ("q_proj", "v_proj")),
    "llama, gate and down": ("llama", ("gate_proj", "down_proj")),
    "gpt2 through the fallback": ("gpt2", "all-linear"),
}


def adapted(folder, *, targets="all-linear", dropout=0.0, seed=0, dtype="float32"):
    """A policy whose adapter has been moved away from its start."""
    policy = Policy.from_folder(folder, device="cpu", dtype=dtype)
    config = LoraConfig(r=4, alpha=8, dropout=dropout, target_modules=targets)
    policy.add_adapter(config, seed=seed, base=str(folder))
    move(policy)
    return policy


@torch.no_grad()
def move(policy, by=0.1):
    generator = torch.Generator().manual_seed(3)
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter += by * torch.randn(parameter.shape, generator=generator)


def scores(policy):
    return policy.completion_logprobs(GroupBatch.build(PROMPTS, COMPLETIONS)).logprobs_BT


def plain_scores(model):
    """Log-probabilities of all completions, one forward pass of `transformers` for each."""
    found = []
    for prompt, group in zip(PROMPTS, COMPLETIONS, strict=True):
        for completion in group:
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
            found.append(torch.log_softmax(logits, -1).gather(1, torch.tensor(completion)[:, None])[:, 0])
    return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def case(request, published, tmp_path_factory):
    family, targets = request.param
    folder = published(family)
    policy = adapted(folder, targets=targets)
    saved = tmp_path_factory.mktemp("saved") / "policy"
    policy.save(saved)
    return folder, policy, saved


def test_scores_and_gradients_are_those_of_peft_with_the_saved_adapter(case):
    folder, policy, saved = case
    theirs = peft.PeftModel.from_pretrained(load(folder), str(saved / "adapter"), is_trainable=True).eval()
    weights = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    expected, found = plain_scores(theirs), scores(policy)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    (expected * weights).sum().backward()
    for parameter in policy.parameters():
        parameter.grad = None
    (found * weights).sum().backward()
    trained = {
        name.removeprefix("adapter."): parameter.grad
        for name, parameter in policy.model.named_parameters()
        if parameter.grad is not None
    }
    gradients = {
        name.removeprefix("base_model.model."): parameter.grad
        for name, parameter in theirs.named_parameters()
        if parameter.grad is not None
    }
    assert trained.keys() == gradients.keys() and all(gradient.any() for gradient in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            trained[name], gradient, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_the_merged_folder_is_a_plain_model_with_the_same_scores(case):
    _, policy, saved = case
    with torch.no_grad():
        torch.testing.assert_close(plain_scores(load(saved)), scores(policy), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(scores(Policy.from_folder(saved)), scores(policy), atol=1e-5, rtol=1e-5)


def test_a_folder_of_peft_is_read_as_base_and_adapter(case):
    _, policy, saved = case
    found = find_model(str(saved / "adapter"))
    assert found.tokenizer.vocab_size == policy.tokenizer.vocab_size and found.max_positions == 128
    with torch.no_grad():
        again = scores(Policy.from_folder(saved / "adapter"))
        torch.testing.assert_close(again, scores(policy), atol=1e-5, rtol=1e-5)


def test_sampled_log_probabilities_are_those_of_training_and_dropout_is_off(case):
    folder, _, _ = case
    targets = ("c_attn", "c_proj") if "gpt2" in folder.name else ("q_proj", "down_proj")
    policy = adapted(folder, targets=targets, dropout=0.5)
    groups = policy.sample(PROMPTS, 3, SamplingParams(max_tokens=12), seed=1)
    completions = [[completion.token_ids for completion in group] for group in groups]
    batch = GroupBatch.build(PROMPTS, completions)
    with torch.no_grad():
        scored = policy.completion_logprobs(batch).logprobs_BT
    sampled = [completion.logprobs for group in groups for completion in group]
    for row, logprobs in zip(scored, sampled, strict=True):
        torch.testing.assert_close(row[: len(logprobs)], torch.from_numpy(logprobs), atol=1e-4, rtol=1e-4)
    training = policy.completion_logprobs(batch).logprobs_BT
    assert (training - scored).abs().max() > 1e-3, "dropout is on where there are gradients"
    move(policy, 0.3)
    again = policy.sample(PROMPTS, 3, SamplingParams(max_tokens=12), seed=1)
    assert any(
        (a.token_ids.tolist() != b.token_ids.tolist())
        for x, y in zip(groups, again, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_a_new_adapter_changes_nothing_and_copies_share_the_frozen_weights(case):
    folder, _, _ = case
    policy = Policy.from_folder(folder, device="cpu")
    before = scores(policy).detach()
    policy.add_adapter(LoraConfig(), seed=0)
    reference, trunk = policy.frozen_copy(), Critic(policy, separate_trunk=True)
    average = WeightAverage(policy, 0.5)
    torch.testing.assert_close(scores(policy).detach(), before)
    move(policy)
    average.on_step_end(100, [], {})
    with torch.no_grad():
        torch.testing.assert_close(scores(reference), before)
        assert (scores(policy) - before).abs().max() > 1e-2
        assert 0 < (scores(average.policy) - before).abs().max() < (scores(policy) - before).abs().max()
    frozen = {p.data_ptr() for p in policy.parameters() if not p.requires_grad}
    for copied in (reference.model, trunk.trunk, average.policy.model):
        shared = [p for p in copied.parameters() if p.data_ptr() in frozen]
        own = [p for p in copied.parameters() if p.data_ptr() not in frozen]
        assert len(shared) == len(frozen) and sum(p.numel() for p in own) == sum(
            p.numel() for p in policy.parameters() if p.requires_grad
        )
    assert not any(p.requires_grad for p in reference.parameters())
    assert len(trunk.state_dict()) == 3 + len(policy.state_dict()) - 1  # head, reward scale; a checksum less
    again = Critic(policy, separate_trunk=True)
    again.load_state_dict(trunk.state_dict())
    reference.sync(policy)
    with torch.no_grad():
        torch.testing.assert_close(scores(reference), scores(policy))


def test_state_is_the_adapter_and_refuses_that_of_another(case):
    folder, policy, _ = case
    fresh = Policy.from_folder(folder, device="cpu")
    whole = fresh.state_dict()
    fresh.add_adapter(LoraConfig(r=4, alpha=8, target_modules=policy_targets(policy)), seed=9)
    assert sum(t.numel() for t in policy.state_dict().values()) < sum(t.numel() for t in whole.values())
    fresh.load_state_dict(policy.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(scores(fresh), scores(policy))
    for other in (whole, {}, dict(list(policy.state_dict().items())[1:])):
        with pytest.raises(CheckpointError, match="not of this model's shape"):
            fresh.load_state_dict(other)


def test_the_state_of_an_adapter_for_other_weights_is_refused(published):
    one, other = (adapted(published("qwen2", initializer_range=scale)) for scale in (0.2, 0.3))
    with pytest.raises(CheckpointError, match="the model that it began from has changed"):
        one.load_state_dict(other.state_dict())


def policy_targets(policy):
    holder = getattr(policy.model, "adapter", policy.model)
    return tuple(holder.peft_config["default"].target_modules)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_gradient_checkpointing_changes_no_gradient_of_an_adapter(family, published):
    folder, gradients = published(family), []
    for enabled in (False, True):
        policy = Policy.from_folder(folder, device="cpu", gradient_checkpointing=enabled)
        policy.add_adapter(LoraConfig(), seed=0)
        move(policy)
        scores(policy).sum().backward()
        gradients.append([p.grad for p in policy.parameters() if p.requires_grad])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_in_bfloat16_frozen_weights_take_two_bytes_and_factors_four(family, published):
    policy = adapted(published(family), dtype="bfloat16")
    assert {(p.requires_grad, p.dtype) for p in policy.parameters()} == {
        (True, torch.float32),
        (False, torch.bfloat16),
    }
    (group,) = policy.sample(PROMPTS[:1], 4, SamplingParams(max_tokens=12), seed=0)
    batch = GroupBatch.build(PROMPTS[:1], [[completion.token_ids for completion in group]])
    scored = policy.completion_logprobs(batch).logprobs_BT
    scored.sum().backward()
    for row, completion in zip(scored.detach(), group, strict=True):
        found = torch.from_numpy(completion.logprobs)
        torch.testing.assert_close(row[: len(found)].float(), found, atol=0.1, rtol=0.05)


def test_the_same_seed_gives_the_same_adapter_and_leaves_the_random_state(published):
    folder = published("qwen2")
    torch.manual_seed(5)
    first = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = (adapted(folder, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.rand(1) == first
    assert all((one[name] == same[name]).all() for name in one)
    assert any((one[name] != other[name]).any() for name in one)


@pytest.mark.parametrize(("family", "there"), [("qwen2", "q_proj, k_proj"), ("gpt2", "c_attn, c_proj")])
def test_unknown_target_modules_are_refused_with_those_that_exist(family, there, published):
    policy = Policy.from_folder(published(family), device="cpu")
    with pytest.raises(ConfigError, match="no linear layer 'query'") as error:
        policy.add_adapter(LoraConfig(target_modules=("query",)), seed=0)
    assert there in str(error.value)


def test_an_adapter_whose_files_are_not_there_is_refused(published, tmp_path):
    adapted(published("qwen2")).save(tmp_path / "model")
    folder = tmp_path / "model" / "adapter"
    weights = shutil.copy(folder / "adapter_model.safetensors", tmp_path)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors, found no such file"):
        Policy.from_folder(folder)
    shutil.copy(weights, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    small = published("qwen2", hidden_size=16)
    over = shutil.copytree(folder, tmp_path / "over")
    for base, message in (
        (str(folder), "expected a model in .*, found an adapter alone"),
        (str(over), "expected a model in .*, found an adapter alone"),
        (str(tmp_path / "gone"), "the model that it belongs to is not there"),
        (None, "names none"),
        (str(small), "expected an adapter for"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
        with pytest.raises(CheckpointError, match=message):
            Policy.from_folder(folder)


def test_layers_that_an_adapter_has_nothing_for_are_named(published, tmp_path):
    adapted(published("qwen2")).save(tmp_path / "model")
    file = tmp_path / "model" / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({name: one for name, one in tensors.items() if "layers.1.self_attn.q_proj" not in name}, file)
    with pytest.raises(CheckpointError, match=r"missing adapter keys.*layers\.1\.self_attn\.q_proj") as error:
        Policy.from_folder(file.parent, device="cpu")
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("wrong", [{"r": 10**9}, {"rank_pattern": {"q_proj": 10**9}}, {"r": "x"}, {"r": []}])
def test_a_rank_that_the_weights_do_not_have_takes_no_memory(published, tmp_path, wrong):
    adapted(published("qwen2")).save(tmp_path / "model")
    folder = tmp_path / "model" / "adapter"
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | wrong))
    with pytest.raises(
        CheckpointError, match=r"largest size in adapter_model\.safetensors|not an adapter of PEFT"
    ):
        Policy.from_folder(folder, device="cpu")


def with_config(saved, **changes):
    """The adapter of a saved model, with a changed config."""
    config = json.loads((saved / "adapter" / "adapter_config.json").read_text())
    (saved / "adapter" / "adapter_config.json").write_text(json.dumps(config | changes))
    return saved / "adapter"


@pytest.mark.parametrize(
    "hostile",
    [
        {"target_modules": r"(\w+\.?)+!"},
        {"rank_pattern": {r"(([a-z]|_|\w)*)*!": 4}},
        pytest.param({"target_modules": "(.|.|.)" * 20 + "!"}, marks=pytest.mark.slow),
        pytest.param({"exclude_modules": "(.*)" * 12 + "!"}, marks=pytest.mark.slow),
        pytest.param({"modules_to_save": ["x", r"([^!]|\w)*!"]}, marks=pytest.mark.slow),
    ],
)
def test_an_expression_that_backtracks_without_end_is_refused(published, tmp_path, monkeypatch, hostile):
    monkeypatch.setattr(adapter_expressions, "CPU_SECONDS", 1)
    adapted(published("qwen2")).save(tmp_path / "model")
    folder = with_config(tmp_path / "model", **hostile)
    with pytest.raises(CheckpointError, match="layers in 1 s, found") as error:
        Policy.from_folder(folder, device="cpu")
    assert "!" in str(error.value) and "target_modules" in str(error.value)


@pytest.mark.parametrize(
    "usual",
    [
        r"(?:.*?(?:language|text|model).*?(?:self_attn|mlp).*?(?:q|k|v|o|gate|up|down)_proj.*?)|(?:\bx\b)",
        r"^(?!.*visual).*_proj$",
    ],
)
def test_expressions_of_published_adapters_select_their_layers(published, tmp_path, usual):
    adapted(published("qwen2")).save(tmp_path / "model")
    before = scores(Policy.from_folder(tmp_path / "model" / "adapter", device="cpu"))
    folder = with_config(
        tmp_path / "model", target_modules=usual, rank_pattern={r"model\.layers\.\d+\..*": 4}
    )
    torch.testing.assert_close(scores(Policy.from_folder(folder, device="cpu")), before)


def test_what_is_no_expression_is_refused_as_before(published, tmp_path):
    adapted(published("qwen2")).save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="expected an adapter for"):
        Policy.from_folder(with_config(tmp_path / "model", target_modules="(q_proj|*"), device="cpu")
