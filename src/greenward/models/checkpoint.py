"""Reads and writes model folders in the form in which models are published on Hugging Face.

Weights are safetensors; PyTorch's own files are read with `weights_only=True`, and `trust_remote_code` is
never set. A config that asks for more parameters than the weights have bytes is refused, and so is a
tokenizer that can make a text more than 1,500 times as long. The header of a GGUF file is checked before a
library reads it.

The decoder's fused matrices have on disk the names and shapes that `transformers` and vLLM expect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from greenward.common.errors import CheckpointError
from greenward.common.files import UNEXPECTED, expecting
from greenward.common.interruption import check
from greenward.common.records import check_types
from greenward.models import gguf
from greenward.models.decoder import Decoder, DecoderLayer, DecoderShape, RopeScaling
from greenward.models.gguf import without_later_parts
from greenward.models.heap import return_free_pages
from greenward.models.tokenizer import Tokenizer, read_json
from greenward.runs.output import replace_folder
from greenward.runs.reading import is_run

ADAPTER_CONFIG = "adapter_config.json"
_SHAPE_KEYS = {  # of `DecoderShape` and of config.json
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "layers": "num_hidden_layers",
    "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim",
    "intermediate_size": "intermediate_size", "max_positions": "max_position_embeddings",
    "norm_eps": "rms_norm_eps", "rope_theta": "rope_theta", "tied_embeddings": "tie_word_embeddings",
}  # fmt: skip
_REQUIRED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
_FILE_BYTES = 384 << 20  # of weights in a file, where there is more than one
_TOO_LARGE = 1 << 31  # for any number of a shape
_NAME_BYTES = 255  # of a file


def local_folder(model_id: str) -> Path | None:
    """The folder of a model on this machine; None for a Hugging Face id.

    Raises `CheckpointError` for what is neither, naming the nearest folder. A missing name beside runs is no
    Hugging Face id.
    """
    folder = Path(model_id).expanduser()
    if folder.is_file():
        return gguf.unpacked(folder)
    if folder.is_dir():
        last = folder / "checkpoints" / "last"
        return last if last.is_dir() else _unpacked(folder)
    if os.path.lexists(folder):
        found = "neither a folder nor a regular file" if folder.exists() else "a link that leads nowhere"
        raise CheckpointError(
            f"expected a model folder, a GGUF file or a Hugging Face id (owner/name), found {model_id!r}, "
            f"which is {found}"
        )
    beside = [one for one in folder.parent.glob("*") if one.is_dir() or one.suffix == ".gguf"]
    is_id = model_id.count("/") == 1 and not model_id.startswith((".", "/", "~"))
    is_id &= not model_id.endswith(".gguf")
    if is_id and not any(map(is_run, beside)):
        return None
    near = get_close_matches(str(folder), map(str, beside), n=1)
    raise CheckpointError(
        f"expected a model folder, a GGUF file or a Hugging Face id (owner/name), found {model_id!r}: "
        "no such folder or file",
        remedy=f"Did you mean {near[0]!r}?" if near else None,
    )


def _unpacked(folder: Path) -> Path:
    """`folder`, or what stands for the one GGUF file in it where it holds no model of another form."""
    if any((folder / name).exists() for name in ("config.json", ADAPTER_CONFIG)):
        return folder
    files = without_later_parts(sorted(folder.glob("*.gguf")))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:8])
        raise CheckpointError(f"{folder} holds {len(files)} GGUF files: {names}", remedy="Name one of them.")
    return gguf.unpacked(files[0]) if files else folder


def resolve(model_id: str, cache_dir: str | None = None, *, offline: bool = False) -> Path:
    """The local folder of a model folder, a run directory or a Hugging Face id (fetched or cached).

    A GGUF file has one, too; see `gguf.unpacked`. Raises `CheckpointError` for what is no model.

    `offline` takes it from the cache, without a connection.
    """
    if folder := local_folder(model_id):
        if not (folder / ADAPTER_CONFIG).is_file():
            demand_config(folder)
        return folder
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"model {model_id!r} must be fetched from the hub, and huggingface_hub is not installed",
            remedy="pip install 'greenward[hf]', or give a local folder",
        ) from error
    patterns = ["*.json", "*.safetensors", "*.jinja", "README.md"]  # whose first lines name the licence
    try:
        return Path(
            snapshot_download(
                model_id, cache_dir=cache_dir, allow_patterns=patterns, local_files_only=offline
            )
        )
    except Exception as error:  # the hub client raises a dozen unrelated types
        reason = str(error).partition("\n")[0]
        if offline:
            raise CheckpointError(
                f"model.offline is set, and model {model_id!r} is not in {cache_dir or 'the cache'}",
                remedy=f"Where there is a network: hf download {model_id}"
                + (f" --cache-dir {cache_dir}" if cache_dir else "")
                + "; or set model.offline=false.",
            ) from error
        raise CheckpointError(
            f"model {model_id!r} could not be fetched and is not in the cache: {reason}",
            remedy="check the id and the connection, or give a local folder",
        ) from error


def base_folder(folder: Path) -> Path | None:
    """The folder of the model that the PEFT adapter in `folder` belongs to; None where there is no adapter.

    Raises `CheckpointError` for an adapter whose base is not there.
    """
    config = folder / ADAPTER_CONFIG
    if not config.is_file() or (folder / "config.json").is_file():
        return None
    base = read_json(config).get("base_model_name_or_path")
    try:
        if not isinstance(base, str):
            raise CheckpointError("its base_model_name_or_path names none")
        found = resolve(base)
        demand_config(found)
        return found
    except CheckpointError as error:
        raise CheckpointError(
            f"{folder} is an adapter, and the model that it belongs to is not there: {error.message}",
            remedy=f"Set base_model_name_or_path in {config} to the folder or the id of that model.",
        ) from error


def demand_config(folder: Path) -> None:
    """Raises `CheckpointError` for a folder without the config of a model."""
    if (folder / "config.json").is_file():
        return
    found = "an adapter alone" if (folder / ADAPTER_CONFIG).is_file() else "no config.json"
    raise CheckpointError(
        f"expected a model in {folder}, found {found}",
        remedy="Name a folder with config.json, model.safetensors and tokenizer.json, or a .gguf file.",
    )


def holding(name: str, folder: Path) -> Path:
    """`folder`, or that of the base if `folder` holds an adapter without a file of this name."""
    return folder if (folder / name).is_file() else base_folder(folder) or folder


def read_shape(folder: Path) -> DecoderShape | None:
    """The decoder's shape from config.json; None where that asks for what the decoder does not compute."""
    demand_config(folder)
    config = read_json(folder / "config.json")
    with expecting("the config of a model", folder / "config.json", CheckpointError):
        _, rope_kind = _rope_of(config)
        computed = (
            config.get("model_type") in gguf.FAMILIES
            and rope_kind in ("default", "llama3")
            and config.get("hidden_act", "silu") == "silu"
            and not any(config.get(key) for key in ("attention_bias", "mlp_bias", "use_sliding_window"))
            and "quantization_config" not in config
        )
    return shape_of(config, folder) if computed else None


