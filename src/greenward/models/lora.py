"""Adapts our decoder or models of `transformers` by LoRA (Hu et al. 2021, arXiv 2106.09685), with PEFT.

An adapted model has frozen weights, kept in the type of the arithmetic, and the trained factors of PEFT's
layers in float32. Copies of it share the frozen weights, so that a reference policy, an opponent or a
critic's trunk costs one more pair of factors for each matrix and no second model. In our decoder the layers
stand in `Decoder.adapter`, a tree of modules with the names that `transformers` gives, from which `LowRank`
reads the factors of each fused matrix.
A checkpoint is a plain model folder with the adapter merged. Its folder `adapter` holds PEFT's files, for
the model that training began from; in bfloat16 prefer it to the merged weights, in which small changes are
rounded away. `model.id` may name such a folder, or an adapter trained elsewhere of any kind that PEFT can
merge: it is merged into its base, and `model.lora` then adds a new one. A model from random weights needs a
`warm_start`, which trains all its weights.
Shape suffixes: M tokens, E inputs and O outputs of a matrix, R the ranks of all its parts together.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from greenward.common.errors import CheckpointError, ConfigError
from greenward.common.files import expecting
from greenward.config.sections import LoraConfig
from greenward.models import adapter_expressions
from greenward.models.checkpoint import ADAPTER_CONFIG, published_tensors, transformers_model
from greenward.models.decoder import Decoder, DecoderLayer, is_adapted
from greenward.models.tokenizer import read_json

FOLDER, WEIGHTS_FILE = "adapter", "adapter_model.safetensors"
"""Where a checkpoint holds PEFT's files, beside the merged weights, and the one with the factors."""
_NAME = "default"  # of the one adapter that a model has, as PEFT calls it
_FACTOR = ".lora_"  # is in the names of factors and of nothing else
_SUMMED_AT_ONCE = 1 << 22  # numbers
_CHECKSUM = "frozen_checksum"  # of a state, beside the factors
_SAVED_PREFIX = "base_model.model."  # of names in PEFT's files
_MOST_REASON = 300  # characters of an error of another library
_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The published matrices in each fused one, in their order."""
NATIVE_TARGETS = tuple(part.rpartition(".")[2] for parts in _PARTS.values() for part in parts)


class LowRank:
    """The change of one fused matrix of our decoder: the factors of its parts that have an adapter."""

    def __init__(self, size: int, parts: Sequence[tuple[int, Any]]) -> None:
        """`parts` are the first row of each part in the matrix, which has `size` rows, and PEFT's layer."""
        self._size = size
        self._parts = parts
        self._fixed: tuple[Tensor, Tensor] | None = None

    def __call__(self, out_MO: Tensor, x_ME: Tensor) -> Tensor:
        """`out_MO` and what the change adds to it; dropout, one mask for all parts, with gradients only."""
        down_RE, up_OR = self._fixed or self._factors(x_ME.dtype)
        rate = getattr(self._parts[0][1].lora_dropout[_NAME], "p", 0.0)
        if rate and torch.is_grad_enabled():
            x_ME = F.dropout(x_ME, rate)
        return torch.addmm(out_MO, x_ME @ down_RE.t(), up_OR.t())

    def fixed(self, dtype: torch.dtype) -> LowRank:
        """The same with the factors as they are now, which are not put together at every use."""
        same = LowRank(self._size, self._parts)
        same._fixed = self._factors(dtype)
        return same

    def _factors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        down_RE = torch.cat([layer.lora_A[_NAME].weight for _, layer in self._parts]).to(dtype)
        up_OR = down_RE.new_zeros(self._size, len(down_RE))
        rank = 0
        for start, layer in self._parts:
            up = layer.lora_B[_NAME].weight * layer.scaling[_NAME]
            up_OR[start : start + len(up), rank : rank + up.shape[1]] = up
            rank += up.shape[1]
        return down_RE, up_OR


def check_lora(config: LoraConfig, *, native: bool) -> None:
    """Raises `ConfigError` for an adapter that cannot be made here.

    The target modules are checked of models that our decoder computes (`native`), whose layers are known.
    """
    require_peft("model.lora")
    if config.quantize is not None:
        reason = "greenward does not train on quantised weights yet"
        if not torch.cuda.is_available():
            reason = "QLoRA needs a CUDA GPU, and torch finds none"
        elif find_spec("bitsandbytes") is None:
            reason = "QLoRA needs bitsandbytes, which is not installed, and " + reason
        raise ConfigError(
            f"model.lora.quantize={config.quantize}: {reason}.",
            remedy="Leave it out: with model.dtype=bfloat16 a frozen weight takes 2 bytes.",
        )
    if native:
        target_modules(config, NATIVE_TARGETS)


