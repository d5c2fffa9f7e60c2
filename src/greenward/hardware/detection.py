"""Detects what a machine has: GPUs, cores, memory, disk, scheduler, site, network and installed extras.

Facts come from data that a test can replace: the environment, a root folder for /proc and /sys, the text of
nvidia-smi. Nothing here needs torch, waits longer than a few seconds, or fails where something is missing.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from greenward.common.control_groups import allowed_cores, cpu_limit
from greenward.common.text import load_keys
from greenward.config.loading import Surroundings
from greenward.runs.machine import available_mb, http_status, version_of
from greenward.runs.trackers import has_wandb_key

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "hf": ("transformers",),
    "hub": ("datasets",),
    "peft": ("peft",),
    "vllm": ("vllm",),
    "ray": ("ray",),
    "distributed": ("accelerate", "deepspeed"),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "trackio": ("trackio",),
    "ui": ("starlette", "uvicorn"),
    "mlflow": ("mlflow",),
    "games": ("pettingzoo", "textarena"),
}
"""The packages of each extra."""
OFFLINE_SITES = {"MIT Supercloud": ("gridsan", "supercloud")}
"""Clusters whose nodes have no connection, with words of which host name, home or folder contain one."""
OFFLINE_HOSTS = "GREENWARD_OFFLINE_HOSTS"
"""The variable with patterns of host names without a connection, such as `node*,*.gpu.cluster`."""
MODEL_CACHE = "./model_cache"
"""The folder that holds models where there is no connection, if it is there."""
NEARLY_FULL_GB = 10


@dataclass(frozen=True)
class Gpu:
    """One GPU. `capability` is CUDA's compute capability."""

    name: str
    memory_mb: int
    capability: float

    @property
    def bfloat16(self) -> bool:
        """Whether it multiplies bfloat16 in hardware: Ampere and later."""
        return self.capability >= 8

    @property
    def preset(self) -> str:
        return "h100" if self.capability >= 9 else "a100" if self.bfloat16 else "v100"


@dataclass(frozen=True)
class Machine:
    """What was found. Sizes in MiB, disk in GiB; `None` where there is no such thing.

    `cores` are those that this process may use, `cpu_limit` the share of time that its control group gets,
    `offline` is why nothing can be fetched.
    `torch_cuda` says whether the installed torch can use GPUs at all.
    """

    gpus: tuple[Gpu, ...]
    torch_cuda: bool
    cores: int
    cpu_limit: float | None
    memory_mb: int
    available_mb: int
    disk_free_gb: float
    model_cache: str
    model_cache_writable: bool
    site: str | None
    offline: str | None
    wandb_key: bool
    slurm: Mapping[str, str] | None
    extras: Mapping[str, Mapping[str, str | None]]

    @property
    def preset(self) -> str:
        """The preset that suits: that of the first GPU."""
        return self.gpus[0].preset if self.gpus and self.torch_cuda else "cpu"

    @property
    def warnings(self) -> list[str]:
        found = []
        if self.gpus and not self.torch_cuda:
            found.append("torch is a CPU build and will not use the GPU: install a CUDA build of torch.")
        if self.disk_free_gb < NEARLY_FULL_GB:
            found.append(f"The disk is nearly full: {self.disk_free_gb:.1f} GiB are free here.")
        if not self.model_cache_writable:
            found.append(
                f"Models cannot be kept in {self.model_cache}, which cannot be written: set model.cache_dir, "
                "or model.offline=true if they are there."
            )
        return found


@cache
def this_machine() -> Surroundings:
    """What recipes take from this machine, with the keys of `.env`."""
    load_keys()
    found = detect()
    cache = MODEL_CACHE if found.offline and Path(MODEL_CACHE).is_dir() else ""
    tracked = found.wandb_key and found.extras["wandb"]["wandb"] is not None
    return Surroundings(found.preset, found.offline or "", cache, tracked)