def shape_of(config: Mapping[str, Any], folder: Path) -> DecoderShape:
    """The shape that config.json gives under the names that most decoders use.

    Raises `CheckpointError`, naming `folder`, where one is missing or no shape has its value.
    """
    with expecting("the config of a model", folder / "config.json", CheckpointError):
        family, (rope, rope_kind) = config.get("model_type"), _rope_of(config)
        given = {key: value for key, value in {**config, **rope}.items() if value is not None}
        if missing := [key for key in _REQUIRED if key not in given]:
            raise CheckpointError(f"expected the key {missing[0]!r} in {folder / 'config.json'}, found none")
        heads = given["num_attention_heads"]
        values = {
            "num_key_value_heads": heads,
            "head_dim": given["hidden_size"] // heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            **given,
        }
        scaling = {f.name: rope[f.name] for f in fields(RopeScaling) if rope_kind == "llama3"}
        shape = DecoderShape(
            **{ours: values[theirs] for ours, theirs in _SHAPE_KEYS.items()},
            rope_scaling=RopeScaling(**scaling) if scaling else None,
            qk_norm=family == "qwen3",
            qkv_bias=family == "qwen2",
        )
        for record in (shape, shape.rope_scaling):
            if record is not None:
                check_types(record)
                for name, value in vars(record).items():
                    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                    if is_number and not 0 < value < _TOO_LARGE:
                        raise ValueError(f"{name} is {value}")
        if shape.heads % shape.kv_heads or shape.head_dim % 2:
            raise ValueError(f"{shape.heads} heads of {shape.head_dim}, {shape.kv_heads} of keys")
    return shape