def require_peft(what: str) -> None:
    """Raises `ConfigError` where PEFT, which `what` needs, is not installed."""
    if find_spec("peft") is None:
        raise ConfigError(
            f"{what} needs PEFT, which is not installed.", remedy="pip install 'greenward[peft]'"
        )


def target_modules(config: LoraConfig, linears: Sequence[str]) -> list[str]:
    """The layers that are changed, of `linears`, the names of those that there are.

    Raises `ConfigError` for others.
    """
    if config.target_modules == "all-linear":
        return list(linears)
    if unknown := sorted(set(config.target_modules) - set(linears)):
        raise ConfigError(
            f"model.lora.target_modules: the model has no linear layer {unknown[0]!r}.",
            remedy=f"It has {', '.join(linears)}; all-linear names them all.",
        )
    return list(config.target_modules)


def add_adapter(
    model: nn.Module, config: LoraConfig, *, seed: int, dtype: torch.dtype, base: str | None = None
) -> None:
    """Freeze `model`, in `dtype`, and give it a new adapter, which changes nothing until it is trained.

    `base` is the model's id or folder, for the adapter's files. Raises `ConfigError` without PEFT and for
    target modules that the model does not have.
    """
    require_peft("model.lora")
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    holder = _published_linears(model) if isinstance(model, Decoder) else model
    targets = target_modules(config, _linear_names(holder))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that weights of GPT-2 are transposed, which PEFT heeds itself
        torch.manual_seed(seed)
        peft_config = PeftConfig(
            r=config.r,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            target_modules=targets,
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
        )
        inject_adapter_in_model(peft_config, holder)
    frozen = [p for name, p in model.named_parameters() if _FACTOR not in name]
    bits = {2: torch.int16, 4: torch.int32}
    numbers = (p.detach().view(bits[p.element_size()]).flatten() for p in frozen)
    # In parts: a sum in another type first casts all of what it adds up.
    sums = (int(part.sum(dtype=torch.int64)) for one in numbers for part in one.split(_SUMMED_AT_ONCE))
    model.frozen_checksum = torch.tensor(sum(sums) % 2**62)
    for parameter in frozen:  # now, since PEFT makes factors of the type of the weights
        parameter.requires_grad_(False).data = parameter.to(dtype)
    if isinstance(model, Decoder):
        model.adapter = holder
        _connect(model)


def set_dropout(model: nn.Module, enabled: bool) -> None:
    """Switch the dropout of an adapter, whatever the model's own dropout does."""
    for layer in _layers(model).values():
        layer.lora_dropout.train(enabled)


def adapter_state(model: Any) -> dict[str, Tensor]:
    """The factors by their names in `model`, and a checksum of the weights that they belong to."""
    factors = {name: tensor for name, tensor in model.state_dict().items() if _FACTOR in name}
    return {**factors, _CHECKSUM: model.frozen_checksum}


def load_adapter_state(model: Any, state: Mapping[str, Tensor]) -> None:
    """The inverse of `adapter_state`. Raises `RuntimeError` for the state of something else."""
    factors = {name: tensor for name, tensor in state.items() if name != _CHECKSUM}
    if not torch.equal(state.get(_CHECKSUM, torch.tensor(-1)), model.frozen_checksum):
        raise RuntimeError("it is of an adapter for other weights; the model that it began from has changed")
    missing, unexpected = model.load_state_dict(factors, strict=False)
    if wrong := [*unexpected, *(name for name in missing if _FACTOR in name)]:
        raise RuntimeError(f"{wrong[0]} is in one of the two adapters only")


def shared_copy(model: nn.Module) -> Any:
    """A copy to be trained apart: of an adapted model with its own factors, on the same frozen weights."""
    if not is_adapted(model):
        return copy.deepcopy(model).requires_grad_()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copied = copy.deepcopy(model, {id(t): t for name, t in tensors.items() if _FACTOR not in name})
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(_FACTOR in name)
    return copied


def fix_factors(source: Decoder, target: Decoder) -> None:
    """Let a copy of `source` compute with its factors as they are now."""
    for ours, theirs in zip(target.layers, source.layers, strict=True):
        assert isinstance(ours, DecoderLayer) and isinstance(theirs, DecoderLayer)
        ours.low_rank = {name: one.fixed(source.compute_dtype) for name, one in theirs.low_rank.items()}