def detect(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    smi: str | None = None,
    host: str | None = None,
) -> Machine:
    """The machine that this process runs on, or the one that the arguments describe."""
    folder = Path.cwd()
    where = " ".join((host or socket.gethostname(), environ.get("HOME", ""), str(folder))).lower()
    sites = [site for site, words in OFFLINE_SITES.items() if any(word in where for word in words)]
    cached = environ.get("HF_HUB_CACHE") or Path(environ.get("HF_HOME", "~/.cache/huggingface"), "hub")
    model_cache = Path(cached).expanduser()
    slurm = {
        name: environ[key]
        for name, key in (
            ("job", "SLURM_JOB_ID"),
            ("cluster", "SLURM_CLUSTER_NAME"),
            ("partition", "SLURM_JOB_PARTITION"),
            ("nodes", "SLURM_JOB_NUM_NODES"),
        )
        if key in environ
    }
    if not slurm and (sbatch := shutil.which("sbatch", path=environ.get("PATH"))):
        slurm = {"sbatch": sbatch}
    return Machine(
        gpus=visible_gpus(nvidia_smi() if smi is None else smi, environ.get("CUDA_VISIBLE_DEVICES")),
        torch_cuda="+cpu" not in (version_of("torch") or "+cpu"),
        cores=allowed_cores(),
        cpu_limit=cpu_limit(root),
        memory_mb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        available_mb=int(available_mb(root)),
        disk_free_gb=shutil.disk_usage(folder).free / 2**30,
        model_cache=str(model_cache),
        model_cache_writable=is_writable(model_cache),
        site=sites[0] if sites else None,
        offline=why_offline(environ, host or socket.gethostname(), sites[0] if sites else None, root),
        wandb_key=has_wandb_key(environ),
        slurm=slurm or None,
        extras={extra: {name: version_of(name) for name in names} for extra, names in EXTRAS.items()},
    )


def why_offline(environ: Mapping[str, str], host: str, site: str | None, root: Path) -> str | None:
    """Why nothing can be fetched here, as far as it shows without waiting; None where that is not known.

    HF_HUB_OFFLINE decides where it is set. Else a site without a connection, a host name that
    `OFFLINE_HOSTS` matches, and a machine without a default route and without a proxy are offline.
    """
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if value := environ.get(name, "").strip().lower():
            return None if value in ("0", "false", "no", "off") else f"{name} is set"
    patterns = [one.strip() for one in environ.get(OFFLINE_HOSTS, "").split(",")]
    if matching := next((one for one in patterns if one and fnmatch(host, one)), None):
        return f"the host name matches {matching} of {OFFLINE_HOSTS}"
    if site:
        return f"the nodes of {site} have no connection"
    proxies = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
    if any(map(environ.get, proxies)) or has_default_route(root) is not False:
        return None
    return "there is no default route"


def has_default_route(root: Path = Path("/")) -> bool | None:
    """Whether packets leave this machine, by the kernel's tables of routes; None where there are none."""
    found = None
    for name, column in (("route", 1), ("ipv6_route", 0)):
        try:
            lines = (root / "proc/net" / name).read_text().splitlines()
        except OSError:
            continue
        rows = [line.split() for line in lines]
        # Of IPv6, the loopback device has a route of this form, too.
        default = [
            row for row in rows if len(row) > column and not row[column].strip("0") and "lo" not in row
        ]
        found = bool(default) or bool(found)
    return found


def visible_gpus(smi: str, visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs in the lines `name, memory in MiB, compute capability` of nvidia-smi.

    `visible` is CUDA_VISIBLE_DEVICES: indices; with other names (UUIDs), as many GPUs as it names.
    """
    gpus = []
    for line in smi.splitlines():
        name, *numbers = (part.strip() for part in line.split(","))
        try:
            memory, capability = map(float, numbers)
        except ValueError:  # a driver's message, or [N/A]
            continue
        gpus.append(Gpu(name, int(memory), capability))
    if visible is None:
        return tuple(gpus)
    chosen = [part.strip() for part in visible.split(",") if part.strip()]
    if all(part.isdigit() for part in chosen):
        return tuple(gpus[int(part)] for part in chosen if int(part) < len(gpus))
    return tuple(gpus[: 0 if "-1" in chosen else len(chosen)])


def nvidia_smi() -> str:
    """What nvidia-smi says of the GPUs; nothing where it is missing, fails or hangs."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def is_writable(folder: Path) -> bool:
    """Whether `folder` can be written, or made."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def reaches_hub(environ: Mapping[str, str] = os.environ, seconds: float = 3.0) -> bool:
    """Whether the Hugging Face hub (HF_ENDPOINT) answers in time, be it with a refusal."""
    return http_status(environ.get("HF_ENDPOINT", "https://huggingface.co"), seconds, "HEAD") is not None