def _rope_of(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope, rope.get("rope_type", rope.get("type", "default"))


def config_of(shape: DecoderShape, dtype: torch.dtype) -> dict[str, Any]:
    """The config.json of a decoder."""
    if shape.qk_norm and shape.qkv_bias:
        raise CheckpointError("no published architecture has both QK-norm and QKV bias")
    return {
        "architectures": [gguf.FAMILIES[shape.family]],
        "model_type": shape.family,
        **{theirs: getattr(shape, ours) for ours, theirs in _SHAPE_KEYS.items()},
        "rope_scaling": shape.rope_scaling and {"rope_type": "llama3"} | asdict(shape.rope_scaling),
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def published_tensors(decoder: Decoder) -> dict[str, Tensor]:
    """Views of the decoder's weights under the names that Hugging Face uses."""
    shape = decoder.shape
    qkv_sizes = [heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
    tensors: dict[str, Tensor | None] = {
        "model.embed_tokens.weight": decoder.embedding,
        "model.norm.weight": decoder.final_norm,
        "lm_head.weight": decoder.lm_head,
    }
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer)
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        tensors |= {
            prefix + "input_layernorm.weight": layer.attention_norm,
            prefix + "post_attention_layernorm.weight": layer.mlp_norm,
            prefix + "mlp.down_proj.weight": layer.down,
            attention + "o_proj.weight": layer.attention_out,
            attention + "q_norm.weight": layer.query_norm,
            attention + "k_norm.weight": layer.key_norm,
        }
        for name, part in zip(("gate", "up"), layer.gate_up.chunk(2), strict=True):
            tensors[f"{prefix}mlp.{name}_proj.weight"] = part
        for kind, fused in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
            if fused is not None:
                for name, part in zip("qkv", fused.split(qkv_sizes), strict=True):
                    tensors[f"{attention}{name}_proj.{kind}"] = part
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def transformers_model(folder: Path) -> Any:
    """The model in `folder` as `transformers` loads it, in float32.

    Raises what it raises, and `CheckpointError` for weights that are missing, which it would draw at random.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if source := gguf.source_of(folder):
        config = AutoConfig.from_pretrained(folder)
        if len(source.files) > 1:
            return _whole_model(folder, config)
        return gguf.transformers_model(source, config)
    model, found = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
    )
    if missing := found["missing_keys"]:
        raise CheckpointError(
            f"expected the weights of {type(model).__name__} (config.json) in {folder}, and {len(missing)} "
            f"are missing, first {min(missing)}"
        )
    return model


def _whole_model(folder: Path, config: Any) -> Any:
    """The model of `transformers`, which reads no parts of GGUF files, with the weights as we read them."""
    from transformers import AutoModelForCausalLM

    if (shape := read_shape(folder)) is None:
        raise CheckpointError(
            f"transformers, which computes {config.model_type} with this config, reads no file in parts",
            remedy="Join the parts: llama-gguf-split --merge FIRST_PART WHOLE.gguf",
        )
    decoder = Decoder.frozen(shape, compute_dtype=torch.float32)
    load_weights(decoder, folder)
    state = published_tensors(decoder)
    if shape.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(state)
    return model


def demand_weights(shape: DecoderShape, folder: Path) -> None:
    """Raises `CheckpointError` if the weights in `folder` are too small for `shape`."""
    wide = (shape.heads + shape.kv_heads) * 2 * shape.head_dim  # queries, keys, values and the output
    layer = shape.hidden_size * (wide + 3 * shape.intermediate_size + 2)
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.tied_embeddings else 2)
    parameters = shape.layers * layer + embeddings
    if source := gguf.source_of(folder):
        size, unit, where = source.numbers, "numbers", source.file
    else:
        size = sum(path.stat().st_size for path in _weight_files(folder) if path.is_file())
        unit, where = "bytes", folder / "config.json"
    if parameters > size:
        raise CheckpointError(
            f"{where} asks for {parameters:,} parameters; the weights have {size:,} {unit}",
            remedy="the config is of another model, or the weights are cut short: fetch both again",
        )


def check_weights(folder: Path) -> None:
    """Raises `CheckpointError` for weights that are missing, cut short or no safetensors; reads none."""
    if base_folder(folder) is not None:
        return
    if shape := read_shape(folder):
        demand_weights(shape, folder)
    if gguf.source_of(folder):  # whose tensors were looked at when it was unpacked
        return
    for path in _weight_files(folder):
        for _ in _tensors_of(path, set()):
            pass


@torch.no_grad()
def load_weights(decoder: Decoder, folder: Path) -> None:
    """Fill the decoder from a folder's safetensors, one file or sharded, or from a GGUF file.

    Raises CheckpointError, naming the file, for a tensor that is missing or of another shape and
    for a file that is missing or cut short.
    """
    targets = published_tensors(decoder)
    if source := gguf.source_of(folder):
        gguf.load(targets, source, decoder.shape)
        return
    missing = set(targets)
    for path in _weight_files(folder):
        for name, tensor in _tensors_of(path, missing):
            target = targets[name]
            if tensor.shape != target.shape:
                raise CheckpointError(
                    f"expected {name} of shape {tuple(target.shape)} (config.json) in {path}, "
                    f"found {tuple(tensor.shape)}"
                )
            if not tensor.is_floating_point():
                raise CheckpointError(
                    f"expected floating-point numbers for {name} in {path}, found {tensor.dtype}",
                    remedy="Quantised weights are not read: take the model in bfloat16 or float32.",
                )
            target.copy_(tensor)
            missing.discard(name)
    if missing:
        raise CheckpointError(
            f"expected {len(targets)} tensors in {folder}, found {len(targets) - len(missing)}; "
            f"the first missing one is {min(missing)}"
        )


@torch.no_grad()
def copy_weights(decoder: Decoder, state: Mapping[str, Tensor]) -> None:
    """Fill the decoder from the state of a model of `transformers` of the same shape."""
    for name, target in published_tensors(decoder).items():
        target.copy_(state[name])


@torch.no_grad()
def demand_finite(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raises `CheckpointError` for a weight, of those of the model in `folder`, that is NaN or infinite.

    One pass over each tensor: a sum is finite only if all that it adds is.
    """
    for name, tensor in tensors.items():
        check()
        if not tensor.is_floating_point() or tensor.sum().isfinite():
            continue
        if count := int(tensor.numel() - tensor.isfinite().sum()):  # else the sum alone was too large
            raise CheckpointError(
                f"expected finite weights in {folder}, found NaN or infinity in {count:,} of the "
                f"{tensor.numel():,} numbers of {name}"
                + (" as float16, which ends at 65,504" if tensor.dtype == torch.float16 else ""),
                remedy="The file is damaged, or of a training that diverged: fetch it again, or take an "
                "earlier checkpoint.",
            )


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        with expecting("an index of weights", index, CheckpointError):
            names = sorted(set(read_json(index).get("weight_map", {}).values()))
            beside = {one for one in names if Path(one).name == one and len(os.fsencode(one)) <= _NAME_BYTES}
            if outside := [name for name in names if name not in beside]:
                raise CheckpointError(f"{index} names {outside[0]!r:.80}, which is no file beside it")
        return [folder / name for name in names]
    found = sorted(path.name for path in folder.glob("*.bin"))
    raise CheckpointError(
        f"expected weights in {single} or {index.name}, found {', '.join(found) or 'neither'}",
        remedy="convert pickled weights with save_pretrained(safe_serialization=True)" if found else None,
    )


def _tensors_of(path: Path, wanted: set[str]) -> Iterator[tuple[str, Tensor]]:
    if not path.is_file():
        raise CheckpointError(f"expected weights in {path}, found no such file")
    try:  # a link may lead anywhere: nothing but safetensors is ever shown or copied
        with safe_open(path, framework="pt") as file:
            for name in sorted(wanted.intersection(file.keys())):
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError, *UNEXPECTED) as error:
        raise CheckpointError(
            f"expected whole safetensors in {path}, found {path.stat().st_size} bytes that are not: {error}",
            remedy="the file is cut short or damaged: fetch or write it again",
        ) from error


def write(
    folder: Path, decoder: Decoder, tensors: Iterable[tuple[str, Tensor]], tokenizer: Tokenizer
) -> None:
    """Write config and `tensors`, in the compute type, under the names that they come with."""
    return_free_pages()  # The holes that a training leaves in the heap are too small for whole matrices.
    dtype = decoder.compute_dtype
    _write_tensors(folder, ((name, tensor.detach().to("cpu", dtype, copy=True)) for name, tensor in tensors))
    ends: dict[str, Any] = {
        "eos_token_id": list(tokenizer.eos_ids) if len(tokenizer.eos_ids) > 1 else tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.bos_id,
    }
    _write_json(folder / "config.json", config_of(decoder.shape, dtype) | ends)
    _write_json(folder / "generation_config.json", ends)


def _write_tensors(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write one file, or an index and files of about `_FILE_BYTES`, of which one is in memory at a time."""
    single, files, total = folder / "model.safetensors", dict[str, str](), 0
    for number, part in enumerate(_parts_of(tensors), start=1):
        file = folder / f"model-{number:05}.safetensors"
        save_file(part, file, metadata={"format": "pt"})
        files |= dict.fromkeys(part, file.name)
        total += sum(tensor.nbytes for tensor in part.values())
    if len(set(files.values())) == 1:
        file.rename(single)
        return
    index = {"metadata": {"total_size": total}, "weight_map": files}
    _write_json(single.with_name(f"{single.name}.index.json"), index)


def _parts_of(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """The tensors in their order, in parts; each is emptied when the next one is asked for."""
    part: dict[str, Tensor] = {}
    for name, tensor in tensors:
        part[name] = tensor
        if sum(one.nbytes for one in part.values()) >= _FILE_BYTES:
            yield part
            part.clear()
    if part:
        yield part


def save_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a draft beside `folder`, then put it in its place: whole or not at all.

    Raises `RunError` for a folder that is there, is not empty, and was not saved like this.
    """
    try:
        replace_folder(folder, "model", write)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the model could not be written to {folder}: {error}") from error


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
