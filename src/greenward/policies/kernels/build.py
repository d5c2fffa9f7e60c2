"""Compiles the kernels once for each machine, and trusts them after they agreed with torch in a test.

The library and the outcome of its test stand in the user's cache, under a hash of the sources, the compiler
and the processor. `GREENWARD_KERNELS=off` keeps to the operations of torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenward.runs.files import write_atomically

if TYPE_CHECKING:
    from greenward.policies.kernels.native import Kernels

SWITCH = "GREENWARD_KERNELS"
FASTER_PRODUCTS = "faster products"  # what the self-test says where it found them
_SOURCES = ("vectors.h", "elementwise.h", "attention.h", "decoding.h", "products.h", "kernels.c")
# Contraction to fused multiply-adds changes roundings, and nothing else: no other fast mathematics.
_FLAGS = ("-std=gnu11", "-O2", "-march=native", "-ffp-contract=fast", "-fPIC", "-Wno-psabi")
_SECONDS = 300


@dataclass(frozen=True)
class Built:
    """The library, or why there is none; whether its products of float32 are faster than torch's."""

    library: Path | None
    reason: str
    products: bool = False


def compiler() -> str | None:
    """The C compiler: $CC, cc, gcc or clang."""
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def build(*, anew: bool = False) -> Built:
    """Compile and test, or say what a build before this one gave."""
    found = compiler()
    if found is None:
        return Built(None, "no C compiler was found (cc, gcc, clang, or $CC)")
    try:
        library, verdict = _files(found)
    except RuntimeError as error:
        return Built(None, f"there is no place for a cache: {error} Set XDG_CACHE_HOME.")
    try:
        if anew:
            shutil.rmtree(library.parent, ignore_errors=True)
        if _settled(library, verdict) is None:
            library.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(verdict, json.dumps(_compiled_and_tested(found, library)).encode())
        said = _settled(library, verdict) or {"failure": f"{library} changes while it is used"}
    except subprocess.TimeoutExpired as error:  # on a busy machine: another time it may be quicker
        return Built(None, f"{error.cmd[0]} took more than {_SECONDS} s")
    except OSError as error:
        return Built(None, f"{library.parent} cannot be used: {error}")
    if "failure" in said:
        return Built(None, said["failure"])
    products = " with matrix products of float32" if said["products"] else ""
    return Built(library, f"compiled by {found}{products}", said["products"])


@functools.cache
def kernels() -> Kernels | None:
    """The kernels of this machine, compiled if they have not been; None where there are none."""
    if os.environ.get(SWITCH) == "off":
        return None
    built = build()
    if built.library is None:
        return None
    from greenward.policies.kernels.native import Kernels

    return Kernels(built.library, products=built.products)


def is_to_be_built() -> bool:
    """Whether the next use compiles, which takes some seconds."""
    found = compiler()
    if os.environ.get(SWITCH) == "off" or found is None:
        return False
    try:
        return _settled(*_files(found)) is None
    except (OSError, RuntimeError):
        return False


def _settled(library: Path, verdict: Path) -> dict[str, Any] | None:
    """What a build has found; None if there was none, or if its library is not as it was tested."""
    try:
        said: dict[str, Any] = json.loads(verdict.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    is_whole = "failure" in said or (library.exists() and said["sha256"] == _digest(library))
    return said if is_whole else None


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _compiled_and_tested(found: str, library: Path) -> dict[str, Any]:
    """The verdict: the library's digest and whether its `products` are faster than torch's, or the `failure`.

    Raises `OSError` and `TimeoutExpired`.
    """
    source = Path(__file__).parent / "kernels.c"
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        part, whole = Path(scratch) / "kernels.o", Path(scratch) / "kernels.so"
        # Linked without an OpenMP runtime of its own: the symbols are those of the one that torch loads.
        openmp = ("-fopenmp",) if platform.system() == "Linux" else ()
        for command in (
            (found, *_FLAGS, *openmp, "-c", str(source), "-o", str(part)),
            (found, "-shared", str(part), "-o", str(whole), "-lm"),
            (sys.executable, "-m", "greenward.policies.kernels.self_test", str(whole)),
        ):
            try:
                said = subprocess.run(
                    command, check=True, capture_output=True, text=True, timeout=_SECONDS
                ).stdout.strip()
            except subprocess.CalledProcessError as error:
                last = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
                stage = f"{command[0]} failed" if command[0] == found else "the self-test failed"
                return {"failure": f"{stage}: {last}"}
        whole.replace(library)
    return {"sha256": _digest(library), "products": said == FASTER_PRODUCTS}


def _files(found: str) -> tuple[Path, Path]:
    """The library, and the file with the verdict. Raises `RuntimeError` for a user without a home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "greenward" / "kernels" / _fingerprint(found)
    return folder / "kernels.so", folder / "verdict.json"


def _fingerprint(found: str) -> str:
    texts = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in _SOURCES]
    version = subprocess.run((found, "--version"), capture_output=True, text=True, check=False).stdout
    return hashlib.sha256("\0".join((*texts, *_FLAGS, found, version, _processor())).encode()).hexdigest()[
        :16
    ]


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
