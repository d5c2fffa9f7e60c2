"""Chooses the device and the numbers that a model computes with."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import get_args

import torch

from greenward.common.errors import ConfigError
from greenward.config.sections import DType
from greenward.models import checkpoint

INT8 = "int8"
"""The dtype of weights of 8 bits, for inference."""


def resolve_device(device: torch.device | str, *, key: str = "model.device") -> torch.device:
    """`auto` is the first CUDA device, else the CPU; `mps`, Apple's GPU, must be asked for by name.

    Raises `ConfigError`, which names the `key` of the recipe, for a device that is not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    try:
        found = torch.device(device)
        is_there = str(found) in ("cpu", "cpu:0", *cuda, *mps) or (str(found) == "cuda" and bool(cuda))
    except RuntimeError:  # torch's answer to a name that is no device at all
        is_there = False
    if not is_there:
        build = "with" if torch.version.cuda else "without"
        raise ConfigError(
            f"{key} is {str(device)!r}; torch {torch.__version__}, built {build} CUDA, finds "
            f"{', '.join(['cpu', *cuda, *mps])} here.",
            remedy=f"Set {key} to one of these, or to auto.",
        )
    return found


def resolve_dtype(dtype: torch.dtype | str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the processor multiplies it in hardware, else float32.

    Raises `ConfigError` for a name that a recipe does not know.
    """
    if dtype == "auto":
        return torch.bfloat16 if _multiplies_bfloat16(device) else torch.float32
    if isinstance(dtype, str) and dtype not in get_args(DType):
        raise ConfigError(
            f"expected one of {', '.join(get_args(DType))} as the type of the arithmetic, found {dtype!r}.",
            remedy="Weights of 8 bits serve answers alone: load them by Policy.for_inference."
            if dtype == INT8
            else None,
        )
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def check_int8(folder: Path, device: torch.device) -> None:
    """Raises `ConfigError` where a model cannot be sampled with weights of 8 bits on `device`."""
    if device.type == "cpu" and checkpoint.read_shape(checkpoint.base_folder(folder) or folder):
        return
    found = "another architecture" if device.type == "cpu" else f"the device {device}"
    raise ConfigError(
        f"Weights of 8 bits (int8) are for Llama, Qwen2 and Qwen3 on a CPU, found {found}.",
        remedy="Choose auto, float32 or bfloat16.",
    )


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    # torch 2.10 cannot tell; float32 is right on every processor.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def check_training_dtype(dtype: str, device: torch.device) -> None:
    """Raises `ConfigError` for float16 on a CPU, bfloat16 on a GPU that only emulates it, and both on MPS."""
    if device.type == "mps" and dtype not in ("auto", "float32"):
        raise ConfigError(
            f"model.dtype is {dtype}; on the device mps training computes in float32 only.",
            remedy="Set model.dtype to float32 or auto.",
        )
    if dtype == "float16" and device.type == "cpu":
        raise ConfigError(
            "model.dtype is float16, which trains on GPUs only; the model computes on the CPU.",
            remedy="Set model.dtype to float32, bfloat16 or auto.",
        )
    if dtype == "bfloat16" and device.type == "cuda" and not _multiplies_bfloat16(device):
        raise ConfigError(
            f"model.dtype is bfloat16, and {torch.cuda.get_device_name(device)} has no arithmetic for it.",
            remedy="Set model.dtype=float16, which trains with loss scaling, or preset=v100.",
        )


def slow_dtype(dtype: str, device: torch.device) -> str | None:
    """Advice where a CPU only emulates `dtype`: torch 2.13 then takes ten times as long as in float32."""
    if dtype != "bfloat16" or device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return None
    if _multiplies_bfloat16(device):
        return None
    return "This processor emulates bfloat16: model.dtype=float32 (or auto) is several times as fast."


def computing_in(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[None]:
    """Matrix products in `dtype` over float32 weights."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