def merged(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """`tensors` of `model` under their published names, each with what its adapter adds to it."""
    layers = _layers(model)
    for name, tensor in tensors.items():
        if _FACTOR in name:
            continue
        published = name.replace(".base_layer.", ".")
        if published.endswith(".weight") and (layer := layers.get(published.removesuffix(".weight"))):
            tensor = tensor.float() + layer.get_delta_weight(_NAME)
        yield published, tensor


@torch.no_grad()
def save_adapter(model: nn.Module, folder: Path) -> None:
    """Write PEFT's files, which load onto the model of `transformers` with the same frozen weights."""
    from peft import get_peft_model_state_dict

    holder = _holder(model)
    state = get_peft_model_state_dict(holder, save_embedding_layers=False)
    folder.mkdir()
    tensors = {_SAVED_PREFIX + name: tensor.cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = copy.copy(holder.peft_config[_NAME])
    config.inference_mode = True
    config.save_pretrained(str(folder))


def read_merged(folder: Path, base: Path) -> Any:
    """The model of `transformers` in `base` with the adapter in `folder`, of any kind that PEFT can merge.

    Raises `CheckpointError` for an adapter that is damaged or belongs to another model.
    """
    require_peft(f"the adapter in {folder}")
    from peft import PeftModel

    if not (folder / WEIGHTS_FILE).is_file():
        raise CheckpointError(
            f"expected the weights of an adapter in {folder / WEIGHTS_FILE}, found no such file"
        )
    _demand_rank(folder)
    try:
        model = transformers_model(base)
        _demand_quick_expressions(folder, model)
        with warnings.catch_warnings():  # layers that the file has nothing for would stay as they are
            warnings.filterwarnings("error", message=".*Found missing adapter keys")
            return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    except CheckpointError:
        raise
    except Exception as error:  # of many libraries
        reason = str(error).partition("\n")[0][:_MOST_REASON]
        raise CheckpointError(f"expected an adapter for {base} in {folder}, found: {reason}") from error


def _demand_rank(folder: Path) -> None:
    """Raises `CheckpointError` for a rank above every size in the adapter's weights, which PEFT would make
    room for before it reads them.
    """
    config, weights = folder / ADAPTER_CONFIG, folder / WEIGHTS_FILE
    with expecting("an adapter of PEFT", folder, CheckpointError, SafetensorError):
        said = read_json(config)
        ranks = [said.get("r", 0), *(said.get("rank_pattern") or {}).values()]
        with safe_open(weights, framework="pt") as file:
            sizes = [size for name in file.keys() for size in file.get_slice(name).get_shape()]  # noqa: SIM118
        if max(ranks) > (largest := max(sizes, default=0)):
            raise CheckpointError(
                f"expected a rank of at most {largest:,} in {config}, which is the largest size in "
                f"{WEIGHTS_FILE}, found {max(ranks):,}",
                remedy="Config and weights are of different adapters: fetch both again.",
            )


def _demand_quick_expressions(folder: Path, model: nn.Module) -> None:
    """Raises `CheckpointError` for an expression that PEFT would match without end."""
    names = [name for name, _ in model.named_modules()]
    if slow := adapter_expressions.slow_expression(read_json(folder / ADAPTER_CONFIG), names):
        raise CheckpointError(
            f"expected regular expressions in {folder / ADAPTER_CONFIG} that are matched with the names of "
            f"the model's layers in {adapter_expressions.CPU_SECONDS} s, found {slow[:_MOST_REASON]!r}",
            remedy='Name the layers in a list, as in "target_modules": ["q_proj", "v_proj"].',
        )


def _holder(model: nn.Module) -> Any:
    return model.adapter if isinstance(model, Decoder) else model


def _layers(model: nn.Module) -> dict[str, Any]:
    """PEFT's layers by the published name of the layer that they change."""
    modules = _holder(model).named_modules() if is_adapted(model) else ()
    return {name: module for name, module in modules if hasattr(module, "lora_A")}


def _linear_names(model: Any) -> tuple[str, ...]:
    """The last parts of the names of all linear layers, the output projection aside."""
    from transformers.pytorch_utils import Conv1D

    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    names = (
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not output
    )
    return tuple(dict.fromkeys(names))


def _published_linears(decoder: Decoder) -> nn.Module:
    """Empty modules with the names and sizes of the decoder's matrices in `transformers`."""
    tree = nn.Module()
    one = decoder.embedding.new_empty((), dtype=torch.float32)
    for name, tensor in published_tensors(decoder).items():
        *path, leaf = name.removesuffix(".weight").split(".")
        if not name.endswith("_proj.weight"):
            continue
        parent = tree
        for part in path:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        linear = nn.Linear(tensor.shape[1], tensor.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(one.expand(tensor.shape), requires_grad=False)  # takes no memory
        parent.add_module(leaf, linear)
    return tree


def _connect(decoder: Decoder) -> None:
    """Let each layer of the decoder compute with the adapters of its matrices."""
    found = _layers(decoder)
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer)
        for fused, names in _PARTS.items():
            start, parts = 0, []
            for name in (f"model.layers.{index}.{name}" for name in names):
                if name in found:
                    parts.append((start, found[name]))
                start += _holder(decoder).get_submodule(name).out_features
            if parts:
                layer.low_rank[fused] = LowRank(start, parts)
    for module in found.values():
        module.base_layer = nn.Identity()  # the decoder's own matrix
