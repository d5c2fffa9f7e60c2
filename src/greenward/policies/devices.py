"""Where a model computes: the device, the type of its arithmetic, and whether its threads get their cores."""

from __future__ import annotations

import time

import torch

from greenward.errors import ConfigError

_MATRIX_SIZE = 256  # of the square matrices: an operation as small as those of a small model
_MEASURED_SECONDS = 0.05  # with all threads and with one
_FAST_ENOUGH = 0.8  # of the speed of one thread, below which all threads together are slowed down


def resolve_device(device: torch.device | str) -> torch.device:
    """`auto` is the first accelerator, else the CPU. Raises `ConfigError` for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    try:
        found = torch.device(device)
        is_there = str(found) in ("cpu", "cpu:0", *cuda) or (str(found) == "cuda" and bool(cuda))
    except RuntimeError:  # torch's answer to a name that is no device at all
        is_there = False
    if not is_there:
        build = "with" if torch.version.cuda else "without"
        raise ConfigError(
            f"model.device is {str(device)!r}; torch {torch.__version__}, built {build} CUDA, finds "
            f"{', '.join(['cpu', *cuda])} here.",
            remedy="Set model.device to one of these, or to auto.",
        )
    return found


def resolve_dtype(dtype: torch.dtype | str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the processor multiplies it in hardware, else float32."""
    if dtype != "auto":
        return getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return torch.bfloat16 if _multiplies_bfloat16(device) else torch.float32


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # torch 2.10 cannot tell; float32 is right on every processor.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def check_training_dtype(dtype: str, device: torch.device) -> None:
    """Raises `ConfigError` for float16 on a CPU, and for bfloat16 on a GPU that only emulates it."""
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


def contended_threads() -> str | None:
    """Measure matrix products with all threads and with one; advice where all are slower, else None.

    Threads of torch wait for each other at the end of every operation. Where another program uses a core,
    each operation waits for the thread that was interrupted, so that fewer threads are faster.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return None
    together = _products_per_second()
    try:
        torch.set_num_threads(1)
        speed = together / _products_per_second()
    finally:
        torch.set_num_threads(threads)
    if speed >= _FAST_ENOUGH:
        return None
    return (
        f"The cores are busy: {threads} threads compute at {speed:.2f} times the speed of one. End the other "
        "programs, or set training.threads=1 (a run can be resumed with it)."
    )


def _products_per_second() -> float:
    matrix = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE)
    products, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < _MEASURED_SECONDS:
        matrix @ matrix
        products += 1
    return products / seconds
